#!/usr/bin/env python3
"""Seeds and dictionaries of the fuzz targets, made from files of this repository.

usage: inputs.py OUT_FOLDER    writes OUT_FOLDER/seeds/TARGET/* and OUT_FOLDER/TARGET.dict
"""
import functools
import glob
import gzip
import hashlib
import json
import os
import re
import sqlite3
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
IMPORTERS = ("dot", "kineto", "nsys-sqlite", "capture")
TARGETS = IMPORTERS + ("compressed", "nsys-rows", "moe-config", "config", "kernel-table", "lint", "join", "convert")
WHOLE_RUNS = ("lint", "convert")  # take every format
MAX_SEED_BYTES = 65536
MAX_CUT_BYTES = 12288  # what recordings are cut to: a whole run over one takes milliseconds
# Where the words come from that a target's input is made of.
SOURCES = {
    "dot": ["lib/import/dot/*.cpp"],
    "kineto": ["lib/import/kineto/*.cpp", "lib/import/kineto/*.h", "lib/import/common/timeline.cpp"],
    "nsys-sqlite": ["lib/import/nsys/*.cpp"],
    "nsys-rows": ["lib/import/nsys/*.cpp"],
    "capture": ["lib/import/capture/*.cpp", "lib/import/capture/*.h", "lib/ir/*.cpp"],
    "moe-config": ["lib/tables/moe_config.cpp"],
    "config": ["lib/engine/config.cpp", "rules/*/*/rule.cpp"],
    "kernel-table": ["lib/analysis/kernel_table.cpp", "lib/analysis/size_expression.cpp", "lib/analysis/pattern.cpp"],
}


def read(path):
    with open(path, "rb") as file:
        return file.read()


def unpacked(path):
    data = read(path)
    return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data


def as_rows(path):
    """A SQLite file in the form of nsys_rows_fuzz.cpp."""
    database = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    lines = []
    for (table,) in database.execute("SELECT name FROM sqlite_master WHERE type='table' ORDER BY name").fetchall():
        cursor = database.execute(f'SELECT * FROM "{table}"')
        lines.append("=" + "\t".join([table] + [column[0] for column in cursor.description]))
        lines += ["\t".join("" if value is None else str(value) for value in row) for row in cursor]
    database.close()
    return ("\n".join(lines) + "\n").encode()


def json_lines(records):
    return b"".join(json.dumps(record, separators=(",", ":")).encode() + b"\n" for record in records)


def cut_graph(record, nodes):
    """A graph record's first nodes with what lies between them."""
    out = dict(record)
    out["nodes"] = record.get("nodes", [])[:nodes]
    out["edges"] = [edge for edge in record.get("edges", []) if max(edge[:2]) < nodes]
    return out


def capture_records(path):
    return [json.loads(line) for line in unpacked(path).splitlines()]


