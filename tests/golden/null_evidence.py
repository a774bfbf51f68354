#!/usr/bin/env python3
"""CG301 on recordings of a GPU, with each source of evidence taken away in turn: launches outside capture, another graph that passes an
address at the same place, an isolated run that faults. Of these a recording has the first; the other two are made from its own graph. With a
source left the null argument is found, as sure as the source is; with none the rule says "not checked" or "possible", and never nothing.

usage: null_evidence.py CGLINT
"""
import copy
import gzip
import itertools
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
RECORDINGS = ("rules/addresses/null_address/bad/recorded_released_input.cgl.jsonl.gz",
              "reference_models/deepseek_moe/recordings/main_first_released.k2-tp8.b1.l8.cgl.jsonl.gz",
              "reference_models/two_branch/recordings/released_input.small.b1.l8.cgl.jsonl.gz")
SOURCES = ("eager", "graph", "isolated")
KERNEL = "skinny_gemm_kernel"  # the kernel whose argument 0 is null


def is_eager(record):
    return record["type"] == "graph" and record["info"].get("role") == "eager"


def function_of(graph, node):
    return graph["functions"][graph["launches"][node["launch"]]["function"]]["name"]


def null_nodes(graph):
    return [number for number, node in enumerate(graph["nodes"]) if node["kind"] == "kernel" and KERNEL in function_of(graph, node) and node["args"][0] == "0x0"]


def variant(records, sources, stacks):
    """The recording with these sources of evidence alone."""
    eager = [record for record in records if is_eager(record)]
    captured, = [record for record in records if record["type"] == "graph" and not is_eager(record)]
    nulls = null_nodes(captured)
    assert eager and nulls, "the recording has launches outside capture and a null argument"
    made = []
    for record in copy.deepcopy(records):
        if record["type"] == "graph":
            if not stacks:
                for node in record["nodes"]:
                    node.pop("stack", None)
                record["facts"] = [fact for fact in record["facts"] if fact != "source_frames"]
            if "eager" not in sources:
                record["facts"] = [fact for fact in record["facts"] if fact != "eager_launches"]
        number = record.get("graph")
        if "eager" not in sources and number in [graph["graph"] for graph in eager]:
            continue
        made.append(record)
        if record["type"] == "graph" and number == captured["graph"]:
            if "isolated" in sources:
                made.append({"type": "access", "graph": number, "accesses": [[nulls[0], "0x0", "0x1", "?", 0, 0]]})
            if "graph" in sources:
                other = copy.deepcopy(record)
                other["graph"] = 99
                other["info"].update(name="other", source_id="0x99")
                place = next((node["args"][0], node["arg_allocations"][0]) for node in record["nodes"]
                             if node["kind"] == "kernel" and KERNEL in function_of(record, node) and node["arg_allocations"][0] >= 0)
                for node in nulls:
                    other["nodes"][node]["args"][0], other["nodes"][node]["arg_allocations"][0] = place
                made += [other, {"type": "graph_end", "graph": 99}]
    made[-1]["records"] = len(made) - 1
    assert made[-1]["type"] == "end"
    return made


def verdict(cglint, records):
    """Confidence and message of CG301 for argument 0 of the kernel, and whether the rule says that it could not look."""
    with tempfile.NamedTemporaryFile("w", suffix=".cgl.jsonl") as file:
        file.write("".join(json.dumps(record) + "\n" for record in records))
        file.flush()
        done = subprocess.run([cglint, "lint", "--format", "json", "--confidence", "possible", "--select", "CG301", file.name], capture_output=True, text=True, timeout=300, env=dict(os.environ, LC_ALL="C.UTF-8"))
    report = json.loads(done.stdout)
    assert not report["errors"] and not [loss for item in report["inputs"] for loss in item["losses"] if loss["severity"] != "info"], f"the recording is whole: {report['errors']} {report['inputs']}"
    found = [(finding["confidence"], finding["message"]) for finding in report["findings"] if finding["code"] == "CG301" and KERNEL in str(finding["primary"]) + finding["message"] and
             finding["evidence"]["argument"] == 0]
    return found, any(entry["code"] == "CG301" for entry in report["not_checked"])


def main():
    failed = 0
    for name in RECORDINGS:
        records = [json.loads(line) for line in gzip.open(ROOT / name, "rt")]
        for stacks in (True, False):
            for count in range(len(SOURCES), -1, -1):
                for sources in itertools.combinations(SOURCES, count):
                    found, unchecked = verdict(sys.argv[1], variant(records, sources, stacks))
                    if "isolated" in sources:
                        good = len(found) == 1 and found[0][0] == "certain" and "isolated run" in found[0][1]
                    elif "eager" in sources and not stacks:
                        # Recorders keep the arguments of a kernel's first launches: without places these may be of other callers.
                        good = [confidence for confidence, _ in found] == ["likely"] or (not found and unchecked)
                    elif "eager" in sources:
                        good = len(found) == 1 and found[0][0] == "likely" and "outside capture" in found[0][1]
                    elif "graph" in sources:
                        good = len(found) == 1 and found[0][0] in ("likely", "possible") and "other graph" in found[0][1]
                    else:
                        good = all(confidence == "possible" for confidence, _ in found) and (bool(found) or unchecked)
                    text = f"{name.split('/')[-1]}{'' if stacks else ' without stacks'}, {' + '.join(sources) or 'nothing'}: {found}{' not checked' if unchecked else ''}"
                    print(("ok      " if good else "FAILED  ") + text)
                    failed += not good
    sys.exit(f"{failed} failed" if failed else 0)


main()
