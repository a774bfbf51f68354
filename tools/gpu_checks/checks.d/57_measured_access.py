# seconds: 150
"""Are measured accesses right, and what do they change? The kernels of two_branch touch what their arguments say; with them the race of
mla_two_stream's join_missing is certain; findings are those of the manifests with them too."""
import gzip
import json
import os

import graph_lines as g
from recordings import BIN, CGLINT, OUT, run

ROW = 4096  # bytes of a row of two_branch: hidden 2048, bf16, one token
# function -> arguments read, argument written; each a row.
KNOWN = {"residual_add_kernel": ([0, 1], 2), "rms_norm_kernel": ([0], 4)}


def capture(model, *options):
    """(what cglint capture says, folder of the recordings)."""
    folder = os.path.join(OUT, "_".join([model, *(option.strip("-") for option in options)]).replace(",", "+"))
    done = run([CGLINT, "capture", model, *options, "--samples", "0", "--no-check", "-q", "--format", "json", "-o", folder])
    try:
        return json.loads(done.stdout), folder
    except ValueError:
        return {"runs": [], "problem": f"exit code {done.returncode}: {done.stderr.strip()[-300:]}"}, folder


def recorded(folder, run):
    """The captured graph with accesses, and its rows by node: [begin, end, mode]."""
    graphs, rows = {}, {}
    with gzip.open(os.path.join(folder, run["recording"]), "rt") as lines:
        for line in lines:
            record = json.loads(line)
            if record["type"] == "graph":
                graphs[record["graph"]] = record
            if record["type"] == "access":
                for node, begin, end, mode in record["accesses"]:
                    rows.setdefault((record["graph"], node), []).append((int(begin, 16), int(end, 16), mode))
    number = next((graph for graph, _ in rows), None)
    return graphs.get(number), {node: found for (graph, node), found in rows.items() if graph == number}


def wrong_rows(graph, rows):
    """What is not as the arguments say; how many nodes were compared."""
    wrong, compared, written = [], 0, []
    for number, node in enumerate(graph["nodes"]):
        if node["kind"] != "kernel":
            continue
        name = graph["functions"][graph["launches"][node["launch"]]["function"]]["name"]
        arguments = [int(word, 16) for word in node["args"]]
        mine = rows.get(number, [])
        for function, (reads, out) in KNOWN.items():
            if function not in name:
                continue
            compared += 1
            writes = [(begin, end) for begin, end, mode in mine if "w" in mode]
            if writes != [(arguments[out], arguments[out] + ROW)]:
                wrong.append(f"node {number} {function} writes {writes}, argument {hex(arguments[out])}")
            for argument in reads:
                at = arguments[argument]
                # Only what a node has written before is looked at.
                if any(begin <= at < end for begin, end in written) and not any(begin <= at and at + ROW <= end and "r" in mode for begin, end, mode in mine):
                    wrong.append(f"node {number} {function} does not read argument {argument}, {hex(at)}: {mine}")
            if len([row for row in mine if "r" in row[2]]) > len(reads):
                wrong.append(f"node {number} {function} reads more than its arguments: {mine}")
        written += [(begin, end) for begin, end, mode in mine if "w" in mode]
    return wrong, compared


def race(*options):
    """Confidence and evidence of CG401 on join_missing."""
    said, folder = capture("mla_two_stream", "--variant", "join_missing", "--layers", "4", *options)
    if not said["runs"] or "recording" not in said["runs"][0]:
        return {"problem": said.get("problem") or said["runs"][0].get("error", "no recording")}
    report = json.loads(run([CGLINT, "lint", "--format", "json", os.path.join(folder, said["runs"][0]["recording"])]).stdout)
    found = [finding for finding in report["findings"] if finding["code"] == "CG401"]
    return {"confidence": [finding["confidence"] for finding in found], "evidence": [finding.get("evidence") for finding in found][:2],
            "accesses": said["runs"][0].get("accesses")}


def main():
    if not os.path.exists(os.path.join(BIN, "cglint-model-runner")):
        g.result("skipped", "cglint-model-runner was not built")
        return
    wrong, numbers = [], {}
    said, folder = capture("two_branch", "--variant", "main_first", "--layers", "3", "--measure-access")
    if not said["runs"] or "accesses" not in said["runs"][0]:
        wrong.append(f"two_branch: {said.get('problem') or said['runs'][0].get('error', 'no accesses')}")
    else:
        graph, rows = recorded(folder, said["runs"][0])
        differences, compared = wrong_rows(graph, rows) if graph else (["no accesses in the recording"], 0)
        wrong += differences
        if graph and compared < 9:
            wrong.append(f"only {compared} nodes of known kernels")
        numbers["two_branch"] = {**said["runs"][0]["accesses"], "compared": compared}
    numbers["inferred"], numbers["measured"] = race(), race("--measure-access")
    if "certain" in numbers["inferred"].get("confidence", []) or numbers["measured"].get("confidence", [""])[:1] != ["certain"]:
        wrong.append(f"CG401: {numbers['inferred']} without and {numbers['measured']} with measured accesses")
    for model in ("two_branch", "mla_two_stream", "nvfp4_preamble"):
        said, _ = capture(model, "--layers", "8", "--measure-access", "--verify")
        numbers[model + " runs"] = {run["variant"]: [run.get("findings"), run.get("accesses", {}).get("runs")] for run in said["runs"]}
        wrong += [f"{model} {run['variant']}: {run.get('error') or run.get('verify', {}).get('differences')}" for run in said["runs"] if run["exit_code"] != 0]
        if not said["runs"]:
            wrong.append(f"{model}: {said.get('problem')}")
    g.result("fail" if wrong else "pass", "; ".join(wrong)[:2000], **numbers)


main()
