#!/usr/bin/env python3
"""What a device holds when it is opened, and what its first calls take.

    first.py LIBMOONBRIGHT.SO [CONFIG]

With device tables the slab that windows are primed with is taken when the device is opened, and the first blocks come
out of it. CONFIG: as in mb_open(). With driver tables, and on the software GPU but for driver_home:yes, nothing is held
before the first block.
"""
import ctypes
import sys

from calls import MIB, Checks, Device, Library, pointer, u64

RESERVED, OVERHEAD = 6, 8
SLAB = 32 * MIB


def trim(library, device):
    pool = pointer()
    device.call("mb_pool_default", ctypes.byref(pool))
    device.sync()
    library.call("mb_pool_trim", pool, u64(0))


def main():
    library = Library(sys.argv[1])
    config = sys.argv[2] if len(sys.argv) > 2 else ""
    device = Device(library, 0, config)
    print(device.name())
    checks = Checks("first")
    by_device = "device-" in device.name() or "driver_home:yes" in config
    opened = device.stats()
    useful = opened[RESERVED] - opened[OVERHEAD]
    checks.check(f"{useful >> 20} MiB for blocks when opened", useful == (SLAB if by_device else 0))
    blocks = [device.malloc(size * MIB) for size in (1, 7, 16, 1)]
    held = device.stats()
    if by_device:
        checks.check("the first blocks need no more of the driver", held[RESERVED] == opened[RESERVED])
    else:
        checks.check("the first blocks are held", held[RESERVED] >= held[OVERHEAD] + 25 * MIB)
    for number, block in enumerate(blocks):
        device.fill(block, MIB, number)
    for number, block in enumerate(blocks):
        device.verify(block, MIB, number)
    for block in blocks:
        device.free(block)
    device.sync()
    checks.check("their bytes are right", device.wrong_words() == 0)
    trim(library, device)
    trimmed = device.stats()
    checks.check("trimmed, all that is held is overhead", trimmed[RESERVED] == trimmed[OVERHEAD])
    block = device.malloc(40 * MIB)
    device.fill(block, 40 * MIB, 5)
    device.verify(block, 40 * MIB, 5)
    device.free(block)
    device.sync()
    checks.check("and blocks can be had again", device.wrong_words() == 0)
    device.close()
    return checks.done()


if __name__ == "__main__":
    sys.exit(main())
