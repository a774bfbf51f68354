#!/usr/bin/env python3
"""Hostile inputs, one by one, for one input format: hostile.py CGLINT FORMAT

Every case must end in time, with the documented exit code, and either one error line that names the file (and, where there is one, the
byte) or a report that counts what was lost. No output may hold a control character but newlines.
"""
import copy
import gzip
import json
import os
import random
import re
import sqlite3
import struct
import subprocess
import sys
import tempfile

TIMEOUT_S = 120  # of one case; sanitizer builds are slow, a hang is for ever

failures = []


def run(arguments):
    result = subprocess.run(arguments, capture_output=True, timeout=TIMEOUT_S)
    return result.returncode, result.stdout.decode(errors="replace"), result.stderr.decode(errors="replace")


class Case:
    """A file and what lint must say about it.

    error: a pattern for the single error line behind "FILE: "; None: no error line
    offset: whether that line must name a byte
    says: patterns that the report must contain
    never: patterns that it must not contain
    beside: bytes of files beside it, by what their names have after its own
    """

    def __init__(self, name, data, exit_code, error=None, offset=True, says=(), never=(), beside=None):
        self.name, self.data, self.exit_code, self.error, self.offset, self.says = name, data, exit_code, error, offset, says
        self.never, self.beside = never, beside or {}

    def check(self, cglint, folder, suffix):
        path = os.path.join(folder, self.name.replace(" ", "_") + suffix)
        with open(path, "wb") as out:
            out.write(self.data)
        for more, data in self.beside.items():
            with open(path + more, "wb") as out:
                out.write(data)
        try:
            code, out, err = run([cglint, "lint", path])
        except subprocess.TimeoutExpired:
            failures.append(f"{self.name}: no end after {TIMEOUT_S} s")
            return
        problems = []
        if code != self.exit_code:
            problems.append(f"exit code {code}, not {self.exit_code}")
        if re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", out + err):
            problems.append("a control character in the output")
        errors = err.splitlines()
        if self.error is None:
            if errors:
                problems.append("lines on stderr")
        elif len(errors) != 1 or not errors[0].startswith(f"cglint: error: {path}: "):
            problems.append("not exactly one error line that names the file")
        elif not re.search(self.error, errors[0]):
            problems.append(f"the error does not match {self.error!r}")
        elif self.offset and not re.search(r"\(at byte \d+\)$", errors[0]):
            problems.append("the error names no byte")
        for pattern in self.says:
            if not re.search(pattern, out):
                problems.append(f"the report does not match {pattern!r}")
        for pattern in self.never:
            if re.search(pattern, out):
                problems.append(f"the report matches {pattern!r}")
        if problems:
            failures.append(f"{self.name}: {'; '.join(problems)}\n--- stdout\n{out[-2000:]}\n--- stderr\n{err[-2000:]}")
        for more in ("", *self.beside):
            os.remove(path + more)


class AnyVerdict(Case):
    """A file that must be read, whatever the rules say of it."""

    def __init__(self, name, data):
        super().__init__(name, data, None)

    def check(self, cglint, folder, suffix):
        path = os.path.join(folder, self.name.replace(" ", "_") + suffix)
        with open(path, "wb") as out:
            out.write(self.data)
        code, out, err = run([cglint, "lint", "--select", "ALL", path])
        if code not in (0, 1, 4) or err:
            failures.append(f"{self.name}: exit code {code}\n{out[-2000:]}\n{err[-2000:]}")
        os.remove(path)


