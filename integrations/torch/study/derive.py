#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Allocation traces of training set-ups that one machine cannot run, derived without a GPU.

    derive.py DIRECTORY [MODEL+TECHNIQUES...] [--steps N] [--list]

DERIVED, NOT RECORDED: the model's operations run on PyTorch's fake tensors, which have shapes and no memory. Every
storage that an operation makes is an allocation, and the moment it is dropped is its free. What kernels and libraries
allocate inside (workspaces of cuBLAS and cuDNN, communication buffers) is not seen. Of several ranks, the first is
simulated. Lines are those of data/torch: op,id,bytes,stream.

Models: densenet161, gpt2-xl, llama2-7b, qwen1.5-moe. Techniques, in any combination or «none» (16 a model, 64 in all):
    r  recomputation: of each layer but the last of a group only the input is kept until its backward pass
    v  virtual pipeline: 4 ranks with 2 groups of layers each, 8 microbatches in interleaved order
    z  ZeRO 3 over 8 ranks: weights are gathered for a layer's pass, gradients and states are shards.
       With v it is ZeRO 1, as in the programs that have both: states are shards, weights and gradients are whole
    o  offload: optimizer states live on the host; weights come back through a staging buffer

Where a mixture of experts sends its tokens depends on values, which fake tensors lack. The router is therefore run
beside them with real ones: the logits of a token are its layer's leaning (normal, sigma 0.5, the same all along), its
text's (normal, sigma 0.5, one a pass) and noise of its own (Gumbel), and its 4 largest take it. The generator is
seeded with step, microbatch and layer, so that recomputation and every technique see the same. All counts stand in the
trace as comments: «# loads,STEP,MICROBATCH,LAYER,TOKENS,COUNT,...».
"""
import argparse
import contextlib
import gzip
import itertools
import pathlib
import random
import sys
import weakref

import numpy
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

RANKS, PIPELINE, GROUPS, MICROBATCHES = 8, 4, 2, 8
HALF = torch.bfloat16


class Log:
    """The trace of one combination of techniques."""

    def __init__(self):
        self.events, self.count = [], 0

    def begin(self, size):
        self.count += 1
        self.events.append(("a", self.count, size))
        return self.count

    def end(self, number, size):
        self.events.append(("f", number, size))

    def peak(self):
        now = most = 0
        for op, _, size in self.events:
            now += size if op == "a" else -size
            most = max(most, now)
        return most


class Recorder(TorchDispatchMode):
    """Writes down every storage that operations make, and its end, in the log of each combination it is part of.

    Combinations that differ in what the optimizer does only have their passes in common and are derived together.
    """

    def __init__(self, combinations):
        super().__init__()
        self.logs = {combination: Log() for combination in combinations}
        self.active, self.live = list(combinations), {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        if self.active:
            for leaf in tree_leaves(out):
                if isinstance(leaf, torch.Tensor):
                    self.see(leaf.untyped_storage())
        return out

    def see(self, storage):
        key, size = storage._cdata, storage.nbytes()
        if not size or key in self.live:
            return
        numbers = {combination: self.logs[combination].begin(size) for combination in self.active}
        self.live[key] = numbers
        weakref.finalize(storage, self.end, key, numbers, size).atexit = False

    def end(self, key, numbers, size):
        if self.live.get(key) is numbers:
            del self.live[key]
        for combination, number in numbers.items():
            self.logs[combination].end(number, size)

    def drop(self, tensor, combination):
        """In this combination the storage ends now; in the others it goes on."""
        storage = tensor.untyped_storage()
        number = self.live.get(storage._cdata, {}).pop(combination, None)
        if number is not None:
            self.logs[combination].end(number, storage.nbytes())

    @contextlib.contextmanager
    def only(self, *combinations):
        before, self.active = self.active, combinations
        try:
            yield
        finally:
            self.active = before

    def host(self):
        """What is made inside is the host's."""
        return self.only()


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


