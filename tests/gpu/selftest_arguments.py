#!/usr/bin/env python3
"""cglint-selftest-streams without a GPU: its options, its help, one clear line when it cannot run.

usage: selftest_arguments.py CGLINT_SELFTEST_STREAMS
"""
import os
import subprocess
import sys
import tempfile

PROGRAM = sys.argv[1]
# (arguments, exit code, what the line on standard error says)
CASES = [
    (["--bogus"], 2, 'unknown option "--bogus"'),
    (["graphs.txt"], 2, 'unexpected argument "graphs.txt"'),
    (["--format"], 2, "--format needs a value"),
    (["--format", "xml"], 2, 'not "xml"'),
    (["--format=xml"], 2, 'not "xml"'),
    (["--show", "-1"], 2, 'not "-1"'),
    (["--show", "3x"], 2, 'not "3x"'),
    (["--output"], 2, "--output needs a value"),
    (["--output="], 2, "--output needs a file name"),
    ([], 4, "no usable GPU"),
    (["--format=json", "--show", "0"], 4, "no usable GPU"),
]


def run(arguments):
    environment = dict(os.environ, CUDA_VISIBLE_DEVICES="")  # no GPU, on any machine
    return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, env=environment, timeout=60)


failures = []
for arguments, code, text in CASES:
    done = run(arguments)
    lines = done.stderr.splitlines()
    if done.returncode != code or done.stdout or len(lines) != 1 or text not in lines[0] or not lines[0].startswith("cglint: error: selftest-streams: "):
        failures.append(f"{arguments}: exit {done.returncode}, {done.stdout!r}, {done.stderr!r}")
usage = run(["--help"])
if usage.returncode != 0 or usage.stderr or "exit codes: 0 the model holds" not in usage.stdout:
    failures.append(f"--help: exit {usage.returncode}, {usage.stdout!r}, {usage.stderr!r}")
with tempfile.NamedTemporaryFile("w+") as report:
    report.write("an older report")
    report.flush()
    run(["--output", report.name])
    report.seek(0)
    if report.read() != "an older report":
        failures.append("--output emptied a file although nothing could be measured")
print("\n".join(failures) or f"{len(CASES) + 2} cases")
sys.exit(1 if failures else 0)
