# SPDX-License-Identifier: MIT
"""Caches with FlashInfer's attention: the same memory, sharing and steps, other kernels.

Paged has block tables, as these kernels are made for. Ranges have none: a sequence is one run of consecutive blocks, so
its table is a count from its first address on, and says nothing that the addresses do not.

FlashInfer is no part of this project. `scripts/flashinfer-prepare` fetches its wheel and compiles the kernels that are
wanted here; MB_FLASHINFER names the directory it made. A step is planned on the host when its first layer attends, as
FlashInfer wants it, and nothing of it is recorded as a CUDA graph, as with every other cache.
"""
import contextlib
import importlib
import itertools
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
        cache = Paged(shape, 16, dtype, device, heads=heads, triton=False)
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


class _Kernels:
    """Attention of whole steps: BatchDecodeWithPagedKVCacheWrapper where each sequence has one token, else
    BatchPrefillWithPagedKVCacheWrapper, which reads blocks where they are. Comes before a cache of caches.py, and has
    tables_of(), planes() and `block`, the tokens of one, from the class that joins the two."""

    def _open(self, device, dtype, heads, kv_heads, head_dim):
        self.form, self.kinds = (heads, kv_heads, head_dim), {"q_data_type": dtype, "kv_data_type": dtype}
        flashinfer = load()
        workspace = torch.zeros(WORKSPACE_BYTES if device != "cpu" else 1, dtype=torch.uint8, device=device)
        with _refusals("FlashInfer's wrappers"):
            self.one = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD")
            self.many = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD")
        self.planned = None

    def grow(self, counts):
        super().grow(counts)
        self.planned = None

    def plan(self, seqs, counts):
        """For all layers of a step; lengths have its new tokens already."""
        indptr, indices = self.tables_of(seqs)
        indptr = torch.tensor(indptr, dtype=torch.int32)
        last = torch.tensor([(self.lengths[s] - 1) % self.block + 1 for s in seqs], dtype=torch.int32)
        with _refusals(f"plan() for {len(seqs)} sequences"):
            if max(counts) == 1:
                self.planned = self.one
                self.one.plan(indptr, indices, last, *self.form, self.block, **self.kinds)
            else:
                self.planned = self.many
                starts = torch.tensor([0, *(end for _, end in caches.spans(counts))], dtype=torch.int32)
                self.many.plan(starts, indptr, indices, last, *self.form, self.block, causal=True, **self.kinds)

    def run(self, layer, q, out):
        with _refusals("run()"):
            self.planned.run(q, self.planes(layer), out=out)

    def _place(self, seqs, counts, turn):
        place = super()._place(seqs, counts, turn)
        if self.planned is None:
            self.plan(seqs, counts)
        return place

    def _at_once(self, counts):
        return True

    def _decode(self, layer, q, out):
        self.run(layer, q, out)


class Paged(_Kernels, caches.Paged):
    def __init__(self, shape, blocks, dtype, device, block=16, triton=False, heads=None):
        super().__init__(shape, blocks, dtype, device, block, triton)
        self._open(device, dtype, heads or shape.heads, shape.kv_heads, shape.head_dim)

    def tables_of(self, seqs):
        """(where each sequence's blocks begin and end, on the host; the blocks' numbers, on the device)."""
        blocks = [self.tables[s] for s in seqs]
        numbers = kernels.upload([b for table in blocks for b in table], self.device, torch.int32)
        return [0, *itertools.accumulate(map(len, blocks))], numbers

    def planes(self, layer):
        return self.pool[layer, 0], self.pool[layer, 1]

    def adopt(self, keys, values):
        """A sequence that has these keys and values [tokens, kv_heads, head_dim] in layer 0."""
        seq, _ = self.begin([0] * len(keys), share=False)
        self.grow({seq: len(keys)})
        for at, block in zip(range(0, len(keys), self.block), self.tables[seq]):
            for plane, x in zip(self.pool[0], (keys, values)):
                plane[block, :len(x[at:at + self.block])] = x[at:at + self.block]
        return seq


class Ranges(_Kernels, caches.Ranges):
    """Blocks are numbered by address, from the lowest one of a sequence on: block 0 is shown, because what kernels do
    not need they may name as the first element of all, without reading it."""

    def __init__(self, cache, dtype, triton=False, heads=None):
        super().__init__(cache, dtype, triton)
        self.block, self.block_bytes = cache.shape.block_tokens, cache.shape.page_bytes
        self.low, self.high, self.seen, self.places = 0, 0, [], self.offsets.tolist()
        self._open(self.device, dtype, heads, self.kv_heads, cache.config.head_dim)

    def tables_of(self, seqs):
        bases = [self.bases[s] for s in seqs]
        self._reach(min(bases), max(bases))
        counts = [-(-self.lengths[s] // self.block) for s in seqs]
        ends = [0, *itertools.accumulate(counts)]
        first = torch.tensor([(base - self.low) // self.block_bytes - at for base, at in zip(bases, ends)],
                             dtype=torch.int32)
        numbers = first.repeat_interleave(torch.tensor(counts)) + torch.arange(ends[-1], dtype=torch.int32)
        return ends, kernels.send(numbers, self.device)

    def _reach(self, first, last):
        """Tensors [blocks, tokens, kv_heads, head_dim] of all layers, from one sequence's range to another's that hold
        those of the step. Most of their addresses show nothing; only what tables name is read."""
        if self.low in self.bases.values() and self.low <= first and last <= self.high:
            return
        self.low, self.high = first, max(self.bases.values())
        if any((base - first) % self.block_bytes for base in self.bases.values()):
            raise Unusable(f"ranges are no whole blocks of {self.block_bytes} bytes apart")
        config = self.kv.config
        count = (self.high - self.low) // self.block_bytes + -(-config.max_tokens // self.block)
        form = (count, self.block, self.kv_heads, config.head_dim)
        stride = (self.block * self.stride, self.stride, config.head_dim, 1)
        self.seen = [tuple(self.kv.tensor_at(self.low + offset + side * self.head * self.dtype.itemsize, form, stride,
                                             self.dtype) for side in (0, 1)) for offset in self.places]

    def planes(self, layer):
        return self.seen[layer]
