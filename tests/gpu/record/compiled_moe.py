"""The dual-stream MoE stack of torch_moe.py under torch.compile(mode="reduce-overhead"), which captures CUDA graphs itself.

usage: compiled_moe.py VARIANT [LAYERS]      VARIANT: side_first, main_first
Prints the number of calls as JSON.
"""
import importlib.util
import json
import pathlib
import sys

import torch

spec = importlib.util.spec_from_file_location("torch_moe", pathlib.Path(__file__).with_name("torch_moe.py"))
torch_moe = importlib.util.module_from_spec(spec)
spec.loader.exec_module(torch_moe)


def main():
    variant, layers = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 4
    moe = torch_moe.Moe()

    def step(x):
        for _ in range(layers):
            x = moe.forward(x, variant)
        return x

    compiled = torch.compile(step, mode="reduce-overhead")
    calls = 8  # the first ones warm up, then one is captured, the rest replay
    with torch.no_grad():
        for _ in range(calls):
            torch.compiler.cudagraph_mark_step_begin()
            compiled(torch.randn(torch_moe.B, torch_moe.H, device="cuda", dtype=torch.bfloat16))
    torch.cuda.synchronize()
    print(json.dumps({"variant": variant, "layers": layers, "calls": calls, "torch": torch.__version__}))


main()
