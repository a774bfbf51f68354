"""Runs at the start of every Python program under `cglint record` (the folder is on PYTHONPATH), in Python 3.9 and later.

Tells the recorder what only PyTorch knows:
  - after each capture, after the last of a burst, on demand and at exit: the blocks of torch's caching allocator, so that memory
    that was given back but is still held by the allocator is known (rules CG302 and CG303);
  - while torch.compile writes code: the user's line of each kernel, as a comment in the written code.

Never imports torch itself: two modules are wrapped when the program imports them. Nothing is asked in a callback of the driver or
of the allocator. Whatever fails here says so once on stderr and is left alone from then on; the program does not notice.
`cglint record --no-python-helper` leaves it out. A sitecustomize of the program's own, further along sys.path, runs as without.
"""
import sys

_GRAPHS = "torch.cuda.graphs"
_INDUCTOR = "torch._inductor.utils"


class _Once:
    """One line on stderr, whatever fails and however often."""

    said = False

    def __call__(self, what):
        if self.said:
            return
        self.said = True
        try:
            import os
            error = sys.exc_info()[1]
            text = "cglint: {}{}; the program runs on\n".format(what, ": {}: {}".format(type(error).__name__, error) if error else "")
            os.write(2, text.encode("utf-8", "replace"))
        except Exception:
            pass


_complain = _Once()


