/* SPDX-License-Identifier: MIT */
/* Any bytes as the pickle of a PyTorch snapshot. */
#include <stddef.h>
#include <stdint.h>

#include "trace_fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_format(data, size, TRACE_FORMAT_SNAPSHOT, 2);
    return 0;
}
