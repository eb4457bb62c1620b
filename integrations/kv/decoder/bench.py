#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The experiments of doc/kv.md on a GPU: one JSON object a line, appended to --out.

    python3 -m decoder.bench --out FILE [--experiments check,layout,attach,prefix,beam,long,serve]
            [--caches moonbright,cuda-vmm,paged,concat,moonbright-flashinfer,...] [--model llama-3-8b]
            [--tables inline] [--seconds 60] [--total SECONDS] [--repeats 3] [--eager] [--trace FILE] [--stretch 3]
            [--group-layers N] [--commit TEXT] [--device cpu]

Every experiment runs on every cache, in this process, with the same weights, and stops by itself after --seconds per
cache, or its own (prefix:26,long:30): a point that would not fit, by what the points before took, is left out, which a
line of its own tells. With --total, all have less where the whole run's time gets short. Points that matter most come
first. Times begin when the request is there and end when the host has the token; what is made at
first use (kernels, recordings, buffers) is made by a run before that is not counted. On a CPU (--device cpu, model
tiny) ranges lie on host memory: that checks this program and measures nothing. Exit status 77: no PyTorch, or no GPU.
"""
import argparse
import array
import contextlib
import gc
import gzip
import json
import pathlib
import random
import sys
import time

try:
    import torch
except ImportError:
    print("SKIP: decoder.bench: PyTorch is not installed")
    sys.exit(77)

HERE = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(HERE), str(HERE / "python")]
import moonbright_kv  # noqa: E402
from decoder import attention, caches, flashinfer_kernels, llama, search  # noqa: E402

SIZES = (4096, 16384, 32768, 65536, 131072)
SHARES = ((0.99, 0.9), (0.5,), (0.0,))  # all sizes with the first ones, then with the next
LONG = (4096, 32768, 196608, 131072, 16384, 65536)  # both ends first
ALIKE = 20000  # keys at which a token's attention takes as long as the rest of it (8B on an H200: 4K and 16K prompts)
BEAMS = ((128, 2), (128, 4), (64, 4), (64, 2), (16, 4), (16, 2), (4, 2), (1, 2), (4, 4), (1, 4))  # prompts, width
RANGES = ("moonbright", "cuda-vmm")
FLASHINFER = "-flashinfer"  # behind a place: the same with FlashInfer's kernels
KINDS = (*RANGES, "paged", *(place + FLASHINFER for place in (*RANGES, "paged")), "concat")
EXPERIMENTS = ("check", "layout", "attach", "prefix", "beam", "long", "serve")
NO_ROOM = (torch.OutOfMemoryError, MemoryError, moonbright_kv.KVError, flashinfer_kernels.Unusable)


def place_of(kind):
    return kind.removesuffix(FLASHINFER)


class Bench:
    def __init__(self, options):
        self.o, self.cpu = options, options.device == "cpu"
        self.made = []  # caches that are to be dropped
        self.draw = random.Random(options.seed)
        self.kinds = options.caches.split(",")
        self.plan = options.plan  # experiment -> seconds per cache, in order
        self.dtype = torch.float32 if self.cpu else torch.bfloat16
        # Before PyTorch's first call of CUDA, as MoonBright prefers it.
        wanted = "moonbright" in map(place_of, self.kinds) and not self.cpu
        self.mb = moonbright_kv.open_device(f"backend:cuda,tables:{options.tables},window_space:8t") if wanted else None
        self.shape = llama.SHAPES[options.model]
        self.model = llama.Llama(self.shape, self.dtype, options.device, record=False if options.eager else None)
        self.deadline = time.monotonic() + options.total if options.total else None
        self.out = open(options.out, "a", encoding="utf-8")
        gc.collect()
        gc.freeze()
        gc.disable()  # no collection in what is timed; drop() makes one

    def tell(self, what, kind, **values):
        line = json.dumps({"what": what, "cache": kind, "model": self.o.model, "device": self.o.device, **values})
        print(line, flush=True)
        self.out.write(line + "\n")
        self.out.flush()

    def try_flashinfer(self):
        """Its version; where it cannot be used its caches are left out, which is told with the reason."""
        wanted = [kind for kind in self.kinds if kind != place_of(kind)]
        if not wanted:
            return "not asked for"
        try:
            flashinfer_kernels.probe(self.dtype, self.o.device)
            return flashinfer_kernels.load().__version__
        except flashinfer_kernels.Unusable as error:
            for kind in wanted:
                self.kinds.remove(kind)
                self.tell("flashinfer", kind, left_out=str(error))
            return "left out"

    def wait(self):
        if not self.cpu:
            torch.cuda.synchronize()

    def room(self):
        """Bytes for a cache: 80% of what is free."""
        return 1 << 28 if self.cpu else int(torch.cuda.mem_get_info()[0] * 0.8)

    def make(self, *arguments, **named):
        if not self.cpu:
            torch.cuda.empty_cache()  # what room() is to find
        self.made.append(self._make(*arguments, **named))
        return self.made[-1]

    def _make(self, kind, max_tokens, max_sequences, model=None, group_layers=0, worth=0):
        """worth: how many full sequences there is memory for; by default twice what may live, for cached prefixes."""
        model, worth = model or self.model, worth or 2 * max_sequences
        s = model.shape
        if kind == "concat":
            return caches.Concat(s, fused=model.fused)
        place, others = place_of(kind), kind != place_of(kind)
        if place == "paged":
            per = 2 * s.layers * 16 * s.kv_heads * s.head_dim * model.dtype.itemsize
            blocks = min(self.room() // per, worth * (max_tokens // 16 + 2))
            paged = flashinfer_kernels.Paged if others else caches.Paged
            return paged(s, blocks, model.dtype, self.o.device, triton=not self.cpu)
        config = dict(layers=s.layers, kv_heads=s.kv_heads, head_dim=s.head_dim, element_bytes=model.dtype.itemsize,
                      max_tokens=max_tokens, max_sequences=max_sequences, group_layers=group_layers)
        token = 2 * s.layers * s.kv_heads * s.head_dim * model.dtype.itemsize
        config["limit_bytes"] = min(self.room(), worth * (max_tokens + 512) * token + (1 << 30))
        if self.cpu:
            kv = moonbright_kv.Cache.on_host(page_bytes=4096 * s.layers, **{**config, "limit_bytes": 1 << 26})
        elif place == "moonbright":
            kv = moonbright_kv.Cache.on_device(self.mb, **config)
        else:
            kv = moonbright_kv.Cache.on_cuda_vmm(0, lambda copies, _: attention.copy_batch(copies), **config)
        if others:
            return flashinfer_kernels.Ranges(kv, model.dtype, triton=not self.cpu, heads=s.heads)
        return caches.Ranges(kv, model.dtype, triton=not self.cpu)

    def touch(self, cache, tokens, sequences):
        """Memory for so many full sequences is had from the device now, not while a clock runs; as paged pools are."""
        if not isinstance(cache, caches.Ranges):
            return
        seqs = []
        try:
            for _ in range(sequences):
                seqs.append(cache.begin([1], share=False)[0])
                cache.grow({seqs[-1]: tokens})
        except moonbright_kv.KVError as error:
            if error.name != "MB_ERR_NO_MEMORY":  # no more of it: that is all, then
                raise
        for seq in seqs:
            cache.end(seq)
        cache.settle()
        self.wait()

    def drop(self, cache):
        self.made.remove(cache)
        if isinstance(cache, caches.Ranges):
            self.wait()
            for seq in list(cache.lengths):
                cache.end(seq)
            cache.kv.close()
        else:
            cache.clear()  # whoever still has the name must not hold the memory
        if self.mb:
            moonbright_kv.trim_device(self.mb)
        gc.collect()
        if not self.cpu:
            torch.cuda.empty_cache()

    def text(self, count):
        """Tokens as a server would keep them: an array, which the cache reads where it lies."""
        return array.array("i", self.draw.choices(range(self.shape.vocabulary), k=count))

    def seconds(self, what, left):
        """For one of `left` caches that the experiment still has: its own, or its part of what the run has left."""
        own, names = self.plan[what], list(self.plan)
        if self.deadline is None:
            return own
        later = sum(self.plan[name] for name in names[names.index(what) + 1:]) * len(self.kinds)
        room = self.deadline - time.monotonic()
        return own * max(0.0, min(1.0, room / max(1e-9, own * left + later)))

    def each(self, what, run):
        for i, kind in enumerate(self.kinds):
            until = time.monotonic() + self.seconds(what, len(self.kinds) - i)
            with self.tried(what, kind):
                run(kind, until)

    @contextlib.contextmanager
    def tried(self, what, kind, **labels):
        """What finds no room is told, and the next one gets it all."""
        failed = None
        try:
            yield
        except NO_ROOM as error:
            failed = (str(error).splitlines() or [type(error).__name__])[0][:200]
        if failed:
            self.tell(what, kind, **labels, failed=failed)
            for cache in list(self.made):
                self.drop(cache)

    # ------------------------------------------------------------------ experiments

    def check(self):
        """Token for token against no cache: full width, few layers, float32, so that ties do not decide."""
        s = self.shape
        few = llama.Llama(llama.Shape(min(4, s.layers), s.hidden, s.heads, s.kv_heads, s.inner, s.vocabulary, s.rope),
                          torch.float32, self.o.device, record=False if self.o.eager else None)
        begin = self.text(70).tolist()
        prompts = [begin + self.text(n).tolist() for n in (9, 30, 5)]
        want = [search.greedy_uncached(few, p, 12) for p in prompts]
        beams = [search.beam_uncached(few, p, 2, 8) for p in prompts[:2]]

        def run(kind, _until):
            if kind != place_of(kind):
                self.check_rounded(kind, few.shape, prompts)
                return
            cache = self.make(kind, 128, 16, few)
            got = [search.greedy(few, cache, p, 12) for p in prompts]
            found = search.beam(few, cache, prompts[:2], 2, 8)
            self.drop(cache)
            self.tell("check", kind, greedy_equal=[g for g, _ in got] == want, beam_equal=found == beams,
                      hit_tokens=sum(h for _, h in got), recorded=sorted(few.pieces), not_recorded=few.record_error)

        self.each("check", run)

    def check_rounded(self, kind, shape, prompts):
        """Kernels that know bfloat16 only: logits of given tokens against those of no cache, beside what the Triton
        kernels on the same memory differ by."""
        model = llama.Llama(shape, self.dtype, self.o.device, record=False)
        worst, size = {}, 0.0
        for name in (kind, place_of(kind)):
            cache, worst[name] = self.make(name, 128, 16, model), 0.0
            for prompt in prompts:
                text = list(prompt)
                seq, logits, _ = search.prefill(model, cache, text)
                for token in range(8):
                    want = model.uncached(text)
                    worst[name] = max(worst[name], (logits - want).abs().max().item())
                    size = max(size, want.abs().max().item())
                    text.append(token)
                    logits = search.step(model, cache, [text], [seq], [1])[0]
                cache.end(seq)
            self.drop(cache)
        self.tell("check", kind, logits_differ=worst[kind], triton_logits_differ=worst[place_of(kind)], largest_logit=size,
                  close=worst[kind] <= 2 * worst[place_of(kind)] + 1e-3 * size)

    def layout(self):
        """What layers per group cost attention: a decode step of 8 and of 32 sequences over ranges of each layout, beside
        a pool of blocks."""
        tokens = 64 if self.cpu else 8192
        groups = [n for n in (1, 2, 4, 8, 16, self.shape.layers) if self.shape.layers % n == 0]

        def run(kind, until):
            if kind == "concat":
                return
            ranges = place_of(kind) in RANGES
            for batch in (8, 32):
                for group in reversed(groups) if ranges else (0,):
                    labels = {"batch": batch, **({"group_layers": group} if ranges else {})}
                    if time.monotonic() > until:
                        self.tell("layout", kind, **labels, left_out="time")
                        continue
                    with self.tried("layout", kind, **labels):
                        self.layout_point(kind, tokens, labels, group)

        self.each("layout", run)

    def layout_point(self, kind, tokens, labels, group):
        batch = labels["batch"]
        cache = self.make(kind, tokens + 40, batch, group_layers=group, worth=batch)
        seqs = [cache.begin([0] * 8, share=False)[0] for _ in range(batch)]
        cache.grow({s: tokens for s in seqs})
        self.tell("layout", kind, **labels, tokens=tokens, step_ms=self.time_steps(cache, seqs, tokens, 16))
        for seq in seqs:
            cache.end(seq)
        self.drop(cache)

    def time_steps(self, cache, seqs, tokens, count):
        """Median milliseconds of a decode step; what the tokens are plays no part."""
        times = []
        for i in range(count):
            texts = [[1] * (tokens + i + 1)] * len(seqs)
            self.wait()
            begin = time.perf_counter()
            search.step(self.model, cache, texts, seqs, [1] * len(seqs)).argmax(-1).tolist()
            times.append(1e3 * (time.perf_counter() - begin))
        return sorted(times)[count // 2]

    def attach(self):
        """2 GiB of prefix until a kernel has read its last token."""
        per = 2 * self.shape.layers * self.shape.kv_heads * self.shape.head_dim * self.dtype.itemsize
        tokens = 160 if self.cpu else (2 << 30) // per

        def run(kind, _until):
            if kind not in RANGES:
                return
            cache = self.make(kind, tokens + 64, 4)
            text = self.text(tokens)
            first, _ = cache.begin(text)
            cache.grow({first: tokens})
            cache.done(first, text)
            host, used, hit = [], [], 0
            for _ in range(5 if self.cpu else 30):
                self.wait()
                begin = time.perf_counter()
                seq = cache.kv.open()
                hit = cache.kv.attach(seq, text)
                cache.kv.sync(caches._stream(self.o.device))
                host.append(time.perf_counter() - begin)
                keys, _ = cache.kv.tensors(seq, 0, self.dtype)
                keys[hit - 1].sum().item()
                used.append(time.perf_counter() - begin)
                cache.kv.free(seq)
                cache.kv.sync(caches._stream(self.o.device))
            self.tell("attach", kind, tokens=hit, bytes=hit * per, host_us=1e6 * sorted(host)[len(host) // 2],
                      used_us=1e6 * sorted(used)[len(used) // 2])
            self.drop(cache)

        self.each("attach", run)

    def first_token(self, cache, prompt, share=True):
        """From the request to its first token on the host: (sequence, ms, of them in attach and map calls, tokens
        found, pages mapped meanwhile). Publishing comes after: the token need not wait for it."""
        cache.settle()  # addresses show nothing of earlier requests, so what the prompt needs has to be mapped
        self.wait()
        before = self.mapped(cache)
        cache.spent, begin = 0.0, time.perf_counter()
        seq, logits, hit = search.prefill(self.model, cache, prompt, share, publish=False)
        logits.argmax().item()
        spent = time.perf_counter() - begin
        return seq, 1e3 * spent, 1e3 * cache.spent, hit, self.mapped(cache) - before

    def grouped(self, cache):
        """How ranges were laid out, where --group-layers chose it."""
        if self.o.group_layers and isinstance(cache, caches.Ranges):
            return {"group_layers": cache.kv.shape.group_layers}
        return {}

    @staticmethod
    def mapped(cache):
        return cache.kv.stats().mapped_pages if isinstance(cache, caches.Ranges) else 0

    def prefix_point(self, cache, tokens, share, repeats):
        """Every run has a prefix of its own. Its keys and values are drawn and not computed: times do not depend on
        them, and computing them would take all the time there is."""
        rows = []
        for _ in range(repeats):
            common = self.text(int(tokens * share))
            prompt = common + self.text(tokens - len(common))
            if common:
                cache.invent(common)
            seq, *row = self.first_token(cache, prompt)
            rows.append(row)
            cache.end(seq)
        return rows

    @staticmethod
    def work(computed, before):
        """What computing so many tokens behind others takes, relative to other numbers of both."""
        return computed * (1 + (before + computed / 2) / ALIKE)

    def prefix(self):
        sizes = (64, 96) if self.cpu else SIZES

        def run(kind, until):
            last = {}
            for shares in SHARES:
                if kind == "concat" and any(shares):  # it shares nothing: all the same
                    continue
                if not any(shares) and "long" in self.plan:
                    self.tell("prefix", kind, share=0.0, left_out="long has it")
                    continue
                for tokens in sizes:
                    with self.tried("prefix", kind, tokens=tokens):
                        one_size(kind, until, tokens, last, shares)

        def one_size(kind, until, tokens, last, shares):
            cache = None
            for share in shares:
                work = self.work(tokens * (1 - share), tokens * share)
                guess = last.get(share, 0) * work
                first = 1 if tokens <= 32768 else 0  # long ones are warm by the shorter ones
                repeats = self.o.repeats if first or share >= 0.9 else 1
                if time.monotonic() + guess * (first + repeats) > until:
                    self.tell("prefix", kind, tokens=tokens, share=share, left_out="time")
                    continue
                if not cache:
                    cache = self.make(kind, tokens + 64, 4, worth=3, group_layers=self.o.group_layers)
                    self.touch(cache, tokens + 64, 3)
                begin = time.monotonic()
                rows = self.prefix_point(cache, tokens, share, first + repeats)[first:]
                last[share] = (time.monotonic() - begin) / (first + repeats) / work
                middle = sorted(rows)[len(rows) // 2]
                self.tell("prefix", kind, tokens=tokens, share=share, hit=middle[2], computed=tokens - middle[2],
                          ttft_ms=middle[0], inside_cache_ms=middle[1], mapped_pages=middle[3],
                          **self.grouped(cache), all_ms=[round(r[0], 3) for r in rows])
            if cache:
                self.drop(cache)

        self.each("prefix", run)

    def beam(self):
        """Caches take turns at each point, so that what else the host does meets all of them alike."""
        left = dict.fromkeys(self.kinds, self.seconds("beam", len(self.kinds)))
        for batch, width in ((2, 2), (2, 4)) if self.cpu else BEAMS:
            for kind in self.kinds:
                begin = time.monotonic()
                if left[kind] <= 0:
                    self.tell("beam", kind, width=width, batch=batch, left_out="time")
                    continue
                with self.tried("beam", kind, width=width, batch=batch):
                    self.beam_point(kind, batch, width, begin + left[kind])
                left[kind] -= time.monotonic() - begin

    def beam_point(self, kind, batch, width, until):
        prompt, warm, count = (40, 2, 6) if self.cpu else (512, 4, 32)
        longest = prompt + warm + count + 2
        cache = self.make(kind, longest, width * batch, group_layers=self.o.group_layers)
        # Prompts are shared, and each beam has some 60 tokens of its own.
        self.touch(cache, longest, min(width * batch, batch + width * batch * 64 // longest + 1))
        prompts, marks = [self.text(prompt).tolist() for _ in range(batch)], []
        limit = time.monotonic() + max(3.0, (until - time.monotonic()) / 2)

        def mark(step):
            """Steps behind the warm-up; ends early, with at least two of them."""
            if step >= warm:
                self.wait()
                marks.append((time.perf_counter(), self.copied(cache), cache.spent))
            return len(marks) > 2 and time.monotonic() > limit

        search.beam(self.model, cache, prompts, width, warm + count + 1, mark)
        steps, spent = len(marks) - 1, marks[-1][0] - marks[0][0]
        copied = None if marks[0][1] is None else tuple(b - a for a, b in zip(marks[0][1], marks[-1][1]))
        self.tell("beam", kind, width=width, batch=batch, prompt=prompt, steps=steps,
                  tokens_per_s=batch * steps / spent, step_ms=1e3 * spent / steps,
                  inside_cache_ms=1e3 * (marks[-1][2] - marks[0][2]) / steps,
                  **self.grouped(cache), copies=copied and copied[0], copied_bytes=copied and copied[1])
        self.drop(cache)

    @staticmethod
    def copied(cache):
        """(copies, bytes) of tails so far; None where everything is copied anyway."""
        if isinstance(cache, caches.Ranges):
            stats = cache.kv.stats()
            return stats.copies, stats.copied_bytes
        return (cache.copies, cache.copied_bytes) if isinstance(cache, caches.Paged) else None

    def long(self):
        """Prompts without a prefix, and the steps behind them."""
        def run(kind, until):
            last, warm = 0.0, False
            for tokens in (48,) if self.cpu else LONG:
                work = self.work(tokens, 0)
                repeats = self.o.repeats if tokens <= 32768 else 1
                if time.monotonic() + last * work * repeats > until:
                    self.tell("long", kind, tokens=tokens, left_out="time")
                    continue
                with self.tried("long", kind, tokens=tokens):
                    last, warm = self.long_point(kind, tokens, repeats, not warm) / work, True

        self.each("long", run)

    def long_point(self, kind, tokens, repeats, warm_up):
        """Seconds that a prompt took, or a little more."""
        cache, rows, seq = self.make(kind, tokens + 40, 2, worth=2), [], None
        if warm_up:
            cache.end(self.first_token(cache, self.text(tokens), share=False)[0])
        begin = time.monotonic()
        for _ in range(repeats):
            if seq is not None:
                cache.end(seq)
            seq, *row = self.first_token(cache, self.text(tokens), share=False)
            rows.append(row)
        spent = (time.monotonic() - begin) / repeats
        middle = sorted(rows)[len(rows) // 2]
        self.tell("long", kind, tokens=tokens, ttft_ms=middle[0], inside_cache_ms=middle[1], mapped_pages=middle[3],
                  all_ms=[round(r[0], 3) for r in rows],
                  tpot_ms=self.time_steps(cache, [seq], tokens, 4 if self.cpu else 16))
        cache.end(seq)
        self.drop(cache)
        return spent

    def requests(self, tokens_max):
        """A slice of the Mooncake trace by seed: (arrival, prompt, tokens to make)."""
        stretch = self.o.stretch
        with gzip.open(self.o.trace, "rt", encoding="utf-8") as file:
            rows = [json.loads(line) for line in file]
        at = random.Random(self.o.seed).randrange(len(rows) // 2)
        vocabulary, chosen = self.shape.vocabulary, []
        for row in rows[at:at + 400]:
            size = min(row["input_length"], tokens_max)
            text = array.array("i")
            for i in row["hash_ids"][:size // 512 + 1]:
                text.extend((i * 512 + j) % vocabulary for j in range(512))
            count = max(2, min(row["output_length"], 200))
            chosen.append((stretch * row["timestamp"] / 1000, text[:size], count))
        return [(when - chosen[0][0], text, count) for when, text, count in chosen]

    def warm_up(self, cache, tokens_max):
        """What serving needs at first use: recordings, kernels, and a long prompt's buffers."""
        sizes = (1, 20) if self.cpu else (1, *range(32, llama.RECORDED + 1, 32), llama.RECORDED + 1, tokens_max)
        for size in sizes:
            seq = self.first_token(cache, self.text(size), share=False)[0]
            search.step(self.model, cache, [[1] * (size + 1)], [seq], [1])
            cache.end(seq)
        self.wait()

    def serve(self):
        """Real arrival times, prompts first, then a step of all. Nobody is admitted any more when the time is over;
        those running are finished then, at most 200 tokens each."""
        tokens_max, most = (64, 4) if self.cpu else (32768, 32)
        work = self.requests(tokens_max)

        def run(kind, until):
            seconds = until - time.monotonic()  # of serving: what comes before it is not counted
            cache = self.make(kind, tokens_max + 256, most)
            self.touch(cache, tokens_max + 256, most)
            self.warm_up(cache, tokens_max)
            self.tell("serve", kind, **Server(self, cache, work, most).run(time.monotonic() + seconds))
            self.drop(cache)

        self.each("serve", run)


