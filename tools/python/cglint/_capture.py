"""Writing a graph that this process holds to a capture file."""
import ctypes
import os

from ._program import folder
from ._report import CglintError

_library = None


def _load():
    global _library
    if _library is None:
        path = os.path.join(folder(), "libcglint_capture.so")
        try:
            library = ctypes.CDLL(path)
        except OSError as error:
            raise CglintError("cannot load {}: {} (a build without CUDA parts has none)".format(path, error)) from None
        library.cglint_capture.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t]
        library.cglint_capture.restype = ctypes.c_int
        _library = library
    return _library


def handle_of(graph):
    """The cudaGraph_t of a torch.cuda.CUDAGraph, of an object of cuda-python, or given as a number."""
    raw = getattr(graph, "raw_cuda_graph", None)
    if raw is not None:
        try:
            graph = raw()
        except RuntimeError as error:
            raise CglintError("torch does not hand out the graph ({}): it must be captured to its end, and made by "
                              "torch.cuda.CUDAGraph(keep_graph=True); otherwise torch destroys it when it instantiates it".format(str(error).strip().split("\n")[0])) from None
    elif hasattr(graph, "capture_begin"):
        raise CglintError("this torch has no CUDAGraph.raw_cuda_graph(): a version with torch.cuda.CUDAGraph(keep_graph=True) is needed")
    if isinstance(graph, ctypes.c_void_p):
        graph = graph.value
    if isinstance(graph, bool) or isinstance(graph, (str, bytes, float)) or graph is None:
        raise CglintError("not a graph: {!r}".format(graph))
    try:
        value = int(graph)
    except (TypeError, ValueError):
        raise CglintError("not a graph: {!r}".format(graph)) from None
    if not 0 < value < 1 << 64:
        raise CglintError("not a graph's handle: {}".format(value))
    return value


def capture(graph, path, name=None):
    """Writes `graph` to `path`, a new file; returns the path.

    graph: a torch.cuda.CUDAGraph(keep_graph=True) whose capture has ended (it need not be instantiated), a cudaGraph_t of cuda-python, or
    the handle as a number. It is not changed, and must live until this returns; a wrong number crashes the process.
    name: how reports call it.
    Raises CglintError.
    """
    handle = handle_of(graph)
    problem = ctypes.create_string_buffer(1024)
    path = os.fspath(path)
    status = _load().cglint_capture(handle, os.fsencode(path), None if name is None else str(name).encode("utf-8", "replace"), problem, len(problem))
    if status != 0:
        raise CglintError(problem.value.decode("utf-8", "replace") or "cglint_capture failed with {}".format(status))
    return path
