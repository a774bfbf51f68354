"""Fixtures of the rules about addresses, captures and whole recordings: what make_fixtures.py writes with the help of `Recording`."""
import json
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
FIRST_ADDRESS = 0x7F2000000000
MODEL = "/home/user/model.py"


class Recording:
    """A capture file: allocations, launches outside capture, graphs. Sequence numbers count up with everything that happens."""

    def __init__(self, framework: str = "", source: str = MODEL):
        self.process = {"type": "process", "process": 0, "pid": 1, "gpus": [{"device": 0, "name": "NVIDIA H200", "compute_capability": [9, 0], "sm_count": 132}]}
        if framework:
            self.process["framework"] = framework
        self.sequence, self.allocations, self.after, self.body, self.numbers, self.source = 0, [], [], [], 0, source

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
        """(allocation, offset, size, state, pool), and perhaps the moment since when it is held"""
        rows = [{"base": hex(self.base(a) + offset), "size_bytes": size, "state": state, **({"pool": pool} if pool else {}),
                 **({"alloc_sequence": since[0]} if since else {})} for a, offset, size, state, pool, *since in blocks]
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
        self.syncs, self.tail, self.accesses, self.replays, self.waits = [], {}, [], [], {}
        self.begin = recording.tick()

    def stack(self, places) -> int:
        """`places`: innermost first, (line, function) in the recording's source or (file, line, function)."""
        row = []
        for place in places:
            file, line, function = place if len(place) == 3 else (self.recording.source, *place)
            frame = {**({} if file.endswith(".py") else {"kind": "native"}), "file": file, "function": function, "line": line}
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
            # An edge that a wait made names the wait.
            waits = self.waits.pop(stream, {})
            self.edges += [[parent, index, 0, 0, 0, waits[parent]] if parent in waits else [parent, index] for parent in sorted(self.tail.get(stream, ()))]
        self.tail[stream] = {index}
        return index

    def kernel(self, name: str, args=(), places=(), stream: int = 0, grid: int = 8, **fields) -> int:
        """args: an int, (allocation, offset), (allocation, offset, "const_pointer"), or a list of these: a struct of 8-byte words."""
        if name not in self.functions:
            self.functions.append(name)
        params = []
        for slot, arg in enumerate(args):
            for index, word in enumerate(arg if isinstance(arg, list) else [arg]):
                if isinstance(word, tuple):
                    kind = word[2] if len(word) > 2 else "unknown"
                    params.append([slot, 8 * index, 8, hex(self.recording.base(word[0]) + word[1]), kind, word[0]])
                else:
                    params.append([slot, 8 * index, 8, hex(word)])
        if params:
            fields["params"] = params
        return self.node("kernel", places, stream, function=self.functions.index(name), grid=[grid, 1, 1], block=[128, 1, 1], **fields)

    def fill(self, target: int, offset: int, size: int, stream: int = 0) -> int:
        """A memset of `size` bytes."""
        if "copy_params" not in self.extra:
            self.extra.append("copy_params")
        return self.node("memset", (), stream, dst=hex(self.recording.base(target) + offset), width=size, element_bytes=1, dst_allocation=target)

    def replayed(self, launches) -> None:
        """(start in us, tracer's stream) of each launch; 2 us per node, one after the other."""
        self.extra += ["replay_times", "replay_streams"]
        for number, (start, stream) in enumerate(launches):
            ops = [[i, 0, stream, (start + 2 * i) * 1000, (start + 2 * i + 2) * 1000] for i in range(len(self.nodes))]
            self.replays.append({"correlation": 100 * start + number, "launch_stream": stream, "ops": ops})

    def failed(self, call: str, error: str, places=(), stream: int | None = None, thread: int = 0, status: str = "invalidated") -> None:
        self.extra.append("capture_status")
        self.info.update(capture_status=status, failed_call=call, failed_error=error, instantiated=False)
        if places:
            self.info["failed_stack"] = self.stack(places)
        if stream is not None:
            self.info["failed_stream"] = self.stream(stream)
        if thread:
            self.info["failed_thread"] = thread

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
        self.waits.setdefault(stream, {}).update({parent: op for parent in self.tail.get(other, ()) if parent not in self.tail.get(stream, ())})
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


