# seconds: 420
"""The recorder at its limits, and graphs that are checked without it: exits, large graphs, many graphs, graphs built node by node, one process
per GPU, lines under torch.compile, the C interface and the Python module on real graphs, what CUPTI leaves behind.

Resumable as 50_record.py: CGLINT_RECORD_STATE=FILE, CGLINT_RECORD_PARTS=a,b. CGLINT_EXITS=N sets the number of programs whose exit is tried,
CGLINT_ROUNDS=N the rounds of what is timed; CGLINT_RECORD_KEEP=FOLDER keeps the recordings of graphs built node by node and of compiled lines.
"""
import concurrent.futures
import json
import os
import shutil
import statistics
import time

from recordings import BIN, CGLINT, OUT, PROGRAMS, PYTHON, files_of, lines_of, record, run, run_parts

WORKERS = min(16, 2 * (os.cpu_count() or 1))
LOAD, DEFECTS = os.path.join(BIN, "record_load"), os.path.join(BIN, "record_defects")
KEPT = os.environ.get("CGLINT_RECORD_KEEP")
ROUNDS = int(os.environ.get("CGLINT_ROUNDS", "3"))


def keep(name, files):
    if KEPT:
        os.makedirs(KEPT, exist_ok=True)
        for path in files:
            shutil.copy(path, os.path.join(KEPT, f"{name}.{os.path.basename(path)}"))


def last_json(done):
    try:
        return json.loads(done.stdout.strip().splitlines()[-1])
    except (IndexError, ValueError):
        return {}


def graphs_in(records, *roles):
    return [entry for entry in records if entry["type"] == "graph" and entry["info"]["role"] in roles]


def lint(*files, options=()):
    """The report, its exit code and the seconds it took."""
    begin = time.monotonic()
    done = run([CGLINT, "lint", "--format", "json", *options, *files], 100)
    try:
        return json.loads(done.stdout), done.returncode, round(time.monotonic() - begin, 2)
    except ValueError:
        return {"findings": [], "error": done.stderr.strip()[-300:]}, done.returncode, round(time.monotonic() - begin, 2)


# --- leaving the process ---

# Programs, each with its options, and how often in a hundred each is tried.
EXITS = [([DEFECTS, "disposed_gate", "good"], ["--replays", "2"], 50), ([DEFECTS, "disposed_gate", "good"], [], 5), ([DEFECTS, "freed_input", "good"], ["--replays", "2"], 5),
         ([DEFECTS, "two_writers", "good"], ["--replays", "2"], 5), ([DEFECTS, "side_branch_first", "good"], ["--replays", "2"], 5),
         ([DEFECTS, "stream_per_layer", "good"], ["--replays", "2"], 5), ([DEFECTS, "work_on_another_stream", "good"], ["--replays", "2"], 5),
         ([DEFECTS, "capture_again_and_again", "good"], ["--replays", "2"], 5), ([os.path.join(BIN, "record_two_streams")], ["--replays", "2"], 5),
         ([LOAD, "leave", "exit"], ["--replays", "2"], 5), ([LOAD, "leave", "return"], ["--replays", "9"], 5)]
TRACE = dict(os.environ, LD_PRELOAD=os.path.join(BIN, "librecord_crash_trace.so"))


def left(number, command, options):
    folder = os.path.join(OUT, f"exit{number}")
    done = record(folder, command, *options, timeout=60, env=TRACE) if options is not None else run(command, 60, env=TRACE)
    row = {"program": " ".join(os.path.basename(word) for word in command), "exit": done.returncode}
    if options is not None:
        row["whole"] = [lines_of(path)[1] for path in files_of(folder)] == [True]
        shutil.rmtree(folder, ignore_errors=True)
    if done.returncode != 0:
        lines = done.stderr.splitlines()
        row["crash"] = [line for line in lines if not line.startswith("crash map")][-40:]
        row["maps"] = [line[11:] for line in lines if line.startswith("crash map")][:60]
    return row


