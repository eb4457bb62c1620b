#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The Python package on the software GPU, without PyTorch."""
import ctypes
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

PACKAGE = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(PACKAGE))
os.environ["MOONBRIGHT"] = "backend:sim,device_memory:512m,explore:yes"
os.environ.setdefault("MOONBRIGHT_LIBRARY_PATH", str(pathlib.Path(os.environ.get("MB_BUILD_DIR", "")) / "lib"))

if os.environ.get("MB_SANITIZE"):
    print("SKIP: test_torch_package: a plain python3 cannot load libraries with sanitizers")
    sys.exit(77)

import moonbright  # noqa: E402
from moonbright import _lib  # noqa: E402
from moonbright._device import ALIAS, MAP, READ_WRITE, UNMAP  # noqa: E402

MIB = 1 << 20


class Devices(unittest.TestCase):
    def setUp(self):
        self.device = moonbright.Device(3)

    def tearDown(self):
        stats = self.device.stats()
        self.assertEqual((stats["wrong_words"], stats["wrong_accesses"], stats["faults"], stats["live_blocks"]),
                         (0, 0, 0, 0))
        self.device.check()
        self.device.close()

    def test_what_is_there(self):
        self.assertEqual(self.device.backend, "sim")
        self.assertEqual(self.device.page_bytes, 2 * MIB)
        self.assertEqual(moonbright.device_count(), 8)
        self.assertIn("sim", [info["name"] for info in moonbright.backends() if info["chosen"]])
        self.assertRegex(moonbright.version(), r"^\d+\.\d+\.\d+$")

    def test_blocks_keep_their_contents_across_streams(self):
        d = self.device
        one, two = d.stream(), d.stream()
        blocks = [(d.malloc_async(size, one), size) for size in (4096, 3 * MIB, 40 * MIB)]
        for seed, (pointer, size) in enumerate(blocks):
            d.fill(pointer, size, seed, one)
        d.wait(two, one)
        for seed, (pointer, size) in enumerate(blocks):
            d.verify(pointer, size, seed, two)
            d.record_stream(pointer, two)
            d.free_async(pointer, one)
        d.sync()
        for stream in (one, two):
            d.destroy_stream(stream)

    def test_lists_of_copies(self):
        d = self.device
        source, target = d.malloc(4 * MIB), d.malloc(4 * MIB)
        d.fill(target, 4 * MIB, 99)
        parts = [(target + at, source + at, size) for at, size in ((0, 8), (MIB, MIB), (3 * MIB, 4096), (8192, 0))]
        for seed, (_, where, size) in enumerate(parts):
            d.fill(where, size, seed)
        before = d.stats()["wrong_words"]
        d.copy_list(parts)
        for seed, (where, _, size) in enumerate(parts):
            d.verify(where, size, seed)
        d.copy_list([])
        with self.assertRaisesRegex(moonbright.MoonbrightError, "copy 1 of 0 to 1"):
            d.copy_list([parts[0], (target, source, 12)])
        with self.assertRaisesRegex(moonbright.MoonbrightError, "copy 0 of .* allowed are"):
            d.copy_list([(target, source, 1 << 64)])
        d.sync()
        self.assertEqual(d.stats()["wrong_words"], before)
        for pointer in (source, target):
            d.free(pointer)

    def test_realloc_and_pointer_info(self):
        pointer = self.device.malloc(MIB)
        pointer = self.device.realloc(pointer, 5 * MIB)
        info = self.device.pointer_info(pointer + 4 * MIB)
        self.assertEqual((info["base"], info["bytes"]), (pointer, 5 * MIB))
        self.device.free(pointer)

    def test_shortage_is_a_memory_error_with_the_librarys_text(self):
        with self.assertRaises(moonbright.OutOfMemory) as caught:
            self.device.malloc(1 << 40)
        self.assertIsInstance(caught.exception, MemoryError)
        self.assertEqual(caught.exception.name, "MB_ERR_NO_MEMORY")
        self.assertIn(str(1 << 40), str(caught.exception))

    def test_mistakes_have_names(self):
        with self.assertRaisesRegex(moonbright.MoonbrightError, "MB_ERR_NOT_FOUND"):
            self.device.free(0x1234)
        with self.assertRaisesRegex(moonbright.MoonbrightError, "known are"):
            moonbright.Device(0, {"no_such_key": 1})
        with self.assertRaisesRegex(moonbright.MoonbrightError, "there are release_threshold"):
            self.device.pool(colour=1)

    def test_numbers_that_do_not_fit_are_refused_not_cut(self):
        d, wrong = self.device, moonbright.MoonbrightError
        for size in (1 << 64, (1 << 64) + 4096, -1, -(1 << 70)):
            with self.assertRaisesRegex(wrong, "allowed are 0 to"):
                d.malloc(size)
            with self.assertRaisesRegex(wrong, "allowed are"):
                d.set_limit(size)
        for size in ("12", 1.5, [1], None):
            with self.assertRaisesRegex(wrong, "whole number"):
                d.malloc(size)
        for ordinal in (1 << 32, -(1 << 40), "0"):
            with self.assertRaises(wrong):
                moonbright.Device(ordinal)
        with self.assertRaises(wrong):
            d.free(1 << 64)
        for config in (5, b"tables:driver", "seed:1\0,x", ["seed:1"]):
            with self.assertRaisesRegex(wrong, "configuration"):
                moonbright.Device(0, config)

    def test_what_is_closed_or_destroyed_says_so(self):
        device = moonbright.Device(5)
        pool = device.pool()
        gone = device.pool()
        gone.destroy()
        gone.destroy()
        with self.assertRaisesRegex(moonbright.MoonbrightError, "destroyed"):
            gone.malloc_async(MIB)
        device.close()
        device.close()
        for use in (lambda: device.malloc(MIB), device.stats, device.memory_summary, lambda: device.name,
                    lambda: device.page_bytes, device.memory_map, lambda: pool.malloc_async(MIB), pool.trim):
            with self.assertRaisesRegex(moonbright.MoonbrightError, "device 5 is closed"):
                use()
        pool.destroy()

    def test_pools_have_limits(self):
        with self.device.pool(limit=64 * MIB) as pool:
            pointer = pool.malloc_async(32 * MIB)
            self.assertEqual(pool.get("used_current"), 32 * MIB)
            with self.assertRaises(moonbright.OutOfMemory):
                pool.malloc_async(64 * MIB)
            self.device.free_async(pointer)
            self.device.sync()

    def test_mappings_alias_and_sleep(self):
        d, page = self.device, self.device.page_bytes
        memory, where = d.create(4 * page), d.reserve(8 * page)
        d.map([{"kind": MAP, "prot": READ_WRITE, "va": where, "bytes": 4 * page, "mem": memory},
               {"kind": ALIAS, "prot": READ_WRITE, "va": where + 4 * page, "bytes": page, "src": where}])
        d.fill(where, page, 7)
        d.verify(where + 4 * page, page, 7)
        d.map([{"kind": UNMAP, "va": where + 4 * page, "bytes": page}])
        before = d.stats()["frames_used_bytes"]
        d.sleep(where, 4 * page)
        d.sync()
        self.assertEqual(d.stats()["frames_used_bytes"], before - 4 * page)
        d.wake(where, 4 * page)
        d.fill(where, 4 * page, 8)
        d.verify(where, 4 * page, 8)
        d.map([{"kind": UNMAP, "va": where, "bytes": 4 * page}])
        d.sync()
        d.release(memory)
        d.unreserve(where, 8 * page)

    def test_statistics_have_pytorchs_names_and_agree(self):
        pointer = self.device.malloc(10 * MIB)
        by_name, stats = self.device.memory_stats(), self.device.stats()
        self.assertEqual(by_name["allocated_bytes.all.current"], stats["allocated_bytes"])
        self.assertEqual(by_name["reserved_bytes.all.peak"], stats["reserved_peak_bytes"])
        self.assertIn("10,485,760", self.device.memory_summary())
        self.device.free(pointer)
        self.device.reset_peaks()
        self.assertEqual(self.device.memory_stats()["allocated_bytes.all.peak"], 0)

    def test_the_map_shows_the_blocks(self):
        pointer = self.device.malloc(6 * MIB)
        blocks = [block for segment in self.device.memory_map() for block in segment["blocks"]]
        self.assertIn((pointer, 6 * MIB), [(b["address"], b["requested_size"]) for b in blocks
                                           if b["state"] == "active_allocated"])
        self.device.free(pointer)

    def test_empty_cache_and_limit(self):
        d = self.device
        d.free(d.malloc(200 * MIB))
        d.empty_cache()
        self.assertLess(d.stats()["reserved_bytes"], 64 * MIB)
        d.set_limit(100 * MIB)
        with self.assertRaises(moonbright.OutOfMemory) as caught:
            d.malloc(200 * MIB)
        self.assertEqual(caught.exception.name, "MB_ERR_LIMIT")


