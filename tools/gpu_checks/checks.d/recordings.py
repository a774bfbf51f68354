"""Helpers of the recorder's checks: running programs under the recorder, reading what it wrote, and running a check's parts."""
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import time

import graph_lines as g

BIN, OUT = os.environ["CGLINT_BIN"], os.environ["CGLINT_OUT"]
PROGRAMS = os.path.join(os.environ["CGLINT_DATA"], "record_programs")
RECORD, CGLINT = os.path.join(BIN, "cglint-record"), os.path.join(BIN, "cglint")
PYTHON = shutil.which("python3") or sys.executable


def run(command, timeout=120, **options):
    try:
        return subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=timeout, **options)
    except subprocess.TimeoutExpired as error:
        return subprocess.CompletedProcess(command, 124, (error.stdout or b"").decode(errors="replace"), "ran past its time")


def record(folder, command, *options, timeout=120, **more):
    """Runs the command under the recorder, which writes into the folder; `more` is for subprocess.run."""
    os.makedirs(folder, exist_ok=True)
    return run([RECORD, "-o", folder + "/", *options, "--", *command], timeout, **more)


def lines_of(path):
    """The complete records of a capture file, and whether the file is whole."""
    records, whole = [], False
    with open(path, "rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                return records, False
            records.append(json.loads(line))
            whole = records[-1]["type"] == "end"
    return records, whole


def files_of(folder):
    return sorted(glob.glob(folder + "/*.cgl.jsonl"))


def run_parts(parts, need_torch):
    """Runs the parts of a check, name -> function that returns {"good": bool, ...}, and prints the check's result. What is in the file
    CGLINT_RECORD_STATE is not run again; CGLINT_RECORD_PARTS names the parts to run, all if it is empty."""
    if not os.path.exists(os.path.join(BIN, "libcglint_record.so")):
        g.result("skipped", "the recorder was not built")
        return
    state, path = {}, os.environ.get("CGLINT_RECORD_STATE")
    if path and os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            state = json.load(file)
    wanted = [name for name in re.split(r"[, ]+", os.environ.get("CGLINT_RECORD_PARTS", "")) if name] or list(parts)
    has_torch = bool(need_torch & set(wanted)) and run([PYTHON, "-c", "import torch"]).returncode == 0
    for name in wanted:
        if name in state:
            continue
        begin = time.monotonic()
        try:
            state[name] = parts[name]() if has_torch or name not in need_torch else {"good": True, "skipped": "no PyTorch here"}
        except Exception as error:  # one part must not take the others along
            state[name] = {"good": False, "error": f"{type(error).__name__}: {error}"}
        state[name]["seconds"] = round(time.monotonic() - begin, 1)
        if path:
            with open(path + ".new", "w", encoding="utf-8") as file:
                json.dump(state, file)
            os.replace(path + ".new", path)
    failed = [name for name in wanted if not state[name]["good"]]
    skipped = [f"{name} ({state[name]['skipped']})" for name in wanted if "skipped" in state[name]]
    reason = "; ".join(text for text in ("parts that failed: " + ", ".join(failed) if failed else "", "skipped: " + ", ".join(skipped) if skipped else "") if text)
    g.result("fail" if failed else "pass", reason, **{name: state[name] for name in wanted})
