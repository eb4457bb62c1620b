#!/usr/bin/env python3
"""Lists of copies: what they write, what they leave alone, alone and in a captured graph; and what they take.

    copy_list.py LIBMOONBRIGHT.SO [CONFIG] [--stand-in]

CONFIG: as in mb_open(). --stand-in: libcuda is one that captures nothing and measures no time. The software GPU's
captures cannot be had through the public interface. The seed is printed; MB_TEST_SEED repeats a run. The last lines are
what 2,048 copies of 64 KiB took as one list and as a call each, by ctypes: figures, which no check looks at.
"""
import json
import os
import random
import statistics
import sys
import time

from calls import INVALID, MIB, Checks, Copy, Device, Library, pointer, u64
from capture_replay import Cuda

GUARD = 16  # bytes on either side of a target that must stay
LAUNCH = 168  # copies that one launch of the cuda backend holds at most
MANY, MANY_BYTES, SAMPLES = 2048, 65536, 9


class Scene:
    """`count` copies at addresses of two blocks: sizes from 8 bytes to 2 MiB, a part of them aligned to 8 only."""

    def __init__(self, dev, draw, count, stream):
        self.dev, self.stream, self.parts, source, target = dev, stream, [], 0, 0
        for number in range(count):
            size = self.size(draw, number)
            source += draw.choice((0, 8))
            target += GUARD + draw.choice((0, 8))
            self.parts.append((target, source, size))
            source, target = -(-(source + size) // 16) * 16, -(-(target + size + GUARD) // 16) * 16
        self.blocks = [dev.malloc(target + 16, stream), dev.malloc(source + 16, stream)]
        self.parts = [(self.blocks[0] + to, self.blocks[1] + at, size) for to, at, size in self.parts]

    @staticmethod
    def size(draw, number):
        if number < 3:
            return (2 * MIB, 8, 2 * MIB - 8)[number]
        unit, most = draw.choice((8, 16)), 2 * MIB if draw.random() < 1 / 16 else 32768
        return unit * draw.randint(1, most // unit)

    def sources(self, seed):
        for number, (_, at, size) in enumerate(self.parts):
            self.dev.fill(at, size, seed + number, self.stream)

    def targets(self):
        for number, (to, _, size) in enumerate(self.parts):
            self.dev.fill(to, size, number + 7000000, self.stream)
            for at in (to - GUARD, to + size):
                self.dev.fill(at, GUARD, number + 8000000, self.stream)

    def verify(self, seed):
        for number, (to, _, size) in enumerate(self.parts):
            self.dev.verify(to, size, seed + number, self.stream)
            for at in (to - GUARD, to + size):
                self.dev.verify(at, GUARD, number + 8000000, self.stream)

    def close(self):
        for block in self.blocks:
            self.dev.free(block, self.stream)
        self.dev.sync()


def plain(checks, scene):
    scene.sources(1000)
    scene.targets()
    scene.dev.copy_list(scene.parts, scene.stream)
    scene.verify(1000)
    scene.dev.sync()
    checks.check(f"{len(scene.parts)} copies: {scene.dev.wrong_words()} wrong words", scene.dev.wrong_words() == 0)


def replayed(checks, scene, cuda):
    """A captured list copies what its sources hold when the graph is launched."""
    cuda.sync(scene.stream)
    cuda.capture(scene.stream)
    scene.dev.copy_list(scene.parts, scene.stream)
    executable = cuda.instantiate(cuda.end(scene.stream))
    for seed in (2000, 3000):
        scene.sources(seed)
        scene.targets()
        cuda.launch(executable, scene.stream)
        scene.verify(seed)
    scene.dev.sync()
    cuda.call("cuGraphExecDestroy", executable)
    checks.check(f"{len(scene.parts)} copies, captured and replayed: {scene.dev.wrong_words()} wrong words",
                 scene.dev.wrong_words() == 0)


def refused(checks, scene):
    scene.sources(4000)
    scene.targets()
    for part in ((4, 0, 8), (0, 4, 8), (0, 0, 12)):
        to, at, size = scene.parts[-1]
        wrong = (to + part[0], at + part[1], part[2])
        checks.refused("a copy that is not in units of 8", INVALID, scene.dev.copy_list, [*scene.parts[:-1], wrong],
                       scene.stream)
    scene.verify(7000000)
    scene.dev.copy_list([], scene.stream)
    scene.dev.sync()
    checks.check(f"and nothing was copied: {scene.dev.wrong_words()} wrong words", scene.dev.wrong_words() == 0)


class Clock:
    """Microseconds of a piece of work: of the host's call, until it is done, and on the device (None: not to be had)."""

    def __init__(self, dev, stream, cuda):
        self.dev, self.stream, self.cuda = dev, stream, cuda
        self.events = [cuda.event(), cuda.event()] if cuda else []

    def once(self, work):
        self.dev.sync()
        if self.cuda:
            self.cuda.call("cuEventRecord", self.events[0], pointer(self.stream))
        begin = time.perf_counter()
        work()
        host = time.perf_counter() - begin
        if self.cuda:
            self.cuda.call("cuEventRecord", self.events[1], pointer(self.stream))
        self.dev.sync()
        done = time.perf_counter() - begin
        return 1e6 * host, 1e6 * done, self.cuda.elapsed_us(*self.events) if self.cuda else None

    def median(self, work):
        columns = zip(*[self.once(work) for _ in range(SAMPLES)])
        return [None if None in column else round(statistics.median(column), 1) for column in columns]


def figures(dev, stream, cuda, config):
    blocks = [dev.malloc(MANY * MANY_BYTES, stream) for _ in range(2)]
    parts = [(blocks[0] + i * MANY_BYTES, blocks[1] + i * MANY_BYTES, MANY_BYTES) for i in range(MANY)]
    array = (Copy * MANY)(*parts)
    arguments = [(dev.handle, pointer(to), pointer(at), u64(size), pointer(stream)) for to, at, size in parts]
    one = dev.library.lib.mb_copy_async

    def calls():
        for each in arguments:
            if one(*each):
                raise SystemExit("mb_copy_async failed")

    clock = Clock(dev, stream, cuda)
    line = {"what": "copy-list", "config": config, "copies": MANY, "bytes": MANY_BYTES, "samples": SAMPLES}
    for how, work in (("list", lambda: dev.copy_list(array, stream)), ("calls", calls)):
        clock.once(work)
        for name, value in zip(("host_us", "done_us", "device_us"), clock.median(work)):
            line[f"{how}_{name}"] = value
    for block in blocks:
        dev.free(block, stream)
    dev.sync()
    print(json.dumps(line))
    print(f"RESULT {MANY} copies of {MANY_BYTES >> 10} KiB: a list {line['list_host_us']} us of the host and "
          f"{line['list_done_us']} until done, calls {line['calls_host_us']} and {line['calls_done_us']}")


def main():
    arguments = [each for each in sys.argv[1:] if each != "--stand-in"]
    config = arguments[1] if len(arguments) > 1 else "backend:cuda"
    seed = int(os.environ.get("MB_TEST_SEED") or str(random.SystemRandom().getrandbits(32)), 0)
    print(f"seed: {seed:#x}", flush=True)
    draw, cuda, checks = random.Random(seed), None, Checks(f"copy_list {config}")
    dev = Device(Library(arguments[0]), 0, config)
    print(dev.name())
    if dev.backend() == "cuda":
        cuda = Cuda()
        stream = cuda.begin()[0]
    else:
        stream = dev.out("mb_stream_create")
    real = cuda if "--stand-in" not in sys.argv else None
    if not real:
        print("note: nothing is captured here, and no device time is measured")
    for count in (1, 7, LAUNCH, LAUNCH + 1, MANY):
        scene = Scene(dev, draw, count, stream)
        plain(checks, scene)
        if real:
            replayed(checks, scene, real)
        if count == LAUNCH + 1:
            refused(checks, scene)
        scene.close()
    figures(dev, stream, real, config)
    dev.close()
    return checks.done()


if __name__ == "__main__":
    sys.exit(main())
