#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The shortest way in from Python, without PyTorch: memory, a snapshot of it, and what it costs.

    python3 first.py [SNAPSHOT]
"""
import sys

import moonbright

MIB = 1 << 20

with moonbright.Device(0, "device_memory:1g") as device:
    stream = device.stream()
    pieces = [device.malloc_async(12 * MIB, stream) for _ in range(64)]
    for pointer in pieces[::2]:
        device.free_async(pointer, stream)
    whole = device.malloc_async(384 * MIB, stream)  # made of 32 holes
    device.fill(whole, 384 * MIB, 1, stream)
    device.verify(whole, 384 * MIB, 1, stream)
    device.sync(stream)
    print(device.memory_summary())
    if len(sys.argv) > 1:
        device.snapshot(sys.argv[1])  # for PyTorch's visualiser, or `moonbright replay`
    stats = device.stats()
    assert stats["wrong_words"] == 0 and stats["stitches"] > 0
    for pointer in [whole, *pieces[1::2]]:
        device.free_async(pointer, stream)
