#!/usr/bin/env python3
"""tools/gpu_checks/pack.py: the folder that it makes holds every program that a check names, from bin/ or from gpu_checks of the build.

usage: pack_test.py BUILD_BIN
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACK = ROOT / "tools/gpu_checks/pack.py"
BIN = pathlib.Path(sys.argv[1]).resolve()
OF_USERS = {"cglint", "cglint-capture", "cglint-record", "cglint-model-runner", "cglint-selftest-streams", "cglint-moe-tune", "libcglint_record.so", "libcglint_capture.so"}


def named():
    """What the checks take from CGLINT_BIN."""
    names = set()
    for path in sorted((ROOT / "tools/gpu_checks").rglob("*.py")):
        names |= set(re.findall(r"""\((?:BIN|os\.environ\["CGLINT_BIN"\]), "([^"]+)"\)""", path.read_text()))
    return names


def pack(source, target):
    return subprocess.run([sys.executable, PACK, source, target], capture_output=True, text=True, timeout=100)


failures = []
names = named()
if len(names) < 12:
    failures.append(f"the checks name {sorted(names)} only: does this test read them right?")
with tempfile.TemporaryDirectory() as folder:
    build = pathlib.Path(folder) / "build"
    (build / "bin").mkdir(parents=True)
    done = pack(build / "bin", f"{folder}/none")
    if done.returncode != 2 or "gpu_checks: no such folder" not in done.stderr:
        failures.append(f"a build without the tests: exit {done.returncode}, {done.stderr}")
    # The names of the real build, without its hundreds of megabytes.
    (build / "gpu_checks").mkdir(parents=True)
    for part, real in (("bin", BIN), ("gpu_checks", BIN.parent / "gpu_checks")):
        for path in real.iterdir():
            if path.is_file():
                (build / part / path.name).write_text(part)
    done = pack(build / "bin", f"{folder}/out")
    packed = {path.name for path in pathlib.Path(folder, "out/bin").iterdir()}
    if done.returncode != 0 or not (names | OF_USERS) <= packed:
        failures.append(f"exit {done.returncode}, {done.stderr}, missing: {sorted((names | OF_USERS) - packed)}")
    of_checks = {path.name for path in (build / "gpu_checks").iterdir()}
    if of_checks & OF_USERS or not OF_USERS <= {path.name for path in (build / "bin").iterdir()}:
        failures.append(f"programs of users are not in bin/: {sorted(OF_USERS - {path.name for path in (build / 'bin').iterdir()})}")
    if not names - OF_USERS <= of_checks:
        failures.append(f"programs of checks are not in gpu_checks: {sorted(names - OF_USERS - of_checks)}")
    if not os.path.exists(f"{folder}/out/run.py") or not os.path.isdir(f"{folder}/out/data/record_programs"):
        failures.append("run.py or the recorded programs were not packed")
print("\n".join(failures) or f"{len(names)} programs")
sys.exit(1 if failures else 0)
