# SPDX-License-Identifier: MIT
"""Four places for keys and values, one interface.

    seq, hit = cache.begin(prompt)             a sequence that holds the first `hit` tokens of the prompt already
    cache.grow({seq: n, ...})                  room for new tokens, for a whole step
    out = cache.attend(layer, seqs, counts, q, k, v)   stores the new tokens' k and v, returns what q sees
    cache.done(seq, tokens)                    its tokens are computed: others may use them
    cache.fork(seq); cache.reorder(seqs, parents); cache.end(seq)

Ranges: moonbright_kv, on MoonBright, on CUDA's mapping calls, or on host memory. Paged: blocks of 16 tokens, a block
table, prefixes shared by the same rule. Concat: a tensor per sequence and layer that grows by concatenation and is
copied for every fork and reorder, as HuggingFace's dynamic cache is.
"""
import torch

from . import attention


def _spans(counts):
    at = 0
    for count in counts:
        yield at, at + count
        at += count


def _stream(device):
    return torch.cuda.current_stream().cuda_stream if device != "cpu" else 0


class Ranges:
    """A moonbright_kv.Cache."""

    def __init__(self, cache, dtype, triton=False):
        self.kv, self.dtype, self.triton = cache, dtype, triton
        self.device = cache.device
        self.lengths, self.views = {}, {}
        self.batch, self.step = (None, None), None  # of the kernel: first addresses; lengths, until the next grow

    def begin(self, prompt, share=True):
        seq = self.kv.open()
        hit = self.kv.attach(seq, prompt[:-1]) if share else 0
        self.lengths[seq] = hit
        return seq, hit

    def grow(self, counts):
        self.kv.append(counts, _stream(self.device))
        for seq, count in counts.items():
            self.lengths[seq] += count
        self.step = None

    def _tensors(self, seq, layer):
        # Addresses last as long as the sequence, so the tensors do.
        key = (seq, layer)
        if key not in self.views:
            self.views[key] = self.kv.tensors(seq, layer, self.dtype)
        return self.views[key]

    def attend(self, layer, seqs, counts, q, k, v):
        if self.triton and max(counts) == 1:
            return self._decode(layer, seqs, q, k, v)
        out = torch.empty_like(q)
        for seq, (at, end) in zip(seqs, _spans(counts)):
            keys, values = self._tensors(seq, layer)
            m = self.lengths[seq]
            keys[m - (end - at):m] = k[at:end]
            values[m - (end - at):m] = v[at:end]
            out[at:end] = attention.attend_one(q[at:end], keys[:m], values[:m])
        return out

    def _decode(self, layer, seqs, q, k, v):
        if self.batch[0] != seqs:  # addresses last as long as sequences, so this is rare
            first = [self.kv.view(s, 0, False).base for s in seqs]
            self.batch = (list(seqs), torch.tensor(first, dtype=torch.int64, device=self.device))
        if self.step is None:
            self.step = torch.tensor([self.lengths[s] for s in seqs], dtype=torch.int32, device=self.device)
        shape, half = self.kv.shape, k[0].nbytes
        keys = self.batch[1] + (layer // shape.group_layers * shape.range_bytes +
                                layer % shape.group_layers * 2 * half)
        values, stride = keys + half, shape.page_bytes // shape.block_tokens // self.dtype.itemsize
        attention.store_batch(k, v, self.step, keys, values, stride)
        return attention.decode_batch(q, self.step, keys, values, stride, k.shape[1])

    def done(self, seq, tokens):
        self.kv.publish(seq, tokens[:self.lengths[seq]])

    def fork(self, seq):
        child = self.kv.fork(seq)
        self.lengths[child] = self.lengths[seq]
        return child

    def reorder(self, seqs, parents):
        self.kv.reorder(seqs, parents)
        lengths = [self.lengths[seqs[p]] for p in parents]
        self.lengths.update(zip(seqs, lengths))

    def end(self, seq):
        self.kv.free(seq)
        del self.lengths[seq]
        self.views = {key: value for key, value in self.views.items() if key[0] != seq}