def capture_failed() -> None:
    place = "capture/capture_failed/"
    step = [(90, "capture"), (12, "main")]

    def begun(r, mode="global", **extra):
        g = r.graph(capture_mode=mode, **extra)
        g.sync("begin_capture", 0, places=[(88, "capture"), *step[1:]], thread=7)
        g.kernel("rms_norm", places=[(20, "norm"), *step], thread=7)
        g.kernel("qkv_gemm", places=[(24, "attention"), *step], thread=7)
        return g

    broken = [
        ("legacy_stream", "cuLaunchKernel", "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", [(31, "extension_op")], 1, 7),
        ("synchronisation", "cuStreamSynchronize", "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", [(33, "log_norm")], 0, 7),
        ("allocation", "cuMemAlloc_v2", "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", [(35, "grow_workspace")], None, 7),
        ("allocation_in_another_thread", "cuMemAlloc_v2", "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", [("/home/user/loader.py", 61, "prefetch")], None, 9),
        ("event_of_another_capture", "cuStreamWaitEvent", "CUDA_ERROR_STREAM_CAPTURE_ISOLATION", [(37, "wait_for_draft")], 0, 7),
        ("pageable_copy", "cuMemcpyHtoD_v2", "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", [(39, "upload_lengths")], 0, 7),
        ("lazy_initialisation", "cuModuleLoadData", "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", [(41, "first_gemm")], None, 7),
        ("ended_in_another_thread", "cuStreamEndCapture", "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD", [(95, "worker")], 0, 9),
    ]
    for name, call, error, places, stream, thread in broken:
        r = Recording()
        g = begun(r)
        g.failed(call, error, [*places, *step], stream, thread)
        g.end(params=False)
        r.write(place + "bad/" + name)

    r = Recording()
    g = begun(r)
    g.wait(1, 0, [(44, "shared_experts"), *step], unjoined=True)
    g.kernel("shared_gemm", places=[(45, "shared_experts"), *step], stream=1, thread=7)
    g.kernel("routed_gemm", places=[(50, "routed_experts"), *step], thread=7)
    g.failed("cuStreamEndCapture", "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", [(93, "capture"), *step[1:]], 0, 7, "failed")
    g.end(params=False)
    r.write(place + "bad/unjoined_stream")

    # Not the driver: a check of the framework, or a program that ends.
    r = Recording()
    g = begun(r)
    g.failed("exception", "RuntimeError: Offset increment outside graph capture encountered unexpectedly.", [(47, "sample"), *step], None, 7, "failed")
    g.end(params=False)
    r.write(place + "bad/left_by_an_exception")
    r = Recording()
    g = begun(r)
    g.failed("exit", "", (), None, 7, "failed")
    g.end(params=False)
    r.write(place + "bad/never_ended")

    # Nothing but the status is known.
    r = Recording()
    g = r.graph(stacks=False, capture_status="failed")
    g.extra.append("capture_status")
    g.end(params=False)
    r.write(place + "bad/unseen_call")

    r = Recording()
    g = begun(r, facts=["capture_status"], capture_status="ok")
    g.wait(1, 0, [(44, "shared_experts"), *step])
    g.kernel("shared_gemm", places=[(45, "shared_experts"), *step], stream=1)
    g.wait(0, 1, [(47, "shared_experts"), *step])
    g.kernel("combine", places=[(52, "forward"), *step])
    g.end(params=False)
    r.write(place + "good/joined")