def part_exits():
    """Programs that end while all is well: none may crash, and every file is whole."""
    count = int(os.environ.get("CGLINT_EXITS", "320"))
    jobs = [(command, options) for command, options, share in EXITS for _ in range(max(1, round(count * share / 100)))]
    with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
        rows = list(pool.map(lambda job: left(job[0], *job[1]), enumerate(jobs)))
        # A thread that is in driver calls while the process goes may crash on its own: so is the same program without the recorder.
        with_thread = list(pool.map(lambda n: left(10000 + n, [LOAD, "leave", "thread"], ["--replays", "2"]), range(24)))
        without = list(pool.map(lambda n: left(20000 + n, [LOAD, "leave", "thread"], None), range(24)))
    bad = [row for row in rows if row["exit"] != 0 or not row["whole"]]
    crashed, alone = [row for row in with_thread if row["exit"] != 0], [row for row in without if row["exit"] != 0]
    table = {}
    for row in rows:
        entry = table.setdefault(row["program"], [0, 0])
        entry[0] += 1
        entry[1] += row["exit"] != 0
    return {"good": not bad and len(crashed) <= len(alone), "recordings": len(rows), "failed": len(bad), "by_program": table, "bad": bad[:6],
            "thread_in_calls": {"recorded": len(with_thread), "crashed": len(crashed), "whole": sum(row["whole"] for row in with_thread), "without_recorder": len(without),
                                "crashed_without": len(alone), "bad": crashed[:2], "bad_without": alone[:1]}}


def part_leaves():
    """By signal, abort or _exit each graph is on disk; after an exit in order the file is whole."""
    rows = {}
    for way in ("return", "exit", "_exit", "abort", "term", "kill"):
        folder = os.path.join(OUT, f"leave_{way}")
        done = record(folder, [LOAD, "leave", way], "--replays", "2")
        files = files_of(folder)
        records, whole = lines_of(files[0]) if files else ([], False)
        rows[way] = {"exit": done.returncode, "graphs": len(graphs_in(records, "captured")), "whole": whole, "lint": lint(*files)[1] if files else None}
    good = all(row["graphs"] == 1 and row["whole"] == (way in ("return", "exit")) and row["lint"] in (0, 1, 4) for way, row in rows.items())
    return {"good": good, "ways": rows}


def part_launched_at_once():
    """Launches that follow each other without a wait: the replays asked for are whole, although more are under way when tracing ends."""
    rows = []
    for number in range(8):
        folder = os.path.join(OUT, f"at_once{number}")
        done = record(folder, [os.path.join(BIN, "record_two_streams")], "--replays", "2")
        records, whole = lines_of(files_of(folder)[0])
        ops = [len(replay["ops"]) for entry in records if entry["type"] == "replays" for replay in entry["replays"]]
        rows.append({"exit": done.returncode, "whole": whole, "ops": ops, "losses": [[entry["what"], entry["count"]] for entry in records if entry["type"] == "loss"]})
    # Two graphs, each replayed twice: a memset, three kernels and a copy.
    return {"good": all(row["exit"] == 0 and row["whole"] and row["ops"] == [5] * 4 and not row["losses"] for row in rows), "runs": rows}


def part_taken():
    """Another tool has CUPTI already: it is named, the program runs to its end, and there is no file."""
    folder = os.path.join(OUT, "taken")
    done = record(folder, ["env", "LD_PRELOAD=" + os.path.join(BIN, "librecord_takes_cupti.so"), os.path.join(BIN, "record_two_streams")], "--replays", "2")
    said = [line for line in done.stderr.splitlines() if line.strip()]
    return {"good": done.returncode == 0 and done.stdout.split() == ["1", "2"] and any("CUPTI is in use by the other tool" in line for line in said) and not files_of(folder),
            "exit": done.returncode, "said": said[:4], "files": len(files_of(folder))}


# --- size ---

def part_large():
    """Graphs of 20,000 nodes, captured and built."""
    nodes, rows, good = 20000, {}, True
    plain = last_json(run([LOAD, "large", str(nodes)]))
    for name, options in (("structure", ["--no-native-stacks", "--no-eager"]), ("all", []), ("replays", ["--replays", "1"])):
        folder = os.path.join(OUT, f"large_{name}")
        done = record(folder, [LOAD, "large", str(nodes)], *options)
        records, whole = lines_of(files_of(folder)[0])
        graphs = graphs_in(records, "captured", "built")
        report, code, seconds = lint(*files_of(folder))
        rows[name] = {"told": last_json(done), "nodes": [len(graph["nodes"]) for graph in graphs], "whole": whole, "bytes": os.path.getsize(files_of(folder)[0]), "lint_exit": code,
                      "lint_s": seconds, "codes": sorted({finding["code"] for finding in report["findings"]}),
                      "ops": sum(len(replay["ops"]) for entry in records if entry["type"] == "replays" for replay in entry["replays"])}
        good &= done.returncode == 0 and whole and rows[name]["nodes"] == [nodes, nodes] and code in (0, 1, 4)
        shutil.rmtree(folder, ignore_errors=True)
    return {"good": good and rows["replays"]["ops"] == 2 * nodes, "without_recorder": plain, **rows}


