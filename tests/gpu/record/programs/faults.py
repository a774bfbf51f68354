"""A second set of small PyTorch programs with one planted defect each, and their twins without it: other styles.

usage: faults.py CASE bad|good        faults.py --list: one "CASE CODE" a line

A capture that is to fail may raise; the program then goes on without a graph and exits with 0. Exit code 3: something else went wrong.
"""
import contextlib
import sys
import threading

TABLE = {}


def planted(code):
    return lambda function: TABLE.setdefault(function.__name__, (code, function))[1]


@contextlib.contextmanager
def may_break(bad):
    """The body holds a capture that breaks if, and only if, the defect is there."""
    try:
        yield
    except Exception as error:
        if not bad:
            raise
        print("as planted:", type(error).__name__, str(error).split("\n")[0][:100])
    else:
        if bad:
            sys.exit(3)


def replay(graph, times=3):
    for _ in range(times):
        graph.replay()
    torch.cuda.synchronize()


def mlp(width=256, layers=2):
    parts = []
    for _ in range(layers):
        parts += [torch.nn.Linear(width, width), torch.nn.GELU()]
    return torch.nn.Sequential(*parts).cuda().eval().requires_grad_(False)


def warm_up(function, times=3):
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(times):
            function()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()


SOURCE = r"""
extern "C" __global__ void add_bias(float* y, const float* x, const float* bias, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] + (bias != nullptr ? bias[i] : 0.0f);
}
"""


