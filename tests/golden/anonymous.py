#!/usr/bin/env python3
"""Lints every rule fixture and the recordings of tests/data and reference_models a second time with NVTX removed, kernels renamed and addresses moved
(tools/dev/anonymise.py). Rules about structure, time, memory and captures must say the same. What may turn to "not checked" instead, for which
reason, and which findings may go with it, is listed in NEEDS_NAMES. Rules that take from signatures what a kernel writes may say the same with a
lower confidence.

usage: anonymous.py CGLINT [CODE]
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from typing import Callable

ROOT = pathlib.Path(__file__).resolve().parents[2]
TABLES = ROOT / "reference_models/fused_moe/configs"  # without tables CG605 looks at nothing, with or without names

# Signatures are part of mangled names, and the kernel table goes by names: without them the pointers that a kernel was given are known,
# but not what it does with them.
ACCESSES = r"the accesses of some kernels are not known \(no signature, no entry in the kernel table, not measured\)"


def not_certain(finding: dict) -> bool:
    """Certain are those that copies, fills and measured accesses prove: these do not rest on names."""
    return finding["confidence"] != "certain"


# By code: the reason that the rule must give, and which of its findings may be missing then. All other rules must have looked as before.
NEEDS_NAMES: dict[str, tuple[str, Callable[[dict], bool]]] = {
    # Which chains depend on each other is told by who writes and who reads. Of two kernels that were given one buffer nobody knows then whether
    # both read it (they can overlap) or one needs the other's result; each guess is wrong somewhere: the branches' common input, and memory
    # that a pool hands out again within a layer.
    "CG203": (ACCESSES, lambda finding: True),
    # A conflict needs a writer. What is measured, or stated by a copy, is found all the same.
    "CG401": (ACCESSES, not_certain),
    # Whether what ran before the capture is the step's or a framework's fill or copy is told by what kernels are called. What was launched
    # during the capture is found all the same.
    "CG402": (r"no kernel's name tells its part or its arguments in \d+ graphs?, .*", lambda finding: "launches_outside" in finding["evidence"]),
    # Only whether the kernel at a join needs what it joins: of all other places, and of joins of kernels that are launched programmatically
    # elsewhere, edges and launch attributes tell.
    "CG501": (ACCESSES, lambda finding: finding["evidence"].get("cause") == "join" and finding["evidence"].get("uses_what_it_joins") == "no"),
    # Whether anybody reads what a fill leaves, and whether a kernel overwrites all of it.
    "CG601": (ACCESSES, not_certain),
    # Whether a kernel writes a constant, and whether anything else writes its inputs.
    "CG602": (ACCESSES, not_certain),
    # Which kernel is a fused mixture of experts, and where its arguments have the shape.
    "CG605": (r"no fused mixture-of-experts kernel was recognised in the graph", lambda finding: True),
}

# Memory handed from graph to graph is found by reads and writes that signatures tell: CG303 says when it could not look at that, and compares the rest.
DIRECTIONS_UNKNOWN = "kernels without a signature do not tell what they read and what they write"
HAND_OVER = "nobody holds that memory any more"
MAY_BE_LESS_SURE = re.compile(r"CG30[23]")


def run(command: list) -> dict:
    result = subprocess.run(command, capture_output=True, cwd=ROOT, timeout=300, env=dict(os.environ, LC_ALL="C.UTF-8"))
    try:
        return json.loads(result.stdout)
    except ValueError:
        raise RuntimeError(f"{' '.join(map(str, command))}: no report: {result.stderr.decode()}") from None


def essence(finding: dict) -> tuple:
    """What may not depend on names: kinds of evidence that are texts hold names."""
    numbers = {key: value for key, value in finding["evidence"].items() if isinstance(value, (int, float))}
    places = [entity["id"] for entity in finding["primary"]]
    return (finding["code"], finding["severity"], finding["confidence"], finding["occurrence_count"], str(places), str(sorted(numbers.items())))


def without_confidence(finding: dict) -> tuple:
    return essence({**finding, "confidence": ""})


def compare(plain: dict, anonymous: dict, possible: Callable[[], dict]) -> str | None:
    """What differs that may not; `possible` lints the anonymous recording once more, with what is merely possible."""
    hand_over = [entry for entry in anonymous["not_checked"] if entry["code"] == "CG303" and DIRECTIONS_UNKNOWN in str(entry)]
    unchecked = {entry["code"] for entry in anonymous["not_checked"] if entry not in hand_over}
    if hand_over:  # what is not found any more is not held against it
        still = [essence(f) for f in anonymous["findings"]]
        plain = {**plain, "findings": [f for f in plain["findings"] if f["code"] != "CG303" or HAND_OVER not in f["message"] or essence(f) in still]}
    known = {entry["code"] for entry in plain["not_checked"]}
    for entry in anonymous["not_checked"]:
        code, reason = entry["code"], entry["reason"]
        if entry not in hand_over and code not in known and not (code in NEEDS_NAMES and re.fullmatch(NEEDS_NAMES[code][0], reason)):
            return f"not checked any more: {code}: {reason}"

    def may_miss(finding: dict) -> bool:
        return finding["code"] in unchecked and finding["code"] in NEEDS_NAMES and NEEDS_NAMES[finding["code"]][1](finding)

    if anonymous["errors"] or len(anonymous["inputs"]) != len(plain["inputs"]):
        return f"could not be read: {anonymous['errors']}"
    # What is less sure without names is still found, and is not surer.
    order = ["possible", "likely", "certain"]
    less_sure = [f for f in plain["findings"] if MAY_BE_LESS_SURE.fullmatch(f["code"])]
    weaker = {without_confidence(f): order.index(f["confidence"]) for f in possible()["findings"]} if less_sure else {}
    less_sure = [f for f in less_sure if weaker.get(without_confidence(f), 9) < order.index(f["confidence"])]
    plain = {**plain, "findings": [f for f in plain["findings"] if f not in less_sure]}
    gone = {without_confidence(f) for f in less_sure}
    anonymous = {**anonymous, "findings": [f for f in anonymous["findings"] if without_confidence(f) not in gone]}
    before = sorted(essence(f) for f in plain["findings"] if not may_miss(f))
    after = sorted(essence(f) for f in anonymous["findings"] if not may_miss(f))
    # What is not checked everywhere any more may be missing, but nothing may be new.
    found = [essence(f) for f in plain["findings"]]
    new = [essence(f) for f in anonymous["findings"] if essence(f) not in found]
    return None if before == after and not new else f"findings differ:\n  {before}\n  {after}\n  {new}"


def cases(only):
    for line in (ROOT / "rules/rules.def").read_text().splitlines():
        match = re.match(r"CGLINT_RULE\((CG\d+), (\w+), (\w+)\)", line)
        if not match or (only and match.group(1) != only):
            continue
        folder = ROOT / "rules" / match.group(2) / match.group(3)
        for fixture in sorted([*folder.glob("bad/*"), *folder.glob("good/*")]):
            if re.search(r"\.(cgl\.jsonl|dot|json)(\.gz)?$", fixture.name):
                arguments = fixture.with_name(fixture.name.split(".")[0] + ".args")
                yield fixture, ["--select", match.group(1), *(arguments.read_text().split() if arguments.exists() else [])]
    if not only:
        for recording in sorted((ROOT / "tests/data").rglob("*.cgl.jsonl*")) + sorted((ROOT / "tests/data/torch").glob("*.gz")) + sorted((ROOT / "reference_models").glob("*/recordings/*.gz")):
            yield recording, ["--moe-config", TABLES] if ROOT / "reference_models" in recording.parents else []


def main() -> int:
    if len(sys.argv) not in (2, 3):
        print(__doc__, file=sys.stderr)
        return 2
    cglint = os.path.abspath(sys.argv[1])
    passed = failed = 0
    with tempfile.TemporaryDirectory() as tmp:
        for path, arguments in cases(sys.argv[2] if len(sys.argv) == 3 else None):
            capture = path
            if ".cgl.jsonl" not in path.name or path.name.endswith(".zst"):
                capture = pathlib.Path(tmp) / "converted.cgl.jsonl"
                subprocess.run([cglint, "convert", path, capture], check=True, capture_output=True, cwd=ROOT, timeout=300)
            renamed = pathlib.Path(tmp) / ("anonymous.cgl.jsonl" + (".gz" if capture.name.endswith(".gz") else ""))
            done = subprocess.run([sys.executable, ROOT / "tools/dev/anonymise.py", capture, renamed], capture_output=True, text=True)
            if done.returncode != 0:  # torn recordings belong into tests that read such: what is not compared here is not shown to hold
                failed += 1
                print(f"FAILED {path.relative_to(ROOT)}: cannot be anonymised: {done.stderr.strip()[-300:]}")
                continue

            def lint(file, *more):
                return run([cglint, "lint", file, *arguments, *more, "--format", "json"])

            try:
                all_of_it = [] if "--confidence" in arguments else ["--confidence", "possible"]
                problem = compare(lint(capture), lint(renamed), lambda: lint(renamed, *all_of_it))
            except RuntimeError as error:
                problem = str(error)
            if problem is None:
                passed += 1
            else:
                failed += 1
                print(f"FAILED {path.relative_to(ROOT)}: {problem}")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or passed == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
