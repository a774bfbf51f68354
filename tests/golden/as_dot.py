#!/usr/bin/env python3
"""The fixtures of CG102 once more, as DOT files: nodes, edges and creation order are all that the prediction needs, so the finding
must be the same.

usage: as_dot.py CGLINT
"""
import json
import pathlib
import subprocess
import sys
import tempfile

CGLINT = sys.argv[1]
FOLDER = pathlib.Path(__file__).resolve().parents[2] / "rules/streams/join_follows_side_branch"
SAME = ("streams_predicted", "width", "streams_in_better_order", "blocks_to_move", "fresh_branches")


def findings(path):
    done = subprocess.run([CGLINT, "lint", "--select", "CG102", "--format", "json", str(path)], capture_output=True, text=True, timeout=120)
    if done.returncode not in (0, 1):
        return f"exit {done.returncode}: {done.stderr}"
    return [({name: finding["evidence"][name] for name in SAME if name in finding["evidence"]},
             [edit["nodes"] for edit in finding["fix"].get("edits", [])]) for finding in json.loads(done.stdout)["findings"]]


failures, compared = [], 0
with tempfile.TemporaryDirectory() as folder:
    for fixture in sorted(FOLDER.glob("*/*.cgl.jsonl")):
        dot = pathlib.Path(folder) / (fixture.name.split(".")[0] + ".dot")
        subprocess.run([CGLINT, "convert", str(fixture), str(dot)], check=True, capture_output=True, timeout=120)
        wanted, found = findings(fixture), findings(dot)
        bad = fixture.parent.name == "bad"
        if wanted != found or not isinstance(found, list) or bool(found) != bad:
            failures.append(f"{fixture.name}: {wanted}\n  as DOT: {found}")
        compared += 1
print("\n".join(failures) or f"{compared} fixtures")
sys.exit(1 if failures or compared < 15 else 0)
