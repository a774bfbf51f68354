"""A small dual-stream MoE stack in PyTorch, captured once per way of ordering its two branches.

usage: torch_moe.py VARIANT [LAYERS]      VARIANT: sequential, side_first, main_first; forever
Prints the capture's time per call as JSON. `forever` captures again and again and prints how often it did.
"""
import json
import sys
import time

import torch

H, E, I, B = 1024, 8, 512, 4
torch.manual_seed(0)


def weights(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16) * 0.02


class Moe:
    def __init__(self):
        self.gate, self.w1, self.w2 = weights(H, E), weights(E, H, I), weights(E, I, H)
        self.s1, self.s2, self.q = weights(H, I), weights(I, H), weights(H, H)
        self.side = torch.cuda.Stream()

    def routed(self, x):
        scores = (x @ self.gate).softmax(-1)
        value, index = scores.topk(2, -1)
        hidden = torch.nn.functional.silu(torch.einsum("bh,ehi->ebi", x, self.w1))
        out = torch.einsum("ebi,eih->ebh", hidden, self.w2)
        mask = torch.zeros(B, E, device="cuda", dtype=torch.bfloat16).scatter_(1, index, value)
        return torch.einsum("ebh,be->bh", out, mask)

    def shared(self, x):
        return torch.nn.functional.silu(x @ self.s1) @ self.s2

    def forward(self, x, variant):
        x = torch.nn.functional.rms_norm(x, (H,)) @ self.q
        if variant == "sequential":
            return self.routed(x) + self.shared(x)
        main = torch.cuda.current_stream()
        self.side.wait_stream(main)
        if variant == "side_first":
            with torch.cuda.stream(self.side):
                s = self.shared(x)
            y = self.routed(x)
        else:
            y = self.routed(x)
            with torch.cuda.stream(self.side):
                s = self.shared(x)
        main.wait_stream(self.side)
        return y + s


def main():
    variant, layers = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 4
    moe = Moe()
    x = torch.randn(B, H, device="cuda", dtype=torch.bfloat16)

    def step():
        y = x
        for _ in range(layers):
            y = moe.forward(y, variant)
        return y

    warm = torch.cuda.Stream()
    warm.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(warm):
        for _ in range(2):
            step()
    torch.cuda.current_stream().wait_stream(warm)
    torch.cuda.synchronize()
    if variant == "forever":
        count = 0
        while True:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                step()
            count += 1
            print(count, flush=True)
    eager = step()
    times = []
    for _ in range(5):
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            start = time.perf_counter()
            out = step()
            times.append((time.perf_counter() - start) * 1e6)
    for _ in range(5):
        graph.replay()
    torch.cuda.synchronize()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    replay = []
    for _ in range(100):
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        replay.append(begin.elapsed_time(end) * 1e3)
    print(json.dumps({"variant": variant, "layers": layers, "capture_us": sorted(times)[2], "replay_us": sorted(replay)[50],
                      "equal": bool(torch.equal(out, eager)), "torch": torch.__version__}))


if __name__ == "__main__":
    main()
