#!/usr/bin/env python3
"""Stands in for cglint-model-runner and cglint-record: no GPU. What it does depends on the variant's name."""
import json
import os
import signal
import sys
import time

NAME = os.path.basename(sys.argv[0])
VARIANTS = [
    {"name": "side_first", "summary": "two streams", "may_fault": False, "capture_fails": False, "same_bits_as": ""},
    {"name": "same", "summary": "same bits", "may_fault": False, "capture_fails": False, "same_bits_as": "side_first"},
    {"name": "other_bits", "summary": "other bits", "may_fault": False, "capture_fails": False, "same_bits_as": "side_first"},
    {"name": "null", "summary": "reads a null address", "may_fault": True, "capture_fails": False, "same_bits_as": ""},
    {"name": "wrong", "summary": "wrong output", "may_fault": False, "capture_fails": False, "same_bits_as": ""},
    {"name": "not_eager", "summary": "output is not that of the eager step", "may_fault": False, "capture_fails": False, "same_bits_as": ""},
    {"name": "taken", "summary": "CUPTI is taken", "may_fault": False, "capture_fails": False, "same_bits_as": ""},
    {"name": "big", "summary": "too little memory", "may_fault": False, "capture_fails": False, "same_bits_as": ""},
    {"name": "crash", "summary": "crashes", "may_fault": False, "capture_fails": False, "same_bits_as": ""},
    {"name": "hang", "summary": "hangs when traced", "may_fault": False, "capture_fails": False, "same_bits_as": ""},
    {"name": "faults", "summary": "faults although nobody said so", "may_fault": False, "capture_fails": False, "same_bits_as": ""},
    {"name": "no_capture", "summary": "its capture fails", "may_fault": False, "capture_fails": True, "same_bits_as": ""},
    {"name": "no_gpu", "summary": "no GPU", "may_fault": False, "capture_fails": False, "same_bits_as": ""},
    {"name": "moved", "summary": "its accesses do not fit the recording", "may_fault": False, "capture_fails": False, "same_bits_as": ""},
    {"name": "null_elsewhere", "summary": "a kernel faults whatever its null argument is", "may_fault": True, "capture_fails": False, "same_bits_as": ""},
    {"name": "null_number", "summary": "a kernel faults where a number is 0", "may_fault": True, "capture_fails": False, "same_bits_as": ""},
    {"name": "null_hangs", "summary": "a kernel alone does not end", "may_fault": True, "capture_fails": False, "same_bits_as": ""},
    {"name": "null_refused", "summary": "a kernel cannot be launched alone", "may_fault": True, "capture_fails": False, "same_bits_as": ""},
    {"name": "null_other", "summary": "its null argument is another one than the recording's", "may_fault": True, "capture_fails": False, "same_bits_as": ""},
    {"name": "null_linted", "summary": "a null address that only the linter knows of", "may_fault": False, "capture_fails": False, "same_bits_as": ""},
    {"name": "silent", "summary": "ends well and says nothing", "may_fault": False, "capture_fails": False, "same_bits_as": ""},
    {"name": "silent_go", "summary": "ends well without the replays", "may_fault": False, "capture_fails": False, "same_bits_as": ""},
    {"name": "silent_untraced", "summary": "ends well without a result where it is not traced", "may_fault": False, "capture_fails": False, "same_bits_as": ""},
    {"name": "silent_wrong", "summary": "ends with 1 and does not say what is wrong", "may_fault": False, "capture_fails": False, "same_bits_as": ""},
    {"name": "no_times", "summary": "ends well without its times", "may_fault": False, "capture_fails": False, "same_bits_as": ""},
    {"name": "no_dot", "summary": "does not write its graph", "may_fault": False, "capture_fails": False, "same_bits_as": ""},
    {"name": "captures", "summary": "its capture was to fail, and it says nothing of it", "may_fault": False, "capture_fails": True, "same_bits_as": ""},
    {"name": "no_accesses", "summary": "ends well and tells no accesses", "may_fault": False, "capture_fails": False, "same_bits_as": ""},
    {"name": "null_silent", "summary": "ends well and tells nothing of kernels alone", "may_fault": True, "capture_fails": False, "same_bits_as": ""},
    {"name": "null_silent_patch", "summary": "ends well and tells nothing of kernels with memory in the place of a null argument", "may_fault": True, "capture_fails": False, "same_bits_as": ""},
    {"name": "noisy", "summary": "a tool around it writes to standard output", "may_fault": False, "capture_fails": False, "same_bits_as": ""},
]


