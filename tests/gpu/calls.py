"""The public calls of MoonBright that the GPU programs need, by ctypes; a failure raises with the library's text."""
import ctypes

MIB = 1 << 20
PAGE = 2 * MIB
NONE, READ, READ_WRITE = 0, 1, 3
MAP, ALIAS, UNMAP, PROTECT = range(4)
INVALID, NOT_SUPPORTED, BUSY = 1, 9, 7
POOL_KEEP = 9
WRONG_WORDS = 24
STATS_WORDS = 28 + 18
MARK = 0x5a5a5a5a5a5a5a5a

pointer, u64 = ctypes.c_void_p, ctypes.c_uint64


class MapOp(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int), ("prot", ctypes.c_int), ("va", pointer), ("bytes", u64), ("mem", pointer),
                ("mem_offset", u64), ("src", pointer)]


class Copy(ctypes.Structure):
    _fields_ = [("dst", pointer), ("src", pointer), ("bytes", u64)]


class Access(ctypes.Structure):
    _fields_ = [("dev", pointer), ("prot", ctypes.c_int)]


class Refused(RuntimeError):
    def __init__(self, name, err, detail):
        super().__init__(f"{name}: error {err}: {detail}")
        self.err = err


class Library:
    def __init__(self, path):
        self.lib = ctypes.CDLL(path)
        self.lib.mb_error_detail.restype = ctypes.c_char_p
        for name in ("mb_device_tables", "mb_device_name", "mb_device_backend"):
            getattr(self.lib, name).restype = ctypes.c_char_p
            getattr(self.lib, name).argtypes = [pointer]

    def call(self, name, *arguments):
        err = getattr(self.lib, name)(*arguments)
        if err:
            raise Refused(name, err, self.lib.mb_error_detail().decode())

    def device_count(self, config):
        count = ctypes.c_int()
        self.call("mb_device_count", config.encode(), ctypes.byref(count))
        return count.value


class Device:
    def __init__(self, library, ordinal, config):
        self.library = library
        self.handle = pointer()
        library.call("mb_open", ordinal, config.encode(), ctypes.byref(self.handle))

    def call(self, name, *arguments):
        self.library.call(name, self.handle, *arguments)

    def name(self):
        lib = self.library.lib
        return f"{lib.mb_device_name(self.handle).decode()}, {lib.mb_device_tables(self.handle).decode()}"

    def backend(self):
        return self.library.lib.mb_device_backend(self.handle).decode()

    def close(self):
        self.library.lib.mb_close(self.handle)

    def out(self, name, *arguments):
        result = pointer()
        self.call(name, *arguments, ctypes.byref(result))
        return result.value

    def malloc(self, size, stream=None):
        return self.out("mb_malloc_async", ctypes.c_size_t(size), pointer(stream))

    def free(self, address, stream=None):
        self.call("mb_free_async", pointer(address), pointer(stream))

    def fill(self, address, size, seed, stream=None):
        self.call("mb_fill_async", pointer(address), u64(size), u64(seed), pointer(stream))

    def verify(self, address, size, seed, stream=None):
        self.call("mb_verify_async", pointer(address), u64(size), u64(seed), pointer(stream))

    def copy(self, to, source, size, stream=None):
        self.call("mb_copy_async", pointer(to), pointer(source), u64(size), pointer(stream))

    def copy_list(self, copies, stream=None):
        """copies: an array of Copy, or (to, source, size) of each."""
        array = copies if isinstance(copies, ctypes.Array) else (Copy * len(copies))(*copies)
        self.call("mb_copy_list_async", array, len(array), pointer(stream))

    def sync(self):
        self.call("mb_device_sync")

    def set_access(self, address, size, peer, prot):
        access = Access(peer.handle, prot)
        self.call("mb_mem_set_access", pointer(address), u64(size), ctypes.byref(access), 1)

    def keep_pool(self):
        pool = pointer(self.out("mb_pool_create"))
        self.library.call("mb_pool_set", pool, POOL_KEEP, u64(1))
        return pool

    def pool_malloc(self, pool, size, stream=None):
        result = pointer()
        self.library.call("mb_pool_malloc_async", pool, ctypes.c_size_t(size), pointer(stream), ctypes.byref(result))
        return result.value

    def map(self, kind, address, size, mem=None, source=None):
        op = MapOp(kind, READ_WRITE, address, size, mem, 0, source)
        self.call("mb_mem_map", ctypes.byref(op))

    def stats(self):
        """struct mb_stats: 64-bit words all through."""
        words = (u64 * (STATS_WORDS + 1))()
        words[STATS_WORDS] = MARK
        self.call("mb_stats_get", words)
        if words[STATS_WORDS] != MARK:
            raise SystemExit("struct mb_stats has grown: STATS_WORDS here has to follow it")
        return list(words)

    def wrong_words(self):
        return self.stats()[WRONG_WORDS]


class Checks:
    """Counts; the process ends with done()."""

    def __init__(self, program):
        self.program, self.failed, self.passed = program, 0, 0

    def check(self, what, good):
        self.passed += bool(good)
        self.failed += not good
        print(f"{'ok  ' if good else 'FAIL'} {what}", flush=True)

    def refused(self, what, err, function, *arguments):
        try:
            function(*arguments)
        except Refused as refusal:
            self.check(f"{what}: {refusal}", refusal.err == err)
        else:
            self.check(f"{what} was not refused", False)

    def done(self):
        print(f"{'FAIL' if self.failed else 'PASS'}: {self.program}: {self.passed} checks passed, {self.failed} failed")
        return 1 if self.failed else 0
