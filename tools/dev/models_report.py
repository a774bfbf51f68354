#!/usr/bin/env python3
"""Writes docs/measurements/models.md from the newest docs/measurements/models-MODEL-DATE.json of each model.

usage: models_report.py [--check]     --check: exit 1 if the page is not what the files say
"""
import json
import sys

import report_page
from report_page import FOLDER

SAMPLES = 200  # of a time, where the page does not say otherwise
EXECUTABLE = ["instantiate us", "upload us", "launch CPU us", "MB"]
ORDER = ["deepseek_moe", "k2_full", "mla_two_stream", "nvfp4_preamble", "kimi_linear", "fused_moe", "two_branch"]


def number(value, form="{:,.0f}"):
    return "–" if value is None else form.format(value)


def get(run, *path):
    for key in path:
        run = run.get(key) if isinstance(run, dict) else None
    return run


def table(head, rows):
    """Without columns that say nothing."""
    used = [i for i in range(len(head)) if i == 0 or any(row[i] != "–" for row in rows)]
    head, rows = [head[i] for i in used], [[row[i] for i in used] for row in rows]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def us(run, scale=1):
    timing = run.get("timing")
    if not timing:
        return "–"
    return f"{timing['median_us']:,.{scale}f} ({timing['p10_us']:,.{scale}f}–{timing['p90_us']:,.{scale}f})"


def change(run, base):
    old, new = get(base, "timing", "median_us"), get(run, "timing", "median_us")
    return "–" if old is None or new is None or base is run else f"{100 * (new / old - 1):+.1f} %"


def samples(runs):
    """Of times that are not of 200 replays."""
    counts = sorted({run["timing"]["samples"] for run in runs if "timing" in run})
    return "" if counts in ([], [SAMPLES]) else f"; times of {' or '.join(map(str, counts))} replays"


def executable(run):
    memory = get(run, "executable", "memory_bytes")
    return [number(get(run, "executable", "instantiate_us")), number(get(run, "executable", "upload_us")), number(get(run, "timing", "launch_cpu_us"), "{:.1f}"),
            number(None if memory is None else memory / 1e6, "{:.2f}")]


def outputs(run):
    if "capture_failed" in run:
        return "capture fails, streams usable" if get(run, "capture_failed", "streams_usable") else "streams broken"
    if "not_replayed" in run or "fault" in run:
        return "not replayed"
    parts = ["bits of the eager step" if get(run, "output", "equals_eager") else "bits differ"] if "output" in run else []
    if "same_bits" in run:
        parts.append(f"{'bits' if run['same_bits']['equal'] else 'not the bits'} of `{run['same_bits']['as']}`")
    if "check" in run:
        parts.append(f"{'error' if run['check']['ok'] else 'WRONG: error'} {number(run['check']['error'], '{:.3f}')} of {run['check']['tolerance']:.3f}" +
                     (f", rms {number(run['check']['rms_error'], '{:.4f}')} of {run['check']['rms_tolerance']:.3f}" if "rms_error" in run["check"] else ""))
    return ", ".join(parts) or "–"


def findings(run):
    return ("not linted" if "findings" not in run else " ".join(run["findings"]) or "none") + ("" if get(run, "verify", "ok") in (True, None) else " (**not as expected**)")


def variants(runs):
    base = runs[0]
    rows = [[f"`{run['variant']}`", number(run.get("nodes")), f"{number(run.get('streams_predicted'))} / {number(run.get('streams_measured'))}", us(run), change(run, base),
             *executable(run), findings(run), outputs(run)] for run in runs]
    return table(["variant", "nodes", "streams predicted / measured", "us median (p10–p90)", "against the first", *EXECUTABLE, "findings", "outputs"], rows)


def sweep(runs, keys):
    first = {}
    rows = []
    verified = any("verify" in run for run in runs)
    for run in runs:
        group = tuple(json.dumps(run.get(key)) for key in keys)
        base = first.setdefault(group, run)
        rows.append([f"`{run['variant']}`", *(number(run.get(key), "{}") for key in keys), f"{number(run.get('streams_predicted'))} / {number(run.get('streams_measured'))}", us(run), change(run, base),
                     *executable(run), findings(run) if verified else "–", outputs(run)])
    return table(["variant", *keys, "streams predicted / measured", "us median (p10–p90)", "against the group's first", *EXECUTABLE, "findings", "outputs"], rows)


def serving(runs):
    rows = []
    for run in runs:
        graphs = "; ".join(f"{graph['nodes']} nodes on {number(graph.get('streams_measured') or graph.get('streams_predicted'))}" for graph in run.get("graphs", []))
        rows.append([f"`{run['variant']}`", graphs or "–", number(run.get("streams_total")), us(run)])
    return table(["variant", "graphs and their streams", "streams in the whole recording", "us a round, median (p10–p90)"], rows)


def page():
    newest = {}
    for path in sorted(FOLDER.glob("models-*-20*.json")):  # by date within a model
        document = json.loads(path.read_text())
        if document.get("schema") == "cglint-models/1":
            newest[document["model"]] = path
    if not newest:
        return None
    text = ["# What the reference models give\n", "Written by `tools/dev/models_report.py` from the files named below, which `tools/gpu_checks/measure_models.py` makes. How each number is",
            f"measured: `../capturing.md`. Times are of single processes, each variant in one of its own; the spread is that of its replays, {SAMPLES} where",
            "nothing else is said. MB is device memory of one executable graph. Recordings in the repository may be of an earlier commit than these tables; what they took then is in",
            "them. What each kernel takes: [kernels.md](kernels.md).\n"]
    for model in [name for name in ORDER if name in newest] + [name for name in newest if name not in ORDER]:
        document = json.loads(newest[model].read_text())
        text.append(f"## {model}\n\n`{newest[model].name}`: {document['gpu'].get('name', 'unknown GPU')}, driver {document['driver']}, {document['date'][:10]}, commit {document['commit']}.\n")
        for job in document["jobs"]:
            runs = [run for run in job["runs"] if run.get("exit_code") in (0, 1, 4)]
            failed = len(job["runs"]) - len(runs)
            text.append(f"**{job['question'][0].upper()}{job['question'][1:]}** (`{job['command']}`)" + (f", {failed} runs failed" if failed else "") + samples(runs) + (f"; commit {job['commit']}" if "commit" in job else "") + "\n")
            if job["name"].startswith("memcheck"):
                text.append(f"{len(runs)} variants, {number(job.get('memcheck_errors'))} errors.\n")
            elif not runs:
                text.append("No run went through.\n")
            elif job["name"] == "serving":
                text.append(serving(runs))
            elif job["name"] in ("stream_cost", "streams_traced"):
                text.append(sweep(sorted(runs, key=lambda run: (run["layers"], run.get("connections", 0))), ["layers", "connections"]))
            elif job["name"].startswith(("batches", "large_batches", "tokens", "large_tokens")):
                text.append(sweep(runs, ["batch"]))
            else:
                text.append(variants(runs))
    return "\n".join(text)


if __name__ == "__main__":
    sys.exit(report_page.main("models.md", page))
