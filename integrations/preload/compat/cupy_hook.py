# SPDX-License-Identifier: MIT
"""CuPy with MoonBright as its allocator, by CuPy's own hook; no preload. Argument: libmoonbright.so."""
import ctypes
import sys

try:
    import cupy
except ImportError as error:
    print(f"SKIP: {error}")
    sys.exit(77)

c = ctypes.CDLL(sys.argv[1])
c.mb_error_detail.restype = ctypes.c_char_p
cupy.cuda.Device(0).use()
cupy.zeros(1)
handle = ctypes.c_void_p()
if c.mb_open(0, None, ctypes.byref(handle)):
    sys.exit(c.mb_error_detail().decode())
calls = [0, 0]


def take(size, _device):
    out = ctypes.c_void_p()
    stream = ctypes.c_void_p(cupy.cuda.get_current_stream().ptr)
    if c.mb_malloc_async(handle, ctypes.c_size_t(size), stream, ctypes.byref(out)):
        raise MemoryError(c.mb_error_detail().decode())
    calls[0] += 1
    return out.value


def give(ptr, _device):
    calls[1] += 1
    c.mb_free_async(handle, ctypes.c_void_p(ptr), ctypes.c_void_p(cupy.cuda.get_current_stream().ptr))


cupy.cuda.set_allocator(cupy.cuda.PythonFunctionAllocator(take, give).malloc)
x = cupy.arange(1 << 22, dtype=cupy.float64)
for _ in range(20):
    a = cupy.random.default_rng(1).random((512, 512))
    y = cupy.sort(x[::-1])
    assert bool((y == x).all()), "sort"
    assert abs(float((a @ cupy.linalg.inv(a + cupy.eye(512) * 512) - a @ cupy.linalg.inv(a + cupy.eye(512) * 512)).sum())) == 0
del a, x, y
assert calls[0] > 20 and calls[1] > 20, calls
assert c.mb_check(handle) == 0, c.mb_error_detail()
print(f"RESULT cupy {cupy.__version__}: {calls[0]} blocks taken, {calls[1]} given back, sums right")
