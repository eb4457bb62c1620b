/* err.h - the calling thread's last error text. */
#ifndef MB_BASE_ERR_H
#define MB_BASE_ERR_H

#include "moonbright.h"

/* Stores the printf-like text (truncated at 1023 bytes) as mb_error_detail() of this thread,
 * returns err. Say what was asked, what is allowed, what to do. */
__attribute__((format(printf, 2, 3))) enum mb_err mb__fail(enum mb_err err, const char *format,
                                                           ...);
/* Puts "prefix: " in front of the present detail and returns err. */
__attribute__((format(printf, 2, 3))) enum mb_err mb__fail_in(enum mb_err err, const char *format,
                                                              ...);

/* The present detail, kept over calls that may store another: what undoes a failed call. */
enum { MB__DETAIL_BYTES = 1024 }; /* with the closing 0; all keys of the configuration have room */
struct mb__detail {
    char text[MB__DETAIL_BYTES];
};
void mb__detail_keep(struct mb__detail *kept);
void mb__detail_put(const struct mb__detail *kept);

/* A static analyzer sees one file at a time: that the result is `err` is told here. */
#if defined(__clang_analyzer__)
#define mb__fail(err, ...) (mb__fail((err), __VA_ARGS__), (err))
#define mb__fail_in(err, ...) (mb__fail_in((err), __VA_ARGS__), (err))
#elif defined(MB_ANALYZER)
#define MB__TOLD(call, err)                                                                        \
    __extension__({                                                                                \
        enum mb_err told_err = (call);                                                             \
                                                                                                   \
        if (told_err != (err))                                                                     \
            __builtin_unreachable();                                                               \
        told_err;                                                                                  \
    })
#define mb__fail(err, ...) MB__TOLD(mb__fail((err), __VA_ARGS__), err)
#define mb__fail_in(err, ...) MB__TOLD(mb__fail_in((err), __VA_ARGS__), err)
#endif

#endif
