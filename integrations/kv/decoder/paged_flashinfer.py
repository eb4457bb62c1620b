# SPDX-License-Identifier: MIT
"""The paged cache with FlashInfer's attention: the same pool, tables and sharing, other kernels.

FlashInfer is no part of this project. `scripts/flashinfer-prepare` fetches its wheel and compiles the kernels that are
wanted here; MB_FLASHINFER names the directory it made. A step is planned on the host when its first layer attends, as
FlashInfer wants it, and nothing of it is recorded as a CUDA graph, as with every other cache.
"""
import contextlib
import importlib
import os
import sys

import torch

from . import attention, caches, kernels

WORKSPACE_BYTES = 128 << 20  # what FlashInfer's documentation recommends


class Unusable(RuntimeError):
    """FlashInfer is not there, or refused."""


def _first_line(error):
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"[:200]


@contextlib.contextmanager
def _refusals(call):
    """What FlashInfer raises, from Python or through its bindings, is told like a cache without room."""
    try:
        yield
    except (RuntimeError, ValueError, TypeError, AssertionError) as error:
        raise Unusable(f"{call}: {_first_line(error)}") from error


def load():
    """The module flashinfer, from where it is installed or from MB_FLASHINFER. Nothing is compiled here: that takes
    minutes, so a kernel that is missing is an error."""
    folder = os.environ.get("MB_FLASHINFER", "")
    if folder and folder not in sys.path:
        sys.path.append(folder)  # behind what this machine has itself
    os.environ.setdefault("FLASHINFER_DISABLE_JIT", "1")
    try:
        return importlib.import_module("flashinfer")
    except Exception as error:  # whatever fails inside it: the other caches go on without
        raise Unusable(f"import flashinfer: {_first_line(error)}") from error


def probe(dtype, device, heads=8, kv_heads=2, head_dim=128):
    """Attends once each way and compares with PyTorch; raises Unusable with the reason."""
    try:
        shape = _ProbeShape(heads, kv_heads, head_dim)
        cache = PagedFlashInfer(shape, 16, dtype, device, heads=heads, triton=False)
        q, keys, values = (torch.randn(40, n, head_dim, dtype=dtype, device=device)
                           for n in (heads, kv_heads, kv_heads))
        for new in (40, 7, 1):
            seq = cache.adopt(keys, values)
            out = torch.empty(new, heads, head_dim, dtype=dtype, device=device)
            cache.plan([seq], [new])
            cache.run(0, q[-new:].contiguous(), out)
            torch.testing.assert_close(out, attention.attend_one(q[-new:], keys, values), atol=2e-2, rtol=2e-2)
            cache.end(seq)
    except Unusable:
        raise
    except Exception as error:
        raise Unusable(f"a first attention: {_first_line(error)}") from error


class _ProbeShape:
    layers = 1

    def __init__(self, heads, kv_heads, head_dim):
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim


class PagedFlashInfer(caches.Paged):
    """Attention of whole steps by FlashInfer: BatchDecodeWithPagedKVCacheWrapper where each sequence has one token,
    else BatchPrefillWithPagedKVCacheWrapper, which reads blocks where they are."""

    def __init__(self, shape, blocks, dtype, device, block=16, triton=False, heads=None):
        super().__init__(shape, blocks, dtype, device, block, triton)
        self.heads, self.head_dim = heads or shape.heads, shape.head_dim
        flashinfer = load()
        workspace = torch.zeros(WORKSPACE_BYTES if device != "cpu" else 1, dtype=torch.uint8, device=device)
        with _refusals("FlashInfer's wrappers"):
            self.one = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD")
            self.many = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD")
        self.planned = None

    def tables_of(self, seqs):
        """(indptr, indices, tokens in the last block) as FlashInfer takes them; the first and the last on the host."""
        blocks = [self.tables[s] for s in seqs]
        indptr = [0]
        for table in blocks:
            indptr.append(indptr[-1] + len(table))
        last = [(self.lengths[s] - 1) % self.block + 1 for s in seqs]
        indices = kernels.upload([b for table in blocks for b in table], self.device, torch.int32)
        return torch.tensor(indptr, dtype=torch.int32), indices, torch.tensor(last, dtype=torch.int32)

    def plan(self, seqs, counts):
        """For all layers of a step; lengths have its new tokens already."""
        indptr, indices, last = self.tables_of(seqs)
        shape = (self.heads, self.kv_heads, self.head_dim, self.block)
        kinds = {"q_data_type": self.dtype, "kv_data_type": self.dtype}
        with _refusals(f"plan() for {len(seqs)} sequences"):
            if max(counts) == 1:
                self.planned = self.one
                self.one.plan(indptr, indices, last, *shape, **kinds)
            else:
                self.planned = self.many
                starts = torch.tensor([0, *(end for _, end in caches.spans(counts))], dtype=torch.int32)
                self.many.plan(starts, indptr, indices, last, *shape, causal=True, **kinds)

    def run(self, layer, q, out):
        with _refusals("run()"):
            self.planned.run(q, (self.pool[layer, 0], self.pool[layer, 1]), out=out)

    def adopt(self, keys, values):
        """A sequence that has these keys and values [tokens, kv_heads, head_dim] in layer 0."""
        seq, _ = self.begin([0] * len(keys), share=False)
        self.grow({seq: len(keys)})
        for at, block in zip(range(0, len(keys), self.block), self.tables[seq]):
            for plane, x in zip(self.pool[0], (keys, values)):
                plane[block, :len(x[at:at + self.block])] = x[at:at + self.block]
        return seq

    def _place(self, seqs, counts, turn):
        fresh = self.step is None
        place = super()._place(seqs, counts, turn)
        if fresh:
            self.plan(seqs, counts)
        return place

    def _at_once(self, counts):
        return True

    def _decode(self, layer, q, out):
        self.run(layer, q, out)
