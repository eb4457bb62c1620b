#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Several processes, each on a MoonBright of its own: nothing else is needed to scale out.

    torchrun --nproc-per-node 2 ranks.py [--share] [--backend gloo|nccl] [--cpu]
    ranks.py --ray 2                     the same with Ray as the engine

Data-parallel training of a small model: every rank has its own data, gradients are averaged, and after each step all
ranks hold the same weights. With one GPU, --share puts all ranks on it: page tables are then the driver's, since device
tables want a GPU for one process alone. --cpu runs without MoonBright and checks the program itself.
"""
import argparse
import os
import pathlib
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent), str(pathlib.Path(__file__).resolve().parent.parent)]

from ports import free_port, meet  # noqa: E402


def held(device):
    """What MoonBright holds on the rank's own GPU. Asking for another one's would open that: a context on a peer's GPU."""
    import moonbright
    own = moonbright.device(device)
    own.check()
    stats = own.stats()
    return f"{own.tables}: {stats['requested_peak_bytes']:,} of {stats['reserved_peak_bytes']:,} bytes"


def train(rank, world, backend, share, cpu):
    if not cpu:
        import moonbright
        moonbright.enable("tables:driver" if share else None)
    import torch
    import torch.distributed as dist
    device = torch.device("cpu") if cpu else torch.device("cuda", 0 if share else rank)
    if not cpu:
        torch.cuda.set_device(device)  # else what names no device, of PyTorch or NCCL, goes to GPU 0
    dist.init_process_group("gloo" if cpu else backend, rank=rank, world_size=world)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 1)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(1 + rank)
    for step in range(10):
        x = torch.randn(64 * (1 + (step + rank) % 3), 256, device=device)
        optimizer.zero_grad()
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        for parameter in model.parameters():
            gradient = parameter.grad if backend == "nccl" and not cpu else parameter.grad.cpu()
            dist.all_reduce(gradient)
            parameter.grad.copy_(gradient / world)
        optimizer.step()
    total = torch.stack([p.detach().double().sum().cpu() for p in model.parameters()]).sum()
    sums = [torch.zeros((), dtype=torch.float64) for _ in range(world)]
    if backend == "nccl" and not cpu:
        total, sums = total.to(device), [value.to(device) for value in sums]
    dist.all_gather(sums, total)
    same = all(float(value) == float(total) for value in sums)
    print(f"rank {rank} of {world}: loss {float(loss.detach()):.4f}, weights {'equal' if same else 'DIFFER'}"
          f"{'' if cpu else ', ' + held(device)}", flush=True)
    dist.barrier()  # gloo aborts a rank whose peer is gone before the last exchange has ended on both sides
    dist.destroy_process_group()
    return same


def with_ray(options):
    try:
        import ray
    except ImportError:
        print("SKIP: ranks.py --ray: Ray is not installed")
        return 77
    ray.init(num_cpus=options.ray, num_gpus=None if not options.cpu else 0, include_dashboard=False)

    port = free_port()

    @ray.remote(num_cpus=1, num_gpus=0)
    def rank(number):
        meet(port)
        return train(number, options.ray, options.backend, options.share, options.cpu)

    good = all(ray.get([rank.remote(number) for number in range(options.ray)]))
    ray.shutdown()
    return 0 if good else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", choices=("gloo", "nccl"), default="gloo")
    parser.add_argument("--share", action="store_true")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--ray", type=int, default=0)
    options = parser.parse_args()
    if options.ray:
        return with_ray(options)
    if "RANK" not in os.environ:
        parser.error("start it with torchrun, or with --ray N")
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    return 0 if train(rank, world, options.backend, options.share, options.cpu) else 1


if __name__ == "__main__":
    sys.exit(main())