class Routing:
    """How many tokens each expert gets, pass by pass; see the head of this file."""

    LAYER, TEXT = 0.5, 0.5

    def __init__(self):
        self.step = self.microbatch = 0
        self.counts = {}

    def choose(self, layer, tokens, experts, top):
        key = (self.step, self.microbatch, layer, tokens)
        if key not in self.counts:
            leaning = numpy.random.default_rng([layer]).normal(0, self.LAYER, experts)
            draw = numpy.random.default_rng([layer, self.step, self.microbatch])
            logits = leaning + draw.normal(0, self.TEXT, experts) + draw.gumbel(size=(tokens, experts))
            chosen = numpy.argpartition(logits, experts - top, axis=1)[:, -top:]
            self.counts[key] = [int(n) for n in numpy.bincount(chosen.ravel(), minlength=experts)]
        return self.counts[key]

    def lines(self):
        for key, counts in self.counts.items():
            yield "# loads," + ",".join(map(str, [*key, *counts])) + "\n"


class Experts(nn.Module):
    """Routed experts with uneven loads, and one shared by all tokens."""

    routing = Routing()

    def __init__(self, layer, width, count, top, inner, shared):
        super().__init__()
        self.layer = layer
        self.top, self.router = top, nn.Linear(width, count, bias=False, dtype=HALF)
        self.experts = nn.ModuleList(Mlp(width, inner, True) for _ in range(count))
        self.shared = Mlp(width, shared, True)

    def forward(self, x):
        flat = x.flatten(0, -2)
        scores = self.router(flat).float().softmax(-1)
        out = self.shared(flat)
        loads = self.routing.choose(self.layer, len(flat), len(self.experts), self.top)
        for number, (expert, load) in enumerate(zip(self.experts, loads)):
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
    return [Embedding(vocabulary, width), *(Decoder(width, heads, mlp(i)) for i in range(layers)), Head(vocabulary, width)]


def densenet(name="densenet161", **shape):
    import torchvision
    torch.set_default_dtype(HALF)
    model = getattr(torchvision.models, name)(**shape)
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


class Dense(nn.Module):
    """Neighbouring layers of a dense block: what came in, and what each of them adds."""

    def __init__(self, layers):
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x):
        seen = [x]
        for layer in self.layers:
            seen.append(layer(seen))
        return torch.cat(seen, 1)