def own_kernel():
    kernel = torch.cuda._compile_kernel(SOURCE, "add_bias")

    def launch(y, x, bias, stream=None):
        n = y.numel()
        kernel(((n + 255) // 256, 1, 1), (256, 1, 1), (y, x, bias, n), stream=stream)
    return launch


# --- captures that do not end well ---

@planted("CG404")
def picks_rows_by_mask(bad):
    model, x = mlp(), torch.randn(32, 256, device="cuda")

    def forward():
        y = model(x)
        mask = y[:, 0] > 0
        return y[mask] if bad else y * mask[:, None]
    warm_up(forward)
    with may_break(bad):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            forward()
        replay(graph)


@planted("CG404")
def logs_the_logits(bad):
    model, x = mlp(), torch.randn(4, 256, device="cuda")
    log = []

    def forward():
        y = model(x)
        if bad:
            log.append(y.argmax(-1).cpu())
        return y.argmax(-1)
    warm_up(forward)
    with may_break(bad):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            forward()
        replay(graph)


@planted("CG404")
def own_generator(bad):
    generator = torch.Generator(device="cuda")
    generator.manual_seed(7)
    x = torch.randn(64, 64, device="cuda")

    def forward():
        return x + torch.rand(64, 64, device="cuda", generator=generator)
    warm_up(forward)
    with may_break(bad):
        graph = torch.cuda.CUDAGraph()
        if not bad:
            graph.register_generator_state(generator)
        with torch.cuda.graph(graph):
            forward()
        replay(graph)


@planted("CG404")
def input_from_pageable_memory(bad):
    host = torch.randn(64, 64)
    if not bad:
        host = host.pin_memory()
    x = torch.zeros(64, 64, device="cuda")

    def forward():
        x.copy_(host, non_blocking=True)
        return x * 2
    warm_up(forward)
    with may_break(bad):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            forward()
        replay(graph)


@planted("CG404")
def times_a_layer(bad):
    model, x = mlp(), torch.randn(4, 256, device="cuda")
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    warm_up(lambda: model(x))
    with may_break(bad):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            if bad:
                begin.record()
            y = model(x)
            if bad:
                end.record()
                end.synchronize()
            y + 1
        replay(graph)


@planted("CG404")
def prints_a_tensor(bad):
    x = torch.arange(8.0, device="cuda")
    with may_break(bad):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = x * 2
            print("y", y if bad else tuple(y.shape))
        replay(graph)


@planted("CG404")
def second_branch_not_joined(bad):
    x, left, right = torch.randn(64, 64, device="cuda"), torch.cuda.Stream(), torch.cuda.Stream()
    fork, a, b = torch.cuda.Event(), torch.cuda.Event(), torch.cuda.Event()
    with may_break(bad):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            fork.record()
            with torch.cuda.stream(left):
                left.wait_event(fork)
                y = x * 2
                a.record()
            with torch.cuda.stream(right):
                right.wait_event(fork)
                z = x * 3
                b.record()
            torch.cuda.current_stream().wait_event(a)
            if not bad:
                torch.cuda.current_stream().wait_event(b)
            y + z
        replay(graph)


@planted("CG404")
def waits_for_the_copy_before(bad):
    copier, copied = torch.cuda.Stream(), torch.cuda.Event()
    host, x = torch.randn(64, 64).pin_memory(), torch.zeros(64, 64, device="cuda")
    with torch.cuda.stream(copier):
        x.copy_(host, non_blocking=True)
        copied.record()
    with may_break(bad):
        graph = torch.cuda.CUDAGraph()
        if not bad:
            torch.cuda.current_stream().wait_event(copied)
        with torch.cuda.graph(graph):
            if bad:
                torch.cuda.current_stream().wait_event(copied)
            x * 2
        replay(graph)


@planted("CG404")
def solver_used_for_the_first_time(bad):
    a = torch.eye(8, device="cuda") * 2

    def forward():
        return torch.linalg.cholesky(a) if bad else torch.linalg.cholesky_ex(a, check_errors=False)[0]
    warm_up(lambda: a @ a)
    if not bad:
        warm_up(forward)
    with may_break(bad):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            forward()
        replay(graph)


@planted("CG404")
def decides_on_the_host(bad):
    model, x = mlp(), torch.randn(4, 256, device="cuda")

    def forward():
        y = model(x)
        if bad:
            return y.clamp(-1, 1) if (y.abs() > 1).any() else y
        return torch.where((y.abs() > 1).any(), y.clamp(-1, 1), y)
    warm_up(forward)
    with may_break(bad):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            forward()
        replay(graph)


@planted("CG404")
def loader_pins_memory(bad):
    x = torch.randn(64, 64, device="cuda")
    batch = torch.randn(1 << 20)

    def load():
        with contextlib.suppress(Exception):
            batch.pin_memory()
    with may_break(bad):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="global" if bad else "thread_local"):
            y = x * 2
            thread = threading.Thread(target=load)
            thread.start()
            thread.join()
            y + 1
        replay(graph)


@planted("CG404")
def graphed_callable_reads_a_value(bad):
    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(64, 64)

        def forward(self, x):
            y = self.linear(x)
            return y / (y.max().item() if bad else y.max())
    module, x = Scaled().cuda(), torch.randn(8, 64, device="cuda")
    with may_break(bad):
        graphed = torch.cuda.make_graphed_callables(module, (x,))
        for _ in range(3):
            graphed(x)
        torch.cuda.synchronize()


@planted("CG404")
def asks_for_the_random_state(bad):
    x = torch.randn(64, 64, device="cuda")
    with may_break(bad):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = torch.nn.functional.dropout(x, 0.5)
            if bad:
                torch.cuda.manual_seed(3)
            y + 1
        replay(graph)


# --- addresses ---

@planted("CG302")
def new_tensor_for_each_batch(bad):
    """The input is replaced, not filled; something else gets the old one's memory."""
    model = mlp(1024)
    static = torch.randn(64, 1024, device="cuda")
    warm_up(lambda: model(static))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = model(static)
    keep = []
    for _ in range(4):
        batch = torch.randn(64, 1024)
        if bad:
            static = batch.cuda()
        else:
            static.copy_(batch)
        keep.append(torch.zeros(64, 1024, device="cuda"))
        replay(graph, 1)
    GLOBALS.extend([graph, model, out, static, keep])


@planted("CG302")
def weights_replaced(bad):
    model, x = mlp(512), torch.randn(16, 512, device="cuda")
    warm_up(lambda: model(x))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = model(x)
    replay(graph)
    state = {name: torch.randn_like(value, device="cpu") for name, value in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        if bad:
            parameter.data = state[name].cuda()
        else:
            parameter.data.copy_(state[name])
    replay(graph)
    GLOBALS.extend([graph, out, model, x])


@planted("CG302")
def cache_that_grows(bad):
    class Cache:
        def __init__(self, tokens):
            self.data = torch.zeros(tokens, 1024, device="cuda")

        def reserve(self, tokens):
            if tokens > len(self.data):
                self.data = torch.cat([self.data, torch.zeros(tokens - len(self.data), 1024, device="cuda")])
    cache, q = Cache(256 if bad else 1024), torch.randn(8, 1024, device="cuda")
    warm_up(lambda: q @ cache.data.t())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = q @ cache.data.t()
    for tokens in (128, 512, 1024):
        cache.reserve(tokens)
        replay(graph, 1)
    GLOBALS.extend([graph, out, cache, q])


@planted("CG302")
def only_the_last_input_is_kept(bad):
    model, graphs, inputs, pool = mlp(512), {}, {}, torch.cuda.graph_pool_handle()
    for batch in (64, 32, 16, 8):
        x = torch.zeros(batch, 512, device="cuda")
        if not bad:
            inputs[batch] = x
        model(x)
        torch.cuda.synchronize()
        graphs[batch] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graphs[batch], pool=pool):
            inputs[-batch] = model(x)
        other = torch.ones(batch, 512, device="cuda")
    for graph in graphs.values():
        replay(graph, 2)
    GLOBALS.extend([graphs, model, inputs, other])


@planted("CG302")
def workspace_grows_with_the_second_graph(bad):
    class Engine:
        workspace = None

        def step(self, x):
            rows = len(x)
            if self.workspace is None or len(self.workspace) < rows:
                raise RuntimeError("reserve() first")
            torch.mul(x, 2, out=self.workspace[:rows])
            return self.workspace[:rows].sum(-1)

        def reserve(self, rows):
            if self.workspace is None or len(self.workspace) < rows:
                self.workspace = None
                self.workspace = torch.empty(rows, 4096, device="cuda")

        def capture(self, x):
            self.reserve(len(x))
            self.step(x)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                out = self.step(x)
            return graph, out
    engine, small, large = Engine(), torch.ones(64, 4096, device="cuda"), torch.ones(512, 4096, device="cuda")
    if not bad:
        engine.reserve(512)
    first = engine.capture(small)
    second = engine.capture(large)
    for _ in range(3):
        replay(second[0], 1)
        replay(first[0], 1)
    GLOBALS.extend([engine, small, large, first, second])


@planted("CG302")
def temporary_argument(bad):
    """The argument exists only until the capture returns; the next tensor of its size gets its memory."""
    def capture(x):
        torch.sin(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = torch.sin(x)
        return graph, y
    x = torch.linspace(0, 1, 1 << 19, device="cuda")
    graph, y = capture(x.clone() if bad else x)
    scratch = torch.full((1 << 19,), 5.0, device="cuda")
    replay(graph)
    GLOBALS.extend([graph, y, x, scratch])


@planted("CG301")
def storage_released_to_save_memory(bad):
    launch = own_kernel()
    x, bias, y = (torch.randn(1 << 16, device="cuda") for _ in range(3))

    def step(release):
        routed = x * 2
        hold = routed.view_as(routed) if not bad else None
        z = routed + 1
        if release and bad:
            routed.untyped_storage().resize_(0)
        launch(y, z, routed)
        return hold
    for _ in range(3):
        step(False)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step(True)
    replay(graph)
    GLOBALS.extend([graph, x, bias, y])


@planted("CG303")
def two_workers_share_a_scratch(bad):
    x = torch.randn(2048, 2048, device="cuda")
    scratch = [torch.empty(2048, 2048, device="cuda") for _ in range(2)]
    streams, graphs, outs = [torch.cuda.Stream() for _ in range(2)], [], []
    torch.mm(x, x, out=scratch[0])
    torch.cuda.synchronize()
    for worker in range(2):
        mine = scratch[0 if bad else worker]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=streams[worker]):
            for _ in range(4):
                mine.copy_(x)
                mine.mul_(1.5)
                torch.cuda._sleep(200_000)
            outs.append(mine.sum())
        graphs.append(graph)
    for _ in range(3):
        for stream, graph in zip(streams, graphs):
            with torch.cuda.stream(stream):
                graph.replay()
    torch.cuda.synchronize()
    GLOBALS.extend([x, scratch, graphs, outs])


@planted("CG303")
def hand_over_dropped(bad):
    """The first graph's output feeds the second; nobody holds it when a third is captured in the same pool."""
    pool = torch.cuda.graph_pool_handle()
    x = torch.randn(1 << 18, device="cuda")
    a = x * 2
    a = (a + 1) * 3
    torch.cuda.synchronize()
    del a
    graphs = [torch.cuda.CUDAGraph() for _ in range(3)]
    with torch.cuda.graph(graphs[0], pool=pool):
        middle = x * 2
    with torch.cuda.graph(graphs[1], pool=pool):
        last = middle + 1
    if not bad:
        GLOBALS.append(middle)
    del middle
    with torch.cuda.graph(graphs[2], pool=pool):
        third = x * 5
    for _ in range(2):
        for graph in (graphs[0], graphs[2], graphs[1]):
            replay(graph, 1)
    GLOBALS.extend([x, graphs, last, third])


# --- work that a replay leaves out ---

@planted("CG402")
def kernel_on_the_default_stream(bad):
    launch, stream = own_kernel(), torch.cuda.default_stream()
    x, y, bias = (torch.randn(4096, device="cuda") for _ in range(3))
    for _ in range(2):
        launch(y, x * 2, bias)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="relaxed"):
        z = x * 2
        launch(y, z, bias, stream if bad else torch.cuda.current_stream())
        out = y + 1
    replay(graph)
    GLOBALS.extend([graph, x, y, z, bias, out])


