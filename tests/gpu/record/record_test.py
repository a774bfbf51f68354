#!/usr/bin/env python3
"""The recorder without a GPU: what its library exports and needs, and how cglint-record treats its arguments.

usage: record_test.py symbols OBJDUMP LIBRARY [EXPORT...]   (of libcglint_record.so if left out)
       record_test.py arguments CGLINT_RECORD
       record_test.py checks CGLINT_RECORD
       record_test.py command CGLINT_RECORD FOLDER   (with played libcuda.so.1 and libcupti)
"""
import os
import pathlib
import pty
import re
import signal
import stat
import subprocess
import sys
import tempfile
import time


def check(good, text):
    if not good:
        sys.exit(f"FAILED: {text}")


RECORDER = ("InitializeInjection", "InitializeInjectionNvtx2", "cglint_record_blocks", "cglint_record_blocks_failed", "cglint_record_blocks_missed", "cglint_record_capture_left", "cglint_record_expect_blocks",
            "cglint_record_flush", "cglint_record_flushes", "cglint_record_moment")


def symbols(objdump, library, *exports):
    def dump(*arguments):
        return subprocess.run([objdump, *arguments, library], capture_output=True, text=True, check=True).stdout

    table = dump("-T").splitlines()
    defined = [line.split()[-1] for line in table if re.match(r"[0-9a-f]{16} ", line) and "*UND*" not in line]
    check(sorted(defined) == sorted(exports or RECORDER), f"exports {defined}")
    versions = {tuple(int(part) for part in found.split(".")) for found in re.findall(r"GLIBC_([0-9.]+)", dump("-T"))}
    check(versions and max(versions) <= (2, 34), f"needs glibc {max(versions)}")
    needed = set(re.findall(r"NEEDED\s+(\S+)", dump("-p")))
    allowed = {"libc.so.6", "libm.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2"}
    check("libc.so.6" in needed and needed <= allowed, f"links {sorted(needed - allowed)}")


