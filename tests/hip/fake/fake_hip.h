/* SPDX-License-Identifier: MIT */
/*
 * fake_hip.h - A FAKE of libamdhip64, for tests of MoonBright's side of the interface. It is not
 * HIP, and what runs on it has not run on AMD hardware.
 *
 * What it imitates, from the documentation and the sources of HIP 6 and later:
 *   - reservations, handles, mappings and access are separate things; a mapping needs offset 0 and
 *     flags 0, lies in one reservation, and can be used only after access was given;
 *   - map acts at once and waits for nothing; unmap takes whole mappings only and first waits for
 *     all streams of the device (FAKE_HIP_OLD=1: one mapping at a time, and alignments of
 *     reservations are ignored);
 *   - a stream waits for values in signal memory only, which comes 8 bytes at a time
 *     (FAKE_HIP_WAIT_VALUES=0: the device cannot wait for values at all);
 *   - the default stream waits for blocking streams and they for it; non-blocking ones are free;
 *   - modules are ELF for AMD GPUs; this device is a gfx90a.
 * Device memory is POSIX shared memory, streams are threads, and three kernels of MoonBright's are
 * known by name, so that contents can be checked. Reading what is not mapped is a segmentation
 * fault of the test.
 *
 * Environment, read once: FAKE_HIP_MEMORY (bytes, default 4 GiB), FAKE_HIP_DEVICES (default 1),
 * FAKE_HIP_GRANULARITY (default 4096), FAKE_HIP_OLD, FAKE_HIP_WAIT_VALUES, FAKE_HIP_VMM (0:
 * unsupported).
 *
 * Every call is recorded. Tests find the fake_hip_* functions with dlsym.
 */
#ifndef MB_TESTS_FAKE_HIP_H
#define MB_TESTS_FAKE_HIP_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FAKE_API __attribute__((visibility("default")))

/* ------------------------------------------------------------ for tests */

/* How often a function of HIP's was called. */
FAKE_API uint64_t fake_hip_count(const char *name);
/* The nth call of `name` from now on (1: the next) returns `result` and does nothing. */
FAKE_API void fake_hip_fail(const char *name, uint64_t nth, int result);
/* From now on streams report this fatal result; 0: healthy again. */
FAKE_API void fake_hip_break(int result);
/* Bytes of device memory in handles, and how many mappings and reservations exist: 0 when all came
 * back. */
FAKE_API uint64_t fake_hip_held_bytes(void);
FAKE_API uint64_t fake_hip_mappings(void);
FAKE_API uint64_t fake_hip_reservations(void);
/* Stops and restarts the work of a stream (NULL: of all streams created later as well). */
FAKE_API void fake_hip_pause(void *stream, bool paused);

/* ------------------------------------------------------------ inside the fake */

enum {
    FAKE_OK = 0,
    FAKE_INVALID_VALUE = 1,
    FAKE_OUT_OF_MEMORY = 2,
    FAKE_NO_DEVICE = 100,
    FAKE_INVALID_DEVICE = 101,
    FAKE_INVALID_IMAGE = 200,
    FAKE_NO_BINARY = 209,
    FAKE_INVALID_HANDLE = 400,
    FAKE_NOT_FOUND = 500,
    FAKE_NOT_READY = 600,
    FAKE_CONTEXT_DESTROYED = 709,
    FAKE_NOT_SUPPORTED = 801,
};

struct fake_options {
    uint64_t memory_bytes, granularity;
    int devices;
    bool old, wait_values, vmm;
};
const struct fake_options *fake_options(void);

/* Records the call; the result to return at once, or FAKE_OK to go on. */
int fake_enter(const char *name);
#define FAKE_ENTER()                                                                               \
    do {                                                                                           \
        int fake_result = fake_enter(__func__);                                                    \
        if (fake_result)                                                                           \
            return fake_result;                                                                    \
    } while (0)

/* One for everything: a fake may be slow. Changes are told by fake_changed. */
extern pthread_mutex_t fake_lock;
extern pthread_cond_t fake_changed;

/* What a stream does in order; `run` without the lock. */
struct fake_stream;
typedef void (*fake_work)(void *arguments);
/* stream NULL: the default one. `arguments` is freed after the work. FAKE_INVALID_HANDLE for
 * unknown streams. */
int fake_enqueue(void *stream, fake_work run, void *arguments);
/* Waits until everything enqueued so far on every stream has run. */
void fake_sync_all(void);
/* Is there signal memory at the address? fake_lock held. */
bool fake_is_signal(const void *address);
/* Is the range memory that a copy may read or write? fake_lock held. */
bool fake_is_known(const void *address, size_t bytes);
bool fake_is_mapped(const void *address, size_t bytes);

#endif
