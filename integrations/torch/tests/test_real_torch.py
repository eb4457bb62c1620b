#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The real PyTorch (a CUDA build) with the plug-in, on a machine without a GPU: MoonBright serves from the software GPU.

What PyTorch calls without a device is called: the setters, emptyCache, setMemoryFraction, pools, exceptions. Each case
is a process of its own, since PyTorch takes an allocator once. MB_TORCH_PYTHON names the interpreter that has PyTorch.
"""
import os
import pathlib
import subprocess
import sys
import unittest

PACKAGE = pathlib.Path(__file__).resolve().parent.parent
BUILD = pathlib.Path(os.environ.get("MB_BUILD_DIR", ""))
PYTHON = os.environ.get("MB_TORCH_PYTHON", sys.executable)
STUDY = PACKAGE / "study"
PROLOGUE = """
import ctypes, os, sys
import moonbright, torch
from moonbright import _lib
def enable(**more):
    assert moonbright.enable(_allow_sim=True, **more)
def refused(words, call, kind=moonbright.MoonbrightError):
    try:
        call()
    except kind as error:
        assert words in str(error), str(error)
        return
    raise AssertionError(f"not refused: {words}")
def malloc(size, device=0):
    plugin = _lib.plugin()
    plugin.mb_torch_malloc.restype = ctypes.c_void_p
    plugin.mb_torch_malloc.argtypes = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
    return plugin.mb_torch_malloc(size, device, None)
def free(pointer, size, device=0):
    plugin = _lib.plugin()
    plugin.mb_torch_free.restype = None
    plugin.mb_torch_free.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
    plugin.mb_torch_free(pointer, size, device, None)
"""


def skip(why):
    print(f"SKIP: test_torch_real: {why}")
    sys.exit(77)


if os.environ.get("MB_SANITIZE"):
    skip("a plain python3 cannot load libraries with sanitizers")
probe = subprocess.run([PYTHON, "-c", "import torch; print(torch.version.cuda)"], capture_output=True, text=True)
if probe.returncode:
    skip(f"{PYTHON} has no PyTorch; MB_TORCH_PYTHON names one that has")
if probe.stdout.strip() == "None":
    skip("this PyTorch is built without CUDA")


class RealTorch(unittest.TestCase):
    def run_case(self, code, **environment):
        env = {**os.environ, "PYTHONPATH": f"{PACKAGE}:{STUDY}", "MOONBRIGHT": "backend:sim,device_memory:512m",
               "MOONBRIGHT_LIBRARY_PATH": str(BUILD / "lib"), "THROWING": str(BUILD / "tests" / "libthrowing.so"),
               **environment}
        done = subprocess.run([PYTHON, "-c", PROLOGUE + code], capture_output=True, text=True, env=env)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def test_pytorch_takes_the_plug_in(self):
        self.run_case("""
enable()
assert torch.cuda.memory.get_allocator_backend() == "pluggable"
assert moonbright.enabled() and moonbright.enable()
refused("cannot be changed", lambda: moonbright.enable("growth:fast"))
refused("cannot be changed", lambda: moonbright.enable({"growth": "fast"}))
own = torch.cuda.memory.memory_stats
assert moonbright.enable(patch=True) and torch.cuda.memory.memory_stats is not own
moonbright.unpatch()
assert torch.cuda.memory.memory_stats is own
""")

    def test_wrong_configurations_change_nothing(self):
        self.run_case("""
for wrong in ("no_such_key:1", {"no_such_key": 1}, "seed:many", "backend:none"):
    refused("", lambda: moonbright.enable(wrong, _allow_sim=True))
for wrong in (5, ["seed:1"], b"seed:1"):
    refused("a configuration is", lambda: moonbright.enable(wrong, _allow_sim=True))
