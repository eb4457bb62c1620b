#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The decoder on every cache against the uncached model, token for token, on a CPU.

    decoder_check.py LIBRARY-DIRECTORY [SEED]

Ranges lie on host memory: mmap does there what page tables do on a GPU, so prefix aliases, copies of tails and the
reorder of beams are real, and a write into a shared block ends the program. Exit status 77: no PyTorch here.
"""
import array
import os
import pathlib
import random
import sys

if os.environ.get("MB_SANITIZE"):
    print("SKIP: decoder_check: a plain python3 cannot load a library with sanitizers; test_kv_* have checked its source")
    sys.exit(77)
try:
    import torch
except ImportError:
    print("SKIP: decoder_check: PyTorch is not installed")
    sys.exit(77)

os.environ["MOONBRIGHT_LIB"] = sys.argv[1]
HERE = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(HERE / "tests/fake"), str(HERE), str(HERE / "python")]
import moonbright_kv  # noqa: E402
from decoder import caches, flashinfer_kernels, llama, search  # noqa: E402

seed = int(sys.argv[2], 0) if len(sys.argv) > 2 else random.SystemRandom().getrandbits(32)
print(f"seed: {seed:#x}", flush=True)
draw = random.Random(seed)
torch.manual_seed(seed)
torch.use_deterministic_algorithms(True)
SHAPE = llama.SHAPES["tiny"]
MODEL = llama.Llama(SHAPE, torch.float32, "cpu", seed)


INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def ranges(group_layers=3, limit_blocks=64, triton=False, flashinfer=False):
    kv = moonbright_kv.Cache.on_host(
        page_bytes=4096 * group_layers, layers=SHAPE.layers, kv_heads=SHAPE.kv_heads, head_dim=SHAPE.head_dim,
        element_bytes=4, group_layers=group_layers, max_tokens=96, max_sequences=24, chunk_blocks=4,
        limit_bytes=limit_blocks * 4096 * SHAPE.layers)
    if flashinfer:
        return flashinfer_kernels.Ranges(kv, torch.float32, triton, SHAPE.heads)
    return caches.Ranges(kv, torch.float32, triton)


def all_caches():
    yield "ranges, one group", ranges(3)
    yield "ranges, a group per layer", ranges(1)
    yield "ranges, FlashInfer's calls", ranges(3, flashinfer=True)
    yield "ranges, a group per layer, FlashInfer's calls", ranges(1, flashinfer=True)
    yield "paged", caches.Paged(SHAPE, 64, torch.float32, "cpu", block=4)
    yield "paged, FlashInfer's calls", flashinfer_kernels.Paged(SHAPE, 64, torch.float32, "cpu", block=4)
    yield "concat", caches.Concat(SHAPE)


def prompts(count, common):
    begin = [draw.randrange(SHAPE.vocabulary) for _ in range(common)]
    return [begin + [draw.randrange(SHAPE.vocabulary) for _ in range(draw.randint(1, 20))] for _ in range(count)]


def check_greedy():
    work = prompts(5, 33)
    work.append(list(work[0]))
    wanted = [search.greedy_uncached(MODEL, p, 12) for p in work]
    for name, cache in all_caches():
        hits = 0
        for prompt, want in zip(work, wanted):
            got, hit = search.greedy(MODEL, cache, prompt, 12)
            assert got == want, f"{name}: greedy: {got}, without a cache {want}"
            hits += hit
        assert (hits > 0) == (name != "concat"), f"{name}: {hits} tokens found"
        print(f"ok   greedy, {name}: 6 prompts, {hits} prompt tokens from the cache")


def check_beam():
    work = prompts(3, 21)
    wanted = {w: [search.beam_uncached(MODEL, p, w, 10) for p in work] for w in (2, 4)}
    for name, cache in all_caches():
        for width, want in wanted.items():
            got = search.beam(MODEL, cache, work, width, 10)
            assert got == want, f"{name}: beams of {width}: {got}, without a cache {want}"
        print(f"ok   beams of 2 and 4, {name}")
        if isinstance(cache, caches.Ranges):
            stats = cache.kv.stats()
            cache.kv.check()
            assert 0 < stats.copied_bytes <= stats.copies * cache.kv.shape.block_bytes
            assert stats.sequences == 0 and stats.live_blocks == 0


def check_occupancy():
    """What living sequences use: their tokens, those of a shared prefix once, and the room of the blocks."""
    for name, cache in all_caches():
        text = prompts(1, 33)[0]
        one, _, _ = search.prefill(MODEL, cache, text)
        other, _, hit = search.prefill(MODEL, cache, text[:33] + [1, 2, 3])
        tokens, room = cache.occupancy()
        if name != "concat":
            assert tokens == len(text) + 36 - hit and hit > 0, f"{name}: {tokens} of {len(text)} and 36, {hit} shared"
            assert tokens <= room < 2 * tokens, f"{name}: {room}"
        cache.end(one)
        cache.end(other)
        assert cache.occupancy() == ((1, 1) if name == "concat" else (0, 0)), name
    print("ok   tokens and the room of the blocks in use, of every cache")


def check_pressure():
    """Too little memory for all prefixes: they are evicted, and every text stays right."""
    cache = ranges(3, limit_blocks=16)
    for _ in range(12):
        for prompt in prompts(2, 30):
            got, _ = search.greedy(MODEL, cache, prompt, 6)
            assert got == search.greedy_uncached(MODEL, prompt, 6)
    assert cache.kv.stats().evicted_blocks > 0
    print(f"ok   greedy under pressure: {cache.kv.stats().evicted_blocks} blocks evicted")


def check_sleep():
    cache = ranges()
    prompt = prompts(1, 40)[0]
    seq, logits, _ = search.prefill(MODEL, cache, prompt)
    keys, _ = cache.kv.tensors(seq, 0, torch.float32)
    address = keys.data_ptr()
    cache.kv.sleep(seq)
    hit = cache.kv.wake(seq, prompt[:-1])
    cache.lengths[seq] = hit
    again = search.step(MODEL, cache, [prompt], [seq], [len(prompt) - hit])[0]
    assert 0 < hit < len(prompt) and int(again.argmax()) == int(logits.argmax())
    assert cache.kv.tensors(seq, 0, torch.float32)[0].data_ptr() == address
    print(f"ok   sleep and wake: {hit} of {len(prompt)} tokens were still there")


def check_tokens():
    """Tokens in any form are the same tokens; what is none is refused."""
    cache = ranges()
    text = prompts(1, 40)[0]
    seq = cache.kv.open()
    cache.kv.append({seq: len(text)})
    cache.kv.publish(seq, array.array("i", text))
    hits = set()
    for form in (text, tuple(text), array.array("i", text), memoryview(array.array("i", text)), array.array("q", text),
                 memoryview(array.array("i", text)).toreadonly(), iter(text), torch.tensor(text, dtype=torch.int32)):
        other = cache.kv.open()
        hits.add(cache.kv.attach(other, form))
        cache.kv.free(other)
    assert len(hits) == 1 and hits.pop() > 0
    other = cache.kv.open()
    assert cache.kv.attach(other, []) == cache.kv.attach(other, array.array("i")) == 0
    for none in (b"tokens!!", bytearray(8), [1 << 31], ["a"], 7):
        try:
            cache.kv.attach(other, none)
        except moonbright_kv.KVError as error:
            assert error.name == "MB_ERR_INVALID", error
        else:
            raise AssertionError(f"{none} passed for tokens")
    for call in (lambda: cache.kv.append({other: -1}), lambda: cache.kv.append({other: 1 << 32}),
                 lambda: cache.kv.append({1 << 64: 1}), lambda: cache.kv.reorder([other], [-1]),
                 lambda: cache.kv.reorder([1 << 64], [0]), lambda: cache.kv.truncate(other, 1 << 32)):
        try:
            call()
        except moonbright_kv.KVError as error:
            assert error.name == "MB_ERR_INVALID" and "allowed are 0 to" in str(error), error
        else:
            raise AssertionError("a number that does not fit was taken")
    cache.kv.append({})
    cache.kv.reorder([], [])
    cache.kv.close()
    print("ok   tokens in any form, numbers that fit")


def check_errors():
    cache = ranges()
    seq = cache.kv.open(max_tokens=10)
    for call, name in ((lambda: cache.kv.append({seq: 11}), "MB_ERR_LIMIT"),
                       (lambda: cache.kv.attach(seq, [1] * 11), "MB_ERR_LIMIT"),
                       (lambda: cache.kv.fork(seq + 1), "MB_ERR_NOT_FOUND"),
                       (lambda: cache.kv.drop(7), "MB_ERR_NOT_FOUND")):
        try:
            call()
        except moonbright_kv.KVError as error:
            assert error.name == name, error
        else:
            raise AssertionError(f"no {name}")
    cache.kv.free(seq)
    try:
        cache.kv.fork(seq)
    except moonbright_kv.KVError as error:
        assert "dead" in str(error), error
    cache.kv.close()
    print("ok   errors have names")


def check_kernel():
    """The Triton kernel, interpreted, against PyTorch; with addresses and with block tables."""
    if not INTERPRETED:
        print("SKIP: decoder_check: the kernels run here only under TRITON_INTERPRET=1")
        return
    from decoder import attention
    heads, kv_heads, d, lengths = 4, 2, 16, [5, 33, 64]
    stride = 3 * 2 * kv_heads * d  # as in a group of three layers
    data = [torch.randn(n, 3, 2, kv_heads, d) for n in lengths]
    pool = torch.zeros(16, 4, 2, kv_heads, d)
    table = torch.arange(0, 48, dtype=torch.int32).reshape(3, 16) % 16
    q = torch.randn(3, heads, d)
    want = torch.stack([attention.attend_one(q[i:i + 1], x[:, 1, 0], x[:, 1, 1])[0] for i, x in enumerate(data)])
    base, offsets = torch.tensor([x.data_ptr() for x in data]), torch.arange(3) * (2 * kv_heads * d * 4)
    counts = torch.tensor(lengths, dtype=torch.int32)
    for splits in (1, 3):
        got = attention.decode_batch(q, counts, base, offsets, 1, kv_heads * d, stride, kv_heads, splits=splits)
        torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)
    blocks = torch.randperm(27, generator=torch.Generator().manual_seed(seed % 1000))
    pool = torch.zeros(3, 2, 27, 4, kv_heads, d)
    table, used = torch.zeros(3, 16, dtype=torch.int32), 0
    for i, x in enumerate(data):
        for b in range(0, len(x), 4):
            table[i, b // 4] = blocks[used]
            pool[1, :, blocks[used], :len(x[b:b + 4])] = x[b:b + 4, 1].transpose(0, 1)
            used += 1
    got = attention.decode_batch(q, counts, torch.full((3,), pool.data_ptr()), torch.arange(3) * pool.stride(0) * 4, 1,
                                 pool.stride(1), kv_heads * d, kv_heads, table, 4, pool.stride(2), splits=2)
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)
    print("ok   the kernel, interpreted: addresses and tables")
    check_small_kernels()
    source, target = torch.randn(3, 5000), torch.zeros(3, 5000)
    copies = array.array("Q", (n for i, size in enumerate((8, 5000, 128))
                               for n in (target[i].data_ptr(), source[i].data_ptr(), size * 4)))
    attention.copy_batch(memoryview(copies), "cpu")
    for i, n in enumerate((8, 5000, 128)):
        assert torch.equal(target[i, :n], source[i, :n]) and not target[i, n:].any()
    fused = llama.Llama(SHAPE, torch.float32, "cpu", seed, fused=True)
    work = prompts(2, 21)
    want = [search.beam_uncached(MODEL, p, 2, 4) for p in work]
    for name, cache in (("ranges", ranges(1, triton=True)),
                        ("paged", caches.Paged(SHAPE, 64, torch.float32, "cpu", block=4, triton=True)),
                        ("ranges, FlashInfer's calls", ranges(1, triton=True, flashinfer=True)),
                        ("paged, FlashInfer's calls",
                         flashinfer_kernels.Paged(SHAPE, 64, torch.float32, "cpu", block=4, triton=True)),
                        ("concat", caches.Concat(SHAPE, fused=True))):
        assert search.beam(fused, cache, work, 2, 4) == want, name
        print(f"ok   beams with the kernels, interpreted: {name}")


def check_small_kernels():
    """Rotate and store, SwiGLU, copies of blocks: each kernel against its plain form."""
    from decoder import attention, kernels
    up = torch.randn(5, 2 * 96)
    torch.testing.assert_close(kernels.swiglu(up, True), kernels.swiglu(up, False))
    for heads, kv_heads, d in ((4, 2, 16), (6, 3, 8), (4, 4, 32)):
        qkv, positions = torch.randn(7, heads + 2 * kv_heads, d), torch.tensor([0, 5, 6, 1, 90, 2, 3])
        angles = positions[:, None] * torch.rand(d // 2)
        turn = kernels.Turn(angles.cos(), angles.sin(), positions)
        want = kernels.turn_plain(qkv, turn, kv_heads)
        for got, one in zip(kernels.turn_fused(qkv, turn, kv_heads), want):
            torch.testing.assert_close(got, one)
        cache = torch.zeros(3, 2, 11, kv_heads, d)  # layers, keys and values, places
        places = torch.randperm(11)[:7]
        place = kernels.Place(cache.data_ptr() + places * kv_heads * d * 4,
                              torch.arange(3) * cache.stride(0) * 4, cache.stride(1))
        torch.testing.assert_close(kernels.turn_and_store(qkv, turn, kv_heads, place, 2), want[0])
        for kind in (0, 1):
            torch.testing.assert_close(cache[2, kind, places], want[1 + kind])
        assert not cache[:2].any() and int(cache[2].ne(0).any(-1).any(-1).sum()) == 14, "stored elsewhere too"
    pool = torch.randn(6, 9, 4, 2, 8)
    want = pool.clone()
    want[:, [7, 0]] = want[:, [3, 8]]
    attention.copy_blocks(pool, [(3, 7), (8, 0)])
    assert torch.equal(pool, want)
    print("ok   rotate and store, SwiGLU, copies of blocks, interpreted")


def check_pieces():
    """Buffers that are kept, for a rounded number of tokens, as recordings on a GPU use them."""
    kept = llama.Llama(SHAPE, torch.float32, "cpu", seed, record=True)
    work = prompts(4, 33)
    for name, cache in all_caches():
        for prompt in work:
            got, _ = search.greedy(kept, cache, prompt, 8)
            assert got == search.greedy_uncached(MODEL, prompt, 8), f"{name}: {got}"
        wanted = [search.beam_uncached(MODEL, p, 2, 6) for p in work[:2]]
        assert search.beam(kept, cache, work[:2], 2, 6) == wanted, name
    assert set(kept.pieces) <= {16, 32, 64} and kept.pieces[16].rows == 16
    print(f"ok   kept buffers of {sorted(kept.pieces)} tokens, all caches")


def check_tail_copy():
    """A fork copies the used part of the last block and no more, and only where both go on."""
    for group_layers in (3, 1):
        cache = ranges(group_layers)
        shape = cache.kv.shape
        for tokens in (shape.block_tokens, shape.block_tokens + 1, 2 * shape.block_tokens - 1):
            seq, _ = cache.begin(prompts(1, 5)[0], share=False)
            cache.grow({seq: tokens})
            before = cache.kv.stats().copied_bytes
            child = cache.fork(seq)
            cache.grow({seq: 1, child: 1})
            copied = cache.kv.stats().copied_bytes - before
            assert copied == tokens % shape.block_tokens * shape.token_bytes, f"{copied} bytes for {tokens} tokens"
            cache.end(seq)
            cache.end(child)
    print("ok   a fork copies the used part of the last block")


def check_settle():
    """A sequence that ended shows its pages until settle(): what TTFT is measured with must take them away first."""
    cache = ranges()
    prompt = prompts(1, 40)[0]
    mapped = []
    for settled in (False, False, True):
        seq, hit = cache.begin(prompt)
        before = cache.kv.stats().mapped_pages
        cache.grow({seq: len(prompt) - hit})
        mapped.append(cache.kv.stats().mapped_pages - before)
        cache.done(seq, prompt)
        cache.end(seq)
        if settled or len(mapped) == 2:
            cache.settle()
    pages = -(-len(prompt) // cache.kv.shape.block_tokens) * cache.kv.shape.groups
    assert mapped[1] < pages and mapped[2] == pages, f"{mapped} of {pages} pages"
    print(f"ok   pages mapped for a prompt seen before: {mapped[1]}, after settle() {mapped[2]}")


def check_paged_eviction():
    """Published blocks are found by what is before them; the last blocks of a prefix go first."""
    cache = caches.Paged(SHAPE, 12, torch.float32, "cpu", block=4)
    text = prompts(1, 40)[0][:33]
    seq, _ = cache.begin(text)
    cache.grow({seq: 33})
    cache.done(seq, text)
    cache.end(seq)
    assert cache.begin([text[0] + 1] + text[1:])[1] == 0
    other, hit = cache.begin(text)
    assert hit == 32
    cache.end(other)
    big, _ = cache.begin([7] * 24, share=False)
    cache.grow({big: 24})  # six blocks: the four that are free and two of the prefix
    assert cache.begin(text)[1] == 24
    print("ok   paged: hits by chain, the last blocks evicted first")


for check in (check_greedy, check_beam, check_occupancy, check_pressure, check_sleep, check_tokens, check_errors, check_tail_copy,
              check_settle, check_paged_eviction, check_pieces, check_kernel):
    check()
print("PASS: decoder_check")
