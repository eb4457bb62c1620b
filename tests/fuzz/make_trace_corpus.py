#!/usr/bin/env python3
"""Writes the seed inputs of the trace fuzzers: good traces of every format, and one of each kind of bad one.

    tests/fuzz/make_trace_corpus.py [DIRECTORY]     default: the corpus directory beside this script

Same bytes on every run. The pickles are Python's own, of all protocols, and some made opcode by opcode.
"""

import gzip
import pathlib
import pickle
import struct
import sys

RMM = "Thread,Time,Action,Pointer,Size,Stream\n"


class Attack:
    """What a hostile pickle looks like; never loaded by anything."""

    def __reduce__(self):
        return (print, ("executed",))


def snapshot(events=None, devices=1):
    """A snapshot as torch.cuda.memory._snapshot() returns it."""
    frame = {"filename": "train.py", "line": 12, "name": "step"}

    def event(action, addr, size, stream=0):
        return {"action": action, "addr": addr, "size": size, "stream": stream, "time_us": 1700000000000000,
                "frames": [frame]}

    if events is None:
        base = 0x7F0A00000000
        events = [event("segment_alloc", base, 2 << 20), event("alloc", base, 1000), event("alloc", base + 1024, 512),
                  event("free_requested", base, 1000), event("free_completed", base, 1000),
                  event("alloc", base, 64, 94021), event("snapshot", 0, 0)]
        events.append({"action": "oom", "device_free": 0, "size": 1 << 40, "stream": 0, "time_us": 1, "frames": []})
    block = {"address": 0x7F0A00000400, "size": 512, "requested_size": 512, "state": "active_allocated", "frames": []}
    segment = {"device": 0, "address": 0x7F0A00000000, "total_size": 2 << 20, "allocated_size": 1024,
               "active_size": 1024, "stream": 0, "segment_type": "small", "segment_pool_id": (0, 0),
               "is_expandable": False, "frames": [], "blocks": [block]}
    return {"segments": [segment], "device_traces": [events] + [[] for _ in range(devices - 1)],
            "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": -1, "roundup": {"1": 0.5}}}


def torch_inputs():
    good = "# comment\nS,0,2097152,0\na,1,1000,0\na,2,8,3\nf,1,1000,0\nf,99,8,0\ns,0,2097152,0\na,3,4194304,0\nf,3,4194304,0\n"
    yield "good", good
    yield "good_crlf", good.replace("\n", "\r\n")
    yield "good_no_newline", good.rstrip("\n")
    yield "many", "".join(f"a,{i},{i * 777 % 5000000},0\n" + (f"f,{i - 5},{(i - 5) * 777 % 5000000},0\n" if i > 5 else "")
                          for i in range(1, 80))
    yield "double_free", "a,1,8,0\nf,1,8,0\nf,1,8,0\n"
    yield "double_alloc", "a,1,8,0\na,1,8,0\n"
    yield "wrong_size", "a,1,8,0\nf,1,16,0\n"
    yield "negative", "a,1,-8,0\n"
    yield "huge_id", "a,18446744073709551615,8,0\nf,18446744073709551615,8,0\n"
    yield "overflow_id", "a,18446744073709551616,8,0\n"
    yield "huge_size", "a,1,281474976710656,0\na,2,281474976710657,0\n"
    yield "huge_stream", "a,1,8,18446744073709551615\n"
    yield "unknown_op", "a,1,8,0\nz,1,8,0\n"
    yield "few_fields", "a,1,8\n"
    yield "many_fields", "a,1,8,0,7\n"
    yield "cut", "a,1,8,0\na,2,8"
    yield "long_line", "a," + "1" * 2000 + ",8,0\n"
    yield "binary", bytes(range(256))
    yield "scattered_ids", "".join(f"a,{i * 7919 % 100003},8,0\n" for i in range(600))


