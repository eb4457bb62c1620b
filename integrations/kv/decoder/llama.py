# SPDX-License-Identifier: MIT
"""The model: embedding, layers of grouped-query attention and SwiGLU, RMS norms, rotary positions.

Weights are drawn from a seed, so a run can be repeated and every cache sees the same model. Tokens of several
sequences go through together as one list [tokens, hidden]; only attention knows sequences, and it is the cache's.

What lies between two attentions depends on the number of tokens alone. For up to `RECORDED` tokens it is recorded once
as a CUDA graph for that many, rounded up, and played back, so that launching does not take longer than computing.
Attention, and the store of keys and values, is never recorded: recordings know no cache and serve all of them.
"""
import dataclasses
import math

import torch
import torch.nn.functional as F

from . import kernels

RECORDED = 512


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


class Pieces:
    """Buffers for a number of tokens, and the model's pieces between attentions working on them.

    Piece 0 makes qkv of layer 0 from `tokens`; piece i takes `seen`, what attention of layer i - 1 returned, and makes
    qkv of layer i; the last one leaves the hidden state in `x`."""

    def __init__(self, model, rows):
        s = model.shape
        self.model, self.rows, self.graphs = model, rows, None

        def buffer(*shape, dtype=model.dtype):  # zeros: rows that no token uses must stay finite
            return torch.zeros(*shape, dtype=dtype, device=model.device)

        self.tokens = buffer(rows, dtype=torch.int64)
        self.x, self.seen = buffer(rows, s.hidden), buffer(rows, s.hidden)
        self.qkv = buffer(rows, (s.heads + 2 * s.kv_heads) * s.head_dim)

    def compute(self, i):
        model = self.model
        if i == 0:
            torch.index_select(model.embedding, 0, self.tokens, out=self.x)
        else:
            layer = model.layers[i - 1]
            self.x.addmm_(self.seen, layer["out"].t())
            up = torch.mm(norm(self.x, layer["norm2"]), layer["up"].t())
            self.x.addmm_(kernels.swiglu(up, model.fused), layer["down"].t())
        if i < model.shape.layers:
            torch.mm(norm(self.x, model.layers[i]["norm1"]), model.layers[i]["qkv"].t(), out=self.qkv)

    def record(self, pool, side):
        """Only calls of this thread can spoil the recording; MoonBright's own threads may go on."""
        graphs = []
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            for i in range(self.model.shape.layers + 1):  # what is made at first use is made now
                self.compute(i)
            torch.cuda.synchronize()
            for i in range(self.model.shape.layers + 1):
                graph = torch.cuda.CUDAGraph()
                graph.capture_begin(pool=pool, capture_error_mode="thread_local")
                try:
                    self.compute(i)
                finally:
                    graph.capture_end()
                graphs.append(graph)
        torch.cuda.synchronize()
        self.graphs = graphs

    def run(self, i):
        if self.graphs:
            self.graphs[i].replay()
        else:
            self.compute(i)


class Llama:
    def __init__(self, shape, dtype=torch.bfloat16, device="cpu", seed=1, fused=None, record=None):
        """fused: the kernels of kernels.py; record: pieces are kept for each number of tokens, and on a GPU recorded.
        By default both on a GPU and neither on a CPU."""
        gpu = torch.device(device).type == "cuda"
        self.shape, self.dtype, self.device = shape, dtype, device
        self.fused = (gpu and kernels.triton is not None) if fused is None else fused
        self.record, self.record_error = gpu if record is None else record, ""
        self.pieces, self.pool, self.side = {}, None, None
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
        self.last_norm = torch.ones(s.hidden, dtype=dtype, device=device)
        half = torch.arange(0, s.head_dim, 2, device=device, dtype=torch.float64) / s.head_dim
        self.frequencies = s.rope ** -half

    def _pieces(self, count):
        if not self.record or count > RECORDED:
            return Pieces(self, count)
        rows = 16 if count <= 16 else (count + 31) // 32 * 32
        if rows not in self.pieces:
            pieces = Pieces(self, rows)
            if pieces.x.is_cuda:
                try:
                    if not self.side:
                        self.pool, self.side = torch.cuda.graph_pool_handle(), torch.cuda.Stream()
                    pieces.record(self.pool, self.side)
                except RuntimeError as error:  # it works without, only slower; the bench tells it
                    self.record, self.record_error = False, str(error).splitlines()[0]
                    return Pieces(self, count)
            self.pieces[rows] = pieces
        return self.pieces[rows]

    def turn(self, positions):
        angles = positions.to(torch.float64)[:, None] * self.frequencies
        return kernels.Turn(angles.cos().float(), angles.sin().float(), positions)

    @torch.inference_mode()
    def forward(self, tokens, positions, attend, last):
        """Logits [len(last), vocabulary] of the tokens at the places `last`.

        tokens, positions: of all sequences, one behind the other. attend(layer, qkv, turn, out) rotates queries and
        keys, stores keys and values, and writes what the queries see to out; qkv and out are [tokens, heads,
        head_dim]."""
        s, count = self.shape, len(tokens)
        flat = kernels.upload([*tokens, *positions, *last], self.device)
        pieces = self._pieces(count)
        pieces.tokens[:count] = flat[:count]
        turn = self.turn(flat[count:2 * count])
        qkv = pieces.qkv[:count].view(count, -1, s.head_dim)
        seen = pieces.seen[:count].view(count, -1, s.head_dim)
        for layer in range(s.layers):
            pieces.run(layer)
            attend(layer, qkv, turn, seen)
        pieces.run(s.layers)
        x = pieces.x.index_select(0, flat[2 * count:])
        return F.linear(norm(x, self.last_norm), self.output).float()

    def uncached(self, tokens):
        """Logits of the last of `tokens`, everything computed anew: what caches are checked against."""
        from .attention import attend_one

        def attend(_layer, qkv, turn, out):
            out.copy_(attend_one(*kernels.turn_plain(qkv, turn, self.shape.kv_heads)))

        return self.forward(tokens, range(len(tokens)), attend, [len(tokens) - 1])[0]
