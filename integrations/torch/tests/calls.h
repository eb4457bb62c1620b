/* SPDX-License-Identifier: MIT */
/* The plug-in's C++ calls for tests in C: exceptions become texts, filters plain choices. */
#ifndef MB_TORCH_TESTS_CALLS_H
#define MB_TORCH_TESTS_CALLS_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* NULL: it threw; the text is in calls_text(), valid until this thread's next call. */
void *calls_malloc(size_t bytes, int device, void *stream);
const char *calls_text(void);
/* False: it threw. */
bool calls_record(void *ptr, void *stream);
bool calls_fraction(double fraction, int device);
/* The filter takes allocations on `stream`, or, if `thread`, those of the calling thread. */
bool calls_begin(int device, unsigned long long a, unsigned long long b, void *stream, bool thread);
/* A filter that throws. */
bool calls_begin_broken(int device, unsigned long long a, unsigned long long b);
bool calls_end(int device, unsigned long long a, unsigned long long b);
void calls_release(int device, unsigned long long a, unsigned long long b);
/* Filters that exist: each begin makes copies, which end or a failure must destroy. */
long calls_filters(void);

#ifdef __cplusplus
}
#endif
#endif
