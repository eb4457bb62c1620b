# SPDX-License-Identifier: MIT
"""The C library: finding it, its types, and calls that raise."""
import ctypes
import operator
import os
import pathlib
import threading

LIBRARY, PLUGIN = "libmoonbright.so", "libmoonbright-torch.so"
VARIABLE = "MOONBRIGHT_LIBRARY_PATH"

c_u64, c_int, c_void_p, c_char_p, c_size_t = (ctypes.c_uint64, ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p,
                                              ctypes.c_size_t)


class MoonbrightError(RuntimeError):
    """A call failed: `name` is like "MB_ERR_NO_MEMORY"; the text is the library's own."""

    def __init__(self, text, name="MB_ERR_INVALID", code=1):
        super().__init__(text)
        self.name, self.code = name, code


class OutOfMemory(MoonbrightError, MemoryError):
    """MB_ERR_NO_MEMORY, MB_ERR_NO_ADDRESS or MB_ERR_LIMIT."""


class Latency(ctypes.Structure):
    _fields_ = [(name, c_u64) for name in ("count", "p50_ns", "p99_ns", "p999_ns", "max_ns", "total_ns")]


class Stats(ctypes.Structure):
    _fields_ = [(name, c_u64) for name in (
        "requested_bytes", "requested_peak_bytes", "allocated_bytes", "allocated_peak_bytes", "frames_used_bytes",
        "frames_used_peak_bytes", "reserved_bytes", "reserved_peak_bytes", "overhead_bytes", "table_bytes",
        "live_blocks", "malloc_calls", "free_calls", "failed_requests", "stitched_blocks", "stitches", "grows",
        "trims", "map_batches", "entries_written", "unmap_batches", "invalidates", "epochs", "va_handed_out_bytes",
        "wrong_words", "wrong_accesses", "faults", "quarantined_bytes")] + [
        (name, Latency) for name in ("malloc_latency", "free_latency", "map_latency")]


class MapOp(ctypes.Structure):
    _fields_ = [("kind", c_int), ("prot", c_int), ("va", c_void_p), ("bytes", c_u64), ("mem", c_void_p),
                ("mem_offset", c_u64), ("src", c_void_p)]


class Copy(ctypes.Structure):
    _fields_ = [("dst", c_void_p), ("src", c_void_p), ("bytes", c_u64)]


class PointerInfo(ctypes.Structure):
    _fields_ = [("base", c_void_p), ("bytes", c_u64), ("generation", c_u64), ("driver_visible", ctypes.c_bool),
                ("stitched", ctypes.c_bool), ("aliases_high", ctypes.c_uint)]


class BackendInfo(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("available", ctypes.c_bool), ("chosen", ctypes.c_bool), ("tables", c_char_p),
                ("reason", c_char_p), ("device_name", ctypes.c_char * 96), ("driver", ctypes.c_char * 64)]


class Counts(ctypes.Structure):
    _fields_ = [(name, c_u64) for name in ("mallocs", "frees", "failures", "bad_frees", "recorded_streams",
                                           "pool_mallocs", "pools", "pools_retired", "sleepers")]