def check_truncations(cglint, folder, data, suffix, may_be_read, step=1):
    """Every beginning of a small file, checked in one run. One that is read must count its loss, unless `may_be_read(size)`."""
    target = os.path.join(folder, "cut")
    os.makedirs(target)
    sizes = list(range(0, len(data), step))
    for size in sizes:
        with open(os.path.join(target, f"{size:06}{suffix}"), "wb") as out:
            out.write(data[:size])
    # Named one by one: a directory passes over files of no known format.
    paths = [os.path.join(target, f"{size:06}{suffix}") for size in sizes]
    for start in range(0, len(paths), 500):
        part = paths[start:start + 500]
        code, out, err = run([cglint, "lint", "--format", "json", *part])
        report = json.loads(out)
        if code not in (1, 2, 4):
            failures.append(f"truncations: exit code {code}")
        failed = {}
        for line in err.splitlines():
            match = re.match(r"cglint: error: (" + re.escape(target) + r"/(\d+)[^:]*): (.*)", line)
            if not match:
                failures.append(f"truncations: a line without a file: {line}")
                continue
            failed.setdefault(int(match.group(2)), []).append(match.group(3))
        read = {int(os.path.basename(item["file"])[:6]): item for item in report["inputs"]}
        for path in part:
            size = int(os.path.basename(path)[:6])
            if size in read:
                losses = [loss for loss in read[size]["losses"] if loss["severity"] != "info"]
                if not losses and not may_be_read(size):
                    failures.append(f"truncated to {size} bytes: read without a loss")
                if any("offset_bytes" in loss and loss["offset_bytes"] is not None and loss["offset_bytes"] > size for loss in losses):
                    failures.append(f"truncated to {size} bytes: a loss behind the end of the file")
            elif size not in failed:
                failures.append(f"truncated to {size} bytes: neither read nor an error")
            elif len(failed[size]) != 1:
                failures.append(f"truncated to {size} bytes: {len(failed[size])} error lines")


def bomb(start):
    return gzip.compress(start + b" " * (100 << 20), 9)


ANSI = "\x1b[31mred\x1b]0;title\x07"

# --- DOT ---


def dot(body):
    return ('digraph dot {\nsubgraph cluster_1 {\nlabel="graph_1" graph[style="dashed"];\n' + body + "}\n}\n").encode()


def dot_node(i, name="k", number=None):
    number = i if number is None else number
    return f'"graph_1_node_{i}"[style="solid" shape="octagon" label="{number}\n{name}\n"];\n\n'


