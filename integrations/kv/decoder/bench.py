#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The experiments of doc/kv.md on a GPU: one JSON object a line, appended to --out.

    python3 -m decoder.bench --out FILE [--experiments check,layout,attach,prefix,beam,long,serve]
            [--caches moonbright,cuda-vmm,paged,concat] [--model llama-3-8b] [--tables inline] [--seconds 60]
            [--trace FILE] [--commit TEXT] [--device cpu]

Every experiment runs on every cache, in this process, with the same weights, and stops by itself after --seconds per
cache; what was left out is told in a line of its own. On a CPU (--device cpu, model tiny) ranges lie on host memory:
that checks this program and measures nothing. Exit status 77: no PyTorch, or no GPU.
"""
import argparse
import array
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
from decoder import attention, caches, llama, search  # noqa: E402

KINDS = ("moonbright", "cuda-vmm", "paged", "concat")


class Bench:
    def __init__(self, options):
        self.o, self.cpu = options, options.device == "cpu"
        self.draw = random.Random(options.seed)
        self.dtype = torch.float32 if self.cpu else torch.bfloat16
        # Before PyTorch's first call of CUDA, as MoonBright prefers it.
        wanted = "moonbright" in options.caches.split(",") and not self.cpu
        self.mb = moonbright_kv.open_device(f"backend:cuda,tables:{options.tables},window_space:8t") if wanted else None
        self.shape = llama.SHAPES[options.model]
        self.model = llama.Llama(self.shape, self.dtype, options.device)
        self.out = open(options.out, "a", encoding="utf-8")

    def tell(self, what, kind, **values):
        line = json.dumps({"what": what, "cache": kind, "model": self.o.model, "device": self.o.device, **values})
        print(line, flush=True)
        self.out.write(line + "\n")
        self.out.flush()

    def wait(self):
        if not self.cpu:
            torch.cuda.synchronize()

    def room(self):
        """Bytes for a cache: 80% of what is free."""
        return 1 << 28 if self.cpu else int(torch.cuda.mem_get_info()[0] * 0.8)

    def make(self, kind, max_tokens, max_sequences, model=None, group_layers=0):
        model = model or self.model
        s = model.shape
        if kind == "concat":
            return caches.Concat(s)
        if kind == "paged":
            per = 2 * s.layers * 16 * s.kv_heads * s.head_dim * model.dtype.itemsize
            blocks = min(self.room() // per, 2 * max_sequences * (max_tokens // 16 + 2))
            return caches.Paged(s, blocks, model.dtype, self.o.device, triton=not self.cpu)
        config = dict(layers=s.layers, kv_heads=s.kv_heads, head_dim=s.head_dim, element_bytes=model.dtype.itemsize,
                      max_tokens=max_tokens, max_sequences=max_sequences, group_layers=group_layers)
        token = 2 * s.layers * s.kv_heads * s.head_dim * model.dtype.itemsize
        # Twice what live sequences can need leaves room for cached prefixes.
        config["limit_bytes"] = min(self.room(), 2 * max_sequences * (max_tokens + 512) * token + (1 << 30))
        if self.cpu:
            kv = moonbright_kv.Cache.on_host(page_bytes=4096 * s.layers, **{**config, "limit_bytes": 1 << 26})
        elif kind == "moonbright":
            kv = moonbright_kv.Cache.on_device(self.mb, lambda copies, _: attention.copy_batch(copies), **config)
        else:
            kv = moonbright_kv.Cache.on_cuda_vmm(0, lambda copies, _: attention.copy_batch(copies), **config)
        return caches.Ranges(kv, model.dtype, triton=not self.cpu)

    def drop(self, cache):
        if isinstance(cache, caches.Ranges):
            self.wait()
            cache.views.clear()
            for seq in list(cache.lengths):
                cache.end(seq)
            cache.kv.close()
        if self.mb:
            moonbright_kv.trim_device(self.mb)
        if not self.cpu:
            torch.cuda.empty_cache()

    def text(self, count):
        return [self.draw.randrange(self.shape.vocabulary) for _ in range(count)]

    def each(self, what, run):
        for kind in self.o.caches.split(","):
            until = time.monotonic() + self.o.seconds
            try:
                run(kind, until)
            except (torch.OutOfMemoryError, MemoryError, moonbright_kv.KVError) as error:
                self.tell(what, kind, failed=str(error).splitlines()[0][:200])

    # ------------------------------------------------------------------ experiments

    def check(self):
        """Token for token against no cache: full width, few layers, float32, so that ties do not decide."""
        s = self.shape
        few = llama.Llama(llama.Shape(min(4, s.layers), s.hidden, s.heads, s.kv_heads, s.inner, s.vocabulary, s.rope),
                          torch.float32, self.o.device)
        begin = self.text(70)
        prompts = [begin + self.text(n) for n in (9, 30, 5)]
        want = [search.greedy_uncached(few, p, 12) for p in prompts]
        beams = [search.beam_uncached(few, p, 2, 8) for p in prompts[:2]]

        def run(kind, _until):
            cache = self.make(kind, 128, 16, few)
            got = [search.greedy(few, cache, p, 12) for p in prompts]
            found = search.beam(few, cache, prompts[:2], 2, 8)
            self.drop(cache)
            self.tell("check", kind, greedy_equal=[g for g, _ in got] == want, beam_equal=found == beams,
                      hit_tokens=sum(h for _, h in got))

        self.each("check", run)

    def layout(self):
        """What layers per group cost attention: one decode step of 8 sequences over ranges of each layout."""
        tokens = 64 if self.cpu else 8192

        def run(kind, _until):
            if kind in ("paged", "concat"):
                return
            for group in (1, 8, self.shape.layers):
                if self.shape.layers % group:
                    continue
                cache = self.make(kind, tokens + 40, 8, group_layers=group)
                seqs = [cache.begin([0] * 8, share=False)[0] for _ in range(8)]
                cache.grow({s: tokens for s in seqs})
                self.tell("layout", kind, group_layers=group, tokens=tokens,
                          step_ms=self.time_steps(cache, seqs, tokens, 16))
                self.drop(cache)

        self.each("layout", run)

    def time_steps(self, cache, seqs, tokens, count):
        """Median milliseconds of a decode step; what the tokens are plays no part."""
        times = []
        for i in range(count):
            self.wait()
            begin = time.perf_counter()
            texts = [[1] * (tokens + i + 1)] * len(seqs)
            search.step(self.model, cache, texts, seqs, [1] * len(seqs)).argmax(-1).tolist()
            times.append(1e3 * (time.perf_counter() - begin))
        return sorted(times)[count // 2]

    def attach(self):
        """2 GiB of prefix until a kernel has read its last token."""
        per = 2 * self.shape.layers * self.shape.kv_heads * self.shape.head_dim * self.dtype.itemsize
        tokens = 160 if self.cpu else (2 << 30) // per

        def run(kind, _until):
            if kind in ("paged", "concat"):
                return
            cache = self.make(kind, tokens + 64, 4)
            text = self.text(tokens)
            first, _ = cache.begin(text)
            cache.grow({first: tokens})
            cache.done(first, text)
            host, used, hit, text = [], [], 0, array.array("i", text)  # as a server would keep it: passed as it lies
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

    def prefix(self):
        lengths = (64,) if self.cpu else (4096, 16384, 32768, 65536, 131072)

        def run(kind, until):
            for tokens in lengths:
                cache = self.make(kind, tokens + 64, 4)
                for share in (0.0, 0.5, 0.9, 0.99):
                    if time.monotonic() > until:
                        self.tell("prefix", kind, tokens=tokens, share=share, left_out="time")
                        continue
                    common, times, hit = self.text(int(tokens * share)), [], 0
                    if common and kind != "concat":
                        seq, _, _ = search.prefill(self.model, cache, common + [1])
                        cache.end(seq)
                    for _ in range(3):
                        prompt = common + self.text(tokens - len(common))
                        self.wait()
                        begin = time.perf_counter()
                        seq, logits, hit = search.prefill(self.model, cache, prompt)
                        logits.argmax().item()
                        times.append(time.perf_counter() - begin)
                        cache.end(seq)
                    self.tell("prefix", kind, tokens=tokens, share=share, hit=hit, ttft_ms=1e3 * sorted(times)[1])
                self.drop(cache)

        self.each("prefix", run)

    def beam(self):
        batches = (2,) if self.cpu else (1, 4, 16, 64, 128)
        prompt, count = (40, 6) if self.cpu else (512, 64)

        def run(kind, until):
            for width in (2, 4):
                for batch in batches:
                    if time.monotonic() > until:
                        self.tell("beam", kind, width=width, batch=batch, left_out="time")
                        continue
                    cache = self.make(kind, prompt + count + 1, width * batch)
                    prompts, marks = [self.text(prompt) for _ in range(batch)], []

                    def mark(marks=marks):
                        self.wait()
                        marks.append(time.perf_counter())

                    search.beam(self.model, cache, prompts, width, count, mark)
                    copied = cache.kv.stats().copied_bytes if isinstance(cache, caches.Ranges) else \
                        getattr(cache, "copied_bytes", None)
                    rate = batch * (len(marks) - 1) / (marks[-1] - marks[0])
                    self.tell("beam", kind, width=width, batch=batch, prompt=prompt, steps=count, tokens_per_s=rate,
                              copied_bytes=copied)
                    self.drop(cache)

        self.each("beam", run)

    def long(self):
        lengths = (48,) if self.cpu else (4096, 16384, 65536, 131072, 196608)

        def run(kind, until):
            for tokens in lengths:
                if time.monotonic() > until:
                    self.tell("long", kind, tokens=tokens, left_out="time")
                    continue
                cache = self.make(kind, tokens + 40, 4)
                self.wait()
                begin = time.perf_counter()
                seq, logits, _ = search.prefill(self.model, cache, self.text(tokens), share=False)
                logits.argmax().item()
                ttft = 1e3 * (time.perf_counter() - begin)
                self.tell("long", kind, tokens=tokens, ttft_ms=ttft,
                          tpot_ms=self.time_steps(cache, [seq], tokens, 4 if self.cpu else 16))
                cache.end(seq)
                self.drop(cache)

        self.each("long", run)

    def requests(self, tokens_max):
        """A slice of the Mooncake trace by seed: (arrival, prompt, tokens to make)."""
        with gzip.open(self.o.trace, "rt", encoding="utf-8") as file:
            rows = [json.loads(line) for line in file]
        at = random.Random(self.o.seed).randrange(len(rows) // 2)
        vocabulary, chosen = self.shape.vocabulary, []
        for row in rows[at:at + 400]:
            size = min(row["input_length"], tokens_max)
            text = [(i * 512 + j) % vocabulary for i in row["hash_ids"] for j in range(512)][:size]
            chosen.append((row["timestamp"] / 1000, text, max(2, min(row["output_length"], 200))))
        return [(when - chosen[0][0], text, count) for when, text, count in chosen]

    def serve(self):
        """Real arrival times, prompts first, then a step of all; stops admitting when the time is over."""
        tokens_max = 64 if self.cpu else 32768
        work = self.requests(tokens_max)

        def run(kind, until):
            cache = self.make(kind, tokens_max + 256, 32)
            waiting, running, ttft, tpot, hits, asked = list(work), [], [], [], 0, 0
            begin = time.monotonic()
            while running or (waiting and time.monotonic() < until):
                now = time.monotonic() - begin
                if waiting and waiting[0][0] <= now and len(running) < 32 and time.monotonic() < until:
                    when, text, count = waiting.pop(0)
                    seq, logits, hit = search.prefill(self.model, cache, text)
                    first = time.monotonic() - begin
                    ttft.append(first - when)
                    hits, asked = hits + hit, asked + len(text)
                    running.append([seq, text + [int(logits.argmax())], count - 1, first, count])
                elif running:
                    logits = search.step(self.model, cache, [r[1] for r in running], [r[0] for r in running],
                                         [1] * len(running))
                    for r, token in zip(list(running), logits.argmax(-1).tolist()):
                        r[1].append(token)
                        r[2] -= 1
                        if not r[2]:
                            tpot.append((time.monotonic() - begin - r[3]) / (r[4] - 1))
                            cache.done(r[0], r[1][:-1])
                            cache.end(r[0])
                            running.remove(r)
                else:
                    time.sleep(0.001)
            self.drop(cache)
            ttft.sort(), tpot.sort()
            self.tell("serve", kind, seed=self.o.seed, finished=len(tpot), hit_share=hits / max(1, asked),
                      **{f"{name}_p{p}_ms": 1e3 * values[(len(values) - 1) * p // 100]
                         for name, values in (("ttft", ttft), ("tpot", tpot)) for p in (50, 99) if values})

        self.each("serve", run)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True)
    parser.add_argument("--experiments", default="check,layout,attach,prefix,beam,long,serve")
    parser.add_argument("--caches", default=",".join(KINDS))
    parser.add_argument("--model", default="llama-3-8b", choices=llama.SHAPES)
    parser.add_argument("--tables", default="inline")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--trace", default=str(HERE.parent.parent / "data/serving/mooncake-conversation.jsonl.gz"))
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
    torch.manual_seed(options.seed)
    torch.use_deterministic_algorithms(True, warn_only=True)
    bench = Bench(options)
    bench.tell("run", "", commit=options.commit, arguments=sys.argv[1:], torch=torch.__version__, paged="Triton",
               gpu="" if bench.cpu else torch.cuda.get_device_name())
    for name in options.experiments.split(","):
        getattr(bench, name)()
    if bench.mb:
        moonbright_kv.close_device(bench.mb)


if __name__ == "__main__":
    main()