class _Recorder:
    """The library that the driver loaded into this process; found at the first capture."""

    def __init__(self):
        import ctypes
        import os
        path = os.environ.get("CUDA_INJECTION64_PATH", "")
        if os.path.basename(path) != "libcglint_record.so":
            raise OSError("CUDA_INJECTION64_PATH is not the recorder")
        # Only if it is loaded: a process that the driver left alone is not recorded.
        library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        names = ctypes.POINTER(ctypes.c_char_p)
        library.cglint_record_moment.restype = ctypes.c_uint64
        library.cglint_record_flushes.restype = ctypes.c_uint64
        library.cglint_record_blocks.argtypes = [ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t, names, ctypes.c_size_t]
        library.cglint_record_blocks_failed.argtypes = [ctypes.c_char_p]
        self.library = library
        self.ctypes = ctypes

    def blocks(self, moment, words, pools):
        address, count = words.buffer_info()
        names = (self.ctypes.c_char_p * len(pools))(*[pool.encode() for pool in pools])
        return self.library.cglint_record_blocks(moment, address, count // 5, names, len(pools))


_STATES = {"active_allocated": 0, "active_pending_free": 1, "active_awaiting_free": 1, "inactive": 2}


def _blocks_of(segments):
    """Five words a block, and the names of pools: "" is the general one. Raises for what this does not understand."""
    import array
    words, pools, numbers = array.array("Q"), [""], {}
    for segment in segments:
        pool = segment.get("segment_pool_id", (0, 0))
        name = "" if tuple(pool) == (0, 0) else "graph pool {}.{} of device {}".format(pool[0], pool[1], segment.get("device", 0))
        if name not in numbers:
            numbers[name] = 0 if name == "" else len(pools)
            if name != "":
                pools.append(name)
        stream, address = segment.get("stream", 0), segment["address"]
        for block in segment["blocks"]:
            # Older versions leave the address out: blocks follow each other.
            address = block.get("address", address)
            size = block["size"]
            if size > 0:
                words.extend((address, size, _STATES[block["state"]], stream, numbers[name]))
            address += size
    return words, pools


class _Allocator:
    """Asks for the allocator's blocks, on threads of the program, when no graph of torch's is being captured."""

    BURST_S = 2.0        # without another capture for that long, a burst is over
    POLL_S = 0.5
    SHARE = 20           # after a look that took t, none for the next SHARE * t, unless it is the last of a burst
    MOST = 2_000_000     # blocks that looks after captures may write; later ones come after bursts, on demand and at exit only

    def __init__(self):
        import threading
        self.threading = threading
        self.recorder = None
        self.broken = False
        self.fresh()

    def fresh(self):
        """A fork's child has no thread, and its parent's locks may be taken."""
        self.lock = self.threading.Lock()
        self.stop = self.threading.Event()
        self.thread = None
        self.capturing = 0
        self.written = 0
        self.due_at = None       # when the burst is over
        self.not_before = 0.0
        self.flushes = 0
        self.waits_for_file = False

    def ready(self):
        if self.broken:
            return False
        if self.recorder is None:
            try:
                self.recorder = _Recorder()
            except OSError:
                self.broken = True  # not recorded: nothing to say
                return False
            import atexit
            import os
            atexit.register(self.at_exit)
            os.register_at_fork(after_in_child=self.fresh)
        return True

    def expect(self):
        if self.ready() and self.recorder.library.cglint_record_expect_blocks() != 0:
            self.broken = True

    def count(self, change):
        with self.lock:
            self.capturing = max(0, self.capturing + change)

    def captured(self, time):
        """A graph of torch's was captured or instantiated."""
        if not self.ready():
            return
        now = time.monotonic()
        with self.lock:
            self.due_at = now + self.BURST_S
            if self.thread is None:
                self.flushes = self.recorder.library.cglint_record_flushes()
                self.thread = self.threading.Thread(target=self.watch, args=(time,), name="cglint", daemon=True)
                self.thread.start()
        if self.capturing == 0 and self.written < self.MOST and (now >= self.not_before or self.waits_for_file):
            self.look(time)

    def look(self, time):
        if self.broken:
            return
        torch = sys.modules.get("torch")
        try:
            if torch is None or not torch.cuda.is_initialized():
                return
            begin = time.monotonic()
            moment = self.recorder.library.cglint_record_moment()
            if moment == 0:
                self.broken = True  # recording is over
                return
            words, pools = _blocks_of(_snapshot(torch))
            result = self.recorder.blocks(moment, words, pools)
            if result == 2:
                raise ValueError("the recorder refused the blocks")
            end = time.monotonic()
            with self.lock:
                self.written += len(words) // 5
                self.not_before = end + self.SHARE * (end - begin)
                self.waits_for_file = result == 3
        except Exception:
            self.give_up()

    def give_up(self):
        self.broken = True
        error = sys.exc_info()[1]
        _complain("torch did not tell the state of its allocator")
        try:
            self.recorder.library.cglint_record_blocks_failed("{}: {}".format(type(error).__name__, error).encode("utf-8", "replace"))
        except Exception:
            pass

    def watch(self, time):
        try:
            stop = self.stop
            while not stop.wait(self.POLL_S) and not self.broken:
                flushes = self.recorder.library.cglint_record_flushes()
                with self.lock:
                    is_over = self.due_at is not None and time.monotonic() >= self.due_at
                    is_due = (is_over or flushes != self.flushes) and self.capturing == 0
                    if is_due:
                        self.flushes = flushes
                        if is_over:
                            self.due_at = None
                if is_due:
                    self.look(time)
        except Exception:
            self.give_up()

    def at_exit(self):
        try:
            import time
            self.stop.set()
            if self.thread is not None:
                self.thread.join(5)
            self.look(time)
        except Exception:
            self.give_up()


def _snapshot(torch):
    try:
        return torch.cuda.memory_snapshot(include_traces=False)
    except TypeError:
        return torch.cuda.memory_snapshot()


def _wrap_graphs(module):
    import functools
    import time
    graph = module.CUDAGraph
    allocator = _Allocator()

    def quietly(function, *arguments):
        try:
            function(*arguments)
        except Exception:
            _complain("the allocator's state is not recorded")
            allocator.broken = True

    def wrap(name, before, good, bad):
        original = getattr(graph, name)

        @functools.wraps(original)
        def wrapper(*arguments, **keywords):
            quietly(before)
            try:
                result = original(*arguments, **keywords)
            except BaseException:
                quietly(bad)
                raise
            quietly(good)
            return result

        setattr(graph, name, wrapper)

    def nothing():
        pass

    def ended():
        allocator.count(-1)
        allocator.captured(time)

    wrap("capture_begin", allocator.expect, lambda: allocator.count(1), nothing)
    wrap("capture_end", nothing, ended, lambda: allocator.count(-1))
    if hasattr(graph, "instantiate"):
        wrap("instantiate", allocator.expect, lambda: allocator.captured(time), nothing)


_FRAME = None  # compiled when it is needed


def _user_line(trace):
    """"path:line in function" of the innermost frame that is not torch's own, from a traceback's text."""
    import re
    global _FRAME
    if _FRAME is None:
        _FRAME = re.compile(r'^\s*File "([^"\n]+)", line (\d+), in (\S+)', re.MULTILINE)
    frames = _FRAME.findall(trace)
    own = [frame for frame in frames if "-packages/torch/" not in frame[0]]
    if not frames:
        return ""
    path, line, function = (own or frames)[-1]
    return "{}:{} in {}".format(path, line, function)


def _wrap_inductor(module):
    import functools
    original = module.get_kernel_metadata

    @functools.wraps(original)
    def get_kernel_metadata(node_schedule, wrapper, *arguments, **keywords):
        result = original(node_schedule, wrapper, *arguments, **keywords)
        try:
            comment, details = result
            if not isinstance(comment, str) or "\n" in comment or not comment.startswith(wrapper.comment):
                return result
            lines = []
            for node in _origins(module, node_schedule):
                line = _user_line(getattr(node, "stack_trace", None) or node.meta.get("stack_trace") or "")
                if line and line not in lines and len(lines) < 4:
                    lines.append(line)
            if not lines:
                return result
            return comment + "".join(", File: " + line for line in lines), details
        except Exception:
            _complain("lines of the program are not noted in compiled code")
            return result

    module.get_kernel_metadata = get_kernel_metadata


def _origins(module, node_schedule):
    """The nodes of the traced graph that a kernel was made of, in the graph's order; of a library's call, the last one first: it is the call,
    those before it are what its arguments were made of."""
    nodes = [node for node in module.aggregate_origins(node_schedule) if node.op == "call_function"]
    order = {}
    for graph in {id(node.graph): node.graph for node in nodes}.values():
        for number, node in enumerate(graph.nodes):
            order[node] = number
    return sorted(nodes, key=lambda node: order.get(node, 0), reverse=not isinstance(node_schedule, (list, tuple)))


class _Finder:
    """Lets the modules above be imported as always, and wraps them then."""

    wanted = {_GRAPHS: _wrap_graphs, _INDUCTOR: _wrap_inductor}

    def find_spec(self, name, path=None, target=None):
        wrap = self.wanted.pop(name, None)
        if wrap is None:
            return None
        try:
            for finder in list(sys.meta_path):
                find = getattr(finder, "find_spec", None)
                spec = find(name, path, target) if find is not None and finder is not self else None
                if spec is None:
                    continue
                original = getattr(spec.loader, "exec_module", None)
                if original is not None:
                    def exec_module(module, original=original):
                        original(module)
                        try:
                            wrap(module)
                        except Exception:
                            _complain(name + " is not what was expected")
                    spec.loader.exec_module = exec_module
                return spec
        except Exception:
            _complain("could not watch " + name)
        return None


def _own_folder():
    import os
    return os.path.dirname(os.path.realpath(__file__))


def _run_the_next(folder):
    """What would have run without this file. What it raises is the program's business."""
    import importlib.machinery
    import importlib.util
    import os
    others = [entry for entry in sys.path if os.path.realpath(entry or ".") != folder]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


try:
    sys.meta_path.insert(0, _Finder())
except Exception:
    _complain("the Python helper could not start")
_run_the_next(_own_folder())