class Snapshots(unittest.TestCase):
    def test_a_snapshot_that_names_classes_is_not_run(self):
        with tempfile.NamedTemporaryFile() as file:
            file.write(b"cos\nsystem\n(S'echo run'\ntR.")
            file.flush()
            with self.assertRaisesRegex(Exception, "os.system"):
                moonbright.read_snapshot(file.name)

    def test_the_file_is_read_by_the_command(self):
        command = os.environ.get("MB_MOONBRIGHT")
        if not command:
            self.skipTest("the command is not built")
        with tempfile.TemporaryDirectory() as directory, moonbright.Device(4, "history:1000") as device:
            for size in (MIB, 3 * MIB, 5000):
                device.free(device.malloc(size))
            path = os.path.join(directory, "snapshot.pickle")
            device.snapshot(path)
            done = subprocess.run([command, "replay", "--backend", "sim", path], capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


class Plugin(unittest.TestCase):
    """What of moonbright.torch needs no PyTorch, on device 0 of the plug-in."""

    @classmethod
    def setUpClass(cls):
        plugin = _lib.plugin()
        plugin.mb_torch_malloc.restype = ctypes.c_void_p
        plugin.mb_torch_malloc.argtypes = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
        plugin.mb_torch_free.restype = None
        plugin.mb_torch_free.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
        cls.plugin = plugin

    def test_figures_are_of_the_plug_ins_device(self):
        pointer = self.plugin.mb_torch_malloc(8 * MIB, 0, None)
        self.assertEqual(moonbright.memory_stats()["allocated_bytes.all.current"], 8 * MIB)
        self.assertEqual(moonbright.device(0).pointer_info(pointer)["bytes"], 8 * MIB)
        self.assertTrue(moonbright.memory_map(0))
        self.plugin.mb_torch_free(pointer, 8 * MIB, 0, None)
        counts = moonbright.counts()
        self.assertEqual(counts["mallocs"], counts["frees"])
        moonbright.empty_cache()

    def test_tags_sleep_and_wake(self):
        with moonbright.sleepable("weights"):
            pointer = self.plugin.mb_torch_malloc(30 * MIB, 0, None)
        self.assertEqual(moonbright.sleep("weights"), 30 * MIB)
        self.assertEqual(moonbright.wake("weights"), 30 * MIB)
        self.plugin.mb_torch_free(pointer, 30 * MIB, 0, None)
        with self.assertRaisesRegex(moonbright.MoonbrightError, "MB_ERR_NOT_FOUND"):
            moonbright.sleep("weights")

    def test_kept_contents_outlive_a_sleep_that_fails_midway(self):
        class Tensor:
            """As much of a tensor as sleep() and wake() use, on the host."""
            def __init__(self, values):
                self.values, self.copies = values, 0
                self.data = self

            def detach(self):
                return self

            def to(self, _, copy):
                assert copy
                self.copies += 1
                return Tensor(list(self.values))

            def copy_(self, other):
                self.values[:] = other.values

            def data_ptr(self):
                return id(self.values)

            def numel(self):
                return len(self.values)

            def element_size(self):
                return 4

        with moonbright.sleepable("kept"):
            pointer = self.plugin.mb_torch_malloc(8 * MIB, 0, None)
        one, two = Tensor([1, 2]), Tensor([3, 4])
        call_plugin = _lib.call_plugin

        def fails_midway(name, *arguments):
            call_plugin(name, *arguments)
            if name == "mb_torch_sleep":
                one.values[:] = two.values[:] = [0, 0]
                raise moonbright.MoonbrightError("the second block could not sleep", "MB_ERR_DRIVER", 6)

        with unittest.mock.patch.object(_lib, "call_plugin", fails_midway):
            with self.assertRaisesRegex(moonbright.MoonbrightError, "the second block"):
                moonbright.sleep("kept", keep=[one])
            self.assertEqual(one.values, [1, 2])
        self.assertEqual(moonbright.sleep("kept", keep=[one]), 8 * MIB)  # so it was awake
        one.values[:] = [0, 0]
        # What sleeps is not copied a second time, whatever object names it.
        again = Tensor([])
        again.values = one.values
        two.values[:] = [3, 4]
        self.assertEqual(moonbright.sleep("kept", keep=[again, one, two]), 0)
        self.assertEqual((again.copies, one.copies, two.copies), (0, 2, 1))
        two.values[:] = [0, 0]
        self.assertEqual(moonbright.wake("kept"), 8 * MIB)
        self.assertEqual((one.values, two.values), ([1, 2], [3, 4]))
        self.plugin.mb_torch_free(pointer, 8 * MIB, 0, None)
        # Without a block of that tag nothing slept, and nothing waits.
        with self.assertRaisesRegex(moonbright.MoonbrightError, "MB_ERR_NOT_FOUND"):
            moonbright.sleep("kept", keep=[one])
        self.assertFalse(moonbright.torch._state["asleep"])

    def test_a_pool_for_a_while(self):
        with moonbright.device().pool(limit=100 * MIB) as pool:
            with moonbright.use_pool(pool):
                pointer = self.plugin.mb_torch_malloc(5 * MIB, 0, None)
            self.assertEqual(pool.get("used_current"), 5 * MIB)
            self.plugin.mb_torch_free(pointer, 5 * MIB, 0, None)
            moonbright.device().sync()

    def test_pools_and_tags_nest(self):
        take = lambda: self.plugin.mb_torch_malloc(5 * MIB, 0, None)  # noqa: E731
        with moonbright.device().pool() as outer, moonbright.device().pool() as inner:
            with moonbright.use_pool(outer):
                with moonbright.use_pool(inner):
                    blocks = [take()]
                blocks.append(take())
            blocks.append(take())
            self.assertEqual((outer.get("used_current"), inner.get("used_current")), (5 * MIB, 5 * MIB))
            for block in blocks:
                self.plugin.mb_torch_free(block, 5 * MIB, 0, None)
            moonbright.device().sync()
            with self.assertRaisesRegex(moonbright.MoonbrightError, "the pool is of device 0"):
                with moonbright.use_pool(outer, device=1):
                    pass
        with self.assertRaisesRegex(moonbright.MoonbrightError, "destroyed"):
            with moonbright.use_pool(outer):
                pass
        with moonbright.sleepable("outer"):
            with moonbright.sleepable("inner"):
                blocks = [take()]
            blocks.append(take())
        self.assertEqual((moonbright.sleep("outer"), moonbright.sleep("inner")), (6 * MIB, 6 * MIB))
        self.assertEqual((moonbright.wake("outer"), moonbright.wake("inner")), (6 * MIB, 6 * MIB))
        for block in blocks:
            self.plugin.mb_torch_free(block, 5 * MIB, 0, None)
        for tag in (5, "", "a\0b", None):
            with self.assertRaises(moonbright.MoonbrightError):
                with moonbright.sleepable(tag):
                    pass

    def test_a_cap(self):
        moonbright.set_memory_cap(50 * MIB)
        self.assertEqual(moonbright.device().default_pool.get("limit"), 50 * MIB)
        moonbright.set_memory_cap(0)

    def test_there_is_no_way_back(self):
        with self.assertRaisesRegex(moonbright.MoonbrightError, "MOONBRIGHT_TORCH=off"):
            moonbright.disable()
        self.assertFalse(moonbright.enabled())


class Loading(unittest.TestCase):
    def run_python(self, code, **environment):
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=PACKAGE,
                              env={**os.environ, **environment})

    def test_a_missing_library_says_where_it_was_looked_for(self):
        done = self.run_python("import moonbright; moonbright.version()", MOONBRIGHT_LIBRARY_PATH="/nonexistent",
                               LD_LIBRARY_PATH="/nonexistent")
        if done.returncode == 0:
            self.skipTest("MoonBright is installed where the loader finds it")
        self.assertIn("MOONBRIGHT_LIBRARY_PATH", done.stderr)
        self.assertIn("/nonexistent", done.stderr)

    def test_importing_loads_nothing(self):
        done = self.run_python("import sys, moonbright; assert 'torch' not in sys.modules; "
                               "assert not moonbright._lib._loaded; print(moonbright.__version__)",
                               MOONBRIGHT_LIBRARY_PATH="/nonexistent")
        self.assertEqual((done.returncode, done.stdout.strip()), (0, moonbright.__version__), done.stderr)

    def test_the_switch(self):
        done = self.run_python("import moonbright; assert moonbright.enable() is False", MOONBRIGHT_TORCH="off")
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_without_pytorch_enable_says_so(self):
        code = "import sys; sys.modules['torch'] = None; import moonbright; moonbright.enable()"
        done = self.run_python(code)
        self.assertIn("PyTorch is not there", done.stderr)

    def test_the_versions_are_one(self):
        self.assertEqual(moonbright.__version__, moonbright.version())
        self.assertIn(f'version = "{moonbright.version()}"', (PACKAGE / "pyproject.toml").read_text())


if __name__ == "__main__":
    unittest.main(verbosity=1)
