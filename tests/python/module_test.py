#!/usr/bin/env python3
"""The Python module on recordings, on fake torch graphs, and on graphs of a played driver.

usage: module_test.py BIN [PLAYED_GRAPH_LIBRARY]
"""
import ctypes
import os
import pathlib
import stat
import sys
import tempfile
import types

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools/python"))
SIDE_FIRST = ROOT / "tests/data/record/torch_side_first.cgl.jsonl.gz"
MAIN_FIRST = ROOT / "tests/data/record/torch_main_first.cgl.jsonl.gz"


def check(good, text):
    if not good:
        sys.exit(f"FAILED: {text}")


def fails(kind, function, *parts):
    try:
        function()
    except kind as error:
        check(all(part in str(error) for part in parts), f"{parts} in: {error}")
        return str(error)
    sys.exit(f"FAILED: no {kind.__name__} with {parts}")


os.environ["CGLINT_BIN"] = sys.argv[1]
import cglint  # noqa: E402  (after the variable that says where the program is)

Error = cglint.CglintError

# --- recordings
report = cglint.lint(SIDE_FIRST, select="CG102")
check(isinstance(report, list) and [finding.code for finding in report] == ["CG102"] and report.exit_code == 1 and not report.is_clean, f"{report}")
finding = report[0]
check(finding.slug == "join-follows-side-branch" and finding.severity == "warning" and finding.confidence == "likely" and finding.fix and len(finding.fingerprint) == 16, f"{finding}")
check(finding.sources[0].file.endswith("torch_moe.py") and finding.sources[0].line > 0 and finding.sources[0].function == "forward", f"{finding.sources}")
check(finding.evidence["streams_predicted"] == finding.raw["evidence"]["streams_predicted"] and finding.occurrences == finding.raw["occurrence_count"], f"{finding}")
check(str(finding).startswith(f"{finding.sources[0].file}:{finding.sources[0].line} (forward): CG102 "), str(finding))
check(finding == cglint.lint(str(SIDE_FIRST), select=["CG102"])[0], "the same each time")
clean = cglint.lint(MAIN_FIRST, select=["CG1"], max_streams=3)
check(clean == [] and clean.is_clean and clean.exit_code == 0 and "CG102" in clean.rules_checked, f"{clean}")
fails(cglint.CglintError, lambda: cglint.lint(SIDE_FIRST, ignore="ALL"), "no rule is left")
both = cglint.lint(SIDE_FIRST, MAIN_FIRST, select=["CG102", "CG103"], max_streams=2)
check({f.code for f in both} == {"CG102", "CG103"}, f"{both}")
check(cglint.lint(SIDE_FIRST, select="CG102", fail_on="error").is_clean, "a warning does not fail then")
check(len(cglint.lint(SIDE_FIRST, select="CG102", confidence="certain")) == 0, "below the confidence")
check(cglint.lint(SIDE_FIRST, select="CG102", arguments=["--exit-zero"]).exit_code == 0, "the report's code is the program's")
# Not checked is not clean.
dot = ROOT / "tests/data/torch/torch_alt_first.dot.gz"
asked = cglint.lint(dot, select="CG301")
check(asked == [] and not asked.is_clean and asked.exit_code == 4 and any(item.code == "CG301" and item.requested and item.missing for item in asked.not_checked), f"{asked.not_checked}")
fails(AssertionError, lambda: cglint.assert_clean(dot, select="CG301"), "not everything could be checked", "CG301 not checked")
check(cglint.assert_clean(str(MAIN_FIRST), max_streams=3, select="CG1").is_clean, "a path")
fails(AssertionError, lambda: cglint.assert_clean(SIDE_FIRST, select="CG102"), "1 finding", "torch_moe.py:", "CG102", "fix: ")
# A file that was cut short.
torn = cglint.lint(ROOT / "tests/data/record/killed.cgl.jsonl.gz")
check(torn.exit_code != 0 and any("end record" in loss.what for loss in torn.losses) and "end record" in torn.text(), f"{torn.losses}")

