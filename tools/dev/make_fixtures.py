#!/usr/bin/env python3
"""Writes the rule fixtures that are made, not recorded: small capture files under rules/<family>/<slug>/{good,bad}/.

Deterministic; run it again after a change and review the diff. Fixtures recorded on a GPU are not touched: their names start
with "recorded_".
"""
import json
import pathlib

import fixtures_access
import fixtures_memory

ROOT = pathlib.Path(__file__).resolve().parents[2]
US = 1000  # ns


class Graph:
    """Nodes with their capture stream; edges follow from streams and waits, as in stream capture."""

    def __init__(self, streams: bool = False):
        self.functions, self.nodes, self.edges, self.streams = [], [], [], streams
        self.tail = {}  # stream -> nodes that its next node depends on

    def node(self, name: str, stream: int = 0, grid: int = 8, kind: str = "kernel") -> int:
        if kind == "kernel":
            if name not in self.functions:
                self.functions.append(name)
            record = {"kind": "kernel", "function": self.functions.index(name), "grid": [grid, 1, 1], "block": [128, 1, 1]}
        else:
            record = {"kind": kind, "name": name}
        if self.streams:
            record["stream"] = stream
        index = len(self.nodes)
        self.nodes.append(record)
        for parent in sorted(self.tail.get(stream, set())):
            self.edges.append([parent, index])
        self.tail[stream] = {index}
        return index

    def wait(self, stream: int, other: int) -> None:
        """stream.wait_stream(other)"""
        self.wait_event(stream, self.record(other))

    def record(self, stream: int) -> frozenset:
        return frozenset(self.tail.get(stream, set()))

    def wait_event(self, stream: int, event: frozenset) -> None:
        self.tail[stream] = self.tail.get(stream, set()) | event

    def lines(self, replays=None, edges: bool = True, facts_extra=(), gpu: bool = True) -> list:
        facts = ["nodes", "kernel_names", "launch_config"]
        if edges:
            facts += ["creation_order", "edges", "edge_data"]
        if self.streams:
            facts.append("capture_streams")
        if replays:
            facts += ["replay_streams", "replay_times", "node_identity"]
        graph = {"type": "graph", "graph": 0, "process": 0, "info": {"name": "decode"}, "facts": facts + list(facts_extra), "functions": [{"name": f} for f in self.functions], "nodes": self.nodes}
        if self.streams:
            graph["streams"] = [{"handle": hex(s + 16)} for s in range(1 + max(n["stream"] for n in self.nodes))]
            graph["info"]["origin_stream"] = 0
        if edges:
            graph["edges"] = self.edges
        process = {"type": "process", "process": 0, "pid": 1}
        if gpu:
            process["gpus"] = [{"device": 0, "name": "NVIDIA H200", "compute_capability": [9, 0], "sm_count": 132}]
        lines = [{"type": "header", "format": "cglint-capture", "version": "1.0", "producer": "make_fixtures.py"}, process, graph]
        if replays:
            lines.append({"type": "replays", "graph": 0, "base_ns": "1000000", "replays": replays})
        lines.append({"type": "graph_end", "graph": 0})
        lines.append({"type": "end", "records": len(lines)})
        return lines


def replay(ops, correlation):
    """ops: (node, stream, start_us, dur_us)."""
    rows = sorted(([node, 0, stream, int(start * US), int((start + dur) * US)] for node, stream, start, dur in ops), key=lambda r: (r[3], r[0]))
    return {"correlation": correlation, "ops": rows}


def shifted(ops, by):
    return [(node, stream, start + by, dur) for node, stream, start, dur in ops]


def write(place: str, lines: list, args: str = "") -> None:
    path = ROOT / "rules" / (place + ".cgl.jsonl")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))
    if args:
        path.with_name(path.name.replace(".cgl.jsonl", ".args")).write_text(args + "\n")


