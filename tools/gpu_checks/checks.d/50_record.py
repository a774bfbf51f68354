# seconds: 420
"""The recorder: planted defects and their twins, threads, workers, locks, kills, and what recording costs.

Resumable: with CGLINT_RECORD_STATE=FILE, parts whose results are in that file are not run again.
CGLINT_RECORD_PARTS=a,b runs these parts only.
"""
import concurrent.futures
import json
import os
import random
import signal
import subprocess
import time

from recordings import BIN, CGLINT, OUT, PROGRAMS, PYTHON, files_of, lines_of, record, run, run_parts

KEPT = os.environ.get("CGLINT_RECORD_KEEP")  # a folder for the capture files of the planted defects
WORKERS = min(8, os.cpu_count() or 1)


def known_rules():
    return {word for word in run([CGLINT, "rules"]).stdout.split() if word.startswith("CG") and word[2:].isdigit()}


# --- planted defects and their twins ---

def one_case(name, code, variant, command, prefix):
    folder = os.path.join(KEPT or OUT, f"{prefix}{name}.{variant}")
    done = record(folder, [*command, name, variant], *([] if code == "CG404" else ["--replays", "2"]))
    row = {"program": prefix + name, "variant": variant, "exit": done.returncode}
    if done.returncode != 0:
        row["error"] = (done.stderr.strip().splitlines() or [""])[-1][:200]
    files = files_of(folder)
    if not files:
        return dict(row, codes=[], error=row.get("error", "nothing was recorded"))
    lint = run([CGLINT, "lint", "--format", "json", *files])
    try:
        report = json.loads(lint.stdout)
        row["codes"] = sorted({finding["code"] for finding in report["findings"]})
        row["unchecked"] = sorted({str(each.get("code") or each.get("rule")) for each in report["not_checked"]})
        of_code = [f for f in report["findings"] if f["code"] == code]
        if of_code:
            row["message"] = of_code[0]["message"][:160]
            row["source"] = [f"{source.get('file', '').rsplit('/', 1)[-1]}:{source.get('line', 0)}" for source in of_code[0].get("sources", [])][:2]
    except (json.JSONDecodeError, KeyError):
        row["codes"], row["error"] = [], "lint: " + (lint.stderr.strip() or lint.stdout.strip())[:200]
    for path in files:
        for entry in lines_of(path)[0]:
            info = entry.get("info", {}) if entry["type"] == "graph" else {}
            if info.get("failed_call"):
                row.setdefault("failed", []).append([info["capture_status"], info["failed_call"], info["failed_error"], "failed_stack" in info])
    return row


def planted(command, prefix):
    listed = run([*command, "--list"])
    cases = [line.split() for line in listed.stdout.splitlines()]
    if listed.returncode != 0 or not cases:  # nothing was tried, which is no pass
        return {"good": False, "programs": 0, "error": "no programs: " + (listed.stderr.strip().splitlines() or [f"exit code {listed.returncode}"])[-1][:200]}
    with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
        rows = list(pool.map(lambda job: one_case(*job), [(name, code, variant, command, prefix) for name, code in cases for variant in ("bad", "good")]))
    rules, table, good = known_rules(), [], True
    for (name, code), bad_row, good_row in zip(cases, rows[::2], rows[1::2]):
        caught, quiet = code in bad_row["codes"], not good_row["codes"] and good_row["exit"] == 0
        failed_as_planted = code != "CG404" or (bool(bad_row.get("failed")) and not good_row.get("failed"))
        # What a recording cannot tell must be said, which is not to be clean (PyTorch's cached blocks without its helper).
        said = caught or code in bad_row.get("unchecked", [])
        table.append({"program": prefix + name, "code": code, "rule_there": code in rules, "caught": caught, "not_checked": said and not caught, "twin_clean": quiet,
                      "twin_codes": good_row["codes"], "recorded_as_planted": failed_as_planted, "bad": bad_row, "good": good_row})
        good &= failed_as_planted and quiet and (said or code not in rules) and (bad_row["exit"] == 0 or caught)  # a stale address may fault
    return {"good": good, "programs": len(cases), "caught": sum(row["caught"] for row in table), "twins_clean": sum(row["twin_clean"] for row in table),
            "table": table}


