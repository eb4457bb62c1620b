/* SPDX-License-Identifier: MIT */
/* Any bytes as whatever they look like, gzipped or not. */
#include <stddef.h>
#include <stdint.h>

#include "trace_fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_format(data, size, TRACE_FORMAT_AUTO, 0);
    return 0;
}
