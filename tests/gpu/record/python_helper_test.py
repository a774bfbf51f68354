#!/usr/bin/env python3
"""The start-up hook of `cglint record` without a GPU: fake torch modules, and a library that writes what the recorder would.

usage: python_helper_test.py HELPER_FOLDER FAKE_LIBRARY CGLINT
Every Python 3.9 or later that is found as python3.N is tried as well.
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile


def check(good, text):
    if not good:
        sys.exit(f"FAILED: {text}")


TORCH = {
    "torch/__init__.py": "from . import cuda\n",
    "torch/cuda/__init__.py": '''
import os
blocks = [(1 << 20, "active_allocated"), (512, "inactive"), (512, "active_pending_free")]
def is_initialized():
    return True
def memory_snapshot(%(parameters)s):
    if os.environ.get("FAKE_FAILS"):
        raise RuntimeError("not for this allocator")
    place, rows = 0x7f0000100000, []
    for size, state in blocks:
        rows.append({"size": size, "state": state, %(address)s})
        place += size
    return [{"device": 0, "address": 0x7f0000100000, "stream": 7, "segment_pool_id": (0, 0), "blocks": rows},
            {"device": 0, "address": 0x7f0000800000, "stream": 0, "segment_pool_id": (0, 3), "blocks": [{"size": 4096, "state": "inactive"}]}]
from . import graphs
''',
    "torch/cuda/graphs.py": '''
import ctypes, os
library = None
class CUDAGraph:
    """A graph."""
    def __init__(self, keep=False):
        self.keep = keep
    def capture_begin(self, pool=None, fail=False):
        if fail:
            raise ValueError("capture_begin failed")
    def capture_end(self, fail=False):
        if fail:
            raise ValueError("capture_end failed")
        if not self.keep:
            self.made()
    def instantiate(self):
        self.made()
        return "instantiated"
    def made(self):
        if library is not None:
            library.fake_graph(ctypes.c_uint64(0x7f0000100000))
''',
    "torch/_inductor/__init__.py": "",
    "torch/_inductor/utils.py": '''
def aggregate_origins(schedule):
    return set(schedule)
def get_kernel_metadata(node_schedule, wrapper):
    return wrapper.comment + " Topologically Sorted Source Nodes: [a], Original ATen: [aten.mm]", "details"
''',
}


def torch_at(folder, parameters="mempool_id=None, include_traces=True", address='"address": place'):
    for name, text in TORCH.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text % {"parameters": parameters, "address": address} if "%(" in text else text)


def run(python, helper, library, folder, program, options=(), **environment):
    env = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    # The recorder's own name, under which the driver would have loaded it.
    env.update(PYTHONPATH=f"{helper}:{folder}", CUDA_INJECTION64_PATH=str(library), FAKE_RECORD_OUT=str(folder / "out.cgl.jsonl"), PYTHONDONTWRITEBYTECODE="1", **environment)
    (folder / "out.cgl.jsonl").unlink(missing_ok=True)
    (folder / "program.py").write_text(program)
    done = subprocess.run([python, *options, str(folder / "program.py")], capture_output=True, text=True, env=env, timeout=60, cwd=folder)
    path = folder / "out.cgl.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return done, records


LOADED = '''
import ctypes, os
library = ctypes.CDLL(os.environ["CUDA_INJECTION64_PATH"])
import torch
import torch.cuda.graphs
torch.cuda.graphs.library = library
'''


def kinds(records, kind):
    return [record for record in records if record["type"] == kind]


def states(python, helper, library, cglint, folder):
    torch_at(folder)
    # A capture, memory given back, and the end of the program.
    done, records = run(python, helper, library, folder, LOADED + '''
graph = torch.cuda.graphs.CUDAGraph()
graph.capture_begin()
graph.capture_end()
torch.cuda.blocks[0] = (1 << 20, "inactive")
''')
    check(done.returncode == 0 and done.stderr == "" and done.stdout == "", f"{done}")
    graphs, moments = kinds(records, "graph"), kinds(records, "allocator_blocks")
    check(len(graphs) == 1 and "allocator_state" in graphs[0]["facts"], f"{records}")
    check(len(moments) == 2 and moments[0]["sequence"] > graphs[0]["info"]["end_sequence"] and moments[1]["sequence"] > moments[0]["sequence"], f"{moments}")
    expected = [{"base": "0x7f0000100000", "size_bytes": 1 << 20, "state": "active", "stream": "0x7"},
                {"base": "0x7f0000200000", "size_bytes": 512, "state": "free", "stream": "0x7"},
                {"base": "0x7f0000200200", "size_bytes": 512, "state": "pending_free", "stream": "0x7"},
                {"base": "0x7f0000800000", "size_bytes": 4096, "state": "free", "pool": "graph pool 0.3 of device 0"}]
    check(moments[0]["blocks"] == expected, f"{moments[0]}")
    check(moments[1]["blocks"][0]["state"] == "free", f"{moments[1]}")
    # What was written is what the linter reads.
    lint = subprocess.run([cglint, "lint", "--format", "json", str(folder / "out.cgl.jsonl")], capture_output=True, text=True)
    report = json.loads(lint.stdout)
    check(report["errors"] == [] and not [loss for loss in report["inputs"][0]["losses"] if "end record" not in loss["what"]], lint.stdout)

    # Versions that state neither the blocks' addresses nor take the newer argument.
    torch_at(folder, parameters="", address="")
    done, records = run(python, helper, library, folder, LOADED + '''
graph = torch.cuda.graphs.CUDAGraph(True)
graph.capture_begin()
graph.capture_end()
assert graph.instantiate() == "instantiated" and graph.instantiate.__name__ == "instantiate"
''')
    moments = kinds(records, "allocator_blocks")
    check(done.returncode == 0 and done.stderr == "" and len(moments) == 2 and moments[0]["blocks"] == expected, f"{done} {moments}")

    # Looks come on demand too, and after a burst; none while a graph is being captured.
    torch_at(folder)
    done, records = run(python, helper, library, folder, LOADED + '''
import time
graph = torch.cuda.graphs.CUDAGraph()
graph.capture_begin()
graph.capture_end()
other = torch.cuda.graphs.CUDAGraph()
other.capture_begin()
library.fake_flush()
time.sleep(1.2)
torch.cuda.blocks = [(4096, "inactive")]
other.capture_end(False)
time.sleep(2.9)
torch.cuda.blocks = [(512, "inactive")]
library.fake_flush()
time.sleep(1.2)
library.fake_end()
''')
    moments = kinds(records, "allocator_blocks")
    check(done.returncode == 0 and done.stderr == "", f"{done}")
    check([moment["blocks"][0]["size_bytes"] for moment in moments][0] == 1 << 20, f"{moments}")
    check(sum(moment["blocks"][0]["size_bytes"] == 1 << 20 for moment in moments) == 1, "no look during a capture")
    check(any(moment["blocks"][0]["size_bytes"] == 4096 for moment in moments) and moments[-1]["blocks"][0]["size_bytes"] == 512, f"{moments}")
    check(kinds(records, "end")[0]["records"] == len(records) - 1, "the end counts")


# What torch.cuda gains where the allocator keeps a list of its calls.
HISTORY = '''
import time, types
import torch
trace, asked = [], []
def note(action, address, size, late=0):
    trace.append({"action": action, "addr": address, "size": size, "stream": 0, "time_us": time.time_ns() // 1000 + late})
def record(enabled="all", context="all", stacks="all", max_entries=1 << 62):
    asked.append((enabled, context, max_entries))
    torch._C.on = enabled is not None
class C:
    on = bool(os.environ.get("FAKE_HISTORY"))
    @staticmethod
    def _cuda_isHistoryEnabled():
        return C.on
torch._C = C
memory = types.SimpleNamespace(_record_memory_history=record, _snapshot=lambda: {"segments": memory_snapshot(), "device_traces": [list(trace), []]})
def device_count():
    return 2
def memory_stats_as_nested_dict(device):
    return {"allocation": {"all": {"allocated": len(trace)}}} if device == 0 else {}
'''


def history(python, helper, library, cglint, folder):
    """Memory that changed hands between two looks, both times in use."""
    torch_at(folder)
    with open(folder / "torch/cuda/__init__.py", "a") as file:
        file.write(HISTORY)
    begin, capture = LOADED + "torch.cuda.note('alloc', 0x7f0000100000, 1 << 20)\n", '''
import time
graph = torch.cuda.graphs.CUDAGraph()
graph.capture_begin()
graph.capture_end()
time.sleep(0.01)
print(torch.cuda.asked)
'''
    reused = "torch.cuda.note('free_completed', 0x7f0000100000, 1 << 20)\ntorch.cuda.note('alloc', 0x7f0000100000, 1 << 20)\n"
    other = "torch.cuda.note('alloc', 0x7f0000900000, 512)\n"

    def codes():
        lint = subprocess.run([cglint, "lint", "--format", "json", str(folder / "out.cgl.jsonl")], capture_output=True, text=True)
        return [finding["code"] for finding in json.loads(lint.stdout)["findings"]]

    done, records = run(python, helper, library, folder, begin + capture + reused)
    check(done.returncode == 0 and done.stderr == "" and done.stdout == "[('all', None, 50000)]\n", f"{done}")
    end = kinds(records, "graph")[0]["info"]["end_sequence"]
    since = [moment["blocks"][0].get("alloc_sequence", 0) for moment in kinds(records, "allocator_blocks")]
    check(len(since) == 2 and since[0] < end < since[1], f"{since} {end}")
    check(codes() == ["CG302"], f"{codes()}")
    # Free again by then: in three parts, of which the second had been handed out last; what lies behind it not since before the capture.
    done, records = run(python, helper, library, folder, begin + capture + reused + "torch.cuda.note('alloc', 0x7f0000140000, 512)\ntorch.cuda.blocks[0] = (1 << 20, 'inactive')\n")
    end = kinds(records, "graph")[0]["info"]["end_sequence"]
    last = [(block["base"], block["size_bytes"], block["state"], block.get("alloc_sequence", 0) > end) for block in kinds(records, "allocator_blocks")[-1]["blocks"][:4]]
    check(last == [("0x7f0000100000", 0x40000, "free", True), ("0x7f0000140000", 512, "free", True), ("0x7f0000140200", 0xbfe00, "free", False),
                   ("0x7f0000200000", 512, "free", False)], f"{last}")
    # Held all the time; and another block, of which no graph knows.
    for what in ("", other):
        done, records = run(python, helper, library, folder, begin + capture + what)
        check(done.returncode == 0 and done.stderr == "" and codes() == [], f"{done} {codes()}")
    # Not wanted, and switched on by the program: it is left alone, and read where it is on.
    done, records = run(python, helper, library, folder, begin + capture + reused, CGLINT_RECORD_ALLOCATOR_HISTORY="0")
    check(done.stdout == "[]\n" and not any("alloc_sequence" in block for moment in kinds(records, "allocator_blocks") for block in moment["blocks"]), f"{records}")
    done, records = run(python, helper, library, folder, begin + capture + reused, FAKE_HISTORY="1")
    check(done.stdout == "[]\n" and done.stderr == "" and codes() == ["CG302"], f"{done} {codes()}")
    # Switched off by the program afterwards: what is not known is not guessed.
    done, records = run(python, helper, library, folder, begin + capture + "torch.cuda.memory._record_memory_history(None)\n" + reused)
    check(done.stderr == "" and codes() == [], f"{done} {codes()}")
    # The list was too short.
    done, records = run(python, helper, library, folder, begin + capture + "time.sleep(0.01)\ntorch.cuda.trace.clear()\n" + other)
    check(done.stderr == "" and len(kinds(records, "loss")) == 1, f"{done} {records}")
    # It fills up: it is read in time, without a line in the file.
    done, records = run(python, helper, library, folder, begin + capture + """
