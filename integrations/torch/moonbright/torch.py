# SPDX-License-Identifier: MIT
"""PyTorch on MoonBright. doc/torch.md says what works and what cannot."""
import contextlib
import ctypes
import functools
import os
import sys
import threading
import warnings

from . import _lib
from ._device import Device, Pool, backends, config_text, device_count

SWITCH = "MOONBRIGHT_TORCH"  # "off": enable() does nothing and returns False

# PyTorch's setter -> our function.
_SETTERS = {
    "set_init_fn": "mb_torch_init",
    "set_reset_fn": "mb_torch_reset",
    "set_memory_fraction_fn": "mb_torch_memory_fraction",
    "set_base_alloc_fn": "mb_torch_base_alloc",
    "set_record_stream_fn": "mb_torch_record_stream",
    "set_begin_allocate_to_pool": "mb_torch_begin_allocate_to_pool",
    "set_end_allocate_to_pool_fn": "mb_torch_end_allocate_to_pool",
    "set_release_pool": "mb_torch_release_pool",
}
_lock = threading.RLock()
_around = threading.local()
_state = {"enabled": False, "allocator": None, "originals": None, "asleep": {}}


def _torch():
    try:
        import torch
    except ImportError as error:
        raise _lib.MoonbrightError(f"PyTorch is not there: {error}. moonbright.Device works without it",
                                   "MB_ERR_NOT_SUPPORTED", 9) from None
    return torch


def _refuse(text, name="MB_ERR_NOT_SUPPORTED", code=9):
    raise _lib.MoonbrightError("moonbright.enable(): " + text + ". Nothing was changed", name, code)


# ---------------------------------------------------------------- switching on

def _check_torch(torch):
    """What makes PyTorch unable to take an allocator, found before anything is changed."""
    if getattr(torch.version, "hip", None):
        _refuse("this PyTorch is built for ROCm, whose pluggable allocator MoonBright has not been built for; "
                "use the preload library libmoonbright-hip.so")
    if not torch.version.cuda:
        _refuse("this PyTorch is built without CUDA; install a CUDA build")
    if not hasattr(torch.cuda.memory, "CUDAPluggableAllocator"):
        _refuse(f"PyTorch {torch.__version__} has no CUDAPluggableAllocator; 2.1 is the first that has all it takes")
    if getattr(torch.cuda, "_is_in_bad_fork", lambda: False)():
        _refuse("this process is a fork of one that has used CUDA; start workers with the method `spawn`",
                "MB_ERR_FORKED", 20)
    if torch.cuda.is_initialized():
        _refuse("PyTorch has used the GPU already, and it never changes its allocator after that. Call "
                "moonbright.enable() first: before the first tensor on the device, torch.cuda.init(), "
                "torch.cuda.current_device() and the like; in a notebook, restart the kernel",
                "MB_ERR_BUSY", 7)


