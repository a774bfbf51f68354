#!/usr/bin/env python3
"""Runs every fuzz target on many cores, in a folder that pack.py made; needs Python 3.8 and nothing else.

usage: campaign.py OUT_FOLDER SECONDS [--processes N] [--target NAME ...]

Takes SECONDS in all: some four fifths for fuzzing, the rest to merge and minimise each target's corpus. The processes of a target share a
corpus folder. Writes to OUT_FOLDER:
  results.json          per target: CPU seconds (of the processes, from wait4), executions, coverage, features, corpus, artifacts
  artifacts/            inputs that crashed, hung or took too much memory, and the end of the log that belongs to each
  corpus/TARGET.tar.gz  the minimised corpus (the smallest inputs first, as far as the size limit goes)
"""
import argparse
import glob
import io
import json
import lzma
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
# Shares of the processes.
WEIGHTS = {"capture": 4, "kineto": 4, "dot": 3, "nsys-rows": 3, "nsys-sqlite": 2, "compressed": 2, "lint": 5, "convert": 4, "join": 3, "config": 1, "kernel-table": 1, "moe-config": 1}
MAX_CORPUS_BYTES = 5 << 20  # of all archives
MAX_ARTIFACTS = 12          # of a target; it is not started again after that many
MAX_LEN = 32768


class Target:
    def __init__(self, name, binary, work):
        self.name, self.binary = name, binary
        self.seeds = os.path.join(work, "seeds", name)
        self.dict = os.path.join(HERE, name + ".dict")
        self.corpus = os.path.join(work, "corpus", name)
        self.artifacts = os.path.join(work, "artifacts", name)
        self.merged = os.path.join(work, "merged", name)
        for folder in (self.corpus, self.artifacts, self.merged):
            os.makedirs(folder, exist_ok=True)
        with tarfile.open(os.path.join(HERE, name + ".seeds.tar.xz")) as archive:
            archive.extractall(self.seeds)
        self.lock = threading.Lock()
        self.cpu_s = self.merge_cpu_s = 0.0
        self.executions = self.starts = self.coverage = self.features = self.rss_mb = 0
        self.ends = {}
        self.merge = "not reached"

    def options(self):
        dictionary = ["-dict=" + self.dict] if os.path.isfile(self.dict) and os.path.getsize(self.dict) > 1 else []
        return ["-timeout=25", "-rss_limit_mb=3072", "-max_len=%d" % MAX_LEN, "-print_final_stats=1", "-artifact_prefix=" + self.artifacts + "/"] + dictionary


def environment():
    # Leaks count: an importer that leaks is wrong. Allocations beyond the limit are findings of libFuzzer (malloc_limit_mb).
    return dict(os.environ, ASAN_OPTIONS="allocator_may_return_null=1:detect_stack_use_after_return=0:symbolize=0", UBSAN_OPTIONS="print_stacktrace=1:symbolize=0")


