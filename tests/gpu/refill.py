#!/usr/bin/env python3
"""What an invalidate on the stream costs the kernels behind it, which find no translation in the GPU's caches.

    refill.py LIBMOONBRIGHT.SO [CONFIG] [--gib N] [--rounds N] [--commit TEXT]

A recorded pass over N GiB of PyTorch's weights, one matrix times a vector after the other, as a decoder's step of one
sequence reads them, is timed by CUDA events behind nothing, behind a small kernel, behind the mapping of a page beside
mapped ones, which invalidates (doc/coherence.md, "Groups"), of one apart from all, which does not, and behind the
remapping of a page, which does; in turns, medians. Before each the GPU is idle. Prints one JSON object, with how many
invalidates there were. Times are no verdict; exit status 1 is an invalidate where none belongs, 77 no PyTorch or no GPU.
"""
import argparse
import json
import sys

from calls import MAP, PAGE, READ_WRITE, UNMAP, Device, Library, MapOp, pointer, u64

try:
    import torch
except ImportError:
    print("SKIP: refill: PyTorch is not installed")
    sys.exit(77)

SIDE = 8192  # of a matrix: 128 MiB in bfloat16
APART = 32  # pages from one to the next that no group of entries has to do with
INVALIDATES = 21  # of struct mb_stats


def recorded_pass(gib):
    weights = [torch.randn(SIDE, SIDE, dtype=torch.bfloat16, device="cuda") for _ in range(gib * 8)]
    x = torch.randn(SIDE, dtype=torch.bfloat16, device="cuda")
    out = torch.empty(SIDE, dtype=torch.bfloat16, device="cuda")
    for _ in range(2):
        torch.mv(weights[0], x, out=out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for weight in weights:
            torch.mv(weight, x, out=out)
    return graph, weights


class Pages:
    """One page that is remapped between two frames, and addresses that are mapped once each: a row of them, and apart."""

    def __init__(self, device, rounds):
        self.device = device
        self.mem = device.out("mb_mem_create", u64(2 * PAGE))
        self.va = device.out("mb_mem_reserve", u64((rounds + 1) * (APART + 1) * PAGE), u64(0))
        self.turn, self.next, self.far = 0, self.va + PAGE, self.va + (rounds + 1) * PAGE + APART * PAGE
        self.submit([(MAP, self.va, 0)])

    def submit(self, ops):
        stream = torch.cuda.current_stream().cuda_stream
        array = (MapOp * len(ops))(*(MapOp(kind, READ_WRITE, va, PAGE, self.mem if kind == MAP else None, offset, None)
                                     for kind, va, offset in ops))
        self.device.call("mb_mem_map_async", array, len(ops), pointer(stream))

    def beside(self):
        self.submit([(MAP, self.next, 0)])
        self.next += PAGE

    def apart(self):
        self.submit([(MAP, self.far, 0)])
        self.far += APART * PAGE

    def remap(self):
        self.turn = PAGE - self.turn
        self.submit([(UNMAP, self.va, 0), (MAP, self.va, self.turn)])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library")
    parser.add_argument("config", nargs="?", default="backend:cuda,tables:inline")
    parser.add_argument("--gib", type=int, default=15)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--commit", default="unknown")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("SKIP: refill: PyTorch sees no GPU")
        sys.exit(77)
    torch.cuda.init()
    torch.manual_seed(1)
    device = Device(Library(options.library), 0, options.config)
    pages = Pages(device, options.rounds + 4)
    graph, weights = recorded_pass(options.gib)
    small = torch.zeros(64, device="cuda")
    ways = {"nothing": lambda: None, "kernel": lambda: small.add_(1), "beside": pages.beside, "apart": pages.apart,
            "remap": pages.remap}
    times, invalidates = {name: [] for name in ways}, dict.fromkeys(ways, 0)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for i in range(options.rounds + 4):
        for name, before in ways.items():
            torch.cuda.synchronize()
            count = device.stats()[INVALIDATES]
            before()
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            invalidates[name] += device.stats()[INVALIDATES] - count
            if i >= 4:
                times[name].append(1e3 * begin.elapsed_time(end))
    middle = {f"{name}_us": round(sorted(values)[len(values) // 2], 2) for name, values in times.items()}
    print(json.dumps({"what": "refill", "commit": options.commit, "gpu": torch.cuda.get_device_name(),
                      "tables": device.name().split(", ")[-1], "torch": torch.__version__, "gib": options.gib,
                      "rounds": options.rounds, **middle, "invalidates": invalidates}))
    torch.cuda.synchronize()
    del graph, weights
    device.close()
    wrong = [name for name in ("nothing", "kernel", "apart") if invalidates[name]]
    if wrong:
        print(f"FAIL: refill: {', '.join(wrong)}: an invalidate, and none is needed there")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
