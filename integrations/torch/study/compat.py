#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Which libraries work on MoonBright's memory: each is tried, in a process of its own.

    compat.py [--tables inline|isolated|driver] [--json FILE] [--list] [NAME...]

Prints one line for each: works, fails (with the error), or skipped (with what is missing), and exits with 1 if one
fails. A case computes with the library on tensors of MoonBright's and compares with a result from the host, or with
PyTorch's own allocator where that is the reference.
"""
import argparse
import json
import pathlib
import signal
import subprocess
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent), str(pathlib.Path(__file__).resolve().parent.parent)]

from ports import free_port, meet  # noqa: E402

LIMIT_S = 120
CASES = {}


class Missing(Exception):
    pass


def case(function):
    CASES[function.__name__] = function
    return function


def _enable(tables):
    import moonbright
    moonbright.enable(f"tables:{tables}" if tables else None, patch=True)
    import torch
    if not torch.cuda.is_available():
        raise Missing("PyTorch finds no GPU")
    torch.manual_seed(0)
    return torch


def _module(name):
    import importlib
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Missing(str(error)) from None


def _close(torch, got, want, tolerance=1e-2):
    got, want = got.float().cpu(), want.float().cpu()
    if not torch.allclose(got, want, rtol=tolerance, atol=tolerance):
        raise AssertionError(f"differs by up to {float((got - want).abs().max())}")


@case
def cublas(torch):
    """Matrix products, with its workspaces from the allocator."""
    for size in (64, 1000, 4096):
        a, b = torch.randn(size, size), torch.randn(size, size)
        _close(torch, a.cuda() @ b.cuda(), a @ b, 0.1)


@case
def cudnn(torch):
    """Convolutions of changing shapes, forward and backward."""
    layer = torch.nn.Conv2d(8, 16, 3, padding=1)
    on_gpu = torch.nn.Conv2d(8, 16, 3, padding=1).cuda()
    on_gpu.load_state_dict(layer.state_dict())
    for pixels in (17, 64, 129):
        x = torch.randn(4, 8, pixels, pixels)
        layer.zero_grad()
        on_gpu.zero_grad()
        layer(x).square().mean().backward()
        on_gpu(x.cuda()).square().mean().backward()
        _close(torch, on_gpu.weight.grad, layer.weight.grad)


@case
def cufft_cusolver(torch):
    x = torch.randn(257, 257)
    _close(torch, torch.fft.fft2(x.cuda()).abs(), torch.fft.fft2(x).abs(), 0.1)
    m = x @ x.T + 300 * torch.eye(257)
    _close(torch, torch.linalg.solve(m.cuda(), x.cuda()), torch.linalg.solve(m, x))


@case
def nccl(torch):
    """One rank: the library registers and copies what the allocator gave."""
    import torch.distributed as dist
    meet(free_port())
    dist.init_process_group("nccl", rank=0, world_size=1)
    x = torch.arange(1 << 20, device="cuda", dtype=torch.float32)
    want = x.clone()
    dist.all_reduce(x)
    out = torch.empty_like(x)
    dist.all_gather_into_tensor(out, x)
    torch.cuda.synchronize()
    _close(torch, out, want)
    dist.destroy_process_group()


@case
def triton(torch):
    _module("triton")
    compiled = torch.compile(lambda x, y: torch.nn.functional.gelu(x) * y + x.sum(-1, keepdim=True))
    x, y = torch.randn(333, 777), torch.randn(333, 777)
    _close(torch, compiled(x.cuda(), y.cuda()), torch.nn.functional.gelu(x) * y + x.sum(-1, keepdim=True))


@case
def torch_compile_training(torch):
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1)).cuda()
    compiled, optimizer = torch.compile(model), torch.optim.AdamW(model.parameters(), 1e-2)
    x = torch.randn(512, 64, device="cuda")
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = (compiled(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    if losses[-1] >= losses[0]:
        raise AssertionError(f"the loss went from {losses[0]} to {losses[-1]}")


@case
def torch_compile_graphs(torch):
    """mode="reduce-overhead": CUDA graphs without PyTorch's graph trees, which need its own allocator."""
    compiled = torch.compile(lambda x: (x * 2 + 1).relu().sum(0), mode="reduce-overhead")
    for step in range(5):
        x = torch.randn(128, 256)
        _close(torch, compiled(x.cuda()).clone(), (x * 2 + 1).relu().sum(0), 0.05)


