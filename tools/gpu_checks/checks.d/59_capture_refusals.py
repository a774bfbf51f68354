# seconds: 40
"""What cannot be recorded or run here is refused as docs/capturing.md says: CGLINT_CUPTI names something else, another tool has CUPTI, the memory
does not suffice, the options do not fit. One clear line, the exit code, and what can be had without a trace is had."""
import gzip
import json
import os
import re
import shutil
import stat

import graph_lines as g
from recordings import BIN, CGLINT, OUT, PYTHON, run

RUNNER, TAKES = os.path.join(BIN, "cglint-model-runner"), os.path.join(BIN, "librecord_takes_cupti.so")
LAYERS, SAMPLES = "4", "20"
STEP = ["two_branch", "--variant", "main_first", "--layers", LAYERS, "--samples", SAMPLES]
RECORDING = "two_branch.main_first.small.b1.l4.cgl.jsonl.gz"
# Of a graph from its DOT dump these cannot be told.
UNCHECKED = {"CG101", "CG104", "CG202", "CG203", "CG204", "CG301", "CG302", "CG303", "CG401", "CG402", "CG404", "CG501", "CG601", "CG602", "CG605", "CG804"}
CRASH = re.compile(r"terminate called|Segmentation|core dumped|ended by signal|Aborted|Traceback")


def libraries(major):
    """Where the recorder looks for CUPTI if CGLINT_CUPTI is of no use."""
    for number in range(major, 11, -1):
        name = f"libcupti.so.{number}"
        home = os.environ.get("CUDA_HOME")
        folders = [home + "/extras/CUPTI/lib64", home + "/lib64"] if home else []
        folders += ["/usr/local/cuda/extras/CUPTI/lib64", "/usr/local/cuda/lib64", "/usr/local/cuda/lib", "/usr/local/cuda/targets/x86_64-linux/lib"]
        yield from [name, *(f"{folder}/{name}" for folder in folders)]


def loads(name):
    return run([PYTHON, "-c", "import ctypes, sys; ctypes.CDLL(sys.argv[1])", name], 20).returncode == 0


def capture(name, words, program=CGLINT, **environment):
    """(exit code, what it said, its results, folder of the recording)."""
    folder, results = os.path.join(OUT, name), os.path.join(OUT, name + ".json")
    done = run([program, "capture", *words, "-q", "-o", folder, "--results", results], 30, env={**os.environ, **environment})
    try:
        with open(results, encoding="utf-8") as file:
            document = json.load(file)
    except (OSError, ValueError):
        document = {"gpu": {}, "runs": []}
    return done, document, folder


def lines_with(text, word):
    return [line for line in text.splitlines() if word in line]


def expect(wrong, name, good, what):
    if not good:
        wrong.append(f"{name}: {what}")


def not_traced(wrong, name, reason, captured):
    """Everything but the trace: exit code 4, one line, a marked file that no check takes for a clean one."""
    done, document, folder = captured
    def want(good, what):
        expect(wrong, name, good, what)
    said = f"{reason}; this process is not recorded"
    want(done.returncode == 4, f"exit code {done.returncode}")
    want(lines_with(done.stdout, "not traced") == [f"main_first batch 1: not traced: {said}"], f"standard output: {done.stdout[-600:]}")
    want([line for line in done.stderr.splitlines() if line.strip()] == [f"cglint: {said}"], f"standard error: {done.stderr[-600:]}")
    if len(document["runs"]) != 1:
        return want(False, f"{len(document['runs'])} runs in the results")
    found = document["runs"][0]
    want(found.get("not_traced") == said and found.get("exit_code") == 4 and "error" not in found, f"results: {found.get('not_traced')}, {found.get('exit_code')}, {found.get('error')}")
    want(found.get("timing", {}).get("samples") == int(SAMPLES) and found["timing"].get("median_us", 0) > 0, f"times: {found.get('timing')}")
    want(found.get("output", {}).get("equals_eager") is True and found.get("check", {}).get("ok") is True, f"output: {found.get('output')}, {found.get('check')}")
    want(found.get("findings") == [] and set(found.get("not_checked", [])) == UNCHECKED, f"findings {found.get('findings')}, not checked {found.get('not_checked')}")
    want(found.get("streams_predicted") == 2 and "streams_measured" not in found, f"streams: {found.get('streams_predicted')} predicted, {found.get('streams_measured')} measured")
    there = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    if there != [RECORDING]:
        return want(False, f"files: {there}")
    path = os.path.join(folder, RECORDING)
    with gzip.open(path, "rt") as file:
        records = [json.loads(line) for line in file]
    graphs = [record for record in records if record["type"] == "graph"]
    want(len(graphs) == 1 and {"nodes", "edges", "untraced_times"} <= set(graphs[0]["facts"]) and not {"replay_streams", "replay_times"} & set(graphs[0]["facts"]),
         f"facts: {[graph['facts'] for graph in graphs]}")
    want(records[-1]["type"] == "end" and any(record["type"] == "timing" for record in records), "the file is not whole or has no times")
    losses = [record["what"] for record in records if record["type"] == "loss" and record["severity"] == "data_loss"]
    want(losses == [f"not traced: {said}"], f"the file says {losses}")
    linted = run([CGLINT, "lint", path], 30)
    want(linted.returncode == 4, f"lint: exit code {linted.returncode}")
    want(f"data loss: not traced: {said}" in linted.stdout and lines_with(linted.stdout, "not checked ("), f"lint: {linted.stdout[-1000:]}")
    report = json.loads(run([CGLINT, "lint", "--format", "json", path], 30).stdout)
    want(report["exit_code"] == 4 and report["findings"] == [] and {entry["code"] for entry in report["not_checked"]} == UNCHECKED and not set(report["rules_checked"]) & UNCHECKED,
         f"lint: exit code {report['exit_code']}, {report['findings']}, checked {report['rules_checked']}")
    verified = run([CGLINT, "capture", "two_branch", "--verify-recordings", path], 30)
    want(verified.returncode == 1 and "CG101 was not checked" in verified.stdout and f"not whole: not traced: {said}" in verified.stdout,
         f"--verify-recordings: exit code {verified.returncode}, {verified.stdout[-600:]}")
    return None


