#!/usr/bin/env python3
"""Golden tests of the command line.

A case is a folder with a file `cmd`: one line of arguments to cglint, where {data} is tests/data, {case} the folder itself
and {tmp} a scratch folder. `expected` holds standard output, then `--- stderr`, then `--- exit N`. Lines of `cmd` after the
first may be `stdin FILE` or `json-schema SCHEMA` (standard output must be valid against docs/schema/SCHEMA).

usage: run.py [--update] CGLINT [CASE...]
"""
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]


def run_case(cglint: str, case: pathlib.Path, update: bool) -> str | None:
    lines = (case / "cmd").read_text().splitlines()
    with tempfile.TemporaryDirectory() as tmp:
        places = {"{data}": "tests/data", "{case}": case.relative_to(ROOT).as_posix(), "{tmp}": tmp}

        def expand(text: str) -> str:
            for key, value in places.items():
                text = text.replace(key, value)
            return text

        arguments = [expand(part) for part in shlex.split(lines[0])]
        stdin, schema = subprocess.DEVNULL, None
        for line in lines[1:]:
            word, _, value = line.partition(" ")
            if word == "stdin":
                stdin = open(ROOT / expand(value), "rb")
            elif word == "json-schema":
                schema = value
            else:
                return f"unknown line in cmd: {line}"
        environment = {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C.UTF-8"}
        for name in ("ASAN_OPTIONS", "UBSAN_OPTIONS", "TSAN_OPTIONS"):
            if name in os.environ:
                environment[name] = os.environ[name]
        result = subprocess.run([cglint, *arguments], stdin=stdin, capture_output=True, cwd=ROOT, env=environment, timeout=120)
        output = result.stdout.decode("utf-8", "replace") + "--- stderr\n" + result.stderr.decode("utf-8", "replace")
        output = output.replace(tmp, "{tmp}") + f"--- exit {result.returncode}\n"
        output = re.sub(r'("version": )"[0-9.]+"', r'\1"VERSION"', output)
    if schema is not None:
        import jsonschema

        document = json.loads((ROOT / "docs/schema" / schema).read_text())
        validator = jsonschema.validators.validator_for(document)(document)
        try:
            errors = sorted(validator.iter_errors(json.loads(result.stdout)), key=str)
        except ValueError as error:
            return f"standard output is no JSON: {error}"
        if errors:
            return f"not valid against {schema}: {errors[0].message} at {list(errors[0].absolute_path)}"
    expected = case / "expected"
    if update:
        expected.write_text(output)
        return None
    if not expected.exists():
        return "no file 'expected'; write it with --update and review it"
    wanted = expected.read_text()
    if wanted == output:
        return None
    import difflib

    return "".join(difflib.unified_diff(wanted.splitlines(True), output.splitlines(True), "expected", "actual"))


def main() -> int:
    arguments = sys.argv[1:]
    update = "--update" in arguments
    arguments = [a for a in arguments if a != "--update"]
    if not arguments:
        print(__doc__, file=sys.stderr)
        return 2
    cglint = os.path.abspath(arguments[0])
    cases = [(HERE / name) for name in arguments[1:]] or sorted(p.parent for p in HERE.rglob("cmd"))
    failures = 0
    for case in cases:
        problem = run_case(cglint, case, update)
        if problem is not None:
            failures += 1
            print(f"FAILED {case.relative_to(HERE)}\n{problem}")
    print(f"{len(cases) - failures} passed, {failures} failed")
    return 1 if failures or not cases else 0


if __name__ == "__main__":
    sys.exit(main())
