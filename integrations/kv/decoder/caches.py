# SPDX-License-Identifier: MIT
"""Four places for keys and values, one interface.

    seq, hit = cache.begin(prompt)             a sequence that holds the first `hit` tokens of the prompt already
    cache.grow({seq: n, ...})                  room for new tokens, for a whole step
    cache.attend(layer, seqs, counts, qkv, turn, out)  rotates, stores the new tokens' keys and values, attends
    cache.done(seq, tokens)                    its tokens are computed: others may use them
    cache.fork(seq); cache.reorder(seqs, parents); cache.end(seq)
    cache.settle()                             what ended sequences showed is taken away now, not later
    cache.invent(tokens)                       a prefix of drawn keys and values, published as if computed

Ranges: moonbright_kv, on MoonBright, on CUDA's mapping calls, or on host memory. Paged: blocks of 16 tokens, a block
table, prefixes shared by the same rule. Concat: tensors that grow by concatenation and are copied for every fork and
reorder, as HuggingFace's dynamic cache does it: one tensor per layer for a batch that decodes together. The first two with
FlashInfer's kernels are in flashinfer_kernels.py.

`triton`: kernels rotate and store in one go and attend for batches of single tokens. `spent`: seconds of the host in
begin() and grow(), where attaching and mapping are; search.py counts them.
"""
import torch

from . import attention, kernels


def spans(counts):
    at = 0
    for count in counts:
        yield at, at + count
        at += count


def _stream(device):
    return torch.cuda.current_stream().cuda_stream if device != "cpu" else 0


def _owners(counts, device):
    """Which sequence each token of a step is of."""
    if len(counts) == 1:
        return torch.zeros(counts[0], dtype=torch.int64, device=device)
    if max(counts) == 1 == min(counts):
        return torch.arange(len(counts), device=device)
    return kernels.upload([i for i, count in enumerate(counts) for _ in range(count)], device)


class Cache:
    """What all caches share; `triton` and `kv_heads` are theirs."""

    spent = 0.0
    triton = False

    def settle(self):
        pass

    def occupancy(self):
        """(tokens of living sequences, tokens that the blocks they use have room for); shared ones once."""
        return 1, 1  # as large as its tokens

    def _at_once(self, counts):
        """Whether _decode() serves the whole step, or each sequence attends by itself."""
        return self.triton and max(counts) == 1

    def attend(self, layer, seqs, counts, qkv, turn, out):
        place = self._place(seqs, counts, turn)
        if self.triton:
            q = kernels.turn_and_store(qkv, turn, self.kv_heads, place, layer)
        else:
            q, k, v = kernels.turn_plain(qkv, turn, self.kv_heads)
            self._store(layer, seqs, counts, k, v)
        if self._at_once(counts):
            self._decode(layer, q, out)
            return
        for i, (seq, (at, end)) in enumerate(zip(seqs, spans(counts))):
            keys, values = self._seen(layer, seq, i)  # [1, kv_heads, tokens, head_dim]
            seen = attention.attend_heads(q[at:end].transpose(0, 1)[None], keys, values)
            out[at:end] = seen[0].transpose(0, 1)


