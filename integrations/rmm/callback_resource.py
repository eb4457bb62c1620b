# SPDX-License-Identifier: MIT
"""RMM in Python (cuDF, cuML, cuGraph, CuPy through RMM) on MoonBright, without compiling anything.

    import callback_resource
    callback_resource.enable()          # before the first allocation

MoonBright serves the current device; MOONBRIGHT configures it. Not run on a GPU.
"""
import atexit
import ctypes
import ctypes.util

import rmm


class PointerInfo(ctypes.Structure):
    """struct mb_pointer_info."""
    _fields_ = [("base", ctypes.c_void_p), ("bytes", ctypes.c_uint64), ("generation", ctypes.c_uint64),
                ("driver_visible", ctypes.c_bool), ("stitched", ctypes.c_bool), ("aliases_high", ctypes.c_uint)]


class Device:
    """One open device of libmoonbright, and what RMM's callbacks do with it."""

    def __init__(self, ordinal=0, config=None, library=None):
        self.c = ctypes.CDLL(library or ctypes.util.find_library("moonbright") or "libmoonbright.so")
        for name in ("mb_error_detail", "mb_version", "mb_device_tables"):
            getattr(self.c, name).restype = ctypes.c_char_p
        handle = ctypes.c_void_p()
        self._check(self.c.mb_open(ordinal, config.encode() if config else None, ctypes.byref(handle)))
        self.handle = handle
        self.driver_tables = self.c.mb_device_tables(handle) == b"driver"

    def _check(self, err):
        if err:
            raise MemoryError(f"MoonBright: {self.c.mb_error_detail().decode()}")

    @staticmethod
    def _stream(stream):
        # An rmm Stream; None in old versions means the default one.
        return ctypes.c_void_p(stream.__cuda_stream__()[1] if hasattr(stream, "__cuda_stream__") else 0)

    def allocate(self, size, stream=None):
        out = ctypes.c_void_p()
        self._check(self.c.mb_malloc_async(self.handle, ctypes.c_size_t(size), self._stream(stream), ctypes.byref(out)))
        if self.driver_tables:
            try:
                self._settle(out, stream)
            except MemoryError:  # the caller gets no block, so nobody else would give it back
                self.c.mb_free_async(self.handle, out, self._stream(stream))
                raise
        return out.value

    def _settle(self, block, stream):
        """CUDA's own copies know a composed block only once it is mapped, which happens in stream order."""
        info = PointerInfo()
        self._check(self.c.mb_pointer_info(self.handle, block, ctypes.byref(info)))
        if info.stitched:
            self._check(self.c.mb_stream_sync(self.handle, self._stream(stream)))

    def deallocate(self, ptr, _size, stream=None):
        self._check(self.c.mb_free_async(self.handle, ctypes.c_void_p(ptr), self._stream(stream)))
        # RMM's streams are destroyed without a word to their resource.
        self._check(self.c.mb_stream_seal(self.handle, self._stream(stream)))

    def close(self):
        self.c.mb_close(self.handle)


def enable(ordinal=0, config=None, library=None):
    """Makes MoonBright RMM's resource of the current device, and returns the device."""
    device = Device(ordinal, config, library)
    resource = rmm.mr.CallbackMemoryResource(device.allocate, device.deallocate)
    rmm.mr.set_current_device_resource(resource)
    atexit.register(device.c.mb_device_sync, device.handle)
    return device