def densenet_chunks(layers, count):
    """The network in `count` parts with about as many layers each; dense blocks are cut where that falls inside."""
    singles = [[layer] if not hasattr(layer, "denselayer1") else list(layer.values()) for layer in layers]
    total, at = sum(map(len, singles)), 0
    chunks = [[] for _ in range(count)]
    for layer, parts in zip(layers, singles):
        for chunk in range(count):
            inside = [part for i, part in enumerate(parts) if (at + i) * count // total == chunk]
            if inside:
                chunks[chunk].append(Dense(inside) if hasattr(layer, "denselayer1") else layer)
        at += len(parts)
    return chunks


def decoder_chunks(layers, count):
    decoders = layers[1:-1]
    part = len(decoders) // count
    chunks = [decoders[i * part:(i + 1) * part] for i in range(count)]
    return [[layers[0], *chunks[0]], *chunks[1:-1], [*chunks[-1], layers[-1]]]


def text(longest, batch):
    def make():
        count, length = random.randint(max(1, batch // 2), batch), random.randrange(longest // 4, longest + 1, 8)
        return torch.zeros(count, length, dtype=torch.long)
    return make


def pictures():
    pixels = random.choice([160, 192, 224, 256, 288])
    return torch.zeros(random.choice([24, 32, 40, 48]), 3, pixels, pixels, dtype=HALF)


MODELS = {
    "densenet161": (densenet, pictures),
    "gpt2-xl": (lambda: language_model(48, 1600, 25, 50257, lambda _: Mlp(1600, 6400, False)), text(1024, 8)),
    "llama2-7b": (lambda: language_model(32, 4096, 32, 32000, lambda _: Mlp(4096, 11008, True)), text(4096, 2)),
    "qwen1.5-moe": (lambda: language_model(24, 2048, 16, 151936, lambda i: Experts(i, 2048, 60, 4, 1408, 5632)),
                    text(2048, 2)),
}
COMBINATIONS = ["".join(chosen) for count in range(5) for chosen in itertools.combinations("rvzo", count)]


# ---------------------------------------------------------------- one rank

class Segment:
    """A layer with its weights, gradients and optimizer states, as this rank holds them in each of the combinations."""

    def __init__(self, module, recorder, sharded):
        self.module, self.recorder, self.sharded = module, recorder, sharded
        self.numbers = [(p, p.shape, p.numel()) for p in module.parameters()]
        self.total = sum(count for _, _, count in self.numbers)
        self.full, self.gradient, self.states = None, None, {}
        if self.sharded:
            self.shard = torch.empty(self.own("z"), dtype=HALF)
            self.drop()
        for combination in recorder.logs:  # weights in single precision, two moments
            with recorder.host() if "o" in combination else recorder.only(combination):
                self.states[combination] = [torch.empty(self.own(combination), dtype=torch.float32) for _ in range(3)]

    def own(self, combination):
        return -(-self.total // RANKS) if "z" in combination else self.total

    def gather(self):
        if not self.sharded or self.full is not None:
            return
        self.full, at = torch.empty(self.own("z") * RANKS, dtype=HALF), 0
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

    def reduced(self):
        """This rank's part of the sum of all gradients."""
        flat = torch.cat([p.grad.flatten() for p, _, _ in self.numbers if p.grad is not None] or [torch.empty(1)])
        return flat[:max(1, len(flat) // RANKS)].clone(), flat

    def take_gradients(self):
        part, flat = self.reduced()
        self.gradient = part if self.gradient is None else self.gradient.add_(part)
        for parameter, _, _ in self.numbers:
            parameter.grad = None
        del flat

    def step(self):
        kept = []
        for combination in self.recorder.logs:
            with self.recorder.only(combination):
                kept.append(self.update(combination))
        self.gradient = None
        for parameter, _, _ in self.numbers:
            parameter.grad = None

    def update(self, combination):
        """AdamW in single precision, and the weights rounded back. Returns what lives until the gradients are gone."""
        part = gradient = None
        first = "z" in combination and not self.sharded  # ZeRO 1
        if first:
            part, flat = self.reduced()
            for parameter, _, _ in self.numbers:
                if parameter.grad is not None:
                    self.recorder.drop(parameter.grad, combination)
            del flat
        if "o" in combination:
            torch.empty(self.own(combination), dtype=HALF)  # the host's result on its way
        else:
            gradient = torch.empty(self.own(combination), dtype=torch.float32)
            weights, mean, square = self.states[combination]
            mean.lerp_(gradient, 0.1)
            square.mul_(0.999).addcmul_(gradient, gradient)
            weights.addcdiv_(mean, square.sqrt().add_(1e-8))
            weights.to(HALF)
        if first:
            torch.empty(self.own(combination) * RANKS, dtype=HALF)  # all ranks' weights, on their way to their places
        return gradient, part


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
                with torch.no_grad():
                    x = segment.module(inside)
                kept.append((inside, None))
            else:
                with segment.kept():
                    x = segment.module(inside)
                kept.append((inside, x))
            segment.drop()
        self.passes[number] = kept
        return x.detach()

    def backward(self, number, gradient):
        kept = self.passes.pop(number)
        for segment in reversed(self.segments):
            inside, out = kept.pop()
            segment.gather()
            if out is None:
                with segment.kept():
                    out = segment.module(inside)
            out.backward(gradient if out.dim() else None)
            gradient = inside.grad
            del out, inside
            if segment.sharded:
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


class Between:
    """The layers of the other ranks between two groups of this one: they say what shape comes back."""

    def __init__(self, modules, recorder):
        self.modules, self.recorder = modules, recorder

    def shape(self, shape):
        if all(isinstance(module, Decoder) for module in self.modules):
            return shape
        with self.recorder.host(), torch.no_grad():
            x = torch.empty(shape, dtype=HALF)
            for module in self.modules:
                x = module(x)
        return x.shape


def pipelined(groups, between, data, routing):
    """One step of the first rank."""
    sent = {}
    for forward, group, number in interleaved(GROUPS, MICROBATCHES, PIPELINE):
        routing.microbatch = number
        if not forward:
            groups[group].backward(number, torch.empty(sent[group, number], dtype=HALF))
        elif group:  # from the rank before
            x = torch.empty(between[group - 1].shape(sent[group - 1, number]), dtype=HALF)
            sent[group, number] = groups[group].forward(number, x).shape
        else:
            x = data()
            x = x[:max(1, len(x) // MICROBATCHES)]
            if x.is_floating_point():
                x = x.clone()  # the pictures of one microbatch come alone
            sent[group, number] = groups[group].forward(number, x).shape


def simulate(model, shared, steps, recorder):
    """`shared`: the techniques that change the passes."""
    make, data = MODELS[model]
    routing = Experts.routing = Routing()
    sharded = "z" in shared
    with recorder.host():
        layers = make()
    chosen, between = [layers], []
    if "v" in shared:  # the first rank's groups; the head is another rank's
        split = decoder_chunks if isinstance(layers[0], Embedding) else densenet_chunks
        chunks = split(layers, PIPELINE * GROUPS)
        chosen = chunks[::PIPELINE]
        between = [Between(list(itertools.chain(*chunks[i + 1:i + PIPELINE])), recorder)
                   for i in range(0, len(chunks) - PIPELINE, PIPELINE)]
    del layers
    for module in itertools.chain(*chosen):  # weights come to the device
        if not sharded:
            for parameter in module.parameters():
                parameter.data = torch.empty_like(parameter.data)
    groups = [Group([Segment(m, recorder, sharded) for m in modules], "r" in shared) for modules in chosen]
    for routing.step in range(steps):
        if "v" in shared:
            pipelined(groups, between, data, routing)
        else:
            loss = groups[0].forward(0, data())
            groups[0].backward(0, torch.ones_like(loss))
        for segment in itertools.chain(*(group.segments for group in groups)):
            segment.step()
    return routing


def name_of(model, techniques):
    return f"{model}+{techniques or 'none'}"


def parts_of(name):
    model, _, techniques = name.partition("+")
    return model, "" if techniques == "none" else techniques


def shared_of(techniques):
    """Offload, and ZeRO 1, which is ZeRO in a pipeline, leave the passes as they are."""
    return techniques.replace("o", "").replace("z", "" if "v" in techniques else "z")


def derive(names, directory, steps):
    """Combinations of a model that have their passes in common."""
    model = parts_of(names[0])[0]
    combinations = [parts_of(name)[1] for name in names]
    random.seed(model)  # the same shapes under all techniques
    recorder = Recorder(combinations)
    with FakeTensorMode(), recorder:
        routing = simulate(model, shared_of(combinations[0]), steps, recorder)
    for name, log in zip(names, recorder.logs.values()):
        with gzip.open(directory / f"{name}.csv.gz", "wt", compresslevel=9) as file:
            file.write(f"# DERIVED, NOT RECORDED: {name}, {steps} steps, PyTorch {torch.__version__} on fake tensors; "
                       "op,id,bytes,stream\n")
            file.writelines(routing.lines())
            file.writelines(f"{op},{number},{size},0\n" for op, number, size in log.events)
        print(f"{name:<20}{len(log.events):>9,} events, peak {log.peak() / 2**30:.2f} GiB", flush=True)


def together(names):
    """The names, those that can be derived together in one list."""
    groups = {}
    for name in names:
        model, techniques = parts_of(name)
        groups.setdefault((model, shared_of(techniques)), []).append(name)
    return groups.values()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=pathlib.Path, nargs="?")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--list", action="store_true")
    options = parser.parse_intermixed_args()
    names = [name_of(model, combination) for model in MODELS for combination in COMBINATIONS]
    if options.list or options.directory is None:
        print("\n".join(names))
        return 0
    unknown = [name for name in options.names if name not in names]
    if unknown:
        parser.error(f"{', '.join(unknown)}: there are {', '.join(names)}")
    options.directory.mkdir(parents=True, exist_ok=True)
    for group in together(options.names or names):
        derive(group, options.directory, options.steps)
    return 0


if __name__ == "__main__":
    sys.exit(main())