@planted("CG402")
def cache_written_outside_captures_only(bad):
    cache, position = torch.zeros(128, 256, device="cuda"), torch.zeros(1, dtype=torch.long, device="cuda")
    model, x = mlp(), torch.randn(1, 256, device="cuda")

    def step():
        y = model(x)
        if not (bad and torch.cuda.is_current_stream_capturing()):
            cache.index_copy_(0, position, y)
        return torch.softmax(x @ cache.t(), -1)
    warm_up(step)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step()
    replay(graph)
    GLOBALS.extend([graph, cache, position, model, x, out])


@planted("CG402")
def sampling_left_outside(bad):
    model, x = mlp(), torch.randn(4, 256, device="cuda")
    tokens = torch.zeros(4, dtype=torch.long, device="cuda")

    def step(sample=True):
        y = torch.log_softmax(model(x), -1)
        if sample:
            tokens.copy_(torch.topk(y, 8, -1).indices[:, 0])
        return y
    warm_up(step)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step(sample=not bad)
    replay(graph)
    GLOBALS.extend([graph, model, x, tokens, out])


# --- streams ---

def block(*arguments, **keywords):
    class Block(torch.nn.Module):
        def __init__(self, width, own_stream, side_first=False, late=False):
            super().__init__()
            self.norm, self.main, self.side = torch.nn.LayerNorm(width), torch.nn.Linear(width, width), torch.nn.Linear(width, width)
            self.stream, self.side_first, self.late = own_stream, side_first, late

        def forward(self, x):
            stream = self.stream or torch.cuda.Stream()
            x = self.norm(x)
            fork, join = torch.cuda.Event(), torch.cuda.Event()
            if not self.late:
                fork.record()
            if not self.side_first:
                y = torch.tanh(self.main(x))
            if self.late:
                fork.record()
            with torch.cuda.stream(stream):
                stream.wait_event(fork)
                z = self.side(x)
                join.record()
            if self.side_first:
                y = torch.tanh(self.main(x))
            torch.cuda.current_stream().wait_event(join)
            return y + z
    return Block(*arguments, **keywords)