# --- wrong use
fails(Error, lambda: cglint.lint(), "no path")
fails(Error, lambda: cglint.lint("/nowhere/a.dot"), "/nowhere/a.dot")
fails(Error, lambda: cglint.lint(SIDE_FIRST, select="CG999"), "CG999")
fails(Error, lambda: cglint.lint(SIDE_FIRST, fail_on="sometimes"), "sometimes")
fails(Error, lambda: cglint.lint(SIDE_FIRST, options={"CG101.nothing": 1}), "CG101")
with tempfile.TemporaryDirectory() as folder:
    bad = pathlib.Path(folder) / "-bad.dot"
    bad.write_text("digraph { a -> ")
    here = os.getcwd()
    os.chdir(folder)
    fails(Error, lambda: cglint.lint("-bad.dot"), "-bad.dot")
    os.chdir(here)

    # --- where the program is
    os.environ["CGLINT_BIN"] = folder
    fails(Error, lambda: cglint.lint(SIDE_FIRST), folder)
    os.environ["CGLINT_BIN"] = sys.argv[1] + "/cglint"
    check(cglint.lint(MAIN_FIRST, select="CG102") == [], "the program itself")
    del os.environ["CGLINT_BIN"]
    path = os.environ.get("PATH", "")
    os.environ["PATH"] = folder
    fails(Error, cglint.program, "CGLINT_BIN")
    os.environ["PATH"] = sys.argv[1]
    check(os.path.realpath(cglint.program()) == os.path.realpath(sys.argv[1] + "/cglint"), "on PATH")
    os.environ["PATH"] = path
    # A program that crashes, and one of another time.
    fake = pathlib.Path(folder) / "cglint"
    for text, part in (("echo broken >&2; exit 3", "broken"), ("echo '{\"format\": \"cglint-report\", \"format_version\": \"2.0\"}'", "2.0"), ("echo '[1'", "no report")):
        fake.write_text("#!/bin/sh\n" + text + "\n")
        fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
        os.environ["CGLINT_BIN"] = folder
        fails(Error, lambda: cglint.lint(SIDE_FIRST), part)
    os.environ["CGLINT_BIN"] = sys.argv[1]
check(cglint.version().count(".") == 2, cglint.version())


# --- graphs
class TorchGraph:
    """What the module sees of a torch.cuda.CUDAGraph."""

    def __init__(self, handle, error=None):
        self.handle, self.error = handle, error

    def capture_begin(self):
        pass

    def raw_cuda_graph(self):
        if self.error:
            raise RuntimeError(self.error)
        return self.handle


class OldTorchGraph:
    def capture_begin(self):
        pass


class CudaPythonGraph:
    def __init__(self, handle):
        self.handle = handle

    def __int__(self):
        return self.handle


unkept = TorchGraph(0, "You cannot access the raw cudaGraph_t instance unless CUDAGraph was initialized with keep_graph=true\nException raised from ...")
message = fails(Error, lambda: cglint.check(unkept), "keep_graph=True", "You cannot access")
check("\n" not in message, message)
fails(Error, lambda: cglint.check(OldTorchGraph()), "keep_graph=True", "raw_cuda_graph")
for nothing in (None, "decode", 0, -1, 1.5, True, object(), ctypes.c_void_p(None), TorchGraph(0)):
    fails(Error, lambda nothing=nothing: cglint.capture(nothing, "/tmp/never.cgl.jsonl"), "not a graph")

# --- the pytest fixture, with what pytest would hand in
sys.modules["pytest"] = types.SimpleNamespace(fixture=lambda function: function)
from cglint import pytest_plugin  # noqa: E402

if len(sys.argv) == 2:
    fails(Error, lambda: cglint.capture(0x1000, "/tmp/never.cgl.jsonl"), "libcglint_capture.so")
    sys.exit(0)

played = ctypes.CDLL(sys.argv[2]).played_graph
played.restype = ctypes.c_uint64
side, main = played(6, 1), played(6, 0)
with tempfile.TemporaryDirectory() as folder:
    folder = pathlib.Path(folder)
    for graph in (TorchGraph(side), CudaPythonGraph(side), side, ctypes.c_void_p(side)):
        report = cglint.check(graph, max_streams=3, select=["CG102", "CG103"], name="decode_8")
        check(sorted(f.code for f in report) == ["CG102", "CG103"] and report[0].graph == "decode_8" and report.exit_code == 1, f"{report}")
    check([f.code for f in cglint.check(TorchGraph(side), 3, ["CG102", "CG103"], "CG102")] == ["CG103"], "ignored")
    fails(Error, lambda: cglint.check(TorchGraph(side), 3, ignore=["CG103"]), "contradicts")
    kept = folder / "kept.cgl.jsonl"
    check(cglint.check(main, max_streams=3, select=["CG102", "CG103"], keep=kept).is_clean and kept.stat().st_size > 0, "kept")
    fails(Error, lambda: cglint.capture(main, kept), "kept.cgl.jsonl")
    check(cglint.capture(TorchGraph(main), folder / "other.cgl.jsonl") == str(folder / "other.cgl.jsonl"), "the path")
    check(cglint.lint(folder / "other.cgl.jsonl", select="CG102").is_clean, "what was written")
    fails(Error, lambda: cglint.capture(0x7777777, folder / "none.cgl.jsonl"), "cuGraphGetNodes")
    check(cglint.assert_clean(TorchGraph(main), max_streams=3).is_clean, "clean")
    fails(AssertionError, lambda: cglint.assert_clean(TorchGraph(side), max_streams=3), "CG102", "CG103")
    clean = pytest_plugin.cglint_clean(folder)
    check(clean(TorchGraph(main), max_streams=3).is_clean and (folder / "graph_0.cgl.jsonl").exists(), "the fixture")
    fails(AssertionError, lambda: clean(TorchGraph(side), max_streams=3), "CG102")
    check((folder / "graph_1.cgl.jsonl").exists() and clean(MAIN_FIRST, select="CG102").is_clean, "kept for a look")
