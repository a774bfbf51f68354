"""Fixtures of the rules about addresses, captures and whole recordings: what make_fixtures.py writes with the help of `Recording`."""
import json
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
FIRST_ADDRESS = 0x7F2000000000
MODEL = "/home/user/model.py"


class Recording:
    """A capture file: allocations, launches outside capture, graphs. Sequence numbers count up with everything that happens."""

    def __init__(self, framework: str = ""):
        self.process = {"type": "process", "process": 0, "pid": 1, "gpus": [{"device": 0, "name": "NVIDIA H200", "compute_capability": [9, 0], "sm_count": 132}]}
        if framework:
            self.process["framework"] = framework
        self.sequence, self.allocations, self.after, self.body, self.numbers = 0, [], [], [], 0

    def tick(self) -> int:
        self.sequence += 10
        return self.sequence

    def alloc(self, size: int = 1 << 16, kind: str = "device", at: int | None = None) -> int:
        """Returns the allocation's id; `at`: the base of an earlier one that was freed."""
        number = len(self.allocations)
        base = at if at is not None else FIRST_ADDRESS + 0x1000000 * number
        self.allocations.append({"id": number, "base": hex(base), "size_bytes": size, "kind": kind, "device": 0, "alloc_sequence": self.tick()})
        return number

    def base(self, number: int) -> int:
        return int(self.allocations[number]["base"], 16)

    def free(self, number: int) -> None:
        self.allocations[number]["free_sequence"] = self.tick()

    def blocks(self, blocks: list) -> None:
        """(allocation, offset, size, state, pool)"""
        rows = [{"base": hex(self.base(a) + offset), "size_bytes": size, "state": state, **({"pool": pool} if pool else {})} for a, offset, size, state, pool in blocks]
        self.body.append({"type": "allocator_blocks", "process": 0, "sequence": self.tick(), "blocks": rows})

    def graph(self, name: str = "decode", role: str = "captured", stacks: bool = True, facts=(), **info):
        return GraphLine(self, name, role, stacks, facts, info)

    def lines(self) -> list:
        lines = [{"type": "header", "format": "cglint-capture", "version": "1.0", "producer": "make_fixtures.py"}, self.process]
        # The state at the end of the recording comes last: a reader sees allocations before the graphs and frees after them.
        before = [{key: value for key, value in row.items() if key != "free_sequence"} for row in self.allocations]
        if before:
            lines.append({"type": "allocations", "process": 0, "allocations": before})
        lines += self.body
        freed = [row for row in self.allocations if "free_sequence" in row]
        if freed:
            lines.append({"type": "allocations", "process": 0, "allocations": freed})
        lines += self.after
        lines.append({"type": "end", "records": len(lines)})
        return lines

    def write(self, place: str, root: str = "rules") -> None:
        path = ROOT / root / (place + ".cgl.jsonl")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in self.lines()))