def side_stream_per_layer() -> None:
    place = "streams/side_stream_per_layer/"

    def layers(count, stream_of, compiled=False):
        r = Recording()
        g = r.graph()
        for layer in range(count):
            at = [(70, "forward"), (90, "capture")]
            g.kernel("rms_norm", places=[(20, "norm"), *at])
            side = stream_of(layer)
            g.wait(side, 0, [] if compiled else [(43, "shared_experts"), *at])
            g.kernel("routed_gemm", places=[(50, "routed_experts"), *at])
            # A compiled model launches from Inductor's output, which the model's line called.
            shared = [("/tmp/torchinductor_user/ab/cabcdef.py", 120 + layer, "call"), ("/venv/lib/python3.12/site-packages/torch/_inductor/utils.py", 2962, "run")]
            g.kernel("shared_gemm", places=[*(shared if compiled else [(45, "shared_experts")]), *at], stream=side)
            g.wait(0, side, [(55, "forward"), *at])
            g.kernel("combine", places=[(56, "forward"), *at])
        g.end(params=False)
        return r

    layers(12, lambda layer: 1 + layer).write(place + "bad/stream_per_layer")
    layers(61, lambda layer: 1 + layer % 32).write(place + "bad/pool_of_32_streams")
    layers(5, lambda layer: 1 + layer, compiled=True).write(place + "bad/compiled_model")
    layers(12, lambda layer: 1).write(place + "good/one_side_stream")
    layers(12, lambda layer: 1 + layer % 2).write(place + "good/two_streams_in_turn")
    # A stream for each role, kept over the layers.
    r = Recording()
    g = r.graph()
    for _ in range(6):
        for role, side in (("kv", 1), ("gate", 2), ("shared", 3)):
            g.kernel("before_" + role)
            g.wait(side, 0)
            g.kernel("main_" + role)
            g.kernel("side_" + role, stream=side)
            g.wait(0, side)
            g.kernel("after_" + role)
    g.end(params=False)
    r.write(place + "good/a_stream_for_each_role")


def recapture_churn() -> None:
    place = "capture/recapture_churn/"

    def step(r, x, weights, key="8", **info):
        g = r.graph("decode", facts=["capture_status", "graph_key", "instantiate_info"], capture_status="ok", instantiated=True, instantiate_ns=4_000_000,
                    **({"batch_size": int(key)} if key else {}), **info)
        g.sync("begin_capture", 0, places=[(88, "capture"), (12, "serve")])
        for layer in range(3):
            g.kernel("rms_norm", [(x, 0)], [(20, "norm"), (90, "capture")])
            g.kernel("gemm", [(weights, 4096 * layer), (x, 0)], [(24, "mlp"), (90, "capture")])
        return g

    def again(r, of, key):
        info = {"name": "again", "begin_sequence": r.tick(), "end_sequence": r.tick(), "instantiated": True, "instantiate_ns": 4_000_000, "capture_status": "ok"}
        if key:
            info["batch_size"] = int(key)
        line = {"type": "instance", "graph": r.numbers, "of": of, "process": 0, "info": info}
        r.numbers += 1
        return line

    for name, key in (("bad/equal_captures", "8"), ("bad/equal_captures_without_key", ""), ("good/captured_twice", "8")):
        r = Recording()
        x, weights = r.alloc(), r.alloc()
        g = step(r, x, weights, key)
        number = r.numbers
        r.numbers += 1
        lines = [again(r, number, key) for _ in range(1 if name.startswith("good") else 3)]
        r.numbers = number
        g.end(number_of_lines_after=lines)
        r.numbers = number + 1 + len(lines)
        r.write(place + name)

    # Each step's input lies elsewhere; the executable before is dropped.
    r = Recording()
    inputs, weights = [r.alloc() for _ in range(4)], r.alloc()
    for x in inputs:
        number = step(r, x, weights).end()
        r.body.append({"type": "exec", "graph": number, "last_launch_sequence": r.tick(), "destroyed_sequence": r.tick()})
    r.write(place + "bad/input_that_moves")

    r = Recording()
    x, weights = r.alloc(), r.alloc()
    number = step(r, x, weights).end()
    r.body.append({"type": "exec", "graph": number, "last_launch_sequence": r.tick(), "failed_updates": 5})
    r.write(place + "bad/refused_updates")

    # Refused once each, made anew each time.
    def lengths(count, kernels, launch, **fields):
        r = Recording("", "/home/user/decode.cu")
        x, weights = r.alloc(), r.alloc()
        numbers, late = [], []
        for number in range(count):
            g = r.graph("decode", facts=["capture_status", "instantiate_info"], capture_status="ok", instantiated=True, instantiate_ns=4_000_000)
            g.sync("begin_capture", 0, places=[(88, "capture"), (12, "serve")])
            for layer in range(kernels(number)):
                g.kernel("gemm", [(weights, 4096 * layer), (x, 0), 100 + number], [(24, "mlp"), (90, "capture")])
            numbers.append(g.end())
            if launch == "once":
                late.append({"type": "exec", "graph": numbers[-1], "last_launch_sequence": r.tick(), **fields})
        if launch == "later":
            late = [{"type": "exec", "graph": number, "last_launch_sequence": r.tick(), **fields} for number in numbers]
        r.body += late
        return r

    lengths(3, lambda number: 3 + number, "once", failed_updates=1).write(place + "bad/made_anew_after_each_refused_update")
    # A length passed by value, all executables kept: none is launched again; its twin has a graph for each length and uses them.
    lengths(7, lambda number: 3, "once").write(place + "bad/kept_and_never_launched_again")
    lengths(7, lambda number: 3, "later").write(place + "good/a_graph_for_each_length")
    lengths(5, lambda number: 3, "once").write(place + "good/a_few_lengths_tried_once")

    # Pieces of one model under one key: equal kernels, weights of their own, all alive.
    r = Recording()
    x, weights = r.alloc(), [r.alloc() for _ in range(6)]
    numbers = [step(r, x, w).end() for w in weights]
    r.body += [{"type": "exec", "graph": number, "last_launch_sequence": r.tick()} for number in numbers]
    r.write(place + "good/pieces_of_one_model")


