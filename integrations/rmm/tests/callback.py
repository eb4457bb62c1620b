# SPDX-License-Identifier: MIT
"""The callbacks of callback_resource.py with driver tables, without RMM, on a stand-in for libcuda.

    callback.py LIBMOONBRIGHT.SO

The stand-in's device memory is this process's: writing to a block as soon as it is there is what a copy of CUDA's does.
"""
import ctypes
import pathlib
import sys
import types

sys.modules["rmm"] = types.ModuleType("rmm")  # imported, and used by enable() only
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import callback_resource  # noqa: E402


class PointerInfo(ctypes.Structure):
    """struct mb_pointer_info."""
    _fields_ = [("base", ctypes.c_void_p), ("bytes", ctypes.c_uint64), ("generation", ctypes.c_uint64),
                ("driver_visible", ctypes.c_bool), ("stitched", ctypes.c_bool), ("aliases_high", ctypes.c_uint)]


MIB = 1 << 20
device = callback_resource.Device(0, "backend:cuda,tables:driver", sys.argv[1])
stitched, info = 0, PointerInfo()
for turn in range(20):
    small = [device.allocate(3 * MIB) for _ in range(40)]
    for block in small[::2]:
        device.deallocate(block, 3 * MIB)
    large = device.allocate((16 + 2 * turn) * MIB)
    ctypes.memset(large, 1, 16 * MIB)
    assert not device.c.mb_pointer_info(device.handle, ctypes.c_void_p(large), ctypes.byref(info))
    assert info.base == large and info.bytes == (16 + 2 * turn) * MIB
    stitched += info.stitched
    for block in (large, *small[1::2]):
        device.deallocate(block, 0)
assert stitched, "no block was composed"

# A wait that fails leaves no block behind.
small = [device.allocate(3 * MIB) for _ in range(40)]
for block in small[::2]:
    device.deallocate(block, 3 * MIB)
wait, free, given = device.c.mb_wait_mapped, device.c.mb_free_async, []
device.c.mb_wait_mapped = lambda *_: 1
device.c.mb_free_async = lambda handle, block, stream: given.append(block.value) or free(handle, block, stream)
try:
    device.allocate(48 * MIB)
    raise SystemExit("FAILED: a block whose mapping was not waited for was handed out")
except MemoryError:
    assert len(given) == 1 and given[0], given
device.c.mb_wait_mapped, device.c.mb_free_async = wait, free
for block in small[1::2]:
    device.deallocate(block, 0)
assert not device.c.mb_device_sync(device.handle)
device.close()
print(f"ok: {stitched} stitched, by callbacks")