class GraphLine:
    def __init__(self, recording, name, role, stacks, facts, info):
        self.recording, self.role, self.with_stacks, self.extra = recording, role, stacks, list(facts)
        self.info = {"name": name, **({"role": role} if role != "captured" else {}), **info}
        self.functions, self.nodes, self.edges, self.stacks, self.frames, self.streams = [], [], [], [], [], []
        self.syncs, self.tail, self.accesses, self.replays = [], {}, [], []
        self.begin = recording.tick()

    def stack(self, places) -> int:
        """`places`: innermost first, (line, function) in model.py or (file, line, function)."""
        row = []
        for place in places:
            file, line, function = place if len(place) == 3 else (MODEL, *place)
            frame = {"file": file, "function": function, "line": line}
            if "torchinductor" in file:
                frame["generated"] = True
            if frame not in self.frames:
                self.frames.append(frame)
            row.append(self.frames.index(frame))
        if row not in self.stacks:
            self.stacks.append(row)
        return self.stacks.index(row)

    def stream(self, handle: int) -> int:
        if handle not in self.streams:
            self.streams.append(handle)
        return self.streams.index(handle)

    def node(self, kind: str, places=(), stream: int = 0, **fields) -> int:
        record = {"kind": kind, "sequence": self.recording.tick(), "stream": self.stream(stream), **fields}
        if places and self.with_stacks:
            record["stack"] = self.stack(places)
        index = len(self.nodes)
        self.nodes.append(record)
        if self.role != "eager":
            self.edges += [[parent, index] for parent in sorted(self.tail.get(stream, ()))]
        self.tail[stream] = {index}
        return index

    def kernel(self, name: str, args=(), places=(), stream: int = 0, grid: int = 8, **fields) -> int:
        """args: an int, (allocation, offset), or (allocation, offset, "const_pointer")."""
        if name not in self.functions:
            self.functions.append(name)
        params = []
        for slot, arg in enumerate(args):
            if isinstance(arg, tuple):
                kind = arg[2] if len(arg) > 2 else "unknown"
                params.append([slot, 0, 8, hex(self.recording.base(arg[0]) + arg[1]), kind, arg[0]])
            else:
                params.append([slot, 0, 8, hex(arg)])
        if params:
            fields["params"] = params
        return self.node("kernel", places, stream, function=self.functions.index(name), grid=[grid, 1, 1], block=[128, 1, 1], **fields)

    def sync(self, kind: str, stream: int, event: int = 0, record: int | None = None, places=(), **fields) -> int:
        op = {"kind": kind, "stream": self.stream(stream), "sequence": self.recording.tick(), **fields}
        if event:
            op["event"] = hex(event)
        if record is not None:
            op["record"] = record
        if places and self.with_stacks:
            op["stack"] = self.stack(places)
        self.syncs.append(op)
        return len(self.syncs) - 1

    def wait(self, stream: int, other: int, places=(), **fields) -> int:
        """stream.wait_stream(other), with its sync operations. Returns the index of the wait."""
        record = self.sync("event_record", other, 0x100 + len(self.syncs), places=places)
        op = self.sync("event_wait", stream, 0x100 + len(self.syncs) - 1, record, places=places, **fields)
        self.tail[stream] = set(self.tail.get(stream, ())) | set(self.tail.get(other, ()))
        return op

    def end(self, number_of_lines_after=(), params: bool = True, allocations: bool = True) -> int:
        """Writes the graph's lines; returns its number."""
        r = self.recording
        facts = ["nodes", "kernel_names", "launch_config"]
        if params:
            facts.append("kernel_params")
        if allocations and r.allocations:
            facts.append("allocations")
        if self.with_stacks and self.stacks:
            facts.append("source_frames")
        if self.role != "eager":
            facts += ["creation_order", "edges", "edge_data", "capture_streams"]
        if self.syncs:
            facts.append("sync_ops")
        info = self.info
        if self.role != "eager":
            info.setdefault("begin_sequence", self.begin)
            info.setdefault("end_sequence", r.tick())
            info.setdefault("origin_stream", self.stream(0))
        number = r.numbers
        r.numbers += 1
        line = {"type": "graph", "graph": number, "process": 0, "info": info, "facts": facts + self.extra, "functions": [{"name": f} for f in self.functions],
                "streams": [{"handle": hex(0x10 + s)} for s in self.streams], "frames": self.frames, "stacks": self.stacks, "nodes": self.nodes}
        if self.role != "eager":
            line["edges"] = self.edges
        if self.syncs:
            line["sync_ops"] = self.syncs
        r.body.append({key: value for key, value in line.items() if value not in ([], None) or key in ("nodes", "facts")})
        if self.accesses:
            r.body.append({"type": "access", "graph": number, "accesses": self.accesses})
        if self.replays:
            r.body.append({"type": "replays", "graph": number, "base_ns": "1000000", "replays": self.replays})
        r.body += list(number_of_lines_after)
        if self.role != "eager":
            r.body.append({"type": "graph_end", "graph": number})
        return number