class Ranges(Cache):
    """A moonbright_kv.Cache."""

    def __init__(self, cache, dtype, triton=False):
        self.kv, self.dtype, self.triton = cache, dtype, triton
        self.device, self.kv_heads = cache.device, cache.config.kv_heads
        self.lengths, self.bases, self.views = {}, {}, {}
        self.batch, self.step = ([], None), None  # first addresses of sequences; of a step, until the next grow
        shape, config = cache.shape, cache.config
        self.head = config.kv_heads * config.head_dim  # elements of a token's keys in one layer
        self.stride = shape.page_bytes // shape.block_tokens // dtype.itemsize
        self.offsets = kernels.upload([layer // shape.group_layers * shape.range_bytes +
                                       layer % shape.group_layers * 2 * self.head * dtype.itemsize
                                       for layer in range(config.layers)], self.device)

    def _added(self, seq, tokens):
        self.lengths[seq] = tokens
        self.bases[seq] = self.kv.view(seq, 0, False).base
        return seq

    def begin(self, prompt, share=True):
        seq = self.kv.open()
        hit = self.kv.attach(seq, prompt[:-1]) if share else 0
        return self._added(seq, hit), hit

    def grow(self, counts):
        self.kv.append(counts, _stream(self.device))
        for seq, count in counts.items():
            self.lengths[seq] += count
        self.step = None

    def _tensors(self, seq):
        """Of all layers, as attention takes them; by address, as those of a dead sequence serve the next one."""
        base = self.bases[seq]
        if base not in self.views:
            self.views[base] = [tuple(x.transpose(0, 1)[None] for x in self.kv.tensors(seq, layer, self.dtype))
                                for layer in range(self.kv.config.layers)]
        return self.views[base]

    def _place(self, seqs, counts, turn):
        if self.step is None and self.triton:
            if self.batch[0] != seqs:
                self.batch = (list(seqs), kernels.upload([self.bases[s] for s in seqs], self.device))
            at = self.batch[1][_owners(counts, self.device)] + turn.positions * (self.stride * self.dtype.itemsize)
            self.step = (kernels.Place(at, self.offsets, self.head), (turn.positions + 1).to(torch.int32))
        return self.step and self.step[0]

    def _store(self, layer, seqs, counts, k, v):
        for seq, (at, end) in zip(seqs, spans(counts)):
            keys, values = self._tensors(seq)[layer]
            m = self.lengths[seq]
            keys[0, :, m - (end - at):m] = k[at:end].transpose(0, 1)
            values[0, :, m - (end - at):m] = v[at:end].transpose(0, 1)

    def _seen(self, layer, seq, _number):
        return (x[:, :, :self.lengths[seq]] for x in self._tensors(seq)[layer])

    def _decode(self, layer, q, out):
        attention.decode_batch(q, self.step[1], self.batch[1], self.offsets, layer, self.head, self.stride,
                               self.kv_heads, out=out)

    @torch.inference_mode()
    def invent(self, tokens):
        seq, _ = self.begin(tokens, share=False)
        self.grow({seq: len(tokens)})
        for pair in self._tensors(seq):
            for x in pair:
                x[:, :, :len(tokens)].normal_()
        self.done(seq, tokens)
        self.end(seq)

    def settle(self):
        self.kv.sync(_stream(self.device))

    def occupancy(self):
        stats, block = self.kv.stats(), self.kv.shape.block_tokens
        spare = stats.shown_blocks * block - stats.live_tokens  # as Paged
        return stats.live_blocks * block - spare, stats.live_blocks * block

    def done(self, seq, tokens):
        self.kv.publish(seq, tokens[:self.lengths[seq]])

    def fork(self, seq):
        return self._added(self.kv.fork(seq), self.lengths[seq])

    def reorder(self, seqs, parents):
        self.kv.reorder(seqs, parents)
        lengths = [self.lengths[seqs[p]] for p in parents]
        self.lengths.update(zip(seqs, lengths))

    def end(self, seq):
        self.kv.free(seq)
        del self.lengths[seq], self.bases[seq]


