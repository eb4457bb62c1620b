/* SPDX-License-Identifier: MIT */
/*
 * engines.h - copy engines, and which of them the driver's own work runs on.
 *
 * Why       A helper channel that holds its engine's queue while it waits makes every other channel
 *           of that queue wait for the end of a time slice (1,024 us unless changed). The UVM
 *           driver writes page tables through channels of its own, so the helper wants a queue that
 *           none of those is on.
 * How       UVM picks one engine for each of five kinds of work, by what the engines can do. The
 *           same questions are open to a client with CAP_SYS_ADMIN; mb__nvrm_copy_users() draws the
 *           same conclusions. Read in the published sources of five series. On an H200 (580) it was
 *           right for the two kinds that matter: holding engine 4 slowed what clears tables, 3 what
 *           writes them, 2 neither (bench/results/h200-variants.jsonl). Where libcuda's own copies
 *           are cannot be asked: there on 3 (to the host) and 2 (to the GPU).
 */
#ifndef MB_HW_NVRM_ENGINES_H
#define MB_HW_NVRM_ENGINES_H

#include "hw/nvrm/client.h"

enum { NVRM_COPY_ENGINES = 20, NVRM_NO_ENGINE = -1 };

/* What the driver says about copy engine n. */
struct nvrm_copy_caps {
    bool there;        /* it exists and has hardware behind it */
    bool graphics;     /* shares its queue with the compute engine: UVM never uses it */
    bool shared;       /* shares hardware with another engine */
    bool system_read;  /* fast from, to host memory */
    bool system_write; /* */
    bool link;         /* meant for copies between GPUs */
    bool scrub;        /* meant for clearing memory; 590 on */
    uint32_t hardware; /* mask of the physical engines behind it */
};

/* UVM's kinds of work, in the order in which it picks. */
enum nvrm_copy_user {
    NVRM_USER_TO_GPU,
    NVRM_USER_TO_HOST,
    NVRM_USER_INTERNAL, /* clearing page tables: mappings that go, new tables */
    NVRM_USER_TO_PEER,
    NVRM_USER_MEMOPS, /* writing entries, invalidates: mappings that come */
    NVRM_USERS
};

/* Asks for all engines. Those that cannot be asked for are «not there». */
enum mb_err mb__nvrm_copy_caps(struct nvrm_client *client,
                               struct nvrm_copy_caps caps[NVRM_COPY_ENGINES]);

/* Pure: the engine that UVM takes for each kind of work. `scrub_first`: the driver prefers engines
 * meant for clearing (series 595). NVRM_NO_ENGINE where no engine serves. */
void mb__nvrm_copy_users(const struct nvrm_copy_caps caps[NVRM_COPY_ENGINES], bool scrub_first,
                         int user[NVRM_USERS]);

/* Pure: an engine other than `but` on which no page tables are cleared or written, and as little
 * else as possible; then the highest number, and one that shares no hardware if there is one.
 * NVRM_NO_ENGINE: page tables are worked on by each. */
int mb__nvrm_copy_apart(const struct nvrm_copy_caps caps[NVRM_COPY_ENGINES],
                        const int user[NVRM_USERS], int but);

#endif