assert not moonbright.enabled() and torch.cuda.memory.get_allocator_backend() == "native"
before = os.environ["MOONBRIGHT"]
os.environ["MOONBRIGHT"] = "no_such_key:1"
refused("no_such_key", enable)
os.environ["MOONBRIGHT"] = before
# The argument wins over the variable: this asks for CUDA, which is not here, and not for the software GPU.
refused("cannot serve CUDA here", lambda: moonbright.enable("backend:cuda"))
enable(config={"device_memory": "256m"})
assert os.environ["MOONBRIGHT"] == "backend:sim,device_memory:256m", os.environ["MOONBRIGHT"]
""")

    def test_pytorch_calls_what_it_was_given(self):
        self.run_case("""
enable()
free(malloc(100 << 20), 100 << 20)
assert moonbright.memory_stats(0)["reserved_bytes.all.current"] >= 100 << 20
torch._C._cuda_emptyCache()
assert moonbright.memory_stats(0)["reserved_bytes.all.current"] < 64 << 20
torch._C._cuda_setMemoryFraction(0.25, 0)
assert 0 <= moonbright.device(0).default_pool.get("limit") - (128 << 20) <= 1
""")

    def test_pools_of_the_real_types(self):
        """std::pair and std::function as PyTorch passes them."""
        self.run_case("""
import threading
enable()
torch._C._cuda_beginAllocateToPool(0, (3, 0))
inside = malloc(4 << 20)
counts = moonbright.counts()
assert (counts["pools"], counts["pool_mallocs"]) == (1, 1), counts
torch._C._cuda_endAllocateToPool(0, (3, 0))
outside = malloc(4 << 20)
assert moonbright.counts()["pool_mallocs"] == 1
free(inside, 4 << 20); free(outside, 4 << 20)
torch._C._cuda_releasePool(0, (3, 0))
moonbright.empty_cache()
counts = moonbright.counts()
assert (counts["pools"], counts["pools_retired"]) == (0, 0), counts

torch._C._cuda_beginAllocateCurrentThreadToPool(0, (0, 8))
mine = malloc(2 << 20)
other = []
thread = threading.Thread(target=lambda: other.append(malloc(2 << 20)))
thread.start(); thread.join()
assert moonbright.counts()["pool_mallocs"] == 2, moonbright.counts()
torch._C._cuda_endAllocateToPool(0, (0, 8))
torch._C._cuda_releasePool(0, (0, 8))
free(mine, 2 << 20); free(other[0], 2 << 20)
moonbright.empty_cache()
assert moonbright.counts()["pools_retired"] == 0
moonbright.device(0).check()
""")

    def test_shortage_is_torch_out_of_memory_error(self):
        self.run_case("""
enable()
throwing = ctypes.CDLL(os.environ["THROWING"])
inner = moonbright.allocator().allocator()
inner.set_reset_fn(ctypes.cast(throwing.throwing_shortage, ctypes.c_void_p).value)
for round in range(3):
    refused("CUDA out of memory. Tried to allocate", torch._C._cuda_emptyCache, torch.OutOfMemoryError)
try:
    torch._C._cuda_emptyCache()
except torch.cuda.OutOfMemoryError as error:
    assert "MB_ERR_NO_MEMORY" in str(error)
inner.set_reset_fn(ctypes.cast(throwing.throwing_other, ctypes.c_void_p).value)
try:
    torch._C._cuda_emptyCache()
    raise AssertionError("no error")
except RuntimeError as error:
    assert type(error) is RuntimeError and "allowed are 0 to" in str(error), error
""")

    def test_figures_where_programs_look(self):
        self.run_case("""
enable(patch=True)
pointer = malloc(10 << 20)
assert torch.cuda.memory_allocated(0) == 10 << 20
assert torch.cuda.max_memory_reserved(0) >= 10 << 20
assert torch.cuda.memory.memory_stats(0)["active_bytes.all.peak"] == 10 << 20
assert torch.cuda.memory_stats_as_nested_dict(0)["allocated_bytes"]["all"]["current"] == 10 << 20
assert "MoonBright" in torch.cuda.memory_summary(0)
torch.cuda.memory._dump_snapshot("/dev/shm/moonbright-test-%d" % os.getpid())
os.unlink("/dev/shm/moonbright-test-%d" % os.getpid())
assert torch.cuda.memory._snapshot(0)["segments"]
free(pointer, 10 << 20)
torch.cuda.reset_peak_memory_stats(0)
assert torch.cuda.max_memory_allocated(0) == 0
refused("history:N", lambda: torch.cuda.memory._record_memory_history())
import torch._inductor.config as inductor
assert inductor.triton.cudagraph_trees is False
moonbright.unpatch()
assert inductor.triton.cudagraph_trees is True
assert torch.cuda.memory_stats.__module__ == "torch.cuda.memory"
""")

    def test_refusals_come_before_anything_is_changed(self):
        self.run_case("""
