/*
 * series.h - which driver is running, and what its ABI looks like.
 *
 * A series is the number in front of the first dot of the driver's version. Layouts were compared
 * over every published version of a series and did not change within one; doc/driver-abi.md has the
 * list. A series that is not in the table is refused by name, never guessed.
 */
#ifndef MB_HW_NVRM_SERIES_H
#define MB_HW_NVRM_SERIES_H

#include <stdbool.h>
#include <stdint.h>

#include "moonbright.h"

/* Sizes of the structures that differ between series; bytes. Static, read only. */
struct nvrm_series {
    unsigned major;         /* 580 */
    bool measured;          /* run on a GPU; else only read in the published sources: «not run» */
    const char *evidence;   /* one line for `moonbright info` */
    uint16_t map_dma_bytes; /* 56: struct nvrm_abi_map_dma_v570, 64: struct nvrm_abi_map_dma */
    uint16_t vaspace_bytes; /* used part of struct nvrm_abi_vaspace */
    uint16_t schedule_bytes; /* used part of struct nvrm_abi_schedule */
    uint16_t gpu_info_bytes; /* used part of struct nvrm_abi_gpu_info */
    uint16_t uvm_free_bytes; /* 24: struct nvrm_abi_uvm_range, 16: nvrm_abi_uvm_free_v590 */
    uint16_t uvm_unregister_channel_bytes; /* 28, or 12: the _v590 structure */
    bool coherent_mode_known;              /* NVRM_INFO_COHERENT_MODE may be asked */
    bool scrub_engines;                    /* UVM clears on engines meant for scrubbing first */
    bool uvm_mps_known;                    /* NVRM_UVM_REGISTER_MPS_CLIENT exists */
};

enum { NVRM_VERSION_BYTES = 64 };

struct nvrm_version {
    char text[NVRM_VERSION_BYTES]; /* "580.159.04" */
    unsigned major;
    bool open_module; /* the open kernel module; false: the proprietary one */
};

/* Reads the first line of /proc/driver/nvidia/version. MB_ERR_PARSE if there is no version in it.
 * */
enum mb_err mb__nvrm_version_parse(const char *text, struct nvrm_version *out);

/* The table entry of `major`; MB_ERR_NOT_SUPPORTED, with the list of what is known, if none. */
enum mb_err mb__nvrm_series_find(unsigned major, const struct nvrm_series **out);

/* Entry `index`, NULL past the end; for listings and tests. */
const struct nvrm_series *mb__nvrm_series_at(unsigned index);

#endif
