# SPDX-License-Identifier: MIT
"""A KV cache on ranges of addresses, from Python: a thin front to moonbright_kv.h.

    cache = Cache.on_device(open_device(), layers=32, kv_heads=8, head_dim=128, max_tokens=8192, max_sequences=64)
    seq = cache.open()
    hit = cache.attach(seq, prompt[:-1])            # what others have computed already
    cache.append({seq: len(prompt) - hit}, stream)
    k, v = cache.tensors(seq, layer)                # [max_tokens, kv_heads, head_dim], no copy
    cache.publish(seq, prompt)

Addresses come from a *place*: a device of MoonBright, CUDA's own mapping calls (a peer), or host memory, where a
decoder on a CPU can be checked. The libraries are found in $MOONBRIGHT_LIB or $MOONBRIGHT_LIBRARY_PATH,
beside this package, below the prefix that it is installed to, or by the loader.
Calls and errors are those of the header; an error raises KVError with the library's text. `stream` is an integer
handle; torch's `stream.cuda_stream` serves. Tokens may be any sequence; array.array("i") and NumPy's int32 are not
copied. Needs ctypes alone; tensors() needs PyTorch.
"""
import array
import ctypes
import itertools
import operator
import os
import pathlib
import struct

_HERE = pathlib.Path(__file__).resolve().parent


class KVError(RuntimeError):
    """A call failed; `name` is the error's, like MB_ERR_NO_MEMORY."""

    def __init__(self, call, name, detail):
        super().__init__(f"{call}: {name}: {detail}")
        self.name = name


_COPY_WORDS = 3  # struct mb_copy: dst, src, bytes
COPY_CALL = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_void_p)


class Mapper(ctypes.Structure):
    _fields_ = ([("user", ctypes.c_void_p), ("page_bytes", ctypes.c_uint64)] +
                [(name, ctypes.c_void_p) for name in ("reserve", "unreserve", "create", "release", "map")] +
                [("copy", COPY_CALL)] + [(name, ctypes.c_void_p) for name in ("order", "detail", "close")])


class Config(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint32) for name in (
        "layers", "kv_heads", "head_dim", "element_bytes", "group_layers", "max_tokens", "max_sequences",
        "chunk_blocks")] + [("limit_bytes", ctypes.c_uint64)]


class Shape(ctypes.Structure):
    _fields_ = [("page_bytes", ctypes.c_uint64), ("block_tokens", ctypes.c_uint32), ("groups", ctypes.c_uint32),
                ("group_layers", ctypes.c_uint32), ("token_bytes", ctypes.c_uint64), ("block_bytes", ctypes.c_uint64),
                ("range_bytes", ctypes.c_uint64)]


class View(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("token_stride", ctypes.c_uint64), ("head_stride", ctypes.c_uint64),
                ("tokens", ctypes.c_uint32), ("max_tokens", ctypes.c_uint32)]


class Stats(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in (
        "held_blocks", "live_blocks", "cached_blocks", "free_blocks", "room_blocks", "shown_blocks", "live_tokens",
        "sequences", "lookup_tokens", "hit_tokens", "published_blocks", "evicted_blocks", "batches", "ops",
        "mapped_pages", "unmapped_pages", "copies", "copied_bytes", "map_host_ns")]


def _directories():
    for variable in ("MOONBRIGHT_LIB", "MOONBRIGHT_LIBRARY_PATH"):
        yield from filter(None, os.environ.get(variable, "").split(os.pathsep))
    yield _HERE
    if len(_HERE.parents) > 3:  # <prefix>/share/moonbright/python/moonbright_kv
        yield _HERE.parents[3] / "lib"
        yield from sorted((_HERE.parents[3] / "lib").glob("*-linux-gnu"))


