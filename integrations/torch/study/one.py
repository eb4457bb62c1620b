#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""One workload under one allocator; prints one JSON object.

    one.py WORKLOAD ALLOCATOR [--steps N] [--seconds S] [--batch X] [--cap BYTES] [--tables MODE] [--tiny]
           [--deterministic strict|warn]

ALLOCATOR: default, expandable (PyTorch's own, with expandable segments), moonbright, or none (on the CPU; times and
losses only). --cap limits the memory held from the driver. The steps are done twice with the same shapes: the first pass
also pays for what libraries do at the first use of a shape, median and p99 are of the second. It ends by itself after
--seconds: what was done until then is reported, with "complete": false, and times of the second pass only if there was one.

Operations are deterministic ("deterministic": "strict"). A workload with one that has no such form is
begun anew, in a fresh process, with what PyTorch does under warn_only ("warn"); losses may then
differ from run to run.
"""
import argparse
import json
import os
import pathlib
import platform
import random
import statistics
import sys
import time

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent), str(pathlib.Path(__file__).resolve().parent.parent)]

import deterministic  # noqa: E402


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workload")
    parser.add_argument("allocator", choices=("default", "expandable", "moonbright", "none"))
    parser.add_argument("--steps", type=int, default=0, help="of one pass; 0: as the workload has it")
    parser.add_argument("--seconds", type=float, default=45)
    parser.add_argument("--batch", type=float, default=1.0)
    parser.add_argument("--cap", type=int, default=0)
    parser.add_argument("--tables", choices=("inline", "isolated", "driver"))
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--deterministic", choices=deterministic.MODES, default="strict")
    return parser.parse_args()


def prepare(options):
    """What must be set before PyTorch is imported or has used the device."""
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # else its matrix products are refused as not deterministic
    if options.allocator == "expandable":
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    if options.allocator != "moonbright":
        return
    import moonbright
    config = [f"tables:{options.tables}"] if options.tables else []
    if options.cap:
        config.append(f"limit:{options.cap}")
    moonbright.enable(",".join(["backend:cuda", *config]))


def memory(options, torch):
    """Peaks in bytes and calls of the driver, as the allocator itself counts them."""
    if options.allocator == "none":
        return {}
    if options.allocator != "moonbright":
        stats = torch.cuda.memory_stats()
        return {"allocated_peak_bytes": stats["allocated_bytes.all.peak"],
                "requested_peak_bytes": stats["requested_bytes.all.peak"],
                "reserved_peak_bytes": stats["reserved_bytes.all.peak"],
                "retries": stats["num_alloc_retries"],
                "driver_calls": stats["num_device_alloc"] + stats["num_device_free"],
                "requests": stats["allocation.all.allocated"]}
    import moonbright
    stats = moonbright.device().stats()
    moonbright.device().check()
    return {"allocated_peak_bytes": stats["allocated_peak_bytes"],
            "requested_peak_bytes": stats["requested_peak_bytes"],
            "reserved_peak_bytes": stats["reserved_peak_bytes"],
            "retries": moonbright.memory_stats()["num_alloc_retries"],
            "driver_calls": stats["grows"] + stats["trims"], "map_batches": stats["map_batches"],
            "requests": stats["malloc_calls"], "stitches": stats["stitches"],
            "tables": moonbright.device().tables, "bad_frees": moonbright.counts()["bad_frees"]}


def run(options, torch, workload):
    device = "cpu" if options.allocator == "none" else "cuda"
    synchronize = (lambda: None) if device == "cpu" else torch.cuda.synchronize
    losses, times, error, deadline = [], [], "", time.monotonic() + options.seconds
    try:
        steps = workload(device, options.batch, options.tiny)
        while len(losses) < 2 * options.steps and time.monotonic() < deadline:
            if len(losses) == options.steps:
                random.seed(0)  # shapes come from here: the second pass has the first one's
            synchronize()
            start = time.perf_counter()
            losses.append(next(steps))
            synchronize()
            times.append(1000 * (time.perf_counter() - start))
    except torch.OutOfMemoryError as failure:
        error = "out of memory: " + str(failure).splitlines()[0][:300]
    return losses, times, error


def measure(options, torch, workload):
    """The result of one workload, as one JSON object."""
    start = time.monotonic()
    losses, times, error = run(options, torch, workload)
    first, second = times[:options.steps], times[options.steps:]
    steady = second or first[1:] or first
    result = {"what": "torch-study", "workload": options.workload, "allocator": options.allocator,
              "configured_tables": options.tables, "batch": options.batch, "cap_bytes": options.cap, "tiny": options.tiny,
              "steps": len(losses), "complete": len(losses) == 2 * options.steps, "error": error,
              "deterministic": options.deterministic, "wall_s": round(time.monotonic() - start, 2),
              "step_ms": {"passes": 2 if second else 1, "first_pass": round(sum(first), 3),
                          "second_pass": round(sum(second), 3), "median": round(statistics.median(steady), 3),
                          "p99": round(sorted(steady)[min(len(steady) - 1, int(0.99 * len(steady)))], 3),
                          "all": [round(t, 3) for t in times]} if times else None,
              "losses_hex": [loss.hex() for loss in losses], **memory(options, torch),
              "device": torch.cuda.get_device_name() if options.allocator != "none" else platform.processor() or "CPU",
              "torch": torch.__version__}
    if result.get("reserved_peak_bytes"):
        result["efficiency"] = round(result["allocated_peak_bytes"] / result["reserved_peak_bytes"], 5)
    return result


def main():
    options = arguments()
    try:
        prepare(options)
        import torch
        from workloads import STEPS, WORKLOADS
        if options.workload not in WORKLOADS:
            sys.exit(f"one.py: no workload {options.workload!r}; there are {', '.join(WORKLOADS)}")
        options.steps = options.steps or STEPS.get(options.workload, 12)
        if options.allocator != "none" and not torch.cuda.is_available():
            print(f"SKIP: {options.workload} {options.allocator}: PyTorch finds no GPU here")
            sys.exit(77)
        random.seed(0)
        torch.manual_seed(0)
        deterministic.ask(torch, options.deterministic)
        if options.cap and options.allocator in ("default", "expandable"):
            torch.cuda.set_per_process_memory_fraction(
                min(1.0, options.cap / torch.cuda.get_device_properties(0).total_memory))
        result = measure(options, torch, WORKLOADS[options.workload])
    except ImportError as failure:
        print(f"SKIP: {options.workload} {options.allocator}: {failure}")
        sys.exit(77)
    except RuntimeError as failure:
        if options.deterministic == "strict" and deterministic.refused(failure):
            print(f"{options.workload} {options.allocator}: begun anew: {failure}".splitlines()[0], file=sys.stderr)
            deterministic.begin_anew([*sys.argv, "--deterministic", "warn"])
        sys.exit(f"FAILED: {options.workload} {options.allocator}: {type(failure).__name__}: {failure}")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