def tell(event, **facts):
    print(json.dumps({"event": event, **facts}), flush=True)


# Kernels with null words, by variant: node, [slot, byte, value] of these, slots that are dereferenced ("any": it faults whatever its arguments are;
# "number": it faults where slot 0 is below 65536, which it takes for a number).
READS_FIRST, NEAR_NULL, OPTIONAL = (1, [[3, 0, 7], [0, 0, 0]], {0}), (2, [[0, 0, 64]], {0}), (3, [[3, 0, 7]], set())
KERNELS = {"null_elsewhere": [(1, [[0, 0, 0]], {"any"})], "null_number": [(1, [[0, 0, 0]], {"number"})], "null_hangs": [READS_FIRST, (2, [[0, 0, 64]], {"hangs"})],
           "null_refused": [(1, [[0, 0, 0]], {"refused"}), NEAR_NULL], "null_other": [(1, [[0, 0, 8]], {0})]}
SCRATCH, UNMAPPED = 0x7F0000000000, 0x7E0000000000


def isolate():
    """Launches kernels alone, as the runner does."""
    first, patch = int(option("--isolate")), option("--patch")
    launches = 0
    for node, words, reads in KERNELS.get(option("--variant"), [READS_FIRST, NEAR_NULL, OPTIONAL]):
        if node < first or (patch and node != first):
            continue
        values = {slot: value for slot, _, value in words}
        if patch:
            values[int(patch.split(":")[0])] += UNMAPPED if "--unmapped" in sys.argv else SCRATCH
        tell("isolating", node=node, function="scale", words=words)
        if "hangs" in reads:
            time.sleep(1000)
        if "refused" in reads:
            tell("isolated", node=node, ran=False, refused="cudaGraphInstantiate: not supported")
            continue
        if "any" in reads or ("number" in reads and values[0] < 65536) or any(slot in reads and values[slot] < SCRATCH for slot in values):
            fail(5, "fault", f"node {node} alone: cudaErrorIllegalAddress: an illegal memory access was encountered")
        tell("isolated", node=node, ran=True)
        launches += 1
    if not patch:
        tell("isolation", nodes=5, kernels=3, kinds=3, launches=launches)


def fail(code, kind, message):
    tell("error", kind=kind, message=message)
    sys.exit(code)


def record():
    """cglint-record: hands the folder on."""
    arguments = sys.argv[1:]
    at = arguments.index("--")
    os.environ["FAKE_OUT"] = arguments[arguments.index("-o") + 1]
    os.environ["FAKE_REPLAYS"] = arguments[arguments.index("--replays") + 1]
    os.execv(arguments[at + 1], arguments[at + 1:])


def option(name, default=None):
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else default


