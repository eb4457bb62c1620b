#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The programs of the training study on a CPU: which mode of determinism a workload gets, and what the report says of it.

MB_TORCH_PYTHON names the interpreter that has PyTorch; skipped without.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

STUDY = pathlib.Path(__file__).resolve().parent.parent / "study"
DDP = STUDY.parents[2] / "tests/gpu/ddp.py"
PYTHON = os.environ.get("MB_TORCH_PYTHON", sys.executable)
OURS = ("diffusion-unet", "ragged-transformer")
# one.py with two workloads more: put_() has no deterministic form on any device.
PROGRAM = f"""
import sys
sys.path.insert(0, {str(STUDY)!r})
import one
import workloads

def undecided(device, batch=1.0, tiny=False):
    import torch
    x = torch.zeros(8, device=device)
    while True:
        x.put_(torch.tensor([1, 2]), torch.ones(2))
        yield float(x.sum())

def broken(device, batch=1.0, tiny=False):
    raise RuntimeError("not of determinism")
    yield 0.0

workloads.WORKLOADS.update(undecided=undecided, broken=broken)
one.main()
"""


def skip(why):
    print(f"SKIP: test_torch_study: {why}")
    sys.exit(77)


if subprocess.run([PYTHON, "-c", "import torch"], capture_output=True, check=False).returncode:
    skip(f"{PYTHON} has no PyTorch; MB_TORCH_PYTHON names one that has")


def call(*command):
    return subprocess.run([PYTHON, *map(str, command)], capture_output=True, text=True, check=False)


