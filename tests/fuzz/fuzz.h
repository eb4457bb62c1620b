/* SPDX-License-Identifier: MIT */
/* fuzz.h - what a target demands: a broken demand says where it is made, and ends the program. */
#ifndef MB_TESTS_FUZZ_FUZZ_H
#define MB_TESTS_FUZZ_FUZZ_H

#include <stdio.h>
#include <stdlib.h>

#include "moonbright.h"

#define need(condition)                                                                            \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s does not hold; last error: %s\n", __FILE__, __LINE__,       \
                    #condition, mb_error_detail());                                                \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

#endif
