#!/usr/bin/env python3
"""PyTorch tensors on MoonBright's memory: homes, windows, a remap below a live tensor, copies, matmul, graphs.

    torch_memory.py LIBMOONBRIGHT.SO [early|late] [inline|isolated|driver]

early: MoonBright is opened before PyTorch's first CUDA call; late: after it. Exit status 77: no PyTorch here.
"""
import ctypes
import sys

try:
    import torch
except ImportError:
    print("SKIP: torch_memory: PyTorch is not installed")
    sys.exit(77)

FRAME = 2 << 20
MAP, ALIAS, UNMAP, PROTECT = range(4)
READ_WRITE = 3


class MapOp(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int), ("prot", ctypes.c_int), ("va", ctypes.c_void_p), ("bytes", ctypes.c_uint64),
                ("mem", ctypes.c_void_p), ("mem_offset", ctypes.c_uint64), ("src", ctypes.c_void_p)]


class Moonbright:
    """The public calls that the test needs; a failure raises with the library's own text."""

    def __init__(self, path, config):
        self.lib = ctypes.CDLL(path)
        self.lib.mb_error_detail.restype = ctypes.c_char_p
        self.lib.mb_device_tables.restype = ctypes.c_char_p
        self.dev = ctypes.c_void_p()
        self.call("mb_open", 0, config.encode(), ctypes.byref(self.dev))

    def call(self, name, *arguments):
        err = getattr(self.lib, name)(*arguments)
        if err:
            raise RuntimeError(f"{name}: error {err}: {self.lib.mb_error_detail().decode()}")

    def tables(self):
        return self.lib.mb_device_tables(self.dev).decode()

    def malloc(self, size):
        out = ctypes.c_void_p()
        self.call("mb_malloc", self.dev, ctypes.c_size_t(size), ctypes.byref(out))
        return out.value

    def free(self, pointer):
        self.call("mb_free", self.dev, ctypes.c_void_p(pointer))

    def reserve(self, size):
        out = ctypes.c_void_p()
        self.call("mb_mem_reserve", self.dev, ctypes.c_uint64(size), ctypes.c_uint64(0), ctypes.byref(out))
        return out.value

    def create(self, size):
        out = ctypes.c_void_p()
        self.call("mb_mem_create", self.dev, ctypes.c_uint64(size), ctypes.byref(out))
        return out.value

    def map_async(self, operations):
        array = (MapOp * len(operations))(*operations)
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        self.call("mb_mem_map_async", self.dev, array, len(operations), stream)


class View:
    """Device memory as an array that PyTorch takes without a copy."""

    def __init__(self, pointer, count):
        self.__cuda_array_interface__ = {"shape": (count,), "typestr": "<f4", "data": (pointer, False), "version": 3}


def tensor(pointer, size):
    return torch.as_tensor(View(pointer, size // 4), device="cuda")


def check(name, ok):
    print(("ok   " if ok else "FAIL ") + name, flush=True)
    if not ok:
        sys.exit(1)


def everyday(name, t):
    """What programs do with a tensor."""
    ref = torch.arange(t.numel(), device="cuda", dtype=torch.float32) % 8191
    t.copy_(ref)
    check(f"{name}: copy_, equal", torch.equal(t, ref))
    check(f"{name}: .cpu()", torch.equal(t.cpu(), ref.cpu()))
    t.copy_(ref.cpu())
    check(f"{name}: copy from the host", torch.equal(t, ref))
    pinned = torch.empty(t.numel(), pin_memory=True)
    pinned.copy_(t, non_blocking=True)
    torch.cuda.synchronize()
    check(f"{name}: pinned copy", torch.equal(pinned, ref.cpu()))
    m, r = t[: 2048 * 2048].view(2048, 2048) / 8191, ref[: 2048 * 2048].view(2048, 2048) / 8191
    check(f"{name}: matmul", torch.allclose(m @ m.T, r @ r.T))
    check(f"{name}: clone", torch.equal(t.clone(), ref))
    check(f"{name}: zero_", float(t[:4096].zero_().abs().sum()) == 0)
    graph = torch.cuda.CUDAGraph()
    t.fill_(1.0)
    with torch.cuda.graph(graph):
        t.add_(1.0)
    for _ in range(5):
        graph.replay()
    check(f"{name}: graph of add_", bool((t == 6.0).all()))


def main():
    when, mode = (sys.argv + ["early", "inline"])[2:4] if len(sys.argv) > 3 else ("early", "inline")
    if when == "late":
        torch.zeros(1, device="cuda")
    mb = Moonbright(sys.argv[1], f"backend:cuda,tables:{mode}")
    print("tables", mb.tables(), when)
    size = 16 * FRAME
    home = mb.malloc(size)
    everyday("home", tensor(home, size))
    mb.free(home)

    window, mem = mb.reserve(size), mb.create(size)
    mb.map_async([MapOp(MAP, READ_WRITE, window + i * FRAME, FRAME, mem, (15 - i) * FRAME, None) for i in range(16)])
    torch.cuda.synchronize()  # driver tables make the addresses known to CUDA only when the map is done
    t = tensor(window, size)
    if mode != "driver":
        everyday("window of scattered frames", t)
    ref = torch.arange(t.numel(), device="cuda", dtype=torch.float32)
    t.copy_(ref)
    # The same frames in reverse order below the live tensor, in stream order, without waiting.
    mb.map_async([MapOp(UNMAP, 0, window, size, None, 0, None)] +
                 [MapOp(MAP, READ_WRITE, window + i * FRAME, FRAME, mem, i * FRAME, None) for i in range(16)])
    if mode == "driver":
        torch.cuda.synchronize()  # CUDA's copies look at the addresses when they are called
    got = t.clone()
    torch.cuda.synchronize()
    check("remap below a live tensor", torch.equal(got, ref.view(16, -1).flip(0).reshape(-1)))
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        check("the same on another stream", torch.equal(t.clone(), got))
    del t, got
    mb.map_async([MapOp(UNMAP, 0, window, size, None, 0, None)])
    torch.cuda.synchronize()
    mb.call("mb_check", mb.dev)
    mb.call("mb_mem_release", mb.dev, ctypes.c_void_p(mem))
    mb.call("mb_mem_unreserve", mb.dev, ctypes.c_void_p(window), ctypes.c_uint64(size))
    mb.lib.mb_close(mb.dev)
    check("PyTorch goes on after close", float(torch.ones(8, device="cuda").sum()) == 8)
    print(f"PASS: torch {when} {mode}")


main()