def stale_address() -> None:
    place = "addresses/stale_address/"

    def decode(r, x, weights, out, **options):
        g = r.graph("decode", **options)
        for layer in range(4):
            at = [(70, "forward"), (90, "capture")]
            g.kernel("rms_norm", [x, (out, 0)], [(20, "norm"), *at])
            g.kernel("gemm", [(out, 0), (weights, 4096 * layer), (out, 4096)], [(24, "mlp"), *at])
        return g

    def used(r, number, launched=True, destroyed=False):
        r.body.append({"type": "exec", "graph": number, **({"last_launch_sequence": r.tick()} if launched else {}), **({"destroyed_sequence": r.tick()} if destroyed else {})})

    def start(framework=""):
        r = Recording(framework, MODEL if framework else "/home/user/decode.cu")
        return r, r.alloc(), r.alloc(), r.alloc()

    r, x, w, out = start()
    number = decode(r, (x, 0), w, out).end()
    r.free(x)
    used(r, number)
    r.write(place + "bad/launched_after_the_free")

    # The graph is never launched again, but it lives, as does most of its memory.
    r, x, w, out = start()
    number = decode(r, (x, 0), w, out).end()
    used(r, number)
    r.free(x)
    r.write(place + "bad/one_of_three_buffers")

    r, x, w, out = start()
    number = decode(r, (x, 0), w, out).end()
    used(r, number)
    r.free(x)
    again = r.alloc(at=r.base(x))
    other = r.graph("prefill")
    other.kernel("embed", [(again, 0)])
    used(r, other.end())
    lines = r.lines()  # the second owner of the range is known only after the first is gone
    first = next(line for line in lines if line["type"] == "allocations")
    first["allocations"] = [row for row in first["allocations"] if row["id"] != again]
    position = next(i for i, line in enumerate(lines) if line["type"] == "exec") + 1
    lines.insert(position, {"type": "allocations", "process": 0, "allocations": [r.allocations[x], r.allocations[again]]})
    lines[-1]["records"] += 1
    r.lines = lambda: lines
    r.write(place + "bad/handed_out_again")

    r, x, w, out = start()
    r.free(x)
    stale = r.base(x)
    g = decode(r, (w, 0), w, out)
    g.kernel("rms_norm", [stale + 256, (out, 0)], [(21, "norm"), (70, "forward")])
    g.end()
    lines = r.lines()
    lines[2]["allocations"][x]["free_sequence"] = r.allocations[x]["free_sequence"]
    r.lines = lambda: lines
    r.write(place + "bad/freed_before_instantiation")

    r, x, w, out = start()
    g = decode(r, (x, 0), w, out)
    g.kernel("gemm", [0x7E1000000000, (w, 0), (out, 4096)], [(25, "mlp"), (70, "forward")])
    g.end()
    r.write(place + "bad/unmapped")

    # Structs that are passed by value. A word that is an address in all other launches is a pointer; padding holds what the stack
    # held before: addresses of the host, of memory that was freed, of memory that lives.
    r, x, w, out = start()
    r.free(x)
    g = r.graph("decode")
    for layer in range(10):
        g.kernel("gemm", [[(w, 4096 * layer) if layer != 7 else r.base(x) + 256, (out, 0)]], [(24, "mlp"), (70, "forward")])
    g.end()
    lines = r.lines()
    lines[2]["allocations"][x]["free_sequence"] = r.allocations[x]["free_sequence"]
    r.lines = lambda: lines
    r.write(place + "bad/pointer_in_a_struct")

    r, x, w, out = start()
    r.free(x)
    g = r.graph("decode")
    for layer in range(12):
        padding = [(w, 4096 * layer), (out, 4096), r.base(x) + 256, 0x7FFD00001000 + 64 * layer][layer % 4] if layer % 2 == 0 or layer > 6 else (w, 0)
        g.kernel("gemm", [[(w, 4096 * layer), (out, 0), 4096, padding]], [(24, "mlp"), (70, "forward")])
    g.end()
    lines = r.lines()
    lines[2]["allocations"][x]["free_sequence"] = r.allocations[x]["free_sequence"]
    r.lines = lambda: lines
    r.write(place + "good/padding_of_a_struct")

    # Blocks of a caching allocator: the input was given back and nobody noticed.
    for name, state in (("bad/given_back_to_the_allocator", "free"), ("good/input_is_held", "active")):
        r = Recording("pytorch")
        segment = r.alloc(4 << 20)
        g = r.graph("decode", facts=["allocator_state"])
        for layer in range(4):
            g.kernel("rms_norm", [(segment, 0), (segment, 1 << 20)], [(20, "norm"), (70, "forward")])
        g.end()
        r.blocks([(segment, 0, 1 << 20, state, ""), (segment, 1 << 20, 1 << 20, "free", "(0, 1)"), (segment, 2 << 20, 2 << 20, "free", "")])
        r.write(place + name)

    r, x, w, out = start()
    number = decode(r, (x, 0), w, out).end()
    used(r, number, destroyed=True)
    r.free(x)
    other = r.graph("prefill")
    other.kernel("embed", [(w, 0)])
    used(r, other.end())
    r.write(place + "good/graph_destroyed_first")

    # In use at both looks, but by somebody else since; the twins are held all the time, outlived by the memory, or replaced.
    def between(since, **life):
        r = Recording("pytorch")
        x, w = r.alloc(4 << 20), r.alloc()
        number = decode(r, (x, 0), w, w, facts=["allocator_state"]).end()
        end = r.sequence
        r.blocks([(x, 0, 1 << 20, "active", "", 10)])
        r.sequence += 100
        r.body.append({"type": "exec", "graph": number, "last_launch_sequence": end + (5 if life else 25), **({"destroyed_sequence": life["destroyed"](end)} if life else {})})
        r.blocks([(x, 0, 1 << 20, "active", "", since(end))])
        if life.get("later"):
            r.blocks([(x, 0, 1 << 20, "active", "", since(end))])
        return r

    between(lambda end: end + 20).write(place + "bad/changed_hands_between_two_looks")
    between(lambda end: 15).write(place + "good/held_since_before_the_capture")
    between(lambda end: end + 20, destroyed=lambda end: end + 18).write(place + "good/changed_hands_after_the_graph")
    between(lambda end: end + 20, destroyed=lambda end: end + 125, later=True).write(place + "good/replaced_graph_outlives_its_input")

    # The end of a program: everything is freed, nothing follows.
    r, x, w, out = start()
    number = decode(r, (x, 0), w, out).end()
    used(r, number)
    for allocation in (out, x, w):
        r.free(allocation)
    r.write(place + "good/end_of_the_program")

    # Numbers as large as addresses.
    r, x, w, out = start()
    g = r.graph("decode")
    for layer in range(4):
        g.kernel("embed", [(x, 0), 0x0000040000000800 + layer, (out, 0)])
    number = g.end()
    used(r, number)
    r.write(place + "good/large_numbers")

    # A framework with a caching allocator whose state is unknown: what was freed is reported, the rest is not checked.
    r, x, w, out = start("pytorch")
    number = decode(r, (x, 0), w, out).end()
    r.free(x)
    used(r, number)
    r.write("stale_address_allocator_unknown/recording", "tests/golden/cli")


