# SPDX-License-Identifier: MIT
"""MoonBright, a GPU memory allocator.

    import moonbright
    moonbright.enable()          # before PyTorch touches the GPU: its device memory comes from MoonBright
    import torch

    with moonbright.Device(0) as device:     # without PyTorch
        pointer = device.malloc(64 << 20)

PyTorch is imported by the calls that need it only; doc/torch.md tells the rest.
"""
from ._lib import MoonbrightError, OutOfMemory
from ._device import Device, Pool, backends, device_count, read_snapshot, version

_TORCH = ("enable", "enabled", "disable", "patch", "unpatch", "allocator", "mem_pool", "device", "memory_stats",
          "memory_summary", "memory_map", "snapshot", "empty_cache", "reset_peaks", "set_memory_cap",
          "set_memory_fraction", "use_pool", "sleepable", "sleep", "wake", "counts")

__all__ = ["Device", "MoonbrightError", "OutOfMemory", "Pool", "backends", "device_count", "read_snapshot", "version",
           *_TORCH]
__version__ = "0.1.0"


def __getattr__(name):
    if name in _TORCH or name == "torch":
        import importlib
        module = importlib.import_module(".torch", __name__)
        return module if name == "torch" else getattr(module, name)
    raise AttributeError(f"module 'moonbright' has no attribute {name!r}")
