#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The training study: every workload under every allocator, each in a process of its own.

    study.py run FILE.jsonl [--seconds BUDGET] [--workloads A,B] [--cpu-tiny]
    study.py ceiling FILE.jsonl [--seconds BUDGET] [--workloads A,B] [--cap BYTES]
    study.py report FILE.jsonl

`run` goes through workloads x (default, expandable, moonbright with each kind of tables), appends one JSON object a line
and leaves out what the file has already, so that it can be called again until all is there. `ceiling` searches for the
largest batch that trains under a cap, with at most five probes for each allocator. `report` prints the tables and exits
with 1 if a loss curve differs between allocators, or between two runs of one. --cpu-tiny checks the programs themselves: allocator `none`, tiny
shapes, no GPU.
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
PROBES, CEILING_STEPS = 5, 3
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
    order = [(workload, *kind) for part in parts for workload in options.workloads for kind in part]
    with options.file.open("a") as file:
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
            file.write(json.dumps({**result, "again": again, "commit": head}) + "\n")
            file.flush()
            print(f"{workload}, {label(allocator, tables, again)}: {result['steps']} steps, "
                  f"{100 * result.get('efficiency', 0):.1f}%, {result['wall_s']} s {result['error']}", flush=True)
    if missing:
        print(f"study: {missing} of the runs are not in {options.file.name}; call again")
    return 1 if missing else 0


def search(workload, allocator, tables, options, bounds):
    """Bisection between a scale that should train and one that should not; five probes."""
    low, high, best, probes = bounds[0], bounds[1], 0.0, []
    for _ in range(PROBES):
        batch = (low * high) ** 0.5 if probes else low * 2
        result, why = one(workload, allocator, tables, options.each,
                          ["--steps", str(CEILING_STEPS), "--batch", f"{batch:.4f}", "--cap", str(options.cap)])
        trained = bool(result) and result["complete"]
        probes.append({"batch": round(batch, 4), "trained": trained,
                       "why": why or (result or {}).get("error", "")})
        low, high = (batch, high) if trained else (low, batch)
        best = max(best, batch if trained else 0.0)
    return {"what": "torch-ceiling", "workload": workload, "allocator": allocator, "configured_tables": tables,
            "cap_bytes": options.cap, "largest_batch": round(best, 4), "probes": probes}


def ceiling(options):
    sys.path.insert(0, str(HERE))
    from workloads import CEILINGS as bounds
    bounds = {workload: limits for workload, limits in bounds.items() if workload in options.workloads}
    have = {(r["workload"], r["allocator"], r["configured_tables"]) for r in read(options.file)
            if r.get("what") == "torch-ceiling" and r["cap_bytes"] == options.cap}
    budget, missing, head = Budget(options.seconds), 0, commit()
    with options.file.open("a") as file:
        for workload, limits in bounds.items():
            for allocator, tables in (("default", None), ("expandable", None), ("moonbright", "inline")):
                if (workload, allocator, tables) in have:
                    continue
                if budget.left() < PROBES * options.each:
                    missing += 1
                    continue
                result = search(workload, allocator, tables, options, limits)
                file.write(json.dumps({**result, "commit": head}) + "\n")
                file.flush()
                print(f"{workload}, {label(allocator, tables)}: {result['largest_batch']}", flush=True)
    if missing:
        print(f"study: {missing} searches are not in {options.file.name}; call again")
    return 1 if missing else 0


def report(options):
    """The tables; loss curves are compared bit by bit over the steps that both have."""
    differing, by_workload = [], {}
    for result in read(options.file):
        if result.get("what") == "torch-study":
            by_workload.setdefault(result["workload"], {})[label(*key(result)[1:])] = result
        elif result.get("what") == "torch-ceiling":
            print(f"ceiling {result['workload']:<20}{label(result['allocator'], result['configured_tables']):<22}"
                  f"{result['largest_batch']:>8} under {result['cap_bytes'] / 2**30:.1f} GiB")
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


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("action", choices=("run", "ceiling", "report"))
    parser.add_argument("file", type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=500, help="start nothing that might end later")
    parser.add_argument("--each", type=float, default=40, help="bound of one run")
    parser.add_argument("--cap", type=int, default=24 << 30)
    parser.add_argument("--workloads", type=lambda text: text.split(","), default=list(WORKLOADS))
    parser.add_argument("--cpu-tiny", action="store_true")
    options = parser.parse_args()
    unknown = set(options.workloads) - set(WORKLOADS)
    if unknown:
        parser.error(f"no workload {', '.join(sorted(unknown))}; there are {', '.join(WORKLOADS)}")
    return {"run": run, "ceiling": ceiling, "report": report}[options.action](options)


if __name__ == "__main__":
    sys.exit(main())