time.sleep(2.8)
for _ in range(20000):
    torch.cuda.note("alloc", 0x7f0000100000, 512)
time.sleep(0.9)
torch.cuda.trace[:-1] = []
time.sleep(0.1)
""" + other)
    check(done.stderr == "" and len(kinds(records, "allocator_blocks")) == 3 and kinds(records, "loss") == [], f"{done} {records}")


def left(python, helper, library, cglint, folder):
    """An error of the program that leaves a capture."""
    torch_at(folder)
    program = LOADED + """
class Graph:
    def __enter__(self):
        self.graph = torch.cuda.graphs.CUDAGraph()
        self.graph.capture_begin()
    def __exit__(self, *error):
        self.graph.capture_end()
def step(kind):
    if kind == "good":
        try:
            raise KeyError("caught within")
        except KeyError:
            return
    raise RuntimeError("Offset increment outside graph capture\\nmore")
def run(kind):
    try:
        with Graph():
            step(kind)
    except RuntimeError as error:
        print(type(error).__name__)
try:
    raise ValueError("under way before")
except ValueError:
    run("good")
run(KIND)
"""
    done, records = run(python, helper, library, folder, program.replace("KIND", "'good'"))
    check(done.returncode == 0 and done.stderr == "" and [graph["info"]["capture_status"] for graph in kinds(records, "graph")] == ["ok", "ok"], f"{done} {records}")
    done, records = run(python, helper, library, folder, program.replace("KIND", "'bad'"))
    check(done.returncode == 0 and done.stderr == "" and done.stdout == "RuntimeError\n", f"{done}")
    failed = [graph for graph in kinds(records, "graph") if graph["info"]["capture_status"] == "failed"]
    check(len(failed) == 1 and failed[0]["info"]["failed_error"] == "RuntimeError: Offset increment outside graph capture", f"{records}")
    lint = subprocess.run([cglint, "lint", str(folder / "out.cgl.jsonl")], capture_output=True, text=True)
    line = program[:program.index('raise RuntimeError')].count("\n") + 1
    check(f"program.py:{line} (step): CG404" in lint.stdout and "left it by RuntimeError: Offset" in lint.stdout, lint.stdout)


def failures(python, helper, library, cglint, folder):
    torch_at(folder)
    capture = LOADED + '''
for attempt in range(3):
    graph = torch.cuda.graphs.CUDAGraph()
    graph.capture_begin()
    graph.capture_end()
print("ran on")
'''
    done, records = run(python, helper, library, folder, capture, FAKE_FAILS="1")
    check(done.returncode == 0 and done.stdout == "ran on\n" and done.stderr.count("\n") == 1 and "not for this allocator" in done.stderr, f"{done}")
    losses = kinds(records, "loss")
    check(len(losses) == 1 and losses[0]["facts"] == ["allocator_state"] and losses[0]["severity"] == "data_loss", f"{losses}")
    check(["allocator_state" in graph["facts"] for graph in kinds(records, "graph")] == [True, False, False], f"{records}")
    # The program's own errors stay its own, and a capture that failed is not counted as one under way.
    done, records = run(python, helper, library, folder, LOADED + '''
graph = torch.cuda.graphs.CUDAGraph()
for call in (graph.capture_begin, graph.capture_end):
    try:
        call(fail=True)
    except ValueError as error:
        print(error)
graph.capture_begin()
graph.capture_end()
''')
    check(done.stdout == "capture_begin failed\ncapture_end failed\n" and len(kinds(records, "allocator_blocks")) == 2, f"{done} {records}")
    # Not recorded: nothing happens, and nothing is said.
    done, records = run(python, helper, library, folder, capture.replace("library = ctypes.CDLL", "ctypes.CDLL if 0 else").replace("graphs.library = library", "graphs.library = None"))
    check(done.returncode == 0 and done.stdout == "ran on\n" and done.stderr == "" and records == [], f"{done}")
    # A torch that is laid out differently.
    (folder / "torch/cuda/graphs.py").write_text("library = None\n")
    done, _ = run(python, helper, library, folder, "import torch\nprint('ran on')\n")
    check(done.returncode == 0 and done.stdout == "ran on\n" and done.stderr.count("\n") == 1 and "torch.cuda.graphs" in done.stderr, f"{done}")


def chain(python, helper, library, cglint, folder):
    modules = "import sys\nprint(sorted(sys.modules))\n"
    (folder / "plain").mkdir()
    done, _ = run(python, helper, library, folder, modules)
    plain, _ = run(python, folder / "plain", library, folder, modules)
    added = set(eval(done.stdout)) - set(eval(plain.stdout))
    check(done.returncode == 0 and done.stderr == "" and not added & {"torch", "threading", "ctypes", "atexit"}, f"a program without torch: {added} {done.stderr}")
    (folder / "sitecustomize.py").write_text("import sys\nsys.from_user = __name__, __file__\n")
    program = "import sys, sitecustomize\nprint(sys.from_user, sitecustomize.__file__)\n"
    done, _ = run(python, helper, library, folder, program)
    own = str(folder / "sitecustomize.py")
    check(done.returncode == 0 and done.stdout.split() == ["('sitecustomize',", f"'{own}')", own] and done.stderr == "", f"{done}")
    # What the program's own raises is reported as Python reports it.
    (folder / "sitecustomize.py").write_text("raise ValueError('mine')\n")
    done, _ = run(python, helper, library, folder, "print('ran on')\n")
    check(done.returncode == 0 and done.stdout == "ran on\n" and "ValueError: mine" in done.stderr, f"{done}")
    (folder / "sitecustomize.py").unlink()
    for options in (["-S"], ["-I"], ["-E"]):
        done, _ = run(python, helper, library, folder, "print('ran on')\n", options)
        check(done.returncode == 0 and done.stdout == "ran on\n" and done.stderr == "", f"{options}: {done}")


def frames(python, helper, library, cglint, folder):
    """Frames of a thread that holds the interpreter lock, and of one that gave it up, on each thread."""
    done, _ = run(python, helper, library, folder, """import ctypes, os, sys, threading