def arguments(program):
    def run(*words, env=None, cwd=None):
        done = subprocess.run([program, *words], capture_output=True, text=True, env=env, cwd=cwd, timeout=60)
        return done.returncode, done.stdout, done.stderr

    plain = {key: value for key, value in os.environ.items() if not key.startswith(("CUDA_INJECTION", "NVTX_INJECTION", "CGLINT_"))}
    code, out, _ = run("--help")
    check(code == 0 and "--replays" in out, "--help")
    for words, expected in ((["-o"], "needs a value"), (["--replays", "x", "--", "true"], "'x'"), (["--wrong", "--", "true"], "--wrong"),
                            (["--detach-after", "0", "--", "true"], "'0'"), (["--detach-after", "s", "--", "true"], "'s'"),
                            (["--flush-signal", "NO", "--", "true"], "'NO'"),
                            *((["--flush-signal", number, "--", "true"], f"'{number}'") for number in ("0", "9", "19", "32", "65")),
                            (["--exec", "--lint", "--", "true"], "--exec"), ([], "no command"), (["--"], "no command")):
        code, _, err = run(*words, env=plain)
        check(code == 2 and expected in err and err.count("\n") == 1, f"{words}: {code} {err}")
    show = ["sh", "-c", "env | grep -E '^(CUDA_INJECTION64_PATH|NVTX_INJECTION64_PATH|CGLINT_RECORD)' | sort; exit 7"]
    with tempfile.TemporaryDirectory() as folder:
        code, out, _ = run("-o", "out.cgl.jsonl", "--replays", "3", "--no-python-stacks", "--", *show, env=plain, cwd=folder)
        values = dict(line.split("=", 1) for line in out.splitlines())
        library = str(pathlib.Path(program).resolve().parent / "libcglint_record.so")
        check(code == 7, f"the command's exit code, not {code}")
        check(os.path.isabs(values.pop("CGLINT_RECORD_LIST")), "a list of what is written")
        check(values == {"CUDA_INJECTION64_PATH": library, "NVTX_INJECTION64_PATH": library, "CGLINT_RECORD_NATIVE_STACKS": "1", "CGLINT_RECORD_EAGER": "1", "CGLINT_RECORD_ALLOCATOR_HISTORY": "1", "CGLINT_RECORD_OUT": os.path.realpath(folder) + "/out.cgl.jsonl",
                         "CGLINT_RECORD_OUT_FOLDER": "0", "CGLINT_RECORD_PYTHON_STACKS": "0", "CGLINT_RECORD_REPLAYS": "3"}, f"{values}")
        _, out, _ = run("--no-native-stacks", "--no-eager", "--no-allocator-history", "--detach-after", "30s", "--redact=names", "--flush-signal", "USR2", "--", *show, env=plain, cwd=folder)
        for line in ("NATIVE_STACKS=0", "EAGER=0", "ALLOCATOR_HISTORY=0", "DETACH=30s", "REDACT=names", "FLUSH_SIGNAL=12"):
            check(f"CGLINT_RECORD_{line}\n" in out, f"{line} in {out}")
        _, out, err = run("--", *show, env=dict(plain, NVTX_INJECTION64_PATH="/other.so"), cwd=folder)
        check("NVTX_INJECTION64_PATH=/other.so" in out and "NVTX ranges are not recorded" in err, f"{out} {err}")
        python = ["sh", "-c", 'echo "PYTHONPATH=$PYTHONPATH"']
        hook = str(pathlib.Path(program).resolve().parent / "cglint_python_helper")
        for before, words, expected in ((None, [], hook), ("", [], hook), ("/a:/b", [], hook + ":/a:/b"), ("/a", ["--no-python-helper"], "/a"), (None, ["--no-python-helper"], "")):
            env = {key: value for key, value in plain.items() if key != "PYTHONPATH"}
            if before is not None:
                env["PYTHONPATH"] = before
            _, out, _ = run(*words, "--", *python, env=env, cwd=folder)
            check(out == f"PYTHONPATH={expected}\n", f"{before} {words}: {out}")
        # The words after `cglint record` are the recorder's and the command's own; signals are as they were.
        cglint = pathlib.Path(program).parent / "cglint"
        if cglint.exists():
            for words in (["--"], ["-o", "x/", "--"], []):
                done = subprocess.run([cglint, "record", *words, "sh", "-c", 'echo "$0 $@"; grep SigIgn /proc/$$/status', "--version", "--", "-h"], capture_output=True, text=True,
                                      env=plain, cwd=folder, timeout=60, preexec_fn=lambda: signal.signal(signal.SIGPIPE, signal.SIG_DFL))
                ignored = int(done.stdout.split()[-1], 16) if done.returncode == 0 else 0
                check(done.returncode == 0 and done.stdout.startswith("--version -- -h\n") and ignored >> (signal.SIGPIPE - 1) & 1 == 0, f"{words}: {done}")
        os.mkdir(folder + "/there")
        _, out, _ = run("-o", "there", "--", *show, env=plain, cwd=folder)
        check("CGLINT_RECORD_OUT_FOLDER=1" in out, "an existing folder")
        code, _, err = run("--", "true", env=dict(plain, CUDA_INJECTION64_PATH="/other.so"))
        check(code == 2 and "/other.so" in err, "another injection is not replaced")
        code, _, err = run("--", folder + "/missing", env=plain)
        check(code == 127 and "cannot run" in err, "a missing command")
        # --lint: options go to cglint lint, and what the command's processes listed is linted. Here a script stands in for both.
        code, _, err = run("--lint", "--", "true", env=plain)
        check(code == 2 and "nothing to lint" in err, f"no graph: {code} {err}")
        code, _, _ = run("--lint", "--", "sh", "-c", "kill -9 $$", env=plain)
        check(code == 137, f"a signal: {code}")
        copy = pathlib.Path(folder) / "bin"
        copy.mkdir()
        for name in ("cglint-record", "libcglint_record.so"):
            (copy / name).write_bytes((pathlib.Path(program).parent / name).read_bytes())
        (copy / "cglint").write_text('#!/bin/sh\nfor word in "$@"; do [ "$word" = --check-options ] && exit 0; done\nfor word in "$@"; do echo "$word"; done\nexit 1\n')
        for path in copy.iterdir():
            path.chmod(path.stat().st_mode | stat.S_IXUSR)
        done = subprocess.run([copy / "cglint-record", "--lint", "--max-streams", "3", "--", "sh", "-c", "echo a.cgl.jsonl >> $CGLINT_RECORD_LIST"],
                              capture_output=True, text=True, env=plain, timeout=60)
        check(done.returncode == 1 and done.stdout.split() == ["lint", "--max-streams", "3", "a.cgl.jsonl"], f"{done}")
        # A command that failed is linted too: a broken capture may be why. Its exit code stays.
        done = subprocess.run([copy / "cglint-record", "--lint", "--", "sh", "-c", "echo a.cgl.jsonl >> $CGLINT_RECORD_LIST; exit 9"],
                              capture_output=True, text=True, env=plain, timeout=60)
        check(done.returncode == 9 and done.stdout.split() == ["lint", "a.cgl.jsonl"], f"{done}")