def run(command, log, seconds):
    """Runs a command; its exit status and the CPU seconds that it took. Ended after `seconds`."""
    with open(log, "wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=environment(), start_new_session=True)
    ended = threading.Event()

    def watch():
        if not ended.wait(seconds):
            for what in (signal.SIGINT, signal.SIGKILL):
                try:
                    os.killpg(process.pid, what)
                except ProcessLookupError:
                    return
                if ended.wait(5):
                    return

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    _, status, usage = os.wait4(process.pid, 0)
    ended.set()
    process.returncode = status  # reaped here
    return status, usage.ru_utime + usage.ru_stime


def fuzz(target, number, deadline, log_folder):
    """One process after the other until the deadline."""
    while True:
        left = deadline - time.monotonic()
        with target.lock:
            if left < 2 or len(os.listdir(target.artifacts)) >= MAX_ARTIFACTS:
                return
            target.starts += 1
            start = target.starts
        log = os.path.join(log_folder, "%s.%d.log" % (target.name, start))
        command = [target.binary, "-max_total_time=%d" % max(1, int(left)), "-seed=%d" % (int(time.time()) % 100000 * 100 + start)] + target.options()
        if number % 3 == 1:
            command.append("-use_value_profile=1")
        if number % 4 == 3:
            command.append("-len_control=0")
        status, cpu = run(command + [target.corpus, target.seeds], log, left + 30)
        with open(log, "rb") as file:
            text = file.read()
        with target.lock:
            target.cpu_s += cpu
            found = re.findall(rb"stat::number_of_executed_units: *(\d+)", text) or re.findall(rb"^#(\d+)\t", text, re.M)
            target.executions += int(found[-1]) if found else 0
            for name, value in re.findall(rb"(cov|ft): (\d+)", text)[-2:]:
                if number % 3 != 1:  # value profiles count other features
                    if name == b"cov":
                        target.coverage = max(target.coverage, int(value))
                    else:
                        target.features = max(target.features, int(value))
            rss = re.findall(rb"stat::peak_rss_mb: *(\d+)", text)
            target.rss_mb = max([target.rss_mb] + [int(value) for value in rss])
            end = "exit %d" % (status >> 8) if status & 127 == 0 else "signal %d" % (status & 127)
            target.ends[end] = target.ends.get(end, 0) + 1
            artifact = re.search(rb"Test unit written to (\S+)", text)
            if artifact:
                with open(artifact.group(1).decode() + ".log", "wb") as file:
                    file.write(text[-6000:])
            elif status != 0 and status & 127 != signal.SIGINT:
                with open(os.path.join(target.artifacts, "end-%d.log" % start), "wb") as file:
                    file.write(text[-6000:])


def merge(target, deadline, log_folder):
    left = deadline - time.monotonic()
    if left < 5:
        return
    status, target.merge_cpu_s = run([target.binary, "-merge=1"] + target.options() + [target.merged, target.seeds, target.corpus],
                                     os.path.join(log_folder, target.name + ".merge.log"), left)
    if status == 0:
        target.merge = "done"
        return
    # Not minimised: what the fuzzer kept.
    target.merge = "not finished"
    shutil.rmtree(target.merged)
    target.merged = target.corpus


def pack(folder, path, limit):
    """The smallest files first; how many were left out."""
    files = sorted((os.path.getsize(os.path.join(folder, name)), name) for name in os.listdir(folder))
    size = count = 0
    with tarfile.open(path, "w:gz", compresslevel=9) as archive:
        for bytes_, name in files:
            if size > limit:
                break
            info = tarfile.TarInfo(name)
            info.size = bytes_
            with open(os.path.join(folder, name), "rb") as file:
                archive.addfile(info, file)
            count += 1
            size = archive.fileobj.fileobj.tell() if hasattr(archive.fileobj, "fileobj") else size + bytes_ // 3
    return len(files) - count


def main():
    parser = argparse.ArgumentParser(description="Run all fuzz targets on many cores.")
    parser.add_argument("out")
    parser.add_argument("seconds", type=int)
    parser.add_argument("--processes", type=int, default=0, help="0: as many as cores, at most 28")
    parser.add_argument("--target", action="append", default=[])
    arguments = parser.parse_args()
    begin = time.monotonic()
    os.makedirs(arguments.out, exist_ok=True)
    work = tempfile.mkdtemp(prefix="cglint_fuzz_")
    log_folder = os.path.join(work, "logs")
    os.makedirs(log_folder)
    binaries = os.path.join(work, "bin")
    with lzma.open(os.path.join(HERE, "binaries.tar.xz")) as packed, tarfile.open(fileobj=io.BytesIO(packed.read())) as archive:
        archive.extractall(binaries)
    targets = []
    for name in WEIGHTS:
        binary = os.path.join(binaries, "fuzz_" + name)
        if os.path.isfile(binary) and (not arguments.target or name in arguments.target):
            targets.append(Target(name, binary, work))
    if not targets:
        sys.exit("no target")
    wanted = arguments.processes or min(28, max(1, len(os.sched_getaffinity(0)) - 1))
    shares = {target.name: 1 for target in targets}
    while sum(shares.values()) < wanted:
        name = max(shares, key=lambda one: WEIGHTS[one] / shares[one])
        shares[name] += 1
    merge_s = min(120, max(10, arguments.seconds // 5))
    deadline = begin + arguments.seconds - merge_s
    threads = []
    for target in targets:
        for number in range(shares[target.name]):
            threads.append(threading.Thread(target=fuzz, args=(target, number, deadline, log_folder)))
    print("%d processes, %d s of fuzzing, %d s to merge" % (len(threads), deadline - time.monotonic(), merge_s), flush=True)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    def write():
        results = {"seconds": arguments.seconds, "wall_s": round(time.monotonic() - begin, 1), "cores": os.cpu_count(), "processes": len(threads), "targets": {}}
        for target in targets:
            artifacts = [name for name in os.listdir(target.artifacts) if not name.endswith(".log")]
            results["targets"][target.name] = {
                "processes": shares[target.name], "starts": target.starts, "cpu_s": round(target.cpu_s, 1), "merge_cpu_s": round(target.merge_cpu_s, 1),
                "executions": target.executions, "coverage": target.coverage, "features": target.features, "peak_rss_mb": target.rss_mb,
                "corpus_kept": len(os.listdir(target.corpus)), "merge": target.merge, "ends": target.ends, "artifacts": sorted(artifacts),
                "corpus_minimised": len(os.listdir(target.merged)) if target.merge == "done" else None}
            shutil.copytree(target.artifacts, os.path.join(arguments.out, "artifacts", target.name), dirs_exist_ok=True)
            for name in glob.glob(os.path.join(arguments.out, "artifacts", target.name, "*")):
                if os.path.getsize(name) > 1 << 17:
                    os.remove(name)
        with open(os.path.join(arguments.out, "results.json"), "w", encoding="ascii") as file:
            json.dump(results, file, indent=1)

    write()
    merge_deadline = begin + arguments.seconds - min(15, merge_s // 3)
    mergers = [threading.Thread(target=merge, args=(target, merge_deadline, log_folder)) for target in targets]
    for merger in mergers:
        merger.start()
    for merger in mergers:
        merger.join()
    write()
    os.makedirs(os.path.join(arguments.out, "corpus"), exist_ok=True)
    for target in targets:
        left_out = pack(target.merged, os.path.join(arguments.out, "corpus", target.name + ".tar.gz"), MAX_CORPUS_BYTES // len(targets))
        if left_out:
            print("%s: %d inputs of the corpus left out" % (target.name, left_out))
        last = sorted(glob.glob(os.path.join(log_folder, target.name + ".*.log")), key=os.path.getmtime)
        for path in last[:1]:
            with open(path, "rb") as file:
                head = file.read(3000)
            with open(os.path.join(arguments.out, target.name + ".head.txt"), "wb") as file:
                file.write(head)
    shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