def rmm_inputs():
    row = "140573312345856,14:21:19:998533,"
    good = (RMM + row + "allocate,0x30a000000,256,0x2\n" + row + "allocate,0x30a000100,512,0\n" + row +
            "allocate failure,(nil),99999999,0x2\n" + row + "free,0x30a000000,256,0x0\n" + row +
            "free,0xdead00,64,0x2\n" + row + "allocate,13069451264,1024,0x2\n")
    yield "good", good
    yield "header_only", RMM
    yield "no_header", good[len(RMM):]
    yield "null_zero", RMM + "1,2,allocate,0x0,0,0x0\n1,2,free,nullptr,0,0x0\n"
    yield "null_not_zero", RMM + "1,2,allocate,0x0,8,0x0\n"
    yield "bad_action", RMM + "1,2,reallocate,0x1,8,0\n"
    yield "bad_pointer", RMM + "1,2,allocate,0xzz,8,0\n"
    yield "double_free", RMM + "1,2,allocate,0x1,8,0\n1,2,free,0x1,8,0\n1,2,deallocate,0x1,8,0\n"
    yield "many_streams", RMM + "".join(f"1,2,allocate,{hex(4096 * i + 4096)},8,{hex(i)}\n" for i in range(40))


def snapshot_inputs():
    for protocol in range(6):
        yield f"good_protocol_{protocol}", pickle.dumps(snapshot(), protocol=protocol)
    yield "two_devices", pickle.dumps(snapshot(devices=3), protocol=4)
    yield "no_events", pickle.dumps(snapshot(events=[]), protocol=4)
    yield "wrong_types", pickle.dumps(snapshot(events=[1, "a", None, {"action": 3}]), protocol=4)
    yield "missing_key", pickle.dumps(snapshot(events=[{"action": "alloc", "addr": 1}]), protocol=4)
    yield "negative_size", pickle.dumps(snapshot(events=[{"action": "alloc", "addr": 1, "size": -1, "stream": 0}]), 4)
    yield "big_ints", pickle.dumps(snapshot(events=[{"action": "alloc", "addr": 2**70, "size": 1, "stream": 0}]), 2)
    yield "not_a_snapshot", pickle.dumps([1, 2.5, b"bytes", (True, None)], protocol=4)
    yield "attack", pickle.dumps(Attack(), protocol=4)
    yield "attack_protocol_0", pickle.dumps(Attack(), protocol=0)
    yield "attack_inside", pickle.dumps({"device_traces": [[Attack()]]}, protocol=2)
    yield "sets", pickle.dumps({1, 2, 3}, protocol=4)
    whole = pickle.dumps(snapshot(), protocol=4)
    yield "cut", whole[:200]
    yield "trailing", whole + b"junk"
    yield "bad_frame", whole[:3] + struct.pack("<Q", 7) + whole[11:]
    yield "long_text", b"\x80\x04X\xff\xff\xff\x7f" + b"a" * 64
    yield "deep", b"\x80\x04" + b"]" * 3000 + b"a" * 2999 + b"."
    yield "marks", b"(" * 5000
    yield "memo_jump", b"\x80\x02Nr\xff\xff\xff\xff."
    yield "laughs", b"\x80\x02]q\x00" + b"".join(b"0](h" + bytes([i]) + b"h" + bytes([i]) + b"eq" + bytes([i + 1])
                                               for i in range(200)) + b"."
    yield "itself", b"\x80\x02]q\x00h\x00a."


def gzipped(data):
    return gzip.compress(data if isinstance(data, bytes) else data.encode(), mtime=0)


def any_inputs():
    good = dict(torch_inputs())["good"]
    packed = gzipped(good)
    yield "torch", good
    yield "torch_gz", packed
    yield "torch_gz_twice", gzipped("a,1,8,0\n") + gzipped("f,1,8,0\n")
    yield "torch_gz_cut", packed[:-9]
    yield "torch_gz_garbled", packed[:30] + b"\0\0\0" + packed[33:]
    yield "torch_gz_junk_behind", packed + b"junk"
    yield "rmm_gz", gzipped(dict(rmm_inputs())["good"])
    yield "snapshot_gz", gzipped(dict(snapshot_inputs())["good_protocol_4"])
    yield "bomb", gzipped("#\n" * 1000000)
    yield "bomb_zeros", gzipped(b"\0" * 2000000)
    yield "bomb_marks", gzipped(b"(" * 2000000)
    yield "empty", b""
    yield "zip", b"PK\x03\x04" + bytes(40)
    yield "magic_only", b"\x1f\x8b"


def main():
    corpus = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).parent / "corpus"
    sets = {"trace_torch": torch_inputs, "trace_rmm": rmm_inputs, "trace_snapshot": snapshot_inputs,
            "trace_any": any_inputs}
    for name, inputs in sets.items():
        directory = corpus / name
        directory.mkdir(parents=True, exist_ok=True)
        for label, data in inputs():
            (directory / label).write_bytes(data if isinstance(data, bytes) else data.encode())


if __name__ == "__main__":
    main()