def moe_layers(layers: int, side_first: bool, streams: bool = False, late_wait: bool = False, first_dense: int = 0):
    """Dual-stream MoE layers as an engine records them. Returns the graph and, per layer, (pre, routed, shared) node lists."""
    g, parts = Graph(streams), []
    for layer in range(layers):
        pre = [g.node("rms_norm"), g.node("attn_decode")]
        if layer < first_dense:
            parts.append((pre + [g.node("dense_mlp")], [], []))
            continue

        def side():
            return [g.node("shared_gemm", 1), g.node("shared_silu", 1), g.node("shared_down", 1)]

        def main():
            return [g.node("topk"), g.node("moe_gemm1"), g.node("moe_silu"), g.node("moe_gemm2")]

        if late_wait:
            routed = main()
            g.wait(1, 0)
            shared = side()
        elif side_first:
            g.wait(1, 0)
            shared = side()
            routed = main()
        else:
            g.wait(1, 0)
            routed = main()
            shared = side()
        g.wait(0, 1)
        parts.append((pre, routed, shared))
    g.node("final_norm")
    return g, parts


def moe_replay(parts, last, side_stream_of, main_stream_of, gap=0.5, overlap=True):
    """One replay; times in us from 0."""
    ops, t = [], 0.0
    for layer, (pre, routed, shared) in enumerate(parts):
        stream = main_stream_of(layer)
        for node in pre:
            ops.append((node, stream, t, 4))
            t += 4 + gap
        start = t
        for node in routed:
            ops.append((node, stream, t, 6))
            t += 6 + gap
        end, t = t, start if overlap else t
        for node in shared:
            ops.append((node, side_stream_of(layer), t, 5))
            t += 5 + gap
        t = max(end, t)
    ops.append((last, main_stream_of(len(parts)), t, 3))
    return ops


def stream_explosion() -> None:
    place = "streams/stream_explosion/"
    # Side first: the join continues on the side stream, the main stream of the layer dies, one new stream per layer.
    g, parts = moe_layers(10, side_first=True)
    ops = moe_replay(parts, len(g.nodes) - 1, lambda l: 7 if l == 0 else 20 + l, lambda l: 20 + l if l > 0 else 7)
    for layer in range(10):  # the main branch forks to a stream of its own
        for node in parts[layer][1]:
            index = next(i for i, op in enumerate(ops) if op[0] == node)
            ops[index] = (node, 40 + layer, ops[index][2], ops[index][3])
    replays = [replay(shifted(ops, 1000 * i), 100 + i) for i in range(3)]
    write(place + "bad/dag_and_replay", g.lines(replays))
    write(place + "bad/trace_only", g.lines(replays, edges=False))

    g, parts = moe_layers(10, side_first=False)
    ops = moe_replay(parts, len(g.nodes) - 1, lambda l: 20, lambda l: 7)
    write(place + "good/main_first", g.lines([replay(shifted(ops, 1000 * i), 100 + i) for i in range(3)]))

    # Eight branches that are really there, once per step; short kernels, so that they hardly overlap in time.
    g = Graph()
    root = g.node("split")
    branches = []
    for b in range(8):
        g.wait_event(b + 1, frozenset({root})) if b else None
        branches.append([g.node(f"expert_{i}", b) for i in range(3)])
    for b in range(1, 8):
        g.wait(0, b)
    last = g.node("combine")
    ops = [(root, 7, 0, 3)] + [(node, 7 + b, 5 + 2 * b + 1.2 * i, 1) for b, nodes in enumerate(branches) for i, node in enumerate(nodes)] + [(last, 7, 40, 3)]
    replays = [replay(shifted(ops, 1000 * i), 100 + i) for i in range(3)]
    write(place + "good/eight_wide", g.lines(replays))
    write(place + "good/eight_wide_trace_only", g.lines(replays, edges=False))

    # Two microbatches, a stream pair each, over 12 layers.
    g = Graph()
    ops, t = [], 0.0
    fork = g.node("embed")
    ops.append((fork, 7, t, 3))
    g.wait_event(2, frozenset({fork}))
    t = 5.0
    for _ in range(12):
        for micro, (main, side) in enumerate(((0, 1), (2, 3))):
            start = t + micro * 2
            ops.append((g.node("attn_decode", main), 7 + main, start, 6))
            g.wait(side, main)
            ops.append((g.node("moe_gemm", main), 7 + main, start + 7, 8))
            ops.append((g.node("shared_gemm", side), 7 + side, start + 7, 7))
            g.wait(main, side)
            ops.append((g.node("combine", main), 7 + main, start + 16, 2))
        t += 20
    g.wait(0, 2)
    ops.append((g.node("head"), 7, t + 5, 4))
    replays = [replay(shifted(ops, 2000 * i), 100 + i) for i in range(3)]
    write(place + "good/two_microbatches", g.lines(replays))
    write(place + "good/two_microbatches_trace_only", g.lines(replays, edges=False))


