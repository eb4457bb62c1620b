/* SPDX-License-Identifier: MIT */
/* Any bytes as an RMM log. */
#include <stddef.h>
#include <stdint.h>

#include "trace_fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_format(data, size, TRACE_FORMAT_RMM_CSV, 0);
    return 0;
}