def null_address() -> None:
    place = "addresses/null_address/"

    def layers(graph, buffers, disposed=lambda layer: False, count=6, gamma=None, near=0, residual=lambda layer: True, number=0, caller=90):
        """rms_norm without gamma, a routed branch, a shared branch whose input may be gone."""
        x, w, out = buffers
        for layer in range(count):
            at = [(41, "forward"), (caller, "decode")]
            if gamma is not None:
                graph.kernel("rms_norm", [(x, 0), gamma, (out, 0), number], [(20, "norm"), *at])
            graph.kernel("add_residual", [(x, 256), (out, 512) if residual(layer) else 0], [(25, "add"), *at])
            graph.kernel("routed_gemm", [(x, 0), (w, 4096 * layer), (out, 0)], [(31, "routed"), *at])
            graph.kernel("shared_gemm", [near if disposed(layer) else (x, 1024), (w, 4096 * layer), (out, 1024)], [(36, "shared"), *at])
        return graph

    def start(framework=""):
        r = Recording(framework)
        return r, (r.alloc(), r.alloc(), r.alloc())

    every = lambda layer: True
    r, b = start()
    layers(r.graph("warm-up", "eager"), b, gamma=0, caller=80).end()
    layers(r.graph(facts=["eager_launches"]), b, every, gamma=0).end()
    r.write(place + "bad/disposed_in_every_layer")

    r, b = start()
    layers(r.graph("warm-up", "eager", stacks=False), b, gamma=0).end()
    layers(r.graph(stacks=False, facts=["eager_launches"]), b, every, gamma=0).end()
    r.write(place + "bad/disposed_without_stacks")

    r, b = start()
    layers(r.graph("decode_8", facts=["graph_key"], batch_size=8), b, every).end()
    layers(r.graph("decode_4", facts=["graph_key"], batch_size=4), b).end()
    r.write(place + "bad/another_graph_passes_an_address")

    r, b = start()
    layers(r.graph(), b, lambda layer: layer == 3).end()
    r.write(place + "bad/one_layer_of_six")

    r, b = start()
    g = layers(r.graph(stacks=False, facts=["measured_access"]), b, every)
    g.accesses = [[2, "0x0", "0x1", "r"]]
    g.end()
    r.write(place + "bad/isolated_run_faults")

    r, b = start()
    layers(r.graph("warm-up", "eager"), b, caller=80).end()
    layers(r.graph(facts=["eager_launches"]), b, every, near=0x400).end()
    r.write(place + "bad/slice_of_a_disposed_tensor")

    # With nothing to compare with it is neither a finding nor clean.
    r, b = start()
    layers(r.graph(), b, every).end()
    r.write("null_address_without_evidence/recording", "tests/golden/cli")

    # Optional arguments: no gamma anywhere, no residual in the first layer; gamma at another place of the model.
    r, b = start()
    e = layers(r.graph("warm-up", "eager"), b, gamma=0, residual=lambda layer: layer > 0, caller=80)
    e.kernel("rms_norm", [(b[0], 0), (b[1], 0), (b[2], 0), 0], [(20, "norm"), (60, "final"), (80, "decode")])
    e.end()
    g = layers(r.graph(facts=["eager_launches"]), b, gamma=0, residual=lambda layer: layer > 0)
    g.kernel("rms_norm", [(b[0], 0), (b[1], 0), (b[2], 0), 0], [(20, "norm"), (60, "final"), (90, "decode")])
    g.end()
    r.write(place + "good/optional_arguments")
    # The same without stacks, where the graph passes both.
    r, b = start()
    for name, role in (("warm-up", "eager"), ("decode", "captured")):
        g = layers(r.graph(name, role, stacks=False, facts=["eager_launches"] if role == "captured" else []), b, gamma=0, residual=lambda layer: layer > 0)
        g.kernel("rms_norm", [(b[0], 0), (b[1], 0), (b[2], 0), 0])
        g.end()
    r.write(place + "good/optional_arguments_without_stacks")
    # A count that is 0 in the graph and not 0 outside is no address.
    r, b = start()
    layers(r.graph("warm-up", "eager"), b, gamma=0, number=7, caller=80).end()
    layers(r.graph(facts=["eager_launches"]), b, gamma=0, number=0).end()
    r.write(place + "good/zero_count")


def main() -> None:
    null_address()