def part_many():
    """Thousands of graphs in one process: resident memory over its four quarters, beside the same without the recorder."""
    graphs, nodes, kept, rows, good = 4000, 40, 300, {}, True
    plain = last_json(run([LOAD, "many", str(graphs), str(nodes), str(kept)]))
    for name, options in (("structure", ["--no-native-stacks", "--no-eager"]), ("all", []), ("replays", ["--replays", "1"])):
        folder = os.path.join(OUT, f"many_{name}")
        done = record(folder, [LOAD, "many", str(graphs), str(nodes), str(kept)], *options)
        told = last_json(done)
        records, whole = lines_of(files_of(folder)[0])
        resident = told.get("resident_kib", [0] * 5)
        more = (resident[4] - resident[2]) - (plain["resident_kib"][4] - plain["resident_kib"][2])
        rows[name] = {"resident_kib": resident, "grows_kib_in_second_half": more, "graphs": len(graphs_in(records, "captured")), "whole": whole,
                      "bytes": os.path.getsize(files_of(folder)[0])}
        if name == "all":
            rows[name]["lint_exit"], rows[name]["lint_s"] = lint(*files_of(folder))[1:]
            good &= rows[name]["lint_exit"] in (0, 1, 4)
        good &= done.returncode == 0 and whole and rows[name]["graphs"] == graphs and more < 16 * 1024
        shutil.rmtree(folder, ignore_errors=True)
    return {"good": good, "graphs": graphs, "nodes": nodes, "kept": kept, "without_recorder_kib": plain["resident_kib"], **rows}


# --- where nodes come from ---

def line_of(graph, node):
    """File and line of a node's innermost frame in the program."""
    if "stack" not in node:
        return None
    for number in graph["stacks"][node["stack"]]:
        frame = graph["frames"][number]
        if frame["file"].endswith("load.cu"):
            return frame["line"]
    return 0


def part_built():
    folder = os.path.join(OUT, "built")
    done = record(folder, [LOAD, "built"], "--replays", "2")
    told = last_json(done)
    if not told:
        return {"good": False, "error": done.stderr.strip()[-300:]}
    records, whole = lines_of(files_of(folder)[0])
    keep("built", files_of(folder))
    rows = [{"role": graph["info"]["role"], "parent": graph["info"].get("parent"), "nodes": [[node["kind"], line_of(graph, node)] for node in graph["nodes"]]}
            for graph in graphs_in(records, "built", "captured", "body")]
    by_line = {}
    for row in rows:
        for kind, line in row["nodes"]:
            by_line.setdefault(line, []).append(kind)
    has = {"kernel": "kernel", "memset": "memset", "general": "kernel", "body": "kernel", "inner": "kernel"}
    missing = [name for name, kind in has.items() if kind not in by_line.get(told[name], [])]
    report, code, _ = lint(*files_of(folder))
    return {"good": whole and not missing and code in (0, 1, 4), "told": told, "missing": missing, "graphs": rows, "lint_exit": code,
            "codes": sorted({finding["code"] for finding in report["findings"]}), "losses": [entry["what"] for entry in records if entry["type"] == "loss"]}


def lines_of_kernels(path, program):
    """Of the captured kernels: how many have frames, generated frames, a line of the program behind a generated one; and these lines."""
    records, _ = lines_of(path)
    numbers = {"kernels": 0, "with_stack": 0, "generated": 0, "in_program": 0}
    lines = {}
    for graph in graphs_in(records, "captured"):
        for node in graph["nodes"]:
            if node["kind"] != "kernel":
                continue
            numbers["kernels"] += 1
            frames = [graph["frames"][number] for number in graph["stacks"][node["stack"]]] if "stack" in node else []
            numbers["with_stack"] += bool(frames)
            numbers["generated"] += any(frame.get("generated") for frame in frames)
            first = next((frame for frame in frames if frame["file"].endswith(program)), None)
            if first:
                numbers["in_program"] += 1
                key = f"{first['line']} {first.get('function', '')}"
                lines[key] = lines.get(key, 0) + 1
    return dict(numbers, lines=lines)


