#!/usr/bin/env python3
"""The training study's GPT-2, data-parallel on two GPUs: PyTorch's allocator, MoonBright's plug-in, PyTorch's again.

    ddp.py LIBMOONBRIGHT.SO [--workload NAME]
    ddp.py --cpu-tiny [--workload NAME]           the program itself: no GPU, no MoonBright, tiny shapes

One process per GPU and allocator. Two passes of the same shapes, like the study's one.py: the first pays for what
libraries do at the first use of a shape. A JSON object a line for each rank, then a table: peak allocated / peak held,
peak held, median step of the second pass, losses, which must be the same bit by bit if two runs of PyTorch's allocator
are. Without transformers it is the study's own ragged transformer. Exit status 77: no PyTorch, one GPU, or the plug-in is
not there. NVLink multicast stays off.
"""
import argparse
import functools
import importlib.util
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time

PACKAGE = pathlib.Path(__file__).resolve().parents[2] / "integrations/torch"
sys.path[:0] = [str(PACKAGE / "study"), str(PACKAGE)]

import deterministic  # noqa: E402
import one  # noqa: E402
from ports import free_port, meet  # noqa: E402

WORLD, LIMIT_S, REFUSED = 2, 100, 3
WRAPPED = ("gpt2", "ragged-transformer")


class NotDeterministic(Exception):
    pass


def train(rank, port, allocator, workload, mode):
    """One rank: its result is the last line."""
    cpu = allocator == "none"
    # Nothing ends by time here: a rank that stopped earlier than the other would leave it waiting.
    options = argparse.Namespace(workload=workload, allocator=allocator, steps=3 if cpu else 12, seconds=1e6,
                                 batch=1.0, cap=0, tables=None, tiny=cpu, deterministic=mode)
    one.prepare(options)
    import torch
    import torch.distributed as dist
    from workloads import WORKLOADS
    if not cpu:
        torch.cuda.set_device(rank)
    meet(port)
    dist.init_process_group("gloo" if cpu else "nccl", rank=rank, world_size=WORLD)
    random.seed(0)  # the same shapes on all ranks, so that none waits for the other's longer step
    torch.manual_seed(rank)  # other data; the weights come from rank 0
    deterministic.ask(torch, mode)
    parallel = functools.partial(torch.nn.parallel.DistributedDataParallel, device_ids=None if cpu else [rank])
    try:
        result = one.measure(options, torch, functools.partial(WORKLOADS[workload], wrap=parallel))
    except RuntimeError as failure:
        if mode == "strict" and deterministic.refused(failure):
            print(failure, file=sys.stderr)
            os._exit(REFUSED)  # the other rank is in the middle of an exchange: nothing can be ended in order
        raise
    if result["error"]:
        raise SystemExit(result["error"])
    dist.barrier()
    print(json.dumps({**result, "what": "ddp", "rank": rank, "world": WORLD}), flush=True)
    dist.destroy_process_group()


def wait(ranks, deadline):
    """Until all have ended; one that failed takes the other with it."""
    while any(rank.poll() is None for rank in ranks):
        if any(rank.poll() for rank in ranks) or time.monotonic() > deadline:
            break
        time.sleep(0.1)
    status = [rank.poll() for rank in ranks]
    for rank in ranks:
        rank.kill()
        rank.wait()
    return status


def pair(allocator, workload, mode, again):
    """The results of both ranks."""
    port = str(free_port())
    with tempfile.TemporaryDirectory() as directory:
        texts = [pathlib.Path(directory) / str(rank) for rank in range(WORLD)]  # of its own: lines of two would mix
        ranks = []
        for rank, text in enumerate(texts):
            with text.open("w") as out:
                ranks.append(subprocess.Popen(
                    [sys.executable, "-B", __file__, "--rank", str(rank), port, allocator, workload, mode],
                    stdout=out, stderr=subprocess.STDOUT))
        status = wait(ranks, time.monotonic() + LIMIT_S)
        lines = [line for text in texts for line in text.read_text().splitlines()]
    if REFUSED in status:
        raise NotDeterministic("\n".join(line for line in lines if "deterministic" in line))
    rows = [json.loads(line) for line in lines if line.startswith('{"what": "ddp"')]
    if status != [0] * WORLD or len(rows) != WORLD:
        print("\n".join(lines[-30:]))
        raise SystemExit(f"FAIL: ddp: {workload}, {allocator}: the ranks ended with {status}")
    return [{**row, "again": again, "commit": os.environ.get("COMMIT", "unknown")} for row in rows]