def escaped_work() -> None:
    place = "capture/escaped_work/"

    def step(g, skip=(), extra=(), caller=90, stream=0, tune=False):
        at = [(70, "forward"), (caller, "run")]
        for layer in range(3):
            for name, line in (("rms_norm", 20), ("qkv_gemm", 24), ("attention_decode", 28), ("out_gemm", 30)):
                if name not in skip:
                    g.kernel(name, places=[(line, "layer"), *at], thread=7, stream=stream)
                if tune and layer == 0 and name == "qkv_gemm":
                    g.kernel("gemm_candidate", places=[(line, "layer"), *at], thread=7, stream=stream)
        for name, line, function in extra:
            g.kernel(name, places=[(line, function), (caller, "run")], thread=7, stream=stream)

    def both(eager, captured, stacks=True):
        r = Recording()
        e = r.graph("launches outside capture", "eager", stacks=stacks)
        eager(e)
        e.end(params=False)
        e.recording.body[-1]["facts"].append("capture_streams")
        g = r.graph("decode", stacks=stacks, facts=["eager_launches"])
        captured(g)
        g.end(params=False)
        return r

    both(lambda e: [step(e, caller=80) for _ in range(2)], lambda g: step(g, skip=["attention_decode"])).write(place + "bad/attention_not_captured")
    both(lambda e: [step(e) for _ in range(2)], lambda g: step(g, skip=["attention_decode"]), stacks=False).write(place + "bad/without_stacks")

    # Launched while the graph is captured, on another stream.
    r = Recording()
    g = r.graph("decode", facts=["eager_launches"])
    g.sync("begin_capture", 0, thread=7)
    e = r.graph("launches outside capture", "eager")
    for layer in range(2):
        g.kernel("rms_norm", places=[(20, "layer"), (70, "forward")], thread=7)
        e.kernel("attention_decode", places=[(28, "layer"), (70, "forward")], stream=5, thread=7)
        e.kernel("tokenizer_kernel", places=[("/home/user/server.py", 5, "poll")], stream=6, thread=9)
        g.kernel("out_gemm", places=[(30, "layer"), (70, "forward")], thread=7)
        g.kernel("mlp_gemm", places=[(31, "layer"), (70, "forward")], thread=7)
    g.end(params=False)
    e.end(params=False)
    r.body[-1]["facts"].append("capture_streams")
    r.body.insert(0, r.body.pop())
    first = r.graph("warm-up", "eager")
    first.kernel("rms_norm", places=[(20, "layer"), (70, "forward")], thread=7)
    first.kernel("rms_norm", places=[(20, "layer"), (70, "forward")], thread=7)
    for name in ("out_gemm", "mlp_gemm"):
        first.kernel(name, places=[(30, "layer"), (70, "forward")], thread=7)
        first.kernel(name, places=[(30, "layer"), (70, "forward")], thread=7)
    for index, node in enumerate(first.nodes):
        node["sequence"] = index + 1
    first.end(params=False)
    r.body.insert(0, r.body.pop())
    r.write(place + "bad/launched_during_capture")

    # A fill on a stream that nobody forked; and one that a library makes for itself.
    def filled(places):
        r = Recording()
        warm = r.graph("warm-up", "eager")
        for _ in range(2):
            for name, line in (("rms_norm", 20), ("out_gemm", 30)):
                warm.kernel(name, places=[(line, "layer"), (70, "forward")], thread=7)
        warm.end(params=False)
        g = r.graph("decode", facts=["eager_launches"])
        g.sync("begin_capture", 0, thread=7)
        e = r.graph("launches outside capture", "eager")
        g.kernel("rms_norm", places=[(20, "layer"), (70, "forward")], thread=7)
        e.node("memset", places, stream=5, thread=7, launches=2)
        e.node("memcpy", [("/home/user/server.py", 5, "poll")], stream=6, thread=9)
        g.kernel("out_gemm", places=[(30, "layer"), (70, "forward")], thread=7)
        g.end(params=False)
        e.end(params=False)
        r.body[-1]["facts"].append("capture_streams")
        r.body.insert(1, r.body.pop())
        return r

    filled([(26, "clear"), (70, "forward")]).write(place + "bad/filled_on_another_stream")
    filled([("/usr/lib/libcublas.so.13", 0, "cublasCreate_v2"), ("/home/user/step.cu", 31, "step")]).write(place + "good/filled_by_a_library")

    # Two kernels only: the steps and the lines must be known.
    def short(e, skip=False):
        for name, line in (("embed", 20), ("append_kv", 24), ("attention", 28)):
            if not skip or name != "append_kv":
                e.kernel(name, places=[(line, "layer"), (70, "forward")], thread=7)

    both(lambda e: [short(e) for _ in range(3)], lambda g: short(g, True)).write(place + "bad/two_kernels_and_one_missing")

    both(lambda e: [step(e, caller=80) for _ in range(3)], step).write(place + "good/same_work")
    both(lambda e: [step(e, caller=80, tune=True), step(e, caller=80)], step).write(place + "good/tuned_once")
    # Set-up in the function that captures, and one warm-up step.
    both(lambda e: [step(e, skip=["rms_norm", "qkv_gemm", "attention_decode", "out_gemm"], extra=[("init_weights", 10, "layer")]), step(e, caller=80)], step).write(place + "good/set_up_and_one_step")
    both(lambda e: [step(e, caller=80)], lambda g: step(g, skip=["attention_decode"])).write(place + "bad/one_step_before_the_capture")
    # The last kernel of the only step; in a function that captures as well it may be a check.
    def sampled(begun_in):
        def captured(g):
            g.sync("begin_capture", 0, places=[(88, begun_in), (12, "main")], thread=7)
            step(g)
        return both(lambda e: step(e, caller=80, extra=[("argmax_sample", 33, "layer")]), captured)

    sampled("capture").write(place + "bad/last_kernel_of_one_step")
    sampled("layer").write(place + "good/checked_by_who_captures")
    both(lambda e: [step(e, caller=80, extra=[("fill_lengths", 12, "prepare")]) for _ in range(2)], step).write(place + "good/prepared_elsewhere")


