# SPDX-License-Identifier: MIT
"""Attention over caches.

attend_one: PyTorch's scaled_dot_product_attention on one sequence's keys and values, a strided view [tokens, heads,
head_dim] wherever it lies; for prompts on every cache, and for all on a CPU.

decode_batch: one query per sequence for a whole batch, in Triton. The same kernel serves ranges of addresses and block
tables: only where token t of a sequence is differs, so that the two can be compared.
"""
import math

import torch
import torch.nn.functional as F

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None


def attend_one(q, k, v):
    """q [n, heads, d] are the last n of the m tokens of k and v [m, kv_heads, d]; causal."""
    n, m = len(q), len(k)
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    if q.is_cuda and 1 < n < m and q.dtype in (torch.float16, torch.bfloat16):
        # Flash attention's own causal form ends at the last key and knows groups of heads; what the public call takes
        # for that, causal_lower_right, was far slower than a prompt without a prefix on an H200 (PyTorch 2.11).
        out = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True)[0]
        return out[0].transpose(0, 1)
    mask = torch.ones(n, m, dtype=torch.bool, device=q.device).tril(m - n) if 1 < n < m else None
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=n == m and n > 1,
                                         enable_gqa=q.shape[1] != k.shape[1])
    return out[0].transpose(0, 1)


if triton:
    @triton.jit
    def _decode_kernel(q_ptr, out_ptr, part_ptr, max_ptr, sum_ptr, keys_ptr, values_ptr, table_ptr, length_ptr,
                       token_stride, block_stride, table_stride, scale, splits, GROUP: tl.constexpr, D: tl.constexpr,
                       TILE: tl.constexpr, PAGED: tl.constexpr, BLOCK: tl.constexpr, KV_HEADS: tl.constexpr,
                       ROWS: tl.constexpr):
        """One program: one sequence, one KV head with its GROUP query heads, one split of the tokens."""
        seq, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
        length = tl.load(length_ptr + seq)
        per = tl.cdiv(tl.cdiv(length, splits), TILE) * TILE
        first = split * per
        end = tl.minimum(first + per, length)
        rows, dims = tl.arange(0, ROWS), tl.arange(0, D)
        q_at = (seq * KV_HEADS * GROUP + head * GROUP + rows[:, None]) * D + dims[None, :]
        q = tl.load(q_ptr + q_at, mask=rows[:, None] < GROUP, other=0.0)
        if PAGED:
            keys = keys_ptr
            values = values_ptr
        else:
            kind = q_ptr.dtype
            keys = tl.load(keys_ptr + seq).to(kind)
            values = tl.load(values_ptr + seq).to(kind)
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
    def _store_kernel(k_ptr, v_ptr, keys_ptr, values_ptr, length_ptr, token_stride, WIDTH: tl.constexpr,
                      PADDED: tl.constexpr):
        seq = tl.program_id(0)
        at = (tl.load(length_ptr + seq) - 1).to(tl.int64) * token_stride
        i = tl.arange(0, PADDED)
        keys = tl.load(keys_ptr + seq).to(k_ptr.dtype)
        values = tl.load(values_ptr + seq).to(v_ptr.dtype)
        tl.store(keys + at + i, tl.load(k_ptr + seq * WIDTH + i, mask=i < WIDTH), mask=i < WIDTH)
        tl.store(values + at + i, tl.load(v_ptr + seq * WIDTH + i, mask=i < WIDTH), mask=i < WIDTH)

    @triton.jit
    def _copy_kernel(dst_ptr, src_ptr, words_ptr, like_ptr, TILE: tl.constexpr):
        one = tl.program_id(0)
        i = tl.program_id(1) * TILE + tl.arange(0, TILE)
        live = i < tl.load(words_ptr + one)
        dst = tl.load(dst_ptr + one).to(like_ptr.dtype)
        src = tl.load(src_ptr + one).to(like_ptr.dtype)
        tl.store(dst + i, tl.load(src + i, mask=live), mask=live)


def store_batch(k, v, lengths, keys, values, token_stride):
    """k and v [sequences, kv_heads, d] become the last token of each sequence; addresses as in decode_batch."""
    width = k.shape[1] * k.shape[2]
    _store_kernel[(len(k),)](k.contiguous(), v.contiguous(), keys, values, lengths, token_stride, WIDTH=width,
                             PADDED=triton.next_power_of_2(width))


def copy_batch(copies, device="cuda"):
    """copies: (dst, src, bytes) by address, bytes multiples of 8; one kernel for all."""
    tile = 4096
    dst, src, words = (torch.tensor(column, dtype=torch.int64, device=device) for column in
                       zip(*[(d, s, n // 8) for d, s, n in copies]))
    most = max(n for _, _, n in copies) // 8
    _copy_kernel[(len(copies), (most + tile - 1) // tile)](dst, src, words, words, TILE=tile)


def decode_batch(q, lengths, keys, values, token_stride, kv_heads, table=None, block_tokens=1, block_stride=0,
                 splits=None):
    """q [sequences, heads, d]; the result alike. Strides are in elements.

    Ranges: keys and values are int64 tensors of addresses, one per sequence. Tables: they are the pool's tensors, and
    table [sequences, blocks] int32 names the blocks."""
    count, heads, d = q.shape
    group = heads // kv_heads
    if splits is None:
        splits = max(1, min(32, 528 // max(1, count * kv_heads)))
    part = torch.empty(count, kv_heads, splits, group, d, dtype=torch.float32, device=q.device)
    best = torch.empty(count, kv_heads, splits, group, dtype=torch.float32, device=q.device)
    total = torch.empty_like(best)
    _decode_kernel[(count, kv_heads, splits)](
        q.contiguous(), q, part, best, total, keys, values, table if table is not None else lengths, lengths,
        token_stride, block_stride, table.stride(0) if table is not None else 0, 1 / math.sqrt(d), splits,
        GROUP=group, D=d, TILE=32, PAGED=table is not None, BLOCK=block_tokens, KV_HEADS=kv_heads,
        ROWS=triton.next_power_of_2(group))
    # Splits without a token have total 0 and best -inf: weight 0.
    weight = torch.exp(best - best.amax(2, keepdim=True)).nan_to_num(0.0)
    out = (part * weight[..., None]).sum(2) / (total * weight).sum(2)[..., None]
    return out.reshape(count, heads, d).to(q.dtype)
