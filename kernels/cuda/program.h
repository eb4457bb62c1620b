/* SPDX-License-Identifier: MIT */
/*
 * program.h - what the host passes to the CUDA kernels; read by C and CUDA C++ alike.
 *
 * One pop launch is a small program: runs of slots to write, then, if asked, an invalidate that a
 * helper channel performs for the kernel. The first MB_POP_SEGMENTS runs stand in the head; up to
 * MB_POP_MORE others behind the frame numbers, where these travel in the parameters.
 *
 * INVALIDATE PROTOCOL. Three 64-bit words in device memory that helper and kernels share:
 *   request  the highest ticket anyone asked for; kernels raise it with an atomic maximum
 *   answer   the highest ticket whose invalidate has completed; only the helper writes it
 * The helper's queue holds, for n = 1, 2, 3, ...: wait answer >= n-1, wait request >= n,
 * invalidate, membar, answer := n. So invalidate n starts only after request >= n and answer >= n-1
 * were true in memory. A kernel whose entries are visible reads request and answer and takes
 *   ticket = min(request + 1, answer + 2)
 * which is the smallest n whose invalidate has certainly not started: if n = request + 1, nobody
 * had asked for it; if n = answer + 2, its predecessor had not been answered. Kernels that read the
 * same words share one invalidate, so any number of simultaneous requests costs at most two.
 * MB_POP_FAST takes the same ticket in one step when nobody is asking: if request = answer before
 * the entries were written, and an atomic exchange of request for request + 1 succeeds behind them,
 * then nobody had asked for that number, so its invalidate has not started. If it fails, the value
 * found serves as request above. Kernels that find others asking share invalidates as before.
 * Comparisons are by signed difference. Tickets are taken on the device, so a captured launch may
 * be replayed.
 */
#ifndef MB_KERNELS_CUDA_PROGRAM_H
#define MB_KERNELS_CUDA_PROGRAM_H

#include <stdint.h>

enum {
    MB_POP_SEGMENTS = 6,
    MB_POP_MORE = 128,
    MB_POP_THREADS =
        1024, /* at most, in the one block: an SM stores 16 KiB of slots in about 0.2 us */
    /* Frames whose numbers travel in the launch itself, by kernel variant: what a launch costs
     * grows with the bytes of its parameters, used or not. The largest stays within the classic 4
     * KiB. */
    MB_POP_LIST_S = 64,
    MB_POP_LIST_M = 512,
    MB_POP_LIST_L = 1024,
    MB_POP_LIST_XL = 1920,
    /* What a segment behind the frame numbers takes of their room; a multiple of 8 bytes, as are
     * the rooms. */
    MB_POP_MORE_ROOM = 12,
};

enum mb_pop_flag {
    MB_POP_INVALIDATE = 1 << 0, /* ask the helper after the writes, end when it has answered */
    MB_POP_FAST = 1 << 1,       /* one fence, one atomic operation, few looks at the clock */
};

/* Slots slots[0..count): frame `at + i` of the list under `tmpl`, or with at = MB_POP_SAME `tmpl`
 * as it is. */
struct mb_pop_segment {
    uint64_t slots; /* device address of the first slot */
    uint64_t tmpl;
    uint32_t count;
    uint32_t at;
};
#define MB_POP_SAME UINT32_MAX

/* Why a kernel gave up; written to the host's error word together with the ticket. */
enum mb_pop_error {
    MB_POP_NO_ANSWER = 1, /* the helper did not answer in time; the kernel trapped */
};

struct mb_pop_head {
    uint64_t request; /* device address of the request word */
    uint64_t answer;  /* device address of the answer word */
    uint64_t error;   /* device address of two words in host memory: code, ticket */
    uint64_t list; /* device address of a list of 32-bit frame numbers; 0: 16-bit ones follow in the
                      parameters, in units of frames counted from `base_pfn` */
    uint64_t timeout_ns; /* longest wait for an answer */
    uint64_t done;       /* device address of the stream's timeline, 0: leave it alone */
    uint64_t done_value; /* stored there when everything above has happened */
    uint32_t segments;
    uint32_t flags; /* enum mb_pop_flag */
    uint32_t base_pfn;
    uint32_t frame_shift; /* log2 of 4 KiB pages in a frame: 9 */
    uint32_t slot_bytes;
    uint32_t pfn_shift; /* mb_fmt_pfn_shift() */
    uint32_t more;      /* more than MB_POP_SEGMENTS: where the others begin, as if they were frame
                           numbers; a multiple of 4 */
    uint32_t unused;
    struct mb_pop_segment segment[MB_POP_SEGMENTS];
};

/* mb_await: announces that the stream has come here (announce 0: not), waits for the helper's
 * answer, then passes the stream's fence. Ends the context rather than going on without the answer.
 * */
struct mb_await {
    uint64_t announce;       /* device address, or 0 */
    uint64_t announce_value; /* stored there */
    uint64_t answer;         /* device address of the word that the helper writes */
    uint64_t answer_value;   /* wait until it is at least this */
    uint64_t error;          /* as in mb_pop_head */
    uint64_t timeout_ns;
    uint64_t done; /* as in mb_pop_head */
    uint64_t done_value;
    uint64_t flags; /* MB_POP_FAST or 0 */
};

#endif