_P = ctypes.POINTER
# Arguments of the calls that return enum mb_err.
_CALLS = {
    "mb_backends": [_P(BackendInfo), ctypes.c_uint, _P(ctypes.c_uint)],
    "mb_device_count": [c_char_p, _P(c_int)],
    "mb_open": [c_int, c_char_p, _P(c_void_p)],
    "mb_device_sync": [c_void_p],
    "mb_stream_create": [c_void_p, _P(c_void_p)],
    "mb_stream_destroy": [c_void_p, c_void_p],
    "mb_stream_sync": [c_void_p, c_void_p],
    "mb_event_create": [c_void_p, _P(c_void_p)],
    "mb_event_destroy": [c_void_p, c_void_p],
    "mb_event_record": [c_void_p, c_void_p, c_void_p],
    "mb_stream_wait_event": [c_void_p, c_void_p, c_void_p],
    "mb_malloc": [c_void_p, c_size_t, _P(c_void_p)],
    "mb_free": [c_void_p, c_void_p],
    "mb_realloc": [c_void_p, c_void_p, c_size_t, _P(c_void_p)],
    "mb_malloc_async": [c_void_p, c_size_t, c_void_p, _P(c_void_p)],
    "mb_free_async": [c_void_p, c_void_p, c_void_p],
    "mb_record_stream": [c_void_p, c_void_p, c_void_p],
    "mb_pool_create": [c_void_p, _P(c_void_p)],
    "mb_pool_destroy": [c_void_p],
    "mb_pool_default": [c_void_p, _P(c_void_p)],
    "mb_pool_set": [c_void_p, c_int, c_u64],
    "mb_pool_get": [c_void_p, c_int, _P(c_u64)],
    "mb_pool_malloc_async": [c_void_p, c_size_t, c_void_p, _P(c_void_p)],
    "mb_pool_trim": [c_void_p, c_u64],
    "mb_mem_reserve": [c_void_p, c_u64, c_u64, _P(c_void_p)],
    "mb_mem_unreserve": [c_void_p, c_void_p, c_u64],
    "mb_mem_create": [c_void_p, c_u64, _P(c_void_p)],
    "mb_mem_release": [c_void_p, c_void_p],
    "mb_mem_map_async": [c_void_p, _P(MapOp), ctypes.c_uint, c_void_p],
    "mb_mem_sleep": [c_void_p, c_void_p, c_u64, c_void_p],
    "mb_mem_wake": [c_void_p, c_void_p, c_u64, c_void_p],
    "mb_pointer_info": [c_void_p, c_void_p, _P(PointerInfo)],
    "mb_fill_async": [c_void_p, c_void_p, c_u64, c_u64, c_void_p],
    "mb_verify_async": [c_void_p, c_void_p, c_u64, c_u64, c_void_p],
    "mb_copy_async": [c_void_p, c_void_p, c_void_p, c_u64, c_void_p],
    "mb_copy_list_async": [c_void_p, _P(Copy), ctypes.c_uint, c_void_p],
    "mb_stats_get": [c_void_p, _P(Stats)],
    "mb_stats_reset_peaks": [c_void_p],
    "mb_stats_text": [c_void_p, c_int, c_char_p, c_size_t, _P(c_size_t)],
    "mb_snapshot": [c_void_p, c_char_p],
    "mb_check": [c_void_p],
}
# Calls of the plug-in that return enum mb_err.
_PLUGIN_CALLS = {
    "mb_torch_device": [c_int, _P(c_void_p)],
    "mb_torch_device_if_open": [c_int, _P(c_void_p)],
    "mb_torch_set_limit": [c_int, c_u64],
    "mb_torch_use_pool": [c_int, c_void_p],
    "mb_torch_tag": [c_char_p],
    "mb_torch_sleep": [c_int, c_char_p, _P(c_u64)],
    "mb_torch_wake": [c_int, c_char_p, _P(c_u64)],
}
_TEXTS = {"mb_error_name": [c_int], "mb_error_text": [c_int], "mb_error_detail": [], "mb_version": [],
          "mb_device_backend": [c_void_p], "mb_device_tables": [c_void_p], "mb_device_name": [c_void_p]}

_OUT_OF_MEMORY = {"MB_ERR_NO_MEMORY", "MB_ERR_NO_ADDRESS", "MB_ERR_LIMIT"}
_lock = threading.Lock()
_loaded = {}


def directories():
    """Where a library is looked for, in this order; the system's loader is asked last."""
    here = pathlib.Path(__file__).resolve().parent
    if os.environ.get(VARIABLE):
        yield from (pathlib.Path(part) for part in os.environ[VARIABLE].split(os.pathsep) if part)
        return
    yield here
    for up in list(here.parents)[2:4]:  # <prefix>/share/moonbright/python/moonbright
        yield up / "lib"
        yield from sorted((up / "lib").glob("*-linux-gnu"))
        yield up / "lib64"
    if len(here.parents) > 2:  # a source tree: integrations/torch/moonbright
        yield here.parents[2] / "build" / "release" / "lib"


