#!/usr/bin/env python3
"""`cglint lint` says the same, byte for byte and with the same exit code, with --jobs 1, 2 and 8: of all capture files of the project as
one file of many graphs, of a file that is checked in several rounds, and of the files themselves, several at once.

usage: jobs.py CGLINT
"""
import gzip
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
ROUNDS_OF = "reference_models/deepseek_moe/recordings/side_first.k2-tp8.b1.l8.cgl.jsonl.gz"
ROUNDS_BYTES = 30_000_000  # of text: more than one round of graphs


def text_of(path: pathlib.Path) -> bytes:
    data = path.read_bytes()
    data = gzip.decompress(data) if path.name.endswith(".gz") else data
    return data if data.endswith(b"\n") else data + b"\n"


def lint(cglint: str, arguments: list, jobs: int) -> tuple:
    everything = ["--select", "ALL", "--confidence", "possible", "--max-streams", "2"]
    command = [cglint, "lint", *arguments, "--no-progress", *everything, "--jobs", str(jobs)]
    result = subprocess.run(command, capture_output=True, cwd=ROOT, timeout=600, env=dict(os.environ, LC_ALL="C.UTF-8"))
    return result.returncode, result.stdout, result.stderr


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    cglint = os.path.abspath(sys.argv[1])
    folders = ("rules", "reference_models", "tests/data/record")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.cgl.jsonl*")]
    captures = sorted(path for path in files if path.name.endswith((".jsonl", ".jsonl.gz")))
    if len(captures) < 200:
        print(f"FAILED: only {len(captures)} capture files found")
        return 1
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        one, rounds = os.path.join(folder, "all.cgl.jsonl"), os.path.join(folder, "rounds.cgl.jsonl")
        with open(one, "wb") as out:
            for path in captures:
                out.write(text_of(path))
        with open(rounds, "wb") as out:
            segment = text_of(ROOT / ROUNDS_OF)
            for _ in range(ROUNDS_BYTES // len(segment) + 1):
                out.write(segment)
        several = [path.relative_to(ROOT).as_posix() for path in captures if "rules" in path.parts]
        for what, inputs in (("one file", [one]), ("rounds", [rounds]), ("several files", several)):
            for form, numbers in (("json", (2, 8)), ("text", (8,))):
                arguments = [*inputs, "--format", form]
                expected = lint(cglint, arguments, 1)
                if expected[0] not in (1, 2) or len(expected[1]) < 1000:
                    failed += 1
                    print(f"FAILED {what}, {form}: exit {expected[0]}, {len(expected[1])} bytes: {expected[2].decode()[:500]}")
                    continue
                for jobs in numbers:
                    if lint(cglint, arguments, jobs) != expected:
                        failed += 1
                        print(f"FAILED {what}, {form}: --jobs {jobs} differs from --jobs 1")
    print(f"{failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
