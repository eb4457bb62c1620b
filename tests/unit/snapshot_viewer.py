#!/usr/bin/env python3
"""Opens a memory snapshot with PyTorch's own visualiser, torch.cuda._memory_viz.

usage: snapshot_viewer.py FILE ALLOCATED

Every view that PyTorch's command offers for one snapshot has to be made, and the segments have to add up to
ALLOCATED bytes in live blocks. Ends with 77 where there is no PyTorch. MB_TORCH_PYTHON names an interpreter that has it.
"""
import os
import pickle
import sys


def main():
    other = os.environ.get("MB_TORCH_PYTHON")
    if other and "MB_VIEWER" not in os.environ:
        os.execve(other, [other, *sys.argv], {**os.environ, "MB_VIEWER": "1"})
    try:
        from torch.cuda import _memory_viz as viz
    except ImportError as error:
        print(f"no PyTorch: {error}")
        return 77
    with open(sys.argv[1], "rb") as file:
        data = pickle.load(file)
    live = sum(block["size"] for segment in data["segments"] for block in segment["blocks"]
               if block["state"] == "active_allocated")
    assert live == int(sys.argv[2]), (live, sys.argv[2])
    pages = [viz.segment_plot(data), viz.trace_plot(data), viz.trace_plot(data, plot_segments=True)]
    assert all("html" in page and "snapshot.pickle" in page for page in pages)
    assert "Legend" in viz.segsum(data)
    assert "TOTAL MEM" in viz.trace(data)
    print(f"{len(data['segments'])} segments, {sum(len(t) for t in data['device_traces'])} events: opened")
    return 0


if __name__ == "__main__":
    sys.exit(main())
