# SPDX-License-Identifier: MIT
"""Decoding: prompts, greedy continuation, beam search; the same for every cache and for none."""
import time

import torch


def _timed(cache, call, *arguments):
    """The host's time of what attaches or maps is counted."""
    begin = time.perf_counter()
    try:
        return call(*arguments)
    finally:
        cache.spent += time.perf_counter() - begin


def step(model, cache, texts, seqs, counts):
    """Computes the last counts[i] tokens of texts[i] for each sequence; logits of the last one of each."""
    tokens, positions, last = [], [], []
    for text, count in zip(texts, counts):
        tokens += text[len(text) - count:]
        positions += range(len(text) - count, len(text))
        last.append(len(tokens) - 1)
    _timed(cache, cache.grow, dict(zip(seqs, counts)))

    def attend(layer, qkv, turn, out):
        cache.attend(layer, seqs, counts, qkv, turn, out)

    return model.forward(tokens, positions, attend, last)


def prefill(model, cache, prompt, share=True, publish=True):
    """(sequence, logits of the last prompt token, tokens found in the cache). Not published: cache.done() is due."""
    seq, hit = _timed(cache, cache.begin, prompt, share)
    logits = step(model, cache, [prompt], [seq], [len(prompt) - hit])[0]
    if publish:
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


def _choose(scores, logits):
    """The best continuations of every prompt's beams. scores [prompts, width], logits [prompts, width, vocabulary];
    parents and tokens as lists of `width` per prompt, and the new scores."""
    width, vocabulary = logits.shape[1:]
    total = scores[:, :, None] + logits.log_softmax(-1)
    best = total.flatten(1).topk(width)
    both = torch.stack((best.indices // vocabulary, best.indices % vocabulary)).tolist()  # one wait for the device
    return both[0], both[1], best.values


def beam(model, cache, prompts, width, count, on_step=None):
    """Beam search of all prompts together; the best text of each, without its prompt. Ends early if on_step(step) says
    so by True; it is called before the first step and after each."""
    seqs, texts, scores = [], [], []
    for prompt in prompts:
        seq, logits, _ = prefill(model, cache, prompt)
        best = logits.log_softmax(-1).topk(width)
        scores.append(best.values)
        for i, token in enumerate(best.indices.tolist()):
            seqs.append(seq if i == 0 else cache.fork(seq))
            texts.append(list(prompt) + [token])
    scores = torch.stack(scores)
    for number in range(count):
        if (on_step and on_step(number)) or number + 1 == count:
            break
        logits = step(model, cache, texts, seqs, [1] * len(seqs))
        chosen, tokens, scores = _choose(scores, logits.view(len(prompts), width, -1))
        parents = [i * width + p for i, row in enumerate(chosen) for p in row]
        texts = [texts[p] + [t] for p, t in zip(parents, (t for row in tokens for t in row))]
        cache.reorder(seqs, parents)
    for seq in seqs:
        cache.end(seq)
    return [texts[i * width][len(prompt):] for i, prompt in enumerate(prompts)]


def beam_uncached(model, prompt, width, count):
    best = model.uncached(list(prompt)).log_softmax(-1).topk(width)
    scores, texts = best.values, [list(prompt) + [t] for t in best.indices.tolist()]
    for _ in range(count - 1):
        logits = torch.stack([model.uncached(text) for text in texts])
        chosen, tokens, best = _choose(scores[None], logits[None])
        texts, scores = [texts[p] + [t] for p, t in zip(chosen[0], tokens[0])], best[0]
    return texts[0][len(prompt):]