@case
def cuda_graphs(torch):
    """A captured training step is replayed; memory freed inside the capture stays the graph's."""
    import moonbright
    x, w = torch.randn(256, 256, device="cuda"), torch.randn(256, 256, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            (x @ w).relu() @ w
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = (x @ w).relu() @ w
    for step in range(10):
        x.copy_(torch.randn(256, 256))
        noise = [torch.full((1 << 18,), float(step), device="cuda") for _ in range(20)]
        graph.replay()
        _close(torch, y, (x.cpu() @ w.cpu()).relu() @ w.cpu(), 5.0)
        del noise
    if not moonbright.counts()["pool_mallocs"]:
        raise AssertionError("the capture did not allocate from a pool of its own")
    del graph, y


@case
def record_stream(torch):
    side = torch.cuda.Stream()
    for step in range(50):
        x = torch.full((1 << 22,), float(step), device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(1000000)
            y = x + 1
        x.record_stream(side)
        del x
        z = torch.zeros(1 << 22, device="cuda")
        torch.cuda.current_stream().wait_stream(side)
        if float(y.min()) != step + 1 or float(z.max()) != 0:
            raise AssertionError(f"step {step}: memory was reused too early")


class _Numbers:
    """A data set that workers made by fork read."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        import torch
        return torch.full((1000,), float(index))


@case
def dataloader_fork(torch):
    """Workers made by fork while MoonBright is open; they use no device memory, and their exit disturbs nobody."""
    x = torch.ones(1 << 20, device="cuda")
    loader = torch.utils.data.DataLoader(_Numbers(), batch_size=8, num_workers=2, pin_memory=True,
                                         multiprocessing_context="fork")
    for epoch in range(2):
        total = sum(float(batch.to("cuda", non_blocking=True).sum()) for batch in loader)
        if total != 1000 * sum(range(64)):
            raise AssertionError(f"sum {total}")
    if float(x.sum()) != 1 << 20:
        raise AssertionError("a tensor changed")


@case
def cupy(torch):
    """CuPy's allocator hook on the same device; zero-copy exchange with PyTorch by DLPack."""
    cp = _module("cupy")
    import moonbright
    device = moonbright.device()

    def allocate(size, device_id):
        return device.malloc_async(size, cp.cuda.get_current_stream().ptr or None)

    def release(pointer, device_id):
        device.free_async(pointer, cp.cuda.get_current_stream().ptr or None)

    cp.cuda.set_allocator(cp.cuda.PythonFunctionAllocator(allocate, release).malloc)
    a = cp.arange(1 << 20, dtype=cp.float32)
    t = torch.from_dlpack(a)
    _close(torch, t * 2, torch.arange(1 << 20, dtype=torch.float32) * 2)
    del t, a


@case
def out_of_memory(torch):
    """A request beyond the device raises torch.OutOfMemoryError, and work goes on."""
    try:
        torch.empty(1 << 45, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as error:
        if "out of memory" not in str(error):
            raise AssertionError(str(error)) from None
    else:
        raise AssertionError("32 TiB were given")
    _close(torch, torch.ones(8, device="cuda").cumsum(0), torch.ones(8).cumsum(0))


@case
def sleep_and_wake(torch):
    import moonbright
    with moonbright.sleepable("weights"):
        w = torch.randn(4096, 4096, device="cuda")
    want, address = w.cpu(), w.data_ptr()
    moonbright.sleep("weights", keep=[w])
    other = torch.ones(1 << 24, device="cuda")
    moonbright.wake("weights")
    if w.data_ptr() != address:
        raise AssertionError("the address changed")
    _close(torch, w, want, 0)
    del other


@case
def second_device(torch):
    if torch.cuda.device_count() < 2:
        raise Missing("one GPU only")
    x = torch.arange(1 << 20, device="cuda:1", dtype=torch.float32)
    _close(torch, x.to("cuda:0") + 1, torch.arange(1 << 20, dtype=torch.float32) + 1)


@case
def snapshot_opens(torch):
    """PyTorch's own reader of snapshots takes ours."""
    import os
    import tempfile
    import moonbright
    from torch.cuda import _memory_viz
    x = torch.ones(1 << 20, device="cuda")
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "snapshot.pickle")
        moonbright.snapshot(path)
        data = moonbright.read_snapshot(path)
    if "html" not in _memory_viz.segment_plot(data):
        raise AssertionError("no page")
    del x


def child(name, tables):
    import moonbright
    try:
        torch = _enable(tables)
        CASES[name](torch)
        torch.cuda.synchronize()
        moonbright.device().check()
        bad = moonbright.counts()["bad_frees"]
        if bad:
            raise AssertionError(f"{bad} frees were refused")
        return {"result": "works", "why": ""}
    except Missing as error:
        return {"result": "skipped", "why": str(error)}
    except moonbright.MoonbrightError as error:
        missing = "cannot serve CUDA here" in str(error) or "PyTorch is not there" in str(error)
        return {"result": "skipped" if missing else "fails", "why": str(error)}
    except Exception as error:  # whatever a library throws is the answer
        return {"result": "fails", "why": f"{type(error).__name__}: {error}"}


def parent(name, options):
    command = [sys.executable, __file__, "--child", name] + (["--tables", options.tables] if options.tables else [])
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return {"result": "fails", "why": f"not finished after {LIMIT_S} s"}
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines or done.returncode:
        tail = (done.stdout + done.stderr).strip().splitlines()
        return {"result": "fails", "why": f"exit status {done.returncode}: {tail[-1] if tail else ''}"}
    return json.loads(lines[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--tables", choices=("inline", "isolated", "driver"))
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(child(options.child, options.tables)))
        return 0
    if options.list:
        print("\n".join(CASES))
        return 0
    results = {}
    # Whoever ends this early gets what is known by then.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        for name in options.names or CASES:
            results[name] = parent(name, options)
            print(f"{name:<24}{results[name]['result']:<9}{results[name]['why'][:300]}", flush=True)
    finally:
        if options.json:
            with options.json.open("a") as file:
                file.write(json.dumps({"what": "torch-compat", "tables": options.tables or "best", "results": results})
                           + "\n")
    counts = [sum(r["result"] == kind for r in results.values()) for kind in ("works", "fails", "skipped")]
    print(f"compat: {counts[0]} work, {counts[1]} fail, {counts[2]} skipped")
    return 77 if counts[2] == len(results) else 1 if counts[1] else 0


if __name__ == "__main__":
    sys.exit(main())