def losses(rows):
    return [row["losses_hex"] for row in rows]


def verdict(default, ours, control):
    """What is wrong with the losses (nothing: an empty text), and what they are like."""
    if losses(ours) == losses(default):
        return "", "losses are the same, bit by bit"
    if losses(control) == losses(default):
        return "losses differ, and those of two runs of the default allocator do not", ""
    last = [[float.fromhex(row["losses_hex"][-1]) for row in rows] for rows in (default, ours)]
    if all(abs(his - mine) <= 1e-3 * abs(his) for his, mine in zip(*last)):
        return "", "losses differ in bits, as those of two runs of the default allocator do"
    return f"the last losses are {last[1]}, with the default allocator {last[0]}", ""


def show(rows):
    print(f"{'allocator':<20}{'rank':>5}{'efficiency':>12}{'held GiB':>10}{'median ms':>11}  determinism")
    for row in rows:
        name = row["allocator"] + (", again" if row["again"] else "")
        print(f"{name:<20}{row['rank']:>5}{100 * row.get('efficiency', 0):>11.2f}%"
              f"{row.get('reserved_peak_bytes', 0) / 2**30:>10.2f}{row['step_ms']['median']:>11.2f}  {row['deterministic']}")


def runs(first, second, workload, mode):
    """Each is told at once, so that whoever ends this early has what there is."""
    pairs = []
    for allocator, again in ((first, 0), (second, 0), (first, 1)):
        pairs.append(pair(allocator, workload, mode, again))
        print("\n".join(json.dumps(row) for row in pairs[-1]), flush=True)
    return pairs


def compare(first, second, workload):
    """The first allocator, the second, the first again; the exit status."""
    try:
        pairs = runs(first, second, workload, "strict")
    except NotDeterministic as why:
        print(f"ddp: begun anew: {why}", flush=True)
        pairs = runs(first, second, workload, "warn")
    show([row for rows in pairs for row in rows])
    wrong, like = verdict(*pairs)
    print(f"FAIL: ddp: {workload}: {wrong}" if wrong else f"PASS: ddp: {workload}: {like}")
    return 1 if wrong else 0


def missing(options):
    """Why it cannot run here, or nothing."""
    if not importlib.util.find_spec("torch"):
        return "PyTorch is not installed"
    if options.cpu_tiny:
        return ""
    import torch
    if torch.cuda.device_count() < WORLD:
        return f"{torch.cuda.device_count()} GPU(s)"
    return "" if (PACKAGE / "moonbright").is_dir() else "this tree has no PyTorch plug-in"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library", nargs="?")
    parser.add_argument("--workload", choices=WRAPPED)
    parser.add_argument("--cpu-tiny", action="store_true")
    parser.add_argument("--rank", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        train(int(options.rank[0]), *options.rank[1:])
        return 0
    if bool(options.library) == options.cpu_tiny:
        parser.error("name libmoonbright.so, or give --cpu-tiny")
    why = missing(options)
    if why:
        print(f"SKIP: ddp: {why}")
        return 77
    os.environ["NCCL_NVLS_ENABLE"] = "0"
    workload = options.workload or WRAPPED[0 if importlib.util.find_spec("transformers") else 1]
    if options.cpu_tiny:
        os.environ["OMP_NUM_THREADS"] = "1"
        return compare("none", "none", workload)
    os.environ.setdefault("MOONBRIGHT_LIBRARY_PATH", os.path.dirname(os.path.abspath(options.library)))
    return compare("default", "moonbright", workload)


if __name__ == "__main__":
    sys.exit(main())