def part_compiled():
    """torch.compile(mode="reduce-overhead"): with the hook's comments, again from the cache it made, and from a cache made without it."""
    program, rows, told, good = os.path.join(PROGRAMS, "compiled_lines.py"), {}, {}, True

    def runs(cache, *names):
        for name in names:
            env = dict(os.environ, TORCHINDUCTOR_CACHE_DIR=os.path.join(OUT, "inductor_" + cache), TRITON_CACHE_DIR=os.path.join(OUT, "triton_" + cache))
            folder = os.path.join(OUT, "compiled_" + name)
            recorded = name != "warm"
            done = record(folder, [PYTHON, program], timeout=150, env=env) if recorded else run([PYTHON, program], 150, env=env)
            told.update(last_json(done))
            if done.returncode != 0:
                return f"{name}: {done.stderr.strip()[-600:]}"
            if recorded:
                keep("compiled_" + name, files_of(folder))
                rows[name] = lines_of_kernels(files_of(folder)[0], "compiled_lines.py")
        return ""

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        errors = list(pool.map(lambda job: runs(*job), [("with", "fresh", "cached"), ("without", "warm", "foreign_cache")]))
    if any(errors):
        return {"good": False, "error": "; ".join(filter(None, errors)), **rows}
    expected = {f"{line} step" for line in told["lines"]}
    for name in ("fresh", "cached"):
        good &= rows[name]["kernels"] > 0 and rows[name]["generated"] == rows[name]["kernels"] and set(rows[name]["lines"]) <= expected and \
            rows[name]["in_program"] == rows[name]["kernels"] and len(rows[name]["lines"]) >= 2
    return {"good": good and rows["foreign_cache"]["kernels"] > 0, "expected": sorted(expected), **rows}


# --- several GPUs ---

def part_ranks():
    folder = os.path.join(OUT, "ranks")
    done = record(folder, [PYTHON, os.path.join(PROGRAMS, "ranks.py")], "--replays", "2", timeout=150)
    told = last_json(done)
    rows = {}
    for path in files_of(folder):
        records, whole = lines_of(path)
        process = next(entry for entry in records if entry["type"] == "process")
        captured = graphs_in(records, "captured")
        rows[str(process.get("rank"))] = {"graphs": len(captured), "nodes": [len(graph["nodes"]) for graph in captured], "whole": whole,
                                          "devices": sorted({node["device"] for graph in captured for node in graph["nodes"] if "device" in node}),
                                          "replays": sum(len(entry["replays"]) for entry in records if entry["type"] == "replays"), "in_name": f".rank{process.get('rank')}." in path}
    report, code, _ = lint(*files_of(folder))
    world = told.get("processes", 0)
    good = done.returncode == 0 and sorted(rows) == [str(rank) for rank in range(world)] and code in (0, 1, 4) and \
        all(row["graphs"] == 1 and row["whole"] and row["in_name"] and row["devices"] == [int(rank)] and row["replays"] == 2 for rank, row in rows.items())
    return {"good": good, "told": told, "ranks": rows, "lint_exit": code, "codes": sorted({finding["code"] for finding in report["findings"]}),
            "inputs": len(report.get("inputs", [])), "error": done.stderr.strip()[-400:] if done.returncode else ""}


# --- graphs without the recorder ---

def part_c_api():
    program = os.path.join(BIN, "capture_api_gpu")
    if not os.path.exists(program):
        return {"good": True, "skipped": "not built"}
    folder = os.path.join(OUT, "c_api")
    os.makedirs(folder)
    done = run([program, folder])
    if done.returncode != 0:
        return {"good": False, "error": f"exit code {done.returncode}: {done.stderr.strip()[-300:]}"}
    rows, good = {}, True
    for path in files_of(folder):
        name = os.path.basename(path)[:-len(".cgl.jsonl")]
        report, code, _ = lint(path, options=["--max-streams", "3"])
        graph = report["inputs"][0]["graphs"][0]
        rows[name] = {"codes": sorted({finding["code"] for finding in report["findings"]}), "exit": code, "nodes": graph["nodes"], "edges": graph["edges"], "streams": graph.get("streams_predicted"),
                      "losses": report["inputs"][0]["losses"]}
        nodes = 5 if name.startswith("built") else 31
        good &= graph["nodes"] == nodes and ("CG102" in rows[name]["codes"]) == name.startswith("side_first") and not rows[name]["losses"]
    return {"good": good and len(rows) == 6, "graphs": rows}


