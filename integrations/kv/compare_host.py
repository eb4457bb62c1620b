#!/usr/bin/env python3
"""Two builds of moonbright-kv against each other: what the cache's calls take of the host, in turns on one machine.

    compare_host.py BEFORE COMMIT AFTER COMMIT [--turns N] [--config TEXT] [--samples N] [--machine TEXT]

Prints a line that says what was run, and one per model and call: the least of all rounds of all turns, and the least
of the turns' medians, in microseconds. Loads of the machine pass over both alike, as the builds take turns.
"""
import argparse
import json
import subprocess
import sys


def rounds_of(program, options):
    """{(model, call): row} of one turn."""
    command = [program, "host", "--samples", str(options.samples), "--config", options.config]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    rows = [json.loads(line) for line in out.splitlines()]
    return {(row["model"], row["call"]): row for row in rows if row["what"] == "host"}


def least(turns, key, name):
    return min(turn[key][name] for turn in turns)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("before", "before_commit", "after", "after_commit"):
        parser.add_argument(name)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--config", default="backend:sim,tables:inline,oracle:no")
    parser.add_argument("--machine", default="")
    options = parser.parse_args()
    before, after = [], []
    for _ in range(options.turns):
        before.append(rounds_of(options.before, options))
        after.append(rounds_of(options.after, options))
    print(json.dumps({"what": "run", "commit": options.after_commit, "machine": options.machine,
                      "command": f"integrations/kv/compare_host.py, {options.turns} turns, --samples {options.samples} "
                                 f"--config {options.config}; before: commit {options.before_commit}"}))
    for key in after[0]:
        print(json.dumps({"what": "host", "model": key[0], "call": key[1], "blocks": after[0][key]["blocks"],
                          "before_us": least(before, key, "least_us"), "before_median_us": least(before, key, "median_us"),
                          "after_us": least(after, key, "least_us"), "after_median_us": least(after, key, "median_us")}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