from unittest import mock
with mock.patch.object(torch.cuda, "is_initialized", lambda: True):
    refused("has used the GPU already", lambda: enable())
with mock.patch.object(torch.cuda, "_is_in_bad_fork", lambda: True):
    refused("spawn", lambda: enable())
with mock.patch.object(torch.version, "cuda", None):
    refused("without CUDA", lambda: enable())
with mock.patch.object(torch.version, "hip", "6.0"):
    refused("ROCm", lambda: enable())
with mock.patch.dict(os.environ, PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync"):
    refused("another allocator", lambda: enable())
refused("unknown key", lambda: enable(config="no_such:1"))
refused("software GPU", lambda: moonbright.enable())
del os.environ["MOONBRIGHT"]
refused("cannot serve CUDA here", lambda: moonbright.enable())
assert torch.cuda.memory.get_allocator_backend() == "native" and not moonbright.enabled()
""")

    def test_figures_are_of_the_device_that_was_meant(self):
        """Two devices, and only the second one is used: no figure is of the first, and nothing opens that."""
        self.run_case("""
from unittest import mock
import ranks
enable()
pointer = malloc(4 << 20, 1)
assert ranks.held(torch.device("cuda", 1)).startswith("simulated: 4,194,304 of "), ranks.held(torch.device("cuda", 1))
with mock.patch.object(torch.cuda, "is_initialized", lambda: True), \\
        mock.patch.object(torch.cuda, "current_device", lambda: 1):
    for device in (None, 1, "cuda", "cuda:1", torch.device("cuda"), torch.device("cuda", 1)):
        assert moonbright.memory_stats(device)["allocated_bytes.all.current"] == 4 << 20, device
        assert moonbright.device(device).ordinal == 1
    assert sum(block["size"] for segment in moonbright.memory_map() for block in segment["blocks"]
               if block["state"] == "active_allocated") == 4 << 20
    moonbright.set_memory_cap(8 << 20)
    assert moonbright.device(1).default_pool.get("limit") == 8 << 20
    free(pointer, 4 << 20, 1)
    moonbright.reset_peaks()
    assert moonbright.memory_stats(1)["allocated_bytes.all.peak"] == 0
unused = ctypes.c_void_p()
refused("MB_ERR_NOT_FOUND", lambda: _lib.call_plugin("mb_torch_device_if_open", 0, ctypes.byref(unused)))
""")

    def test_settings_of_the_other_allocator_are_told(self):
        output = self.run_case("enable()", PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")
        self.assertIn("have no effect on MoonBright", output)

    def test_without_a_gpu_pytorchs_own_error_stands(self):
        self.run_case("""
enable()
try:
    torch.zeros(1, device="cuda")
    raise AssertionError("there is a GPU here")
except (RuntimeError, AssertionError) as error:
    assert "NVIDIA" in str(error) or "CUDA" in str(error), error
assert float(torch.zeros(3).sum()) == 0
""")

    def test_sleep_keeps_what_it_is_told_to(self):
        """Tensors on the host stand in for the device's: the copies and their order are the package's own."""
        self.run_case("""
enable()
with moonbright.sleepable("w"):
    pointer = malloc(8 << 20)
weights = torch.arange(8.0)
assert moonbright.sleep("w", keep=[weights]) == 8 << 20
weights.zero_()
assert moonbright.wake("w") == 8 << 20
assert float(weights.sum()) == 28
free(pointer, 8 << 20)
""")


if __name__ == "__main__":
    unittest.main(verbosity=1)
