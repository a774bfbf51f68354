#!/usr/bin/env python3
"""tools/gpu_checks/checks.d/59_capture_refusals.py without a GPU: it passes where a runner that is played refuses as it should, and fails where it
does otherwise.

usage: capture_refusals_test.py BIN
"""
import gzip
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHECKS = ROOT / "tools/gpu_checks/checks.d"
BIN = pathlib.Path(sys.argv[1]).resolve()
# cglint-model-runner: what differs from tests/capture_tool/fake_runner.py, which plays the rest.
RUNNER = '''#!/usr/bin/env python3
import json, os, sys
def option(name):
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else ""
def tell(event, **facts):
    print(json.dumps({"event": event, **facts}), flush=True)
if sys.argv[1] == "run":
    deviation, model, batch, traced = os.environ.get("DEVIATION"), sys.argv[2], int(option("--batch")), "--wait" in sys.argv
    if model != "two_branch" or batch > 64:
        tell("gpu", name="NVIDIA Fake", driver_version=12000)
        big = model != "two_branch"
        if big and deviation == "crash":
            os.abort()
        if big and deviation == "two lines":
            print("cudaMalloc: out of memory", file=sys.stderr)
        message = "too little GPU memory: 4321.0 GB needed, 150.0 GB free" if big else f"the model does not take these options (batch {batch}, context {option('--context')}, layers {option('--layers')})"
        tell("error", kind="memory" if big else "usage", message=message)
        sys.exit(4 if big else 3 if deviation == "exit code" else 2)
    cupti = os.environ.get("CGLINT_CUPTI", "")
    reason = ""
    if "takes_cupti" in os.environ.get("LD_PRELOAD", ""):
        reason = "CUPTI is in use by the other tool" if deviation != "unnamed" else "CUPTI is in use by another tool"
    elif cupti == "libm.so.6":
        reason = "libm.so.6 has no cuptiSubscribe"
    elif cupti and not os.environ["CUPTI_ELSEWHERE"]:
        reason = "no CUPTI library was found (CGLINT_CUPTI=<path of libcupti.so> names one)"
    if traced and reason and deviation != "traced":
        tell("gpu", name="NVIDIA Fake", driver_version=12000)
        print("cglint: " + reason + "; this process is not recorded", file=sys.stderr, flush=True)
        tell("captured", nodes=5, capture_us=50.0)
        tell("instantiated", nodes=5)
        if sys.stdin.readline().strip() == "go":
            tell("replayed", replays=3)
        sys.exit(0)
os.environ.pop("LD_PRELOAD", None)
os.execv(os.environ["FAKE_RUNNER"], ["cglint-model-runner", *sys.argv[1:]])
'''
MODELS = {"two_branch": ["main_first"], "kimi_linear": ["sequential"], "k2_full": ["mla_main_moe_main"]}


def listed(name, variants):
    return {"name": name, "summary": "", "presets": [{"name": "small", "summary": "", "layers": 16}],
            "variants": [{"name": variant, "summary": "", "may_fault": False, "capture_fails": False, "same_bits_as": ""} for variant in variants]}


def run_check(folder, **environment):
    """The check's result; `elsewhere`: whether the machine has a CUPTI."""
    out = pathlib.Path(tempfile.mkdtemp(dir=folder))
    done = subprocess.run([sys.executable, CHECKS / "59_capture_refusals.py"], capture_output=True, text=True, timeout=250,
                          env={**os.environ, "CGLINT_BIN": str(folder / "bin"), "CGLINT_DATA": str(folder), "CGLINT_OUT": str(out), "PYTHONDONTWRITEBYTECODE": "1", "FAKE_RUNNER": str(folder / "fake_runner"),
                               "FAKE_MODELS": str(folder / "models.json"), "FAKE_LOG": str(folder / "log"), "FAKE_RECORDING": str(folder / "recording"),
                               "FAKE_DOT": str(ROOT / "tests/data/dot/captured.00001.dot"), "CUPTI_ELSEWHERE": "", "CUDA_HOME": "", **environment})
    try:
        return json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        return {"status": "none", "reason": done.stderr[-2000:], "numbers": {}}


failures = []
with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    (folder / "bin").mkdir()
    for path in [BIN / "cglint", BIN / "cglint-capture", *BIN.glob("*.so.*")]:
        shutil.copy(path, folder / "bin")
    for target in (folder / "bin/cglint-record", folder / "fake_runner"):
        shutil.copy(ROOT / "tests/capture_tool/fake_runner.py", target)
        target.chmod(0o700)
    (folder / "bin/cglint-model-runner").write_text(RUNNER)
    (folder / "bin/cglint-model-runner").chmod(0o700)
    math = next(line.split()[-1] for line in subprocess.run([sys.executable, "-c", "import ctypes; ctypes.CDLL('libm.so.6'); print(open('/proc/self/maps').read())"], capture_output=True,
                                                            text=True, check=True).stdout.splitlines() if "libm.so.6" in line or "libm-" in line)
    shutil.copy(math, folder / "bin/librecord_takes_cupti.so")  # what is preloaded
    (folder / "models.json").write_text(json.dumps({"models": [listed(*entry) for entry in MODELS.items()]}))
    (folder / "recording").write_bytes(gzip.decompress((ROOT / "tests/data/record/two_streams.cgl.jsonl.gz").read_bytes()))

    machine_has_one = run_check(folder)
    elsewhere = machine_has_one["numbers"].get("other_cupti")
    if elsewhere:  # then the played runner falls back to it, as the recorder does
        machine_has_one = run_check(folder, CUPTI_ELSEWHERE="1")
    if machine_has_one["status"] != "pass" or machine_has_one["numbers"]["k2_full"] != [4321.0, 150.0]:
        failures.append(f"as it should be: {machine_has_one}")
    for deviation, said in (("crash", "kimi_linear: exit code 3"), ("two lines", "kimi_linear: standard error: cudaMalloc"), ("exit code", "options: exit code 3"),
                            ("unnamed", "CUPTI is taken: standard output"), ("traced", "another library: exit code 0")):
        result = run_check(folder, DEVIATION=deviation, CUPTI_ELSEWHERE="1" if elsewhere else "")
        if result["status"] != "fail" or said not in result["reason"]:
            failures.append(f"{deviation}: {result}")
    # A CUPTI that is found although it was not meant, or is not found although it is there.
    result = run_check(folder, CUPTI_ELSEWHERE="" if elsewhere else "1")
    if result["status"] != "fail" or "no library: " not in result["reason"]:
        failures.append(f"the other library: {result}")
print("\n".join(failures) or "the check passes, and fails where it should")
sys.exit(1 if failures else 0)
