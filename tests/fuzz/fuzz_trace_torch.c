/* SPDX-License-Identifier: MIT */
/* Any bytes as a compact PyTorch log, spread over streams. */
#include <stddef.h>
#include <stdint.h>

#include "trace_fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_format(data, size, TRACE_FORMAT_TORCH_CSV, 3);
    return 0;
}