def checks(program):
    """What can be known to be wrong before the command runs, which may take hours, is one error, and the command does not run."""
    plain = {key: value for key, value in os.environ.items() if not key.startswith(("CUDA_INJECTION", "NVTX_INJECTION", "CGLINT_"))}
    with tempfile.TemporaryDirectory() as place:
        folder = pathlib.Path(place)
        (folder / "file").write_text("")
        (folder / "table.toml").write_text("# ours\nformat = 2\n")
        (folder / "there").mkdir()

        def run(*words, program=program, env=plain):
            done = subprocess.run([program, *words, "--", "sh", "-c", "echo ran >> log"], capture_output=True, text=True, env=env, cwd=folder, timeout=60)
            ran = (folder / "log").exists()
            (folder / "log").unlink(missing_ok=True)
            return done, ran

        def refused(expected, *words, **more):
            done, ran = run(*words, **more)
            check(done.returncode == 2 and not ran and done.stdout == "" and done.stderr.count("\n") == 1 and expected in done.stderr, f"{words}: {done}, ran: {ran}")

        long = "x" * 300
        for out, expected in (("/proc/none/", "cannot create /proc/none/"), ("/proc/none/a.cgl.jsonl", "cannot create /proc/none/a."), ("file/", "Not a directory"), ("file/a.cgl.jsonl", "Not a directory"),
                              ("new/" + long, "File name too long"), ("new/" + long + "/", "File name too long")):
            for words in (["-o", out], [f"--output={out}"], ["--exec", "-o", out], ["-o", out, "--lint", "-q"]):
                refused(expected, *words)
        for out in ("new/folder/", "new/a.cgl.jsonl", "there", "there/", "file", "a.cgl.jsonl"):
            for option in ("-o", "--output"):
                done, ran = run(option, out)
                check(done.returncode == 0 and ran and f"nothing was written to {out}:" in done.stderr, f"{out}: {done}")
        check(sorted(path.name for path in folder.iterdir()) == ["file", "table.toml", "there"] and not list((folder / "there").iterdir()), f"left behind: {list(folder.rglob('*'))}")
        # An option that takes a value is given once, as those of cglint's other commands.
        for words in (["-o", "a", "-o", "b"], ["-o", "a", "--output=b"], ["--replays", "1", "--replays=2"], ["--replays", "1", "--replays", "1"], ["--detach-after", "5", "--detach-after", "6s"], ["--flush-signal", "USR1", "--flush-signal", "USR2"],
                      ["--redact", "--redact=names"], ["--redact=names", "--redact"]):
            refused("is given twice", *words)
        for words in (["--replays="], ["--output="], ["-o", ""], ["--exec=1"], ["--repl=3"]):
            refused(words[0].split("=")[0].replace("--output", "-o"), *words)
        done, ran = run("--replays=3", "--no-eager", "--no-eager", "--redact", "--redact")
        check(done.returncode == 0 and ran, f"{done}")
        # Help, as cglint writes it.
        for words in (["--help"], ["--lint", "--help"], ["--lint", "-q", "-h"]):
            done = subprocess.run([program, *words], capture_output=True, text=True, env=plain, timeout=60)
            check(done.returncode == 0 and ("--max-streams" in done.stdout) == (len(words) > 1) and done.stderr == "", f"{words}: {done}")
            with open("/dev/full", "w") as full:
                done = subprocess.run([program, *words], stdout=full, stderr=subprocess.PIPE, text=True, env=plain, timeout=60)
            check(done.returncode == 2 and done.stderr.endswith("standard output: No space left on device\n") and done.stderr.count("\n") == 1, f"{words}: {done}")
            reader, writer = os.pipe()
            os.close(reader)
            done = subprocess.run([program, *words], stdout=writer, stderr=subprocess.PIPE, text=True, env=plain, timeout=60)
            os.close(writer)
            check(done.returncode == -signal.SIGPIPE and done.stderr == "", f"{words} when nobody reads: {done}")
        # The options of cglint lint.
        for words, expected in ((["--wrong"], "--wrong"), (["--select", "CG999"], "CG999"), (["--ignore", "nothing"], "nothing"), (["--max-streams", "0"], "--max-streams"), (["--max-streams"], "--max-streams"), (["--kernel-table"], "--kernel-table"),
                                (["--streams-from", "measured"], "--max-streams"), (["--option", "CG101"], "CODE.OPTION=VALUE"), (["--option", "CG101.none=1"], "none"), (["--fail-on", "all"], "--fail-on"),
                                (["--kernel-table", "none.toml"], "none.toml"), (["--kernel-table", "table.toml"], "table.toml: line 2: kernel table format 2 is not 1"), (["--moe-config", "none"], "none"), (["--join"], "--join"),
                                (["-o", "a", "-o", "b"], "--output"), (["-o", "there"], "there: cannot write: Is a directory"), (["-o", "none/report"], "none/report: cannot write"), (["-o", "file/report"], "cannot write"), (["-o", ""], "is empty"),
                                (["--select", "CG1", "CG2"], "'CG2' is no option"), (["--format", "xml"], "xml"), (["--confidence", ""], "confidence"), (["--check-options"], "--check-options")):
            refused(expected, "--lint", *words)
        for words in ([], ["-q"], ["--select", "CG1,CG301"], ["--max-streams", "3", "--streams-from", "measured"], ["-o", "report"], ["-o", "file"], ["-o", "-"], ["-o", "/dev/null", "--format", "json"]):
            done, ran = run("--lint", *words)
            check(done.returncode == 2 and ran and "nothing to lint" in done.stderr, f"{words}: {done}")
        check(sorted(path.name for path in folder.iterdir()) == ["file", "table.toml", "there"], f"left behind: {list(folder.iterdir())}")
        # A signal that is ignored stays so for the command, and a child's end is seen where SIGCHLD is ignored.
        ignore = lambda: (signal.signal(signal.SIGHUP, signal.SIG_IGN), signal.signal(signal.SIGCHLD, signal.SIG_IGN))
        done = subprocess.run([program, "--lint", "-q", "--", "grep", "SigIgn", "/proc/self/status"], capture_output=True, text=True, env=plain, cwd=folder, timeout=60, preexec_fn=ignore)
        ignored = int(done.stdout.split()[-1], 16)
        check(all(ignored >> (number - 1) & 1 for number in (signal.SIGHUP, signal.SIGCHLD)), f"{done}")
        done = subprocess.run([program, "--lint", "--wrong", "--", "true"], capture_output=True, text=True, env=plain, cwd=folder, timeout=60, preexec_fn=ignore)
        check(done.returncode == 2 and "--wrong" in done.stderr, f"{done}")
        copy = folder / "bin"
        copy.mkdir()
        for name in ("cglint-record", "libcglint_record.so"):
            (copy / name).write_bytes((pathlib.Path(program).parent / name).read_bytes())
        (copy / "cglint-record").chmod(0o755)
        refused("cglint, which is not in", "--lint", program=copy / "cglint-record")


