/* SPDX-License-Identifier: MIT */
/*
 * nvrm_fake.h - a FAKE of the NVIDIA driver and of a copy engine, for tests of src/hw/nvrm only.
 *
 * It checks our side: sizes, handles, order of making and undoing, ring and push-buffer discipline.
 * It says nothing about how a real driver or GPU behaves; what is known about that is measured
 * elsewhere.
 *
 * The fake driver keeps files, objects and mappings. Undoing in the wrong order (an object below a
 * live one, a mapping of a freed object, a file closed twice) counts as a violation. Any call that
 * makes something can be made to fail at its n-th use.
 *
 * The fake GPU is not a thread: it runs when nvrm_fake_gpu_run() is called, and when the code under
 * test pauses in a wait.
 */
#ifndef MB_TESTS_NVRM_FAKE_H
#define MB_TESTS_NVRM_FAKE_H

#include <stdbool.h>
#include <stdint.h>

#include "hw/nvrm/abi.h"
#include "hw/nvrm/os.h"
#include "hw/nvrm/series.h"

enum {
    FAKE_FILES = 256,
    FAKE_OBJECTS = 256,
    FAKE_MAPS = 256,
    FAKE_PHYS_BYTES = 1 << 20,
    FAKE_FIRST_FD = 1000,
    FAKE_ENGINES = 20,
    /* a memory object of another client of this process, as libcuda has them */
    FAKE_FOREIGN_SUBDEVICE = 0x5c000003,
    FAKE_FOREIGN_CHANNEL = 0x5c00001c,
    FAKE_FOREIGN_MEMORY = 0x5c000100,
    FAKE_FOREIGN_CTL_FD = 8,
    FAKE_UVM_FD = 9,
};

#define FAKE_FOREIGN_CLIENT 0xc1d00037u

struct fake_file {
    bool open;
    char path[32];
    nvrm_handle armed; /* memory object that the next mmap shows; 0: none */
    uint64_t armed_offset, armed_bytes, armed_linear;
    bool armed_read_only;
};

struct fake_object {
    bool live;
    nvrm_handle handle, parent;
    uint32_t class_id;
    uint8_t *bytes; /* backing of memory */
    uint64_t size;
    bool owns_bytes;
    /* channels */
    uint64_t ring_va, userd_offset;
    nvrm_handle userd_memory;
    uint32_t entries, get; /* ring position of the fake GPU */
    nvrm_handle notifier;
    uint32_t engine;
    bool scheduled;
};

struct fake_map {
    bool live;
    nvrm_handle memory;
    uint64_t offset, bytes;
    bool on_gpu;     /* in the control address space; else for the CPU */
    uint64_t va;     /* on_gpu */
    void *addr;      /* CPU; NULL after munmap */
    uint64_t linear; /* CPU */
    bool read_only, dont_fork;
};

struct nvrm_fake {
    struct nvrm_os os; /* first */

    /* what it plays; set by nvrm_fake_init, changeable before use */
    const struct nvrm_series *series;
    const char *version; /* what the version query answers */
    uint32_t architecture, implementation;
    uint32_t pids[4], pid_count;
    uint32_t mps_count, virt_mode, smc_mode, ats, self_hosted, coherent_mode;
    struct nvrm_abi_cc_caps cc;
    bool has_cc, has_c2c;
    struct nvrm_abi_c2c_info c2c;
    bool not_root;                      /* refuse what needs CAP_SYS_ADMIN */
    uint16_t engine_caps[FAKE_ENGINES]; /* of the copy engines: both bytes, the first one low */
    uint32_t engine_mask[FAKE_ENGINES]; /* 0: there is no such engine */
    uint64_t timeslice_us;              /* last one that was set */
    uint32_t bad_engines;               /* bit n: copy engine n takes no channel */
    bool high_va;                       /* GPU addresses beyond 40 bits */

    /* failures: the n-th making call (1 is the next); 0: none */
    unsigned fail_at;
    uint32_t fail_status; /* RM status; 0: the call itself fails with fail_errno */
    int fail_errno;
    unsigned making_calls; /* so far */

    /* state */
    struct fake_file files[FAKE_FILES];
    struct fake_object objects[FAKE_OBJECTS];
    struct fake_map maps[FAKE_MAPS];
    uint8_t *phys; /* FAKE_PHYS_BYTES of «video memory» */
    uint64_t next_va, next_linear;
    unsigned violations;
    char first_violation[160];
    unsigned calls; /* all, also undoing ones */

    /* the fake GPU */
    bool frozen;        /* it executes nothing */
    unsigned run_limit; /* entries per run; 0: all */
    unsigned invalidates, membars, copies, releases, waiting_releases, wfis, acquires, bad_words;
    uint32_t last_invalidate[4];
    bool blocked; /* the last run ended at an acquire */
};

void nvrm_fake_init(struct nvrm_fake *fake);
void nvrm_fake_fini(struct nvrm_fake *fake);
/* Host address of a GPU address of the control space, NULL if nothing is mapped there. */
void *nvrm_fake_at(struct nvrm_fake *fake, uint64_t va, uint64_t bytes);
/* A live object, NULL if there is none of that name. */
struct fake_object *nvrm_fake_object(struct nvrm_fake *fake, nvrm_handle handle);
/* Executes what is in every channel's ring. */
void nvrm_fake_gpu_run(struct nvrm_fake *fake);
/* The driver stops every channel with exception `code`. */
void nvrm_fake_gpu_fault(struct nvrm_fake *fake, uint32_t code);
/* Nothing is left and nothing was undone in the wrong order: "" or what is wrong. */
const char *nvrm_fake_left(struct nvrm_fake *fake);
/* Text of /proc/driver/nvidia/version that fits the fake. */
const char *nvrm_fake_version_text(const struct nvrm_fake *fake);

#endif
