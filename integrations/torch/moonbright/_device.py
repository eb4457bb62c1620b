# SPDX-License-Identifier: MIT
"""Devices, pools and addresses: the C interface as objects. Addresses are integers, streams are handles."""
import contextlib
import ctypes
import io
import json
import os
import pickle
import tempfile

from . import _lib

MAP, ALIAS, UNMAP, PROTECT = range(4)
READ, READ_WRITE = 1, 3
_ATTRIBUTES = ("release_threshold", "limit", "reuse_follow_events", "reuse_opportunistic", "reuse_internal_deps",
               "reserved_current", "reserved_high", "used_current", "used_high", "keep")


def version():
    return _lib.library().mb_version().decode()


def backends():
    """What each backend says about itself on this machine, best first."""
    count = ctypes.c_uint()
    _lib.call("mb_backends", None, 0, ctypes.byref(count))
    infos = (_lib.BackendInfo * count.value)()
    _lib.call("mb_backends", infos, count, ctypes.byref(count))
    return [{name: value.decode(errors="replace") if isinstance(value, bytes) else value
             for name, value in _lib.as_dict(info).items()} for info in infos]


def device_count(config=None):
    count = ctypes.c_int()
    _lib.call("mb_device_count", _encode(config), ctypes.byref(count))
    return count.value


def config_text(config):
    """A configuration, a dict or "key:value,...", as a text; None is "". """
    if isinstance(config, dict):
        config = ",".join(f"{key}:{value}" for key, value in config.items())
    if config is not None and not isinstance(config, str):
        raise _lib.MoonbrightError(f"a configuration is a text \"key:value,...\" or a dict, not {config!r}",
                                   "MB_ERR_CONFIG", 14)
    if config and "\0" in config:
        raise _lib.MoonbrightError("a configuration cannot hold a character 0", "MB_ERR_CONFIG", 14)
    return config or ""


def _encode(config):
    return config_text(config).encode() or None


class _NoClasses(pickle.Unpickler):
    def find_class(self, module, name):
        raise pickle.UnpicklingError(f"a snapshot holds no classes, but this one names {module}.{name}")


def read_snapshot(path):
    """A snapshot file as dicts and lists; nothing in it is run."""
    with open(path, "rb") as file:
        return _NoClasses(io.BytesIO(file.read())).load()


class Pool:
    """A pool of a device; as a context manager it is destroyed at the end."""

    def __init__(self, device, handle, owned=True):
        self.device, self._handle, self._owned = device, handle, owned

    @property
    def handle(self):
        if not self._handle:
            raise _lib.MoonbrightError("the pool is destroyed")
        return self.device.handle and self._handle  # a pool ends with its device

    @property
    def is_usable(self):
        return bool(self._handle) and self.device.is_open

    def malloc_async(self, size, stream=None):
        return _out("mb_pool_malloc_async", self.handle, size, stream)

    def trim(self, keep=0):
        _lib.call("mb_pool_trim", self.handle, keep)

    def get(self, attribute):
        value = ctypes.c_uint64()
        _lib.call("mb_pool_get", self.handle, _attribute(attribute), ctypes.byref(value))
        return value.value

    def set(self, attribute, value):
        _lib.call("mb_pool_set", self.handle, _attribute(attribute), value)

    def destroy(self):
        if self._owned and self._handle and self.device.is_open:
            _lib.call("mb_pool_destroy", self._handle)
        self._handle = None if self._owned else self._handle

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.destroy()


def _attribute(name):
    if name not in _ATTRIBUTES:
        raise _lib.MoonbrightError(f"{name!r} is no attribute of a pool; there are {', '.join(_ATTRIBUTES)}")
    return _ATTRIBUTES.index(name)


def _out(name, *arguments):
    out = ctypes.c_void_p()
    _lib.call(name, *arguments, ctypes.byref(out))
    return out.value