def command(program, played):
    """Where nothing is recorded, one line says why and where nothing was written; exit codes, signals and files are the command's own."""
    plain = {key: value for key, value in os.environ.items() if not key.startswith(("CUDA_INJECTION", "NVTX_INJECTION", "CGLINT_"))}
    plain["LD_LIBRARY_PATH"] = played
    python = [sys.executable, "-c"]
    load = "import ctypes, os; ctypes.CDLL(os.environ['CUDA_INJECTION64_PATH']).InitializeInjection()"  # what the driver does
    with tempfile.TemporaryDirectory() as folder:
        plain["TMPDIR"] = folder + "/tmp"
        os.mkdir(plain["TMPDIR"])
        kill = ["sh", "-c", "kill -9 $$"]
        no_cuda, no_graph = "no process of the command was seen to initialise CUDA", "CUDA was initialised, but no process was seen to instantiate a graph, or to fail to capture one"
        no_recorder = "recording failed, as was said above"
        for words, what, code, place, reason, more in (
                ([], ["true"], 0, "the current folder", no_cuda, {}), (["-o", "runs/"], ["sh", "-c", "exit 7"], 7, "runs/", no_cuda, {}),
                (["-o", "a.cgl.jsonl"], kill, -9, "a.cgl.jsonl", no_cuda, {}), (["--lint"], kill, 137, "the current folder", no_cuda, {}), (["--lint"], ["true"], 2, "the current folder", no_cuda, {}),
                ([], [*python, load], 0, "the current folder", no_graph, {}), (["--lint"], [*python, load], 2, "the current folder", no_graph, {}),
                (["-o", "runs/"], [*python, load + "; os.kill(os.getpid(), 9)"], -9, "runs/", no_graph, {}),
                ([], [*python, "import os; os.chdir('/'); " + load], 0, "the current folder", no_graph, {"TMPDIR": "tmp"}),
                ([], [*python, load], 0, "the current folder", no_recorder, {"CGLINT_FAKE_HOLDER": "a profiler"})):
            done = subprocess.run([program, *words, "--", *what], capture_output=True, text=True, env=dict(plain, **more), cwd=folder, timeout=60)
            said = done.stderr.splitlines()
            last = f"cglint record: nothing was written to {place}: {reason}" + ("; nothing to lint" if words == ["--lint"] else "")
            lines = 2 if reason == no_recorder else 1
            check(done.returncode == code and len(said) == lines and said[-1] == last, f"{words} {what}: {done.returncode} {done.stderr}")
            check(lines == 1 or "this process is not recorded" in said[0], f"the recorder says why: {done.stderr}")
        listed = ["sh", "-c", "echo loaded >> $CGLINT_RECORD_LIST; echo a.cgl.jsonl >> $CGLINT_RECORD_LIST; echo off >> $CGLINT_RECORD_LIST"]
        done = subprocess.run([program, "--", *listed], capture_output=True, text=True, env=plain, cwd=folder, timeout=60)
        check(done.returncode == 0 and done.stderr == "", f"something was written: {done}")
        started = subprocess.Popen([program, "--exec", "--", *python, "import os; print(os.getpid(), 'CGLINT_RECORD_LIST' in os.environ)"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=plain, cwd=folder)
        out, err = started.communicate(timeout=60)
        check(out == f"{started.pid} False\n" and err == "" and started.returncode == 0, f"--exec becomes the command: {started.pid} {out} {err}")
        for words in ([], ["--lint"], ["--exec"]):
            done = subprocess.run([program, *words, "--", folder + "/missing"], capture_output=True, text=True, env=plain, cwd=folder, timeout=60)
            check(done.returncode == 127 and done.stderr.count("\n") == 1 and "cannot run" in done.stderr, f"a missing command: {done}")
        done = subprocess.run([program, "--", "echo", "ran"], capture_output=True, text=True, env=dict(plain, TMPDIR=folder + "/none"), cwd=folder, timeout=60)
        check(done.returncode == 0 and done.stdout == "ran\n" and "will not be said" in done.stderr, f"no folder for temporary files: {done}")
        done = subprocess.run([program, "--", "true"], capture_output=True, text=True, env=plain, cwd=folder, timeout=60, preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN))
        check(done.returncode == 0 and no_cuda in done.stderr, f"SIGCHLD ignored: {done}")
        done = subprocess.run([program, "--", "false"], capture_output=True, text=True, env=plain, cwd=folder, timeout=60, preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN))
        check(done.returncode == 1, f"SIGCHLD ignored: {done}")
        # Signals reach the command, each once: those sent to us are passed on, those of the terminal it has already.
        count = ("import os, signal, sys, time\nseen = []\n"
                 "for number in (signal.SIGINT, signal.SIGTERM, signal.SIGRTMIN): signal.signal(number, lambda number, _: seen.append(number))\n"
                 "print('ready', flush=True)\nwhile not seen: time.sleep(0.01)\ntime.sleep(0.3)\nprint(sorted(map(int, seen)), flush=True)\nsys.exit(5)")
        for number in (signal.SIGTERM, signal.SIGRTMIN):
            process = subprocess.Popen([program, "--flush-signal", str(int(signal.SIGRTMIN)), "--", *python, count], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=plain, cwd=folder)
            process.stdout.readline()
            process.send_signal(number)
            out, _ = process.communicate(timeout=60)
            check(process.returncode == 5 and out == f"[{int(number)}]\n", f"{number}: {process.returncode} {out}")
        pid, terminal = pty.fork()
        if pid == 0:
            os.chdir(folder)
            os.execve(program, [program, "--", *python, count], plain)
        text = b""
        while b"ready" not in text:
            text += os.read(terminal, 1000)
        os.write(terminal, b"\x03")
        try:
            while True:
                text += os.read(terminal, 1000)
        except OSError:  # all have closed it
            pass
        _, status = os.waitpid(pid, 0)
        check(os.waitstatus_to_exitcode(status) == 5 and b"[2]\r\n" in text, f"Ctrl-C: {status} {text}")
        check(not os.listdir(plain["TMPDIR"]), "nothing is left behind")
        # Who kills us means the command; and what it closes is closed.
        process = subprocess.Popen([program, "--", *python, "import os, sys, time; print(os.getpid(), flush=True); os.close(1); time.sleep(60)"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                                   env=plain, cwd=folder)
        begin = time.monotonic()
        inner = int(process.stdout.read())
        check(time.monotonic() - begin < 30 and process.poll() is None, "standard output was closed by the command")
        process.kill()
        process.wait()
        while time.monotonic() - begin < 50:
            try:
                state = pathlib.Path(f"/proc/{inner}/stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                break
            if state in "ZX":
                break
            time.sleep(0.01)
        else:
            check(False, "the command outlived the recorder")


{"symbols": symbols, "arguments": arguments, "checks": checks, "command": command}[sys.argv[1]](*sys.argv[2:])
