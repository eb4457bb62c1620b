# SPDX-License-Identifier: MIT
"""Attention over caches.

attend_one: PyTorch's scaled_dot_product_attention on one sequence's keys and values, a strided view [tokens, heads,
head_dim] wherever it lies; for prompts on every cache, and for all on a CPU.

decode_batch: one query per sequence for a whole batch, in Triton. The same kernel serves ranges of addresses and block
tables: only where token t of a sequence is differs, so that the two can be compared. Addresses are read from memory,
so the kernel is told that they are multiples of 16 bytes; else it would load element by element.
"""
import math

import torch
import torch.nn.functional as F

from . import kernels

triton = kernels.triton
if triton:
    import triton.language as tl


def attend_heads(q, k, v):
    """q [1, heads, n, d] are the last n of the m tokens of k and v [1, kv_heads, m, d]; causal. The result as q."""
    n, m = q.shape[2], k.shape[2]
    if q.is_cuda and 1 < n < m and q.dtype in (torch.float16, torch.bfloat16):
        # Flash attention's own causal form ends at the last key and knows groups of heads; what the public call takes
        # for that, causal_lower_right, was far slower than a prompt without a prefix on an H200 (PyTorch 2.11).
        return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True)[0]
    mask = torch.ones(n, m, dtype=torch.bool, device=q.device).tril(m - n) if 1 < n < m else None
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=n == m and n > 1,
                                          enable_gqa=q.shape[1] != k.shape[1])


def attend_one(q, k, v):
    """attend_heads() for q [n, heads, d], k and v [m, kv_heads, d]."""
    return attend_heads(*(x.transpose(0, 1)[None] for x in (q, k, v)))[0].transpose(0, 1)