def part_programs():
    return planted([os.path.join(BIN, "record_defects")], "")


def part_torch_programs():
    return planted([PYTHON, os.path.join(PROGRAMS, "programs", "defects.py")], "torch_")


def part_faults():
    return planted([os.path.join(BIN, "record_faults")], "")


def part_torch_faults():
    return planted([PYTHON, os.path.join(PROGRAMS, "programs", "faults.py")], "torch_")


# --- threads and processes ---

def part_threads():
    folder = os.path.join(OUT, "threads")
    done = record(folder, [os.path.join(BIN, "record_load"), "threads", "200"])
    told = json.loads(done.stdout.strip().splitlines()[-1]) if done.returncode == 0 else {}
    graphs = nodes = strangers = eager = eager_nodes = 0
    records, whole = lines_of(files_of(folder)[0])
    for entry in records:
        if entry["type"] != "graph":
            continue
        names = [function["name"] for function in entry["functions"]]
        kernels = [names[entry["launches"][node["launch"]]["function"]] for node in entry["nodes"] if node["kind"] == "kernel"]
        if entry["info"]["role"] == "eager":
            eager += sum(node.get("launches", 1) for node, name in zip(entry["nodes"], kernels) if "eager" in name)
            eager_nodes += len(kernels)
        else:
            graphs += 1
            nodes += len(kernels)
            strangers += sum("captured" not in name for name in kernels) + len({node["thread"] for node in entry["nodes"]}) - 1
    losses = [entry for entry in records if entry["type"] == "loss"]
    good = whole and graphs == told.get("graphs") and nodes == told.get("nodes") and strangers == 0 and eager == told.get("eager_launches")
    return {"good": bool(good), "told": told, "graphs": graphs, "nodes": nodes, "strangers": strangers, "eager_launches": eager, "eager_rows": eager_nodes,
            "losses": [[loss["what"], loss["count"]] for loss in losses]}


def part_devices():
    folder = os.path.join(OUT, "devices")
    done = record(folder, [os.path.join(BIN, "record_load"), "devices"], "--replays", "2")
    count = json.loads(done.stdout.strip().splitlines()[-1])["devices"] if done.returncode == 0 else 0
    records, _ = lines_of(files_of(folder)[0])
    seen = [entry["nodes"][0].get("device") for entry in records if entry["type"] == "graph" and entry["info"]["role"] == "captured"]
    replayed = [{op[1] for op in replay["ops"]} for entry in records if entry["type"] == "replays" for replay in entry["replays"]]
    ranges = [entry["nvtx"][entry["nodes"][0]["nvtx"]] for entry in records if entry["type"] == "graph" and entry["info"]["role"] == "captured"]
    good = seen == list(range(count)) and len(replayed) == 2 * count and count > 0 and ranges == [["devices", f"device {n}"] for n in range(count)]
    return {"good": good, "devices": count, "graphs_on": seen, "nvtx": ranges}


