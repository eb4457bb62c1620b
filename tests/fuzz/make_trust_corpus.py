#!/usr/bin/env python3
"""Writes the first inputs of the targets api, config, abi and audit; the same every time.

    tests/fuzz/make_trust_corpus.py

Inputs that once failed are added by hand, with the fix, under names that say what they show.
"""

import pathlib
import random
import struct

CORPUS = pathlib.Path(__file__).resolve().parent / "corpus"

CONFIGS = [
    "", " ", ",", ":", "backend:sim", "backend:simulated", "backend:sim,backend:sim", "device_memory:64m",
    "device_memory:1", "device_memory:99999999999999999999", "device_memory:16e", "device_memory: 2 GiB ", "seed:0x10",
    "seed:-1", "explore:yes,oracle:no", "explore:maybe", "policy:fresh,deferred:yes", "policy:old", "limit:1g",
    "limit:8m,release_threshold:0", "window_space:1g,home_space:1g", "window_space:3", "growth:patient,cache:no",
    "check:redzone|poison|uaf|leaks", "check:redzone||poison", "check:", "check:" + "uaf|" * 30, "wait_ms:0", "wait_ms:1",
    "tables:isolated,model:mi210", "tables:driver,driver_home:yes,walk_ahead:yes,self_heal:yes", "model:h100",
    "audit:log", "audit:" + "a" * 300, "cache_bytes:1,window_cache:1", "force:1,guard:0", "key", "key:", ":value",
    "a:b:c:d", "explore:yes,", "\xff\xfe:1", "\t\n", "x" * 5000, "seed:18446744073709551615", "seed:18446744073709551616",
]


def write(target, name, data):
    directory = CORPUS / target
    directory.mkdir(parents=True, exist_ok=True)
    (directory / name).write_bytes(data)


def make_api():
    rng = random.Random(9)
    for i in range(32):
        # Every configuration, short and long; operations are weighted by what random bytes pick.
        write("api", f"random_{i:02}", bytes([i % 8]) + rng.randbytes(rng.choice([40, 200, 700, 1500])))
    # Allocations only, until memory runs out; then everything is freed.
    write("api", "fill_up", bytes([0]) + b"".join(bytes([0, i, 0, 2, 22, 128]) for i in range(16)) +
          b"".join(bytes([4, i, 2, 0]) for i in range(16)))


def make_config():
    for i, text in enumerate(CONFIGS):
        write("config", f"text_{i:02}", text.encode("latin-1"))


def ioc(number, size):
    return 3 << 30 | size << 16 | ord("F") << 8 | number


def make_abi():
    rng = random.Random(10)
    uvm = [0x19, 0x1a, 0x1b, 0x1c, 0x21, 0x22, 0x42, 0x13, 0x30000001, 0x30000002, 1, 0x49]
    for series in range(5):
        for i, request in enumerate(uvm):
            write("abi", f"uvm_{series}_{i:02}", bytes([3, series]) + struct.pack("<I", request) + rng.randbytes(96))
    for kind in (1, 2):
        for number in (0x2b, 0x29, 0x2a, 0x4e):
            for size in (0, 16, 32, 40, 48, 56):
                write("abi", f"rm_{kind}_{number:02x}_{size}",
                      bytes([kind, 2]) + struct.pack("<I", ioc(number, size)) + rng.randbytes(size))
    # A mapping for one GPU, for as many as there may be, for one too many.
    for count in (0, 1, 256, 257, 2 ** 63):
        write("abi", f"map_{count}", bytes([3, 1]) + struct.pack("<I", 0x21) + struct.pack("<QQQ", 0x200000, 0x200000, 0) +
              bytes(9216) + struct.pack("<Q", count) * 8)


def record(kind, sequence, va=0, size=0, phys=0, batch=0):
    return struct.pack("<IIQQQQQQQIIBB54s", 0, 0, sequence, 1700000000 * 10 ** 9, batch, va, size, phys, 0, 1234, 1, kind,
                       3, b"mb_mem_map_async")


def audit_list(sequence, frames, count=None):
    words = (frames + [0] * 27)[:27]
    return struct.pack("<IIQ14IBBH13I", 0, 0, sequence, *words[:14], 255, len(frames) if count is None else count, 0,
                       *words[14:])


def make_audit():
    session = record(0, 1)
    life = [record(1, 2, 0x10000000, 0x400000, 0x400000), record(3, 3, 0x10000000, 0x400000, 0x400000),
            record(5, 4, 0x20000000, 0x200000, 0x400000, 1), record(8, 5, batch=1),
            record(6, 6, 0x20000000, 0x200000, 0x400000, 2), record(9, 7, batch=2), record(11, 8)]
    whole = session + b"".join(life)
    fixed = b"\xff"
    write("audit", "empty", b"")
    write("audit", "session", fixed + session)
    write("audit", "life", fixed + whole)
    write("audit", "two_sessions", fixed + whole + session + life[0])
    write("audit", "torn", fixed + whole + session[:50])
    write("audit", "bad_checksum", b"\xfb" + whole)
    write("audit", "bad_last", b"\x7f" + whole)
    write("audit", "gap", fixed + session + life[1])
    write("audit", "no_session", fixed + life[0])
    write("audit", "bad_kind", fixed + session + record(200, 2))
    head = record(5, 2, 0x20000000, 0x200000, 0x400000, 1)
    write("audit", "list", fixed + session + head + audit_list(3, list(range(50, 77))) + audit_list(4, [9]) + record(8, 5, batch=1))
    write("audit", "list_without_head", fixed + session + audit_list(2, [1]))
    write("audit", "list_too_long", fixed + session + head + audit_list(3, [1], 28))
    write("audit", "list_empty", fixed + session + head + audit_list(3, [], 0))
    write("audit", "text", b"\x00not a log\n")
    write("audit", "many", fixed + session + b"".join(record(5, i, i << 21, 1 << 21, i << 21, 1) for i in range(2, 40)))


if __name__ == "__main__":
    make_api()
    make_config()
    make_abi()
    make_audit()
