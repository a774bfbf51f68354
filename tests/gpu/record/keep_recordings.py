#!/usr/bin/env python3
"""Recordings of the planted-defect programs for the repository: without host names and folders, compressed.

usage: keep_recordings.py KEPT OUT     KEPT: what 50_record.py left in $CGLINT_RECORD_KEEP; OUT: tests/data/record/defects or faults
"""
import glob
import gzip
import json
import os
import re
import sys

# What a path begins with there, and what it begins with here.
FOLDERS = [(r".*/site-packages/", ""), (r".*/tests/gpu/record/", "tests/gpu/record/"), (r".*/record_programs/", "tests/gpu/record/"),
           (r"/usr/lib/", "/usr/lib/"), (r"/usr/include/", "/usr/include/"), (r"/usr/local/cuda[^/]*/", "cuda/"), (r"/lib/", "/lib/"), (r"/usr/bin/", "/usr/bin/"),
           (r".*/", "")]


def shorten(path):
    for pattern, replacement in FOLDERS:
        match = re.match(pattern, path)
        if match:
            return replacement + path[match.end():]
    return path


def main():
    kept, out = sys.argv[1:]
    os.makedirs(out, exist_ok=True)
    for folder in sorted(glob.glob(kept + "/*.bad") + glob.glob(kept + "/*.good")):
        files = glob.glob(folder + "/*.cgl.jsonl")
        if len(files) != 1:
            sys.exit(f"{folder} has {len(files)} recordings")
        with open(files[0], encoding="utf-8") as file, gzip.GzipFile(os.path.join(out, os.path.basename(folder) + ".cgl.jsonl.gz"), "wb", mtime=0) as packed:
            for line in file:
                record = json.loads(line)
                record.pop("host", None)
                if "command" in record:
                    record["command"] = " ".join(shorten(word) for word in record["command"].split(" "))
                for frame in record.get("frames", []):
                    frame["file"] = shorten(frame["file"])
                packed.write((json.dumps(record, separators=(",", ":"), ensure_ascii=False) + "\n").encode())


main()