class Server:
    """One serving run: requests (arrival, prompt, tokens to make) in order, at most `most` at once."""

    def __init__(self, bench, cache, work, most):
        self.bench, self.cache, self.most = bench, cache, most
        self.waiting, self.running = list(work), []  # running: [seq, text, tokens to go, time of the first, tokens]
        self.ttft, self.tpot, self.hits, self.asked, self.busy = [], [], 0, 0, 0.0
        self.spent = {"admit": [], "step": []}  # seconds of each, by what it was
        self.full, self.room = 0.0, 0.0  # tokens, and tokens that blocks in use have room for, times seconds

    def now(self):
        return time.monotonic() - self.begin

    def admit(self):
        when, text, count = self.waiting.pop(0)
        seq, logits, hit = search.prefill(self.bench.model, self.cache, text, publish=False)
        token = int(logits.argmax())
        first = self.now()
        self.cache.done(seq, text)
        self.ttft.append(first - when)
        self.hits, self.asked = self.hits + hit, self.asked + len(text)
        self.running.append([seq, text + array.array("i", [token]), count - 1, first, count])

    def step(self):
        logits = search.step(self.bench.model, self.cache, [r[1] for r in self.running],
                             [r[0] for r in self.running], [1] * len(self.running))
        for r, token in zip(list(self.running), logits.argmax(-1).tolist()):
            r[1].append(token)
            r[2] -= 1
            if not r[2]:
                self.tpot.append((self.now() - r[3]) / (r[4] - 1))
                self.cache.done(r[0], r[1][:-1])
                self.cache.end(r[0])
                self.running.remove(r)

    def run(self, until):
        """Until all are served, or `until` and then those running; what happened."""
        self.begin, self.cache.spent = time.monotonic(), 0.0
        while self.running or self.waiting:
            start = self.now()
            over = time.monotonic() >= until
            if over and not self.running:
                break
            if not over and self.waiting and self.waiting[0][0] <= start and len(self.running) < self.most:
                what = "admit"
            elif self.running:
                what = "step"
            else:
                time.sleep(0.0005)
                continue
            getattr(self, what)()
            spent = self.now() - start
            self.spent[what].append(spent)
            self.busy += spent
            tokens, room = self.cache.occupancy()  # as it is from here on: about what it was meanwhile
            self.full, self.room = self.full + tokens * spent, self.room + room * spent
        elapsed = self.now()
        late = sum(when <= elapsed for when, _, _ in self.waiting)
        for values in (self.ttft, self.tpot, *self.spent.values()):
            values.sort()
        options = self.bench.o
        return dict(seed=options.seed, stretch=options.stretch, seconds=elapsed, busy_share=self.busy / elapsed,
                    admitted=len(self.ttft), finished=len(self.tpot), arrived_not_admitted=late,
                    decode_steps=len(self.spent["step"]), prompt_tokens=self.asked, hit_share=self.hits / max(1, self.asked),
                    inside_cache_share=self.cache.spent / max(1e-9, self.busy),
                    memory_efficiency=self.full / self.room if self.room else None,
                    **{f"{name}_p{p}_ms": 1e3 * values[(len(values) - 1) * p // 100]
                       for name, values in (("ttft", self.ttft), ("tpot", self.tpot), *self.spent.items())
                       for p in (50, 99) if values},
                    **{f"{name}_seconds": sum(values) for name, values in self.spent.items()})


def planned(text, seconds):
    """`a,b:5` as {a: seconds, b: 5.0}."""
    plan = {}
    for part in text.split(","):
        name, _, own = part.partition(":")
        if name not in EXPERIMENTS or name in plan:
            raise ValueError(f"{part}: each of {', '.join(EXPERIMENTS)}, once, is allowed")
        plan[name] = float(own) if own else seconds
    return plan


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True)
    parser.add_argument("--experiments", default=",".join(EXPERIMENTS))
    parser.add_argument("--caches", default=",".join(KINDS))
    parser.add_argument("--model", default="llama-3-8b", choices=llama.SHAPES)
    parser.add_argument("--tables", default="inline")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--total", type=float, default=0, help="seconds for all of it, from when the model is there")
    parser.add_argument("--repeats", type=int, default=3, help="counted runs of a point of prefix")
    parser.add_argument("--eager", action="store_true", help="no recordings as CUDA graphs")
    parser.add_argument("--stretch", type=float, default=3, help="of arrival times, as one GPU cannot carry the trace")
    parser.add_argument("--trace", default=str(HERE.parent.parent / "data/serving/mooncake-conversation.jsonl.gz"))
    parser.add_argument("--group-layers", type=int, default=0,
                        help="layers that share a range in prefix and beam (0: the library chooses; layout tries several)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        print("SKIP: decoder.bench: PyTorch sees no GPU")
        sys.exit(77)
    for name in options.caches.split(","):
        if name not in KINDS:
            parser.error(f"--caches: {name} is none of {', '.join(KINDS)}")
    layers = llama.SHAPES[options.model].layers
    if options.group_layers < 0 or options.group_layers and layers % options.group_layers:
        parser.error(f"--group-layers: {options.group_layers} does not divide the {layers} layers of {options.model}; "
                     "a divisor is allowed, or 0")
    try:
        options.plan = planned(options.experiments, options.seconds)
    except ValueError as error:
        parser.error(f"--experiments: {error}")
    torch.manual_seed(options.seed)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # else a kernel more for every tensor made
    bench = Bench(options)
    bench.tell("run", "", commit=options.commit, arguments=sys.argv[1:], torch=torch.__version__, paged="Triton",
               flashinfer=bench.try_flashinfer(), gpu="" if bench.cpu else torch.cuda.get_device_name())
    for name in bench.plan:
        getattr(bench, name)()
        bench.tell("recordings", "", experiment=name, fused=bench.model.fused, recorded=sorted(bench.model.pieces),
                   not_recorded=bench.model.record_error)
    bench.out.close()
    if bench.mb:
        moonbright_kv.close_device(bench.mb)


if __name__ == "__main__":
    main()
