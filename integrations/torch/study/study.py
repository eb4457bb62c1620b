#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The training study: every workload under every allocator, each in a process of its own.

    study.py run FILE.jsonl [--seconds BUDGET] [--workloads A,B] [--allocators A,B] [--cpu-tiny]
    study.py ceiling FILE.jsonl [--seconds BUDGET] [--workloads A,B] [--allocators A,B] [--cap BYTES]
    study.py report FILE.jsonl

`run` goes through workloads x (default, expandable, moonbright with each kind of tables), appends one JSON object a line
and leaves out what the file has already, so that it can be called again until all is there. `ceiling` searches for the
largest batch that trains under a cap, with five probes for each allocator, and says so where only one side of it was
found. Calls with other workloads or allocators may run at once and share the file. `report` prints the tables and exits
with 1 if a loss curve differs between allocators, or between two runs of one. --cpu-tiny checks the programs themselves:
allocator `none`, tiny shapes, no GPU.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
# Allocator, tables, and the how manieth time: PyTorch's own twice, since a loss may differ without any allocator's doing.
COMPARED = [("default", None, 0), ("expandable", None, 0), ("moonbright", "inline", 0), ("default", None, 1)]
FURTHER = [("moonbright", "isolated", 0), ("moonbright", "driver", 0)]
ALLOCATORS = ("default", "expandable", "moonbright")
PROBES, CEILING_STEPS = 5, 12
# Between these batch scales the largest one under a cap of 24 GiB is searched: wide enough for an allocator that wastes
# much. At 1.0 and without a cap 21.9 and 17.5 GiB were allocated, 2.7 and 3.3 of them by parameters, gradients and the
# optimizer whatever the batch is, so no allocator gets much beyond 1.11 and 1.46.
CEILINGS = {"gpt2": (0.75, 1.2), "ragged-transformer": (0.95, 1.5)}
BRACKETED, ONLY_TRAINED, ONLY_FAILED = "between", "upper bound never reached", "lower bound does not train"
WORKLOADS = ("densenet161", "gpt2", "llama-recompute", "moe-offload-recompute", "llama-generate-beam4",
             "diffusion-unet", "ragged-transformer")


def label(allocator, tables, again=0):
    return f"{allocator}, {tables}" if tables else f"{allocator}, again" if again else allocator


def key(result):
    return (result["workload"], result["allocator"], result["configured_tables"], result.get("again", 0))


def read(path):
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines() if line.startswith("{")]


def append(path, row):
    """In one write, as other calls append to the same file."""
    with path.open("ab", buffering=0) as file:
        file.write((json.dumps(row) + "\n").encode())


def one(workload, allocator, tables, seconds, more=()):
    """The result of one process, or why there is none."""
    command = [sys.executable, str(HERE / "one.py"), workload, allocator, "--seconds", str(seconds), *more]
    if tables:
        command += ["--tables", tables]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 60)
    except subprocess.TimeoutExpired:
        return None, f"not finished {seconds + 60:.0f} s after its start"
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        told = (done.stdout + done.stderr).strip().splitlines()
        reasons = [line for line in told if line.startswith(("SKIP", "FAILED"))] + told[-1:]
        return None, (reasons[0] if reasons else f"exit status {done.returncode}")
    return {**json.loads(lines[-1]), "command": " ".join(["one.py", *command[2:]])}, ""


class Budget:
    def __init__(self, seconds):
        self.end = time.monotonic() + seconds

    def left(self):
        return self.end - time.monotonic()