def part_options():
    """Updates, uploads, a flush on demand; a redacted recording; leaving the process."""
    load = os.path.join(BIN, "record_load")
    done = record(os.path.join(OUT, "updates"), [load, "updates"])
    records, whole = lines_of(files_of(os.path.join(OUT, "updates"))[0])
    execs = [entry for entry in records if entry["type"] == "exec"]
    freed = [row for entry in records if entry["type"] == "allocations" for row in entry["allocations"] if row.get("free_sequence")]
    graph = next(entry for entry in records if entry["type"] == "graph" and entry["info"].get("instantiated"))
    updates = {"flushed": json.loads(done.stdout)["flush"] == 0, "whole": whole, "exec": execs, "frees": len(freed), "instantiate_ns": graph["info"].get("instantiate_ns")}
    good = updates["flushed"] and not whole and execs[-1].get("exec_updates") == 3 and execs[-1].get("upload_ns", 0) > 0 and len(freed) == 1 and \
        graph["info"]["begin_sequence"] < execs[-1]["last_launch_sequence"] < execs[-1]["destroyed_sequence"] < freed[0]["free_sequence"]

    folder = os.path.join(OUT, "redacted")
    record(folder, [os.path.join(BIN, "record_two_streams")], "--redact=names")
    with open(files_of(folder)[0], encoding="utf-8") as file:
        text = file.read()
    leaks = [word for word in (OUT, BIN, "5scaleP", f'"{os.uname().nodename}"') if word in text]
    good = good and not leaks and "k_" in text

    folder = os.path.join(OUT, "detached")
    record(folder, [load, "cost", "64", "5", "100"], "--detach-after", "30", "--replays", "2")
    records, whole = lines_of(files_of(folder)[0])
    unseen = [entry["what"] for entry in records if entry["type"] == "loss" and "--detach-after" in entry["what"]]
    captured = sum(entry["type"] == "graph" and entry["info"]["role"] == "captured" for entry in records)
    good = good and whole and len(unseen) == 1 and captured == 6  # the seventh is captured after the recorder left

    # Leaving while three threads make driver calls.
    folder = os.path.join(OUT, "detached_threads")
    done = record(folder, [load, "threads", "1000"], "--detach-after", "1s")
    threads_whole = [lines_of(path)[1] for path in files_of(folder)]
    good = good and done.returncode == 0 and threads_whole == [True]
    return {"good": good, "updates": updates, "leaks": leaks, "detached": unseen, "captured_before": captured, "detached_with_threads": threads_whole}


def part_workers():
    folder = os.path.join(OUT, "workers")
    done = record(folder, [PYTHON, os.path.join(PROGRAMS, "workers.py")])
    nodes = {}
    for path in files_of(folder):
        records, whole = lines_of(path)
        process = next(entry for entry in records if entry["type"] == "process")
        captured = [entry for entry in records if entry["type"] == "graph" and entry["info"]["role"] == "captured"]
        nodes[process.get("rank")] = [len(captured), sum(len(entry["nodes"]) for entry in captured), whole]
    merged = run([CGLINT, "lint", *files_of(folder)])
    good = done.returncode == 0 and {rank: row[:2] for rank, row in nodes.items()} == {n: [1, n + 1] for n in range(4)} and merged.returncode in (0, 1, 4)
    return {"good": good, "exit": done.returncode, "graphs_nodes_whole_by_rank": {str(k): v for k, v in nodes.items()}, "lint_exit": merged.returncode,
            "error": done.stderr.strip()[-300:] if done.returncode else ""}


def part_locks():
    folder = os.path.join(OUT, "locks")
    done = record(folder, [PYTHON, os.path.join(PROGRAMS, "locks.py"), os.path.join(BIN, "librecord_locks.so")])
    told = json.loads(done.stdout.strip().splitlines()[-1]) if done.returncode == 0 else {}
    records, whole = lines_of(files_of(folder)[0]) if files_of(folder) else ([], False)
    losses = [[loss["what"], loss["count"]] for loss in records if loss["type"] == "loss"]
    missed = sum(count for what, count in losses if "interpreter lock was not free in time" in what)
    good = whole and told.get("inversion") == [0, 0, 0] and told.get("blocking") == [0] and missed > 0
    return {"good": good, **told, "stacks_missed": missed, "losses": losses, "error": done.stderr.strip()[-300:] if done.returncode else ""}


# --- kills ---