def run():
    variant, traced = option("--variant"), "--wait" in sys.argv
    with open(os.environ["FAKE_LOG"], "a", encoding="utf-8") as log:
        log.write(json.dumps({"arguments": sys.argv[1:], "connections": os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS"),
                              "injection": os.environ.get("CUDA_INJECTION64_PATH"), "pid": os.getpid()}) + "\n")
    if variant == "no_gpu" or "FAKE_NO_GPU" in os.environ:
        fail(4, "no_gpu", "no usable GPU: none found")
    if variant == "silent":
        sys.exit(0)
    tell("gpu", name="NVIDIA Fake", driver_version=13000)
    if variant == "big":
        fail(4, "memory", "too little GPU memory: 24.0 GB needed, 8.0 GB free")
    if variant == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    tell("prepared", batch=1, persistent_bytes=1000, seconds=0.1)
    if variant == "noisy":
        print("========= COMPUTE-SANITIZER", flush=True)
    if variant == "no_capture":
        tell("capture_failed", message="cudaErrorStreamCaptureUnsupported", expected=True, streams_usable=True)
        sys.exit(0)
    tell("captured", nodes=5, capture_us=50.0)
    if variant == "captures" or (variant in ("silent_untraced", "silent_wrong") and not traced):
        sys.exit(1 if variant == "silent_wrong" else 0)
    if traced:
        return run_traced(variant)
    if "--isolate" in sys.argv:
        return None if variant == "null_silent" or (variant == "null_silent_patch" and "--patch" in sys.argv) else isolate()
    if "--measure-access" in sys.argv:
        if variant == "no_accesses":
            sys.exit(0)
        # The kernel of the recording's node 1, whose first argument is 0x7fc5dbe00000, in a process where that memory lies at 0x1000000.
        words = [[0, 0, 0x1000000, 0x1000000]] + ([[0, 0, 0x1000100, 0x1000000]] if variant == "moved" else [])
        tell("access", node=1, words=words, ranges=[[0x1000000, 0x1000400, 0x1000000, "rw"]])
        tell("accesses", nodes=5, kernels=2, cells=1, cells_read=1, cells_not_tried=0, runs=1)
        sys.exit(0)
    if option("--dot") and variant != "no_dot":
        with open(os.environ["FAKE_DOT"], encoding="utf-8") as source, open(option("--dot"), "w", encoding="utf-8") as out:
            out.write(source.read())
    code = 0
    if "--no-replay" not in sys.argv:
        if variant in ("null", "faults"):
            fail(5, "fault", "the replay: cudaErrorIllegalAddress: an illegal memory access was encountered")
        tell("output", hash="0x2" if variant == "other_bits" else "0x1", equals_eager=variant != "not_eager")
        if "--no-check" not in sys.argv:
            tell("check", ok=variant != "wrong", error=0.5 if variant == "wrong" else 0.001, tolerance=0.05, detail="last layer")
        code = 1 if variant in ("wrong", "not_eager") else 0
        if option("--samples") != "0" and variant != "no_times":
            tell("timing", samples=int(option("--samples")), median_us=123.4, p10_us=120.0, p90_us=130.0, launch_cpu_us=7.5)
    if option("--samples") != "0":
        tell("executable", memory_bytes=65536, memory_averaged_over=8, instantiate_us=345.6, first_instantiate_us=400.0, upload_us=12.3)
    sys.exit(code)


def run_traced(variant):
    if variant == "taken":
        print("cglint: CUPTI is in use by another tool; this process is not recorded", file=sys.stderr, flush=True)
        tell("instantiated", nodes=5)
        if sys.stdin.readline().strip() == "go":
            tell("replayed", replays=3)
        sys.exit(0)
    order = ""
    with open(os.environ["FAKE_RECORDING"], encoding="utf-8") as source:
        lines = [line for line in source.read().splitlines() if '"graph":1' not in line]
    with open(os.path.join(os.environ["FAKE_OUT"], f"run.{os.getpid()}.cgl.jsonl"), "w", encoding="utf-8") as out:
        for line in lines:
            record = json.loads(line)
            if record["type"] == "replays":
                out.flush()
                tell("instantiated", nodes=5)
                if variant == "hang":
                    time.sleep(1000)
                order = sys.stdin.readline().strip()
                if order != "go":
                    break
                if variant == "faults":
                    fail(5, "fault", "the replay: cudaErrorIllegalAddress: an illegal memory access was encountered")
            if record["type"] == "graph" and variant == "null_linted":
                # Outside capture the kernel always gets an address.
                eager = {**json.loads(line), "graph": 50, "info": {"name": "warm-up", "role": "eager"}, "edges": [], "sync_ops": []}
                eager["facts"] = ["nodes", "creation_order", "kernel_names", "launch_config", "kernel_params", "allocations", "eager_launches"]
                eager["nodes"] = [{key: value for key, value in node.items() if key != "id"} for node in eager["nodes"] if node["kind"] == "kernel"]
                record["facts"].append("eager_launches")
                out.write(json.dumps(eager) + "\n" + json.dumps({"type": "graph_end", "graph": 50}) + "\n")
            if record["type"] == "graph" and variant.startswith("null"):
                for node, value in ((1, "0x0"), (2, "0x40")):
                    record["nodes"][node]["args"][0], record["nodes"][node]["arg_allocations"][0] = value, -1
            if record["type"] == "end":
                record["records"] = len(lines) - 1
            out.write(json.dumps(record) + "\n")
    if order == "go" and variant != "silent_go":
        tell("replayed", replays=3)


if NAME == "cglint-record":
    record()
elif sys.argv[1] == "list" and "FAKE_MODELS" in os.environ:
    with open(os.environ["FAKE_MODELS"], encoding="utf-8") as models:
        print(models.read())
elif sys.argv[1] == "list":
    print(json.dumps({"models": [{"name": "two_branch", "summary": "a fake", "presets": [{"name": "small", "summary": "two layers", "layers": 2},
                                  {"name": "large", "summary": "eight layers", "layers": 8}], "variants": VARIANTS}]}))
else:
    run()
