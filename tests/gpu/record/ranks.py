"""One process per GPU, started as torchrun does: RANK and WORLD_SIZE are set before CUDA starts. Each captures the same layers on its own
GPU; with two GPUs or more an all_reduce of NCCL is part of the graph.

usage: ranks.py [PROCESSES]      PROCESSES: as many as there are GPUs
"""
import json
import os
import socket
import subprocess
import sys

LAYERS = 4


def work(rank, world):
    import torch
    torch.cuda.set_device(rank)
    x, w = torch.ones(64, 64, device="cuda"), torch.ones(64, 64, device="cuda")
    reduces = world > 1
    if reduces:
        import torch.distributed as dist
        dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
        dist.all_reduce(x)

    def step():
        y = x
        for _ in range(LAYERS):
            y = (y @ w).relu()
            if reduces:
                dist.all_reduce(y)
        return y

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for _ in range(4):
        graph.replay()
    torch.cuda.synchronize()
    if reduces:
        del graph
        dist.destroy_process_group()


def main():
    if "RANK" in os.environ:
        return work(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = len(visible.split(",")) if visible else listed.count("GPU ")
    world = int(sys.argv[1]) if len(sys.argv) > 1 else gpus
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # NCCL must not ask for NVLink multicast: not every machine may use it.
    env = dict(os.environ, WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), NCCL_NVLS_ENABLE="0")
    processes = [subprocess.Popen([sys.executable, __file__], env=dict(env, RANK=str(rank), LOCAL_RANK=str(rank))) for rank in range(world)]
    codes = [process.wait() for process in processes]
    print(json.dumps({"processes": world, "layers": LAYERS, "exits": codes}))
    return max(abs(code) for code in codes)


sys.exit(main())
