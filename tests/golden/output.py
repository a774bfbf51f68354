#!/usr/bin/env python3
"""Output that cannot be written, or not to its end: one clear error, the documented exit code, and never half a file.

usage: output.py CGLINT
"""
import gzip
import json
import os
import pathlib
import resource
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time

CGLINT = os.path.abspath(sys.argv[1])
ROOT = pathlib.Path(__file__).resolve().parents[2]
TRACE = str(ROOT / "tests/data/torch/kineto_alt_first.json.gz")
DOT = str(ROOT / "tests/data/torch/torch_alt_first.dot.gz")
# What writes a file, by its name.
WRITERS = {
    "report.txt": ["lint", TRACE, "-o"],
    "report.json": ["lint", TRACE, "--format", "json", "-o"],
    "inspect.json": ["inspect", TRACE, "--format", "json", "-o"],
    "out.cgl.jsonl": ["convert", TRACE],
    "out.cgl.jsonl.gz": ["convert", TRACE],
    "out.dot": ["convert", DOT],
    "out.json": ["convert", TRACE],
}
failures = []


def check(good, text):
    if not good:
        failures.append(text)


def run(words, file_bytes=None, **options):
    def limit():
        if file_bytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))

    options.setdefault("stdout", subprocess.PIPE)
    return subprocess.run([CGLINT, *words], stderr=subprocess.PIPE, text=True, errors="replace", timeout=300, preexec_fn=limit, **options)


def one_error(done, says):
    lines = done.stderr.splitlines()
    return done.returncode == 2 and len(lines) == 1 and lines[0].startswith("cglint: error: ") and all(text in lines[0] for text in says)


def limits(folder):
    for name, words in WRITERS.items():
        for before in (None, "what was there"):
            target = folder / name
            if before:
                target.write_text(before)
            done = run([*words, target], file_bytes=1000)
            check(one_error(done, [str(target), "File too large"]), f"{name} past the limit of a file: {done.returncode} {done.stderr}")
            check((target.read_text() if target.exists() else None) == before, f"{name} was touched")
            target.unlink(missing_ok=True)
            check(not list(folder.iterdir()), f"{name}: left behind: {list(folder.iterdir())}")
    with open(folder / "stdout", "wb") as out:
        done = run(["lint", TRACE], file_bytes=1000, stdout=out)
    check(one_error(done, ["standard output: File too large"]), f"standard output past the limit: {done.returncode} {done.stderr}")
    (folder / "stdout").unlink()


def full_device(folder):
    for name, words in WRITERS.items():
        to = ["--to", {"dot": "dot", "json": "chrome-trace"}.get(name.rpartition(".")[2], "capture")] if words[0] == "convert" else []
        done = run([*words, "/dev/full", *to])
        check(one_error(done, ["/dev/full", "No space left on device"]), f"{name} to a full device: {done.returncode} {done.stderr}")
    for words in (["lint", TRACE], ["inspect", TRACE], ["rules"], ["explain", "CG101"], ["--capabilities"], ["--help"], ["convert", DOT, "-", "--to", "dot"]):
        with open("/dev/full", "wb") as out:
            done = run(words, stdout=out)
        check(one_error(done, ["No space left on device"]), f"{words} with a full standard output: {done.returncode} {done.stderr}")
        done = subprocess.run(["/bin/sh", "-c", 'exec "$0" "$@" >&-', CGLINT, *words], stderr=subprocess.PIPE, text=True, timeout=300)
        check(one_error(done, ["Bad file descriptor"]), f"{words} with a closed standard output: {done.returncode} {done.stderr}")
        reader, writer = os.pipe()
        os.close(reader)
        done = run(words, stdout=writer)
        os.close(writer)
        check(done.returncode == -signal.SIGPIPE and done.stderr == "", f"{words} when nobody reads: {done.returncode} {done.stderr}")


def places(folder):
    """What is not a plain file is written, never replaced; a link is followed; permissions stay."""
    done = run(["lint", DOT, "-o", folder])
    check(one_error(done, [str(folder), "Is a directory"]), f"a folder: {done.returncode} {done.stderr}")
    real, link = folder / "real", folder / "link"
    real.write_text("old")
    real.chmod(0o640)
    link.symlink_to("real")
    done = run(["lint", DOT, "-o", link])
    check(done.returncode == 1 and done.stderr == "" and link.is_symlink() and "CG102" in real.read_text() and stat.S_IMODE(real.stat().st_mode) == 0o640,
          f"a link: {done.returncode} {done.stderr} {real.read_text()[:80]}")
    fifo = folder / "fifo"
    os.mkfifo(fifo)
    for words in (["lint", DOT, "-o", fifo], ["convert", DOT, fifo, "--to", "dot"]):
        reader = subprocess.Popen(["cat", fifo], stdout=subprocess.PIPE, text=True)
        done = run(words)
        out, _ = reader.communicate(timeout=60)
        check(done.returncode in (0, 1) and len(out) > 500 and stat.S_ISFIFO(fifo.stat().st_mode), f"a pipe: {words} {done.returncode} {done.stderr}")
    long_name = folder / ("n" * 255)
    done = run(["lint", DOT, "-o", long_name])
    check(done.returncode == 1 and "CG102" in long_name.read_text(), f"the longest name: {done.returncode} {done.stderr}")
    with open(folder / "opened", "w+") as out:
        done = run(["lint", DOT, "-o", "/dev/stdout"], stdout=out)
        out.seek(0)
        check(done.returncode == 1 and "CG102" in out.read(), f"/dev/stdout: {done.returncode} {done.stderr}")
    check(sorted(path.name for path in folder.iterdir()) == sorted(["real", "link", "fifo", "opened", long_name.name]), f"left behind: {list(folder.iterdir())}")


