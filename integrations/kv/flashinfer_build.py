#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Compiles the FlashInfer kernels of decoder/flashinfer_kernels.py and puts all that they need into a directory.

    flashinfer_build.py SITE OUT      scripts/flashinfer-prepare calls it

SITE has the packages, and is first in PYTHONPATH. In OUT they are again, without FlashInfer's sources of other kernels,
and with the compiled ones where FlashInfer looks before it compiles. Needs no GPU.
"""
import importlib.util
import inspect
import pathlib
import shutil
import sys
import time

import torch

HERE = pathlib.Path(__file__).resolve().parent
SITE, OUT = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
KIND, INDEX, HEAD_DIM = torch.bfloat16, torch.int32, 128
CALLED = "_paged_sm90_kernel_mask_1"


def specs():
    """One token per sequence on CUDA cores, the wrapper's default; prompts as Hopper's default has them."""
    from flashinfer.jit import attention
    plain = (0, False, False)  # no positions, no window, no cap of logits
    yield attention.gen_batch_decode_module(KIND, KIND, KIND, INDEX, HEAD_DIM, HEAD_DIM, *plain)
    prompts = attention.gen_batch_prefill_module("fa3", KIND, KIND, KIND, INDEX, HEAD_DIM, HEAD_DIM, *plain, False)
    # Each of its eight kernels takes minutes; paged and causal is the only one called. The others stay undefined, which
    # the loader finds out when somebody calls them, as FlashInfer has its modules loaded lazily.
    prompts.sources = [path for path in prompts.sources if "_kernel_" not in path.name or CALLED in path.name]
    prompts.extra_ldflags = [*(prompts.extra_ldflags or []), "-Wl,-z,lazy"]
    yield prompts


def check_calls():
    """The tests' stand-in takes what the real wrappers take, by name and in the same order."""
    import flashinfer
    place = importlib.util.spec_from_file_location("fake", HERE / "tests/fake/flashinfer.py")
    fake = importlib.util.module_from_spec(place)
    place.loader.exec_module(fake)
    for name in ("BatchDecodeWithPagedKVCacheWrapper", "BatchPrefillWithPagedKVCacheWrapper"):
        for call in ("__init__", "plan", "run"):
            real = inspect.signature(getattr(getattr(flashinfer, name), call)).parameters
            ours = inspect.signature(getattr(getattr(fake, name), call)).parameters
            by_place = [p.name for p in ours.values() if p.kind is not p.KEYWORD_ONLY]
            missing = set(ours) - set(real)
            if call == "plan" and "q_data_type" in by_place:
                by_place = by_place[:by_place.index("q_data_type")]
            if missing or list(real)[:len(by_place)] != by_place:
                sys.exit(f"flashinfer_build: {name}.{call} takes {list(real)}, the tests' stand-in {list(ours)}")


def copy_site():
    """Of FlashInfer's sources only those that name a kernel's parts when it is asked for."""
    shutil.rmtree(OUT, ignore_errors=True)
    shutil.copytree(SITE, OUT, ignore=shutil.ignore_patterns("__pycache__", "data", "bin", "include", "*.a"))
    source, target = SITE / "flashinfer/data/csrc", OUT / "flashinfer/data/csrc"
    target.mkdir(parents=True)
    for path in [*source.glob("batch_decode*"), *source.glob("batch_prefill*")]:
        shutil.copy(path, target)


def main():
    begin = time.monotonic()
    check_calls()
    built = list(specs())
    for spec in built:
        spec.write_ninja()
        spec.build(verbose=False)
    copy_site()
    for spec in built:
        to = OUT / "flashinfer/data/aot" / spec.name
        to.mkdir(parents=True)
        shutil.copy(spec.jit_library_path, to)
    size = sum(path.stat().st_size for path in OUT.rglob("*") if path.is_file())
    print(f"flashinfer-prepare: {OUT}, {size / 1e6:.1f} MB, {len(built)} modules, {time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main()