def two_stream_layers(layers: int, side: int = 2, main: int = 3, side_first=lambda layer: True, persistent: bool = True, streams: bool = True):
    """Fork, side chain, main chain, join per layer. `side_first(layer)`: the side chain is recorded first."""
    g = Graph(streams)
    for layer in range(layers):
        g.node("rms_norm")
        stream = 1 if persistent else 1 + layer
        g.wait(stream, 0)
        order = [lambda: [g.node(f"shared_{i}", stream) for i in range(side)], lambda: [g.node(f"routed_{i}") for i in range(main)]]
        for part in order if side_first(layer) else order[::-1]:
            part()
        g.wait(0, stream)
        g.node("combine")
    g.node("head")
    return g


def join_follows_side_branch() -> None:
    place = "streams/join_follows_side_branch/"
    write(place + "bad/side_first", two_stream_layers(12).lines())
    write(place + "bad/side_first_bare_dag", two_stream_layers(12, streams=False).lines())
    write(place + "bad/side_longer_than_main", two_stream_layers(12, side=6, main=2).lines())
    write(place + "bad/only_in_some_layers", two_stream_layers(12, side_first=lambda layer: layer % 3 == 0).lines())
    write(place + "bad/fresh_side_stream_per_layer", two_stream_layers(12, persistent=False, side_first=lambda layer: False).lines())
    write(place + "bad/fresh_side_stream_recorded_first", two_stream_layers(12, persistent=False).lines())
    # The side branch reads a tensor that the main branch gives back: recorded later, it would read recycled memory.
    # What the new place is depends on where the block lands before the wait: a release just before it counts, too.
    for name, freed_after in (("input_released_by_main_branch", "routed_1"), ("input_released_before_wait", "routed_2"),
                              ("input_released_after_join", "combine")):
        g = two_stream_layers(6)
        names = [g.functions[node["function"]] for node in g.nodes]
        allocations = []
        for index, node in enumerate(g.nodes):
            node["sequence"] = 10 + 10 * index
            if names[index] != "shared_0":
                continue
            base = 0x7F0000000000 + 0x10000 * len(allocations)
            freed = next(i for i in range(index, len(names)) if names[i] == freed_after)
            node["params"] = [[0, 0, 8, hex(base), "pointer", len(allocations)]]
            allocations.append({"id": len(allocations), "base": hex(base), "size_bytes": 4096, "kind": "device", "device": 0, "alloc_sequence": 1 + 10 * index, "free_sequence": 15 + 10 * freed})
        lines = g.lines(facts_extra=("kernel_params", "allocations"))
        lines.insert(2, {"type": "allocations", "process": 0, "allocations": allocations})
        lines[-1]["records"] += 1
        write(place + "bad/" + name, lines)
    # The same, seen in the state of the caching allocator: the tensor of layer 0 is about to be given out again when the
    # block would read it.
    g = two_stream_layers(6)
    for index, node in enumerate(g.nodes):
        node["sequence"] = 10 + 10 * index
    g.nodes[1]["params"] = [[0, 0, 8, "0x7f0000000400", "pointer"]]
    lines = g.lines(facts_extra=("kernel_params", "allocations", "allocator_state"))
    for sequence, state in ((5, "active"), (35, "pending_free")):
        lines.insert(2, {"type": "allocator_blocks", "process": 0, "sequence": sequence, "blocks": [{"base": "0x7f0000000000", "size_bytes": 4096, "state": state}]})
        lines[-1]["records"] += 1
    write(place + "bad/input_pending_free", lines)
    # Both branches are child graphs: their bodies take the place of their nodes.
    def boxes(side_first):
        def graph(number, part, name, **info):
            lines = part.lines()
            lines[2]["graph"], lines[2]["info"] = number, {"name": name, **info}
            for record in lines[2]["nodes"]:
                if record["kind"] == "child_graph":
                    record["body"] = 1 if record["name"] == "routed" else 0
            return [lines[2], {"type": "graph_end", "graph": number}]

        side, main, outer = Graph(), Graph(), Graph()
        for i in range(2):
            side.node(f"shared_{i}")
        for i in range(3):
            main.node(f"routed_{i}")
        for _ in range(6):
            outer.node("rms_norm")
            outer.wait(1, 0)
            for name, stream in (("shared", 1), ("routed", 0)) if side_first else (("routed", 0), ("shared", 1)):
                outer.node(name, stream, kind="child_graph")
            outer.wait(0, 1)
            outer.node("combine")
        outer.node("head")
        lines = Graph().lines()[:2]
        for number, part, name, role in ((0, side, "shared", "body"), (1, main, "routed", "body"), (2, outer, "decode", "captured")):
            lines += graph(number, part, name, role=role)
        return lines + [{"type": "end", "records": len(lines)}]

    write(place + "bad/child_graphs", boxes(True))
    write(place + "good/child_graphs_main_first", boxes(False))
    # Joins that are launched programmatically behind either tail: the edge from the tail that takes the join is the one
    # that works.
    g = two_stream_layers(6)
    names = [g.functions[node["function"]] for node in g.nodes]
    g.edges = [edge + [1, 0, 1] if names[edge[1]] == "combine" else edge for edge in g.edges]
    write(place + "bad/programmatic_joins", g.lines())
    write(place + "good/main_first", two_stream_layers(12, side_first=lambda layer: False).lines())
    write(place + "good/main_first_bare_dag", two_stream_layers(12, side_first=lambda layer: False, streams=False).lines())

    # Two side streams, one of which is a new one in each layer: another order mends half of it.
    g = Graph(True)
    for layer in range(10):
        fresh = 2 + layer
        g.node("rms_norm")
        g.wait(1, 0)
        g.wait(fresh, 0)
        g.node("shared_0", 1), g.node("shared_1", 1), g.node("gate", fresh), g.node("routed_0"), g.node("routed_1")
        g.wait(0, 1)
        g.wait(0, fresh)
        g.node("combine")
    g.node("head")
    write(place + "bad/order_and_fresh_streams", g.lines())
    # Three streams recorded in turns: a kernel that another one waits for before the join cannot move right to the join.
    g = Graph(True)
    for _ in range(10):
        g.node("rms_norm")
        g.wait(1, 0)
        g.wait(2, 0)
        for stream, name in ((1, "shared_0"), (0, "routed_0"), (0, "routed_1"), (2, "gate_0"), (0, "routed_2"), (0, "routed_3"),
                             (2, "gate_1")):
            g.node(name, stream)
        g.wait(0, 1)
        g.wait(0, 2)
        g.node("combine")
    g.node("head")
    write(place + "bad/streams_in_turns", g.lines())
    # Two side streams; the main branch last, or first.
    for name, main_first in (("bad/two_side_streams", False), ("good/two_side_streams_main_first", True)):
        g = Graph(True)
        for _ in range(10):
            g.node("rms_norm")
            g.wait(1, 0)
            g.wait(2, 0)
            order = ["sides", "main"]
            for part in order[::-1] if main_first else order:
                if part == "main":
                    g.node("routed_0"), g.node("routed_1")
                else:
                    g.node("shared_0", 1), g.node("shared_1", 1), g.node("gate", 2)
            g.wait(0, 1)
            g.wait(0, 2)
            g.node("combine")
        write(place + name, g.lines())

    # Two fork/join regions per layer: attention on two streams, then routed beside shared experts, each side first or main first.
    for name, attention_side_first, experts_side_first in (("bad/two_regions", True, True), ("bad/two_regions_one_wrong", False, True),
                                                          ("good/two_regions_main_first", False, False)):
        g = Graph(True)
        for _ in range(9):
            for fork, side, main, side_first in (("rms_norm", ["kv_norm", "rope_k"], ["q_norm", "q_up", "rope_q"], attention_side_first),
                                                 ("gate", ["shared_up", "shared_down"], ["topk", "moe_up", "moe_down"], experts_side_first)):
                g.node(fork)
                g.wait(1, 0)
                parts = [(side, 1), (main, 0)]
                for names, stream in parts if side_first else parts[::-1]:
                    for kernel in names:
                        g.node(kernel, stream)
                g.wait(0, 1)
                g.node("mla_decode" if fork == "rms_norm" else "combine")
        write(place + name, g.lines())

    # Eight branches that are really there.
    g = Graph(True)
    root = g.node("split")
    for b in range(8):
        g.wait_event(b, frozenset({root}))
        for i in range(3):
            g.node(f"expert_{i}", b)
    for b in range(1, 8):
        g.wait(0, b)
    g.node("combine")
    write(place + "good/eight_wide", g.lines())


