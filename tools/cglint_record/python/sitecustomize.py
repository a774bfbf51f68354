"""Runs at the start of every Python program under `cglint record` (the folder is on PYTHONPATH), in Python 3.9 and later.

Tells the recorder what only PyTorch knows:
  - after each capture, after the last of a burst, on demand and at exit: the blocks of torch's caching allocator, so that memory
    that was given back but is still held by the allocator is known (rules CG302 and CG303), and since when each block is held,
    so that memory that changed hands between two looks is known too;
  - an error of the program or of torch that leaves a capture, which the driver does not see (rule CG404);
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
        library.cglint_record_capture_left.argtypes = [ctypes.c_char_p, names, names, ctypes.POINTER(ctypes.c_uint32), ctypes.c_size_t]
        self.library = library
        self.ctypes = ctypes

    def blocks(self, moment, words, pools):
        address, count = words.buffer_info()
        names = (self.ctypes.c_char_p * len(pools))(*[pool.encode() for pool in pools])
        return self.library.cglint_record_blocks(moment, address, count // _WORDS, names, len(pools))

    def capture_left(self, error, frames):
        files = (self.ctypes.c_char_p * len(frames))(*[file.encode("utf-8", "replace") for file, _, _ in frames])
        functions = (self.ctypes.c_char_p * len(frames))(*[function.encode("utf-8", "replace") for _, function, _ in frames])
        lines = (self.ctypes.c_uint32 * len(frames))(*[line for _, _, line in frames])
        self.library.cglint_record_capture_left(error.encode("utf-8", "replace"), files, functions, lines, len(frames))


_WORDS = 6  # a block
_STATES = {"active_allocated": 0, "active_pending_free": 1, "active_awaiting_free": 1, "inactive": 2}


def _blocks_of(segments, since):
    """Six words a block, and the names of pools: "" is the general one. `since`: by address, the microseconds at which a block
    was last handed out, and its size. A free block of the general pool is several, where it was handed out in parts. Raises for
    what this does not understand."""
    from bisect import bisect_left
    import array
    words, pools, numbers, known = array.array("Q"), [""], {}, sorted(since)
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
            state = _STATES[block["state"]]
            if size > 0 and state == 2 and name == "":
                begin, end = address, address + size
                for part in known[bisect_left(known, address + 1):bisect_left(known, end)] + [end]:
                    # What was handed out at `begin` may end before the next known address: of the rest nothing is known.
                    time, length = since.get(begin, (0, 0))
                    if 0 < length < part - begin:
                        words.extend((begin, length, state, stream, 0, time))
                        begin, time = begin + length, 0
                    words.extend((begin, part - begin, state, stream, 0, time))
                    begin = part
            elif size > 0:
                words.extend((address, size, state, stream, numbers[name], since.get(address, (0, 0))[0]))
            address += size
    return words, pools


class _History:
    """When each block was handed out, from the allocator's own list of its calls.

    torch keeps that list if asked to; what that costs an allocation was less than the measurement drifts, and reading 50,000 calls
    took some 30 ms (docs/measurements/record-faults-2026-11-30.json). Where the program has switched it on itself it is read and left
    as it is; where the program switches it off or changes it later, that is how it stays."""

    MOST = 50_000  # calls that torch keeps for us, the newest

    def __init__(self):
        import os
        self.wanted = os.environ.get("CGLINT_RECORD_ALLOCATOR_HISTORY", "1") != "0"
        self.started = self.ours = False
        self.since = {}     # by address: microseconds, bytes
        self.newest = {}    # by device: of the last call that was read
        self.calls = 0      # of the allocator when it was last read

    def start(self, torch):
        if self.started or not self.wanted:
            return
        self.started = True
        try:
            if not torch._C._cuda_isHistoryEnabled():
                torch.cuda.memory._record_memory_history(enabled="all", context=None, stacks="python", max_entries=self.MOST)
                self.ours = True
        except Exception:
            self.wanted = False  # another version: blocks without times

    def is_on(self, torch):
        return self.started and self.wanted and torch._C._cuda_isHistoryEnabled()

    def take(self, torch):
        """The allocator's segments; True if some of its calls since the last time were not in the list any more."""
        snapshot = torch.cuda.memory._snapshot()
        missed = False
        for device, trace in enumerate(snapshot["device_traces"]):
            if not trace:
                continue
            before = self.newest.get(device)
            missed = missed or (before is not None and trace[0]["time_us"] > before)  # what was read then is not in it
            self.newest[device] = trace[-1]["time_us"]
            for entry in reversed(trace):
                if before is not None and entry["time_us"] < before:
                    break
                if entry["action"] == "alloc" and self.since.get(entry["addr"], (0, 0))[0] < entry["time_us"]:
                    self.since[entry["addr"]] = (entry["time_us"], (entry["size"] + 511) & ~511)  # the size that was asked for
        if len(self.since) > 4 * self.MOST:  # the newest are enough
            newest = sorted(self.since.items(), key=lambda item: item[1])[-2 * self.MOST:]
            self.since = dict(newest)
        self.calls = self.count(torch)
        return snapshot["segments"], missed

    @staticmethod
    def count(torch):
        return sum(torch.cuda.memory_stats_as_nested_dict(device).get("allocation", {}).get("all", {}).get("allocated", 0)
                   for device in range(torch.cuda.device_count()))

    def is_filling(self, torch):
        """Half of the list is new."""
        return self.ours and self.is_on(torch) and self.count(torch) - self.calls > self.MOST // 4  # an allocation is two or three entries


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
        self.history = _History()
        self.errors = {}         # by capture under way: the error that was being handled when it began
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

    def expect(self, graph):
        if not self.ready():
            return
        if self.recorder.library.cglint_record_expect_blocks() != 0:
            self.broken = True
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            self.history.start(torch)

    def begun(self, graph):
        self.errors[id(graph)] = sys.exc_info()[1]
        with self.lock:
            self.capturing += 1

    def ending(self, graph):
        """With an error under way that was not there when the capture began, it is left, not ended."""
        error = sys.exc_info()[1]
        if error is not None and id(graph) in self.errors and error is not self.errors[id(graph)] and self.ready():
            frames = _frames_of(error)
            text = str(error).strip().split("\n")[0][:300]
            self.recorder.capture_left("{}: {}".format(type(error).__name__, text), frames)

    def over(self, graph):
        self.errors.pop(id(graph), None)
        with self.lock:
            self.capturing = max(0, self.capturing - 1)

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
            if self.history.is_on(torch):
                segments, missed = self.history.take(torch)
                if missed:
                    self.recorder.library.cglint_record_blocks_missed()
            else:
                segments = _snapshot(torch)
            words, pools = _blocks_of(segments, self.history.since)
            result = self.recorder.blocks(moment, words, pools)
            if result == 2:
                raise ValueError("the recorder refused the blocks")
            end = time.monotonic()
            with self.lock:
                self.written += len(words) // _WORDS
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
                elif self.capturing == 0 and time.monotonic() >= self.not_before:
                    self.read_history(time)
        except Exception:
            self.give_up()

    def read_history(self, time):
        """Before the allocator's list overflows; nothing is written."""
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_initialized() or not self.history.is_filling(torch):
            return
        begin = time.monotonic()
        if self.history.take(torch)[1]:
            self.recorder.library.cglint_record_blocks_missed()
        end = time.monotonic()
        with self.lock:
            self.not_before = end + self.SHARE * (end - begin)

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


