/* SPDX-License-Identifier: MIT */
/* data.h - the files that are installed with the command. */
#ifndef MB_CLI_DATA_H
#define MB_CLI_DATA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Finds share/moonbright/NAME: in the directory $MOONBRIGHT_DATA if that is set, else beside the
 * command's own directory (../share/moonbright), which holds for an installed and a built command
 * alike. false, with where it was looked for in buffer, if it is not there.
 */
bool data_find(const char *name, char *buffer, size_t size);

/* What PyTorch itself reached on the workload of a bundled trace. */
struct recorded_result {
    uint64_t allocated_bytes;           /* peak, as PyTorch counts: rounded to 512 bytes */
    uint64_t reserved_bytes;            /* peak, default allocator */
    double efficiency;                  /* allocated / reserved, from unrounded numbers */
    uint64_t reserved_expandable_bytes; /* peak, expandable segments */
    double efficiency_expandable;
};

/* From the bundled torch/recorded.csv. false if the trace is not in it or it cannot be read. */
bool data_recorded(const char *trace, struct recorded_result *out);

/*
 * What the driver's own pool held when it was given a bundled trace: peaks, in bytes. From the
 * bundled torch/recorded-pool.csv; false as above, with the outputs untouched.
 */
bool data_recorded_pool(const char *trace, uint64_t *allocated_bytes, uint64_t *reserved_bytes);

#endif