def _load(name):
    for directory in _directories():
        path = pathlib.Path(directory) / f"lib{name}.so"
        if path.exists():
            return ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    try:
        return ctypes.CDLL(f"lib{name}.so", mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise KVError("dlopen", "MB_ERR_IO", f"{error}; looked in {', '.join(map(str, _directories()))} and where the "
                      "loader looks; set MOONBRIGHT_LIBRARY_PATH to the directory that holds it") from None


class _Libraries:
    """Loaded at first use, once per process."""

    def __init__(self):
        self.core = _load("moonbright")
        self.kv = _load("moonbright_kv")
        for library, names in ((self.core, ("mb_error_name", "mb_error_detail", "mb_device_tables")),
                               (self.kv, ("mb_kv_error_detail",))):
            for name in names:
                getattr(library, name).restype = ctypes.c_char_p

    def call(self, name, *arguments):
        err = getattr(self.kv, name)(*arguments)
        if err:
            raise KVError(name, self.core.mb_error_name(err).decode(), self.kv.mb_kv_error_detail().decode())


_libraries = None


def libraries():
    global _libraries
    if _libraries is None:
        _libraries = _Libraries()
    return _libraries


def _number(value, bits):
    """A whole number that fits; ctypes would cut it off without a word."""
    number = operator.index(value)
    if not 0 <= number < 1 << bits:
        raise KVError("argument", "MB_ERR_INVALID", f"{number} was given; allowed are 0 to {(1 << bits) - 1}")
    return number


def _u32(value):
    return ctypes.c_uint32(_number(value, 32))


def _u64(value):
    return ctypes.c_uint64(_number(value, 64))


def _grow_list(grow):
    """Records of struct mb_kv_grow, packed at once: one ctypes object each would take far longer than the call."""
    try:
        return struct.pack("=" + "QI4x" * len(grow), *itertools.chain.from_iterable(grow.items()))
    except struct.error:
        for seq, count in grow.items():  # one of them says what is wrong
            _number(seq, 64)
            _number(count, 32)
        raise


def _number_list(kind, bits, values):
    """Numbers as array.array packs its `kind`."""
    try:
        return array.array(kind, values).tobytes()
    except (OverflowError, TypeError):
        for value in values:
            _number(value, bits)
        raise


def _tokens(tokens):
    """(what to pass, how many). A buffer of numbers of 32 bits that can be written, such as array.array("i") or NumPy's
    int32, is passed where it lies; anything else is copied, which for a list takes far longer than the call."""
    try:
        view = memoryview(tokens)
    except TypeError:
        view = None
    if view is not None and view.itemsize == 1:
        raise KVError("tokens", "MB_ERR_INVALID", "bytes were given; tokens are whole numbers of 32 bits")
    if view is None or view.format != "i" or view.ndim != 1 or not view.c_contiguous or view.readonly:
        try:
            view = memoryview(array.array("i", tokens))
        except (OverflowError, TypeError) as error:
            raise KVError("tokens", "MB_ERR_INVALID", f"{error}; tokens are whole numbers of 32 bits") from None
    return (ctypes.byref(ctypes.c_int32.from_buffer(view)) if len(view) else None), ctypes.c_uint32(len(view))


class Cache:
    """One KV cache. Close it before the place it lives on; it is a context manager."""

    def __init__(self, mapper, *, layers, kv_heads, head_dim, element_bytes=2, group_layers=0, max_tokens,
                 max_sequences, chunk_blocks=0, limit_bytes=0, device="cuda", keep=None):
        self.lib = libraries()
        self.device, self.keep = device, (mapper, keep)
        self.config = Config(*(_number(value, 32) for value in (layers, kv_heads, head_dim, element_bytes, group_layers,
                                                                max_tokens, max_sequences, chunk_blocks)),
                             _number(limit_bytes, 64))
        self.handle = ctypes.c_void_p()
        self.lib.call("mb_kv_open_on", ctypes.byref(mapper), ctypes.byref(self.config), ctypes.byref(self.handle))
        self.shape = Shape()
        self.lib.call("mb_kv_get_shape", self.handle, ctypes.byref(self.shape))

    @classmethod
    def on_device(cls, device, copy=None, **config):
        """On an open device of MoonBright, an mb_device handle. The library copies tails itself, all of a step by
        mb_copy_list_async(). `copy(words, stream)`, if given, does so instead: words is a memoryview of unsigned
        numbers of 64 bits, three for each copy (dst, src, bytes), only to be read, and released when the call
        returns: keep neither it nor a tensor on it. The copies do not overlap. No Python object is made for a copy: a
        step of beam search may have thousands."""
        mapper, keep = Mapper(), None
        libraries().call("mb_kv_device_mapper", ctypes.c_void_p(device), ctypes.byref(mapper))
        if copy:
            mapper.copy = keep = _copy_call(copy)
        return cls._opened(mapper, keep=keep, **config)

    @classmethod
    def on_cuda_vmm(cls, ordinal=0, copy=None, **config):
        """The peer: the same decisions on cuMemMap and cuMemSetAccess. Tails are copied by one call of the driver
        each, or by `copy(words, stream)`, as of on_device()."""
        mapper, keep, library = Mapper(), None, _load("moonbright_kv_vmm")
        if library.mb_kv_vmm_mapper(ordinal, ctypes.byref(mapper)):
            raise KVError("mb_kv_vmm_mapper", "MB_ERR_NO_DEVICE", "libcuda.so.1 or one of its calls is missing")
        if copy:
            mapper.copy = keep = _copy_call(copy)
        return cls._opened(mapper, keep=keep, **config)

    @classmethod
    def on_host(cls, page_bytes=65536, **config):
        mapper = Mapper()
        if _load("moonbright_kv_host").mb_kv_host_mapper(_u64(page_bytes), ctypes.byref(mapper)):
            raise ValueError(f"{page_bytes} is no multiple of the host's page")
        return cls._opened(mapper, device="cpu", **config)

    @classmethod
    def _opened(cls, mapper, **config):
        """On a mapper that is closed with the cache, or at once if there is to be none."""
        try:
            return cls(mapper, **config)
        except Exception:
            if mapper.close:
                ctypes.CFUNCTYPE(None, ctypes.c_void_p)(mapper.close)(mapper.user)
            raise

    def close(self):
        if self.handle:
            self.lib.call("mb_kv_close", self.handle)
            self.handle = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def open(self, max_tokens=0):
        out = _u64(0)
        self.lib.call("mb_kv_seq_open", self.handle, _u32(max_tokens), ctypes.byref(out))
        return out.value

    def free(self, seq):
        self.lib.call("mb_kv_seq_close", self.handle, _u64(seq))

    def append(self, grow, stream=0):
        """grow: {sequence: tokens}. One batch for all of them."""
        self.lib.call("mb_kv_append", self.handle, _grow_list(grow), len(grow), ctypes.c_void_p(stream))

    def sync(self, stream=0):
        self.lib.call("mb_kv_sync", self.handle, ctypes.c_void_p(stream))

    def truncate(self, seq, tokens):
        self.lib.call("mb_kv_truncate", self.handle, _u64(seq), _u32(tokens))

    def fork(self, seq):
        out = _u64(0)
        self.lib.call("mb_kv_fork", self.handle, _u64(seq), ctypes.byref(out))
        return out.value

    def reorder(self, seqs, parents):
        """seqs[i] becomes what seqs[parents[i]] was."""
        count = len(seqs)
        if len(parents) != count:
            raise KVError("mb_kv_reorder", "MB_ERR_INVALID", f"{count} sequences and {len(parents)} parents")
        self.lib.call("mb_kv_reorder", self.handle, _number_list("Q", 64, seqs), _number_list("I", 32, parents), count)

    def sleep(self, seq):
        self.lib.call("mb_kv_sleep", self.handle, _u64(seq))

    def _lookup(self, call, seq, tokens):
        hit = ctypes.c_uint32(0)
        self.lib.call(call, self.handle, _u64(seq), *_tokens(tokens), ctypes.byref(hit))
        return hit.value

    def attach(self, seq, tokens):
        return self._lookup("mb_kv_attach", seq, tokens)

    def wake(self, seq, tokens):
        return self._lookup("mb_kv_wake", seq, tokens)

    def publish(self, seq, tokens):
        self.lib.call("mb_kv_publish", self.handle, _u64(seq), *_tokens(tokens))

    def hold(self, seq, tokens):
        """Keeps the published part of the first `tokens` tokens; (prefix, its length)."""
        out, count = _u64(0), ctypes.c_uint32(0)
        self.lib.call("mb_kv_prefix_hold", self.handle, _u64(seq), _u32(tokens), ctypes.byref(out),
                      ctypes.byref(count))
        return out.value, count.value

    def attach_prefix(self, seq, prefix):
        hit = ctypes.c_uint32(0)
        self.lib.call("mb_kv_prefix_attach", self.handle, _u64(seq), _u64(prefix), ctypes.byref(hit))
        return hit.value

    def drop(self, prefix):
        self.lib.call("mb_kv_prefix_drop", self.handle, _u64(prefix))

    def trim(self, stream=0):
        self.lib.call("mb_kv_trim", self.handle, ctypes.c_void_p(stream))

    def stats(self):
        out = Stats()
        self.lib.call("mb_kv_get_stats", self.handle, ctypes.byref(out))
        return out

    def check(self):
        self.lib.call("mb_kv_check", self.handle)

    def view(self, seq, layer, values):
        out = View()
        self.lib.call("mb_kv_get_view", self.handle, _u64(seq), _u32(layer), ctypes.c_bool(values),
                      ctypes.byref(out))
        return out

    def tensors(self, seq, layer, dtype=None):
        """(keys, values) of a layer as tensors [max_tokens, kv_heads, head_dim] on the cache's own addresses. What is
        behind the appended tokens is not mapped: slice before use. Good for the life of the sequence, across
        appends, forks and reorders."""
        return tuple(self._tensor(self.view(seq, layer, values), dtype) for values in (False, True))

    def _tensor(self, view, dtype):
        c = self.config
        stride = (view.token_stride // c.element_bytes, view.head_stride // c.element_bytes, 1)
        return self.tensor_at(view.base, (view.max_tokens, c.kv_heads, c.head_dim), stride, dtype)

    def tensor_at(self, address, shape, stride, dtype=None):
        """A tensor on addresses of the cache's, which need not show anything as long as nobody reads there; stride in
        elements. The caller knows what is where: see tensors() for one sequence."""
        import torch
        size = self.config.element_bytes
        dtype = dtype or torch.bfloat16
        assert dtype.itemsize == size, f"{dtype} has not {size} bytes"
        span = sum((n - 1) * step for n, step in zip(shape, stride)) + 1
        if self.device == "cpu":
            flat = torch.frombuffer((ctypes.c_char * (span * size)).from_address(address), dtype=dtype)
        else:
            # The interface has no bfloat16: taken as integers of its size and seen as what they are.
            flat = torch.as_tensor(_Array(address, span, size), device=self.device).view(dtype)
        return flat.as_strided(shape, stride)


class _Array:
    def __init__(self, pointer, count, size):
        self.__cuda_array_interface__ = {"shape": (count,), "typestr": f"<i{size}", "data": (pointer, False),
                                         "version": 3}


def _copy_call(copy):
    def failed(error):  # it must not cross the C frames; the append fails instead
        print(f"moonbright_kv: copy: {error}", flush=True)
        return 12  # MB_ERR_DRIVER

    def call(_user, address, count, stream):
        words = (ctypes.c_uint64 * (count * _COPY_WORDS)).from_address(address)
        try:
            with memoryview(words).cast("B").cast("Q") as view:  # whoever keeps it finds it released, not freed memory
                try:
                    copy(view, stream or 0)
                except Exception as error:
                    return failed(error)
        except BufferError as error:  # it cannot be released
            return failed(f"{error}; what is made of the words must not outlive the call")
        return 0

    return COPY_CALL(call)


def open_device(config="", ordinal=0):
    """An mb_device handle; close_device() takes it."""
    lib, out = libraries(), ctypes.c_void_p()
    err = lib.core.mb_open(ordinal, config.encode(), ctypes.byref(out))
    if err:
        raise KVError("mb_open", lib.core.mb_error_name(err).decode(), lib.core.mb_error_detail().decode())
    return out.value


def close_device(device):
    libraries().core.mb_close(ctypes.c_void_p(device))


def trim_device(device):
    """Gives what nobody uses back to the driver."""
    core, pool = libraries().core, ctypes.c_void_p()
    err = core.mb_pool_default(ctypes.c_void_p(device), ctypes.byref(pool)) or core.mb_pool_trim(pool, _u64(0))
    if err:
        raise KVError("mb_pool_trim", core.mb_error_name(err).decode(), core.mb_error_detail().decode())
