#!/usr/bin/env python3
"""Seeds and dictionaries of the fuzz targets, made from files of this repository.

usage: inputs.py OUT_FOLDER    writes OUT_FOLDER/seeds/TARGET/* and OUT_FOLDER/TARGET.dict
"""
import glob
import gzip
import hashlib
import os
import re
import sqlite3
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
IMPORTERS = ("dot", "kineto", "nsys-sqlite", "capture")
TARGETS = IMPORTERS + ("compressed", "nsys-rows", "moe-config", "config", "kernel-table", "lint")
MAX_SEED_BYTES = 65536
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


def seeds(target):
    folders = [target]
    files = []
    if target == "lint":
        folders += IMPORTERS
    for folder in folders:
        files += glob.glob(os.path.join(ROOT, "tests/corpus", folder, "*"))
    if target in ("dot", "lint"):
        files += glob.glob(os.path.join(ROOT, "tests/data/dot/*.dot*"))
    if target in ("capture", "lint"):
        files += glob.glob(os.path.join(ROOT, "rules/*/*/*/*.cgl.jsonl*"))
    if target in ("kineto", "lint"):
        files += glob.glob(os.path.join(ROOT, "tests/golden/cli/*/*.json"))
    out = [unpacked(path) for path in files if os.path.isfile(path)]
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
    """The text of a libFuzzer dictionary; for lint the words of all importers."""
    if target == "lint":
        found = sorted({word for importer in IMPORTERS for word in words(importer)})
    elif target == "compressed":
        found = words("capture")
    else:
        found = words(target)
    quote = target in ("kineto", "capture", "moe-config", "lint", "compressed")
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
