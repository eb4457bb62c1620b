/* SPDX-License-Identifier: MIT */
/*
 * pool_driver.h - the driver's stream-ordered pools, for the benches that look at them.
 *
 * Links no CUDA: the driver is looked up at run time, its few types are declared here.
 */
#ifndef MB_BENCH_POOL_DRIVER_H
#define MB_BENCH_POOL_DRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef int cu_result; /* CUresult, 0 is success */
typedef unsigned long long cu_pointer;

/* CUmemPoolProps: 88 bytes. */
struct pool_props {
    int alloc_type, handle_types;
    struct {
        int type, id;
    } location;
    void *security_attributes;
    size_t max_size; /* 0: no limit */
    unsigned short usage;
    unsigned char reserved[54];
};
_Static_assert(sizeof(struct pool_props) == 88, "the driver's struct has another size");

enum {
    CU_OUT_OF_MEMORY = 2,
    POOL_RELEASE_THRESHOLD = 4,
    POOL_RESERVED = 5,
    POOL_RESERVED_HIGH = 6,
    POOL_USED = 7,
    POOL_USED_HIGH = 8,
};

/* The driver's functions that are called. Set by pool_driver_open(). */
struct pool_driver {
    cu_result (*init)(unsigned);
    cu_result (*version)(int *);
    cu_result (*device_get)(int *, int);
    cu_result (*device_name)(char *, int, int);
    cu_result (*context_retain)(void **, int);
    cu_result (*context_set)(void *);
    cu_result (*context_sync)(void);
    cu_result (*pool_create)(void **, const struct pool_props *);
    cu_result (*pool_destroy)(void *);
    cu_result (*pool_get)(void *, int, void *);
    cu_result (*pool_set)(void *, int, void *);
    cu_result (*pool_trim)(void *, size_t);
    cu_result (*alloc)(cu_pointer *, size_t, void *, void *);
    cu_result (*free)(cu_pointer, void *);
    cu_result (*stream_create)(void **, unsigned);
    cu_result (*stream_destroy)(void *);
    cu_result (*stream_sync)(void *);
    cu_result (*stream_wait)(void *, void *, unsigned);
    cu_result (*event_create)(void **, unsigned);
    cu_result (*event_destroy)(void *);
    cu_result (*event_record)(void *, void *);
    cu_result (*write)(cu_pointer, const void *, size_t, void *);
    cu_result (*read)(void *, cu_pointer, size_t, void *);
};
extern struct pool_driver cu;

/* NULL when a device is ready and its name in `name`, else why not. */
const char *pool_driver_open(char name[96]);
/* The kernel driver's release, as "580.159.04"; "unknown" if it does not say. */
void pool_driver_release(char *text, size_t size);

/* Whether `result` is success; else says on stderr what failed. */
bool pool_fine(const char *what, cu_result result);
/* A pool on device 0 that keeps what it has; limit_bytes 0: no limit. */
bool pool_open(void **pool, uint64_t limit_bytes);
/* 0 and a message on failure. */
uint64_t pool_attribute(void *pool, int attribute);
bool pool_stream(void **stream);
/* What `stream` gets later comes after what `other` has now. */
bool pool_order(void *stream, void *other);

double pool_now_us(void);

#endif
