"""Small PyTorch programs with one planted defect each, and their twins without it.

usage: defects.py CASE bad|good        defects.py --list: one "CASE CODE" a line

A capture that is to fail raises; the program then goes on without a graph and exits with 0. Exit code 3: something else went wrong.
"""
import ctypes
import gc
import sys
import threading

CASES = {}


def case(code):
    def add(function):
        CASES[function.__name__] = (code, function)
        return function
    return add


def capture(step, expect_failure, **options):
    """Captures step() and replays it; a capture that was to fail may, and must."""
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, **options):
            step()
    except Exception as error:
        if not expect_failure:
            raise
        print("as planted:", type(error).__name__, str(error).splitlines()[0][:120])
        return None
    if expect_failure:
        sys.exit(3)
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    return graph


def tensor(*shape):
    return torch.randn(*shape, device="cuda")


def library_in_use(name):
    with open("/proc/self/maps", encoding="utf-8") as file:
        return ctypes.CDLL(next(line.split()[-1] for line in file if name in line))


def warm(step):
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()


@case("CG404")
def reads_a_value(bad):
    x = tensor(64, 64)

    def step():
        y = x * 2
        if bad and y.sum().item() > 0:
            y += 1
        return y
    capture(step, bad)


@case("CG404")
def copies_to_the_host(bad):
    x, host = tensor(64, 64), torch.empty(64, 64, pin_memory=True)

    def step():
        y = x * 2
        host.copy_(y, non_blocking=not bad)  # a blocking copy waits for its stream
        return y
    capture(step, bad)


@case("CG404")
def waits_for_the_device(bad):
    x = tensor(64, 64)

    def step():
        y = x * 2
        if bad:
            torch.cuda.synchronize()
        return y + 1
    capture(step, bad)


@case("CG404")
def leaves_a_stream(bad):
    x, side = tensor(256, 256), torch.cuda.Stream()

    def step():
        main = torch.cuda.current_stream()
        y = x * 2
        side.wait_stream(main)
        with torch.cuda.stream(side):
            z = y * 3
        y = y + 1
        if not bad:
            main.wait_stream(side)
            y = y + z
        return y
    capture(step, bad)


@case("CG404")
def makes_a_library_handle(bad):
    torch.mm(tensor(8, 8), tensor(8, 8))  # loads cuBLAS
    library, handle, x = library_in_use("libcublas.so"), ctypes.c_void_p(), tensor(64, 64)
    if not bad:
        library.cublasCreate_v2(ctypes.byref(handle))

    def step():
        y = x * 2
        if bad:
            library.cublasCreate_v2(ctypes.byref(handle))
        return y + 1
    capture(step, bad)


@case("CG404")
def another_thread_allocates(bad):
    x, runtime, pointer = tensor(64, 64), library_in_use("libcudart.so"), ctypes.c_void_p()

    def step():
        y = x * 2
        # Not from PyTorch's own allocator, which takes care while a capture goes on.
        thread = threading.Thread(target=lambda: runtime.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(32 << 20)))
        thread.start()
        thread.join()
        return y + 1
    capture(step, bad, capture_error_mode="global" if bad else "thread_local")


class Moe:
    """A dense branch beside a routed one; `side_first` records the dense one first."""

    def __init__(self, side_first, streams=1):
        self.w = [tensor(512, 512) * 0.02 for _ in range(4)]
        self.side_first = side_first
        self.sides = [torch.cuda.Stream() for _ in range(streams)]

    def layer(self, x, number):
        main, side = torch.cuda.current_stream(), self.sides[number % len(self.sides)]
        x = x @ self.w[0]
        side.wait_stream(main)
        if self.side_first:
            with torch.cuda.stream(side):
                s = (x @ self.w[1]).relu()
        y = ((x @ self.w[2]).sigmoid() @ self.w[3]).tanh()
        if not self.side_first:
            with torch.cuda.stream(side):
                s = (x @ self.w[1]).relu()
        main.wait_stream(side)
        return y + s


@case("CG102")
def side_branch_first(bad):
    model, x = Moe(bad), tensor(4, 512)

    def step():
        y = x
        for number in range(12):
            y = model.layer(y, number)
        return y
    warm(step)
    capture(step, False)


@case("CG104")
def stream_per_layer(bad):
    model, x = Moe(False, 12 if bad else 1), tensor(4, 512)

    def step():
        y = x
        for number in range(12):
            y = model.layer(y, number)
        return y
    warm(step)
    capture(step, False)


@case("CG201")
def waits_for_everything(bad):
    w, x, side = [tensor(512, 512) * 0.02 for _ in range(4)], tensor(4, 512), torch.cuda.Stream()

    def step():
        y, main = x, torch.cuda.current_stream()
        for _ in range(6):
            h = y @ w[0]
            if not bad:
                side.wait_stream(main)
            y = (h @ w[1]).sigmoid() @ w[2]
            if bad:
                side.wait_stream(main)
            with torch.cuda.stream(side):
                s = (h @ w[3]).relu()
            main.wait_stream(side)
            y = y + s
        return y
    warm(step)
    capture(step, False)


@case("CG302")
def drops_its_input(bad):
    """The graph's input is given back to the driver while the graph is kept and used."""
    x = tensor(16 << 20)
    graph = torch.cuda.CUDAGraph()
    warm(lambda: x * 2)
    with torch.cuda.graph(graph):
        y = x * 2
    graph.replay()
    torch.cuda.synchronize()
    if bad:
        del x
        gc.collect()
        torch.cuda.empty_cache()
    assert y is not None and graph is not None


@case("CG302")
def its_input_is_reused(bad):
    """The input goes back to PyTorch's cache and comes out again as somebody else's."""
    x = tensor(1 << 20)
    graph = torch.cuda.CUDAGraph()
    warm(lambda: x * 2)
    with torch.cuda.graph(graph):
        y = x * 2
    if bad:
        address = x.data_ptr()
        del x
        gc.collect()
        other = tensor(1 << 20)
        assert other.data_ptr() == address, "the block was to be reused"
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    assert y is not None


@case("CG804")
def captures_every_step(bad):
    x, graph = tensor(64, 64), None

    def step():
        y = x
        for _ in range(8):
            y = y * 1.01
        return y
    warm(step)
    for _ in range(24):
        if bad or graph is None:
            graph = capture(step, False)
        else:
            graph.replay()
    torch.cuda.synchronize()


if __name__ == "__main__":
    if sys.argv[1:] == ["--list"]:
        for name, (code, _) in CASES.items():
            print(name, code)
        sys.exit(0)
    import torch
    CASES[sys.argv[1]][1](sys.argv[2] == "bad")
