# SPDX-License-Identifier: MIT
"""What the model does between matrix products, each in one kernel, so that the host of a small step is not in the way.

Every function has a plain PyTorch form, which a CPU uses and which the kernels are checked against. `fused` chooses;
under TRITON_INTERPRET=1 the kernels run on a CPU as well.
"""
import collections

import torch
import torch.nn.functional as F

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

# Of a step's tokens: cosines and sines [tokens, head_dim / 2] float32, and positions int64.
Turn = collections.namedtuple("Turn", "cos sin positions")

# Where a step's keys and values go: token t's keys of a layer at at[t] + offsets[layer] bytes, its values
# `value_step` elements behind them; at and offsets are int64 tensors of addresses.
Place = collections.namedtuple("Place", "at offsets value_step")


def upload(values, device, kind=torch.int64):
    """Numbers as a tensor, without waiting for what the device is busy with."""
    return send(torch.tensor(values, dtype=kind), device)


def send(tensor, device):
    """A tensor of the host likewise."""
    if torch.device(device).type == "cpu":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)


if triton:
    @triton.jit
    def _swiglu_kernel(up_ptr, out_ptr, INNER: tl.constexpr, TILE: tl.constexpr):
        row = tl.program_id(0).to(tl.int64)
        i = tl.program_id(1) * TILE + tl.arange(0, TILE)
        live = i < INNER
        gate = tl.load(up_ptr + row * 2 * INNER + i, mask=live, other=0.0).to(tl.float32)
        up = tl.load(up_ptr + row * 2 * INNER + INNER + i, mask=live, other=0.0).to(tl.float32)
        tl.store(out_ptr + row * INNER + i, (gate / (1 + tl.exp(-gate)) * up).to(out_ptr.dtype.element_ty), mask=live)

    @triton.jit(do_not_specialize=["layer"])
    def _turn_kernel(qkv_ptr, q_ptr, k_ptr, v_ptr, cos_ptr, sin_ptr, at_ptr, offsets_ptr, layer, value_step,
                     HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HALF: tl.constexpr, HEADS_UP: tl.constexpr,
                     KV_UP: tl.constexpr, PLACED: tl.constexpr):
        """One token: its queries and keys rotated, keys and values stored where the cache wants them."""
        token = tl.program_id(0).to(tl.int64)
        i = tl.arange(0, HALF)[None, :]
        cos = tl.load(cos_ptr + token * HALF + i)
        sin = tl.load(sin_ptr + token * HALF + i)
        row = qkv_ptr + token * (HEADS + 2 * KV_HEADS) * 2 * HALF
        head = tl.arange(0, HEADS_UP)[:, None]
        at = head * 2 * HALF + i
        a = tl.load(row + at, mask=head < HEADS, other=0.0).to(tl.float32)
        b = tl.load(row + at + HALF, mask=head < HEADS, other=0.0).to(tl.float32)
        kind = q_ptr.dtype.element_ty
        out = q_ptr + token * HEADS * 2 * HALF + at
        tl.store(out, (a * cos - b * sin).to(kind), mask=head < HEADS)
        tl.store(out + HALF, (b * cos + a * sin).to(kind), mask=head < HEADS)
        if PLACED:
            keys = (tl.load(at_ptr + token) + tl.load(offsets_ptr + layer)).to(q_ptr.dtype)
            keys = tl.multiple_of(keys, 16)
            values = keys + value_step
        else:
            keys = k_ptr + token * KV_HEADS * 2 * HALF
            values = v_ptr + token * KV_HEADS * 2 * HALF
        head = tl.arange(0, KV_UP)[:, None]
        at = head * 2 * HALF + i
        row += HEADS * 2 * HALF
        a = tl.load(row + at, mask=head < KV_HEADS, other=0.0).to(tl.float32)
        b = tl.load(row + at + HALF, mask=head < KV_HEADS, other=0.0).to(tl.float32)
        tl.store(keys + at, (a * cos - b * sin).to(kind), mask=head < KV_HEADS)
        tl.store(keys + at + HALF, (b * cos + a * sin).to(kind), mask=head < KV_HEADS)
        row += KV_HEADS * 2 * HALF
        tl.store(values + at, tl.load(row + at, mask=head < KV_HEADS), mask=head < KV_HEADS)
        tl.store(values + at + HALF, tl.load(row + at + HALF, mask=head < KV_HEADS), mask=head < KV_HEADS)


def swiglu(up, fused):
    """up [tokens, 2 * inner]: gate and value; silu(gate) * value."""
    rows, inner = up.shape[0], up.shape[1] // 2
    if not fused:
        return F.silu(up[:, :inner]) * up[:, inner:]
    out = torch.empty(rows, inner, dtype=up.dtype, device=up.device)
    tile = min(4096, triton.next_power_of_2(inner))
    _swiglu_kernel[(rows, triton.cdiv(inner, tile))](up, out, INNER=inner, TILE=tile)
    return out


def _rotate(x, turn):
    """x [tokens, heads, head_dim]; pairs are (i, i + half)."""
    cos, sin = turn.cos[:, None], turn.sin[:, None]
    a, b = x.float().chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)


def turn_plain(qkv, turn, kv_heads):
    """qkv [tokens, heads + 2 * kv_heads, head_dim]: queries, keys and values, the first two rotated."""
    q, k, v = qkv.split((qkv.shape[1] - 2 * kv_heads, kv_heads, kv_heads), 1)
    return _rotate(q, turn), _rotate(k, turn), v


def _launch(qkv, turn, kv_heads, q, k, v, place, layer):
    tokens, all_heads, d = qkv.shape
    heads = all_heads - 2 * kv_heads
    _turn_kernel[(tokens,)](qkv, q, k, v, turn.cos, turn.sin, place.at if place else turn.positions,
                            place.offsets if place else turn.positions, layer, place.value_step if place else 0,
                            HEADS=heads, KV_HEADS=kv_heads, HALF=d // 2, HEADS_UP=triton.next_power_of_2(heads),
                            KV_UP=triton.next_power_of_2(kv_heads), PLACED=place is not None)


def turn_fused(qkv, turn, kv_heads):
    """turn_plain() in one kernel; keys and values get tensors of their own."""
    tokens, heads, d = qkv.shape
    q = torch.empty(tokens, heads - 2 * kv_heads, d, dtype=qkv.dtype, device=qkv.device)
    k, v = (torch.empty(tokens, kv_heads, d, dtype=qkv.dtype, device=qkv.device) for _ in range(2))
    _launch(qkv, turn, kv_heads, q, k, v, None, 0)
    return q, k, v


def turn_and_store(qkv, turn, kv_heads, place, layer):
    """turn_plain() in one kernel that stores keys and values in the cache; the queries."""
    tokens, heads, d = qkv.shape
    q = torch.empty(tokens, heads - 2 * kv_heads, d, dtype=qkv.dtype, device=qkv.device)
    _launch(qkv, turn, kv_heads, q, q, q, place, layer)
    return q