def commit():
    """Of the tree: COMMIT where there is no git."""
    if os.environ.get("COMMIT"):
        return os.environ["COMMIT"]
    try:
        done = subprocess.run(["git", "-C", str(HERE), "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    except OSError:
        return "unknown"
    return done.stdout.strip() or "unknown"


def run(options):
    # Results of before determinism was told are of other operations.
    have = {key(r) for r in read(options.file) if r.get("what") == "torch-study" and "deterministic" in r}
    budget, missing, head = Budget(options.seconds), 0, commit()
    parts = ([("none", None, 0)],) if options.cpu_tiny else (COMPARED, FURTHER)
    more = ["--tiny", "--steps", "3"] if options.cpu_tiny else []
    # The comparison itself for all workloads first, then the other kinds of tables.
    order = [(workload, *kind) for part in parts for workload in options.workloads for kind in part
             if kind[0] in (*options.allocators, "none")]
    for workload, allocator, tables, again in order:
        if (workload, allocator, tables, again) in have:
            continue
        if budget.left() < options.each:
            missing += 1
            continue
        result, why = one(workload, allocator, tables, options.each, more)
        if result is None:
            missing += 1
            print(f"{workload}, {label(allocator, tables, again)}: {why}", flush=True)
            continue
        append(options.file, {**result, "again": again, "commit": head})
        print(f"{workload}, {label(allocator, tables, again)}: {result['steps']} steps, "
              f"{100 * result.get('efficiency', 0):.1f}%, {result['wall_s']} s {result['error']}", flush=True)
    if missing:
        print(f"study: {missing} of the runs are not in {options.file.name}; call again")
    return 1 if missing else 0


class NotMemory(Exception):
    """A probe failed otherwise than for want of memory: it says nothing about the batch."""


def probe(workload, allocator, tables, options, batch):
    """Does it train with this batch? {"batch", "trained", "why"}."""
    result, why = one(workload, allocator, tables, options.each,
                      ["--steps", str(CEILING_STEPS), "--batch", f"{batch:.4f}", "--cap", str(options.cap)])
    why = why or result["error"]
    if not (result and result["complete"]) and "out of memory" not in why.lower():
        raise NotMemory(f"batch {batch:.4f}: {why or 'not finished in time'}")
    return {"batch": round(batch, 4), "trained": not why, "why": why}


def search(workload, allocator, tables, options, bounds):
    """Bisection between the bounds by ratio. They are not tried themselves: that would cost two of the five probes."""
    low, high, probes = *bounds, []
    for _ in range(PROBES):
        probes.append(probe(workload, allocator, tables, options, (low * high) ** 0.5))
        batch, trained = probes[-1]["batch"], probes[-1]["trained"]
        low, high = (batch, high) if trained else (low, batch)
    trained = [p["batch"] for p in probes if p["trained"]]
    failed = [p["batch"] for p in probes if not p["trained"]]
    found = BRACKETED if trained and failed else ONLY_TRAINED if trained else ONLY_FAILED
    return {"what": "torch-ceiling", "workload": workload, "allocator": allocator, "configured_tables": tables,
            "cap_bytes": options.cap, "bounds": list(bounds), "steps": CEILING_STEPS, "found": found,
            "largest_batch": max(trained, default=None), "smallest_failed": min(failed, default=None),
            "resolution": round(high / low - 1, 4) if found == BRACKETED else None, "probes": probes}


def ceiling_key(result):
    """None for a row of before the bounds were told: its batches are of other shapes."""
    if "bounds" not in result:
        return None
    return (result["workload"], result["allocator"], result["configured_tables"], result["cap_bytes"],
            tuple(result["bounds"]), result["steps"])


def ceiling(options):
    have = {ceiling_key(r) for r in read(options.file) if r.get("what") == "torch-ceiling"}
    budget, missing, head = Budget(options.seconds), 0, commit()
    order = [(workload, allocator, "inline" if allocator == "moonbright" else None)
             for workload in CEILINGS if workload in options.workloads for allocator in options.allocators]
    for workload, allocator, tables in order:
        if (workload, allocator, tables, options.cap, CEILINGS[workload], CEILING_STEPS) in have:
            continue
        if budget.left() < PROBES * options.each:
            missing += 1
            continue
        try:
            result = search(workload, allocator, tables, options, CEILINGS[workload])
        except NotMemory as failure:
            missing += 1
            print(f"{workload}, {label(allocator, tables)}: {failure}", flush=True)
            continue
        append(options.file, {**result, "commit": head})
        print(ceiling_line(result), flush=True)
    if missing:
        print(f"study: {missing} searches are not in {options.file.name}; call again")
    return 1 if missing else 0


def ceiling_line(r):
    """Of one search, for people."""
    sides = {BRACKETED: f"{r['largest_batch']} trains, {r['smallest_failed']} does not",
             ONLY_TRAINED: f"{r['largest_batch']} trains, nothing up to the bound of {r['bounds'][1]} failed",
             ONLY_FAILED: f"{r['smallest_failed']} fails, nothing down to the bound of {r['bounds'][0]} trained"}
    return (f"ceiling {r['workload']:<20}{label(r['allocator'], r['configured_tables']):<22}{sides[r['found']]}"
            f" under {r['cap_bytes'] / 2**30:.1f} GiB")


def report(options):
    """The tables; loss curves are compared bit by bit over the steps that both have."""
    differing, by_workload = [], {}
    for result in read(options.file):
        if result.get("what") == "torch-study":
            by_workload.setdefault(result["workload"], {})[label(*key(result)[1:])] = result
        elif result.get("what") == "torch-ceiling" and ceiling_key(result):
            print(ceiling_line(result))
    if by_workload:
        print(f"{'workload':<24}{'allocator':<22}{'efficiency':>10}{'held GiB':>10}{'median ms':>11}{'p99 ms':>9}"
              f"{'driver calls':>14}  losses")
    for workload, results in by_workload.items():
        if any("deterministic" in r for r in results.values()):  # those of before are of other operations
            results = {name: r for name, r in results.items() if "deterministic" in r}
        base = results.get("default") or next(iter(results.values()))
        for name, r in results.items():
            common = min(len(r["losses_hex"]), len(base["losses_hex"]))
            same = r["losses_hex"][:common] == base["losses_hex"][:common]
            if not same:
                differing.append((workload, name))
            step = r["step_ms"] or {"median": 0, "p99": 0}
            print(f"{workload:<24}{name:<22}{100 * r.get('efficiency', 0):>9.2f}%"
                  f"{r.get('reserved_peak_bytes', 0) / 2**30:>10.2f}{step['median']:>11.2f}{step['p99']:>9.2f}"
                  f"{r.get('driver_calls', 0):>14,}  {'as default' if same else 'DIFFER'} ({common})"
                  f"{', warn' if r.get('deterministic') == 'warn' else ''}{' ' + r['error'] if r['error'] else ''}")
    for workload, name in differing:
        control = (workload, "default, again") in differing
        print(f"study: losses differ: {workload}, {name}{'; no two runs of default agree either' if control else ''}")
    return 1 if differing else 0


def names(what, known):
    """An argument of names with commas between them."""
    def parse(text):
        unknown = sorted(set(text.split(",")) - set(known))
        if unknown:
            raise argparse.ArgumentTypeError(f"no {what} {', '.join(unknown)}; there are {', '.join(known)}")
        return text.split(",")
    return parse


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("action", choices=("run", "ceiling", "report"))
    parser.add_argument("file", type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=500, help="start nothing that might end later")
    parser.add_argument("--each", type=float, default=40, help="bound of one run")
    parser.add_argument("--cap", type=int, default=24 << 30)
    parser.add_argument("--workloads", type=names("workload", WORKLOADS), default=list(WORKLOADS))
    parser.add_argument("--allocators", type=names("allocator", ALLOCATORS), default=list(ALLOCATORS))
    parser.add_argument("--cpu-tiny", action="store_true")
    options = parser.parse_args()
    return {"run": run, "ceiling": ceiling, "report": report}[options.action](options)


if __name__ == "__main__":
    sys.exit(main())