def stream_budget() -> None:
    place = "streams/stream_budget/"
    g, parts = moe_layers(4, side_first=False)
    ops = moe_replay(parts, len(g.nodes) - 1, lambda l: 20, lambda l: 7)
    lines = g.lines([replay(shifted(ops, 1000 * i), 100 + i) for i in range(3)])
    write(place + "bad/over_budget", lines, "--max-streams 1")
    write(place + "good/within_budget", lines, "--max-streams 2")


def serialized_fork() -> None:
    place = "overlap/serialized_fork/"
    g, parts = moe_layers(6, side_first=False, late_wait=True)
    write(place + "bad/late_wait_bare_dag", g.lines())
    ops = moe_replay(parts, len(g.nodes) - 1, lambda l: 20, lambda l: 7, overlap=False)
    write(place + "bad/late_wait_with_replay", g.lines([replay(shifted(ops, 1000 * i), 100 + i) for i in range(3)]))
    g, _ = moe_layers(6, side_first=False, late_wait=True, streams=True)
    write(place + "bad/late_wait_capture_streams", g.lines())
    for name, side_first in (("main_first", False), ("side_first", True)):
        g, _ = moe_layers(6, side_first=side_first, streams=True)
        write(place + f"good/{name}_capture_streams", g.lines())
    g, _ = moe_layers(6, side_first=False)
    write(place + "good/main_first_bare_dag", g.lines())
    # One stream waits on an event that its own past already implies: no side work at all.
    g = Graph()
    early = g.node("rms_norm")
    for _ in range(4):
        g.node("gemm")
    g.wait_event(0, frozenset({early}))
    g.node("add")
    g.node("head")
    write(place + "good/wait_already_implied", g.lines())
    g = Graph()
    for i in range(30):
        g.node(("rms_norm", "gemm", "silu")[i % 3])
    write(place + "good/one_chain", g.lines())


