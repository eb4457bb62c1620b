#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Allocation traces of training set-ups that one machine cannot run, derived without a GPU.

    derive.py DIRECTORY [MODEL+TECHNIQUES...] [--steps N] [--list]

DERIVED, NOT RECORDED: the model's operations run on PyTorch's fake tensors, which have shapes and no memory. Every
storage that an operation makes is an allocation, and the moment it is dropped is its free. What kernels and libraries
allocate inside (workspaces of cuBLAS and cuDNN, communication buffers) is not seen. Of several ranks, the first is
simulated. Lines are those of data/torch: op,id,bytes,stream.

Models: densenet161, gpt2-xl, llama2-7b, qwen1.5-moe. Techniques, in any combination that makes sense:
    r  recomputation: only each layer's input is kept until its backward pass
    v  virtual pipeline: 4 ranks with 2 groups of layers each, 8 microbatches in interleaved order
    z  ZeRO 3 over 8 ranks: weights are gathered for a layer's pass, gradients and states are shards
    o  offload: optimizer states live on the host; weights come back through a staging buffer
"""
import argparse
import contextlib
import gzip
import itertools
import pathlib
import random
import sys
import weakref

import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

RANKS, PIPELINE, GROUPS, MICROBATCHES = 8, 4, 2, 8
HALF = torch.bfloat16


class Recorder(TorchDispatchMode):
    """Writes down every storage that operations make, and its end."""

    def __init__(self):
        super().__init__()
        self.events, self.live, self.ids, self.ignoring = [], {}, 0, False

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        if not self.ignoring:
            for leaf in tree_leaves(out):
                if isinstance(leaf, torch.Tensor):
                    self.see(leaf.untyped_storage())
        return out

    def see(self, storage):
        key, size = storage._cdata, storage.nbytes()
        if not size or key in self.live:
            return
        self.ids += 1
        self.live[key] = self.ids
        self.events.append(("a", self.ids, size))
        weakref.finalize(storage, self.end, key, self.ids, size).atexit = False

    def end(self, key, number, size):
        if self.live.get(key) == number:
            del self.live[key]
        self.events.append(("f", number, size))

    @contextlib.contextmanager
    def host(self):
        """What is made inside is the host's."""
        before, self.ignoring = self.ignoring, True
        try:
            yield
        finally:
            self.ignoring = before

    def peak(self):
        now = most = 0
        for op, _, size in self.events:
            now += size if op == "a" else -size
            most = max(most, now)
        return most


# ---------------------------------------------------------------- models, as lists of layers

class Embedding(nn.Module):
    def __init__(self, vocabulary, width):
        super().__init__()
        self.table = nn.Embedding(vocabulary, width, dtype=HALF)

    def forward(self, tokens):
        return self.table(tokens)


class Head(nn.Module):
    def __init__(self, vocabulary, width):
        super().__init__()
        self.norm, self.out = nn.LayerNorm(width, dtype=HALF), nn.Linear(width, vocabulary, bias=False, dtype=HALF)

    def forward(self, x):
        logits = self.out(self.norm(x)).float().flatten(0, 1)
        return F.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long))


class Mlp(nn.Module):
    def __init__(self, width, inner, gated):
        super().__init__()
        self.up, self.down = nn.Linear(width, inner, bias=False, dtype=HALF), nn.Linear(inner, width, bias=False,
                                                                                       dtype=HALF)
        self.gate = nn.Linear(width, inner, bias=False, dtype=HALF) if gated else None

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x) if self.gate else F.gelu(self.up(x)))


class Experts(nn.Module):
    """Routed experts with uneven loads, and one shared by all tokens."""

    def __init__(self, width, count, top, inner, shared):
        super().__init__()
        self.top, self.router = top, nn.Linear(width, count, bias=False, dtype=HALF)
        self.experts = nn.ModuleList(Mlp(width, inner, True) for _ in range(count))
        self.shared = Mlp(width, shared, True)

    def loads(self, tokens):
        """How many of the choices go to each expert; the routing itself needs values, which are not there."""
        weights = [random.expovariate(1.0) for _ in self.experts]
        scale = tokens * self.top / sum(weights)
        return [min(tokens, int(weight * scale)) for weight in weights]

    def forward(self, x):
        flat = x.flatten(0, -2)
        scores = self.router(flat).float().softmax(-1)
        out = self.shared(flat)
        for number, (expert, load) in enumerate(zip(self.experts, self.loads(len(flat)))):
            if load:
                index = torch.zeros(load, dtype=torch.long)
                part = expert(flat[index]) * scores[index, number, None].to(HALF)
                out = out.index_add(0, index, part)
        return out.view_as(x)


class Decoder(nn.Module):
    def __init__(self, width, heads, mlp):
        super().__init__()
        self.heads, self.norms = heads, nn.ModuleList(nn.LayerNorm(width, dtype=HALF) for _ in range(2))
        self.qkv = nn.Linear(width, 3 * width, bias=False, dtype=HALF)
        self.out, self.mlp = nn.Linear(width, width, bias=False, dtype=HALF), mlp

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.norms[0](x)).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.norms[1](x))