def workspace_alias() -> None:
    place = "addresses/workspace_alias/"
    pool1, pool2 = "(0, 1)", "(0, 2)"

    def gemms(g, workspace, own, weights):
        for layer in range(3):
            g.kernel("split_k_gemm", [(weights, 4096 * layer, "const_pointer"), (workspace, 0), (own, 4096)], [(24, "mlp"), (90, "capture")])
            g.kernel("reduce", [(own, 4096), (own, 8192)], [(25, "mlp"), (90, "capture")])

    def pools(workspace_pool, second_pool, destroyed=False):
        r = Recording("pytorch")
        weights, workspace, one, two = (r.alloc(2 << 20) for _ in range(4))
        for name, own in (("decode_8", one), ("decode_16", two)):
            g = r.graph(name, facts=["allocator_state"])
            gemms(g, workspace, own, weights)
            number = g.end()
            if destroyed and own == one:
                r.body.append({"type": "exec", "graph": number, "last_launch_sequence": r.tick(), "destroyed_sequence": r.tick()})
        r.blocks([(weights, 0, 2 << 20, "active", ""), (workspace, 0, 2 << 20, "active", workspace_pool), (one, 0, 2 << 20, "active", pool1), (two, 0, 2 << 20, "active", second_pool)])
        return r

    pools(pool1, pool2).write(place + "bad/workspace_of_another_pool")
    pools(pool1, pool1).write(place + "good/shared_pool")
    pools("", pool2).write(place + "good/workspace_outside_the_pools")
    pools(pool1, pool2, destroyed=True).write(place + "good/owner_destroyed_before")

    def concurrent(shared, streams, starts):
        r = Recording()
        weights, scratch, other = (r.alloc() for _ in range(3))
        for name, buffer, stream, start in (("draft", scratch, streams[0], starts[0]), ("verify", scratch if shared else other, streams[1], starts[1])):
            g = r.graph(name, facts=["allocator_state"])
            g.fill(buffer, 0, 4096)
            g.kernel("gemm", [(weights, 0, "const_pointer"), (buffer, 0)], [(24, "mlp"), (90, name)])
            g.kernel("reduce", [(buffer, 0)], [(25, "mlp"), (90, name)])
            g.replayed([(start, stream), (start + 100, stream)])
            g.end()
        r.blocks([(allocation, 0, 1 << 16, "active", "") for allocation in (weights, scratch, other)])
        return r

    concurrent(True, (7, 9), (10, 12)).write(place + "bad/replays_overlap")
    concurrent(True, (7, 7), (10, 16)).write(place + "good/one_after_the_other")
    concurrent(False, (7, 9), (10, 12)).write(place + "good/a_buffer_for_each")

    # Directions by type: inputs are const, so the others are written.
    def typed(second):
        r = Recording("", "/home/user/serve.cu")
        x, scratch, out = r.alloc(), r.alloc(), r.alloc()
        for name, offset, stream, start in (("draft", 0, 7, 10), ("verify", second, 9, 12)):
            g = r.graph(name, facts=["allocator_state"])
            g.kernel("_Z5blendPKfPfi", [(x, 0), (scratch, offset), 4096], [(24, "blend"), (90, name)])
            g.kernel("_Z6reducePKfPfi", [(scratch, offset), (out, 0x4000 * (stream == 9)), 4096], [(25, "reduce"), (90, name)])
            g.replayed([(start, stream), (start + 100, stream)])
            g.end()
        r.blocks([(allocation, 0, 1 << 16, "active", "") for allocation in (x, scratch, out)])
        return r

    typed(0).write(place + "bad/scratch_written_by_both")
    typed(0x8000).write(place + "good/two_parts_of_one_scratch")

    def handed(state):
        r = Recording("pytorch")
        pool = r.alloc(2 << 20)
        for name, source, target in (("piece_0", 8192, 0), ("piece_1", 0, 4096), ("piece_2", 4096, 0)):
            g = r.graph(name, facts=["allocator_state"])
            g.kernel("_Z5layerPKfPf", [(pool, source, "const_pointer"), (pool, 16384)], [(24, "piece"), (90, name)])
            g.fill(pool, target, 4096)
            g.end()
        r.blocks([(pool, 0, 4096, state, pool1), (pool, 4096, 4096, "active", pool1), (pool, 8192, 4096, "active", pool1), (pool, 12288, (2 << 20) - 12288, "free", pool1)])
        return r

    # The first graph's output, handed out again to the third; the third is launched in between, or after both.
    def reused(order):
        r = Recording("pytorch")
        pool = r.alloc(2 << 20)
        numbers = {}
        for name, source, target in (("piece_0", 8192, 0), ("piece_1", 0, 4096), ("piece_2", 8192, 0)):
            g = r.graph(name, facts=["allocator_state"])
            g.kernel("_Z5layerPKfPf", [(pool, source, "const_pointer"), (pool, 16384)], [(24, "piece"), (90, name)])
            g.fill(pool, target, 4096)
            g.replayed([(10 + 20 * order.index(name), 7)])
            numbers[name] = g.end()
        r.blocks([(pool, 0, 4096, "active", pool1, r.sequence - 25), (pool, 4096, 4096, "active", pool1), (pool, 8192, 4096, "active", pool1), (pool, 12288, (2 << 20) - 12288, "free", pool1)])
        return r

    reused(["piece_0", "piece_2", "piece_1"]).write(place + "bad/hand_over_that_others_were_given")
    reused(["piece_0", "piece_1", "piece_2"]).write(place + "good/hand_over_read_in_time")

    handed("free").write(place + "bad/hand_over_that_nobody_holds")
    handed("active").write(place + "good/hand_over_that_is_held")


def main() -> None:
    null_address()
    stale_address()
    workspace_alias()
    capture_failed()
    escaped_work()
    side_stream_per_layer()
    recapture_churn()
