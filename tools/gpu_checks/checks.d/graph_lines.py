"""Helpers of the stream checks: the recorded graphs as the text lines that stream_probe reads, and what the probe wrote."""
import glob
import gzip
import json
import os
import subprocess

DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
PACKED_KIND = {"D": "C", "C": "U"}  # the other letters are those of the probe


def numbers_of(text):
    """The packed numbers of tests/data/streams: one base-62 digit each, or ~decimal;. '_' is -1."""
    out, i = [], 0
    while i < len(text):
        if text[i] == "~":
            end = text.index(";", i)
            out.append(int(text[i + 1:end]))
            i = end
        else:
            out.append(-1 if text[i] == "_" else DIGITS.index(text[i]))
        i += 1
    return out


def unpack(family, line):
    """A packed graph (tests/data/streams/README.md): its input line and its recorded streams."""
    kinds, parents, streams = line.split(" ")[:3]  # bodies of child graphs may follow
    kinds = "K" * int(kinds) if kinds.isdigit() else "".join(PACKED_KIND.get(letter, letter) for letter in kinds)
    edges, after = [], ""
    for node, text in enumerate(parents.split(".")):
        i = 0
        while i < len(text):
            back = text[i] == "-"
            i += back
            end = text.index(";", i) + 1 if text[i] == "~" else i + 1
            distance = numbers_of(text[i:end])[0] + 1
            kind = {"'": "p", '"': "l"}.get(text[end:end + 1], "")
            edges.append(f"{node + distance if back else node - distance}-{node}{kind}")
            after = " build=after" if back or after else ""
            i = end + bool(kind)
    return f"{family} {kinds} {','.join(edges) or '.'}{after}", numbers_of(streams)


def load_packed(step):
    """Every step-th graph of the recorded files: (file, input line, streams)."""
    graphs = []
    for path in sorted(glob.glob(os.path.join(os.environ["CGLINT_DATA"], "streams", "*.graphs.gz"))):
        name, family, count = os.path.basename(path).split(".")[0], "", 0
        with gzip.open(path, "rt") as file:
            for line in file.read().splitlines():
                if line.startswith("="):
                    family = line[1:]
                elif count % step == 0:
                    graphs.append((name, *unpack(family.replace(" ", "_") or "recorded", line)))
                count += not line.startswith("=")
    return graphs


def probe(*arguments, env=None):
    """Runs stream_probe; returns its exit code and the last line of its error output."""
    done = subprocess.run([os.path.join(os.environ["CGLINT_BIN"], "stream_probe"), *arguments], capture_output=True, text=True,
                          env=dict(os.environ, **(env or {})))
    return done.returncode, (done.stderr.strip().splitlines() or [""])[-1], done.stdout


def read_lines(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def same_partition(first, second):
    """Whether two stream lists group their recorded nodes alike (-1: no record, in both or neither)."""
    there, back = {}, {}
    for a, b in zip(first, second):
        if (a < 0) != (b < 0):
            return False
        if a >= 0 and (there.setdefault(a, b) != b or back.setdefault(b, a) != a):
            return False
    return len(first) == len(second)


def result(status, reason="", **numbers):
    print(json.dumps({"status": status, "reason": reason, "numbers": numbers}))
