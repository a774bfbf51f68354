#!/usr/bin/env python3
"""Measures the trace importers on generated files and writes the table tests/bench/RESULTS.md.

    bench_import.py BUILD_DIR SCRATCH_DIR [--size-mb N] [--runs N] [--large-mb N]

Each measurement is a process of its own; the table gives the best of the runs. CPU seconds count all threads, so the
numbers compare on a busy machine as well.
"""
import argparse
import gzip
import json
import os
import platform
import shutil
import subprocess
import sys


def run(command):
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"{' '.join(command)}: {result.stderr}")
    return result.stdout


def best(command, runs):
    results = [json.loads(run(command)) for _ in range(runs)]
    return min(results, key=lambda r: r["cpu_seconds"])


def cpu_name():
    with open("/proc/cpuinfo") as file:
        for line in file:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.machine()


def write_dot(path, nodes):
    """A verbose dump: one chain with a skip edge at every eighth node."""
    with open(path, "w") as out:
        out.write('digraph dot {\nsubgraph cluster_1 {\nlabel="graph_1" graph[style="dashed"];\n')
        for i in range(nodes):
            out.write(f'"graph_1_node_{i}"[style="bold" shape="record" label="{{KERNEL\n| {{ID | {i} (topoId: {nodes - 1 - i}) | '
                      f'_ZN5bench6kernelILi{i % 200}EEEvPKfPfi\\<\\<\\<\\{{{1 + i % 64},4\\}},128,0\\>\\>\\>}}\n'
                      '| {{node handle | func handle} | {0x00000000268811A8 | 0x000000001F951AD0}}\n'
                      '| {accessPolicyWindow | {base_ptr | num_bytes | hitRatio | hitProp | missProp} | '
                      '{0x0000000000000000 | 0 | 0.000000 | N | N}}\n| {cooperative | 0}\n| {priority | 0}\n}"];\n\n')
        for i in range(1, nodes):
            out.write(f'"graph_1_node_{i - 1}" -> "graph_1_node_{i}" [headlabel=0];\n')
            if i % 8 == 0 and i > 8:
                out.write(f'"graph_1_node_{i - 8}" -> "graph_1_node_{i}" [headlabel=1];\n')
        out.write("}\n}\n")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build")
    parser.add_argument("scratch")
    parser.add_argument("--size-mb", type=int, default=1000)
    parser.add_argument("--large-mb", type=int, default=0, help="also import one 5 %% trace of this size")
    parser.add_argument("--nsys-mb", type=int, default=0, help="also import an Nsight Systems export of this size")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--output", default=os.path.join(os.path.dirname(__file__), "RESULTS.md"))
    args = parser.parse_args()
    bench = os.path.join(args.build, "bench")
    os.makedirs(args.scratch, exist_ok=True)
    rows = []
    for percent in (5, 90):
        path = os.path.join(args.scratch, f"trace_{percent}.json")
        run([f"{bench}/make_trace", path, str(args.size_mb), str(percent), "line"])
        size = os.path.getsize(path)
        base = best([f"{bench}/trace_bench", "baseline", path], args.runs)
        ours = best([f"{bench}/trace_bench", "import", path], args.runs)
        rows.append((f"{percent} % GPU events, one line", size, base, ours))
        if percent == 5:
            with open(path, "rb") as source, gzip.open(path + ".gz", "wb", compresslevel=1) as target:
                shutil.copyfileobj(source, target, 1 << 20)
            ours = best([f"{bench}/trace_bench", "import", path + ".gz"], args.runs)
            rows.append((f"{percent} % GPU events, one line, gzip", size, base, ours))
            os.remove(path + ".gz")
            pretty = os.path.join(args.scratch, "pretty.json")
            run([f"{bench}/make_trace", pretty, str(args.size_mb), str(percent), "pretty"])
            base_pretty = best([f"{bench}/trace_bench", "baseline", pretty], args.runs)
            ours = best([f"{bench}/trace_bench", "import", pretty], args.runs)
            rows.append((f"{percent} % GPU events, pretty-printed", os.path.getsize(pretty), base_pretty, ours))
            os.remove(pretty)
        os.remove(path)
    if args.large_mb:
        path = os.path.join(args.scratch, "large.json")
        run([f"{bench}/make_trace", path, str(args.large_mb), "5", "line"])
        ours = best([f"{bench}/trace_bench", "import", path], 1)
        rows.append(("5 % GPU events, one line", os.path.getsize(path), None, ours))
        os.remove(path)

    others = []
    path = os.path.join(args.scratch, "graph.dot")
    write_dot(path, 100_000)
    others.append(("DOT dump, 100,000 kernels", os.path.getsize(path), best([f"{bench}/trace_bench", "import", path], args.runs)))
    os.remove(path)
    if args.nsys_mb:
        for mix, name in (("mixed", "node mode"), ("kernels", "node mode, kernels alone"), ("eager", "eager kernels alone")):
            path = os.path.join(args.scratch, "report.sqlite")
            run([sys.executable, os.path.join(os.path.dirname(__file__), "make_nsys.py"), path, str(args.nsys_mb), mix])
            others.append((f"Nsight Systems SQLite, {name}", os.path.getsize(path),
                           best([f"{bench}/trace_bench", "import", path], args.runs)))
            os.remove(path)

    with open(args.output, "w") as out:
        out.write("# Importer benchmarks\n\n")
        out.write(f"{cpu_name()}, {os.cpu_count()} CPUs. Best of {args.runs} runs, each a process of its own; written by "
                  "`tests/bench/bench_import.py`.\n\n## Kineto traces\n\n")
        out.write("`simdjson` is the yardstick: simdjson on-demand over the bytes in memory (load not counted), visiting every "
                  "event and reading ph, cat, name, ts and dur. The importer reads the file and builds the IR. The bars: at least "
                  "50 % of the yardstick's throughput; peak resident memory below 300 MB for 5 % GPU events.\n\n")
        out.write("| trace | MB | simdjson, CPU s | importer, CPU s | throughput, MB/s | of simdjson | peak, MB | operations |\n")
        out.write("|---|---|---|---|---|---|---|---|\n")
        for name, size, base, ours in rows:
            base_cpu = f"{base['cpu_seconds']:.2f}" if base else "-"
            share = f"{100 * base['cpu_seconds'] / ours['cpu_seconds']:.0f} %" if base else "-"
            out.write(f"| {name} | {size / 1e6:.0f} | {base_cpu} | {ours['cpu_seconds']:.2f} | "
                      f"{size / 1e6 / ours['cpu_seconds']:.0f} | {share} | {ours['peak_mib'] * 1.048576:.0f} | {ours['operations']} |\n")
        out.write("\n## Other formats\n\nFor an Nsight Systems export of 3.7 GB the bars are 27 s and 1 GB.\n\n")
        out.write("| file | MB | CPU s | s | peak, MB | nodes | operations |\n|---|---|---|---|---|---|---|\n")
        for name, size, ours in others:
            out.write(f"| {name} | {size / 1e6:.0f} | {ours['cpu_seconds']:.2f} | {ours['seconds']:.2f} | "
                      f"{ours['peak_mib'] * 1.048576:.0f} | {ours['nodes']} | {ours['operations']} |\n")
    print(open(args.output).read())


if __name__ == "__main__":
    main()