def signals(folder):
    """A signal while a file is written: it ends the program, and nothing is left."""
    source, out = folder / "chain.dot", folder / "out"
    out.mkdir()
    count = 60000
    with open(source, "w") as file:
        file.write("digraph dot {\nsubgraph cluster_1 {\nlabel=\"graph_1\" graph[style=\"dashed\"];\n")
        file.writelines(f'"graph_1_node_{i}"[style="solid" shape="rectangle" label="{i}\nEMPTY\n"];\n' for i in range(count))
        file.writelines(f'"graph_1_node_{i}" -> "graph_1_node_{i + 1}";\n' for i in range(count - 1))
        file.write("}\n}\n")
    for how in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        for _ in range(10):  # it may be done before the signal comes
            process = subprocess.Popen([CGLINT, "convert", source, out / "chain.cgl.jsonl.gz"], stderr=subprocess.DEVNULL)
            while process.poll() is None and not list(out.iterdir()):
                time.sleep(0.001)
            process.send_signal(how)
            process.wait(timeout=300)
            left = [path.name for path in out.iterdir()]
            for path in out.iterdir():
                path.unlink()
            if process.returncode != 0:
                break
        check(process.returncode == -how and not left, f"{how}: {process.returncode}, left: {left}")
    # nohup: a signal that is ignored stays so.
    process = subprocess.Popen([CGLINT, "convert", source, out / "chain.cgl.jsonl.gz"], stderr=subprocess.DEVNULL, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    while process.poll() is None and not list(out.iterdir()):
        time.sleep(0.001)
    process.send_signal(signal.SIGHUP)
    process.wait(timeout=300)
    check(process.returncode == 0 and [path.name for path in out.iterdir()] == ["chain.cgl.jsonl.gz"], f"SIGHUP under nohup: {process.returncode}")


def exit_codes(folder):
    """The report says with what the process ends."""
    for words, code in ((["lint", TRACE], 1), (["lint", TRACE, "--exit-zero"], 0), (["lint", TRACE, "--fail-on", "never"], 0), (["lint", TRACE, "--exit-zero", "--fail-on", "info"], 0),
                        (["lint", TRACE, "--exit-zero", "--select", "CG301"], 4), (["lint", TRACE, str(folder / "none"), "--exit-zero"], 2)):
        done = run([*words, "--format", "json"])
        check(done.returncode == code == json.loads(done.stdout)["exit_code"], f"{words}: {done.returncode}, report {json.loads(done.stdout)['exit_code']}, not {code}")


def losses(folder):
    """What was lost is told on the terminal with any exit code, also where the report does not go there or leaves it out."""
    recording = gzip.decompress((ROOT / "tests/data/record/two_streams.cgl.jsonl.gz").read_bytes())
    lossy = folder / "lossy.cgl.jsonl"
    lossy.write_bytes(recording[:len(recording) * 2 // 3])
    plain = run(["lint", TRACE, lossy])
    check(plain.returncode == 1 and "data loss: " in plain.stdout and plain.stderr == "", f"a report on standard output: {plain.returncode} {plain.stderr}")
    for words in (["-q"], ["--format", "json"], ["-o", folder / "report"]):
        for more, code in (([TRACE], 1), ([], 4), ([folder / "none"], 2)):
            done = run(["lint", *more, lossy, *words])
            check(done.returncode == code and sum("lossy.cgl.jsonl: " in line for line in done.stderr.splitlines()) >= 1, f"{words} {more}: {done.returncode} {done.stderr}")


def no_such_program(folder):
    """A command whose program is not beside cglint: which, where, and how it is built."""
    for name in (pathlib.Path(CGLINT).name, *(path.name for path in pathlib.Path(CGLINT).parent.glob("*.so.*"))):
        shutil.copy(pathlib.Path(CGLINT).parent / name, folder)
    for command, program in (("capture", "cglint-capture"), ("record", "cglint-record"), ("selftest-streams", "cglint-selftest-streams")):
        done = subprocess.run([folder / "cglint", command, "--list"], capture_output=True, text=True)
        check(one_error(done, [f"needs {program}, ", f" in {folder.resolve()},", "without the CUDA toolkit", f"--target {program}"]), f"{command}: {done.returncode} {done.stderr}")


for test in (limits, full_device, places, signals, exit_codes, losses, no_such_program):
    with tempfile.TemporaryDirectory() as temporary:
        test(pathlib.Path(temporary))
print("\n".join(failures) or "good")
sys.exit(1 if failures else 0)
