# seconds: 120
"""Is a null argument proven by launching the kernel alone? deepseek_moe's main_first_released and two_branch's released_input are not replayed;
with --measure-access the kernel that faults alone is found in child processes, the recording says so, and CG301 rests on it. A variant without
null addresses gives no such row, and after a fault by --force later runs go through."""
import gzip
import json
import os
import time

import graph_lines as g
from recordings import BIN, CGLINT, OUT, run

NULL_END = 65536


def capture(name, model, *options):
    """(its runs, exit code, folder of the recordings)."""
    folder = os.path.join(OUT, name)
    begin = time.monotonic()
    done = run([CGLINT, "capture", model, "--layers", "3", "--samples", "0", "--no-check", "-q", "--format", "json", "-o", folder, *options])
    try:
        runs = json.loads(done.stdout)["runs"]
    except ValueError:
        runs = []
    if not runs:
        runs = [{"error": f"no results, exit code {done.returncode}: {done.stderr.strip()[-300:]}"}]
    return runs, done.returncode, folder, round(time.monotonic() - begin, 1)


def recorded(folder, entry):
    """The captured graph, its rows in the null page, and the findings of CG301."""
    graph, rows = {}, []
    path = os.path.join(folder, entry["recording"])
    with gzip.open(path, "rt") as lines:
        for line in lines:
            record = json.loads(line)
            if record["type"] == "graph" and record["info"].get("role", "captured") == "captured":
                graph = record
            if record["type"] == "access":
                rows += [row for row in record["accesses"] if int(row[1], 16) < NULL_END]
    report = json.loads(run([CGLINT, "lint", "--format", "json", path]).stdout)
    return graph, rows, [finding for finding in report["findings"] if finding["code"] == "CG301"]


def proven(model, variant, kernel, branch, wrong):
    """Runs the variant; says what is not as it must be. The numbers."""
    runs, code, folder, seconds = capture(variant, model, "--variant", variant, "--measure-access")
    entry = runs[0]
    proof = entry.get("null_proof", {})
    numbers = {"exit": code, "seconds": seconds, "seconds_of_proof": proof.get("seconds"), **{key: proof.get(key) for key in ("processes", "nodes", "kernels", "kinds", "launches", "proven", "not_proven", "refused")}}
    numbers["not_replayed"] = entry.get("not_replayed")
    if code != 0 or "recording" not in entry or not proof:
        wrong.append(f"{model} {variant}: exit code {code}, {entry.get('error', 'no proof')}")
        return numbers
    graph, rows, findings = recorded(folder, entry)
    numbers["rows"] = rows
    numbers["CG301"] = [[finding["confidence"], finding["message"], finding["evidence"]] for finding in findings]
    if not rows:
        wrong.append(f"{model} {variant}: no row in the null page")
    for row in rows:
        node = {**graph.get("defaults", {}), **graph["nodes"][row[0]]}
        name = graph["functions"][graph["launches"][node["launch"]]["function"]]["name"]
        ranges = graph["nvtx"][node["nvtx"]] if "nvtx" in node else []
        numbers["nvtx"] = ranges
        if kernel not in name or not any(branch in text for text in ranges) or row[1:] != ["0x0", "0x1", "?", 0, 0]:
            wrong.append(f"{model} {variant}: row {row} is of {name} in {ranges}")
    if "measured_access" in graph["facts"]:
        wrong.append(f"{model} {variant}: the graph counts as measured")
    certain = [finding for finding in findings if finding["confidence"] == "certain"]
    if len(certain) != 1 or "isolated run" not in certain[0]["message"] or (certain[0]["evidence"]["argument"], certain[0]["evidence"]["byte"]) != (0, 0):
        wrong.append(f"{model} {variant}: CG301 is {numbers['CG301']}")
    return numbers


def main():
    if not os.path.exists(os.path.join(BIN, "cglint-model-runner")):
        g.result("skipped", "cglint-model-runner was not built")
        return
    wrong, numbers = [], {}
    for model, variant, branch in (("deepseek_moe", "main_first_released", "shared_expert"), ("two_branch", "released_input", "")):
        numbers[variant] = proven(model, variant, "skinny_gemm_kernel", branch, wrong)
        print(variant, json.dumps(numbers[variant]), flush=True)
    # One without null addresses: replayed and measured as a whole.
    runs, code, folder, seconds = capture("clean", "two_branch", "--variant", "main_first", "--measure-access")
    rows = recorded(folder, runs[0])[1] if "recording" in runs[0] else None
    numbers["main_first"] = {"exit": code, "seconds": seconds, "rows": rows, "accesses": runs[0].get("accesses")}
    if code != 0 or rows != [] or "null_proof" in runs[0] or "accesses" not in runs[0]:
        wrong.append(f"main_first: {numbers['main_first']} {runs[0].get('error', '')}")
    # By force: the fault is reported, and the run after it goes through.
    runs, code, folder, seconds = capture("force", "deepseek_moe", "--variant", "main_first_released,main_first", "--force", "--measure-access")
    faults = [entry.get("fault") for entry in runs]
    numbers["force"] = {"exit": code, "seconds": seconds, "fault": faults, "replayed_by_force": runs[0].get("replayed_by_force"), "processes": runs[0].get("null_proof", {}).get("processes"),
                        "after": [runs[-1].get("output"), runs[-1].get("accesses")]}
    if code != 0 or len(runs) != 2 or "cudaErrorIllegalAddress" not in (faults[0] or "") or faults[1] or not runs[0].get("null_proof", {}).get("proven") or \
            not runs[1].get("output", {}).get("equals_eager") or "accesses" not in runs[1]:
        wrong.append(f"--force: {numbers['force']} {[entry.get('error') for entry in runs]}")
    g.result("fail" if wrong else "pass", "; ".join(wrong)[:2000], **numbers)


main()
