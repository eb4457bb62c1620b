# SPDX-License-Identifier: MIT
"""Decoding: prompts, greedy continuation, beam search; the same for every cache and for none."""
import torch


def step(model, cache, texts, seqs, counts):
    """Computes the last counts[i] tokens of texts[i] for each sequence; logits of the last one of each."""
    tokens, positions, last = [], [], []
    for text, count in zip(texts, counts):
        tokens += text[len(text) - count:]
        positions += range(len(text) - count, len(text))
        last.append(len(tokens) - 1)
    cache.grow(dict(zip(seqs, counts)))

    def attend(layer, q, k, v):
        return cache.attend(layer, seqs, counts, q, k, v)

    return model.forward(tokens, positions, attend, last)


def prefill(model, cache, prompt, share=True):
    """(sequence, logits of the last prompt token, tokens found in the cache)"""
    seq, hit = cache.begin(prompt, share)
    logits = step(model, cache, [prompt], [seq], [len(prompt) - hit])[0]
    cache.done(seq, prompt)
    return seq, logits, hit


def greedy(model, cache, prompt, count):
    """`count` tokens, and how many of the prompt were found in the cache."""
    seq, logits, hit = prefill(model, cache, prompt)
    text = list(prompt)
    for i in range(count):
        text.append(int(logits.argmax()))
        if i + 1 < count:
            logits = step(model, cache, [text], [seq], [1])[0]
    cache.done(seq, text[:-1])
    cache.end(seq)
    return text[len(prompt):], hit


def greedy_uncached(model, prompt, count):
    text = list(prompt)
    for _ in range(count):
        text.append(int(model.uncached(text).argmax()))
    return text[len(prompt):]


def _choose(scores, logits, width):
    """The `width` best continuations of one prompt's beams: (parents, tokens, scores)."""
    total = scores[:, None] + logits.log_softmax(-1)
    best = total.flatten().topk(width)
    return (best.indices // logits.shape[1]).tolist(), (best.indices % logits.shape[1]).tolist(), best.values


def beam(model, cache, prompts, width, count, on_step=None):
    """Beam search of all prompts together; the best text of each, without its prompt."""
    seqs, texts, scores = [], [], []
    for prompt in prompts:
        seq, logits, _ = prefill(model, cache, prompt)
        best = logits.log_softmax(-1).topk(width)
        scores.append(best.values)
        for i, token in enumerate(best.indices.tolist()):
            seqs.append(seq if i == 0 else cache.fork(seq))
            texts.append(list(prompt) + [token])
    for _ in range(count - 1):
        logits = step(model, cache, texts, seqs, [1] * len(seqs))
        parents, grown = [], []
        for i in range(len(prompts)):
            first = i * width
            chosen, tokens, scores[i] = _choose(scores[i], logits[first:first + width], width)
            parents += [first + p for p in chosen]
            grown += [texts[first + p] + [t] for p, t in zip(chosen, tokens)]
        cache.reorder(seqs, parents)
        texts = grown
        if on_step:
            on_step()
    for seq in seqs:
        cache.end(seq)
    return [texts[i * width][len(prompt):] for i, prompt in enumerate(prompts)]


def beam_uncached(model, prompt, width, count):
    best = model.uncached(list(prompt)).log_softmax(-1).topk(width)
    scores, texts = best.values, [list(prompt) + [t] for t in best.indices.tolist()]
    for _ in range(count - 1):
        logits = torch.stack([model.uncached(text) for text in texts])
        chosen, tokens, scores = _choose(scores, logits, width)
        texts = [texts[p] + [t] for p, t in zip(chosen, tokens)]
    return texts[0][len(prompt):]
