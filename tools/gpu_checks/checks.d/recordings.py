"""Helpers of the recorder's checks: running programs under the recorder, and reading what it wrote."""
import glob
import json
import os
import shutil
import subprocess
import sys

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
