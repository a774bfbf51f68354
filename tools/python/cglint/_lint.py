"""Running the linter, and reading what it says."""
import json
import os
import subprocess
import tempfile

from ._capture import capture
from ._program import program
from ._report import CglintError, Report, first_error


def _list(option, value):
    if value is None:
        return []
    if isinstance(value, str):
        value = [value]
    return [option + "=" + ",".join(value)]  # as two words, the words after it would be values too


def _arguments(max_streams, select, ignore, fail_on, confidence, options, fail_on_unchecked, arguments):
    words = []
    if max_streams is not None:
        words.append("--max-streams={}".format(int(max_streams)))
    words += _list("--select", select) + _list("--ignore", ignore)
    if fail_on is not None:
        words.append("--fail-on=" + fail_on)
    if confidence is not None:
        words.append("--confidence=" + confidence)
    for key, value in (options or {}).items():
        words.append("--option={}={}".format(key, value))
    if fail_on_unchecked:
        words.append("--fail-on-unchecked")
    return words + [os.fspath(word) for word in arguments]


def _run(files, words):
    # "./": a name that begins with a dash is a file all the same.
    names = [name if os.path.isabs(name) else os.path.join(".", name) for name in files]
    done = subprocess.run([program(), "lint", "--format", "json", "--no-progress"] + words + ["--"] + names, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE)
    error = done.stderr.decode("utf-8", "replace").strip()
    try:
        document = json.loads(done.stdout)
    except ValueError:
        raise CglintError(error or "cglint ended with {} and no report".format(done.returncode)) from None
    if document.get("format") != "cglint-report" or not str(document.get("format_version", "")).startswith("1."):
        raise CglintError("this module does not know report version {} of {}".format(document.get("format_version"), program()))
    if document["exit_code"] in (2, 3):
        raise CglintError(first_error(document) or error or "cglint ended with {}".format(document["exit_code"]))
    return Report(document)


def lint(*paths, max_streams=None, select=None, ignore=None, fail_on=None, confidence=None, options=None, fail_on_unchecked=False, arguments=()):
    """Checks files or folders: DOT dumps, traces, capture files. Returns a Report.

    max_streams: stream budget per graph. select, ignore: codes, prefixes, names or families, one or a list. fail_on: lowest severity
    for exit code 1 ("info", "warning", "error", "never"). confidence: lowest that is reported ("possible", "likely", "certain").
    options: rule options, {"CG101.limit": 4}. fail_on_unchecked: exit code 4 if any selected rule could not look. arguments: further
    words for `cglint lint`. Raises CglintError for wrong use and for files that cannot be read.
    """
    if not paths:
        raise CglintError("nothing to lint: no path was given")
    words = _arguments(max_streams, select, ignore, fail_on, confidence, options, fail_on_unchecked, arguments)
    return _run([os.fspath(path) for path in paths], words)


def check(graph, max_streams=None, select=None, ignore=None, *, name=None, keep=None, **lint_options):
    """Checks a graph that this process holds; see capture() for what can be given. Returns a Report, which is a list of findings.

    keep: a path that the capture file stays at; otherwise it is gone when this returns. Other options are those of lint().
    """
    with tempfile.TemporaryDirectory(prefix="cglint-") as folder:
        path = os.fspath(keep) if keep is not None else os.path.join(folder, "graph.cgl.jsonl")
        capture(graph, path, name)
        return lint(path, max_streams=max_streams, select=select, ignore=ignore, **lint_options)


def assert_clean(graph_or_path, max_streams=None, **options):
    """AssertionError with the findings, their lines and fixes, unless `graph_or_path` is clean; what was asked for and could not be
    checked, and input that was lost, fail too. A str or os.PathLike is a recording on disk, anything else a graph; options are those
    of lint() or check(). Returns the Report."""
    __tracebackhide__ = True
    function = lint if isinstance(graph_or_path, (str, os.PathLike)) else check
    report = function(graph_or_path, max_streams=max_streams, **options)
    if not report.is_clean:
        raise AssertionError("cglint: {}\n{}".format(_summary(report), report.text()))
    return report


def _summary(report):
    parts = []
    if report:
        parts.append("{} finding{}".format(len(report), "" if len(report) == 1 else "s"))
    if report.exit_code == 4:
        parts.append("not everything could be checked")
    return ", ".join(parts) or "exit code {}".format(report.exit_code)
