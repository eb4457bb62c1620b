/* SPDX-License-Identifier: MIT */
/* fake_access.h - the test side of the fake HIP library that the backend has loaded in this
 * process. */
#ifndef MB_TESTS_FAKE_ACCESS_H
#define MB_TESTS_FAKE_ACCESS_H

#include <dlfcn.h>

#include "fake_hip.h"
#include "test.h"

/* A function of the fake; the case fails when the loaded library is not the fake. */
static inline __attribute__((unused)) void *fake_function(const char *name)
{
    void *library = dlopen("libamdhip64.so.6", RTLD_NOW | RTLD_LOCAL);
    void *function = library ? dlsym(library, name) : NULL;

    if (!function)
        FAIL("the fake HIP library was not loaded: %s", dlerror());
    return function;
}

static inline __attribute__((unused)) uint64_t fake_count(const char *name)
{
    uint64_t (*call)(const char *);

    *(void **)(&call) = fake_function("fake_hip_count");
    return call(name);
}

static inline __attribute__((unused)) void fake_fail(const char *name, uint64_t nth, int result)
{
    void (*call)(const char *, uint64_t, int);

    *(void **)(&call) = fake_function("fake_hip_fail");
    call(name, nth, result);
}

static inline __attribute__((unused)) void fake_pause(void *stream, bool paused)
{
    void (*call)(void *, bool);

    *(void **)(&call) = fake_function("fake_hip_pause");
    call(stream, paused);
}

static inline __attribute__((unused)) void fake_break(int result)
{
    void (*call)(int);

    *(void **)(&call) = fake_function("fake_hip_break");
    call(result);
}

/* Nothing is left: handles, mappings, reservations. */
static inline __attribute__((unused)) void fake_check_empty(void)
{
    static const char *const names[] = {"fake_hip_held_bytes", "fake_hip_mappings",
                                        "fake_hip_reservations"};

    for (int i = 0; i < 3; i++) {
        uint64_t (*call)(void);

        *(void **)(&call) = fake_function(names[i]);
        if (call())
            FAIL("%s is %llu after closing", names[i], (unsigned long long)call());
    }
}

#endif
