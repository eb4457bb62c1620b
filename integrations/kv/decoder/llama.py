# SPDX-License-Identifier: MIT
"""The model: embedding, layers of grouped-query attention and SwiGLU, RMS norms, rotary positions.

Weights are drawn from a seed, so a run can be repeated and every cache sees the same model. Tokens of several
sequences go through together as one list [tokens, hidden]; only attention knows sequences, and it is the cache's.
"""
import dataclasses
import math

import torch
import torch.nn.functional as F


@dataclasses.dataclass(frozen=True)
class Shape:
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    inner: int
    vocabulary: int = 32000
    rope: float = 10000.0

    @property
    def head_dim(self):
        return self.hidden // self.heads


SHAPES = {
    "llama-2-7b": Shape(32, 4096, 32, 32, 11008),
    "llama-3-8b": Shape(32, 4096, 32, 8, 14336, 128256, 500000.0),
    "tiny": Shape(3, 64, 4, 2, 96, 211),
}


def norm(x, weight):
    return F.rms_norm(x, (x.shape[-1],), weight, 1e-5)


class Llama:
    def __init__(self, shape, dtype=torch.bfloat16, device="cpu", seed=1):
        self.shape, self.dtype, self.device = shape, dtype, device
        generator = torch.Generator(device=device).manual_seed(seed)

        def draw(rows, columns):
            weight = torch.empty(rows, columns, dtype=dtype, device=device)
            return weight.normal_(0, 1 / math.sqrt(columns), generator=generator)

        s, kv = shape, shape.kv_heads * shape.head_dim
        self.embedding = draw(s.vocabulary, s.hidden).mul_(math.sqrt(s.hidden))
        self.output = draw(s.vocabulary, s.hidden)
        self.layers = [{"qkv": draw(s.hidden + 2 * kv, s.hidden), "out": draw(s.hidden, s.hidden),
                        "up": draw(2 * s.inner, s.hidden), "down": draw(s.hidden, s.inner),
                        "norm1": torch.ones(s.hidden, dtype=dtype, device=device),
                        "norm2": torch.ones(s.hidden, dtype=dtype, device=device)} for _ in range(s.layers)]
        half = torch.arange(0, s.head_dim, 2, device=device, dtype=torch.float64) / s.head_dim
        self.frequencies = s.rope ** -half

    def _rotate(self, x, positions):
        """x [tokens, heads, head_dim]; pairs are (i, i + half)."""
        angles = positions.to(torch.float64)[:, None] * self.frequencies
        cos, sin = angles.cos().float()[:, None], angles.sin().float()[:, None]
        a, b = x.float().chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(self.dtype)

    @torch.inference_mode()
    def forward(self, tokens, positions, attend, last):
        """Logits [len(last), vocabulary] of the tokens at the places `last`.

        tokens, positions: of all sequences, one behind the other. attend(layer, q, k, v), each [tokens, heads,
        head_dim], stores k and v and returns what q sees."""
        s = self.shape
        tokens = torch.as_tensor(tokens, device=self.device)
        positions = torch.as_tensor(positions, device=self.device)
        x = self.embedding[tokens]
        for number, layer in enumerate(self.layers):
            qkv = F.linear(norm(x, layer["norm1"]), layer["qkv"]).view(len(tokens), -1, s.head_dim)
            q, k, v = qkv.split((s.heads, s.kv_heads, s.kv_heads), 1)
            seen = attend(number, self._rotate(q, positions), self._rotate(k, positions), v)
            x = x + F.linear(seen.reshape(len(tokens), -1), layer["out"])
            gate, up = F.linear(norm(x, layer["norm2"]), layer["up"]).chunk(2, -1)
            x = x + F.linear(F.silu(gate) * up, layer["down"])
        x = x[torch.as_tensor(last, device=self.device)]
        return F.linear(norm(x, torch.ones_like(x[0])), self.output).float()

    def uncached(self, tokens):
        """Logits of the last of `tokens`, everything computed anew: what caches are checked against."""
        from .attention import attend_one

        def attend(_layer, q, k, v):
            return attend_one(q, k, v)

        return self.forward(tokens, range(len(tokens)), attend, [len(tokens) - 1])[0]