def part_python_api():
    folder = os.path.join(OUT, "python_api")
    os.makedirs(folder)
    done = run([PYTHON, os.path.join(PROGRAMS, "graph_api.py"), folder], 200,
               env=dict(os.environ, PYTHONPATH=os.path.join(os.environ["CGLINT_DATA"], "python"), CGLINT_BIN=BIN))
    told = last_json(done)
    return {"good": done.returncode == 0 and told.get("wrong") == [], **told, "error": done.stderr.strip()[-500:] if done.returncode else ""}


def part_free_threaded():
    """Without an interpreter lock: recorded, and few frames or none."""
    for name in ("python3.14t", "python3.13t"):
        found = shutil.which(name)
        if found and run([found, "-c", "import torch"]).returncode == 0:
            folder = os.path.join(OUT, "free_threaded")
            done = record(folder, [found, os.path.join(PROGRAMS, "torch_moe.py"), "side_first", "2"])
            records, whole = lines_of(files_of(folder)[0])
            graphs = graphs_in(records, "captured")
            nodes = [(graph, node) for graph in graphs for node in graph["nodes"]]
            python = sum(any(graph["frames"][number]["file"].endswith(".py") for number in graph["stacks"][node["stack"]]) for graph, node in nodes if "stack" in node)
            return {"good": done.returncode == 0 and whole and len(nodes) > 0, "interpreter": name, "nodes": len(nodes), "with_python_frames": python}
    return {"good": True, "skipped": "no free-threaded Python with PyTorch here"}


# --- what stays behind ---

DETACH_MODES = ["none", "recorder", "injected", "loaded", "before", "before_context", "subscribed", "resource", "driver", "activity", "unsubscribed", "late"]


def detach_run(mode, nodes, launches):
    program, cupti = os.path.join(BIN, "record_detach_cost"), os.environ.get("CGLINT_CUPTI", "libcupti.so.13")
    if mode == "recorder":
        # It leaves in the third of the three rows of replays before `old_graph`, which is after it.
        return record(os.path.join(OUT, f"detach{time.monotonic_ns()}"), [program, mode, str(nodes), str(launches)], "--detach-after", str(2 * (launches + 10) + 5), timeout=60)
    if mode == "injected":  # a library that does nothing is injected
        return run([program, "none", str(nodes), str(launches)], 60, env=dict(os.environ, CUDA_INJECTION64_PATH=os.path.join(BIN, "librecord_crash_trace.so")))
    return run([program, mode, str(nodes), str(launches), cupti], 60)


def part_detach():
    """Replays of 544 nearly empty kernels at stages of CUPTI's stay (detach_cost.cu); the modes take turns, and the first one changes."""
    rows, errors = {}, {}
    for number in range(ROUNDS):
        for mode in DETACH_MODES[number:] + DETACH_MODES[:number]:
            done = detach_run(mode, 544, 100)
            told = last_json(done)
            if not told:
                errors[mode] = f"exit code {done.returncode}: {done.stderr.strip()[-200:]}"
                continue
            told.pop("mode")
            for stage, (median, _) in told.items():
                rows.setdefault(mode, {}).setdefault(stage, []).append(median)
    share = {mode: {stage: round(statistics.median(values) / statistics.median(rows["none"][stage]) - 1, 4) for stage, values in stages.items()} for mode, stages in rows.items()}
    return {"good": not errors and len(rows) == len(DETACH_MODES), "rounds": ROUNDS, "more_than_none": share, "median_us": rows, "errors": errors}


PARTS = {"exits": part_exits, "leaves": part_leaves, "launched_at_once": part_launched_at_once, "taken": part_taken, "built": part_built, "c_api": part_c_api, "python_api": part_python_api, "compiled": part_compiled, "ranks": part_ranks,
         "large": part_large, "many": part_many, "detach": part_detach, "free_threaded": part_free_threaded}
NEED_TORCH = {"python_api", "compiled", "ranks"}

run_parts(PARTS, NEED_TORCH)
