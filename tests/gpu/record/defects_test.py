#!/usr/bin/env python3
"""Lints the recordings of the planted-defect programs: each defect is found, and the twin without it has no finding.

A third word in expected.txt says what the recording lacks: `possible` (the finding is there, but below the shown confidence) or `unchecked` (the
rule says that it could not look).

usage: defects_test.py CGLINT FOLDER     FOLDER: tests/data/record/defects or faults
"""
import glob
import json
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def main():
    cglint, folder = sys.argv[1:]
    rules = {word for word in subprocess.run([cglint, "rules"], capture_output=True, text=True, check=True).stdout.split() if word.startswith("CG")}
    with open(os.path.join(folder, "expected.txt"), encoding="utf-8") as file:
        rows = [line.split() for line in file if line.strip() and not line.startswith("#")]
    expected = {row[0]: row[1] for row in rows}
    lacking = {row[0]: row[2] for row in rows if len(row) > 2}
    recorded = {os.path.basename(path).rsplit(".", 4)[0] for path in glob.glob(folder + "/*.cgl.jsonl.gz")}
    bad = [f"{name}: no recording" for name in expected if name not in recorded] + [f"{name}: nothing is expected of it" for name in recorded - set(expected)]
    found = waiting = 0
    for name, code in sorted(expected.items()):
        for variant in ("bad", "good"):
            path = os.path.join(folder, f"{name}.{variant}.cgl.jsonl.gz")
            lack = lacking.get(name, "") if variant == "bad" else ""
            confidence = ["--confidence", "possible"] if lack == "possible" else []
            done = subprocess.run([cglint, "lint", "--format", "json", path, *confidence], capture_output=True, text=True)
            if done.returncode not in (0, 1, 4):
                bad.append(f"{path}: exit code {done.returncode}: {done.stderr.strip()[:200]}")
                continue
            report = json.loads(done.stdout)
            codes = {entry["code"] for entry in (report["not_checked"] if lack == "unchecked" else report["findings"])}
            if variant == "good" and codes:
                bad.append(f"{name} without its defect: {', '.join(sorted(codes))}")
            elif variant == "bad" and code not in rules:
                waiting += 1
            elif variant == "bad" and code not in codes:
                bad.append(f"{name}: no {code}, but {', '.join(sorted(codes)) or 'nothing'}")
            else:
                found += variant == "bad"
    print("\n".join(bad) if bad else f"{found} defects found, {waiting} wait for their rule, {len(expected)} twins are clean")
    return 1 if bad or found == 0 else 0


sys.exit(main())
