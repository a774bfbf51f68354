#!/usr/bin/env python3
"""`cglint capture` without a GPU: arguments, the order of its children, the merged capture file, the table, the comparison with a
manifest, failures and interruption. A script stands in for the runner and the recorder.

usage: capture_test.py BIN_FOLDER [TEST...]
"""
import gzip
import json
import os
import pathlib
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.dont_write_bytecode = True  # of the scripts that tests import
ROOT = HERE.parents[1]
BIN = pathlib.Path(sys.argv[1])


def check(good, text):
    if not good:
        raise AssertionError(text)


class Place:
    """A folder with cglint, cglint-capture and the fakes."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.bin = self.folder / "bin"
        self.bin.mkdir()
        for name in ("cglint", "cglint-capture"):
            shutil.copy(BIN / name, self.bin)
        for library in BIN.glob("*.so.*"):
            shutil.copy(library, self.bin)
        for name in ("cglint-record", "cglint-model-runner"):
            shutil.copy(HERE / "fake_runner.py", self.bin / name)
            (self.bin / name).chmod(stat.S_IRWXU)
        recording = self.folder / "recording.jsonl"
        recording.write_bytes(gzip.decompress((ROOT / "tests/data/record/two_streams.cgl.jsonl.gz").read_bytes()))
        self.log = self.folder / "log"
        self.env = {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C.UTF-8", "FAKE_RECORDING": str(recording), "FAKE_LOG": str(self.log),
                    "FAKE_DOT": str(ROOT / "tests/data/dot/captured.00001.dot"), "CUDA_INJECTION64_PATH": "none"}

    def run(self, *words, timeout=300):
        self.log.write_text("")
        done = subprocess.run([self.bin / "cglint", "capture", *words], capture_output=True, text=True, env=self.env, cwd=self.folder, timeout=timeout)
        return done.returncode, done.stdout, done.stderr

    def children(self):
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def lines(self, name):
        return [json.loads(line) for line in gzip.decompress((self.folder / name).read_bytes()).decode().splitlines()]

    def command(self, name):
        return next(line["command"] for line in self.lines(name) if line["type"] == "process")


def two_streams(run):
    """A recording that says it is of this run: "MODEL --variant V ..."."""
    text = gzip.decompress((ROOT / "tests/data/record/two_streams.cgl.jsonl.gz").read_bytes())
    check(text.count(b'"command":"two_streams"') == 1, "the recording has a command")
    return text.replace(b'"command":"two_streams"', b'"command":"cglint-model-runner run %s"' % run.encode())


def arguments(place):
    code, out, _ = place.run("--help")
    check(code == 0 and "--variant" in out and "Exit codes" in out, "--help")
    for words, expected in (([], "which model"), (["two_brunch"], "did you mean two_branch"), (["two_branch", "--variant", "side_frist"], "did you mean side_first"),
                            (["two_branch", "--preset", "smal"], "did you mean small"), (["two_branch", "--batch", "0"], "--batch"),
                            (["two_branch", "--layers", "x"], "--layers"), (["two_branch", "--wrong"], "--wrong"), (["two_branch", "--resume"], "--results"),
                            (["two_branch", "--verify", "--no-trace"], "--verify"), (["two_branch", "-o", "one.cgl.jsonl"], "one file"),
                            (["two_branch", "--variant", "side_first", "--connections", "64"], "--connections"),
                            (["two_branch", "--batch", "1,,2"], "is empty"), (["two_branch", "--batch", "1,"], "is empty"), (["two_branch", "--layers", ""], "is empty"),
                            (["two_branch", "--variant", "side_first,"], "is empty"), (["two_branch", "--batch", "1,2,01"], "1 is there twice"),
                            (["two_branch", "--variant", "same,side_first,same"], "same is there twice"), (["two_branch", "--connections", "8", "--connections", "8"], "8 is there twice"),
                            (["two_branch", "--seed", "-1"], "--seed"), (["two_branch", "--seed=-1"], "--seed"), (["two_branch", "--draft-tokens", "2"], "--serve"),
                            (["two_branch", "--draft-layers", "2"], "--serve"), (["two_branch", "-o", ""], "a value is empty"), (["two_branch", "--moe-config", ""], "--moe-config"),
                            (["two_branch", "--seed", "99999999999999999999999"], "18446744073709551615"), (["two_branch", "--seed", "-1"], "whole number"),
                            (["two_branch", "--results", str(place.bin)], "Is a directory"), (["two_branch", "--results", "/proc/x/y.json"], "/proc/x/y.json: cannot write"),
                            (["two_branch", "--results", "none/r.json"], "none/r.json: cannot write")):
        code, out, err = place.run(*words)
        check(code == 2 and expected in err and err.count("\n") == 1 and not place.children(), f"{words}: {code} {err}")
    code, out, _ = place.run("--list")
    check(code == 0 and "side_first" in out and "CG101" in out and "large" in out, f"--list: {out}")
    for name in ("cglint-model-runner", "cglint-record"):
        (place.bin / name).rename(place.bin / "away")
        code, _, err = place.run("two_branch")
        check(code == 2 and err.count("\n") == 1 and f"{name} is not in {place.bin.resolve()}," in err and f"--target {name}'" in err, f"without {name}: {code} {err}")
        (place.bin / "away").rename(place.bin / name)


def output(place):
    """Standard output that cannot be written: one error, exit 2, for whatever goes there."""
    shutil.copy(ROOT / "tests/data/record/two_streams.cgl.jsonl.gz", place.folder / "main_first.tiny.b1.cgl.jsonl.gz")
    kept = ["--verify-recordings", "main_first.tiny.b1.cgl.jsonl.gz"]
    for words in (["--help"], ["--list"], ["--list", "--format", "json"], ["two_branch", *kept], ["two_branch", "--format", "json", *kept],
                  ["two_branch", "--variant", "side_first", "-q", "-o", "out"]):
        command = [place.bin / "cglint", "capture", *words]
        with open("/dev/full", "w") as full:
            done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=place.env, cwd=place.folder)
        check(done.returncode == 2 and done.stderr == "cglint capture: error: standard output: No space left on device\n", f"{words}: {done.returncode} {done.stderr}")
        reader, writer = os.pipe()
        os.close(reader)
        done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, env=place.env, cwd=place.folder)
        os.close(writer)
        check(done.returncode == -signal.SIGPIPE and done.stderr == "", f"{words} when nobody reads: {done.returncode} {done.stderr}")


def good(place):
    code, out, err = place.run("two_branch", "--variant", "side_first", "-o", "out", "--results", "r.json", "--seed", "7", "--context", "99", "--connections", "8")
    check(code == 0, f"{code} {err}")
    traced, untraced = place.children()
    check("--wait" in traced["arguments"] and "--wait" not in untraced["arguments"], "the traced child comes first")
    check(untraced["injection"] is None, "nothing is injected into the untraced child")
    for child in (traced, untraced):
        words = child["arguments"]
        check(child["connections"] == "8" and words[words.index("--seed") + 1] == "7" and words[words.index("--context") + 1] == "99" and
              words[words.index("--layers") + 1] == "2", f"{child}")
    lines = place.lines("out/two_branch.side_first.small.b1.c8.cgl.jsonl.gz")
    graph = next(line for line in lines if line["type"] == "graph")
    timing = next(line for line in lines if line["type"] == "timing")
    check(graph["info"]["memory_bytes"] == 65536 and graph["info"]["instantiate_ns"] == 345600 and graph["info"]["upload_ns"] == 12300 and
          graph["info"]["batch_size"] == 1, f"{graph['info']}")
    check({"untraced_times", "instantiate_info", "graph_key", "replay_times"} <= set(graph["facts"]), f"{graph['facts']}")
    check((timing["samples"], timing["median_us"], timing["p10_us"], timing["p90_us"], timing["launch_cpu_us"]) == (200, 123.4, 120.0, 130.0, 7.5), f"{timing}")
    check(lines[-1]["type"] == "end" and any(line["type"] == "replays" for line in lines), "the recording is whole")
    command = place.command("out/two_branch.side_first.small.b1.c8.cgl.jsonl.gz")
    check(command == "cglint-model-runner run two_branch --variant side_first --preset small --layers 2 --batch 1 --context 99 --seed 7", command)
    run = json.loads((place.folder / "r.json").read_text())["runs"][0]
    check(run["streams_measured"] == 2 and run["streams_predicted"] == 2 and run["findings"] == [] and run["nodes"] == 5 and run["exit_code"] == 0, f"{run}")
    row = next(line for line in out.splitlines() if line.startswith("side_first"))
    check(row.split() == ["side_first", "2", "1", "8", "5", "2/2", "123.4", "120.0", "130.0", "0.35", "12", "7.5", "0.07", "ok", "0.001", "none"], row)
    check(not list(place.folder.glob("out/*.part")), "the scratch folder is gone")


def beside(place):
    code, out, err = place.run("two_branch", "--variant", "side_first", "--beside", "same", "-o", "out", "--format", "json")
    check(code == 0, f"{code} {err}")
    traced, = place.children()  # times are those of runs of one graph
    words = traced["arguments"]
    check("--wait" in words and words[words.index("--beside") + 1] == "same", f"{words}")
    run = json.loads(out)["runs"][0]
    check(place.command("out/" + run["recording"]).endswith(" --seed 1 --beside same"), "the command says what is beside it")
    check(run["beside"] == "same" and run["recording"] == "two_branch.side_first.small.b1.beside-same.cgl.jsonl.gz" and run["streams_measured"] == 2, f"{run}")
    for words, expected in ((["--beside", "sme"], "did you mean same"), (["--beside", "same", "--no-trace"], "not with"), (["--beside", "same", "--serve", "2"], "not with")):
        code, _, err = place.run("two_branch", "--variant", "side_first", *words)
        check(code == 2 and expected in err and not place.children(), f"{words}: {code} {err}")


def accesses(place):
    code, out, err = place.run("two_branch", "--variant", "side_first", "--measure-access", "-o", "out", "--format", "json")
    check(code == 0, f"{code} {err}")
    check(["--measure-access" in child["arguments"] for child in place.children()] == [False, False, True], "accesses have a process of their own")
    lines = place.lines("out/two_branch.side_first.small.b1.cgl.jsonl.gz")
    record = next(line for line in lines if line["type"] == "access")
    check(record["reads_are_some"] and record["accesses"] == [[1, "0x7fc5dbe00000", "0x7fc5dbe00400", "rw"]], f"{record}")
    check("measured_access" in next(line for line in lines if line["type"] == "graph")["facts"], "the fact is stated")
    check(json.loads(out)["runs"][0]["accesses"]["kernels"] == 2, out)
    code, out, _ = place.run("two_branch", "--variant", "moved", "--measure-access", "-o", "out", "--format", "json")
    check(code == 3 and "point elsewhere" in json.loads(out)["runs"][0]["error"], f"{code} {out}")
    code, _, err = place.run("two_branch", "--variant", "side_first", "--measure-access", "--no-trace")
    check(code == 2 and "not with" in err, f"{code} {err}")


def nulls(place):
    """Of a graph that is not replayed: kernels with null arguments alone, each fault in a process of its own."""
    def capture(variant, *words):
        code, out, err = place.run("two_branch", "--variant", variant, "--measure-access", "-o", "out", "--format", "json", *words)
        run = json.loads(out)["runs"][0]
        isolated = [child for child in place.children() if "--isolate" in child["arguments"]]
        check(all(child["injection"] is None for child in isolated), "nothing is injected")
        return code, run, [" ".join(child["arguments"][child["arguments"].index("--isolate") + 1:]) for child in isolated], err

    def recorded(variant):
        """The accesses, and confidence and arguments of CG301."""
        name = place.folder / f"out/two_branch.{variant}.small.b1.cgl.jsonl.gz"
        lines = place.lines(name)
        check("measured_access" not in next(line for line in lines if line["type"] == "graph")["facts"], "what the kernels touch is not measured")
        done = subprocess.run([place.bin / "cglint", "lint", name, "--format", "json", "--confidence", "possible"], capture_output=True, text=True, env=place.env)
        found = [finding for finding in json.loads(done.stdout)["findings"] if finding["code"] == "CG301"]
        return ([row for line in lines if line["type"] == "access" for row in line["accesses"]],
                [(finding["confidence"], finding["evidence"]["argument"], finding["evidence"]["null_nodes"], "isolated run" in finding["message"]) for finding in found])

    for variant, replays in (("null", False), ("null_linted", False)):
        code, run, processes, err = capture(variant)
        proof = run["null_proof"]
        # The first two kernels fault; for each the null word that is not its address is tried last.
        check(code == 0 and processes == ["0", "2", "3", "1 --patch 0:0", "1 --patch 0:0 --unmapped", "2 --patch 0:0", "2 --patch 0:0 --unmapped"], f"{code} {processes} {err}")
        check([(node["node"], node["argument"], node["byte"], node["value"], node["null_words"], node["function"]) for node in proof["proven"]] ==
              [(1, 0, 0, 0, 2, "scale"), (2, 0, 0, 64, 1, "scale")] and proof["not_proven"] == [] and proof["refused"] == [], f"{proof}")
        check((proof["nodes"], proof["kernels"], proof["kinds"], proof["launches"], proof["processes"]) == (5, 3, 3, 3, 7) and "cudaErrorIllegalAddress" in proof["proven"][0]["message"], f"{proof}")
        check("not_replayed" in run and "accesses" not in run and "fault" not in run and "node 1 alone faults" in err, f"{run} {err}")
        check(recorded(variant) == ([[1, "0x0", "0x1", "?", 0, 0], [2, "0x40", "0x41", "?", 0, 0]], [("certain", 0, 2, True)]), f"{recorded(variant)}")
    code, out, _ = place.run("two_branch", "--variant", "null", "-o", "plain")
    check(not any("--isolate" in child["arguments"] for child in place.children()), "only where it is asked for")
    code, out, err = place.run("two_branch", "--variant", "null,side_first", "--measure-access", "--force", "-o", "out", "-q")
    check(code == 0 and "the replay faulted: the replay: cudaErrorIllegalAddress" in out and "argument 0 byte 0 of node 1 is null and dereferenced" in out and
          "argument 0 byte 0 of node 2 is null plus 64" in out and err == "" and any("--measure-access" in child["arguments"] for child in place.children()), f"{code} {out} {err}")

    for variant, expected, why in (("null_elsewhere", ["0", "2", "1 --patch 0:0"], "no single null word"),
                                   ("null_number", ["0", "2", "1 --patch 0:0", "1 --patch 0:0 --unmapped"], "be it an address or not")):
        code, run, processes, err = capture(variant)
        proof = run["null_proof"]
        check(code == 0 and processes == expected and proof["proven"] == [] and why in proof["not_proven"][0]["why"] and why in err, f"{variant}: {code} {processes} {proof} {err}")
        rows, found = recorded(variant)
        check(rows == [] and found and all(confidence != "certain" for confidence, *_ in found), f"{variant}: {rows} {found}")
        check("alone faults, which proves nothing" in place.run("two_branch", "--variant", variant, "--measure-access", "-o", "out", "-q")[1], "the table says so")
    code, run, processes, _ = capture("null_refused")
    check(code == 0 and processes == ["0", "3", "2 --patch 0:0", "2 --patch 0:0 --unmapped"] and run["null_proof"]["refused"][0]["node"] == 1 and
          "not supported" in run["null_proof"]["refused"][0]["message"] and recorded("null_refused")[0] == [[2, "0x40", "0x41", "?", 0, 0]], f"{code} {processes} {run}")
    # What was proven before a launch that does not end is kept.
    code, run, processes, err = capture("null_hangs", "--timeout", "3")
    check(code == 3 and processes == ["0", "2", "1 --patch 0:0", "1 --patch 0:0 --unmapped"] and "node 2 alone ran past 3 s" in run["error"] and
          recorded("null_hangs")[0] == [[1, "0x0", "0x1", "?", 0, 0]], f"{code} {processes} {run}")
    code, run, _, _ = capture("null_other")
    check(code == 3 and "another one here" in run["error"], f"{code} {run}")
    # --resume: a run without the proof is not what is asked for.
    place.run("two_branch", "--variant", "null", "-o", "out", "--results", "r.json")
    for expected in (True, False):
        place.run("two_branch", "--variant", "null", "-o", "out", "--results", "r.json", "--resume", "--measure-access")
        check(any("--isolate" in child["arguments"] for child in place.children()) == expected, f"--resume: {expected}")


def sweep(place):
    code, out, _ = place.run("two_branch", "--variant", "side_first", "--layers", "1,2", "--batch", "1,8", "--connections", "1,32", "--format", "json", "-q", "-o", "out")
    runs = json.loads(out)["runs"]
    check(code == 0 and len(runs) == 8 and {(run["layers"], run["batch"], run["connections"]) for run in runs} ==
          {(l, b, c) for l in (1, 2) for b in (1, 8) for c in (1, 32)}, f"{code} {len(runs)}")
    check(len(list(place.folder.glob("out/*.cgl.jsonl.gz"))) == 8, "a file for each run")


def resume(place):
    place.run("two_branch", "--variant", "side_first,wrong", "-o", "out", "--results", "r.json")
    code, out, _ = place.run("two_branch", "--variant", "side_first,wrong", "-o", "out", "--results", "r.json", "--resume")
    check(code == 1 and {child["arguments"][3] for child in place.children()} == {"wrong"}, "only what did not go through runs again")
    check(len(json.loads((place.folder / "r.json").read_text())["runs"]) == 2, "each run is there once")
    (place.folder / "r.json").write_text("{}")
    code, _, err = place.run("two_branch", "--results", "r.json", "--resume")
    check(code == 2 and "r.json" in err, "a results file that is none")


def failures(place):
    code, out, _ = place.run("two_branch", "--variant", "null", "-o", "out")
    waits = ["--wait" in child["arguments"] for child in place.children()]
    check(code == 0 and waits == [True, False] and "--no-replay" in place.children()[1]["arguments"] and "not replayed" in out, f"{code} {out}")
    code, out, _ = place.run("two_branch", "--variant", "null", "-o", "out", "--force")
    check(code == 0 and len(place.children()) == 3 and "FAULT" in out and "cudaErrorIllegalAddress" in out, f"{code} {out}")
    for variant, expected, text in (("wrong", 1, "WRONG 0.500"), ("not_eager", 1, "NOT AS EAGER"), ("big", 4, "24.0 GB needed"), ("crash", 3, "signal 11"),
                                    ("faults", 3, "cudaErrorIllegalAddress"), ("no_capture", 0, "capture fails")):
        code, out, err = place.run("two_branch", "--variant", variant, "-o", "out")
        check(code == expected and text in out, f"{variant}: {code}\n{out}\n{err}")
    check((place.folder / "out/two_branch.faults.small.b1.cgl.jsonl.gz").exists(), "what was recorded before the fault is kept")
    code, out, err = place.run("two_branch", "--variant", "no_gpu,side_first", "-o", "out")
    check(code == 4 and "no usable GPU" in err and len(place.children()) == 1 and out == "", f"no GPU: {code} {out} {err}")
    code, out, _ = place.run("two_branch", "--variant", "side_first,same", "-o", "out")
    check(code == 0 and "DIFFER" not in out, "equal bits")
    code, out, _ = place.run("two_branch", "--variant", "side_first,other_bits", "-o", "out")
    check(code == 1 and "BITS DIFFER" in out, f"other bits: {code} {out}")
    code, out, err = place.run("two_branch", "--variant", "noisy", "-o", "out")
    check(code == 0 and "COMPUTE-SANITIZER" in err, "lines that are no events are passed on")


def no_results(place):
    """A runner that ends well without a result has failed: exit 3, whatever it was to tell."""
    def fails(variant, why, *words):
        code, out, err = place.run("two_branch", "--variant", variant, "-o", "out", "--format", "json", *words)
        run = json.loads(out)["runs"][0]
        check(code == 3 and run["exit_code"] == 3 and run["error"] == why, f"{variant} {words}: {code} {out} {err}")

    without = "the runner ended with exit code {}, but without its result: no '{}'"
    for variant, code, event, words in (("silent", 0, "instantiated", []), ("silent", 0, "captured", ["--no-trace"]), ("silent", 0, "captured", ["--check-only"]), ("silent", 0, "captured", ["--no-trace", "--serve", "2"]),
                                        ("silent_go", 0, "replayed", []), ("silent_untraced", 0, "output", []), ("silent_untraced", 0, "output", ["--no-trace"]), ("silent_untraced", 0, "output", ["--check-only"]),
                                        ("silent_untraced", 0, "output", ["--no-trace", "--samples", "0", "--no-check"]), ("silent_wrong", 1, "output", []), ("no_times", 0, "timing", []),
                                        ("captures", 0, "capture_failed", []), ("captures", 0, "capture_failed", ["--no-trace"]), ("no_accesses", 0, "accesses", ["--measure-access"]),
                                        ("null_silent", 0, "isolation", ["--measure-access"]), ("null_silent_patch", 0, "isolated", ["--measure-access"])):
        fails(variant, without.format(code, event), *words)
    fails("no_dot", "the runner ended well, but did not write the graph that it was asked for (--dot)", "--no-trace")
    check("ERROR" in place.run("two_branch", "--variant", "silent", "-o", "out")[1], "the table says so")
    # What was not asked for is not missed.
    for words in (["--no-trace"], ["--no-trace", "--samples", "0"], ["--no-check"], ["--check-only"], ["--check-only", "--no-check"], ["--samples", "0", "--no-check"]):
        code, out, err = place.run("two_branch", "--variant", "side_first", "-o", "out", *words)
        check(code == 0, f"{words}: {code} {out} {err}")
    code, out, err = place.run("two_branch", "--variant", "no_times", "-o", "out", "--samples", "0")
    check(code == 0, f"no times asked for: {code} {out} {err}")


def folders(place):
    """A series that writes nothing leaves no folder behind that it made itself."""
    (place.folder / "kept").mkdir()
    long = "x" * 300
    for words, expected in ((["no_gpu", "-o", "new/folder/"], 4), (["no_gpu", "-o", "kept/new"], 4), (["no_gpu", "-o", "new/../other/./folder"], 4),
                            (["no_gpu", "-o", str(place.folder / "new/one.cgl.jsonl.gz")], 4), (["no_gpu", "-o", "kept/one.cgl.jsonl.gz"], 4), (["no_gpu", "-o", "kept/"], 4),
                            (["big", "-o", "new"], 4), (["crash", "-o", "new/folder"], 3), (["no_gpu", "-o", "new/folder", "--results", "r.json"], 4),
                            (["side_first", "-o", "new", "--results", "none/r.json"], 2), (["side_first", "-o", f"new/{long}"], 2), (["side_first", "-o", "recording.jsonl/new"], 2)):
        code, _, err = place.run("two_branch", "--variant", *words)
        check(code == expected, f"{words}: {code} {err}")
        check((place.folder / "kept").is_dir() and not list((place.folder / "kept").iterdir()), f"{words}: a folder that was there stays as it was")
        check(not (place.folder / "new").exists() and not (place.folder / "other").exists(), f"{words}: a folder is left behind")
    code, _, err = place.run("two_branch", "--variant", "no_gpu", "-o", "new/folder", "--results", "new/folder/r.json")
    check(code == 4 and [path.name for path in (place.folder / "new/folder").iterdir()] == ["r.json"], f"results in a new folder: {code} {err}")
    code, _, err = place.run("two_branch", "--variant", "side_first,no_gpu", "-o", "other/folder")
    check(code == 4 and len(list((place.folder / "other/folder").glob("*.gz"))) == 1, f"what was recorded stays: {code} {err}")
    code, _, err = place.run("two_branch", "--variant", "side_first", "-o", "third", "--results", "new/folder/r.json", "--resume")
    check(code == 0 and len(list((place.folder / "third").glob("*.gz"))) == 1, f"--resume: {code} {err}")


def not_traced(place):
    code, out, _ = place.run("two_branch", "--variant", "taken", "-o", "out")
    check(code == 4 and "not traced: CUPTI is in use by another tool" in out, f"{code} {out}")
    lines = place.lines("out/two_branch.taken.small.b1.cgl.jsonl.gz")
    graph = next(line for line in lines if line["type"] == "graph")
    check("edges" in graph["facts"] and "replay_streams" not in graph["facts"] and any(line["type"] == "timing" for line in lines), "structure and times without a trace")
    check(any(line["type"] == "loss" and "CUPTI is in use" in line["what"] for line in lines), "the file says that it was not traced")
    check(" two_branch --variant taken " in place.command("out/two_branch.taken.small.b1.cgl.jsonl.gz"), "the file says which run it is of")
    code, out, _ = place.run("two_branch", "--variant", "side_first", "-o", "out", "--no-trace")
    check(code == 0 and ["--wait" in child["arguments"] for child in place.children()] == [False] and "/-" in out, f"--no-trace: {code} {out}")
    code, out, _ = place.run("two_branch", "--variant", "side_first", "-o", "none", "--check-only")
    words = place.children()[0]["arguments"]
    check(code == 0 and len(place.children()) == 1 and words[words.index("--samples") + 1] == "0" and not (place.folder / "none").exists(), "--check-only")


def verify(place):
    code, out, _ = place.run("two_branch", "--variant", "side_first", "-o", "out", "--verify")
    check(code == 1 and "expected, not found: CG101 CG102" in out and "NOT AS EXPECTED" in out and "1 streams expected" not in out, f"{code} {out}")
    code, out, _ = place.run("two_branch", "--variant", "same", "-o", "out", "--verify")
    check(code == 1 and "the manifest says nothing about this run" in out, f"{code} {out}")


def recordings(place):
    (place.bin / "cglint-model-runner").unlink()  # needs neither a model nor a GPU
    run = "two_branch --variant main_first --preset tiny --layers 4 --batch"
    for name, words in (("main_first.tiny.b1.cgl.jsonl.gz", f"{run} 1"), ("two_branch.side_first.tiny.b1.l2.cgl.jsonl.gz", "two_branch --variant side_first --preset tiny --layers 2 --batch 1"),
                        ("main_first.huge.b1.cgl.jsonl.gz", "two_branch --variant main_first --preset huge --layers 9 --batch 1"), ("odd.gz", f"{run} 1")):
        (place.folder / name).write_bytes(gzip.compress(two_streams(words)))
    good = "main_first.small.b1.l8.cgl.jsonl.gz"
    shutil.copy(ROOT / "reference_models/two_branch/recordings" / good, place.folder)
    for name, expected, text in ((good, 0, "as expected: no finding"), ("main_first.tiny.b1.cgl.jsonl.gz", 1, ": CG203 was not checked: the accesses of some kernels are not known"), ("two_branch.side_first.tiny.b1.l2.cgl.jsonl.gz", 1, "3 streams expected, 2 measured"),
                                 ("main_first.huge.b1.cgl.jsonl.gz", 1, "how many layers"), ("odd.gz", 2, "the name is not"), ("gone.tiny.b1.cgl.jsonl", 2, "gone.tiny.b1.cgl.jsonl: no such file")):
        code, out, err = place.run("two_branch", "--verify-recordings", name)
        check(code == expected and text in out + err, f"{name}: {code} {out} {err}")
        check(all(line.startswith("cglint capture: error: ") for line in err.splitlines()), f"{name}: {err}")
    code, out, _ = place.run("two_branch", "--verify-recordings", good, "--format", "json")
    run = json.loads(out)["runs"][0]
    check(code == 0 and run["verify"]["ok"] and run["findings"] == [] and run["streams_measured"] == 2 and run["layers"] == 8, f"{run}")
    whole = two_streams(f"{run} 2")
    (place.folder / "main_first.tiny.b2.cgl.jsonl").write_bytes(whole[:len(whole) * 2 // 3])
    code, out, err = place.run("two_branch", "--verify-recordings", "main_first.tiny.b2.cgl.jsonl")
    check(code == 1 and "not whole: " in out and "as expected" not in out, f"a torn recording: {code} {out} {err}")
    (place.folder / "main_first.tiny.b3.cgl.jsonl").write_bytes(whole.split(b"\n")[0] + b"\n")
    code, out, err = place.run("two_branch", "--verify-recordings", "main_first.tiny.b3.cgl.jsonl")
    check(code == 1 and "nothing to check: " in out, f"a recording of nothing: {code} {out} {err}")
    for words, expected in ((["two_brunch"], "did you mean two_branch"), ([], "which model")):
        code, out, err = place.run(*words, "--verify-recordings", "odd.gz")
        check(code == 2 and expected in err and out == "", f"{words}: {code} {out} {err}")
    for words in (["--variant", "side_first"], ["--layers", "3"], ["--results", "r.json"], ["-o", "out"], ["--force"]):
        code, out, err = place.run("two_branch", *words, "--verify-recordings", "main_first.tiny.b1.cgl.jsonl.gz")
        check(code == 2 and "not with --verify-recordings" in err and out == "", f"{words} is for runs: {code} {out} {err}")
    code, out, err = place.run("two_branch", "--verify-recordings", "missing/main_first.tiny.b1.cgl.jsonl.gz")
    check(code == 2 and "missing/main_first.tiny.b1.cgl.jsonl.gz: no such file" in err and out == "", f"a missing recording: {code} {out} {err}")
    code, _, err = place.run("no_such_model", "--verify-recordings", "odd.gz")
    check(code == 2 and "no manifest" in err, f"{code} {err}")


def other_recordings(place):
    """A recording of another run than was asked for is one difference, whatever the linter finds in it."""
    def verify_as(source, model, name):
        shutil.copy(source, place.folder / name)
        code, out, err = place.run(model, "--verify-recordings", name)
        check(err == "" and out.count("\n") == 1 and out.startswith(name + ": "), f"{name}: {code} {out} {err}")
        return code, out.removeprefix(name + ": ").removesuffix("\n")

    k2 = ROOT / "reference_models/k2_full/recordings/mla_main_moe_main.k2-tp8.b1.l8.cgl.jsonl.gz"
    held = "holds k2_full mla_main_moe_main k2-tp8, 8 layers, batch 1; asked for was deepseek_moe"
    for name in ("mla_main_moe_main.k2-tp8.b1.l8.cgl.jsonl.gz", "k2_full.mla_main_moe_main.k2-tp8.b1.l8.cgl.jsonl.gz"):
        check(verify_as(k2, "deepseek_moe", name) == (1, f"{held} mla_main_moe_main k2-tp8, 8 layers, batch 1"), name)
    check(verify_as(k2, "deepseek_moe", "late_wait.k2-tp8.b1.l8.cgl.jsonl.gz") == (1, f"{held} late_wait k2-tp8, 8 layers, batch 1"), "another model under the name of a variant")
    # These have what the manifest says of what they are taken for.
    deepseek = ROOT / "reference_models/deepseek_moe/recordings"
    main_first = deepseek / "main_first.k2-tp8.b1.l8.cgl.jsonl.gz"
    for source, name, text in (
            (ROOT / "reference_models/two_branch/recordings/main_first.small.b1.l8.cgl.jsonl.gz", "main_first.k2-tp8.b1.l8.cgl.jsonl.gz",
             "holds two_branch main_first small, 8 layers, batch 1; asked for was deepseek_moe main_first k2-tp8, 8 layers, batch 1"),
            (main_first, "event_early_fixed.k2-tp8.b1.l8.cgl.jsonl.gz",
             "holds deepseek_moe main_first k2-tp8, 8 layers, batch 1; asked for was deepseek_moe event_early_fixed k2-tp8, 8 layers, batch 1"),
            (main_first, "main_first.v3-tp8.b1.l8.cgl.jsonl.gz", "holds deepseek_moe main_first k2-tp8, 8 layers, batch 1; asked for was deepseek_moe main_first v3-tp8, 8 layers, batch 1"),
            (main_first, "main_first.k2-tp8.b1.cgl.jsonl.gz", "holds deepseek_moe main_first k2-tp8, 8 layers, batch 1; asked for was deepseek_moe main_first k2-tp8, 61 layers, batch 1"),
            (main_first, "main_first.k2-tp8.b4.l8.cgl.jsonl.gz", "holds deepseek_moe main_first k2-tp8, 8 layers, batch 1; asked for was deepseek_moe main_first k2-tp8, 8 layers, batch 4")):
        check(verify_as(source, "deepseek_moe", name) == (1, text), f"{name}: {verify_as(source, 'deepseek_moe', name)}")
    check(verify_as(ROOT / "reference_models/kimi_linear/recordings/gated.48b-a3b-tp2.b2048.l4.beside-sequential.cgl.jsonl.gz", "kimi_linear", "gated.48b-a3b-tp2.b2048.l4.cgl.jsonl.gz") ==
          (1, "holds kimi_linear gated 48b-a3b-tp2, 4 layers, batch 2048, beside sequential; asked for was kimi_linear gated 48b-a3b-tp2, 4 layers, batch 2048"), "beside")
    code, said = verify_as(ROOT / "tests/data/record/two_streams.cgl.jsonl.gz", "two_branch", "main_first.tiny.b1.cgl.jsonl.gz")
    check(code == 1 and said.endswith("; does not say which run it holds"), f"of another program: {code} {said}")
    code, out, _ = place.run("deepseek_moe", "--verify-recordings", "late_wait.k2-tp8.b1.l8.cgl.jsonl.gz", str(main_first), "--format", "json")
    other, same = json.loads(out)["runs"]
    check(code == 1 and not other["verify"]["ok"] and len(other["verify"]["differences"]) == 1 and "findings" not in other and same["verify"]["ok"], f"{code} {out}")


def tables(place):
    """The linter is given the tile tables that the model was built with, unless --moe-config names others."""
    folder = place.folder / "tmp"
    folder.mkdir()
    place.env["TMPDIR"] = str(folder)
    kept = sorted(str(path) for path in (ROOT / "reference_models/fused_moe/recordings").glob("*.gz"))
    (place.folder / "other").mkdir()
    (place.folder / "other/E=8,N=64,device_name=NVIDIA_H200.json").write_text('{"1": {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 1, "num_warps": 4, "num_stages": 2}}')
    code, out, err = place.run("fused_moe", "--verify-recordings", *kept)
    check(code == 0 and err == "" and "default.k2-tp4.b1.l8.cgl.jsonl.gz: as expected: CG605" in out and "tuned.k2-tp4.b1.l8.cgl.jsonl.gz: as expected: no finding" in out, f"{code} {out} {err}")
    code, out, err = place.run("fused_moe", "--moe-config", "other", "--verify-recordings", *kept)
    check(code == 1 and err == "" and out.count("CG605 was not checked: ") == len(kept) >= 2, f"a table of another shape: {code} {out} {err}")
    code, out, err = place.run("fused_moe", "--moe-config", "nowhere", "--verify-recordings", *kept)
    check(code == 2 and out == "" and err.count("\n") == 1 and "nowhere: cannot read the folder" in err, f"no such folder: {code} {out} {err}")
    code, out, err = place.run("fused_moe", "--moe-config", "nowhere")
    check(code == 2 and out == "" and err.count("\n") == 1 and "nowhere: cannot read the folder" in err, f"no such folder, before anything runs: {code} {out} {err}")
    check(not list(folder.iterdir()), "the folder of the tables is gone")
    place.env["TMPDIR"] = str(place.folder / "none")
    code, out, err = place.run("fused_moe", "--verify-recordings", *kept)
    check(code == 2 and out == "" and err.count("\n") == 1 and "tile tables" in err, f"no folder for temporary files: {code} {out} {err}")


def ending(place):
    process = subprocess.Popen([place.bin / "cglint", "capture", "two_branch", "--variant", "null_hangs", "--measure-access", "-o", "out", "--results", "r.json"], env=place.env,
                               cwd=place.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for _ in range(2000):
        if place.log.exists() and any(child["arguments"][-2:] == ["--isolate", "2"] for child in place.children()):
            break
        time.sleep(0.05)
    time.sleep(0.5)
    child = place.children()[-1]["pid"]
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=120)
    run = json.loads((place.folder / "r.json").read_text())["runs"][0]
    check(process.returncode == 130 and run["exit_code"] == 130 and run["null_proof"]["processes"] == 2 and not pathlib.Path(f"/proc/{child}").exists(), f"{process.returncode} {run}")
    code, out, _ = place.run("two_branch", "--variant", "hang", "-o", "out", "--timeout", "3")
    check(code == 3 and "ran past 3 s" in out, f"--timeout: {code} {out}")
    for how in (signal.SIGINT, signal.SIGTERM):
        shutil.rmtree(place.folder / "out", ignore_errors=True)
        place.log.write_text("")
        process = subprocess.Popen([place.bin / "cglint", "capture", "two_branch", "--variant", "hang,side_first", "-o", "out", "--results", "r.json"], env=place.env,
                                   cwd=place.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2000):
            files = list(place.folder.glob("out/*.part/*.cgl.jsonl"))
            if files and '"type": "graph"' in files[0].read_text():
                break
            time.sleep(0.05)
        child = place.children()[0]["pid"]
        time.sleep(0.5)
        process.send_signal(how)
        out, err = process.communicate(timeout=120)
        check(process.returncode == 130 and "interrupted" in err, f"{how}: {process.returncode} {err}")
        check(not pathlib.Path(f"/proc/{child}").exists(), "the child is gone")
        name = place.folder / "out/two_branch.hang.small.b1.cgl.jsonl.gz"
        done = subprocess.run([place.bin / "cglint", "lint", name, "--format", "json"], capture_output=True, text=True, env=place.env)
        check(json.loads(done.stdout)["inputs"][0]["graphs"][0]["nodes"] == 5, "the file reads up to where it stopped")
        check(not list(place.folder.glob("out/*.part")), "the scratch folder is gone")
        check(" two_branch --variant hang " in place.command("out/two_branch.hang.small.b1.cgl.jsonl.gz"), "the file says which run it is of")


def measure_jobs(place):
    """cglint capture takes the arguments of every job of measure_models.py, and --list needs neither programs nor a folder."""
    script = ROOT / "tools/gpu_checks/measure_models.py"
    sys.path.insert(0, str(script.parent))
    import measure_models
    done = subprocess.run([sys.executable, str(script), "--list"], capture_output=True, text=True)
    lines = done.stdout.splitlines()
    check(done.returncode == 0 and " jobs" in lines[-1] and any("fused_moe variants_k2-ep4: cglint capture fused_moe " in line for line in lines), f"--list: {done.stdout} {done.stderr}")
    models = measure_models.repository_models(ROOT)
    # A manifest names variants too.
    for name, model in models.items():
        text = (ROOT / "reference_models" / name / "manifest.toml").read_text()
        found = [word for value in re.findall(r"^variant = (.*)$", text, re.MULTILINE) for word in re.findall(r'"([^"]+)"', value)]
        model["variants"] = [{"name": word, "summary": "", "may_fault": False, "capture_fails": False, "same_bits_as": ""} for word in dict.fromkeys(found)]
        for preset in model["presets"]:
            preset.update(summary="", layers=61)
    (place.folder / "models.json").write_text(json.dumps({"models": list(models.values())}))
    place.env.update(FAKE_MODELS=str(place.folder / "models.json"), FAKE_NO_GPU="1")
    listed = list(measure_models.jobs(models))
    check(len(lines) - 1 == len(listed) == len({(job, model) for job, model, _, _ in listed}), "each job once")
    of_kimi = {job: words for job, model, _, words in listed if model == "kimi_linear"}
    check(not measure_models.is_recorded("overlap_gain") and measure_models.is_recorded("trimmed_overlap_gain") and "--layers" not in of_kimi["overlap_gain"] and
          of_kimi["trimmed_overlap_gain"][-3:] == ["--layers", "8", "--verify"], "the short recording alone goes into the repository")
    sanitized = {job: words for job, _, _, words in listed if measure_models.is_memcheck(job)}
    check({"memcheck_tokens_k2-tp4", "memcheck_tokens_k2-ep4", "memcheck_tokens", "memcheck_context"} <= set(sanitized) and
          all({"--check-only", "--no-check", "--layers"} <= set(words) for words in sanitized.values()), f"{sanitized}")
    for job, model, _, words in listed:
        code, _, err = place.run(model, *words, "-o", "out", "--results", f"{model}.{job}.json", "--resume", "-q", "--timeout", "90")
        check(code == 4 and err == "cglint capture: error: no usable GPU: none found\n", f"{model} {job}: {code} {err}")


def measure_collect(place):
    """Older results stay with jobs that were not run this time, not with those that are none any more or have other arguments."""
    sys.path.insert(0, str(ROOT / "tools/gpu_checks"))
    import measure_models
    repository, out = place.folder / "repository", place.folder / "out"
    (repository / "docs/measurements").mkdir(parents=True)
    (out / "recordings/two_branch").mkdir(parents=True)
    (repository / "reference_models/two_branch").mkdir(parents=True)
    shutil.copy(ROOT / "reference_models/two_branch/manifest.toml", repository / "reference_models/two_branch")
    commands = {job: measure_models.command_of(model, words) for job, model, _, words in measure_models.jobs(measure_models.repository_models(repository))}
    check(list(commands) == ["variants", "trimmed", "batches_verified", "memcheck"], f"{list(commands)}")

    def document(date, commit, *jobs):
        return json.dumps({"model": "two_branch", "date": date, "commit": commit, "jobs": [{"name": name, "command": command, "runs": [{"of": commit}] * count} for name, command, count in jobs]})

    (repository / "docs/measurements/models-two_branch-2026-01-01.json").write_text(
        document("2026-01-01T", "old", ("variants", commands["variants"], 5), ("trimmed", "others", 9), ("memcheck", "others", 9), ("batches_verified", commands["batches_verified"], 2), ("gone", "cglint", 1)))
    (out / "models-two_branch.json").write_text(
        document("2026-01-02T", "new", ("batches_verified", commands["batches_verified"], 1), ("trimmed", commands["trimmed"], 1)))
    recordings = ["a.small.b1.l8.cgl.jsonl.gz", "a.small.b1.l8.beside-b.cgl.jsonl.gz"]
    for name in recordings:
        (out / f"recordings/two_branch/two_branch.{name}").write_text("")
    done = subprocess.run([sys.executable, measure_models.__file__, "--collect", out, repository], capture_output=True, text=True)
    check(done.returncode == 0 and "dropped: two_branch memcheck, whose arguments are others now" in done.stdout and "dropped: two_branch gone, no job any more" in done.stdout and
          "two_branch trimmed," not in done.stdout, f"{done.stdout} {done.stderr}")
    kept = json.loads((repository / "docs/measurements/models-two_branch-2026-01-02.json").read_text())
    check([(job["name"], job["runs"][0]["of"], len(job["runs"]), job.get("commit")) for job in kept["jobs"]] ==
          [("variants", "old", 5, "old"), ("trimmed", "new", 1, None), ("batches_verified", "old", 2, "old")], f"{kept}")
    check(sorted(os.listdir(repository / "reference_models/two_branch/recordings")) == sorted(recordings), "the recordings")


TESTS = {function.__name__: function for function in (arguments, output, good, beside, accesses, nulls, sweep, resume, failures, no_results, folders, not_traced, verify, recordings, other_recordings, tables, ending, measure_jobs, measure_collect)}
for name in sys.argv[2:] or TESTS:
    with tempfile.TemporaryDirectory() as scratch:
        try:
            TESTS[name](Place(scratch))
        except AssertionError as error:
            sys.exit(f"FAILED {name}: {error}")
    print(f"passed {name}")
