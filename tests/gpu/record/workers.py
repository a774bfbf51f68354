"""Worker processes that capture: forked before CUDA starts, and spawned; one leaves by os._exit, one by a signal.

usage: workers.py [WORKER METHOD]
"""
import multiprocessing
import os
import signal
import sys


def work(number):
    import torch
    os.environ["RANK"], os.environ["WORLD_SIZE"] = str(number), "4"
    x = torch.zeros(1024, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x
        for _ in range(number + 1):
            y = y * 2
    graph.replay()
    torch.cuda.synchronize()
    if number == 1:
        os._exit(0)
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    workers = [multiprocessing.get_context("fork" if number < 2 else "spawn").Process(target=work, args=(number,)) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
    codes = [worker.exitcode for worker in workers]
    print(codes)
    sys.exit(0 if codes == [0, 0, 0, -signal.SIGKILL] else 3)