def _frames_of(error):
    """(file, function, line) of where an error was raised, innermost first."""
    frames, outermost, trace = [], None, error.__traceback__
    while trace is not None:
        outermost = outermost or trace.tb_frame
        frames.insert(0, (trace.tb_frame, trace.tb_lineno))
        trace = trace.tb_next
    frame = outermost.f_back if outermost is not None else None
    while frame is not None:
        frames.append((frame, frame.f_lineno or 0))
        frame = frame.f_back
    own = _FILE
    return [(frame.f_code.co_filename, frame.f_code.co_name, line) for frame, line in frames if frame.f_code.co_filename != own][:32]


_FILE = (lambda: 0).__code__.co_filename


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
        def wrapper(self, *arguments, **keywords):
            quietly(before, self)
            try:
                result = original(self, *arguments, **keywords)
            except BaseException:
                quietly(bad, self)
                raise
            quietly(good, self)
            return result

        setattr(graph, name, wrapper)

    def nothing(graph):
        pass

    def captured(graph):
        allocator.captured(time)

    def ended(graph):
        allocator.over(graph)
        captured(graph)

    wrap("capture_begin", allocator.expect, allocator.begun, nothing)
    wrap("capture_end", allocator.ending, ended, allocator.over)
    if hasattr(graph, "instantiate"):
        wrap("instantiate", allocator.expect, captured, nothing)


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
