#!/usr/bin/env python3
"""What inspect shows of large inputs, and what that takes: inspect_large.py CGLINT"""
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

CGLINT = os.path.abspath(sys.argv[1])
HEADER = '{"type":"header","format":"cglint-capture","version":"1.0"}'
failures = []


def check(good, text):
    if not good:
        failures.append(text)


def run(*words):
    """Output and peak memory in MiB."""
    process = subprocess.Popen([CGLINT, *map(str, words)], stdout=subprocess.PIPE, text=True)
    out = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    check(process.returncode in (0, 1, 4), f"{words}: exit code {process.returncode}")
    return out, usage.ru_maxrss / 1024


def capture(path, graphs, replays, loose=()):
    """graphs: numbers of kernels; replays: (graph, [(node, device, stream, start, end)])"""
    lines = [HEADER]
    for number, kernels in enumerate(graphs):
        lines.append(json.dumps({"type": "graph", "graph": number, "facts": ["nodes", "kernel_names", "replay_streams", "replay_times"], "functions": [{"name": "k"}],
                                 "launches": [{"function": 0}], "nodes": [{"kind": "kernel", "launch": 0}] * kernels}))
    for number, ops in replays:
        lines.append(json.dumps({"type": "replays", "graph": number, "replays": [{"ops": ops}]}))
    if loose:
        lines.append(json.dumps({"type": "loose_ops", "names": ["outside"], "ops": [[0, "kernel", *op] for op in loose]}))
    lines.append(json.dumps({"type": "end", "records": len(lines)}))
    path.write_text("\n".join(lines) + "\n")


def timeline(operations):
    """Span, busy and idle time and the largest gaps, instant by instant."""
    first, last = min(op[0] for op in operations), max(op[1] for op in operations)
    busy = [False] * (last - first)
    for start, end in operations:
        busy[start - first:end - first] = [True] * (end - start)
    gaps, length = [], 0
    for is_busy in busy:
        if is_busy and length:
            gaps.append(length)
        length = 0 if is_busy else length + 1
    return {"span_us": (last - first) / 1000, "busy_us": sum(busy) / 1000, "idle_us": (len(busy) - sum(busy)) / 1000,
            "overlap_us": (sum(end - start for start, end in operations) - sum(busy)) / 1000, "gaps": sorted((gap / 1000 for gap in gaps), reverse=True)[:5]}


def timelines(folder):
    """Launches of several graphs that overlap each other, and operations outside of graphs."""
    random.seed(3)
    for round_number in range(30):
        replays, loose, devices = [], [], {}
        for graph in (0, 1):
            for _ in range(random.randrange(1, 6)):
                start, ops = random.randrange(300), []
                for node in range(3):
                    start += random.randrange(12)
                    ops.append((node, random.randrange(2), 7 + node, start, start + random.randrange(1, 20)))
                replays.append((graph, ops))
        for _ in range(random.randrange(5)):
            start = random.randrange(300)
            loose.append((random.randrange(2), 3, start, start + random.randrange(1, 9)))
        for _, ops in replays:
            for _, device, stream, start, end in ops:
                devices.setdefault(device, []).append((stream, start, end))
        for device, stream, start, end in loose:
            devices.setdefault(device, []).append((stream, start, end))
        path = folder / f"round{round_number}.cgl.jsonl"
        capture(path, [3, 3], replays, loose)
        shown = json.loads(run("inspect", path, "--format", "json")[0])["inputs"][0]["timeline"]
        check([line["device"] for line in shown] == sorted(devices), f"round {round_number}: devices")
        for line in shown:
            operations = devices[line["device"]]
            wanted = timeline([op[1:] for op in operations])
            gaps = [gap["us"] for gap in line["largest_gaps"]]
            check(line["operations"] == len(operations) and line["streams"] == len({op[0] for op in operations}), f"round {round_number}: counts {line}")
            check(all(abs(line[key] - wanted[key]) < 1e-9 for key in wanted if key != "gaps"), f"round {round_number}: {line} but {wanted}")
            check(len(gaps) == len(wanted["gaps"]) and all(abs(a - b) < 1e-9 for a, b in zip(gaps, wanted["gaps"])), f"round {round_number}: {gaps} but {wanted['gaps']}")


