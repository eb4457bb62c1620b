#!/usr/bin/env python3
"""Access of one device to another one's blocks and mappings.

    peers.py LIBMOONBRIGHT.SO [CONFIG]

CONFIG: as in mb_open(), for example backend:cuda,tables:driver. Runs on the software GPU as well. Exit status 77: fewer
than two devices, or none can reach the other.
"""
import sys

from calls import (BUSY, MAP, MIB, NONE, NOT_SUPPORTED, PAGE, READ, READ_WRITE, UNMAP, Checks, Device, Library, Refused,
                   pointer, u64)


def blocks(checks, one, two):
    size = 24 * MIB
    block, other = one.malloc(size), two.malloc(size)
    one.fill(block, size, 1)
    one.sync()
    one.set_access(block, size, two, READ_WRITE)
    two.verify(block, size, 1)
    two.copy(other, block, size)
    two.verify(other, size, 1)
    two.fill(block, size, 2)
    two.sync()
    one.verify(block, size, 2)
    one.sync()
    one.free(block)
    one.sync()
    two.verify(block, size, 2)  # what is open stays
    two.sync()
    one.set_access(block, size, two, NONE)
    two.free(other)
    two.sync()
    checks.check("a block is read, copied and written by the peer", one.wrong_words() == 0 and two.wrong_words() == 0)
    again = one.malloc(size)
    one.fill(again, size, 3)
    one.verify(again, size, 3)
    one.free(again)
    one.sync()
    checks.check("its memory serves again afterwards", one.wrong_words() == 0)


def mappings(checks, one, two):
    pages = 16
    mem = one.out("mb_mem_create", u64(pages * PAGE))
    va = one.out("mb_mem_reserve", u64(pages * PAGE), u64(0))
    one.map(MAP, va, pages * PAGE, mem)
    one.fill(va, pages * PAGE, 4)
    one.sync()
    try:
        one.set_access(va, 4 * PAGE, two, READ)
    except Refused as refusal:
        # Device tables: the driver's record of a window is not what is shown there.
        checks.check(f"a window is refused: {refusal}", refusal.err == NOT_SUPPORTED)
    else:
        checks.refused("unmapping what is open", BUSY, one.map, UNMAP, va, PAGE)
        block = two.malloc(4 * PAGE)
        two.copy(block, va, 4 * PAGE)
        two.verify(block, 4 * PAGE, 4)
        two.sync()
        one.verify(va, pages * PAGE, 4)
        one.set_access(va, 4 * PAGE, two, NONE)
        two.free(block)
        two.sync()
    one.map(UNMAP, va, pages * PAGE)
    one.call("mb_mem_release", pointer(mem))
    one.call("mb_mem_unreserve", pointer(va), u64(pages * PAGE))
    one.sync()
    checks.check("mappings: nothing wrong", one.wrong_words() == 0 and two.wrong_words() == 0)


def main():
    path, config = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else ""
    library, checks = Library(path), Checks("peers")
    count = library.device_count(config)
    if count < 2:
        print(f"SKIP: peers: {count} device(s)")
        return 77
    one, two = Device(library, 0, config), Device(library, 1, config)
    print(f"device 0: {one.name()}; device 1: {two.name()}")
    try:
        two.call("mb_device_can_access", one.handle)
    except Refused as refusal:
        print(f"SKIP: peers: {refusal}")
        return 77
    blocks(checks, one, two)
    blocks(checks, two, one)
    mappings(checks, one, two)
    one.close()
    two.close()
    return checks.done()


if __name__ == "__main__":
    sys.exit(main())