def dot_cases():
    two = dot_node(0) + dot_node(1)
    edge = '"graph_1_node_0" -> "graph_1_node_1";\n'
    back = '"graph_1_node_1" -> "graph_1_node_0";\n'
    small = dot(two + edge)
    yield Case("zip bomb", bomb(dot(two)[:-4]), 2, r"expands more than 250-fold \(max_compression_ratio\)")
    yield Case("deep nesting", dot(two)[:-4] + b"subgraph cluster_2 {\n" * 200000, 2, "nest|depth|deep")
    yield Case("ids of 2^32 and more", dot(dot_node(4294967296) + dot_node(18446744073709551615)), 0)
    yield Case("an id that is no number", dot(dot_node("99999999999999999999999", number="99999999999999999999999")), 4,
               says=["another number than their name, or none", r"not checked \(nodes whose label has another number than their name, or none\): CG102"])
    yield Case("an id that contradicts the name", dot(dot_node(0) + dot_node(1, number=7)), 4, says=["another number than their name, or none", "spoils creation_order"])
    kernel_row = '"graph_1_node_%d"[style="bold" shape="record" label="{KERNEL\n| {ID | %d (topoId: 0) | k\\<\\<\\<%s,32,0\\>\\>\\>}\n| {priority | %s}\n}"];\n'
    yield Case("a grid that is no number", dot(kernel_row % (0, 0, "1", "0") + kernel_row % (1, 1, "x", "0")), 4, says=["launch configuration, priority or cooperative flag is none", "spoils launch_config"])
    yield Case("a priority that is no number", dot(kernel_row % (0, 0, "1", "high")), 4, says=["launch configuration, priority or cooperative flag is none"])
    yield Case("a fill with a value beyond 32 bits",
               dot('"graph_1_node_0"[style="solid" shape="record" label="{MEMSET\n| {{ID | node handle | dptr | pitch | value | elementSize | width | height} | '
                   '{0 (topoId: 0) | 0x1 | 0x10 | 0 | 4294967296 | 1 | 64 | 1}}}"];\n'), 4, says=["with a parameter that is none", "spoils copy_params"])
    yield Case("a node of a type that is not known", dot(two + '"graph_1_node_2"[shape="record" label="{WARP_DRIVE\n| {ID | 2}\n}"];\n'), 4,
               says=["type that this version does not know", "spoils creation_order"])
    yield Case("a child graph that is not there",
               dot('"graph_1_node_0"[style="bold" shape="record" label="{\nCONDITIONAL\n| {ID | 0}\n| {Conditional Type| IF}\n| {True|graph_9}\n}\n"];\n'), 4,
               says=["bodies that the file does not hold", "spoils creation_order"])
    topology = '"graph_1_node_%d"[style="solid" shape="octagon" label="%d (topoId: %d)\nk\n"];\n\n'
    three = "".join(topology % (i, i, 2 - i) for i in range(3))
    joined = '"graph_1_node_0" -> "graph_1_node_2" [headlabel=0];\n"graph_1_node_1" -> "graph_1_node_2" [headlabel=1];\n'
    yield Case("numbered by topology", dot(three + joined), 0)
    yield Case("a node that the numbering lacks", dot(three.replace(topology % (1, 1, 1), "")), 4, says=["topoIds of a graph have no gaps", "spoils .*nodes"])
    yield Case("an edge that the numbering lacks", dot(three + joined[joined.index("\n") + 1:]), 4, says=["headlabels have no gaps", "spoils .*edges"])
    yield Case("a child graph that is not there, in short form", dot(two + '"graph_1_node_2"[shape="rectangle" label="2\ngraph_9\n"];\n'), 4,
               says=["bodies that the file does not hold", "spoils creation_order"], never=["of a type that this version does not know"])
    yield Case("a label beyond 16 MiB", dot(dot_node(0, "n" * ((16 << 20) + 1))), 2, "longer than 16777216 bytes")
    mark = b"\xef\xbb\xbf"
    yield Case("a byte order mark and nodes outside every graph", mark + small.rstrip()[:-1] + dot_node(5).encode() + b"}\n", 4,
               says=[r"nodes outside every graph .*byte %d\b" % (3 + len(small.rstrip()) - 1)])
    yield Case("nodes outside every graph", small.rstrip()[:-1] + dot_node(5).encode() + b"}\n", 4, says=["nodes outside every graph"])
    yield Case("cycle", dot(two + edge + back), 2, "cycle")
    yield Case("self edge", dot(two + '"graph_1_node_0" -> "graph_1_node_0";\n'), 2, "depends on itself")
    yield Case("graphs that contain each other",
               b'digraph dot {\nsubgraph cluster_1 {\nlabel="graph_1" graph[style="dashed"];\n'
               b'"graph_1_node_0"[shape="rectangle" label="0\ngraph_2\n"];\n}\n'
               b'subgraph cluster_2 {\nlabel="graph_2" graph[style="dashed"];\n'
               b'"graph_2_node_0"[shape="rectangle" label="0\ngraph_1\n"];\n}\n}\n', 2, "child graphs contain each other in a circle")
    yield Case("a graph that contains itself, beside another",
               dot(two)[:-2] + b'subgraph cluster_2 {\nlabel="graph_2" graph[style="dashed"];\n"graph_2_node_0"[shape="rectangle" label="0\ngraph_2\n"];\n}\n}\n', 2,
               "child graphs contain each other in a circle")
    yield Case("a name whose number cannot be read", dot(dot_node(0) + dot_node("x", number=1)), 4, says=["another number than their name", "spoils creation_order"])
    yield Case("NUL and ANSI in names", dot(dot_node(0, "n\0" + ANSI) + dot_node(1, ANSI)), 0)
    yield Case("duplicate nodes", dot(two + dot_node(0, "other")), 4, says=["declared twice and differently"])
    yield Case("duplicate edges", dot(two + edge * 3), 0, says=["repeated edges were merged"])
    yield Case("edge to a missing node", dot(two + '"graph_1_node_0" -> "graph_1_node_7";\n'), 4, says=["does not declare"])
    end = small.rstrip().rfind(b"}")
    return small, lambda size: size > end


# --- Kineto ---


def trace(events, extra=""):
    return ('{"schemaVersion": 1' + extra + ', "traceEvents": [\n' + ",\n".join(events) + "\n]}\n").encode()


def kernel(ts, name="k", dur="1", args=""):
    return ('{"ph": "X", "cat": "kernel", "name": "%s", "pid": 0, "tid": 7, "ts": %s, "dur": %s, "args": {"device": 0, "stream": 7, '
            '"correlation": 1, "grid": [1, 1, 1], "block": [32, 1, 1]%s}}' % (name, ts, dur, args))


LAUNCH = ('{"ph": "X", "cat": "cuda_runtime", "name": "cudaGraphLaunch", "pid": 9, "tid": 9, "ts": 1, "dur": 2, '
          '"args": {"correlation": 1}}')


def arrow(phase, number, ts):
    return '{"ph": "%s", "id": %d, "cat": "ac2g", "name": "ac2g", "pid": 0, "tid": 7, "ts": %s}' % (phase, (1 << 40) + number, ts)


