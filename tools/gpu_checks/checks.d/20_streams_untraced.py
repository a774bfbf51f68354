# seconds: 90
"""Do the streams that a trace shows also hold without a tracer? Indirect: there are no stream ids then.

The same graphs are replayed twice: by one process under CUPTI (streams), by another without (each kernel spins and stamps
its start and end with %globaltimer). Over the pairs of kernels that no dependency orders:
* on one traced stream: they may never overlap (so far no graph was found that has such a pair: a stream is a chain);
* on two traced streams and ready at the same time: they must overlap, in 999 of 1,000 pairs or more (a launch may be late once).
And at a fork, the child with no other parent that is on the fork's own stream starts before its siblings in 99 of 100 replays or more: it
waits for no other stream. (Chance alone would give a third.)
"""
import os

import graph_lines as g

READY_NS = 10000  # ready within this of each other, a third of the spin
SPIN_US = 30
REPLAYS = 3
# Host nodes run for an unknown time and carry no stamp; they are left out.
KINDS = [("kernel", 700), ("memcpy-dtod", 150), ("memset", 150), ("empty", 150), ("event+empty", 150)]


def ancestors(graph):
    n = graph["n"]
    children, waiting = [[] for _ in range(n)], [0] * n
    for a, b in graph["edges"]:
        children[a].append(b)
        waiting[b] += 1
    order, before = [v for v in range(n) if waiting[v] == 0], [set() for _ in range(n)]
    for v in order:
        for c in children[v]:
            before[c] |= before[v] | {v}
            waiting[c] -= 1
            if waiting[c] == 0:
                order.append(c)
    return before


def count_pairs(traced, stamped, numbers):
    n, streams = traced["n"], traced["streams"]
    before = ancestors(traced)
    kernels = [v for v in range(n) if traced.get("kinds", ["kernel"] * n)[v] == "kernel"]
    parents = [[] for _ in range(n)]
    for a, b in traced["edges"]:
        parents[b].append(a)
    for stamps in stamped["stamps"]:
        may_start = {}
        for v in kernels:
            ends = [stamps[w][1] for w in before[v] if stamps[w][0] >= 0]
            ends += [stamps[w][1] for w in kernels if streams[w] == streams[v] and stamps[w][0] < stamps[v][0]]
            may_start[v] = max(ends, default=0)
        for i, u in enumerate(kernels):
            for v in kernels[i + 1:]:
                if u in before[v] or v in before[u]:
                    continue
                overlap = min(stamps[u][1], stamps[v][1]) > max(stamps[u][0], stamps[v][0])
                if streams[u] == streams[v]:
                    numbers["one_stream_unordered_pairs"] += 1
                    numbers["one_stream_overlaps"] += overlap
                elif abs(may_start[u] - may_start[v]) < READY_NS:
                    numbers["two_streams_ready_pairs"] += 1
                    numbers["two_streams_overlaps"] += overlap
        if "kinds" in traced:
            continue
        for u in range(n):
            only = [v for v in range(n) if parents[v] == [u]]
            own = [v for v in only if streams[v] == streams[u]]
            if len(own) != 1 or len(only) < 2:
                continue
            numbers["forks"] += 1
            numbers["own_stream_child_first"] += stamps[own[0]][0] < min(stamps[v][0] for v in only if v != own[0])


source, traced_path, stamped_path = (os.path.join(os.environ["CGLINT_OUT"], name) for name in ("in.txt", "traced.jsonl", "stamped.jsonl"))
with open(source, "w", encoding="utf-8") as file:
    for kind, count in KINDS:
        file.write(g.probe("generate", kind, "71", str(count), "24")[2])
code, message, _ = g.probe("measure", source, traced_path)
if code == 0:
    # More hardware queues than streams, so that two streams never share one.
    code, message, _ = g.probe("overlap", source, stamped_path, "--spin-us", str(SPIN_US), "--replays", str(REPLAYS), env={"CUDA_DEVICE_MAX_CONNECTIONS": "32"})
if code != 0:
    g.result("skipped" if code == 2 else "fail", message)
    raise SystemExit
numbers = dict.fromkeys(["one_stream_unordered_pairs", "one_stream_overlaps", "two_streams_ready_pairs", "two_streams_overlaps", "forks",
                         "own_stream_child_first"], 0)
traced, stamped = g.read_lines(traced_path), g.read_lines(stamped_path)
for one, other in zip(traced, stamped):
    assert one["edges"] == other["edges"]
    count_pairs(one, other, numbers)
tracer = any(row["tracer"] for row in stamped)
good = (not tracer and len(traced) == len(stamped) and numbers["one_stream_overlaps"] == 0
        and numbers["two_streams_overlaps"] >= 0.999 * numbers["two_streams_ready_pairs"] > 0
        and numbers["own_stream_child_first"] >= 0.99 * numbers["forks"] > 0)
g.result("pass" if good else "fail", "a tracer was loaded" if tracer else "", graphs=len(stamped), replays=REPLAYS, spin_us=SPIN_US, **numbers)
