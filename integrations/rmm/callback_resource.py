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


class Device:
    """One open device of libmoonbright, and what RMM's callbacks do with it."""

    def __init__(self, ordinal=0, config=None, library=None):
        self.c = ctypes.CDLL(library or ctypes.util.find_library("moonbright") or "libmoonbright.so")
        for name in ("mb_error_detail", "mb_version"):
            getattr(self.c, name).restype = ctypes.c_char_p
        handle = ctypes.c_void_p()
        self._check(self.c.mb_open(ordinal, config.encode() if config else None, ctypes.byref(handle)))
        self.handle = handle

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
        try:
            self._check(self.c.mb_wait_mapped(self.handle, out))  # CUDA's own copies may come at once
        except MemoryError:  # the caller gets no block, so nobody else would give it back
            self.c.mb_free_async(self.handle, out, self._stream(stream))
            raise
        return out.value

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