class Determinism(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory()
        self.addCleanup(self.directory.cleanup)
        self.program = pathlib.Path(self.directory.name) / "program.py"
        self.program.write_text(PROGRAM)

    def result(self, workload, *more):
        done = call(self.program, workload, "none", "--tiny", "--steps", "2", *more)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        lines = done.stdout.splitlines()
        self.assertEqual(len(lines), 1, done.stdout)
        return json.loads(lines[0]), done.stderr

    def test_strict_where_every_operation_allows_it(self):
        for workload in OURS:
            first, told = self.result(workload)
            self.assertEqual((first["deterministic"], first["complete"]), ("strict", True))
            self.assertNotIn("begun anew", told)
            again, _ = self.result(workload)
            self.assertEqual(first["losses_hex"], again["losses_hex"])

    def test_a_refused_operation_begins_the_process_anew(self):
        result, told = self.result("undecided")
        self.assertEqual((result["deterministic"], result["complete"], result["steps"]), ("warn", True, 4))
        self.assertIn("begun anew: put_ does not have a deterministic implementation", told)

    def test_warn_can_be_asked_for(self):
        result, told = self.result("undecided", "--deterministic", "warn")
        self.assertEqual(result["deterministic"], "warn")
        self.assertNotIn("begun anew", told)

    def test_other_errors_end_it(self):
        done = call(self.program, "broken", "none", "--tiny")
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn("FAILED: broken none: RuntimeError: not of determinism", done.stderr)
        self.assertNotIn("begun anew", done.stderr)

    def test_counting_is_allowed_and_strictness_stays(self):
        done = call("-c", f"""
import sys
sys.path.insert(0, {str(STUDY)!r})
import deterministic, torch
seen, plain = [], torch.histc
def histc(*arguments, **more):
    seen.append(torch.get_deterministic_debug_mode())
    return plain(*arguments, **more)
torch.histc = histc
deterministic.ask(torch, "strict")
assert torch.histc(torch.tensor([0.0, 1.0, 1.0]), bins=2, min=0, max=1).tolist() == [1, 2]
assert seen == [0] and torch.get_deterministic_debug_mode() == 2, (seen, torch.get_deterministic_debug_mode())
""")
        self.assertEqual(done.returncode, 0, done.stderr)


def row(allocator, losses, again=0, tables=None, **more):
    return {"what": "torch-study", "workload": "w", "allocator": allocator, "configured_tables": tables, "again": again,
            "losses_hex": losses, "step_ms": None, "error": "", **more}


class Study(unittest.TestCase):
    def report(self, *rows):
        with tempfile.TemporaryDirectory() as directory:
            file = pathlib.Path(directory) / "study.jsonl"
            file.write_text("".join(json.dumps(r) + "\n" for r in rows))
            return call(STUDY / "study.py", "report", file)

    def test_equal_losses_pass_and_the_mode_is_told(self):
        done = self.report(row("default", ["1"], deterministic="strict"), row("expandable", ["1"], deterministic="warn"))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("as default (1), warn", done.stdout)

    def test_a_difference_is_told_beside_the_control(self):
        alone = self.report(row("default", ["1"]), row("moonbright", ["2"], tables="inline"), row("default", ["1"], 1))
        self.assertEqual(alone.returncode, 1)
        self.assertIn("losses differ: w, moonbright, inline\n", alone.stdout)
        both = self.report(row("default", ["1"]), row("moonbright", ["2"], tables="inline"), row("default", ["3"], 1))
        self.assertEqual(both.returncode, 1)
        self.assertIn("losses differ: w, moonbright, inline; no two runs of default agree either", both.stdout)

    def test_results_of_before_determinism_was_told_are_not_compared_with_later_ones(self):
        done = self.report(row("default", ["1"]), row("default", ["9"], 1),
                           *(row(name, ["2"], deterministic="strict") for name in ("expandable", "default")))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertNotIn("again", done.stdout)

    def test_unknown_workloads_are_refused(self):
        done = call(STUDY / "study.py", "ceiling", "nowhere.jsonl", "--workloads", "gpt2,gpt3")
        self.assertEqual(done.returncode, 2)
        self.assertIn("no workload gpt3; there are densenet161,", done.stderr)


# study.py where a process of its own is a function: it trains up to the batch FITS, else it fails as FAILURE says.
SEARCH = f"""
import json, os, sys
sys.path.insert(0, {str(STUDY)!r})
import study
def one(workload, allocator, tables, seconds, more):
    batch = float(more[more.index("--batch") + 1])
    assert more[more.index("--steps") + 1] == str(study.CEILING_STEPS)
    assert (tables == "inline") == (allocator == "moonbright")
    if batch <= float(os.environ["FITS"]):
        return {{"complete": True, "error": ""}}, ""
    failure = json.loads(os.environ["FAILURE"])
    return (failure, "") if isinstance(failure, dict) else (None, failure)
study.one = one
sys.exit(study.main())
"""


class Ceiling(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.file = pathlib.Path(directory.name) / "study.jsonl"
        self.program = pathlib.Path(directory.name) / "search.py"
        self.program.write_text(SEARCH)

    def search(self, fits, *more, failure={"complete": False, "error": "out of memory: no"}):
        done = subprocess.run([PYTHON, self.program, "ceiling", self.file, "--workloads", "gpt2", *more], text=True,
                              env={**os.environ, "FITS": str(fits), "FAILURE": json.dumps(failure)}, capture_output=True,
                              check=False)
        rows = [json.loads(line) for line in self.file.read_text().splitlines()] if self.file.exists() else []
        return done, rows

    def test_five_probes_tell_two_percent(self):
        for fits in (0.78, 0.9, 1.02, 1.11, 1.17):
            self.file.unlink(missing_ok=True)
            done, (found,) = self.search(fits, "--allocators", "default")
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertEqual((found["found"], len(found["probes"]), found["steps"]), ("between", 5, 12))
            self.assertLessEqual(found["largest_batch"], fits)
            self.assertGreater(found["smallest_failed"], fits)
            self.assertLess(found["resolution"], 0.02)
            self.assertAlmostEqual(found["smallest_failed"] / found["largest_batch"] - 1, found["resolution"], 3)

    def test_a_side_that_was_not_found_is_told(self):
        done, (found,) = self.search(0.1, "--allocators", "default")
        self.assertIn("fails, nothing down to the bound of 0.75 trained under 24.0 GiB", done.stdout)
        self.assertEqual((found["found"], found["largest_batch"], found["resolution"]),
                         ("lower bound does not train", None, None))
        done, (_, found) = self.search(9, "--allocators", "moonbright")
        self.assertIn("trains, nothing up to the bound of 1.2 failed", done.stdout)
        self.assertEqual((found["found"], found["smallest_failed"], found["resolution"]),
                         ("upper bound never reached", None, None))
        report = call(STUDY / "study.py", "report", self.file)
        self.assertEqual(len(report.stdout.splitlines()), 2, report.stdout)

    def test_other_failures_say_nothing_about_the_batch(self):
        for failure in ("FAILED: gpt2 default: RuntimeError: illegal address", {"complete": False, "error": ""}):
            done, rows = self.search(1.0, failure=failure)
            self.assertEqual((done.returncode, rows), (1, []), done.stdout)
            self.assertIn("gpt2, moonbright, inline: batch 1.0670: ", done.stdout)
            self.assertIn("3 searches are not in study.jsonl", done.stdout)

    def test_what_is_there_is_not_searched_again(self):
        old = {"what": "torch-ceiling", "workload": "gpt2", "allocator": "default", "configured_tables": None,
               "cap_bytes": 24 << 30, "largest_batch": 1.1892, "probes": []}
        self.file.write_text(json.dumps(old) + "\n")
        _, rows = self.search(1.0)
        self.assertEqual([r["allocator"] for r in rows], ["default", "default", "expandable", "moonbright"])
        _, rows = self.search(1.0)
        self.assertEqual(len(rows), 4)
        _, rows = self.search(1.0, "--cap", str(23 << 30), "--allocators", "expandable")
        self.assertEqual([(r["allocator"], r["cap_bytes"] >> 30) for r in rows[4:]], [("expandable", 23)])

    def test_unknown_allocators_are_refused(self):
        done, rows = self.search(1.0, "--allocators", "default,best")
        self.assertEqual((done.returncode, rows), (2, []))
        self.assertIn("no allocator best; there are default, expandable, moonbright", done.stderr)

    def test_a_larger_batch_has_more_tokens_in_every_step(self):
        done = call("-c", f"""
import random, sys
sys.path.insert(0, {str(STUDY)!r})
from workloads import extended, scaled
for count, length in ((12, 976), (6, 256), (1, 1016)):
    assert scaled(count, length, 1.0) == (count, length)
    for batch in (0.75, 0.9, 1.01, 1.11, 1.5):
        sequences, each = scaled(count, length, batch)
        assert each <= length and 0 <= count * length * batch - sequences * each < sequences + 1, (count, length, batch)
lengths, before = [700, 12, 4096, 90], []
state = random.getstate()
for batch in (0.01, 0.5, 0.95, 1.0, 1.01, 1.5, 3.0):
    taken = extended(lengths, 4096, batch)
    assert sum(taken) == int(batch * sum(lengths)) and min(taken) > 0 and max(taken) <= 4096
    assert batch != 1.0 or taken == lengths
    assert taken[:len(before) - 1] == before[:-1], "a larger batch begins as the smaller one"
    before = taken
assert random.getstate() == state
""")
        self.assertEqual(done.returncode, 0, done.stderr)


class DataParallel(unittest.TestCase):
    def test_both_workloads_train_on_two_ranks(self):
        for workload in ("gpt2", "ragged-transformer"):
            if workload == "gpt2" and call("-c", "import transformers").returncode:
                print(f"SKIP: test_torch_study: {workload}: {PYTHON} has no transformers")
                continue
            done = call("-B", DDP, "--cpu-tiny", "--workload", workload)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
            self.assertEqual([(r["rank"], r["again"], r["steps"]) for r in rows],
                             [(0, 0, 6), (1, 0, 6), (0, 0, 6), (1, 0, 6), (0, 1, 6), (1, 1, 6)])
            self.assertNotEqual(rows[0]["losses_hex"], rows[1]["losses_hex"], "both ranks had the same data")
            self.assertIn(f"PASS: ddp: {workload}: losses are the same, bit by bit", done.stdout)

    def test_the_verdict_needs_the_control(self):
        done = call("-B", "-c", f"""
import sys
sys.path.insert(0, {str(DDP.parent)!r})
from ddp import verdict
def ranks(value, other=8.0):
    return [{{"losses_hex": [value.hex()]}}, {{"losses_hex": [other.hex()]}}]
assert verdict(ranks(4.0), ranks(4.0), ranks(4.0)) == ("", "losses are the same, bit by bit")
wrong, _ = verdict(ranks(4.0), ranks(4.001), ranks(4.0))
assert "those of two runs of the default allocator do not" in wrong, wrong
assert verdict(ranks(4.0), ranks(4.001), ranks(4.002))[0] == ""
assert "the last losses are" in verdict(ranks(4.0), ranks(4.0, 9.0), ranks(4.002))[0]
""")
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_a_refusal_begins_all_pairs_anew(self):
        done = call("-B", "-c", f"""
import sys
sys.path.insert(0, {str(DDP.parent)!r})
import ddp
asked = []
def pair(allocator, workload, mode, again):
    asked.append((allocator, mode, again))
    if mode == "strict" and allocator == "b":
        raise ddp.NotDeterministic("refused")
    return [{{"allocator": allocator, "again": again, "rank": rank, "losses_hex": [(1.0).hex()],
             "step_ms": {{"median": 1.0}}, "deterministic": mode}} for rank in range(2)]
ddp.pair = pair
assert ddp.compare("a", "b", "w") == 0
assert asked == [("a", "strict", 0), ("b", "strict", 0), ("a", "warn", 0), ("b", "warn", 0), ("a", "warn", 1)], asked
""")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("ddp: begun anew: refused", done.stdout)


if __name__ == "__main__":
    unittest.main()
