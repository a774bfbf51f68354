#!/usr/bin/env python3
"""Runs the C test, and lints what it wrote. usage: capture_api_test.py CAPTURE_API_TEST CGLINT"""
import json
import subprocess
import sys
import tempfile


def check(good, text):
    if not good:
        sys.exit(f"FAILED: {text}")


program, cglint = sys.argv[1:]
with tempfile.TemporaryDirectory() as folder:
    subprocess.run([program, folder], check=True)

    def lint(name, *options):
        done = subprocess.run([cglint, "lint", "--format", "json", *options, f"{folder}/{name}"], capture_output=True, text=True)
        report = json.loads(done.stdout)
        check(report["errors"] == [] and report["inputs"][0]["losses"] == [], done.stdout)
        return report

    side = lint("deeper/side_first.cgl.jsonl", "--max-streams", "3")
    graph = side["inputs"][0]["graphs"][0]
    check(graph["name"] == 'decode "8"' and graph["nodes"] == 31 and graph["edges"] == 41, f"{graph}")
    check([f["code"] for f in side["findings"] if f["code"] == "CG102"] == ["CG102"] and side["exit_code"] == 1, f"{side['findings']}")
    check(not any("capture_streams" in f["rests_on"] for f in side["findings"]), "no capture stream is known")
    main = lint("main_first.cgl.jsonl", "--max-streams", "3")
    check(main["findings"] == [] and main["exit_code"] == 0 and main["inputs"][0]["graphs"][0]["streams_predicted"] == 2, f"{main}")