if triton:
    @triton.jit(do_not_specialize=["layer"])
    def _decode_kernel(q_ptr, part_ptr, max_ptr, sum_ptr, base_ptr, offsets_ptr, layer, value_step, table_ptr,
                       length_ptr, token_stride, block_stride, table_stride, scale, splits, GROUP: tl.constexpr,
                       D: tl.constexpr, TILE: tl.constexpr, PAGED: tl.constexpr, BLOCK: tl.constexpr,
                       KV_HEADS: tl.constexpr, ROWS: tl.constexpr):
        """One program: one sequence, one KV head with its GROUP query heads, one split of the tokens."""
        seq, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
        length = tl.load(length_ptr + seq)
        per = tl.cdiv(tl.cdiv(length, splits), TILE) * TILE
        first = split * per
        end = tl.minimum(first + per, length)
        rows, dims = tl.arange(0, ROWS), tl.arange(0, D)
        q_at = (seq * KV_HEADS * GROUP + head * GROUP + rows[:, None]) * D + dims[None, :]
        q = tl.load(q_ptr + q_at, mask=rows[:, None] < GROUP, other=0.0)
        keys = (tl.load(base_ptr + seq) + tl.load(offsets_ptr + layer)).to(q_ptr.dtype)
        keys = tl.multiple_of(keys, 16)
        values = keys + value_step
        best = tl.full((ROWS,), -float("inf"), tl.float32)
        total = tl.zeros((ROWS,), tl.float32)
        acc = tl.zeros((ROWS, D), tl.float32)
        for at in range(first, end, TILE):
            t = at + tl.arange(0, TILE)
            live = t < end
            if PAGED:
                block = tl.load(table_ptr + seq * table_stride + t // BLOCK, mask=live, other=0).to(tl.int64)
                where = block * block_stride + (t % BLOCK).to(tl.int64) * token_stride
            else:
                where = t.to(tl.int64) * token_stride
            where = where[:, None] + head * D + dims[None, :]
            k = tl.load(keys + where, mask=live[:, None], other=0.0)
            v = tl.load(values + where, mask=live[:, None], other=0.0)
            score = tl.sum(q[:, None, :].to(tl.float32) * k[None, :, :].to(tl.float32), 2) * scale
            score = tl.where(live[None, :], score, -float("inf"))
            top = tl.maximum(best, tl.max(score, 1))
            weight = tl.exp(score - top[:, None])
            shrink = tl.exp(best - top)
            total = total * shrink + tl.sum(weight, 1)
            acc = acc * shrink[:, None] + tl.sum(weight[:, :, None] * v[None, :, :].to(tl.float32), 1)
            best = top
        part = (seq * KV_HEADS + head) * splits + split
        keep = rows < GROUP
        tl.store(max_ptr + part * GROUP + rows, best, mask=keep)
        tl.store(sum_ptr + part * GROUP + rows, total, mask=keep)
        tl.store(part_ptr + (part * GROUP + rows[:, None]) * D + dims[None, :], acc, mask=keep[:, None])

    @triton.jit
    def _combine_kernel(part_ptr, max_ptr, sum_ptr, out_ptr, splits, GROUP: tl.constexpr, D: tl.constexpr,
                        SPLITS: tl.constexpr):
        """One program: one query head of one sequence; its splits, each by its weight."""
        row = tl.program_id(0)
        head, member = row // GROUP, row % GROUP
        split, dims = tl.arange(0, SPLITS), tl.arange(0, D)
        live = split < splits
        at = (head * splits + split) * GROUP + member
        best = tl.load(max_ptr + at, mask=live, other=-float("inf"))
        # Splits without a token have total 0 and best -inf: weight 0. Every sequence has a token, so one has not.
        weight = tl.exp(best - tl.max(best, 0))
        total = tl.sum(tl.load(sum_ptr + at, mask=live, other=0.0) * weight, 0)
        part = tl.load(part_ptr + at[:, None] * D + dims[None, :], mask=live[:, None], other=0.0)
        out = tl.sum(part * weight[:, None], 0) / total
        tl.store(out_ptr + row * D + dims, out.to(out_ptr.dtype.element_ty))

    @triton.jit
    def _copy_kernel(list_ptr, TILE: tl.constexpr):
        one = list_ptr + 3 * tl.program_id(0)
        i = tl.program_id(1) * TILE + tl.arange(0, TILE)
        dst = tl.multiple_of(tl.load(one).to(list_ptr.dtype), 16)
        src = tl.multiple_of(tl.load(one + 1).to(list_ptr.dtype), 16)
        live = i < tl.load(one + 2) // 8
        tl.store(dst + i, tl.load(src + i, mask=live), mask=live)

    @triton.jit
    def _copy_blocks_kernel(pool_ptr, pair_ptr, plane_stride, COUNT: tl.constexpr, TILE: tl.constexpr):
        one, plane = tl.program_id(0), tl.program_id(1).to(tl.int64)
        i = tl.program_id(2) * TILE + tl.arange(0, TILE)
        src, dst = tl.load(pair_ptr + 2 * one), tl.load(pair_ptr + 2 * one + 1)
        at = pool_ptr + plane * plane_stride + i
        tl.store(at + dst * COUNT, tl.load(at + src * COUNT, mask=i < COUNT), mask=i < COUNT)


def copy_batch(copies, device="cuda"):
    """copies: a buffer of 64-bit numbers, (dst, src, bytes) for each; addresses are multiples of 16, bytes of 8. One
    upload and one kernel for all, without a loop over them here: there may be thousands."""
    table, tile = torch.frombuffer(copies, dtype=torch.int64).view(-1, 3), 4096
    largest = int(table[:, 2].max())
    _copy_kernel[(len(table), triton.cdiv(largest // 8, tile))](kernels.send(table, device), TILE=tile)


def copy_blocks(pool, pairs):
    """pool [planes, blocks, ...]: block `src` over block `dst`, in all planes, for pairs (src, dst); one kernel."""
    count, tile = pool[0, 0].numel(), 4096
    flat = kernels.upload([block for pair in pairs for block in pair], pool.device)
    _copy_blocks_kernel[(len(pairs), len(pool), triton.cdiv(count, tile))](pool, flat, pool.stride(0), COUNT=count,
                                                                         TILE=tile)


def decode_batch(q, lengths, base, offsets, layer, value_step, token_stride, kv_heads, table=None, block_tokens=1,
                 block_stride=0, splits=None, out=None):
    """q [sequences, heads, d]; the result alike. Strides and value_step are in elements.

    Keys of a sequence begin at base[sequence] + offsets[layer] bytes, its values value_step elements behind them; base
    and offsets are int64 tensors. With tables, table [sequences, blocks] int32 names its blocks from there on."""
    count, heads, d = q.shape
    group = heads // kv_heads
    if splits is None:
        splits = max(1, min(32, 528 // max(1, count * kv_heads)))
    part = torch.empty(count, kv_heads, splits, group, d, dtype=torch.float32, device=q.device)
    best = torch.empty(count, kv_heads, splits, group, dtype=torch.float32, device=q.device)
    total = torch.empty_like(best)
    out = torch.empty_like(q) if out is None else out
    _decode_kernel[(count, kv_heads, splits)](
        q, part, best, total, base, offsets, layer, value_step, table if table is not None else lengths, lengths,
        token_stride, block_stride, table.stride(0) if table is not None else 0, 1 / math.sqrt(d), splits,
        GROUP=group, D=d, TILE=32, PAGED=table is not None, BLOCK=block_tokens, KV_HEADS=kv_heads,
        ROWS=triton.next_power_of_2(group))
    _combine_kernel[(count * heads,)](part, best, total, out, splits, GROUP=group, D=d,
                                      SPLITS=triton.next_power_of_2(splits))
    return out
