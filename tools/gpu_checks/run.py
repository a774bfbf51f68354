#!/usr/bin/env python3
"""Runs all GPU checks on a machine with a GPU and writes one JSON result. Python 3 standard library only.

usage: run.py OUT.json [--commit HASH] [--budget SECONDS] [--only NAME ...] [--list]

The folder it lies in is self-contained (pack.py makes it): bin/ has the programs, data/ the recorded data, checks.d/ the checks.

A check is a file checks.d/NN_name.py or .sh, run in order of its number with
  CGLINT_BIN     folder of the programs          CGLINT_DATA    folder of the recorded data
  CGLINT_OUT     an empty folder for its files   CGLINT_CUPTI   path of a CUPTI library, where one was found
Its last line on stdout is {"status": "pass" | "fail" | "skipped", "reason": "...", "numbers": {...}}; anything else, a crash or
running past its time is a fail. A line "# seconds: N" in its head sets its time (default 60).

Exit codes: 0 no check failed, 1 some failed, 2 this machine cannot run them (no GPU).
"""
import argparse
import datetime
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))


def gpu_facts():
    """GPU name, driver, memory; None without a GPU."""
    try:
        text = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"],
                              capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    rows = [line.split(", ") for line in text.splitlines() if line.count(", ") == 2]
    if not rows:
        return None
    return {"gpu": rows[0][0], "driver": rows[0][1], "memory": rows[0][2], "gpu_count": len(rows)}


def find_cupti():
    """A CUPTI 13 (or 12) library: the loader's own, the toolkit's, a Python package's."""
    places = ["/usr/local/cuda*/extras/CUPTI/lib64", "/usr/local/cuda*/lib64", "/usr/local/cuda*/lib", "/usr/local/cuda*/targets/*/lib"]
    for folder in list(sys.path) + glob.glob("/opt/*/.venv/lib/python3*/site-packages"):
        if folder:
            places += [folder + "/nvidia/cu1*/lib", folder + "/nvidia/cuda_cupti/lib"]
    places.append(os.path.join(HERE, "lib"))
    for major in ("13", "12"):
        for place in places:
            found = sorted(glob.glob(f"{place}/libcupti.so.{major}"))
            if found:
                return found[0]
    return ""


def declared_seconds(path):
    with open(path, encoding="utf-8") as file:
        match = re.search(r"^# seconds: (\d+)$", "".join(file.readlines()[:10]), re.M)
    return int(match.group(1)) if match else 60


def run_check(path, env, limit):
    """One check: its result object."""
    name = re.sub(r"^\d+_", "", os.path.splitext(os.path.basename(path))[0])
    out = tempfile.mkdtemp(prefix=f"check_{name}_")
    command = [sys.executable, path] if path.endswith(".py") else ["bash", path]
    start = time.monotonic()
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=limit, env=dict(env, CGLINT_OUT=out), cwd=out)
        lines = done.stdout.strip().splitlines()
        try:
            result = json.loads(lines[-1]) if lines else {}
        except json.JSONDecodeError:
            result = {}
        if not isinstance(result, dict) or result.get("status") not in ("pass", "fail", "skipped"):
            tail = (done.stderr.strip().splitlines() or lines or ["no output"])[-1]
            result = {"status": "fail", "reason": f"gave no result, exit code {done.returncode}: {tail[:300]}"}
    except subprocess.TimeoutExpired:
        result = {"status": "fail", "reason": f"ran past {limit} s"}
    shutil.rmtree(out, ignore_errors=True)
    ordered = {"name": name, "status": result["status"], "seconds": round(time.monotonic() - start, 1)}
    if result.get("reason"):
        ordered["reason"] = result["reason"]
    ordered["numbers"] = result.get("numbers", {})
    return ordered


def main():
    parser = argparse.ArgumentParser(description="Run the GPU checks.")
    parser.add_argument("out", nargs="?", default="gpu_checks.json")
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--budget", type=float, default=3600, help="seconds for all checks together")
    parser.add_argument("--only", nargs="*", default=None)
    parser.add_argument("--list", action="store_true")
    arguments = parser.parse_args()
    checks = sorted(glob.glob(os.path.join(HERE, "checks.d", "[0-9]*_*.py")) + glob.glob(os.path.join(HERE, "checks.d", "[0-9]*_*.sh")))
    if arguments.list:
        print("\n".join(os.path.basename(check) for check in checks))
        return 0
    facts = gpu_facts()
    if facts is None:
        print("run.py: no GPU here (nvidia-smi does not answer)", file=sys.stderr)
        return 2
    env = dict(os.environ, CGLINT_BIN=os.path.join(HERE, "bin"), CGLINT_DATA=os.path.join(HERE, "data"))
    cupti = os.environ.get("CGLINT_CUPTI") or find_cupti()
    if cupti:
        env["CGLINT_CUPTI"] = cupti
    result = {"schema": "cglint-gpu-checks/1", "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
              "commit": arguments.commit, **facts, "checks": []}
    start = time.monotonic()
    for check in checks:
        name = re.sub(r"^\d+_", "", os.path.splitext(os.path.basename(check))[0])
        if arguments.only is not None and name not in arguments.only:
            continue
        left = arguments.budget - (time.monotonic() - start)
        if left < 5:
            entry = {"name": name, "status": "skipped", "seconds": 0, "reason": "the time for all checks was spent", "numbers": {}}
        else:
            entry = run_check(check, env, min(left, declared_seconds(check)))
        result["checks"].append(entry)
        print(f"{entry['status']:8s}{entry['name']:28s}{entry['seconds']:7.1f} s  {entry.get('reason', '')}", flush=True)
        # Written after every check: what was done is kept if the machine goes away.
        with open(arguments.out, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)
            file.write("\n")
    failed = sum(entry["status"] == "fail" for entry in result["checks"])
    print(f"{len(result['checks'])} checks, {failed} failed: {facts['gpu']}, driver {facts['driver']}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