def find(name):
    """Path of a library, or its bare name for the system's loader."""
    for directory in directories():
        if (directory / name).is_file():
            return str(directory / name)
    return name


def _describe(library, calls):
    for name, arguments in calls.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, c_int
    return library


def _open(name):
    path = find(name)
    try:
        return ctypes.CDLL(path)
    except OSError as error:
        tried = ", ".join(str(directory) for directory in directories())
        raise MoonbrightError(f"{name} cannot be loaded: {error}. Looked in {tried} and where the system's loader "
                              f"looks; set {VARIABLE} to the directory that holds it", "MB_ERR_IO", 16) from None


def library():
    """libmoonbright, loaded once."""
    with _lock:
        if "library" not in _loaded:
            loaded = _describe(_open(LIBRARY), _CALLS)
            for name, arguments in _TEXTS.items():
                function = getattr(loaded, name)
                function.argtypes, function.restype = arguments, c_char_p
            loaded.mb_close.argtypes, loaded.mb_close.restype = [c_void_p], None
            loaded.mb_page_bytes.argtypes, loaded.mb_page_bytes.restype = [c_void_p], c_u64
            _loaded["library"] = loaded
        return _loaded["library"]


def plugin():
    """libmoonbright-torch, loaded once. It uses the same libmoonbright."""
    library()  # first, so that the plug-in takes the one that was found
    with _lock:
        if "plugin" not in _loaded:
            loaded = _describe(_open(PLUGIN), _PLUGIN_CALLS)
            loaded.mb_torch_counts_get.argtypes, loaded.mb_torch_counts_get.restype = [_P(Counts)], None
            loaded.mb_torch_reset.argtypes, loaded.mb_torch_reset.restype = [], None
            _loaded["plugin"] = loaded
        return _loaded["plugin"]


def check(error):
    """Raises if a call did not return MB_OK."""
    if not error:
        return
    lib = library()
    name = lib.mb_error_name(error).decode()
    detail = lib.mb_error_detail().decode(errors="replace") or lib.mb_error_text(error).decode()
    kind = OutOfMemory if name in _OUT_OF_MEMORY else MoonbrightError
    raise kind(f"{name}: {detail}", name, error)


# What fits; ctypes cuts off the rest without a word.
_RANGES = {c_u64: (0, 2 ** 64 - 1), c_size_t: (0, 2 ** 64 - 1), c_void_p: (0, 2 ** 64 - 1),
           c_int: (-2 ** 31, 2 ** 31 - 1), ctypes.c_uint: (0, 2 ** 32 - 1)}


def _check_arguments(name, kinds, arguments):
    for place, (kind, value) in enumerate(zip(kinds, arguments), 1):
        if kind not in _RANGES or value is None and kind is c_void_p or isinstance(value, ctypes._SimpleCData):
            continue
        low, high = _RANGES[kind]
        try:
            number = operator.index(value)
        except TypeError:
            raise MoonbrightError(f"{name}(): argument {place} is {value!r}; it has to be a whole number") from None
        if not low <= number <= high:
            raise MoonbrightError(f"{name}(): argument {place} is {number}; allowed are {low} to {high}")


def call(name, *arguments):
    _check_arguments(name, _CALLS[name], arguments)
    check(getattr(library(), name)(*arguments))


def copies(copies):
    """An array of struct mb_copy from (target, source, size) of each."""
    array = (Copy * len(copies))()
    for number, (target, source, size) in enumerate(copies):
        _check_arguments(f"copy {number} of mb_copy_list_async", (c_void_p, c_void_p, c_u64), (target, source, size))
        array[number] = (target, source, size)
    return array


def call_plugin(name, *arguments):
    _check_arguments(name, _PLUGIN_CALLS[name], arguments)
    check(getattr(plugin(), name)(*arguments))


def as_dict(structure):
    """A structure's fields as a dict, structures in it too."""
    values = ((name, getattr(structure, name)) for name, _ in structure._fields_)
    return {name: as_dict(value) if isinstance(value, ctypes.Structure) else value for name, value in values}
