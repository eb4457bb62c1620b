/* SPDX-License-Identifier: MIT */
/*
 * plugin.h - what the plug-in's files share: the C core, and abi.cc in front of it, which alone
 * knows C++ types and exceptions.
 */
#ifndef MB_TORCH_PLUGIN_H
#define MB_TORCH_PLUGIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "moonbright.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { MB__TORCH_DEVICES = 64 };

/* A graph's pool name, as PyTorch makes them. */
struct mb__torch_id {
    unsigned long long first, second;
};

/* Decides whether an allocation on a stream belongs to a pool. Owned by the pool's record while its
 * collection lasts; `match` is called, on the allocating thread, and `destroy` once, with the lock
 * of pools held: neither may call back. */
struct mb__torch_filter {
    void *user;
    bool (*match)(void *user, void *stream);
    void (*destroy)(void *user);
};

/* Text of this thread's last failure in the plug-in: MoonBright's own, with what PyTorch asked. */
const char *mb__torch_error(void);
/* Sets that text; returns err. */
enum mb_err mb__torch_fail(enum mb_err err, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* core.c */
/* In a child of fork()? Asked before a lock is taken. */
bool mb__torch_forked(void);
/* MB_ERR_FORKED with its text. */
enum mb_err mb__torch_in_child(void);
enum mb_err mb__torch_device(int device, mb_device *out);
mb_device mb__torch_open_device(int device); /* NULL: not open */
enum mb_err mb__torch_malloc(size_t bytes, int device, void *stream, void **out);
void mb__torch_free(void *ptr, int device, void *stream);
void mb__torch_reset(void);
enum mb_err mb__torch_fraction(double fraction, int device);
void *mb__torch_base(void *ptr, size_t *bytes);
enum mb_err mb__torch_record(void *ptr, void *stream);

/* driver.c */
/* Memory of the device in bytes: what $MOONBRIGHT or the driver says. */
enum mb_err mb__torch_total(mb_device dev, int device, uint64_t *out);
/* Sets how this thread's driver calls relate to captures under way; returns what held before, for
 * the way back. Does nothing, with -1, without a CUDA driver or if `mode` is -1. */
enum { MB__TORCH_CAPTURE_RELAXED = 2 };
int mb__torch_capture_mode(int mode);

/* pools.c. `begin` owns the filter even if it fails. */
enum mb_err mb__torch_pool_begin(int device, struct mb__torch_id id,
                                 const struct mb__torch_filter *filter);
enum mb_err mb__torch_pool_end(int device, struct mb__torch_id id);
enum mb_err mb__torch_pool_release(int device, struct mb__torch_id id);
/* True if some collection is under way and takes this allocation; then *out has its pool. */
/* Nothing in a forked child. */
bool mb__torch_pool_match(int device, void *stream, mb_pool *out);
/* Destroys released pools whose last block is gone. */
void mb__torch_pool_sweep(void);
void mb__torch_pool_counts(uint64_t *pools, uint64_t *retired);

/* sleep.c */
bool mb__torch_sleeper_wanted(size_t bytes);
enum mb_err mb__torch_sleeper_malloc(mb_device dev, int device, size_t bytes, void *stream,
                                     void **out);
/* False: not a sleeper's block, or a forked child; nothing was done. */
bool mb__torch_sleeper_free(mb_device dev, void *ptr, void *stream, enum mb_err *err);
bool mb__torch_sleeper_record(void *ptr, void *stream, enum mb_err *err);
bool mb__torch_sleeper_base(const void *ptr, void **base, size_t *bytes);
uint64_t mb__torch_sleeper_count(void);

#ifdef __cplusplus
}
#endif
#endif
