#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The Python front's copies of tails on the software GPU: the library's own, and a caller's; without PyTorch.

    front_check.py LIBRARY-DIRECTORY
"""
import ctypes
import os
import pathlib
import pickle
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


def refused():
    """A configuration that is refused closes the mapper, once; one that is not leaves that to the cache."""
    moonbright_kv.libraries()
    load, closed, keep = moonbright_kv._load, [], []

    class Counted:
        def mb_kv_host_mapper(self, page_bytes, out):
            err, mapper = load("moonbright_kv_host").mb_kv_host_mapper(page_bytes, out), out._obj
            close = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(mapper.close)
            keep.append(ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda user: (closed.append(user), close(user))))
            mapper.close = ctypes.cast(keep[-1], ctypes.c_void_p)
            return err

    config = {"layers": 2, "kv_heads": 1, "head_dim": 8, "element_bytes": 1, "max_sequences": 2}
    moonbright_kv._load = lambda _name: Counted()
    try:
        for tokens, wrong in ((0, moonbright_kv.KVError), (1 << 32, moonbright_kv.KVError), (1.5, TypeError)):
            closed.clear()
            try:
                moonbright_kv.Cache.on_host(max_tokens=tokens, **config)
                raise AssertionError(f"{tokens} tokens were taken")
            except wrong:
                assert len(closed) == 1, (tokens, closed)
        closed.clear()
        with moonbright_kv.Cache.on_host(max_tokens=64, **config):
            assert not closed
        assert len(closed) == 1, closed
    finally:
        moonbright_kv._load = load


def is_released(view):
    try:
        view.tolist()
    except ValueError:
        return True
    return False


def main():
    device = moonbright.Device(0, "backend:sim,device_memory:512m")
    lists, kept, arrays = [], [], []

    def own(words, stream):
        assert words.format == "Q" and words.itemsize == 8 and stream == 0
        assert len(words) == 3 * (BEAMS - 1) * GROUPS, len(words)
        kept.append(words)
        numbers = words.tolist()
        lists.append([tuple(numbers[i:i + 3]) for i in range(0, len(numbers), 3)])
        device.copy_list(lists[-1])

    def failing(words, stream):
        if not lists:
            lists.append(len(words))
            kept.append(words)
            raise RuntimeError("made to fail")
        lists.clear()
        own(words, stream)

    def keeping(words, stream):
        if not arrays:
            arrays.append(pickle.PickleBuffer(words))  # as an array of NumPy's or a tensor would
        own(words, stream)

    refused()
    print("ok   a mapper whose configuration is refused is closed")
    by_library = beams(device, None)
    print("ok   the library's own copies")
    by_hook = beams(device, own)
    assert sum(size for _, _, size in lists[0]) == by_hook.copied_bytes == by_library.copied_bytes
    print("ok   a caller's copies, from one buffer of numbers")
    lists.clear()
    beams(device, failing)
    print("ok   a caller's copies that fail, and again")
    lists.clear()
    beams(device, keeping)
    assert len(arrays) == 1 and len(lists) == 2
    print("ok   a caller that keeps an array on the numbers is told so")
    arrays.clear()
    assert len(kept) == 5 and all(map(is_released, kept[:3])) and is_released(kept[4])
    print("ok   the numbers are released when the call returns")
    device.close()
    print("PASS: front_check")


if __name__ == "__main__":
    main()
