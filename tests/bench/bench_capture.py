#!/usr/bin/env python3
"""Measures `cglint lint` on capture files of 5,000 graphs, as whole processes, and prints a table for tests/bench/RESULTS.md.

    bench_capture.py BUILD_DIR SCRATCH_DIR [--runs N]

The files are written by make_capture, with sizes drawn log-uniformly and uniformly from 10 to 5,000 nodes; they need 4 GB of space and
are removed again. The bars: 10 s and 1 GB on 2 cores.
"""
import argparse
import os
import subprocess
import sys
import time


def measure(command):
    """Elapsed seconds, CPU seconds of all threads, peak resident MB."""
    start = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    elapsed = time.monotonic() - start
    code = os.waitstatus_to_exitcode(status)
    if code not in (0, 1):
        sys.exit(f"{' '.join(command)}: exit code {code}")
    return elapsed, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024 / 1e6


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build")
    parser.add_argument("scratch")
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    os.makedirs(args.scratch, exist_ok=True)
    print("| sizes | file | MB | nodes | s | CPU s | peak, MB |\n|---|---|---|---|---|---|---|")
    for sizes, suffix in (("log", ""), ("uniform", ""), ("uniform", ".zst")):
        path = os.path.join(args.scratch, f"{sizes}.cgl.jsonl{suffix}")
        made = subprocess.run([f"{args.build}/tests/make_capture", path, "--sizes", sizes], capture_output=True, text=True, check=True).stdout
        nodes = int(made.split("nodes ")[1].split()[0])
        best = min((measure([f"{args.build}/bin/cglint", "lint", path, "--no-progress"]) for _ in range(args.runs)), key=lambda r: r[0])
        print(f"| {sizes}-uniform | {'zstd' if suffix else 'text'} | {os.path.getsize(path) / 1e6:.0f} | {nodes} | {best[0]:.1f} | {best[1]:.1f} | "
              f"{best[2]:.0f} |".replace("uniform-uniform", "uniform"), flush=True)
        os.remove(path)


if __name__ == "__main__":
    main()
