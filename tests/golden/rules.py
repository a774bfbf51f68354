#!/usr/bin/env python3
"""Lints every rule fixture with its own rule alone. A bad fixture must be reported and match its snapshot (NAME.expected, the
text report); a good one must be checked and clean. NAME.args holds further arguments.

usage: rules.py [--update] CGLINT [CODE]
"""
import json
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def main() -> int:
    update = "--update" in sys.argv
    arguments = [a for a in sys.argv[1:] if a != "--update"]
    if not arguments:
        print(__doc__, file=sys.stderr)
        return 2
    cglint = os.path.abspath(arguments[0])
    only = arguments[1] if len(arguments) > 1 else None
    environment = dict(os.environ, LC_ALL="C.UTF-8")
    passed = failed = 0
    for line in (ROOT / "rules/rules.def").read_text().splitlines():
        match = re.match(r"CGLINT_RULE\((CG\d+), (\w+), (\w+)\)", line)
        if not match or (only and match.group(1) != only):
            continue
        code, folder = match.group(1), ROOT / "rules" / match.group(2) / match.group(3)
        problems = []
        for kind in ("bad", "good"):
            fixtures = sorted(f for f in (folder / kind).glob("*") if re.search(r"\.(cgl\.jsonl|dot|json)(\.gz)?$", f.name))
            if not fixtures:
                problems.append(f"{code}: no {kind} fixture")
            for fixture in fixtures:
                name = fixture.name.split(".")[0]
                extra_file = fixture.with_name(name + ".args")
                extra = extra_file.read_text().split() if extra_file.exists() else []
                relative = fixture.relative_to(ROOT).as_posix()
                command = [cglint, "lint", relative, "--select", code, *extra]
                result = subprocess.run([*command, "--format", "json"], capture_output=True, cwd=ROOT, env=environment, timeout=300)
                try:
                    report = json.loads(result.stdout)
                except ValueError:
                    problems.append(f"{relative}: no report: {result.stderr.decode()}")
                    continue
                codes = {finding["code"] for finding in report["findings"]}
                if report["not_checked"] or report["errors"]:
                    problems.append(f"{relative}: not checked: {report['not_checked']} {report['errors']}")
                elif kind == "good" and (codes or result.returncode != 0):
                    problems.append(f"{relative}: must be clean, but: {[f['message'] for f in report['findings']]} exit {result.returncode}")
                elif kind == "bad" and codes != {code}:
                    problems.append(f"{relative}: must report {code}, reports {sorted(codes)}")
                elif kind == "bad":
                    text = subprocess.run(command, capture_output=True, cwd=ROOT, env=environment, timeout=300).stdout.decode()
                    snapshot = fixture.with_name(name + ".expected")
                    if update:
                        snapshot.write_text(text)
                    elif not snapshot.exists() or snapshot.read_text() != text:
                        problems.append(f"{relative}: differs from {snapshot.name} (run with --update and review):\n{text}")
                    else:
                        passed += 1
                    continue
                else:
                    passed += 1
        failed += len(problems)
        for problem in problems:
            print(f"FAILED {problem}")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or (passed == 0 and not update) else 0


if __name__ == "__main__":
    sys.exit(main())