class Device:
    """An open device. `config` is a text "key:value,..." or a dict; see doc/configuration.md."""

    def __init__(self, ordinal=0, config=None, _handle=None):
        self.ordinal, self._owned = ordinal, _handle is None
        self._handle = _handle if _handle is not None else _out("mb_open", ordinal, _encode(config))

    @property
    def handle(self):
        if not self._handle:
            raise _lib.MoonbrightError(f"device {self.ordinal} is closed")
        return self._handle

    def close(self):
        if self._owned and self._handle:
            _lib.library().mb_close(self._handle)
            self._handle = None

    @property
    def is_open(self):
        return bool(self._handle)

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.close()

    def _text(self, name):
        return getattr(_lib.library(), name)(self.handle).decode(errors="replace")

    @property
    def backend(self):
        return self._text("mb_device_backend")

    @property
    def tables(self):
        return self._text("mb_device_tables")

    @property
    def name(self):
        return self._text("mb_device_name")

    @property
    def page_bytes(self):
        return _lib.library().mb_page_bytes(self.handle)

    # memory
    def malloc(self, size):
        return _out("mb_malloc", self.handle, size)

    def free(self, pointer):
        _lib.call("mb_free", self.handle, pointer)

    def realloc(self, pointer, size):
        return _out("mb_realloc", self.handle, pointer, size)

    def malloc_async(self, size, stream=None):
        return _out("mb_malloc_async", self.handle, size, stream)

    def free_async(self, pointer, stream=None):
        _lib.call("mb_free_async", self.handle, pointer, stream)

    def record_stream(self, pointer, stream):
        _lib.call("mb_record_stream", self.handle, pointer, stream)

    def pool(self, **attributes):
        """A new pool; attributes by name, such as limit=1 << 30."""
        pool = Pool(self, _out("mb_pool_create", self.handle))
        try:
            for name, value in attributes.items():
                pool.set(name, value)
        except _lib.MoonbrightError:
            pool.destroy()
            raise
        return pool

    @property
    def default_pool(self):
        return Pool(self, _out("mb_pool_default", self.handle), owned=False)

    def empty_cache(self):
        """Gives free frames back to the driver."""
        self.sync()
        self.default_pool.trim(0)

    def set_limit(self, size):
        """Bytes that the default pool may hold; 0: no limit."""
        self.default_pool.set("limit", size)

    # streams
    def stream(self):
        return _out("mb_stream_create", self.handle)

    def destroy_stream(self, stream):
        _lib.call("mb_stream_destroy", self.handle, stream)

    def sync(self, stream=False):
        """Waits for one stream, or without an argument for the device."""
        if stream is False:
            _lib.call("mb_device_sync", self.handle)
        else:
            _lib.call("mb_stream_sync", self.handle, stream)

    @contextlib.contextmanager
    def event(self):
        event = _out("mb_event_create", self.handle)
        try:
            yield event
        finally:
            _lib.call("mb_event_destroy", self.handle, event)

    def wait(self, waiting, other):
        """Later work of `waiting` comes after what `other` has now."""
        with self.event() as event:
            _lib.call("mb_event_record", self.handle, event, other)
            _lib.call("mb_stream_wait_event", self.handle, waiting, event)

    # addresses, frames, mappings
    def reserve(self, size, align=0):
        return _out("mb_mem_reserve", self.handle, size, align)

    def unreserve(self, address, size):
        _lib.call("mb_mem_unreserve", self.handle, address, size)

    def create(self, size):
        return _out("mb_mem_create", self.handle, size)

    def release(self, memory):
        _lib.call("mb_mem_release", self.handle, memory)

    def map(self, operations, stream=None):
        """Operations are dicts with the fields of struct mb_map_op; all or nothing, in stream order."""
        array = (_lib.MapOp * len(operations))(*(_lib.MapOp(**operation) for operation in operations))
        _lib.call("mb_mem_map_async", self.handle, array, len(operations), stream)

    def sleep(self, address, size, stream=None):
        _lib.call("mb_mem_sleep", self.handle, address, size, stream)

    def wake(self, address, size, stream=None):
        _lib.call("mb_mem_wake", self.handle, address, size, stream)

    def pointer_info(self, pointer):
        info = _lib.PointerInfo()
        _lib.call("mb_pointer_info", self.handle, pointer, ctypes.byref(info))
        return _lib.as_dict(info)

    # contents
    def fill(self, address, size, seed, stream=None):
        _lib.call("mb_fill_async", self.handle, address, size, seed, stream)

    def verify(self, address, size, seed, stream=None):
        """Words that differ are added to stats()["wrong_words"]."""
        _lib.call("mb_verify_async", self.handle, address, size, seed, stream)

    def copy(self, target, source, size, stream=None):
        _lib.call("mb_copy_async", self.handle, target, source, size, stream)

    def copy_list(self, copies, stream=None):
        """(target, source, size) of each; all at once, so no target may overlap another copy."""
        array = _lib.copies(copies)
        _lib.call("mb_copy_list_async", self.handle, array, len(copies), stream)

    # statistics
    def stats(self):
        """struct mb_stats as a dict."""
        stats = _lib.Stats()
        _lib.call("mb_stats_get", self.handle, ctypes.byref(stats))
        return _lib.as_dict(stats)

    def memory_stats(self):
        """The same by the names of torch.cuda.memory_stats(); doc/statistics.md lists them."""
        needed, room = ctypes.c_size_t(), None
        _lib.call("mb_stats_text", self.handle, 1, None, 0, ctypes.byref(needed))
        while room is None or needed.value > len(room):  # figures may grow between the calls
            room = ctypes.create_string_buffer(needed.value + 64)
            _lib.call("mb_stats_text", self.handle, 1, room, len(room), ctypes.byref(needed))
        return json.loads(room.value)

    def reset_peaks(self):
        _lib.call("mb_stats_reset_peaks", self.handle)

    def snapshot(self, path):
        """Writes a file that PyTorch's visualiser and `moonbright replay` open."""
        _lib.call("mb_snapshot", self.handle, os.fsencode(path))

    def memory_map(self):
        """Segments with their blocks, as in a snapshot: address, total_size, blocks of address, size, state."""
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "snapshot.pickle")
            self.snapshot(path)
            return read_snapshot(path)["segments"]

    def memory_summary(self):
        """A table for people."""
        stats, rows = self.stats(), []
        for title, key in (("requested", "requested"), ("allocated", "allocated"), ("frames in use", "frames_used"),
                           ("held from the driver", "reserved")):
            rows.append(f"  {title:<22}{stats[key + '_bytes']:>18,}{stats[key + '_peak_bytes']:>18,}")
        held = stats["reserved_peak_bytes"] or 1
        return "\n".join([f"MoonBright {version()}, device {self.ordinal}: {self.name}, {self.backend}, page tables: "
                          f"{self.tables}", f"  {'bytes':<22}{'now':>18}{'peak':>18}", *rows,
                          f"  peak requested / peak held: {100 * stats['requested_peak_bytes'] / held:.2f}%",
                          f"  {stats['live_blocks']:,} blocks live, {stats['malloc_calls']:,} made, "
                          f"{stats['stitched_blocks']:,} of them stitched now, {stats['failed_requests']:,} failed"])

    def check(self):
        """Every invariant of the library."""
        _lib.call("mb_check", self.handle)
