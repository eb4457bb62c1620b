#!/usr/bin/env python3
"""Judges a memory snapshot: structure, sums, and that it can be undone event by event.

usage: snapshot_check.py FILE ALLOCATED REQUESTED EVENTS

ALLOCATED and REQUESTED are the bytes of live blocks, EVENTS is 1 if a history must be there.
A viewer goes from the final state back through the events; at each step every live block has to lie
in exactly one segment, and a segment that goes away has to be there.
"""
import pickle
import pickletools
import sys

ALLOWED = {"PROTO", "EMPTY_DICT", "EMPTY_LIST", "MARK", "SETITEMS", "APPENDS", "BINUNICODE", "BINPUT",
           "BINGET", "BININT1", "LONG1", "NONE", "STOP"}
KEYS = {"address", "total_size", "allocated_size", "active_size", "requested_size", "stream",
        "segment_type", "blocks", "device"}


class NoClasses(pickle.Unpickler):
    def find_class(self, module, name):
        raise AssertionError(f"names a class: {module}.{name}")


def check_segment(seg):
    assert KEYS <= seg.keys(), seg.keys()
    at = seg["address"]
    allocated = requested = active = 0
    for block in seg["blocks"]:
        assert block["address"] == at, "blocks do not follow each other"
        assert block["state"] in ("inactive", "active_allocated", "active_pending_free")
        assert block["size"] > 0 and block["requested_size"] <= block["size"]
        at += block["size"]
        requested += block["requested_size"]
        active += block["size"] if block["state"] != "inactive" else 0
        allocated += block["size"] if block["state"] == "active_allocated" else 0
    assert at == seg["address"] + seg["total_size"]
    assert (allocated, active, requested) == (seg["allocated_size"], seg["active_size"],
                                              seg["requested_size"])


def live_blocks(segments):
    return {b["address"]: b["size"] for s in segments for b in s["blocks"]
            if b["state"] == "active_allocated"}


class Ranges:
    """Disjoint ranges of addresses."""

    def __init__(self, segments):
        self.parts = {}
        for seg in segments:
            self.add(seg["address"], seg["total_size"])

    def add(self, addr, size):
        for start, length in self.parts.items():
            assert addr + size <= start or start + length <= addr, "segments overlap"
        self.parts[addr] = size
        self.join()

    def join(self):
        joined = {}
        last = None
        for start in sorted(self.parts):
            if last is not None and last + joined[last] == start:
                joined[last] += self.parts[start]
            else:
                joined[start] = self.parts[start]
                last = start
        self.parts = joined

    def holding(self, addr, size):
        for start, length in self.parts.items():
            if start <= addr and addr + size <= start + length:
                return start
        raise AssertionError(f"no segment holds {addr:#x} + {size}")

    def remove(self, addr, size):
        start = self.holding(addr, size)
        length = self.parts.pop(start)
        if start < addr:
            self.parts[start] = addr - start
        if addr + size < start + length:
            self.parts[addr + size] = start + length - addr - size


def undo(segments, events):
    ranges = Ranges(segments)
    blocks = live_blocks(segments)
    for event in reversed(events):
        action, addr, size = event["action"], event["addr"], event["size"]
        if action == "alloc":
            assert blocks.pop(addr, None) is not None, f"alloc of {addr:#x} is not live afterwards"
        elif action == "free_completed":
            assert addr not in blocks
            blocks[addr] = size
            ranges.holding(addr, max(size, 1))
        elif action == "segment_map":
            ranges.remove(addr, size)
        elif action == "segment_unmap":
            ranges.add(addr, size)
    return ranges, blocks


def main():
    path, allocated, requested, with_events = sys.argv[1], *map(int, sys.argv[2:5])
    with open(path, "rb") as file:
        data = file.read()
    for opcode, _, _ in pickletools.genops(data):
        assert opcode.name in ALLOWED, opcode.name
    import io
    root = NoClasses(io.BytesIO(data)).load()
    assert {"segments", "device_traces", "allocator_settings"} <= root.keys()
    for seg in root["segments"]:
        check_segment(seg)
    assert sum(s["allocated_size"] for s in root["segments"]) == allocated, "allocated"
    assert sum(s["requested_size"] for s in root["segments"]) == requested, "requested"
    events = root["device_traces"][-1]
    assert bool(events) == bool(with_events)
    assert all(a["time_us"] <= b["time_us"] for a, b in zip(events, events[1:]))
    ranges, blocks = undo(root["segments"], events)
    actions = sorted({e["action"] for e in events})
    print(f"{len(root['segments'])} segments, {len(events)} events {actions}, "
          f"before them {len(blocks)} blocks, {sum(ranges.parts.values())} bytes of segments")
    return 0


sys.exit(main())
