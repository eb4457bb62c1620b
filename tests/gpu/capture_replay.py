#!/usr/bin/env python3
"""Capture into a CUDA graph and replay: an ordinary pool is refused, a kept one serves every replay.

    capture_replay.py LIBMOONBRIGHT.SO [inline|isolated|driver] [REPLAYS]

Only libcuda and MoonBright's own kernels are used. Exit status 77: no CUDA driver here.
"""
import ctypes
import sys

from calls import MIB, NOT_SUPPORTED, POOL_KEEP, Checks, Device, Library, Refused, pointer, u64

RELAXED = 2


class Cuda:
    def __init__(self):
        self.lib = ctypes.CDLL("libcuda.so.1")

    def call(self, name, *arguments):
        result = getattr(self.lib, name)(*arguments)
        if result:
            raise RuntimeError(f"{name}: CUDA error {result}")

    def begin(self):
        """Context of device 0 for this thread, and two streams."""
        device, context = ctypes.c_int(), pointer()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)
        streams = [pointer(), pointer()]
        for stream in streams:
            self.call("cuStreamCreate", ctypes.byref(stream), 1)
        return [stream.value for stream in streams]

    def capture(self, stream):
        self.call("cuStreamBeginCapture_v2", pointer(stream), RELAXED)

    def end(self, stream):
        graph = pointer()
        self.call("cuStreamEndCapture", pointer(stream), ctypes.byref(graph))
        return graph

    def instantiate(self, graph):
        executable = pointer()
        self.call("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, u64(0))
        return executable

    def launch(self, executable, stream):
        self.call("cuGraphLaunch", executable, pointer(stream))

    def sync(self, stream):
        self.call("cuStreamSynchronize", pointer(stream))

    def event(self):
        event = pointer()
        self.call("cuEventCreate", ctypes.byref(event), 0)
        return event

    def elapsed_us(self, begin, end):
        """Between two events that have happened."""
        ms = ctypes.c_float()
        self.call("cuEventElapsedTime", ctypes.byref(ms), begin, end)
        return 1e3 * ms.value


def refusals(checks, cuda, dev, stream, other):
    before = dev.malloc(4 * MIB, stream)
    cuda.capture(stream)
    checks.refused("malloc in a capture", NOT_SUPPORTED, dev.malloc, 4 * MIB, stream)
    checks.refused("free in a capture", NOT_SUPPORTED, dev.free, before, stream)
    block = dev.malloc(4 * MIB, other)
    dev.fill(block, 4 * MIB, 1, other)
    dev.verify(block, 4 * MIB, 1, other)
    dev.free(block, other)
    graph = cuda.end(stream)  # fails if anything above had broken the capture
    cuda.call("cuGraphDestroy", graph)
    dev.free(before, stream)
    checks.check("the capture was left as it was", True)


def network_step(dev, pool, stream):
    temporary = dev.pool_malloc(pool, 20 * MIB, stream)
    dev.fill(temporary, 20 * MIB, 11, stream)
    result = dev.pool_malloc(pool, 5 * MIB, stream)
    dev.copy(result, temporary, 5 * MIB, stream)
    dev.free(temporary, stream)
    second = dev.pool_malloc(pool, 18 * MIB, stream)
    dev.fill(second, 18 * MIB, 12, stream)
    dev.verify(second, 18 * MIB, 12, stream)
    dev.verify(result, 5 * MIB, 11, stream)
    dev.free(second, stream)
    return result


def replays(checks, cuda, dev, stream, other, count):
    pool = dev.keep_pool()
    dev.free(network_step(dev, pool, stream), stream)  # so that nothing grows in the capture
    cuda.sync(stream)
    cuda.capture(stream)
    result = network_step(dev, pool, stream)
    executable = cuda.instantiate(cuda.end(stream))
    for turn in range(count):
        blocks = []
        while len(blocks) < 200:  # all of the cap: whatever the graph's pool did not keep
            try:
                blocks.append(dev.malloc(3 * MIB, other))
            except Refused:
                break
            dev.fill(blocks[-1], 3 * MIB, 100 + len(blocks), other)
        cuda.sync(other)
        cuda.launch(executable, stream if turn % 2 else other)
        cuda.sync(stream)
        cuda.sync(other)
        for number, block in enumerate(blocks):
            dev.verify(block, 3 * MIB, 101 + number, other)
            dev.free(block, other)
        dev.sync()
    checks.check(f"{count} replays beside {len(blocks)} other blocks: {dev.wrong_words()} wrong words",
                 dev.wrong_words() == 0)
    cuda.call("cuGraphExecDestroy", executable)
    dev.free(result, stream)
    dev.library.call("mb_pool_set", pool, POOL_KEEP, u64(0))
    dev.sync()
    dev.library.call("mb_pool_destroy", pool)


def wait_for(dev, waiter, other):
    event = pointer(dev.out("mb_event_create"))
    dev.call("mb_event_record", event, pointer(other))
    dev.call("mb_stream_wait_event", pointer(waiter), event)
    dev.call("mb_event_destroy", event)


def forks(checks, cuda, dev, stream, other):
    """`other` joins the capture by MoonBright's events, and the graph replays with its edges."""
    pool = dev.keep_pool()
    warm = [dev.pool_malloc(pool, 20 * MIB, stream) for _ in range(2)]
    for block in warm:
        dev.free(block, stream)
    dev.sync()
    cuda.capture(stream)
    first = dev.pool_malloc(pool, 20 * MIB, stream)
    dev.fill(first, 20 * MIB, 21, stream)
    wait_for(dev, other, stream)
    result = dev.pool_malloc(pool, 20 * MIB, other)
    dev.copy(result, first, 20 * MIB, other)
    wait_for(dev, stream, other)
    dev.verify(result, 20 * MIB, 21, stream)
    executable = cuda.instantiate(cuda.end(stream))  # fails if `other` had not been joined
    for _ in range(20):
        cuda.launch(executable, stream)
    cuda.sync(stream)
    dev.sync()
    checks.check(f"20 replays of a fork: {dev.wrong_words()} wrong words", dev.wrong_words() == 0)
    cuda.call("cuGraphExecDestroy", executable)
    dev.free(first, stream)
    dev.free(result, other)
    dev.library.call("mb_pool_set", pool, POOL_KEEP, u64(0))
    dev.sync()
    dev.library.call("mb_pool_destroy", pool)


def main():
    path = sys.argv[1]
    tables = sys.argv[2] if len(sys.argv) > 2 else "inline"
    count = int(sys.argv[3]) if len(sys.argv) > 3 else 20
    try:
        cuda = Cuda()
    except OSError as missing:
        print(f"SKIP: capture_replay: {missing}")
        return 77
    checks = Checks(f"capture_replay {tables}")
    dev = Device(Library(path), 0, f"backend:cuda,tables:{tables},capture:check,device_memory:768m")
    print(dev.name())
    stream, other = cuda.begin()
    refusals(checks, cuda, dev, stream, other)
    replays(checks, cuda, dev, stream, other, count)
    forks(checks, cuda, dev, stream, other)
    dev.close()
    return checks.done()


if __name__ == "__main__":
    sys.exit(main())
