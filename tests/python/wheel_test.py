#!/usr/bin/env python3
"""The wheel: contents, truth of its tag, and what runs after it was installed into a fresh environment without a network.

usage: wheel_test.py BIN [PLAYED_GRAPH_LIBRARY]
"""
import base64
import csv
import hashlib
import io
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / "tools/python/build_wheel.py"
RECORDING = ROOT / "tests/data/record/torch_side_first.cgl.jsonl.gz"


def check(good, text):
    if not good:
        sys.exit(f"FAILED: {text}")


def run(*words, code=0, **options):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, **options)
    check(done.returncode == code, f"{words}: {done}")
    return done


bin_folder, has_cuda = pathlib.Path(sys.argv[1]), len(sys.argv) > 2
with tempfile.TemporaryDirectory() as folder:
    folder = pathlib.Path(folder)
    options = [] if has_cuda else ["--no-cuda"]
    wheel = pathlib.Path(run(sys.executable, BUILD, bin_folder, "-o", folder / "one", *options).stdout.strip())
    again = pathlib.Path(run(sys.executable, BUILD, bin_folder, "-o", folder / "two", *options).stdout.strip())
    check(wheel.name == again.name and wheel.read_bytes() == again.read_bytes(), "the same input, the same bytes")
    name = re.fullmatch(r"cglint-([0-9.]+)-py3-none-manylinux_2_([0-9]+)_x86_64\.whl", wheel.name)
    check(name is not None, wheel.name)

    # The record holds for every file, and the tag for every binary: readelf is asked, not the tool that made the wheel.
    newest = (0,)
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        info = f"cglint-{name[1]}.dist-info"
        rows = {row[0]: row[1:] for row in csv.reader(io.StringIO(archive.read(f"{info}/RECORD").decode()))}
        check(sorted(rows) == sorted(names) and names[-1] == f"{info}/RECORD", "the record")
        for entry in names:
            data = archive.read(entry)
            if entry != f"{info}/RECORD":
                digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
                check(rows[entry] == [f"sha256={digest}", str(len(data))], entry)
            if data[:4] == b"\x7fELF":
                (folder / "elf").write_bytes(data)
                needed = run("readelf", "-W", "--version-info", folder / "elf").stdout
                newest = max([newest, *(tuple(int(part) for part in found.split(".")) for found in re.findall(r"Name: GLIBC_([0-9.]+)", needed))])
        check(newest[:2] == (2, int(name[2])), f"needs glibc {newest}, tag {wheel.name}")
        check(archive.read(f"{info}/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes(), "the licence")
        expected = {"cglint/__init__.py", "cglint/bin/cglint", f"{info}/METADATA", f"{info}/WHEEL", f"{info}/entry_points.txt"}
        if has_cuda:
            expected |= {"cglint/bin/cglint-record", "cglint/bin/libcglint_record.so", "cglint/bin/libcglint_capture.so",
                         "cglint/bin/cglint_python_helper/sitecustomize.py", "cglint/include/cglint/capture.h"}
        check(expected <= set(names), f"{expected - set(names)}")

    # A fresh environment, nothing of this repository on its path.
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "CGLINT"))}
    run(sys.executable, "-m", "venv", folder / "env", env=clean)
    python = folder / "env/bin/python"
    run(python, "-m", "pip", "install", "--no-index", "--no-deps", "--disable-pip-version-check", "--quiet", wheel, env=clean, cwd=folder)
    clean["PATH"] = f"{folder}/env/bin:/usr/bin:/bin"
    program = folder / "env/bin/cglint"
    check(run(program, "--version", env=clean, cwd=folder).stdout.split()[-1] == name[1], "cglint --version")
    check("CG102" in run(program, "lint", "--select", "CG102", RECORDING, code=1, env=clean, cwd=folder).stdout, "cglint lint")
    check("CG102" in run(python, "-m", "cglint", "lint", "--select", "CG102", RECORDING, code=1, env=clean, cwd=folder).stdout, "python -m cglint")
    script = f'''
import cglint, os
assert os.path.realpath(cglint.__file__).startswith({os.path.realpath(folder)!r}), cglint.__file__
assert cglint.program().startswith(os.path.dirname(cglint.__file__)), cglint.program()
report = cglint.lint({str(RECORDING)!r}, select="CG102")
print(report[0].code, report[0].sources[0].function, cglint.version())
'''
    check(run(python, "-c", script, env=clean, cwd=folder).stdout.split() == ["CG102", "forward", name[1]], "import cglint")
    if has_cuda:
        # The graph library in the environment, with a played driver in the process.
        script = f'''
import ctypes, cglint
played = ctypes.CDLL({sys.argv[2]!r}).played_graph
played.restype = ctypes.c_uint64
print([finding.code for finding in cglint.check(played(6, 1), max_streams=3, select=["CG102", "CG103"])])
'''
        check(run(python, "-c", script, env=clean, cwd=folder).stdout == "['CG102', 'CG103']\n", "cglint.check")
        done = run(program, "record", "--", "sh", "-c", 'test -r "$CUDA_INJECTION64_PATH" && test -r "${PYTHONPATH%%:*}/sitecustomize.py"', env=clean, cwd=folder)
        check(done.stderr.count("\n") == 1 and "nothing was written" in done.stderr, done.stderr)
    run(python, "-m", "pip", "uninstall", "--yes", "--quiet", "--disable-pip-version-check", "cglint", env=clean, cwd=folder)
    check(not program.exists(), "uninstalled")
    # What cannot be true is refused.
    done = run(sys.executable, BUILD, folder, "-o", folder / "three", code=1)
    check("cglint" in done.stderr and "Traceback" not in done.stderr, done.stderr)
