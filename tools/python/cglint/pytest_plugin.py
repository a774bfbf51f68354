"""pytest fixture `cglint_clean`: cglint.assert_clean, which keeps the capture file of a graph that failed in the test's tmp_path.

    def test_decode(cglint_clean, decode_graph):
        cglint_clean(decode_graph, max_streams=3)
"""
import os

import pytest

from ._lint import assert_clean


@pytest.fixture
def cglint_clean(tmp_path):
    count = 0

    def check(graph_or_path, max_streams=None, **options):
        __tracebackhide__ = True
        nonlocal count
        if not isinstance(graph_or_path, (str, os.PathLike)) and "keep" not in options:
            options["keep"] = tmp_path / "graph_{}.cgl.jsonl".format(count)
            count += 1
        return assert_clean(graph_or_path, max_streams=max_streams, **options)

    return check