def kineto_cases():
    small = trace([LAUNCH, kernel(10), kernel(12, "b")])
    yield Case("zip bomb", bomb(small[:-4]), 2, r"expands more than 250-fold \(max_compression_ratio\)")
    deep = "[" * 300000 + "]" * 300000
    # What is not read may nest as deep as it likes: nothing here recurses.
    yield Case("deep nesting in an event", trace([LAUNCH, kernel(10, args=', "x": ' + deep)]), 0)
    yield Case("deep nesting in a property", trace([LAUNCH, kernel(10)])[:-2] + b', "x": ' + deep.encode() + b"}", 0)
    yield Case("deep nesting in a known property", trace([LAUNCH, kernel(10)])[:-2] + b', "deviceProperties": ' + deep.encode() + b"}", 0,
               says=["properties of the trace could not be read"])
    yield Case("unclosed nesting", trace([LAUNCH, kernel(10)])[:-2] + b', "x": ' + b"[" * 300000, 2, error=None,
               says=["error: the trace is not whole"])
    yield Case("ids of 2^32 and more",
               trace([LAUNCH, kernel(10, args=', "graph id": 4294967296, "graph node id": 18446744073709551615')]), 4,
               says=["graph or node id is none", "spoils node_identity, replay_streams, replay_times"])
    for name, odd in (("number", "1"), ("string", '"text"'), ("null", "null"), ("list", "[1, " + kernel(14) + "]")):
        for place in (0, 1, 2, 3):
            events = [LAUNCH, kernel(10), kernel(12, "b")]
            events.insert(place, odd)
            yield Case(f"a {name} as element {place}", trace(events), 4,
                       says=["damaged events that may be GPU operations were left out .*at byte \\d+", "spoils replay_streams, replay_times", "1 launch"])
    yield Case("a list of events that begins with a number", ("[1, " + LAUNCH + ", " + kernel(10) + "]").encode(), 4,
               says=["may be GPU operations were left out", "1 launch"])
    lost = kernel(12, "b").replace('"stream": 7, ', "").replace('"tid": 7', '"tid": 100')
    yield Case("an operation twice", trace([LAUNCH, kernel(10), kernel(12, "b"), kernel(10)]), 4, says=["operations that are in the file twice", "spoils .*replay_streams"])
    yield Case("a launch call twice", trace([LAUNCH, LAUNCH, kernel(10)]), 4, says=["launch calls that are in the file twice", "spoils .*replay_streams"])
    yield Case("two launch calls with one id", trace([LAUNCH, LAUNCH.replace('"ts": 1,', '"ts": 11,'), kernel(10), kernel(12)]), 4,
               says=["with the correlation id of another one", "spoils .*replay_streams"])
    yield Case("empty events", trace([LAUNCH, "{}", kernel(10), "{}"]), 0, says=["2 events without any property|events without any property.*2"])
    yield Case("two processes with one id in one row", trace([LAUNCH, LAUNCH.replace('"ts": 1,', '"ts": 2,').replace('"pid": 9', '"pid": 10'), kernel(10), kernel(12)]), 4,
               says=["in rows that do not tell of which process they are"])
    # Each launch has lost another node: none is short of the others' count.
    events = []
    for launch in range(3):
        events.append(LAUNCH.replace('"correlation": 1', f'"correlation": {launch + 1}').replace('"ts": 1,', f'"ts": {launch * 100 + 1},'))
        events += [kernel(launch * 100 + 10 + node, f"k{node}", args=f', "graph id": 4, "graph node id": {node + 20}').replace('"correlation": 1', f'"correlation": {launch + 1}')
                   for node in range(6) if node != launch + 1]
    yield Case("nodes that each launch lacks in turn", trace(events), 4, says=["while none has them all", "spoils .*replay_streams"])
    yield Case("a missing stream", trace([LAUNCH, kernel(10), lost]), 4, says=["without a stream", "spoils replay_streams"])
    lost = kernel(12, "b").replace('"device": 0, ', "").replace('"pid": 0', '"pid": 3')
    yield Case("a missing device", trace([LAUNCH, kernel(10), lost]), 4, says=["without a device", "spoils replay_streams"])
    yield Case("no stream anywhere", trace([LAUNCH, kernel(10).replace('"stream": 7, ', "")]), 0, says=["rows of the trace were taken for streams"])
    yield Case("escaped keys and values", trace([LAUNCH.replace("cudaGraph", "cuda\\u0047raph"), kernel(10).replace('"stream"', '"\\u0073tream"').replace('"kernel"', '"k\\u0065rnel"')
                                                 .replace('"name"', '"na\\u006de"')]), 0, says=["1 graph \\(1 launch\\)"])
    yield Case("a name beyond 16 MiB", trace([LAUNCH, kernel(10), kernel(12, "n" * ((16 << 20) + 1))]), 4,
               says=["name that is too long were left out", "spoils replay_streams, replay_times"])
    yield Case("an event beyond 64 MiB", trace([LAUNCH, kernel(10), kernel(12, "n" * (65 << 20))]), 2, "an event of the trace is larger than 67108864 bytes")
    for key, good in (("ph", '"X"'), ("cat", '"kernel"'), ("name", '"k"'), ("grid", "[1, 1, 1]"), ("block", "[32, 1, 1]")):
        for value in ("null", "5", "{}"):
            yield Case(f"{key} {value}", trace([LAUNCH, kernel(10), kernel(12).replace(f'"{key}": {good}', f'"{key}": {value}')]), 4, says=["data loss: .*spoils"])
    yield Case("arguments that are none", trace([LAUNCH, kernel(10), kernel(12).split(', "args"')[0] + ', "args": 5}']), 4, says=["may be GPU operations"])
    yield Case("a damaged launch call", trace([LAUNCH, kernel(10), LAUNCH.replace('"ts": 1', '"ts": null')]), 4, says=["may be graph launch calls", "spoils replay_streams"])
    yield Case("a category that is not known", trace([LAUNCH, kernel(10), kernel(12).replace('"kernel"', '"kernels"')]), 4, says=["category that this version does not know"])
    edge = [arrow("s", 1, 11), arrow("f", 1, 12)]
    broken = arrow("s", 2, 11).replace('"ts": 11', '"ts": null')
    yield Case("a damaged dependency arrow", trace([LAUNCH, kernel(10), kernel(12, "b"), *edge, broken]), 4, says=["damaged dependency arrows were left out", "spoils edges"])
    broken = re.sub('"id": [0-9]+', '"id": null', broken)
    yield Case("an arrow that may be a dependency", trace([LAUNCH, kernel(10), kernel(12, "b"), *edge, broken]), 4, says=["may be dependencies", "spoils edges"])
    yield Case("a damaged launch arrow", trace([LAUNCH, kernel(10), kernel(12, "b"), broken]), 0, says=["nothing is missing"])
    stray = '{"ph": "X", "cat": "cpu_op", "name": "a"b", "pid": 1, "tid": 1, "ts": 1, "dur": 2, "args": {"x": 3}}'
    yield Case("two stray quotes with operations between them", trace([LAUNCH, kernel(10), stray, kernel(12, "b"), kernel(13, "c"), stray]).replace(b"\n", b""), 0,
               says=["events with unescaped quotes were repaired"])
    yield Case("dependency cycle", trace([LAUNCH, kernel(10), kernel(20, "b"), arrow("s", 1, 11), arrow("f", 1, 20), arrow("s", 2, 21),
                                          arrow("f", 2, 10)]), 4, says=["cycle"])
    yield Case("NUL and ANSI in names", trace([LAUNCH, kernel(10, ANSI.replace("\x1b", "\\u001b").replace("\x07", "\\u0000")),
                                               kernel(12, "raw\0" + ANSI)]), 0,
               says=["bytes that are not valid in JSON text were replaced"])
    yield Case("duplicate keys", trace([LAUNCH, kernel(10), kernel(12, args=', "stream": 8')]), 4,
               says=["give a property twice were left out", "spoils .*replay_streams"])
    yield Case("negative duration", trace([LAUNCH, kernel(10), kernel(12, dur="-5")]), 4,
               says=["end before they begin were left out", "spoils .*replay_times"])
    yield Case("negative device", trace([LAUNCH, kernel(10).replace('"device": 0', '"device": -1')]), 4,
               says=["without a device", "spoils replay_streams"])
    for value in ("4294967296", "-1", '"seven"', "null"):
        yield Case(f"stream {value.strip(chr(34))}", trace([LAUNCH, kernel(10), kernel(12).replace('"stream": 7', f'"stream": {value}')]), 4,
                   says=["without a stream", "spoils replay_streams"])
    for value in ("5000000000000000000000000", "-5", "null"):
        yield Case(f"correlation {value}", trace([LAUNCH, kernel(10), kernel(12).replace('"correlation": 1', f'"correlation": {value}')]), 4,
                   says=["correlation id is no 32-bit number", "spoils .*replay_streams"])
    yield Case("two lists of events", small.rstrip()[:-1] + b', "traceEvents": []}', 4, says=["more lists of traceEvents than one"])
    yield Case("no events", b'{"schemaVersion": 1, "traceEvents": 5}', 2, "traceEvents")
    end = small.rfind(b"}")
    return small, lambda size: size > end


