"""Threads that would deadlock with a recorder that waits for the interpreter lock. Prints one JSON object.

usage: locks.py librecord_locks.so
  inversion: one thread captures with a mutex held, another holds the interpreter lock and waits for that mutex
  blocking:  a thread holds the interpreter lock in a blocking CUDA call while another captures
"""
import ctypes
import json
import sys
import threading
import time

import torch


def capturing(body):
    """Runs body(stream) while a stream captures, then instantiates."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="relaxed"):
        body(torch.cuda.current_stream())
    graph.replay()
    torch.cuda.synchronize()


def inversion(path):
    releases, keeps = ctypes.CDLL(path), ctypes.PyDLL(path)  # CDLL gives the interpreter lock up for the call, PyDLL does not
    x = torch.zeros(1024, device="cuda")
    results = []

    def body(stream):
        for _ in range(3):
            def capture():
                results.append(releases.memset_with_mutex(ctypes.c_ulonglong(x.data_ptr()), ctypes.c_void_p(stream.cuda_stream), 100))
            thread = threading.Thread(target=capture)
            thread.start()
            time.sleep(0.02)  # the other thread has the mutex by now
            keeps.take_and_give_mutex()
            thread.join()
    capturing(body)
    return results


def blocking():
    driver = ctypes.PyDLL("libcuda.so.1")
    x, side = torch.zeros(1024, device="cuda"), torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(1_000_000_000)  # about half a second
    finished = []

    def wait():
        finished.append(driver.cuStreamSynchronize(ctypes.c_void_p(side.cuda_stream)))

    def body(_):
        thread = threading.Thread(target=wait)
        thread.start()
        y = x
        for _ in range(20):
            y = y * 2
        thread.join()
    capturing(body)
    return finished


begin = time.perf_counter()
first = inversion(sys.argv[1])
middle = time.perf_counter()
second = blocking()
print(json.dumps({"inversion": first, "inversion_s": middle - begin, "blocking": second, "blocking_s": time.perf_counter() - middle}))
