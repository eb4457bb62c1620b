#!/usr/bin/env python3
"""NCCL all-reduce on MoonBright's memory, two processes with a GPU each.

    nccl.py LIBMOONBRIGHT.SO [MEBIBYTES]

Tensors lie in blocks of mb_malloc() at home addresses, and, where the driver writes the tables, in stitched ones too.
Compared with the same all-reduce on PyTorch's own memory: result and time. Exit status 77: no PyTorch, or one GPU.
NVLink multicast stays off (NCCL_NVLS_ENABLE=0).
"""
import os
import pathlib
import sys
import time

os.environ["NCCL_NVLS_ENABLE"] = "0"
try:
    import torch
    import torch.distributed as dist
    import torch.multiprocessing as processes
except ImportError:
    print("SKIP: nccl: PyTorch is not installed")
    sys.exit(77)

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "integrations/torch/study"))

from calls import MIB, Device, Library  # noqa: E402
from ports import free_port, meet  # noqa: E402


class View:
    def __init__(self, pointer, count):
        self.__cuda_array_interface__ = {"shape": (count,), "typestr": "<f4", "data": (pointer, False), "version": 3}


def reduce_time(tensor, rank, rounds=20):
    """Microseconds of one all-reduce; the values are checked."""
    tensor.fill_(rank + 1.0)
    dist.all_reduce(tensor)
    if not bool((tensor == 3.0).all()):
        raise RuntimeError("all-reduce: a wrong sum")
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(rounds):
        dist.all_reduce(tensor)
    torch.cuda.synchronize()
    return (time.perf_counter() - begun) / rounds * 1e6


def work(rank, path, size, port):
    # MoonBright comes first, so that it sees what libcuda asks of the kernel driver.
    tables = os.environ.get("MB_NCCL_TABLES", "inline")
    dev = Device(Library(path), rank, f"backend:cuda,tables:{tables},force:yes")
    torch.cuda.set_device(rank)
    meet(port)
    dist.init_process_group("nccl", rank=rank, world_size=2)
    count = size // 4
    block = dev.malloc(size)
    ours = torch.as_tensor(View(block, count), device=f"cuda:{rank}")
    theirs = torch.empty(count, dtype=torch.float32, device=f"cuda:{rank}")
    result = {"default": reduce_time(theirs, rank), "moonbright": reduce_time(ours, rank)}
    if rank == 0:
        print(f"{dev.name()}: all-reduce of {size // MIB} MiB: {result['moonbright']:.0f} us on MoonBright's memory, "
              f"{result['default']:.0f} us on PyTorch's (measured), ratio "
              f"{result['moonbright'] / result['default']:.3f}", flush=True)
    dist.destroy_process_group()
    del ours
    torch.cuda.synchronize()
    dev.free(block)
    dev.close()


def main():
    path, size = sys.argv[1], int(sys.argv[2] if len(sys.argv) > 2 else 256) * MIB
    if torch.cuda.device_count() < 2:
        print(f"SKIP: nccl: {torch.cuda.device_count()} GPU(s)")
        return 77
    processes.spawn(work, args=(path, size, free_port()), nprocs=2)
    print("PASS: nccl")
    return 0


if __name__ == "__main__":
    sys.exit(main())