class Paged(Cache):
    """Blocks of `block` tokens in one pool, and a table per sequence.

    A published block is known by the one before it and its own tokens; blocks that nobody uses are evicted least
    recently used first, of a sequence the last ones first."""

    def __init__(self, shape, blocks, dtype, device, block=16, triton=False):
        self.block, self.dtype, self.device, self.triton = block, dtype, device, triton
        self.kv_heads = shape.kv_heads
        self.pool = torch.zeros(shape.layers, 2, blocks, block, shape.kv_heads, shape.head_dim, dtype=dtype,
                                device=device)
        self.head = shape.kv_heads * shape.head_dim
        self.base = self.pool.data_ptr()
        self.offsets = torch.arange(shape.layers, device=device) * (self.pool.stride(0) * dtype.itemsize)
        self.free = list(range(blocks))[::-1]
        self.refs = [0] * blocks
        self.tables, self.lengths = {}, {}
        self.known, self.cached, self.idle = {}, {}, {}  # (number before, tokens) -> block; block -> (key, number)
        self.next_seq, self.next_number, self.step, self.copies, self.copied_bytes = 1, 1, None, 0, 0

    def _take(self):
        if not self.free:
            if not self.idle:
                raise MemoryError("no block is free, and no unused prefix is left to evict")
            block = next(iter(self.idle))
            del self.idle[block], self.known[self.cached.pop(block)[0]]
            self.free.append(block)
        block = self.free.pop()
        self.refs[block] = 1
        return block

    def _use(self, block):
        self.refs[block] += 1
        self.idle.pop(block, None)

    def _drop(self, block):
        self.refs[block] -= 1
        if self.refs[block]:
            return
        if block in self.cached:
            self.idle[block] = None
        else:
            self.free.append(block)

    def _new(self, table, length):
        seq, self.next_seq = self.next_seq, self.next_seq + 1
        self.tables[seq], self.lengths[seq] = table, length
        return seq

    def _key(self, number, tokens, i):
        return number, tuple(tokens[i * self.block:(i + 1) * self.block])

    def begin(self, prompt, share=True):
        table, number = [], 0
        while share and (len(table) + 1) * self.block < len(prompt):
            block = self.known.get(self._key(number, prompt, len(table)))
            if block is None:
                break
            number = self.cached[block][1]
            self._use(block)
            table.append(block)
        return self._new(table, len(table) * self.block), len(table) * self.block

    def grow(self, counts):
        copies = []
        for seq, count in counts.items():
            table, length = self.tables[seq], self.lengths[seq]
            if count and length % self.block and self.refs[table[-1]] > 1:
                copies.append((table[-1], self._take()))
                self._drop(table[-1])
                table[-1] = copies[-1][1]
            while len(table) * self.block < length + count:
                table.append(self._take())
            self.lengths[seq] += count
        if copies:
            self._copy(copies)
        self.step = None

    def _copy(self, copies):
        self.copies += len(copies)
        self.copied_bytes += len(copies) * self.pool[:, :, 0].nbytes
        if self.triton:
            attention.copy_blocks(self.pool.flatten(0, 1), copies)
        else:
            src, dst = (torch.tensor(side, device=self.device) for side in zip(*copies))
            self.pool[:, :, dst] = self.pool[:, :, src]

    def _place(self, seqs, counts, turn):
        if self.step is None:
            blocks = [self.tables[s] for s in seqs]
            widest = max(map(len, blocks))
            flat = [x for b in blocks for x in (*b, *[0] * (widest - len(b)))]
            table = kernels.upload(flat, self.device, torch.int32).view(len(seqs), widest)
            token = table[_owners(counts, self.device), turn.positions // self.block].long() * self.block
            token += turn.positions % self.block
            base = torch.full((len(seqs),), self.base, device=self.device)
            at = self.base + token * (self.head * self.dtype.itemsize)
            self.step = (kernels.Place(at, self.offsets, self.pool.stride(1)), table,
                         (turn.positions + 1).to(torch.int32), token, base)
        return self.step[0]

    def _store(self, layer, seqs, counts, k, v):
        del seqs, counts
        for pool, x in zip(self.pool[layer], (k, v)):
            pool.view(-1, *x.shape[1:])[self.step[3]] = x

    def _seen(self, layer, seq, number):
        """A copy: the flash attention of PyTorch's public calls takes no block tables."""
        row = self.step[1][number, :len(self.tables[seq])]
        gathered = self.pool[layer].index_select(1, row).flatten(1, 2)[:, :self.lengths[seq]]
        return (x.transpose(0, 1)[None] for x in gathered)

    def _decode(self, layer, q, out):
        place, table, lengths, _, base = self.step
        attention.decode_batch(q, lengths, base, self.offsets, layer, place.value_step, self.head, self.kv_heads,
                               table, self.block, self.pool.stride(2), out=out)

    def done(self, seq, tokens):
        number = 0
        for i in range(self.lengths[seq] // self.block):
            key, block = self._key(number, tokens, i), self.tables[seq][i]
            if key not in self.known:
                if block in self.cached:  # known behind another block: one that was evicted meanwhile
                    break
                self.known[key], self.cached[block] = block, (key, self.next_number)
                self.next_number += 1
            number = self.cached[self.known[key]][1]

    @torch.inference_mode()
    def invent(self, tokens):
        seq, _ = self.begin(tokens, share=False)
        self.grow({seq: len(tokens)})
        rows = kernels.upload(self.tables[seq], self.device)
        for plane in self.pool.flatten(0, 1):
            plane.index_copy_(0, rows, torch.randn(len(rows), *plane.shape[1:], dtype=self.dtype, device=self.device))
        self.done(seq, tokens)
        self.end(seq)

    def occupancy(self):
        """Only last blocks have room left, and those of different sequences are different but for forks."""
        used = len(self.refs) - len(self.free) - len(self.idle)
        spare = sum(len(self.tables[seq]) * self.block - length for seq, length in self.lengths.items())
        return used * self.block - spare, used * self.block

    def fork(self, seq):
        for block in self.tables[seq]:
            self._use(block)
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
        for block in reversed(self.tables.pop(seq)):
            self._drop(block)
        del self.lengths[seq]

    def clear(self):
        self.pool = self.step = None


class Concat(Cache):
    """Tensors [tokens, kv_heads, head_dim] that grow by concatenation; nothing is shared.

    Sequences of one length that decode together lie in one tensor per layer and kind, [sequences, tokens, ...], as long
    as the batch stays the same."""

    def __init__(self, shape, fused=False):
        self.kv_heads, self.layers, self.fused = shape.kv_heads, shape.layers, fused
        self.next_seq, self.held, self.batch = 1, {}, ([], None)

    def begin(self, prompt, share=True):
        del prompt, share
        seq, self.next_seq = self.next_seq, self.next_seq + 1
        self.held[seq] = [None] * self.layers
        return seq, 0

    def grow(self, counts):
        if self.batch[0] and list(counts) != self.batch[0]:
            self._scatter()

    def _scatter(self):
        for i, seq in enumerate(self.batch[0]):
            self.held[seq] = [tuple(x[i] for x in pair) for pair in self.batch[1]]
        self.batch = ([], None)

    def _gather(self, seqs):
        """A batch, if the sequences can be one: all have tokens, and as many."""
        if any(self.held[s][0] is None for s in seqs) or len({len(self.held[s][0][0]) for s in seqs}) > 1:
            return False
        layers = []
        for layer in range(self.layers):
            layers.append(tuple(torch.stack([self.held[s][layer][kind] for s in seqs]) for kind in (0, 1)))
            for s in seqs:
                self.held[s][layer] = None
        self.batch = (list(seqs), layers)
        return True

    def attend(self, layer, seqs, counts, qkv, turn, out):
        q, k, v = (kernels.turn_fused if self.fused else kernels.turn_plain)(qkv, turn, self.kv_heads)
        together = max(counts) == 1 and (self.batch[0] == seqs or (layer == 0 and self._gather(seqs)))
        if together:
            pair = tuple(torch.cat((old, new[:, None]), 1) for old, new in zip(self.batch[1][layer], (k, v)))
            self.batch[1][layer] = pair
            keys, values = (x.transpose(1, 2) for x in pair)
            out.copy_(attention.attend_heads(q[:, :, None], keys, values)[:, :, 0])
            return
        for seq, (at, end) in zip(seqs, spans(counts)):
            old, new = self.held[seq][layer], (k[at:end], v[at:end])
            if old is None:
                self.held[seq][layer] = tuple(x.clone() for x in new) if len(seqs) > 1 or not self.fused else new
            else:
                self.held[seq][layer] = tuple(torch.cat(pair) for pair in zip(old, new))
            out[at:end] = attention.attend_one(q[at:end], *self.held[seq][layer])

    def done(self, seq, tokens):
        del seq, tokens

    def fork(self, seq):
        self._scatter()
        child, self.next_seq = self.next_seq, self.next_seq + 1
        self.held[child] = [tuple(x.clone() for x in pair) for pair in self.held[seq]]
        return child

    def reorder(self, seqs, parents):
        if self.batch[0] == seqs:
            rows = kernels.upload(parents, self.batch[1][0][0].device)
            for layer, pair in enumerate(self.batch[1]):
                self.batch[1][layer] = tuple(x.index_select(0, rows) for x in pair)
            return
        self._scatter()
        copies = [[tuple(x.clone() for x in pair) for pair in self.held[seqs[p]]] for p in parents]
        self.held.update(zip(seqs, copies))

    def end(self, seq):
        self._scatter()
        del self.held[seq]

    def clear(self):
        self.held, self.batch = {}, ([], None)
