/* SPDX-License-Identifier: MIT */
/*
 * enter.h - what every public function begins and ends with: is the handle an open device of this
 * process, and whose is a pointer that was not found.
 */
#ifndef MB_API_ENTER_H
#define MB_API_ENTER_H

#include "base/err.h"
#include "base/journal.h"
#include "runtime/runtime.h"
#include "runtime/watch.h"

/* MB_ERR_FORKED or MB_ERR_INVALID with detail. */
enum mb_err mb__bad_device(const struct mb_device *dev, const char *call);
/* `err`, with the name of the device that owns the address if it is another one's. */
enum mb_err mb__seek_owner(const struct mb_device *dev, const void *ptr, const char *call,
                           enum mb_err err);

/* Leaves the calling function unless the device is open, and this is the process that opened it. */
#define ENTER(dev)                                                                                 \
    do {                                                                                           \
        if (__builtin_expect(mb__in_fork() || !mb__device_is_open(dev), 0))                        \
            return mb__bad_device(dev, __func__);                                                  \
    } while (0)

#define NEED(condition, ...)                                                                       \
    do {                                                                                           \
        if (__builtin_expect(!(condition), 0))                                                     \
            return mb__fail(MB_ERR_INVALID, __VA_ARGS__);                                          \
    } while (0)

/* A wrong pointer may be another device's: then the error names that device. No lock held. */
static inline enum mb_err name_owner(const struct mb_device *dev, const void *ptr, const char *call,
                                     enum mb_err err)
{
    return __builtin_expect(err == MB_ERR_NOT_FOUND, 0) ? mb__seek_owner(dev, ptr, call, err) : err;
}

/* LOCKED for calls that take a pointer. */
#define LOCKED_PTR(dev, ptr, expression)                                                           \
    do {                                                                                           \
        enum mb_err ptr_err;                                                                       \
                                                                                                   \
        mb__caller_set(__func__, NULL);                                                            \
        mb__lock(&(dev)->lock);                                                                    \
        ptr_err = (expression);                                                                    \
        mb__unlock(&(dev)->lock);                                                                  \
        mb__watch_deliver(dev);                                                                    \
        return name_owner(dev, ptr, __func__, ptr_err);                                            \
    } while (0)

/* Runs one expression under the device's lock and returns its result. */
#define LOCKED(dev, expression)                                                                    \
    do {                                                                                           \
        enum mb_err locked_err;                                                                    \
                                                                                                   \
        mb__caller_set(__func__, NULL);                                                            \
        mb__lock(&(dev)->lock);                                                                    \
        locked_err = (expression);                                                                 \
        mb__unlock(&(dev)->lock);                                                                  \
        mb__watch_deliver(dev);                                                                    \
        return locked_err;                                                                         \
    } while (0)

#endif
