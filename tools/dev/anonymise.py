#!/usr/bin/env python3
"""Copies a capture file without what names say: NVTX ranges removed, kernels renamed k1...kn, graphs, keys and files of the host
renamed, addresses moved. What is left is structure, streams, parameters, times and stacks: structural, timing and address rules
must say the same about it.

usage: anonymise.py IN.cgl.jsonl[.gz] OUT.cgl.jsonl[.gz]
"""
import gzip
import json
import sys

SHIFT = 0x1_2340_0000_0000  # keeps every alignment up to 16 GiB
LOWEST, HIGHEST = 1 << 32, 1 << 56  # words outside are numbers, not addresses


def moved(text: str) -> str:
    value = int(text, 16)
    return hex(value + SHIFT) if LOWEST <= value < HIGHEST else text


class Anonymiser:
    def __init__(self):
        self.names = {}

    def renamed(self, prefix: str, text: str) -> str:
        known = self.names.setdefault(prefix, {})
        return f"{prefix}{known.setdefault(text, len(known) + 1)}"

    def node(self, node: dict) -> None:
        node.pop("nvtx", None)
        node.pop("name", None)
        for key in ("src", "dst", "address", "user_data"):
            if key in node:
                node[key] = moved(node[key])
        if "args" in node:
            node["args"] = [moved(value) for value in node["args"]]
        for word in node.get("params", []):
            word[3] = moved(word[3])
        if node["kind"] == "host" and isinstance(node.get("function"), str):
            node["function"] = self.renamed("h", node["function"])

    def line(self, line: dict) -> None:
        kind = line["type"]
        if kind == "process":
            for key in ("host", "command"):
                line.pop(key, None)
        elif kind == "allocations":
            for allocation in line["allocations"]:
                allocation["base"] = moved(allocation["base"])
        elif kind == "allocator_blocks":
            for block in line["blocks"]:
                block["base"] = moved(block["base"])
        elif kind == "access":
            for access in line["accesses"]:
                access[1:3] = [moved(access[1]), moved(access[2])]
        elif kind == "loose_ops":
            line["names"] = [self.renamed("k", name) for name in line["names"]]
        elif kind in ("graph", "instance"):
            info = line.get("info", {})
            if "name" in info:
                info["name"] = self.renamed("g", info["name"])
            if "key" in info:
                info["key"] = self.renamed("key", info["key"])
        if kind == "graph":
            line.pop("nvtx", None)
            line["facts"] = [fact for fact in line["facts"] if fact != "nvtx"]
            for function in line.get("functions", []):
                function["name"] = self.renamed("k", function["name"])
                for param in function.get("params", []):
                    if len(param) > 2:
                        param[2] = ""
            for stream in line.get("streams", []):
                stream.pop("name", None)
            for node in line["nodes"]:
                self.node(node)


def opened(path: str, mode: str):
    return gzip.open(path, mode + "t", encoding="utf-8") if path.endswith(".gz") else open(path, mode, encoding="utf-8")


def main() -> int:
    if len(sys.argv) != 3:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    anonymiser = Anonymiser()
    with opened(sys.argv[1], "r") as source, opened(sys.argv[2], "w") as target:
        for number, text in enumerate(source, 1):
            try:
                line = json.loads(text)
            except ValueError as error:
                print(f"{sys.argv[1]}:{number}: no JSON: {error}", file=sys.stderr)
                return 1
            anonymiser.line(line)
            target.write(json.dumps(line, separators=(",", ":")) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