@functools.lru_cache(maxsize=None)
def cut_capture(path):
    """A capture file with fewer nodes per graph, two replays of each and, where that is not enough, its first records alone."""
    records = capture_records(path)
    for nodes in (64, 32, 16, 8, 4):
        out = []
        for record in records:
            if record["type"] == "graph":
                record = cut_graph(record, nodes)
            elif record["type"] == "replays":
                replays = [dict(replay, ops=[op for op in replay["ops"] if op[0] < nodes]) for replay in record["replays"][:2]]
                record = dict(record, replays=replays)
            out.append(record)
        if len(json_lines(out)) <= MAX_CUT_BYTES:
            break
    while len(json_lines(out)) > MAX_CUT_BYTES and len(out) > 4:
        graphs = [record["graph"] for record in out if record["type"] == "graph"]
        gone = set(graphs[len(graphs) * 3 // 4:])
        out = [record for record in out if record.get("graph") not in gone] if gone else out[:-2] + out[-1:]
    if out[-1]["type"] == "end":
        out[-1] = dict(out[-1], records=len(out) - 1)
    return json_lines(out)


@functools.lru_cache(maxsize=None)
def cut_trace(path, operations=24):
    """A Kineto trace with the first operations of each of the first two graph launches, and what else is small."""
    trace = json.loads(unpacked(path))
    taken = {}
    events = []
    for event in sorted(trace["traceEvents"], key=lambda event: event.get("ts", 0)):
        correlation = event.get("args", {}).get("correlation", event.get("id"))
        if event.get("ph") == "M":
            if len(taken) > 1:
                continue
        elif event.get("cat") == "ac2g" and event["ph"] == "f":
            continue
        elif event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
            taken[correlation] = taken.get(correlation, 0) + 1
            if taken[correlation] > operations or len(taken) > 2:
                continue
        events.append(event)
    return json.dumps(dict(trace, traceEvents=events), separators=(",", ":")).encode()


def cut_dot(path, nodes=16):
    """A dump with its first nodes and the edges between them."""
    out = []
    keep = True
    for line in unpacked(path).decode().splitlines():
        numbers = [int(number) for number in re.findall(r'^"graph_\d+_node_(\d+)"| -> "graph_\d+_node_(\d+)"', line) for number in number if number]
        if numbers:
            keep = max(numbers) < nodes
        elif line.startswith("}") and line != '}"];':
            keep = True
        if keep:
            out.append(line)
        if line == '}"];':
            keep = True
    return ("\n".join(out) + "\n").encode()


def as_trace(records, graph):
    """The replays of a graph as a Kineto trace would show them."""
    functions = [function["name"] for function in graph.get("functions", [])]
    events = []
    for record in records:
        if record["type"] != "replays" or record["graph"] != graph["graph"]:
            continue
        for replay in record["replays"]:
            events.append({"ph": "X", "cat": "cuda_runtime", "name": "cudaGraphLaunch", "pid": 1, "tid": 1, "ts": replay["ops"][0][3] / 1e3 if replay["ops"] else 0, "dur": 1,
                           "args": {"correlation": replay["correlation"]}})
            for node, device, stream, begin, end in replay["ops"]:
                if node >= len(graph["nodes"]) or graph["nodes"][node].get("kind") != "kernel":
                    continue
                launch = graph["launches"][graph["nodes"][node]["launch"]]
                events.append({"ph": "X", "cat": "kernel", "name": functions[launch["function"]], "pid": 0, "tid": stream, "ts": begin / 1e3, "dur": (end - begin) / 1e3,
                               "args": {"device": device, "context": 1, "stream": stream, "correlation": replay["correlation"], "grid": launch["grid"], "block": launch["block"],
                                        "graph id": graph["graph"], "graph node id": graph["graph"] << 32 | node}})
    return json.dumps({"schemaVersion": 1, "deviceProperties": [], "traceEvents": events}, separators=(",", ":")).encode()


def pairs():
    """Structure and trace of one recording, in the form of join_fuzz.cpp, with and without the graph's node ids and --join."""
    out = []
    data = os.path.join(ROOT, "tests/data")
    for path in sorted(glob.glob(os.path.join(data, "record/*/*.cgl.jsonl.gz"))):
        records = capture_records(path)
        structure = [record for record in records if record["type"] not in ("replays", "end")]
        for graph in records:
            if graph["type"] == "graph":
                trace = as_trace(records, graph)
                both = (b"1" if len(out) % 3 == 0 else b"0") + json_lines(structure) + b"====\n" + (re.sub(rb',"graph id":\d+,"graph node id":\d+', b"", trace) if len(out) % 2 else trace)
                if b"cudaGraphLaunch" in trace and len(both) <= MAX_SEED_BYTES // 2:
                    out.append(both)
    for kind in ("main_first", "alt_first"):
        dump, trace = cut_dot(os.path.join(data, f"torch/torch_{kind}.dot.gz")), cut_trace(os.path.join(data, f"torch/kineto_{kind}.json.gz"), 16)
        out += [b"0" + dump + b"====\n" + trace, b"1" + dump + b"====\n" + trace]
    return out


def recordings(target):
    """The recordings of tests/data that the target reads, cut small."""
    data = os.path.join(ROOT, "tests/data")
    out = []
    if target in ("capture",) + WHOLE_RUNS:
        out += [cut_capture(path) for path in glob.glob(os.path.join(data, "record/**/*.cgl.jsonl.gz"), recursive=True)]
        out += [cut_capture(path) for path in glob.glob(os.path.join(ROOT, "reference_models/*/recordings/*.cgl.jsonl.gz"))]
    if target in ("kineto",) + WHOLE_RUNS:
        out += [cut_trace(path) for path in glob.glob(os.path.join(data, "torch/*.json.gz"))]
    if target in ("dot",) + WHOLE_RUNS:
        out += [cut_dot(path) for path in glob.glob(os.path.join(data, "torch/*.dot.gz"))]
    return out


def seeds(target):
    folders = [target]
    files = []
    if target in WHOLE_RUNS:
        folders += IMPORTERS
    for folder in folders:
        files += glob.glob(os.path.join(ROOT, "tests/corpus", folder, "*"))
    if target in ("dot",) + WHOLE_RUNS:
        files += glob.glob(os.path.join(ROOT, "tests/data/dot/*.dot*"))
    if target in ("capture",) + WHOLE_RUNS:
        files += glob.glob(os.path.join(ROOT, "rules/*/*/*/*.cgl.jsonl*"))
    if target in ("kineto",) + WHOLE_RUNS:
        files += glob.glob(os.path.join(ROOT, "tests/golden/cli/*/*.json"))
    out = [unpacked(path) for path in files if os.path.isfile(path)] + recordings(target)
    if target == "join":
        out += pairs()
    if target == "nsys-rows":
        out += [as_rows(path) for path in glob.glob(os.path.join(ROOT, "tests/corpus/nsys-sqlite/*.sqlite"))]
    if target == "moe-config":
        out += [os.path.basename(path).encode() + b"\n" + read(path) for path in glob.glob(os.path.join(ROOT, "reference_models/fused_moe/configs/*.json"))]
    if target == "kernel-table":
        out += [read(os.path.join(ROOT, "lib/analysis/data/kernels.toml"))]
    if target == "compressed":  # every way of packing, see compressed_fuzz.cpp
        plain = [seed for other in IMPORTERS for seed in seeds(other) if len(seed) < 16384]
        ways = (1, 2, 3, 5, 6, 9, 10, 17, 18, 26, 49)
        out += [bytes((ways[i % len(ways)], (i * 7) % 256, 1 + i % 40, (i * 37) % 256)) + seed for i, seed in enumerate(plain)]
        out += [b"\0\0\0\0" + gzip.compress(seed, mtime=0) for seed in plain[::9]]
    return sorted({seed for seed in out if len(seed) <= MAX_SEED_BYTES}, key=lambda seed: (len(seed), seed))


def words(target):
    out = set()
    for pattern in SOURCES.get(target, []):
        for path in glob.glob(os.path.join(ROOT, pattern)):
            text = re.sub(r"^#include.*$|//.*$", "", read(path).decode(), flags=re.M)
            found = set(re.findall(r'"((?:[^"\\\n]|\\.){2,40})"', text))
            if path.endswith("rule.cpp"):  # codes, slugs, families and options
                found = {word for word in found if re.fullmatch(r"CG\d+|[a-z]+([_-][a-z]+)*", word)}
            out |= found
    # Messages are no input.
    return sorted(word for word in out if "{}" not in word and word.count(" ") < 2 and word.isascii() and "\\" not in word)


def dictionary(target):
    """The text of a libFuzzer dictionary; for whole runs the words of all importers."""
    if target in WHOLE_RUNS + ("join",):
        found = sorted({word for importer in IMPORTERS for word in words(importer)})
    elif target == "compressed":
        found = words("capture")
    else:
        found = words(target)
    quote = target in ("kineto", "capture", "moe-config", "compressed", "join") + WHOLE_RUNS
    lines = [f'"{word}"' for word in found]
    if quote:
        lines += [f'"\\"{word}\\""' for word in found if re.fullmatch(r"[A-Za-z0-9_]+", word)]
    return "\n".join(lines) + "\n"


def main():
    out = sys.argv[1]
    for target in TARGETS:
        folder = os.path.join(out, "seeds", target)
        os.makedirs(folder, exist_ok=True)
        for seed in seeds(target):
            with open(os.path.join(folder, hashlib.sha1(seed).hexdigest()), "wb") as file:
                file.write(seed)
        with open(os.path.join(out, target + ".dict"), "w", encoding="ascii") as file:
            file.write(dictionary(target))


if __name__ == "__main__":
    main()