path = os.environ["CUDA_INJECTION64_PATH"]
def inner(load):
    function = load(path).fake_frames
    function.restype = ctypes.c_char_p
    return function().decode()
def outer():
    return [inner(ctypes.PyDLL), inner(ctypes.CDLL)]
results = [outer()]
thread = threading.Thread(target=lambda: results.append(outer()))
thread.start()
thread.join()
print(results[0])
print(results[1])
print(hasattr(sys, "_is_gil_enabled") and "free-threading" in sys.version)
""")
    check(done.returncode == 0 and done.stderr == "", f"{done}")
    lines = done.stdout.splitlines()
    free = lines[2] == "True"  # there only a thread that is attached has frames
    check(lines[0] == str(["inner:6;outer:8;<module>:9;", "none" if free else "inner:6;outer:8;<module>:9;"]), f"{python}: {done.stdout}")
    for part in eval(lines[1])[:1 if free else 2]:
        check(part.startswith("inner:6;outer:8;<lambda>:10;") and "run:" in part, f"{python}: {done.stdout}")


def locks(python, helper, library, cglint, folder):
    """Two threads that would wait for each other, were the interpreter lock waited for without end; and a thread that keeps it in a blocking call.

    With a longer time limit the same takes longer: these tests can fail."""
    done, _ = run(python, helper, library, folder, """import ctypes, os, sys, threading, time
