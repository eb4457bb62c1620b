/* SPDX-License-Identifier: MIT */
/*
 * litmus.h - one instruction of a litmus program, shared by the host and the CUDA interpreter.
 *
 * A program is a list of steps; every step names the thread that executes it. Threads run on
 * different multiprocessors, each its own steps in order. Semaphores order threads of one launch.
 */
#ifndef MB_KERNELS_LITMUS_H
#define MB_KERNELS_LITMUS_H

#include <stdint.h>

enum mb_litmus_op {
    MB_LITMUS_LD_CA,    /* plain load, cached in L1 */
    MB_LITMUS_LD_CG,    /* around L1 */
    MB_LITMUS_LD_VOL,   /* around L1 */
    MB_LITMUS_LD_NC,    /* non-coherent */
    MB_LITMUS_ST,       /* plain store of `value` */
    MB_LITMUS_FENCE,    /* __threadfence() */
    MB_LITMUS_DELAY,    /* `value` ns */
    MB_LITMUS_SEM_WAIT, /* until semaphore `sem` >= `value`; gives up after MB_LITMUS_PATIENCE_NS */
    MB_LITMUS_SEM_SET,  /* semaphore `sem` = `value` */
    /* A read-only load as compiled programs have it, semaphore = value, wait for value + 1, fence,
     * the same load again; two answers. The compiler may serve the second from the first. */
    MB_LITMUS_READ_ONLY_PAIR,
};

enum { MB_LITMUS_SEMAPHORES = 64, MB_LITMUS_ANSWERS = 4096 };
/* A thread that waits longer ends: a test that hangs would say less than a wrong answer. */
#define MB_LITMUS_PATIENCE_NS 2000000000u
#define MB_LITMUS_NO_ANSWER UINT32_MAX

struct mb_litmus_step {
    uint32_t op;     /* enum mb_litmus_op */
    uint32_t thread; /* who executes it, from 0 */
    uint64_t va;     /* loads and stores; multiple of 8 */
    uint64_t value;
    uint32_t sem;
    uint32_t answer; /* loads: index of the answer, or MB_LITMUS_NO_ANSWER */
};

#endif