class Paged:
    """Blocks of `block` tokens in one pool, and a table per sequence."""

    def __init__(self, shape, blocks, dtype, device, block=16, triton=False):
        self.block, self.dtype, self.device, self.triton = block, dtype, device, triton
        self.pool = torch.zeros(shape.layers, 2, blocks, block, shape.kv_heads, shape.head_dim, dtype=dtype,
                                device=device)
        self.free = list(range(blocks))[::-1]
        self.refs = [0] * blocks
        self.tables, self.lengths = {}, {}
        self.known, self.cached = {}, {}  # (tokens up to its end) -> block, and back; oldest first
        self.next_seq, self.step, self.copied_bytes = 1, None, 0

    def _take(self):
        if not self.free:
            for key, block in self.known.items():
                if self.refs[block] == 0:
                    del self.known[key], self.cached[block]
                    self.free.append(block)
                    break
            else:
                raise MemoryError("no block is free, and no unused prefix is left to evict")
        block = self.free.pop()
        self.refs[block] = 1
        return block

    def _drop(self, block):
        self.refs[block] -= 1
        if not self.refs[block] and block not in self.cached:
            self.free.append(block)

    def _new(self, table, length):
        seq, self.next_seq = self.next_seq, self.next_seq + 1
        self.tables[seq], self.lengths[seq] = table, length
        return seq

    def begin(self, prompt, share=True):
        table = []
        while share and (len(table) + 1) * self.block < len(prompt):
            block = self.known.get(tuple(prompt[:(len(table) + 1) * self.block]))
            if block is None:
                break
            self.refs[block] += 1
            table.append(block)
        return self._new(table, len(table) * self.block), len(table) * self.block

    def grow(self, counts):
        copies = []
        for seq, count in counts.items():
            table, length = self.tables[seq], self.lengths[seq]
            if length % self.block and self.refs[table[-1]] > 1:
                copies.append((table[-1], self._take()))
                self._drop(table[-1])
                table[-1] = copies[-1][1]
            while len(table) * self.block < length + count:
                table.append(self._take())
            self.lengths[seq] += count
        if copies:
            src, dst = (torch.tensor(side, device=self.device) for side in zip(*copies))
            self.pool[:, :, dst] = self.pool[:, :, src]
            self.copied_bytes += len(copies) * self.pool[:, :, 0].nbytes
        self.step = None

    def _prepare(self, seqs, counts):
        blocks = [self.tables[s] for s in seqs]
        widest = max(map(len, blocks))
        table = torch.tensor([b + [0] * (widest - len(b)) for b in blocks], dtype=torch.int32, device=self.device)
        lengths = torch.tensor([self.lengths[s] for s in seqs], dtype=torch.int32, device=self.device)
        where = torch.tensor([self.tables[s][t // self.block] * self.block + t % self.block
                              for s, n in zip(seqs, counts) for t in range(self.lengths[s] - n, self.lengths[s])],
                             device=self.device)
        return table, lengths, where

    def attend(self, layer, seqs, counts, q, k, v):
        if self.step is None:
            self.step = self._prepare(seqs, counts)
        table, lengths, where = self.step
        keys, values = self.pool[layer]
        keys.view(-1, *k.shape[1:])[where] = k
        values.view(-1, *v.shape[1:])[where] = v
        if self.triton and max(counts) == 1:
            return attention.decode_batch(q, lengths, keys, values, keys.stride(1), k.shape[1], table, self.block,
                                          keys.stride(0))
        out = torch.empty_like(q)
        for i, (seq, (at, end)) in enumerate(zip(seqs, _spans(counts))):
            m = self.lengths[seq]
            row = table[i, :len(self.tables[seq])].long()
            gathered = (x[row].reshape(-1, *k.shape[1:])[:m] for x in (keys, values))
            out[at:end] = attention.attend_one(q[at:end], *gathered)
        return out

    def done(self, seq, tokens):
        for i in range(self.lengths[seq] // self.block):
            key, block = tuple(tokens[:(i + 1) * self.block]), self.tables[seq][i]
            if key not in self.known and block not in self.cached:
                self.known[key], self.cached[block] = block, key

    def fork(self, seq):
        for block in self.tables[seq]:
            self.refs[block] += 1
        return self._new(list(self.tables[seq]), self.lengths[seq])

    def reorder(self, seqs, parents):
        tables = [list(self.tables[seqs[p]]) for p in parents]
        lengths = [self.lengths[seqs[p]] for p in parents]
        for block in (b for table in tables for b in table):
            self.refs[block] += 1
        for block in (b for s in seqs for b in self.tables[s]):
            self._drop(block)
        for seq, table, length in zip(seqs, tables, lengths):
            self.tables[seq], self.lengths[seq] = table, length

    def end(self, seq):
        for block in self.tables.pop(seq):
            self._drop(block)
        del self.lengths[seq]


class Concat:
    """Tensors that grow by concatenation; nothing is shared."""

    def __init__(self, shape):
        self.layers, self.next_seq, self.held = shape.layers, 1, {}

    def begin(self, prompt, share=True):
        del prompt, share
        seq, self.next_seq = self.next_seq, self.next_seq + 1
        self.held[seq] = [None] * self.layers
        return seq, 0

    def grow(self, counts):
        del counts

    def attend(self, layer, seqs, counts, q, k, v):
        out = torch.empty_like(q)
        for seq, (at, end) in zip(seqs, _spans(counts)):
            old = self.held[seq][layer]
            new = (k[at:end], v[at:end])
            self.held[seq][layer] = new if old is None else tuple(torch.cat(pair) for pair in zip(old, new))
            out[at:end] = attention.attend_one(q[at:end], *self.held[seq][layer])
        return out

    def done(self, seq, tokens):
        del seq, tokens

    def fork(self, seq):
        child, self.next_seq = self.next_seq, self.next_seq + 1
        self.held[child] = [tuple(x.clone() for x in pair) for pair in self.held[seq]]
        return child

    def reorder(self, seqs, parents):
        copies = [[tuple(x.clone() for x in pair) for pair in self.held[seqs[p]]] for p in parents]
        self.held.update(zip(seqs, copies))

    def end(self, seq):
        del self.held[seq]
