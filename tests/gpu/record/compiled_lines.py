"""A function of three lines under torch.compile(mode="reduce-overhead").

usage: compiled_lines.py      Prints the numbers of its lines and the number of calls as JSON.
"""
import inspect
import json

import torch


def step(x, up, down):
    hidden = torch.nn.functional.silu(x @ up)
    scaled = hidden * hidden.float().pow(2).mean(-1, keepdim=True).rsqrt().to(hidden.dtype)
    return torch.softmax((scaled @ down).float(), -1)


def main():
    torch.manual_seed(0)
    x, up, down = (torch.randn(*shape, device="cuda", dtype=torch.bfloat16) for shape in ((4, 512), (512, 1024), (1024, 256)))
    compiled = torch.compile(step, mode="reduce-overhead")
    calls = 6  # the first ones warm up, then one is captured, the rest replay
    with torch.no_grad():
        for _ in range(calls):
            torch.compiler.cudagraph_mark_step_begin()
            compiled(x, up, down)
    torch.cuda.synchronize()
    first = inspect.getsourcelines(step)[1]
    print(json.dumps({"lines": [first + 1, first + 2, first + 3], "calls": calls, "torch": torch.__version__}))


main()