path = os.environ["CUDA_INJECTION64_PATH"]
releases, keeps = ctypes.CDLL(path), ctypes.PyDLL(path)  # CDLL gives the interpreter lock up for the call, PyDLL does not
def together(other, mine):
    results = []
    thread = threading.Thread(target=lambda: results.append(other()))
    thread.start()
    time.sleep(0.05)
    begin = time.perf_counter()
    mine()
    took = time.perf_counter() - begin
    thread.join()
    return results[0], took
rows = []
for limit in (20, 1500):
    rows.append(together(lambda: releases.fake_frames_in_mutex(200, limit), keeps.fake_take_and_give))
rows.append(together(lambda: releases.fake_frames_in_mutex(200, 20), lambda: keeps.fake_block(600)))
rows.append(together(lambda: releases.fake_frames_in_mutex(200, 1500), lambda: keeps.fake_block(600)))
print(rows)
print(hasattr(sys, "_is_gil_enabled") and "free-threading" in sys.version)
""")
    check(done.returncode == 0 and done.stderr == "", f"{done}")
    lines = done.stdout.splitlines()
    if lines[1] == "True":
        return
    (short, short_s), (long, long_s), (kept, _), (given, _) = eval(lines[0])
    check(short == 1 and long == 1 and short_s < 1.2 and long_s > 1.4, f"{python}: {done.stdout}")
    # The lock comes back before the longer limit is over.
    check(kept == 1 and given == 0, f"{python}: {done.stdout}")


def hidden(python, helper, library, cglint, folder):
    """The hook's wrappers are in no stack."""
    torch_at(folder)
    text = TORCH["torch/cuda/graphs.py"].replace("    def capture_end(self, fail=False):\n", "    def capture_end(self, fail=False):\n        library.fake_frames.restype = ctypes.c_char_p\n        print(library.fake_frames().decode())\n")
    (folder / "torch/cuda/graphs.py").write_text(text)
    done, _ = run(python, helper, library, folder, LOADED + "graph = torch.cuda.graphs.CUDAGraph()\ngraph.capture_begin()\nassert graph.capture_end.__wrapped__\ngraph.capture_end()\n")
    names = [part.split(":")[0] for part in done.stdout.strip().split(";")]
    check(names in (["capture_end", "<module>", ""], ["none"]), f"{done}")