def memory(folder):
    """The operations themselves take 14 bytes each; showing them must not take a copy."""
    kernels, launches = 500, 2000
    path = folder / "large.cgl.jsonl"
    capture(path, [kernels], [])
    *head, _, _ = path.read_text().split("\n")
    # Line by line: what this program takes counts as what the programs take that it starts.
    with open(path, "w") as out:
        out.write("\n".join(head) + "\n")
        for launch in range(launches):
            ops = ",".join(f"[{node},0,7,{2 * node},{2 * node + 1}]" for node in range(kernels))
            out.write(f'{{"type":"replays","graph":0,"base_ns":"{10000 * launch}","replays":[{{"ops":[{ops}]}}]}}\n')
        out.write(f'{{"type":"end","records":{len(head) + launches}}}\n')
    _, read = run("lint", path)
    out, peak = run("inspect", path)
    check(f"operations: {kernels * launches}" in out, "the large file's operations")
    check(peak < 1.25 * read + 16, f"inspect takes {peak:.0f} MiB where lint takes {read:.0f}")


def lists(folder):
    """Child graphs that multiply are shown once, and text shows the first hundred of a list."""
    levels = 12
    text = "digraph dot {\n"
    for level in range(1, levels + 1):
        text += f'subgraph cluster_{level} {{\nlabel="graph_{level}" graph[style="dashed"];\n'
        for use in (0, 1):
            text += f'"graph_{level}_node_{use}"[shape="rectangle" label="{use}\\ngraph_{level + 1}\\n"];\n'
        text += "}\n"
    text += f'subgraph cluster_{levels + 1} {{\n"graph_{levels + 1}_node_0"[shape="octagon" label="0\\nk\\n"];\n}}\n}}\n'
    path = folder / "multiplies.dot"
    path.write_text(text)
    out, _ = run("inspect", path)
    check(len(out) < 20000 and f"graphs alike: {1 << levels}" in out, f"child graphs that multiply: {len(out)} bytes")
    shown = json.loads(run("inspect", path, "--format", "json")[0])["inputs"][0]["graphs"]
    check(sum(graph.get("graphs_alike", 1) for graph in shown) == (2 << levels) - 1 and len(shown) == levels + 1, f"{len(shown)} graphs in JSON")

    path = folder / "many.cgl.jsonl"
    capture(path, range(1, 251), [])
    out, _ = run("inspect", path)
    check("graph 100:" in out and "graph 101:" not in out and "... and 150 more graphs\n" in out, "a long list in text")
    check(len(json.loads(run("inspect", path, "--format", "json")[0])["inputs"][0]["graphs"]) == 250, "a long list in JSON")


def nested(folder):
    """Graphs each of which lies in the one before: what is asked of a graph with all that lie in it is asked of some, and the others say that it was not."""
    depth, lines = 5000, ["digraph dot {"]
    for graph in range(depth):
        shape, label = ("rectangle", f"graph_{graph + 1}") if graph + 1 < depth else ("octagon", "_Z1kv")
        lines.append(f'subgraph cluster_{graph} {{\nlabel="graph_{graph}" graph[style="dashed"];\n"graph_{graph}_node_0"[style="solid" shape="{shape}" label="0\n{label}\nnode handle: 0x{0x1000 + graph:016X}\n"];\n}}')
    path = folder / "nested.dot"
    path.write_text("\n".join(lines) + "\n}\n")
    shown = json.loads(run("inspect", path, "--format", "json")[0])["inputs"][0]["graphs"]
    outer, inner = shown[0], shown[-1]
    check(outer["width"] == 1 and outer["streams_predicted"]["count"] == 1, f"the outermost: {outer}")
    check(inner["width"] == 1 and "streams_predicted" in inner, f"the innermost: {inner}")
    left = [graph for graph in shown if graph["width"] is None]
    check(left and all("streams_predicted" not in graph and graph["prediction_note"] == "not computed: too many graphs of this recording lie in each other" for graph in left), f"{len(left)} graphs: {left[:1]}")


with tempfile.TemporaryDirectory() as directory:
    for part in (memory, timelines, lists, nested):
        part(pathlib.Path(directory))
if failures:
    print("\n".join(failures[:20]))
    sys.exit(1)
print("as it should be")