def overlap_lost_at_replay() -> None:
    place = "overlap/overlap_lost_at_replay/"
    g, parts = moe_layers(6, side_first=False)
    last = len(g.nodes) - 1

    def many(side, overlap):
        ops = moe_replay(parts, last, lambda l: side, lambda l: 7, overlap=overlap)
        return [replay(shifted(ops, 1000 * i), 100 + i) for i in range(20)]

    write(place + "bad/one_stream", g.lines(many(7, False)))
    write(place + "bad/two_streams", g.lines(many(20, False)))
    write(place + "good/overlapping", g.lines(many(20, True)))
    # Branches of 3 us in all: launch gaps hide any overlap.
    g = Graph()
    ops, t = [], 0.0
    for _ in range(6):
        ops.append((g.node("rms_norm"), 7, t, 4))
        g.wait(1, 0)
        ops.append((g.node("q_norm"), 7, t + 5, 1.5))
        ops.append((g.node("k_norm", 1), 20, t + 8, 1.5))
        g.wait(0, 1)
        t += 12
    ops.append((g.node("head"), 7, t, 4))
    write(place + "good/short_branches", g.lines([replay(shifted(ops, 1000 * i), 100 + i) for i in range(20)]))


def main() -> None:
    stream_explosion()
    join_follows_side_branch()
    stream_budget()
    serialized_fork()
    overlap_lost_at_replay()
    fixtures_memory.main()
    fixtures_access.main()


if __name__ == "__main__":
    main()
