"""cglint from Python: check CUDA graphs that this process holds, or recordings on disk.

    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        y = model(x)
    for finding in cglint.check(graph, max_streams=3):
        print(finding)
    cglint.assert_clean(graph, max_streams=3)          # in a test

Pure Python, 3.9 and later; the work is done by the cglint program and by libcglint_capture.so, which lie in this package (bin/), or
where CGLINT_BIN says, or where `cglint` is on PATH.
"""
from ._capture import capture
from ._lint import assert_clean, check, lint
from ._program import program, version
from ._report import CglintError, Finding, Loss, NotChecked, Report, Source

__all__ = ["CglintError", "Finding", "Loss", "NotChecked", "Report", "Source", "assert_clean", "capture", "check", "lint", "program", "version"]