def is_traced(wrong, name, captured):
    """CGLINT_CUPTI is of no use, but the toolkit has one: nothing is missing."""
    done, document, folder = captured
    found = document["runs"][0] if len(document["runs"]) == 1 else {}
    expect(wrong, name, done.returncode == 0 and "not_traced" not in found and found.get("streams_measured") == 2 and os.listdir(folder) == [RECORDING],
           f"exit code {done.returncode}, {found.get('not_traced')}, {found.get('streams_measured')} streams measured: {done.stderr[-300:]}")


def refused(wrong, name, captured, code, pattern, on_stderr):
    """One line, nothing recorded, no folder. What it asked for."""
    done, document, folder = captured
    lines = [line for line in done.stderr.splitlines() if line.strip()] if on_stderr else lines_with(done.stdout, "GPU memory")
    told = re.fullmatch(pattern, lines[0]) if len(lines) == 1 else None
    expect(wrong, name, done.returncode == code and told, f"exit code {done.returncode}, said {lines[:3]}, standard error: {done.stderr[-600:]}")
    expect(wrong, name, on_stderr or not done.stderr.strip(), f"standard error: {done.stderr[-600:]}")
    expect(wrong, name, not CRASH.search(done.stderr + done.stdout), f"a crash: {done.stderr[-600:]}")
    expect(wrong, name, not os.path.exists(folder), f"it left {folder}")
    runs = document["runs"]
    expect(wrong, name, len(runs) == 1 and runs[0].get("exit_code") == code and runs[0].get("error") and "recording" not in runs[0] and "output" not in runs[0], f"results: {runs}")
    return told


def with_taken_cupti():
    """The programs once more, with a runner that another tool is loaded into where it is traced."""
    folder = os.path.join(OUT, "bin")
    os.makedirs(folder)
    for name in os.listdir(BIN):
        if name in ("cglint", "cglint-capture", "cglint-record") or (name.startswith("lib") and not name.startswith("librecord_")):
            shutil.copy2(os.path.join(BIN, name), folder)
    wrapper = os.path.join(folder, "cglint-model-runner")
    with open(wrapper, "w", encoding="utf-8") as file:
        file.write(f'#!/bin/sh\ncase " $* " in *" --wait "*) LD_PRELOAD="{TAKES}"; export LD_PRELOAD;; esac\nexec "{RUNNER}" "$@"\n')
    os.chmod(wrapper, stat.S_IRWXU)
    return os.path.join(folder, "cglint")


def main():
    if not os.path.exists(RUNNER):
        g.result("skipped", "cglint-model-runner was not built")
        return
    wrong, numbers = [], {}
    # A library, but not this one.
    not_traced(wrong, "another library", "libm.so.6 has no cuptiSubscribe", capture("library", STEP, CGLINT_CUPTI="libm.so.6"))
    # No library: as if it were not set.
    text = os.path.join(OUT, "text.so")
    with open(text, "w", encoding="utf-8") as file:
        file.write("no library\n")
    captured = capture("text", STEP, CGLINT_CUPTI=text)
    driver = captured[1].get("gpu", {}).get("driver_version", 0)
    expect(wrong, "no library", driver >= 12000, f"driver version {driver}")
    numbers["other_cupti"] = next((name for name in libraries(driver // 1000) if loads(name)), None)
    if numbers["other_cupti"]:
        is_traced(wrong, "no library", captured)
    else:
        not_traced(wrong, "no library", "no CUPTI library was found (CGLINT_CUPTI=<path of libcupti.so> names one)", captured)
    not_traced(wrong, "CUPTI is taken", "CUPTI is in use by the other tool", capture("taken", STEP, with_taken_cupti()))
    # 4.3 TB of cache; 590 GB.
    for model, batch in (("kimi_linear", "4096"), ("k2_full", "64")):
        words = [model, "--batch", batch, "--context", "131071"]
        variant = "sequential" if model == "kimi_linear" else "mla_main_moe_main"
        told = refused(wrong, model, capture(model, [*words, "--variant", variant]), 4, variant + rf" batch {batch}: too little GPU memory: ([0-9.]+) GB needed, ([0-9.]+) GB free", False)
        numbers[model] = [float(number) for number in told.groups()] if told else None
        expect(wrong, model, told and float(told[1]) > float(told[2]) > 0, f"{numbers[model]}")
    refused(wrong, "options", capture("options", [*STEP, "--batch", "65"]), 2,
            rf"cglint capture: error: the model does not take these options \(batch 65, context 4096, layers {LAYERS}\)", True)
    g.result("fail" if wrong else "pass", "; ".join(wrong)[:2500], **numbers)


main()