def language_model(layers, width, heads, vocabulary, mlp):
    return [Embedding(vocabulary, width), *(Decoder(width, heads, mlp()) for _ in range(layers)), Head(vocabulary, width)]


def densenet():
    import torchvision
    torch.set_default_dtype(HALF)
    model = torchvision.models.densenet161()
    torch.set_default_dtype(torch.float32)
    parts = list(model.features.children())
    first, rest = nn.Sequential(*parts[:4]), parts[4:]

    class End(nn.Module):
        def __init__(self):
            super().__init__()
            self.classifier = model.classifier

        def forward(self, x):
            scores = self.classifier(F.relu(x).mean((2, 3))).float()
            return F.cross_entropy(scores, torch.zeros(len(scores), dtype=torch.long))
    return [first, *rest, End()]


def text(longest, batch):
    def make():
        count, length = random.randint(max(1, batch // 2), batch), random.randrange(longest // 4, longest + 1, 8)
        return torch.zeros(count, length, dtype=torch.long)
    return make


def pictures():
    pixels = random.choice([160, 192, 224, 256, 288])
    return torch.zeros(random.choice([24, 32, 40, 48]), 3, pixels, pixels, dtype=HALF)


MODELS = {
    "densenet161": (densenet, pictures, ("", "r", "z", "o", "rz", "ro", "zo", "rzo")),
    "gpt2-xl": (lambda: language_model(48, 1600, 25, 50257, lambda: Mlp(1600, 6400, False)), text(1024, 8),
                ("", "r", "v", "z", "o", "rv", "rz", "ro", "zo", "rzo", "rvo")),
    "llama2-7b": (lambda: language_model(32, 4096, 32, 32000, lambda: Mlp(4096, 11008, True)), text(4096, 2),
                  ("", "r", "v", "z", "o", "rv", "rz", "ro", "zo", "rzo", "rvo")),
    "qwen1.5-moe": (lambda: language_model(24, 2048, 16, 151936, lambda: Experts(2048, 60, 4, 1408, 5632)),
                    text(2048, 2), ("v", "z", "o", "rv", "rz", "ro", "zo", "rzo", "rvo")),  # whole, it fits no device
}


# ---------------------------------------------------------------- one rank

class Segment:
    """A layer with its weights, gradients and optimizer states, as this rank holds them."""

    def __init__(self, module, recorder, sharded, offload):
        self.module, self.recorder, self.sharded = module, recorder, sharded
        self.numbers = [(p, p.shape, p.numel()) for p in module.parameters()]
        self.total = sum(count for _, _, count in self.numbers)
        self.own = -(-self.total // RANKS) if sharded else self.total
        self.full, self.gradient = None, None
        if sharded:
            self.shard = torch.empty(self.own, dtype=HALF)
            self.drop()
        with recorder.host() if offload else contextlib.nullcontext():
            self.states = [torch.empty(self.own, dtype=torch.float32) for _ in range(3)]  # weights, two moments
        self.offload = offload

    def gather(self):
        if not self.sharded or self.full is not None:
            return
        self.full, at = torch.empty(self.own * RANKS, dtype=HALF), 0
        for parameter, shape, count in self.numbers:
            parameter.data = self.full[at:at + count].view(shape)
            at += count

    def drop(self):
        """The gathered weights go; what autograd keeps of them is only a description, see kept()."""
        if self.sharded:
            self.full = None
            for parameter, _, _ in self.numbers:
                with self.recorder.host():
                    parameter.data = torch.empty(0, dtype=HALF)

    def kept(self):
        """Hooks that keep a gathered weight as its place in the buffer, so that autograd does not hold it."""
        def pack(tensor):
            if self.full is not None and tensor.untyped_storage()._cdata == self.full.untyped_storage()._cdata:
                return (tensor.shape, tensor.stride(), tensor.storage_offset())
            return tensor

        def unpack(packed):
            return packed if isinstance(packed, torch.Tensor) else self.full.as_strided(*packed)
        return torch.autograd.graph.saved_tensors_hooks(pack, unpack) if self.sharded else contextlib.nullcontext()

    def take_gradients(self):
        """Gradients of a gathered layer become this rank's part of their sum."""
        if not self.sharded:
            return
        flat = torch.cat([p.grad.flatten() for p, _, _ in self.numbers if p.grad is not None] or [torch.empty(1)])
        part = flat[:max(1, len(flat) // RANKS)].clone()
        self.gradient = part if self.gradient is None else self.gradient.add_(part)
        for parameter, _, _ in self.numbers:
            parameter.grad = None

    def step(self):
        """AdamW in single precision, and the weights rounded back."""
        if self.offload:
            torch.empty(self.own, dtype=HALF)  # the host's result on its way
        else:
            gradient = torch.empty(self.own, dtype=torch.float32)
            weights, mean, square = self.states
            mean.lerp_(gradient, 0.1)
            square.mul_(0.999).addcmul_(gradient, gradient)
            weights.addcdiv_(mean, square.sqrt().add_(1e-8))
            weights.to(HALF)
        self.gradient = None
        for parameter, _, _ in self.numbers:
            parameter.grad = None


class Group:
    """Neighbouring layers of a rank; passes of several microbatches may be under way."""

    def __init__(self, segments, recompute):
        self.segments, self.recompute, self.passes = segments, recompute, {}

    def forward(self, number, x):
        kept = []
        for segment in self.segments:
            segment.gather()
            inside = x.detach().requires_grad_(x.is_floating_point())
            if self.recompute and segment is not self.segments[-1]:
                state = random.getstate()
                with torch.no_grad():
                    x = segment.module(inside)
                kept.append((inside, None, state))
            else:
                with segment.kept():
                    x = segment.module(inside)
                kept.append((inside, x, None))
            segment.drop()
        self.passes[number] = kept
        return x.detach()

    def backward(self, number, gradient):
        kept = self.passes.pop(number)
        for segment in reversed(self.segments):
            inside, out, state = kept.pop()
            segment.gather()
            if out is None:
                now = random.getstate()
                random.setstate(state)  # the same routing again
                with segment.kept():
                    out = segment.module(inside)
                random.setstate(now)
            out.backward(gradient if out.dim() else None)
            gradient = inside.grad
            del out, inside
            segment.take_gradients()
            segment.drop()
        return gradient


def interleaved(groups, microbatches, ranks):
    """Passes of the first rank of a pipeline: (forward?, group, microbatch), forward ones ahead by the pipeline's depth."""
    order = [(group, base + i) for base in range(0, microbatches, ranks) for group in range(groups)
             for i in range(min(ranks, microbatches - base))]
    back = [(group, base + i) for base in range(0, microbatches, ranks) for group in reversed(range(groups))
            for i in range(min(ranks, microbatches - base))]
    ahead = min(len(order), 2 * (ranks - 1) + (groups - 1) * ranks)
    plan = [(True, *order[i]) for i in range(ahead)]
    for i in range(len(order) - ahead):
        plan += [(True, *order[ahead + i]), (False, *back[i])]
    return plan + [(False, *part) for part in back[len(order) - ahead:]]


def simulate(model, techniques, steps, recorder):
    make, data, _ = MODELS[model]
    with recorder.host():
        layers = make()
    if "v" in techniques:  # the first rank's groups; the head is another rank's
        part = len(layers[1:-1]) // (PIPELINE * GROUPS)
        decoders = layers[1:-1]
        chosen = [[layers[0], *decoders[:part]], decoders[PIPELINE * part:(PIPELINE + 1) * part]]
    else:
        chosen = [layers]
    del layers
    for module in itertools.chain(*chosen):  # weights come to the device
        if "z" not in techniques:
            for parameter in module.parameters():
                parameter.data = torch.empty_like(parameter.data)
    groups = [Group([Segment(m, recorder, "z" in techniques, "o" in techniques) for m in modules], "r" in techniques)
              for modules in chosen]
    for _ in range(steps):
        if "v" not in techniques:
            loss = groups[0].forward(0, data())
            groups[0].backward(0, torch.ones_like(loss))
        else:
            sent = {}
            for forward, group, number in interleaved(GROUPS, MICROBATCHES, PIPELINE):
                if forward:
                    x = data()[:1] if not group else torch.empty(sent[number], dtype=HALF)  # from the rank before
                    out = groups[group].forward(number, x)
                    sent[number] = out.shape
                else:
                    groups[group].backward(number, torch.empty(sent[number], dtype=HALF))
        for segment in itertools.chain(*(group.segments for group in groups)):
            segment.step()


def derive(name, directory, steps):
    model, _, techniques = name.partition("+")
    random.seed(model)  # the same shapes under all techniques
    recorder = Recorder()
    with FakeTensorMode(), recorder:
        simulate(model, techniques, steps, recorder)
    path = directory / f"{name}.csv.gz"
    with gzip.open(path, "wt", compresslevel=9) as file:
        file.write(f"# DERIVED, NOT RECORDED: {name}, {steps} steps, PyTorch {torch.__version__} on fake tensors; "
                   "op,id,bytes,stream\n")
        file.writelines(f"{op},{number},{size},0\n" for op, number, size in recorder.events)
    print(f"{name:<20}{len(recorder.events):>9,} events, peak {recorder.peak() / 2**30:.2f} GiB", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=pathlib.Path, nargs="?")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--list", action="store_true")
    options = parser.parse_intermixed_args()
    names = [model + ("+" + combination if combination else "") for model, (_, _, combinations) in MODELS.items()
             for combination in combinations]
    if options.list or options.directory is None:
        print("\n".join(names))
        return 0
    unknown = [name for name in options.names if name not in names]
    if unknown:
        parser.error(f"{', '.join(unknown)}: there are {', '.join(names)}")
    options.directory.mkdir(parents=True, exist_ok=True)
    for name in options.names or names:
        derive(name, options.directory, options.steps)
    return 0


if __name__ == "__main__":
    sys.exit(main())
