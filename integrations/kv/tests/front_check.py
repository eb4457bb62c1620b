#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The Python front's copies of tails on the software GPU: the library's own, and a caller's; without PyTorch.

    front_check.py LIBRARY-DIRECTORY
"""
import ctypes
import os
import pathlib
import sys

if os.environ.get("MB_SANITIZE"):
    print("SKIP: front_check: a plain python3 cannot load a library with sanitizers; test_kv_* have checked its source")
    sys.exit(77)
os.environ["MOONBRIGHT_LIB"] = os.environ["MOONBRIGHT_LIBRARY_PATH"] = str(pathlib.Path(sys.argv[1]).resolve())
HERE = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(HERE / "python"), str(HERE.parent / "torch")]
import moonbright  # noqa: E402
import moonbright_kv  # noqa: E402

TOKENS, BEAMS, GROUPS = 5, 3, 2


def beams(device, copy):
    """BEAMS sequences that share TOKENS tokens and then go on, each for itself; the statistics."""
    seen = 0

    def check(cache, seqs):
        for seq in seqs:
            for layer in range(GROUPS):
                view = cache.view(seq, layer, False)
                device.verify(view.base, TOKENS * view.token_stride, layer)
        device.sync()
        return device.stats()["wrong_words"]

    with moonbright_kv.Cache.on_device(device.handle, copy, layers=GROUPS, group_layers=1, kv_heads=2, head_dim=64,
                                       max_tokens=64, max_sequences=8, chunk_blocks=4) as cache:
        seqs = [cache.open()]
        cache.append({seqs[0]: TOKENS})
        for layer in range(GROUPS):
            view = cache.view(seqs[0], layer, False)
            device.fill(view.base, TOKENS * view.token_stride, layer)
        seqs += [cache.fork(seqs[0]) for _ in range(BEAMS - 1)]
        try:
            cache.append({seq: 1 for seq in seqs})
        except moonbright_kv.KVError as error:
            assert error.name == "MB_ERR_DRIVER", error
            seen = cache.stats().copies
            assert seen == 0, seen
            cache.append({seq: 1 for seq in seqs})
        assert check(cache, seqs) == 0
        stats = cache.stats()
        assert stats.copies == BEAMS - 1 and stats.copied_bytes, stats.copies
        cache.check()
        return stats


def main():
    device = moonbright.Device(0, "backend:sim,device_memory:512m")
    lists = []

    def own(words, stream):
        assert words.format == "Q" and words.itemsize == 8 and stream == 0
        assert len(words) == 3 * (BEAMS - 1) * GROUPS, len(words)
        numbers = words.tolist()
        lists.append([tuple(numbers[i:i + 3]) for i in range(0, len(numbers), 3)])
        device.copy_list(lists[-1])

    def failing(words, stream):
        if not lists:
            lists.append(len(words))
            raise RuntimeError("made to fail")
        lists.clear()
        own(words, stream)

    by_library = beams(device, None)
    print("ok   the library's own copies")
    by_hook = beams(device, own)
    assert sum(size for _, _, size in lists[0]) == by_hook.copied_bytes == by_library.copied_bytes
    print("ok   a caller's copies, from one buffer of numbers")
    lists.clear()
    beams(device, failing)
    print("ok   a caller's copies that fail, and again")
    device.close()
    print("PASS: front_check")


if __name__ == "__main__":
    main()
