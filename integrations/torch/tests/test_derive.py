#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""study/derive.py on small models: every combination of techniques gives a trace that can be replayed and means what it says.

MB_TORCH_PYTHON names the interpreter that has PyTorch, torchvision and numpy; skipped without.
"""
import gzip
import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

STUDY = pathlib.Path(__file__).resolve().parent.parent / "study"
PYTHON = os.environ.get("MB_TORCH_PYTHON", sys.executable)
STEPS, TOP, EXPERTS = 2, 2, 3

if os.environ.get("MB_DERIVE_INSIDE") != "1":
    if subprocess.run([PYTHON, "-c", "import numpy, torch, torchvision"], capture_output=True, check=False).returncode:
        print(f"SKIP: test_torch_derive: {PYTHON} lacks PyTorch, torchvision or numpy; MB_TORCH_PYTHON names one that has them")
        sys.exit(77)
    sys.exit(subprocess.call([PYTHON, __file__], env={**os.environ, "MB_DERIVE_INSIDE": "1"}))

import torch  # noqa: E402

spec = importlib.util.spec_from_file_location("derive", STUDY / "derive.py")
derive = importlib.util.module_from_spec(spec)
spec.loader.exec_module(derive)

derive.MODELS = {
    "experts": (lambda: derive.language_model(8, 64, 4, 512, lambda i: derive.Experts(i, 64, EXPERTS, TOP, 96, 128)),
                derive.text(128, 2)),
    "dense": (lambda: derive.densenet("DenseNet", growth_rate=8, block_config=(2, 3, 5, 3), num_init_features=16),
              lambda: torch.zeros(16, 3, 64, 64, dtype=derive.HALF)),
}


class Trace:
    """A derived trace, checked line by line."""

    def __init__(self, name, directory):
        with gzip.open(pathlib.Path(directory) / f"{name}.csv.gz", "rt") as file:
            self.text = file.read()
        self.loads, self.peak, now, live, ended = [], 0, 0, {}, set()
        for line in self.text.splitlines():
            if line.startswith("# loads,"):
                self.loads.append([int(n) for n in line.split(",")[1:]])
            if line.startswith("#"):
                continue
            op, number, size, stream = line.split(",")
            assert stream == "0" and int(size) > 0, line
            if op == "a":
                assert number not in live and number not in ended, f"{name}: {line}: allocated twice"
                live[number] = size
            else:
                assert op == "f" and live.pop(number, None) == size, f"{name}: {line}: not allocated, or with another size"
                ended.add(number)
            now += int(size) if op == "a" else -int(size)
            self.peak = max(self.peak, now)
        self.left = now


class Derive(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with tempfile.TemporaryDirectory() as directory:
            names = {(model, chosen): derive.name_of(model, chosen)
                     for model in derive.MODELS for chosen in derive.COMBINATIONS}
            for group in derive.together(names.values()):
                derive.derive(group, pathlib.Path(directory), STEPS)
            cls.traces = {key: Trace(name, directory) for key, name in names.items()}
            cls.weights = {model: sum(p.nbytes for layer in make() for p in layer.parameters())
                           for model, (make, _) in derive.MODELS.items()}

    def test_sixteen_combinations_and_all_differ(self):
        self.assertEqual(len(derive.COMBINATIONS), 16)
        for model in derive.MODELS:
            texts = {trace.text.split("\n", 1)[1] for (of, _), trace in self.traces.items() if of == model}
            self.assertEqual(len(texts), 16)

    def test_what_is_made_ends(self):
        for (model, chosen), trace in self.traces.items():
            # torchvision's model holds itself, so its weights and the last batch's counters live on.
            self.assertLessEqual(trace.left, 1.01 * self.weights[model] if model == "dense" else 0, (model, chosen))

    def test_each_technique_lowers_the_peak(self):
        for (model, chosen), trace in self.traces.items():
            for technique in chosen:
                without = self.traces[model, chosen.replace(technique, "")]
                if technique == "v" and ("z" in chosen or "r" in chosen):
                    continue  # ZeRO 3 without a pipeline, ZeRO 1 with one; and microbatches under way keep their inputs
                # Of the small models' rank in a pipeline most is weights: its two groups keep one layer each.
                if technique == "r" and "v" in chosen:
                    self.assertLessEqual(trace.peak, 1.2 * without.peak, (model, chosen))
                elif "v" in chosen and "z" in chosen and "o" in chosen:  # states of ZeRO 1 that are away are so already
                    self.assertLessEqual(trace.peak, without.peak, (model, chosen, technique))
                else:
                    self.assertLess(trace.peak, without.peak, (model, chosen, technique))

    def test_derived_alone_or_with_others_it_is_the_same(self):
        with tempfile.TemporaryDirectory() as directory:
            for chosen in ("rvz", "vo", "zo"):
                derive.derive(["experts+" + chosen], pathlib.Path(directory), STEPS)
                self.assertEqual(Trace("experts+" + chosen, directory).text, self.traces["experts", chosen].text)

    def test_experts_get_all_choices_and_the_same_under_every_technique(self):
        for (model, chosen), trace in self.traces.items():
            if model != "experts":
                self.assertEqual(trace.loads, [])
                continue
            self.assertEqual(trace.loads, self.traces[model, "v" if "v" in chosen else ""].loads, chosen)
            self.assertEqual({load[0] for load in trace.loads}, set(range(STEPS)))
            for _, _, _, tokens, *counts in trace.loads:
                self.assertEqual(len(counts), EXPERTS)
                self.assertEqual(sum(counts), TOP * tokens)
                self.assertLessEqual(max(counts), tokens)

    def test_a_pipeline_runs_each_pass_once_and_forward_first(self):
        for groups, microbatches, ranks in ((2, 8, 4), (1, 4, 4), (3, 8, 2), (2, 4, 4)):
            seen = set()
            for forward, *which in derive.interleaved(groups, microbatches, ranks):
                key = (forward, *which)
                self.assertNotIn(key, seen)
                self.assertTrue(forward or (True, *which) in seen)
                seen.add(key)
            self.assertEqual(len(seen), 2 * groups * microbatches)

    def test_a_densenet_cut_in_parts_computes_the_same(self):
        torch.manual_seed(1)
        layers = derive.MODELS["dense"][0]()
        whole = torch.nn.Sequential(*layers[:-1]).float().eval()
        x = torch.randn(2, 3, 64, 64)
        with torch.no_grad():
            for count in (2, 5, 8):
                out = x
                for module in [m for chunk in derive.densenet_chunks(layers, count) for m in chunk][:-1]:
                    out = module(out)
                self.assertTrue(torch.equal(out, whole(x)), count)


if __name__ == "__main__":
    unittest.main(verbosity=1)
