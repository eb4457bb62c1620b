# SPDX-License-Identifier: MIT
"""Training and inference workloads whose shapes change from step to step.

Five are of the kind that data/torch was recorded from (public models of torchvision and transformers); the U-Net and
the ragged transformer are this project's own. A workload is a generator: it yields a float after every step, the loss or
a checksum of what was generated. `batch` scales the batch: shapes are drawn as for 1.0 and then scaled, so that a larger
one asks for more in every step (where a ceiling is searched, to the token). `tiny` makes everything small enough for a
test on a CPU. Where there is a `wrap`, the model that trains is what it makes of the built one, for instance its
data-parallel form.
"""
import itertools
import math
import random

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint


def between(low, high, step=1):
    return random.randrange(low, high + 1, step)


def build(make, device, dtype=torch.float32):
    """A model drawn on the device, in the type that it trains in: on a CPU, drawing takes longer than the steps do."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            return make()
    finally:
        torch.set_default_dtype(before)


def scaled(count, length, batch):
    """Sequences and tokens of each, together `batch` times the tokens: more sequences, each shorter where need be."""
    sequences = max(1, math.ceil(count * batch))
    return sequences, max(1, int(count * length * batch) // sequences)


def as_built(model):
    return model


def small_floats(device):
    return torch.float32 if device == "cpu" else torch.bfloat16


# ---------------------------------------------------------------- public models

def densenet161(device, batch=1.0, tiny=False):
    import torchvision
    model = build((lambda: torchvision.models.densenet121(num_classes=10)) if tiny else torchvision.models.densenet161,
                  device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    while True:
        pixels = 32 if tiny else between(160, 288, 32)
        count = 2 if tiny else max(1, int(batch * between(24, 48, 8)))
        images = torch.randn(count, 3, pixels, pixels, device=device)
        labels = torch.randint(0, 10, (count,), device=device)
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        yield float(loss.detach())


def _move_state(optimizer, device):
    """Optimizer state to the host and back, as offloading does it."""
    for state in optimizer.state.values():
        for key, value in state.items():
            if torch.is_tensor(value) and value.dim():
                state[key] = value.to(device)


def _language_model(make, device, longest, most, batch, recompute, offload, wrap=as_built):
    model = build(make, device, small_floats(device))
    vocabulary = model.config.vocab_size
    model.config.use_cache = False
    if recompute:
        model.gradient_checkpointing_enable()
    model.train()
    model = wrap(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=not offload)
    first = True
    while True:
        count, length = between(max(1, most // 2), most), between(longest // 4, longest - 8, 8)
        tokens = torch.randint(0, vocabulary, scaled(count, length, batch), device=device)
        if offload and not first:
            _move_state(optimizer, device)
        optimizer.zero_grad(set_to_none=True)
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        if offload:
            _move_state(optimizer, "cpu")
        first = False
        yield float(loss.detach())


def gpt2(device, batch=1.0, tiny=False, wrap=as_built):
    import transformers
    sizes = dict(n_layer=2, n_embd=32, n_head=2, vocab_size=128) if tiny else dict(n_layer=24, n_embd=1024, n_head=16)
    return _language_model(lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes)), device,
                           64 if tiny else 1024, 2 if tiny else 12, batch, False, False, wrap)


def _llama(tiny, layers, width, inner, heads, **more):
    import transformers
    if tiny:
        layers, width, inner, heads = 2, 32, 64, 2
        more.update(num_key_value_heads=2, vocab_size=128)
    return lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(
        hidden_size=width, intermediate_size=inner, num_hidden_layers=layers, num_attention_heads=heads,
        **{"vocab_size": 32000, **more}))


def llama_recompute(device, batch=1.0, tiny=False):
    return _language_model(_llama(tiny, 8, 4096, 11008, 32), device, 64 if tiny else 4096,
                           2 if tiny else 4, batch, True, False)


def moe_offload_recompute(device, batch=1.0, tiny=False):
    import transformers
    sizes = dict(hidden_size=1024, intermediate_size=2816, moe_intermediate_size=704,
                 shared_expert_intermediate_size=2816, num_hidden_layers=6, num_attention_heads=16,
                 num_key_value_heads=16, num_experts=16, num_experts_per_tok=2, vocab_size=32000)
    if tiny:
        sizes.update(hidden_size=32, intermediate_size=64, moe_intermediate_size=16, shared_expert_intermediate_size=64,
                     num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, num_experts=4, vocab_size=128)
    return _language_model(lambda: transformers.Qwen2MoeForCausalLM(transformers.Qwen2MoeConfig(**sizes)), device,
                           64 if tiny else 2048, 2 if tiny else 4, batch, True, True)


def llama_generate_beam4(device, batch=1.0, tiny=False):
    make = _llama(tiny, 16, 2048, 5504, 16, num_key_value_heads=8, max_position_embeddings=8192)
    model = build(make, device, small_floats(device)).eval()
    vocabulary = model.config.vocab_size
    while True:
        count = 2 if tiny else max(1, int(batch * between(2, 8)))
        length = 16 if tiny else between(256, 2040, 8)
        prompt = torch.randint(0, vocabulary, (count, length), device=device)
        with torch.no_grad():
            tokens = model.generate(prompt, attention_mask=torch.ones_like(prompt), num_beams=4, do_sample=False,
                                    max_new_tokens=4 if tiny else between(48, 128), pad_token_id=0)
        yield float((tokens.double() * torch.arange(tokens.shape[1], device=tokens.device)).sum())


# ---------------------------------------------------------------- our own

class Residual(nn.Module):
    """Two convolutions around the time step, as diffusion models have them."""

    def __init__(self, inside, outside, times):
        super().__init__()
        self.first = nn.Sequential(nn.GroupNorm(8, inside), nn.SiLU(), nn.Conv2d(inside, outside, 3, padding=1))
        self.time = nn.Linear(times, outside)
        self.second = nn.Sequential(nn.GroupNorm(8, outside), nn.SiLU(), nn.Conv2d(outside, outside, 3, padding=1))
        self.skip = nn.Conv2d(inside, outside, 1) if inside != outside else nn.Identity()

    def forward(self, x, time):
        return self.second(self.first(x) + self.time(time)[:, :, None, None]) + self.skip(x)


class Attention(nn.Module):
    def __init__(self, width, heads=4):
        super().__init__()
        self.norm, self.heads = nn.GroupNorm(8, width), heads
        self.qkv, self.out = nn.Conv2d(width, 3 * width, 1), nn.Conv2d(width, width, 1)

    def forward(self, x):
        b, c, h, w = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, 3, self.heads, c // self.heads, h * w).transpose(-1, -2).unbind(1)
        mixed = F.scaled_dot_product_attention(q, k, v)
        return x + self.out(mixed.transpose(-1, -2).reshape(b, c, h, w))


class UNet(nn.Module):
    """Down by halves with growing width, attention at the bottom, up again with what was put aside."""

    def __init__(self, width, levels):
        super().__init__()
        self.times = 4 * width
        self.time = nn.Sequential(nn.Linear(width, self.times), nn.SiLU(), nn.Linear(self.times, self.times))
        self.enter, self.width = nn.Conv2d(3, width, 3, padding=1), width
        widths = [width * 2 ** level for level in range(levels)]
        self.down = nn.ModuleList(Residual(a, b, self.times) for a, b in zip([width, *widths], widths))
        self.middle = nn.ModuleList([Residual(widths[-1], widths[-1], self.times), Residual(widths[-1], widths[-1],
                                                                                            self.times)])
        self.attention = Attention(widths[-1])
        self.up = nn.ModuleList(Residual(2 * b, a, self.times) for a, b in zip([width, *widths], widths))
        self.leave = nn.Sequential(nn.GroupNorm(8, width), nn.SiLU(), nn.Conv2d(width, 3, 3, padding=1))

    def forward(self, x, step):
        half = self.width // 2
        rates = torch.exp(-math.log(10000) * torch.arange(half, device=x.device) / half)
        angles = step[:, None].float() * rates
        time = self.time(torch.cat([angles.sin(), angles.cos()], 1).to(x.dtype))
        x, aside = self.enter(x), []
        for block in self.down:
            x = block(x, time)
            aside.append(x)
            x = F.avg_pool2d(x, 2)
        x = self.middle[1](self.attention(self.middle[0](x, time)), time)
        for block in reversed(self.up):
            x = F.interpolate(x, scale_factor=2.0, mode="nearest")
            x = block(torch.cat([x, aside.pop()], 1), time)
        return self.leave(x)


def diffusion_unet(device, batch=1.0, tiny=False):
    """Noise prediction at changing resolutions, with a running average of the weights."""
    model = build(lambda: UNet(16 if tiny else 128, 2 if tiny else 4), device)
    average = {name: value.detach().clone() for name, value in model.named_parameters()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    while True:
        pixels = 16 if tiny else between(128, 320, 32)
        count = 2 if tiny else max(1, int(batch * between(4, 12)))
        images = torch.randn(count, 3, pixels, pixels, device=device)
        noise, step = torch.randn_like(images), torch.randint(0, 1000, (count,), device=device)
        level = torch.cos(step / 1000 * math.pi / 2)[:, None, None, None]
        noisy = level * images + (1 - level * level).clamp_min(0).sqrt() * noise
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu" if device == "cpu" else "cuda", dtype=torch.bfloat16):
            loss = F.mse_loss(model(noisy, step).float(), noise)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for name, value in model.named_parameters():
                average[name].lerp_(value, 0.001)
        yield float(loss.detach())


class RaggedBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.norms = heads, nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.inner = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x, lengths):
        q, k, v = self.qkv(self.norms[0](x)).view(len(x), 3, self.heads, -1).permute(1, 2, 0, 3)
        mixed, at = [], 0
        for length in lengths:  # a sequence sees itself only
            part = slice(at, at + length)
            mixed.append(F.scaled_dot_product_attention(q[None, :, part], k[None, :, part], v[None, :, part],
                                                        is_causal=True)[0])
            at += length
        x = x + self.out(torch.cat(mixed, 1).transpose(0, 1).reshape(x.shape))
        return x + self.inner(self.norms[1](x))


class Ragged(nn.Module):
    def __init__(self, vocabulary, width, layers, heads, longest):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(longest, width)
        self.blocks = nn.ModuleList(RaggedBlock(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens, lengths):
        places = torch.cat([torch.arange(length, device=tokens.device) for length in lengths])
        x = self.tokens(tokens) + self.places(places)
        for number, block in enumerate(self.blocks):
            x = checkpoint(block, x, lengths, use_reentrant=False) if number % 2 else block(x, lengths)
        return self.head(self.norm(x))


def _length(drawn, longest):
    return min(longest, max(4, int(drawn.lognormvariate(math.log(longest / 8), 0.9))))


def extended(lengths, longest, batch):
    """`batch` times the tokens of these sequences: they come first, then more of the kind; the last one is cut."""
    more = random.Random(sum(lengths))  # its own, so that what is drawn later does not depend on `batch`
    rest, taken = max(1, int(batch * sum(lengths))), []
    for length in itertools.chain(lengths, (_length(more, longest) for _ in itertools.count())):
        if not rest:
            return taken
        taken.append(min(length, rest))
        rest -= taken[-1]


def ragged_transformer(device, batch=1.0, tiny=False, wrap=as_built):
    """Sequences of log-normal length, packed without padding; every second block is recomputed."""
    longest, width, layers, heads, vocabulary = (64, 32, 2, 2, 128) if tiny else (4096, 1536, 12, 12, 32000)
    model = wrap(build(lambda: Ragged(vocabulary, width, layers, heads, longest), device, small_floats(device)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    while True:
        count = 3 if tiny else between(8, 32)
        lengths = extended([_length(random, longest) for _ in range(count)], longest, batch)
        tokens = torch.randint(0, vocabulary, (sum(lengths),), device=device)
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(tokens, lengths)[:-1].float(), tokens[1:])
        loss.backward()
        optimizer.step()
        yield float(loss.detach())


WORKLOADS = {
    "densenet161": densenet161,
    "gpt2": gpt2,
    "llama-recompute": llama_recompute,
    "moe-offload-recompute": moe_offload_recompute,
    "llama-generate-beam4": llama_generate_beam4,
    "diffusion-unet": diffusion_unet,
    "ragged-transformer": ragged_transformer,
}
# Steps of one pass where twelve take long.
STEPS = {"llama-generate-beam4": 5, "moe-offload-recompute": 8}