# --- Nsight Systems SQLite ---


def database(folder, more=(), kernels=2):
    path = os.path.join(folder, "make.sqlite")
    if os.path.exists(path):
        os.remove(path)
    db = sqlite3.connect(path)
    db.execute("PRAGMA page_size=512")
    db.executescript("""
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
INSERT INTO StringIds VALUES (1, 'cudaGraphLaunch_v10000'), (2, 'k'), (3, 'b');
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, globalTid INTEGER, correlationId INTEGER, nameId INTEGER);
INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (1, 5, 78148272247, 1, 1);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, correlationId INTEGER,
 globalPid INTEGER, shortName INTEGER, gridX INTEGER, gridY INTEGER, gridZ INTEGER, blockX INTEGER, blockY INTEGER, blockZ INTEGER,
 graphNodeId INTEGER);
""")
    for i in range(kernels):
        db.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, 0, 7, 1, 78148272128, ?, 1, 1, 1, 32, 1, 1, ?)",
                   (100 + 10 * i, 105 + 10 * i, 2 + i % 2, (9 << 32) + i + 1))
    for statement, values in more:
        db.execute(statement, values)
    db.commit()
    db.close()
    with open(path, "rb") as file:
        return file.read()


def nsys_cases(folder):
    row = "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, 7, ?, 78148272128, 2, 1, 1, 1, 32, 1, 1, ?)"
    small = database(folder)
    yield Case("zip bomb", gzip.compress(small + bytes(100 << 20), 9), 2, r"expands more than 250-fold \(max_compression_ratio\)")
    # The deepest thing in a database is a b-tree whose page is its own child.
    large = bytearray(database(folder, kernels=200))
    root = None
    for page in range(len(large) // 512):
        at = page * 512 + (100 if page == 0 else 0)
        if large[at] == 5:  # an interior table page
            root = page
            large[at + 8:at + 12] = struct.pack(">I", page + 1)
    assert root is not None
    yield Case("a page that is its own child", bytes(large), 2, "database", offset=False)
    logged = bytearray(small)
    logged[18] = logged[19] = 2  # as left by a program that used a write-ahead log, which is gone
    yield Case("once with a log and compressed", gzip.compress(bytes(logged)), 0)
    yield Case("ids of 2^32 and more", database(folder, [(row, (200, 210, 0, 1 << 32, (1 << 63) - 1))]), 4,
               says=["correlation id is no 32-bit number"])
    yield Case("names that are missing", database(folder, [("UPDATE StringIds SET id = 9223372036854775807 WHERE id = 2", ())]), 4,
               says=["kernels without a usable name", "spoils kernel_names"])
    yield Case("NUL and ANSI in names",
               database(folder, [("UPDATE StringIds SET value = ? WHERE id = 2", (ANSI + "\0" + ANSI,))]), 0)
    yield Case("duplicate keys", database(folder, [("DROP TABLE StringIds", ()), ("CREATE TABLE StringIds (id INTEGER, value TEXT)", ()),
                                                   ("INSERT INTO StringIds VALUES (1, 'cudaGraphLaunch_v10000'), (2, 'k'), (2, 'other'), "
                                                    "(3, 'b')", ())]), 4, says=["two texts", "spoils kernel_names"])
    yield Case("negative duration", database(folder, [(row, (300, 200, 0, 1, (9 << 32) + 7))]), 4,
               says=["without usable times", "spoils .*replay_times"])
    yield Case("negative device", database(folder, [(row, (300, 310, -1, 1, (9 << 32) + 7))]), 4,
               says=["without a device", "spoils replay_streams"])
    update = "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET "
    yield Case("a stream that is text", database(folder, [(update + "streamId = 'x'", ())]), 4,
               says=["without a stream", "spoils replay_streams"])
    yield Case("a stream beyond 32 bits", database(folder, [(update + "streamId = 1 << 62", ())]), 4,
               says=["without a stream", "spoils replay_streams"])
    yield Case("a missing correlation id", database(folder, [(update + "correlationId = NULL WHERE start = 110", ())]), 4,
               says=["without a correlation id, while others have one", "spoils .*replay_times"])
    yield Case("a correlation id that is text", database(folder, [(update + "correlationId = 'zz' WHERE start = 110", ())]), 4,
               says=["correlation id is no 32-bit number"])
    yield Case("a grid that is text", database(folder, [(update + "gridX = 'x' WHERE start = 110", ())]), 4, says=["launch configuration is none", "spoils .*launch_config"])
    yield Case("a launch call whose name is missing", database(folder, [("DELETE FROM StringIds WHERE id = 1", ())]), 4, says=["they may be graph launches"])
    page = bytearray(small[:512])
    page[28:32] = struct.pack(">I", 1)
    page[100:108] = struct.pack(">BHHHB", 13, 0, 0, 512, 0)  # no table in it
    page[108:] = bytes(404)
    yield Case("all tables in a write-ahead log", bytes(page), 2, r"not whole: \S+/all_tables_in_a_write-ahead_log\.sqlite-wal holds 4152 bytes", offset=False,
               beside={"-wal": bytes(4152)})
    yield Case("a cut of one byte", small[:-1], 2, r"the database is cut short: \d+ bytes of \d+")
    # What SQLite keeps beside a database is a part of it.
    yield Case("rows in a write-ahead log", small, 2, r"not whole: \S+/rows_in_a_write-ahead_log\.sqlite-wal holds 4152 bytes .*wal_checkpoint", offset=False,
               beside={"-wal": bytes(4152)})
    yield Case("a change that has not ended", small, 2, r"not whole: \S+/a_change_that_has_not_ended\.sqlite-journal .*user_version", offset=False,
               beside={"-journal": b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7" + bytes(504)})
    yield Case("files beside it that were used up", small, 0, beside={"-wal": b"", "-journal": bytes(512), "-shm": bytes(32768)})
    yield Case("a log without frames", small, 0, beside={"-wal": bytes(32), "-journal": b""})
    launches = [("CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, correlationId INTEGER, "
                 "globalPid INTEGER, graphId INTEGER, graphExecId INTEGER)", ()),
                ("INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (100, 200, 0, 7, 1, 78148272128, 4, 6)", ())]
    yield Case("launches without nodes", database(folder, launches, kernels=0), 4,
               says=["re-capture with --cuda-graph-trace=node"], never=["without GPU operations"])
    yield Case("launches without nodes and one without anything",
               database(folder, [*launches, ("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (11, 15, 78148272247, 2, 1)", ())], kernels=0), 4,
               says=["re-capture with --cuda-graph-trace=node", "graph launch calls without GPU operations"])
    return small, lambda size: False


# --- capture files ---

HEADER = '{"type":"header","format":"cglint-capture","version":"1.0"}\n'


def capture(*records, nodes='{"kind":"kernel","launch":0},{"kind":"kernel","launch":0}', edges="[0,1]", name="k"):
    graph = ('{"type":"graph","graph":0,"facts":["nodes","edges","creation_order","kernel_names"],"functions":[{"name":"%s"}],'
             '"launches":[{"function":0}],"nodes":[%s],"edges":[%s]}\n' % (name, nodes, edges))
    lines = [HEADER, graph, *[record + "\n" for record in records], '{"type":"graph_end","graph":0}\n']
    return ("".join(lines) + '{"type":"end","records":%d}\n' % len(lines)).encode()


def capture_cases():
    small = capture()
    broken = r"skipped: .*\(first at byte \d+\)"
    yield Case("zip bomb", bomb(small), 2, r"expands more than 250-fold \(max_compression_ratio\)")
    deep = "[" * 300000 + "]" * 300000
    yield Case("deep nesting", capture('{"type":"timing","graph":0,"samples":' + deep + ',"median_us":1}'), 2, says=[broken])
    # What is not known may nest as deep as it likes: nothing here recurses.
    yield Case("deep nesting in an unknown property", capture('{"type":"timing","graph":0,"samples":1,"median_us":1,"x":' + deep + "}"), 0,
               says=["properties that this version does not know"])
    yield Case("ids of 2^32", capture('{"type":"timing","graph":4294967296,"samples":1,"median_us":1}'), 2, says=["graph is not an index"])
    yield Case("an edge to node 2^32", capture(edges="[0,4294967296]"), 2, says=["an edge's end is not an index"])
    yield Case("cycle", capture(edges="[0,1],[1,0]"), 2, says=["cycle", broken])
    timing = b'{"type":"timing","graph":0,"samples":1,"median_us":1}\n'
    yield Case("a repeated record", capture(timing.decode().rstrip()).replace(timing, timing * 2), 4, says=["timing records that are in the file twice", "spoils .*untraced_times"])
    ops = '{"type":"replays","graph":0,"replays":[{"ops":[%s]}]}'
    both, first = "[0,0,7,20,30],[1,0,7,30,40]", "[0,0,7,20,30]"
    yield Case("a launch without one of its operations", capture(ops % first), 4, says=["missing in launches that are given as complete", "spoils .*replay_streams"])
    yield Case("a launch with an operation twice", capture(ops % (both + "," + first)), 4, says=["had run in the same launch already", "spoils .*replay_streams"])
    line = (ops % both).encode() + b"\n"
    yield Case("one record lost and another twice", capture(ops % both, timing.decode().rstrip()).replace(timing, b"").replace(line, line * 2), 4,
               says=["replays records that are in the file twice", "records that the recorder wrote are not in the file"])
    yield Case("files joined without a newline", small.rstrip() + small, 0, says=["2 graphs"])
    yield Case("a header inside", small.replace(b'{"type":"end"', small.split(b"\n")[0] + b'\n{"type":"end"'), 4, says=["a header stands where the recording before it has no end record"])
    yield Case("a byte order mark", b"\xef\xbb\xbf" + small, 0)
    yield Case("a graph that runs itself", capture(nodes='{"kind":"child_graph","body":0}', edges=""), 4, says=["does not contain before"])
    yield Case("NUL and ANSI in names", capture(name="n\\u0000" + ANSI.replace("\x1b", "\\u001b").replace("\x07", "\\u0007")), 0)
    yield Case("raw control characters", capture(name="n\0" + ANSI), 2, says=[broken])
    yield Case("duplicate keys", capture('{"type":"timing","graph":0,"samples":1,"samples":9,"median_us":1}'), 2,
               says=['gives "samples" twice', broken])
    yield Case("negative duration", capture('{"type":"replays","graph":0,"replays":[{"ops":[[0,0,7,20,10]]}]}'), 2,
               says=["ends before it begins"])
    # A kernel whose launch was not recorded, next to programmatic launches.
    random.seed(7)
    fixture = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../corpus/capture")
    for name in ("no_launch", "recorded", "tables"):
        with open(os.path.join(fixture, name + ".cgl.jsonl")) as lines:
            records = [json.loads(line) for line in lines if line.strip()]
        for i in range(12):
            damaged = copy.deepcopy(records)
            for record in damaged:
                kernels = [node for node in record.get("nodes", []) if node.get("kind") == "kernel" and "launch" in node]
                for node in random.sample(kernels, min(len(kernels), i)):
                    for key in set(node) - {"kind", "id", "sequence", "stream", "thread"}:  # arguments are read by the launch
                        del node[key]
            yield AnyVerdict(f"{name} without {i} launches", "".join(json.dumps(record) + "\n" for record in damaged).encode())
    yield Case("header of a later version", small.replace(b'"1.0"', b'"2.0"'), 2, "format version 2.0")
    return small, lambda size: size >= len(small) - 1


def main():
    cglint, name = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        cases, suffix = {"dot": (dot_cases, ".dot"), "kineto": (kineto_cases, ".json"),
                         "nsys-sqlite": (lambda: nsys_cases(folder), ".sqlite"), "capture": (capture_cases, ".cgl.jsonl")}[name]
        generator, count = cases(), 0
        while True:
            try:
                next(generator).check(cglint, folder, suffix)
                count += 1
            except StopIteration as end:
                small, may_be_read = end.value
                break
        check_truncations(cglint, folder, small, suffix, may_be_read, step=1 if len(small) < 2000 else 7)
    if failures:
        print("\n".join(failures))
        print(f"{len(failures)} of {count} cases and the truncations failed")
        sys.exit(1)
    print(f"{count} cases and every truncation")


if __name__ == "__main__":
    main()
