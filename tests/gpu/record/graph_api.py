"""cglint.check and its kin on graphs of a real torch: before and after they are instantiated, without keep_graph, with wrong handles.

usage: graph_api.py FOLDER      needs the module cglint on PYTHONPATH and CGLINT_BIN; FOLDER: for files
Prints what came out as JSON: "wrong" lists what is not as it must be.
"""
import ctypes
import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import cglint
import torch

spec = importlib.util.spec_from_file_location("torch_moe", pathlib.Path(__file__).with_name("torch_moe.py"))
torch_moe = importlib.util.module_from_spec(spec)
spec.loader.exec_module(torch_moe)
FOLDER = pathlib.Path(sys.argv[1])
wrong, said = [], {}
MOE = torch_moe.Moe()
X = torch.randn(torch_moe.B, torch_moe.H, device="cuda", dtype=torch.bfloat16)


def check(good, text):
    if not good:
        wrong.append(text)


def refused(name, function, *parts):
    """The error that a wrong use gives."""
    try:
        function()
    except cglint.CglintError as error:
        said[name] = str(error)[:300]
        check(all(part in str(error) for part in parts), f"{name}: {parts} not in {error}")
    except Exception as error:  # what the call raised instead is what a reader needs
        wrong.append(f"{name}: {type(error).__name__}: {error}")
    else:
        wrong.append(f"{name}: no error")


def capture(variant, **options):
    warm = torch.cuda.Stream()
    warm.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(warm):
        MOE.forward(X, variant)
    torch.cuda.current_stream().wait_stream(warm)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph(**options)
    with torch.cuda.graph(graph):
        y = X
        for _ in range(6):
            y = MOE.forward(y, variant)
    return graph


def codes(report):
    return sorted({finding.code for finding in report})


def main():
    side, main_first = capture("side_first", keep_graph=True), capture("main_first", keep_graph=True)
    for when in ("captured", "instantiated", "replayed"):
        if when == "instantiated":
            side.instantiate()
            main_first.instantiate()
        if when == "replayed":
            side.replay()
            torch.cuda.synchronize()
        found = cglint.check(side, max_streams=3, select=["CG1"], name="side first")
        check("CG102" in codes(found) and found.exit_code == 1 and not found.is_clean, f"{when}: side first: {codes(found)} {found.exit_code}")
        quiet = cglint.check(main_first, max_streams=3, select=["CG102"])
        check(quiet == [] and quiet.is_clean, f"{when}: main first: {codes(quiet)} {quiet.not_checked}")
        said[when] = [str(finding)[:200] for finding in found]
    everything = cglint.check(main_first, max_streams=3)
    said["all_rules"] = codes(everything)
    said["not_checked"] = sorted({item.code for item in everything.not_checked})
    check("CG302" in said["not_checked"], "without a recording stale addresses cannot be checked, which must be said")
    try:
        cglint.assert_clean(side, max_streams=3, select=["CG102"], keep=FOLDER / "kept.cgl.jsonl")
        wrong.append("assert_clean: no AssertionError")
    except AssertionError as error:
        said["assert_clean"] = str(error)[:300]
        check("CG102" in str(error) and "fix: " in str(error), f"assert_clean: {error}")
    check((FOLDER / "kept.cgl.jsonl").exists(), "keep= left no file")
    # The handle as a number, and of other libraries.
    handle = side.raw_cuda_graph()
    check(codes(cglint.check(int(handle), select=["CG102"])) == ["CG102"], "the handle as a number")
    check(codes(cglint.check(ctypes.c_void_p(int(handle)), select=["CG102"])) == ["CG102"], "the handle as c_void_p")
    try:
        from cuda.bindings import runtime
        error, made = runtime.cudaGraphCreate(0)
        error, first = runtime.cudaGraphAddEmptyNode(made, None, 0)
        error, _ = runtime.cudaGraphAddEmptyNode(made, [first], 1)
        cglint.capture(made, FOLDER / "cuda_python.cgl.jsonl", name="made by cuda-python")
        said["cuda_python"] = "checked"
        check(int(made) != 0 and (FOLDER / "cuda_python.cgl.jsonl").stat().st_size > 100, "a graph of cuda-python")
    except ImportError:
        said["cuda_python"] = "not here"
    # Wrong use.
    refused("no keep_graph", lambda: cglint.check(capture("main_first"), max_streams=3), "keep_graph=True")
    refused("not captured", lambda: cglint.check(torch.cuda.CUDAGraph(keep_graph=True)), "captured to its end")
    refused("zero", lambda: cglint.check(0), "handle")
    refused("a name", lambda: cglint.check("decode"), "decode")
    refused("nothing", lambda: cglint.check(None))
    refused("file exists", lambda: cglint.capture(side, FOLDER / "kept.cgl.jsonl"), "kept.cgl.jsonl")
    # The pytest fixture.
    if importlib.util.find_spec("pytest") is None:
        said["pytest"] = "not here"
    else:
        test = FOLDER / "test_graphs.py"
        test.write_text(f"import sys, runpy, pathlib\nsys.argv = ['graph_api.py', {str(FOLDER)!r}]\n"
                        f"api = runpy.run_path({str(pathlib.Path(__file__))!r}, run_name='imported')\n"
                        "def test_main_first(cglint_clean):\n    cglint_clean(api['capture']('main_first', keep_graph=True), max_streams=3, select=['CG102'])\n"
                        "def test_side_first(cglint_clean):\n    cglint_clean(api['capture']('side_first', keep_graph=True), max_streams=3, select=['CG102'])\n")
        done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "cglint.pytest_plugin", "-p", "no:cacheprovider", str(test)], capture_output=True, text=True,
                              cwd=FOLDER, timeout=120)
        said["pytest"] = done.stdout.strip().splitlines()[-1:] if done.stdout else done.stderr[-300:]
        check(done.returncode == 1 and "1 failed, 1 passed" in done.stdout and "CG102" in done.stdout, f"pytest: {done.returncode} {done.stdout[-800:]} {done.stderr[-300:]}")
    print(json.dumps({"wrong": wrong, "torch": torch.__version__, **said}))


if __name__ == "__main__":
    os.makedirs(FOLDER, exist_ok=True)
    main()
