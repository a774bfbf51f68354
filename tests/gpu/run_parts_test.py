#!/usr/bin/env python3
"""The parts of a GPU check (tools/gpu_checks/checks.d/recordings.py, run_parts), without a GPU: what runs, what is kept, what the result says.

usage: run_parts_test.py
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

CHECKS = pathlib.Path(__file__).resolve().parents[2] / "tools/gpu_checks/checks.d"
PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
import recordings

def good():
    print("ran good", file=sys.stderr)
    return {"good": True, "count": 3}

def bad():
    return {"good": False}

def breaks():
    raise ValueError("no such thing")

def elsewhere():
    return {"good": True, "skipped": "not built"}

recordings.PYTHON = "false"  # has no PyTorch
recordings.run_parts({"good": good, "bad": bad, "breaks": breaks, "elsewhere": elsewhere, "needs": good}, {"needs"})
"""
failures = []


def run(folder, **environment):
    env = {"PATH": os.environ["PATH"], "CGLINT_BIN": str(folder), "CGLINT_DATA": str(folder), "CGLINT_OUT": str(folder), "PYTHONDONTWRITEBYTECODE": "1", **environment}
    done = subprocess.run([sys.executable, "-c", PROGRAM, CHECKS], capture_output=True, text=True, env=env, timeout=60)
    if done.returncode != 0:
        failures.append(done.stderr)
        return {"status": "", "reason": "", "numbers": {}}, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


def check(good, what):
    if not good:
        failures.append(str(what))


with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    result, _ = run(folder)
    check(result["status"] == "skipped" and "not built" in result["reason"], result)
    (folder / "libcglint_record.so").write_text("")
    result, ran = run(folder)
    check(result["status"] == "fail" and result["reason"] == "parts that failed: bad, breaks; skipped: elsewhere (not built), needs (no PyTorch here)", result)
    check(result["numbers"]["breaks"]["error"] == "ValueError: no such thing" and result["numbers"]["good"]["count"] == 3 and "seconds" in result["numbers"]["needs"], result)
    check(ran.count("ran good") == 1, "what needs PyTorch ran without it")
    state = folder / "state"
    for parts, wanted, runs in (("good", ["good"], 1), ("elsewhere, good", ["elsewhere", "good"], 0)):
        result, ran = run(folder, CGLINT_RECORD_PARTS=parts, CGLINT_RECORD_STATE=str(state))
        check(result["status"] == "pass" and list(result["numbers"]) == wanted and ran.count("ran good") == runs, f"{parts}: {result} {ran}")
    check(sorted(json.loads(state.read_text())) == ["elsewhere", "good"], state.read_text())
print("\n".join(failures) or "good")
sys.exit(1 if failures else 0)