def killed_run(command, folder, least, most, seed):
    os.makedirs(folder, exist_ok=True)
    env = dict(os.environ, CUDA_INJECTION64_PATH=os.path.join(BIN, "libcglint_record.so"), NVTX_INJECTION64_PATH=os.path.join(BIN, "libcglint_record.so"),
               CGLINT_RECORD_OUT=folder, CGLINT_RECORD_OUT_FOLDER="1")
    with open(folder + "/out", "wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.DEVNULL, env=env)
        deadline = time.monotonic() + 60
        while os.path.getsize(folder + "/out") == 0 and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(random.Random(seed).uniform(least, most))
        alive = process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.wait()
    with open(folder + "/out", encoding="utf-8") as file:
        told = [line for line in file.read().split("\n") if line]
    told = int(told[-1]) if told else 0
    row = {"alive": alive, "told": told, "read": False, "graphs": 0, "torn": False, "lint": None}
    for path in files_of(folder):
        try:
            records, _ = lines_of(path)
        except ValueError:
            row["error"] = "a complete line is no JSON"
            return row
        row["graphs"] = sum(entry["type"] == "graph" and entry["info"].get("instantiated", False) for entry in records)
        with open(path, "rb") as file:
            file.seek(-1, 2)
            row["torn"] = file.read(1) != b"\n"
        lint = run([CGLINT, "lint", "-q", path])
        row["lint"], row["read"] = lint.returncode, lint.returncode in (0, 1, 4)
        os.remove(path)
    return row


def kills(command, count, least, most, workers):
    jobs = [(command, os.path.join(OUT, f"kill{n}.{os.path.basename(command[0])}"), least, most, n) for n in range(count)]
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        rows = list(pool.map(lambda job: killed_run(*job), jobs))
    bad = [row for row in rows if not row["alive"] or not row["read"] or row["graphs"] < row["told"] or row["told"] == 0]
    return {"good": not bad, "kills": len(rows), "readable": sum(row["read"] for row in rows), "torn": sum(row["torn"] for row in rows),
            "graphs": sum(row["graphs"] for row in rows), "least_graphs": min(row["graphs"] for row in rows), "bad": bad[:5]}


def part_kills():
    return kills([os.path.join(BIN, "record_two_streams"), "forever"], 180, 0.02, 0.8, 2 * WORKERS)


def part_torch_kills():
    return kills([PYTHON, "-u", os.path.join(PROGRAMS, "torch_moe.py"), "forever", "4"], 20, 0.05, 2.0, WORKERS)


# --- what it costs ---

def cost_of(command, configurations, rounds, keys):
    """Paired: every round runs each configuration once, beside a run without the recorder."""
    table = {name: {key: [] for key in keys} for name in configurations}
    for number in range(rounds):
        for name, options in configurations.items():
            folder = os.path.join(OUT, f"cost{number}.{name}")
            done = run(command, 120) if options is None else record(folder, command, *options)
            if done.returncode != 0:
                return {"good": False, "error": f"{name}: {done.stderr.strip()[-300:]}"}
            told = json.loads(done.stdout.strip().splitlines()[-1])
            for key in keys:
                table[name][key].append(told[key])
    return {"good": True, "rounds": rounds, **table}


CONFIGURATIONS = {
    "none": None, "no stacks": ["--no-python-stacks", "--no-native-stacks", "--no-eager"], "no stacks, eager": ["--no-python-stacks", "--no-native-stacks"],
    "native stacks": ["--no-python-stacks"], "all": [], "all, 3 replays": ["--replays", "3"],
    "detached": ["--detach-after", "120"],
}


def part_cost():
    # The first 120 graph launches of `detached` are in the replays' first half: the second is after it let go.
    return cost_of([os.path.join(BIN, "record_load"), "cost", "544", "20", "200"], CONFIGURATIONS, 3,
                   ["capture_us_per_node", "instantiate_us_per_node", "eager_us", "replay_us", "fresh_replay_us", "launch_call_us", "bytes_per_kept_node"])


def part_torch_cost():
    names = ("none", "no stacks", "all", "detached")
    options = dict(CONFIGURATIONS, detached=["--detach-after", "20"])
    return cost_of([PYTHON, os.path.join(PROGRAMS, "torch_moe.py"), "side_first", "32"], {name: options[name] for name in names}, 2, ["capture_us", "replay_us"])


PARTS = {"options": part_options, "programs": part_programs, "torch_programs": part_torch_programs, "faults": part_faults, "torch_faults": part_torch_faults, "threads": part_threads, "devices": part_devices, "workers": part_workers,
         "locks": part_locks, "cost": part_cost, "torch_cost": part_torch_cost, "kills": part_kills, "torch_kills": part_torch_kills}

NEED_TORCH = {name for name in PARTS if "torch" in name} | {"workers", "locks"}

run_parts(PARTS, NEED_TORCH)
