#!/usr/bin/env python3
"""Writes docs/measurements/kernels.md, a table of every case of cglint-kernel-bench, from the newest docs/measurements/kernels-DATE.json.

usage: kernels_report.py [--check]     --check: exit 1 if the page is not what the file says
"""
import collections
import json
import re
import sys

import report_page
from report_page import FOLDER

SHARE, TIMES, MOST_TOKENS = 0.6, 2.0, 8  # the aim


def size(count):
    mega = count / 1e6
    return f"{mega:,.0f}" if mega >= 100 else f"{mega:.1f}" if mega >= 10 else f"{mega:.2f}" if mega >= 1 else f"{mega:.3f}" if mega >= 0.001 else f"{mega:.4f}"


def microseconds(value):
    return f"{value:,.1f}" if value >= 100 else f"{value:.2f}"


def without_pdl(text):
    return re.sub(r"\s*\bpdl$", "", text)


def read(path):
    """The file's benches, the one with most cases first."""
    document = json.loads(path.read_text())
    benches = [bench for bench in document.get("benches", [document]) if bench.get("cases")]
    return document, sorted(benches, key=lambda bench: -len(bench["cases"]))


def group(benches):
    """kernel -> shape -> (tokens, bytes, launches) -> {plain: case}; a case that several benches have is that of the first."""
    kernels = {}
    for bench in benches:
        for case in bench["cases"]:
            shape = without_pdl(case["shape"])
            tokens = re.search(r"\b(?:batch|rows)=(\d+)\b", shape)
            shape = " ".join((shape[:tokens.start()] + shape[tokens.end():]).split()) if tokens else shape
            key = (int(tokens[1]) if tokens else 0, case["bytes"], case["launches"])
            kernels.setdefault(without_pdl(case["kernel"]), {}).setdefault(shape, {}).setdefault(key, {}).setdefault(not case["pdl"], {**case, "commit": bench.get("commit")})
    return kernels


def share_text(share):
    return f"{100 * share:.0f} %" if share >= 0.01 else f"{100 * share:.1g} %" if share >= 0.0001 else "< 0.01 %"


def cells(case, tokens):
    if case is None:
        return ["", "", ""]
    share, times = share_text(case["share_of_copy"]), f"{case['times_empty']:.1f}"
    if tokens <= MOST_TOKENS and case["launches"] <= 2:  # whole layers have no such aim
        if case["l2_defeated"] and case["share_of_copy"] < SHARE:
            share = f"**{share}**"
        elif not case["l2_defeated"] and case["times_empty"] > TIMES:
            times = f"**{times}**"
    return [microseconds(case["median_us"]), share, times]


def error(cases):
    wrong = [case for case in cases if not case["correct"]]
    worst = max(wrong or cases, key=lambda case: case["error"] if case["error"] is not None else float("inf"))
    text = "0" if worst["error"] == 0 else f"{worst['error']:.2g} of {worst['tolerance']:g}" if worst["error"] is not None else "none"
    return f"**WRONG** {text} {worst['status']}" if wrong else text


def kernel_table(shapes):
    rows = [(shape, key, cases) for shape, keys in shapes.items() for key, cases in sorted(keys.items(), key=lambda item: item[0])]
    launches = any(key[2] > 1 for _, key, _ in rows)
    tokens = any(key[0] for _, key, _ in rows)
    plain, programmatic = (any(is_plain in cases for *_, cases in rows) for is_plain in (True, False))
    head = ["shape", *(["tokens"] if tokens else []), "MB", *(["launches"] if launches else [])]
    for name, there in (("plain", plain), ("programmatic", programmatic)):
        head += [f"{name} us", "of copy", "times empty"] if there else []
    lines = ["| " + " | ".join([*head, "error"]) + " |", "|---" + "|---:" * (len(head) - 1) + "|---|"]
    last = None
    for shape, key, cases in rows:
        line = ["" if shape == last else shape, *([str(key[0] or "")] if tokens else []), size(key[1]), *([str(key[2])] if launches else [])]
        line += cells(cases.get(True), key[0]) if plain else []
        line += cells(cases.get(False), key[0]) if programmatic else []
        lines.append("| " + " | ".join([*line, error(list(cases.values()))]) + " |")
        last = shape
    return "\n".join(lines) + "\n"


def page():
    files = sorted(FOLDER.glob("kernels-20[0-9][0-9]-[0-9][0-9]-[0-9][0-9].json"))
    if not files:
        return None
    document, benches = read(files[-1])
    kernels = group(benches)
    first = {**document, **benches[0]}
    cases = [(key[0], case) for shapes in kernels.values() for keys in shapes.values() for key, cases in keys.items() for case in cases.values()]
    wrong = sum(not case["correct"] for _, case in cases)
    later = collections.Counter(case["commit"] for _, case in cases if case["commit"])  # a bench that names its own commit was run later
    later = "".join(f", {count} of them at {commit}" for commit, count in later.items())
    resident = [name for name, shapes in kernels.items() if not any(case["l2_defeated"] for keys in shapes.values() for cases in keys.values() for case in cases.values())]
    text = [
        "# What each kernel takes\n",
        f"Written by `tools/dev/kernels_report.py` from `{files[-1].name}`: {first['gpu']}, driver {first['driver']}, commit {first['commit']}, {first['date'][:10]}."
        f" {len(cases)} cases of `cglint-kernel-bench`{later}, {'all correct' if wrong == 0 else f'**{wrong} wrong**'}. How they are measured, what each",
        "kernel could reach at best and what was tried: [reference_models/kernels/README.md](../../reference_models/kernels/README.md).\n",
        f"us: median of {first['replays']} replays of a graph of {first['runs_per_graph']} calls, per call. MB: what must be read and written, once. Of copy: MB over the time, as a share of the",
        f"bandwidth of a device-to-device copy in the same run ({first['copy_bytes_per_s'] / 1e9:,.0f} GB/s, read and write counted). Times empty: the time over that of as many empty kernels launched the same",
        f"way ({first['empty_launch_us']:.2f} us, programmatic {first['empty_pdl_launch_us']:.2f}). Error: the larger one of the two launches against fp32, scaled by the root of the mean square, and the",
        f"tolerance.\n",
        "Weights and caches come from memory. What these kernels read and write, a few KB to a few MB, stays in L2:",
        f"{', '.join(resident)}.\n",
        f"Bold misses the aim for up to {MOST_TOKENS} tokens: {100 * SHARE:.0f} % of the copy for what reads weights or caches, {TIMES:.0f} times an empty launch for the others. Where no kernel could",
        "have met it is in the README named above.\n"]
    for name, shapes in kernels.items():
        text.append(f"## {name}\n\n{kernel_table(shapes)}")
    return "\n".join(text)


if __name__ == "__main__":
    sys.exit(report_page.main("kernels.md", page))