def _check_settings(torch):
    settings = [name for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF") if os.environ.get(name)]
    for name in settings:
        if "cudaMallocAsync" in os.environ[name]:
            _refuse(f"{name}={os.environ[name]} asks for another allocator; remove `backend` from it", "MB_ERR_CONFIG",
                    14)
    backend = torch.cuda.memory.get_allocator_backend()
    if backend != "native":
        _refuse(f"PyTorch's allocator is «{backend}», not its own", "MB_ERR_BUSY", 7)
    if settings:
        warnings.warn(f"{' and '.join(settings)} configure PyTorch's own allocator and have no effect on MoonBright; "
                      "$MOONBRIGHT does (doc/configuration.md)", stacklevel=4)


def _check_backend(config, allow_sim):
    """The configuration is right, and a backend that PyTorch can use serves it."""
    device_count(config)  # raises on an unknown key or value
    keys = [part.strip() for part in _merge(os.environ.get("MOONBRIGHT"), config).split(",")]
    if allow_sim:
        return
    if "backend:sim" in keys:
        _refuse("the configuration asks for the software GPU, whose memory PyTorch cannot use", "MB_ERR_CONFIG", 14)
    cuda = [info for info in backends() if info["name"] == "cuda"]
    if not cuda or not cuda[0]["available"]:
        reason = cuda[0]["reason"] if cuda else "the library was built without it"
        _refuse(f"MoonBright cannot serve CUDA here: {reason}", "MB_ERR_NO_DEVICE", 11)


def allocator():
    """The torch.cuda.memory.CUDAPluggableAllocator, made once; enable() is the usual way to use it."""
    torch = _torch()
    with _lock:
        if _state["allocator"] is None:
            plugin = _lib.plugin()
            made = torch.cuda.memory.CUDAPluggableAllocator(plugin._name, "mb_torch_malloc", "mb_torch_free")
            inner = made.allocator()
            missing = [setter for setter in _SETTERS if not hasattr(inner, setter)]
            if missing:
                _refuse(f"PyTorch {torch.__version__} lacks {', '.join(missing)}; 2.1 is the first that has all")
            for setter, function in _SETTERS.items():
                getattr(inner, setter)(ctypes.cast(getattr(plugin, function), ctypes.c_void_p).value)
            _state["allocator"] = made
        return _state["allocator"]


def enable(config=None, patch=False, _allow_sim=False):
    """PyTorch's device memory comes from MoonBright from now on, for as long as the process lives.

    `config` is added to $MOONBRIGHT for this process; its keys win. With `patch`, torch.cuda.memory_stats() and its
    like tell MoonBright's figures (see patch()). False: switched off by MOONBRIGHT_TORCH=off. Raises MoonbrightError,
    with nothing changed, if PyTorch cannot take an allocator any more or MoonBright cannot serve this machine.
    """
    if os.environ.get(SWITCH, "").lower() in ("off", "0", "no"):
        return False
    config = config_text(config)
    torch = _torch()
    with _lock:
        if _state["enabled"]:
            if config:
                _refuse("it is enabled already, and a configuration cannot be changed after that", "MB_ERR_BUSY", 7)
            if patch:
                globals()["patch"]()
            return True
        _check_torch(torch)
        _check_settings(torch)
        _check_backend(config, _allow_sim)
        made = allocator()
        before = os.environ.get("MOONBRIGHT")
        if config:
            os.environ["MOONBRIGHT"] = _merge(before, config)
        try:
            torch.cuda.memory.change_current_allocator(made)
        except RuntimeError as error:
            if config:
                os.environ.pop("MOONBRIGHT") if before is None else os.environ.update(MOONBRIGHT=before)
            _refuse(f"PyTorch refused: {error}", "MB_ERR_BUSY", 7)
        _state["enabled"] = True
        if patch:
            globals()["patch"]()
    return True


def _merge(old, new):
    """Two configurations as one; keys of `new` win."""
    keys = {part.split(":", 1)[0].strip() for part in new.split(",")}
    kept = [part for part in (old or "").split(",") if part and part.split(":", 1)[0].strip() not in keys]
    return ",".join([*kept, *([new] if new else [])])


def enabled():
    return _state["enabled"]


def disable():
    """Always raises: PyTorch keeps its allocator until the process ends."""
    raise _lib.MoonbrightError("PyTorch cannot go back to its own allocator in a process that has used another one; "
                               f"start the process with {SWITCH}=off to run without MoonBright",
                               "MB_ERR_NOT_SUPPORTED", 9)


def mem_pool():
    """A torch.cuda.MemPool on MoonBright, for a process whose other memory stays with PyTorch's own allocator."""
    torch = _torch()
    if _state["enabled"]:
        raise _lib.MoonbrightError("all of this process's memory is MoonBright's already; PyTorch makes a MemPool only "
                                   "under its own allocator. Use moonbright.use_pool() for a pool of your own",
                                   "MB_ERR_NOT_SUPPORTED", 9)
    return torch.cuda.MemPool(allocator().allocator())


# ---------------------------------------------------------------- devices and figures

def _ordinal(device):
    """A device as PyTorch lets one name it, as a number."""
    if isinstance(device, int) and not isinstance(device, bool):
        return device
    torch = sys.modules.get("torch")
    if device is None:
        return torch.cuda.current_device() if torch and torch.cuda.is_initialized() else 0
    index = getattr(_torch().device(device), "index", None)
    return _ordinal(None) if index is None else index


def device(device=None):
    """The moonbright.Device that serves PyTorch's device, opened if need be."""
    ordinal, handle = _ordinal(device), ctypes.c_void_p()
    _lib.call_plugin("mb_torch_device", ordinal, ctypes.byref(handle))
    return Device(ordinal, _handle=handle.value)


def counts():
    """Calls that PyTorch has made."""
    counted = _lib.Counts()
    _lib.plugin().mb_torch_counts_get(ctypes.byref(counted))
    return _lib.as_dict(counted)


def memory_stats(device=None):
    """By the names of torch.cuda.memory_stats(); what MoonBright does not have is left out."""
    return globals()["device"](device).memory_stats()


def memory_summary(device=None):
    return globals()["device"](device).memory_summary()


def memory_map(device=None):
    return globals()["device"](device).memory_map()


def snapshot(path, device=None):
    """A file for PyTorch's visualiser; with history:N in $MOONBRIGHT it holds the last N events too."""
    globals()["device"](device).snapshot(path)


def reset_peaks(device=None):
    globals()["device"](device).reset_peaks()


def empty_cache():
    """Free frames of every open device go back to the driver."""
    _lib.plugin().mb_torch_reset()


def set_memory_cap(size, device=None):
    """Bytes that PyTorch's blocks may take on the device; 0: no limit."""
    _lib.call_plugin("mb_torch_set_limit", _ordinal(device), size)


def set_memory_fraction(fraction, device=None):
    """The same as a part of the device's memory; torch.cuda.set_per_process_memory_fraction() does this too."""
    if not 0 <= fraction <= 1:
        raise _lib.MoonbrightError(f"a memory fraction of {fraction}: allowed are 0 to 1")
    _torch().cuda.set_per_process_memory_fraction(fraction, _ordinal(device))


# ---------------------------------------------------------------- pools, sleep

def _nested_in(what):
    """What this thread has around: pools by ordinal, the tag."""
    if not hasattr(_around, what):
        setattr(_around, what, {})
    return getattr(_around, what)


def _tag(tag):
    if not isinstance(tag, str) or "\0" in tag:
        raise _lib.MoonbrightError(f"a tag is a text, not {tag!r}")
    return tag.encode()


@contextlib.contextmanager
def use_pool(pool, device=None):
    """What this thread allocates inside comes from `pool` (a moonbright.Pool of that device)."""
    if not isinstance(pool, Pool):
        raise _lib.MoonbrightError("use_pool() takes a moonbright.Pool; moonbright.device().pool() makes one")
    ordinal = pool.device.ordinal if device is None else _ordinal(device)
    if ordinal != pool.device.ordinal:
        raise _lib.MoonbrightError(f"the pool is of device {pool.device.ordinal}, not of {ordinal}")
    before = _nested_in("pools").get(ordinal)
    _lib.call_plugin("mb_torch_use_pool", ordinal, pool.handle)
    _nested_in("pools")[ordinal] = pool
    try:
        yield pool
    finally:
        usable = before if before and before.is_usable else None
        _nested_in("pools")[ordinal] = usable
        _lib.call_plugin("mb_torch_use_pool", ordinal, usable.handle if usable else None)


@contextlib.contextmanager
def sleepable(tag):
    """Blocks of 1 MiB and more that this thread allocates inside can sleep under that name; the innermost counts."""
    before = _nested_in("tags").get("tag")
    _lib.call_plugin("mb_torch_tag", _tag(tag))
    _nested_in("tags")["tag"] = tag
    try:
        yield
    finally:
        _nested_in("tags")["tag"] = before
        _lib.call_plugin("mb_torch_tag", before.encode() if before else None)


def sleep(tag, keep=(), device=None):
    """The tag's blocks give up their frames and keep their addresses; returns the bytes given up.

    Contents are lost, except those of the tensors in `keep`, which wait in host memory for wake(). Tensors that an
    earlier sleep() keeps already are passed over: their memory sleeps. After a failure the tag is awake again, with the
    contents that were kept; where waking fails as well, they still wait for wake().
    """
    ordinal, size = _ordinal(device), ctypes.c_uint64()
    waiting = _state["asleep"].get((ordinal, tag), [])
    known = {_place(tensor) for tensor, _ in waiting}
    kept = [(tensor, tensor.detach().to("cpu", copy=True)) for tensor in keep if _place(tensor) not in known]
    try:
        _lib.call_plugin("mb_torch_sleep", ordinal, _tag(tag), ctypes.byref(size))
    except _lib.MoonbrightError as error:
        # A part may be asleep. Without a block of that tag nothing is.
        if error.name != "MB_ERR_NOT_FOUND":
            _state["asleep"][ordinal, tag] = waiting + kept
            with contextlib.suppress(_lib.MoonbrightError):
                wake(tag, ordinal)
        raise
    if kept:
        _state["asleep"][ordinal, tag] = waiting + kept
    return size.value


def _place(tensor):
    """Equal for all objects that are the same memory, such as those of state_dict() each time."""
    return tensor.data_ptr(), tensor.numel() * tensor.element_size()


def wake(tag, device=None):
    """New frames behind the same addresses; contents of kept tensors are back, others undefined."""
    ordinal, size = _ordinal(device), ctypes.c_uint64()
    _lib.call_plugin("mb_torch_wake", ordinal, _tag(tag), ctypes.byref(size))
    for tensor, copy in _state["asleep"].pop((ordinal, tag), []):
        tensor.data.copy_(copy)
    return size.value


# ---------------------------------------------------------------- figures where programs look for them

def _stats_for_torch(device=None):
    """memory_stats() with `active` beside `allocated`: a freed block of MoonBright's is never waiting to be split."""
    import collections
    stats = memory_stats(device)
    for key in [key for key in stats if key.startswith("allocated_bytes.")]:
        stats[key.replace("allocated", "active", 1)] = stats[key]
    for key in [key for key in stats if key.startswith("allocation.")]:
        stats[key.replace("allocation", "active", 1)] = stats[key]
    return collections.OrderedDict(sorted(stats.items()))


def _nested(device=None):
    nested = {}
    for key, value in _stats_for_torch(device).items():
        at = nested
        *parts, last = key.split(".")
        for part in parts:
            at = at.setdefault(part, {})
        at[last] = value
    return nested


def _whole_snapshot(device=None):
    from ._device import read_snapshot
    import tempfile
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "snapshot.pickle")
        snapshot(path, device)
        return read_snapshot(path)