def provenance(python, helper, library, cglint, folder):
    torch_at(folder)
    done, _ = run(python, helper, library, folder, r'''
import torch._inductor.utils as utils
class Graph:
    pass
class Node:
    op = "call_function"
    def __init__(self, graph, trace):
        self.graph, self.stack_trace, self.meta = graph, trace, {}
class Wrapper:
    comment = "#"
graph = Graph()
frame = '  File "{}", line {}, in {}\n    x = y\n'
a = Node(graph, frame.format("/m/main.py", 3, "main") + frame.format("/m/model.py", 812, "forward") + frame.format("/v/site-packages/torch/nn/functional.py", 9, "linear"))
b = Node(graph, frame.format("/m/model.py", 813, "forward"))
c = Node(graph, None)
graph.nodes = [a, b, c]
class Library:  # one call of a library, made of the nodes of its arguments and its own
    def __iter__(self):
        return iter([b, a, c])
print(utils.get_kernel_metadata(Library(), Wrapper)[0])
for nodes in ([b, a, c], [c], []):
    print(utils.get_kernel_metadata(nodes, Wrapper)[0])
a.stack_trace = 5
print(utils.get_kernel_metadata([a], Wrapper)[0])
print(utils.get_kernel_metadata(node_schedule=[a], wrapper=Wrapper)[1])
''')
    plain = "# Topologically Sorted Source Nodes: [a], Original ATen: [aten.mm]"
    places = [", File: /m/model.py:{} in forward".format(line) for line in (812, 813)]
    check(done.stdout.splitlines() == [plain + places[1] + places[0], plain + places[0] + places[1], plain, plain, plain, "details"], f"{done}")
    check(done.stderr.count("\n") == 1, f"said once: {done.stderr}")


def main(helper, library, cglint):
    helper, library = str(pathlib.Path(helper).resolve()), pathlib.Path(library).resolve()
    pythons = [sys.executable]
    for minor in range(9, 16):
        for suffix in ("", "t"):
            path = shutil.which(f"python3.{minor}{suffix}")
            # Some are stubs of version managers for versions that are not installed.
            if path and subprocess.run([path, "-c", ""], capture_output=True).returncode == 0 and minor != sys.version_info[1]:
                pythons.append(path)
    for python in pythons:
        for test in (states, history, left, failures, chain, frames, locks, hidden, provenance):
            with tempfile.TemporaryDirectory() as folder:
                print(f"{python}: {test.__name__}", flush=True)
                test(python, helper, library, cglint, pathlib.Path(os.path.realpath(folder)))


main(*sys.argv[1:])