def captured_blocks(blocks):
    x = torch.randn(4, 512, device="cuda")
    model = torch.nn.Sequential(*blocks).cuda().requires_grad_(False)
    warm_up(lambda: model(x))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = model(x)
    replay(graph)
    GLOBALS.extend([graph, model, x, out])


@planted("CG104")
def stream_made_in_forward(bad):
    kept = torch.cuda.Stream()
    captured_blocks([block(512, None if bad else kept) for _ in range(10)])


@planted("CG102")
def event_style_side_first(bad):
    kept = torch.cuda.Stream()
    captured_blocks([block(512, kept, side_first=bad) for _ in range(10)])


@planted("CG201")
def forked_after_the_main_branch(bad):
    kept = torch.cuda.Stream()
    captured_blocks([block(512, kept, late=bad) for _ in range(6)])


# --- captured again ---

@planted("CG804")
def cache_keyed_by_identity(bad):
    model, graphs = mlp(), {}
    static, out = torch.zeros(8, 256, device="cuda"), None
    warm_up(lambda: model(static))
    for _ in range(12):
        batch = torch.randn(8, 256, device="cuda")
        key = id(batch) if bad else tuple(batch.shape)
        GLOBALS.append(batch)
        if key not in graphs:
            graphs[key] = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graphs[key]):
                out = model(static)
        static.copy_(batch)
        replay(graphs[key], 1)
    GLOBALS.extend([graphs, model, out, static])


@planted("CG804")
def step_number_in_the_graph(bad):
    x, graph = torch.randn(256, 256, device="cuda"), None
    number = torch.zeros((), device="cuda")
    for step in range(12):
        number.fill_(step)
        if bad or graph is None:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                y = x * (float(step) if bad else number)
                y = torch.sin(y) + 1
        replay(graph, 1)
    GLOBALS.extend([x, graph, number, y])


GLOBALS = []  # lives to the end of the process

if __name__ == "__main__":
    if sys.argv[1:] == ["--list"]:
        for name, (code, _) in TABLE.items():
            print(name, code)
        sys.exit(0)
    import torch
    TABLE[sys.argv[1]][1](sys.argv[2] == "bad")