def _unsupported(name, instead):
    def refused(*unused, **unused_too):
        raise _lib.MoonbrightError(f"torch.cuda.memory.{name}(): {instead}", "MB_ERR_NOT_SUPPORTED", 9)
    return refused


def _replacements():
    return {
        "memory_stats": _stats_for_torch,
        "memory_stats_as_nested_dict": _nested,
        "memory_summary": lambda device=None, abbreviated=False: memory_summary(device),
        "memory_snapshot": lambda *unused, **unused_too: _whole_snapshot()["segments"],
        "_snapshot": lambda device=None, *unused, **unused_too: _whole_snapshot(device),
        "_dump_snapshot": lambda filename="dump_snapshot.pickle", *unused, **unused_too: snapshot(filename),
        "reset_peak_memory_stats": reset_peaks,
        "reset_max_memory_allocated": reset_peaks,
        "reset_max_memory_cached": reset_peaks,
        "reset_accumulated_memory_stats": _unsupported(
            "reset_accumulated_memory_stats", "MoonBright counts from the opening of a device; take differences"),
        "_record_memory_history": _unsupported(
            "_record_memory_history", "set history:N in $MOONBRIGHT before the start, then moonbright.snapshot(path)"),
    }


def patch():
    """torch.cuda.memory_stats() and its like tell MoonBright's figures instead of raising.

    PyTorch answers them for its own allocators only. Also switches off the inductor's CUDA graph trees, which need a
    call of PyTorch's own allocator; torch.compile then uses plain CUDA graphs where it is asked for graphs.
    """
    torch = _torch()
    with _lock:
        if _state["originals"] is not None:
            return
        originals = {}
        for name, function in _replacements().items():
            for module in (torch.cuda.memory, torch.cuda):
                if hasattr(module, name):
                    originals[(module, name)] = getattr(module, name)
                    setattr(module, name, functools.wraps(getattr(module, name))(function))
        try:
            import torch._inductor.config as config
            originals[(config.triton, "cudagraph_trees")] = config.triton.cudagraph_trees
            config.triton.cudagraph_trees = False
        except (ImportError, AttributeError):
            pass  # a PyTorch without the inductor has no graph trees
        _state["originals"] = originals


def unpatch():
    """PyTorch's own functions are back."""
    with _lock:
        for (module, name), function in (_state["originals"] or {}).items():
            setattr(module, name, function)
        _state["originals"] = None
