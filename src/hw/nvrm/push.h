/*
 * push.h - encoders of GPU methods into a buffer of words.
 *
 * Pure: they touch nothing but the buffer, need no lock and no GPU. A value that the hardware has
 * no bits for, or a full buffer, does not write a word and marks the buffer;
 * mb__nvrm_channel_submit() refuses a marked one, so that a sequence can be encoded without a check
 * after each step.
 *
 * A method call is a header word (increasing method: 1 in 31:29, count 28:16, subchannel 15:13,
 * method/4 11:0) and its values. Host methods go to any subchannel; 0 is used here, 4 for the copy
 * engine.
 *
 * Order matters to the GPU as follows; the sequences are in doc/driver-abi.md:
 * - the host runs ahead of the copy engine: WFI, or a release with WFI, waits for it;
 * - a membar orders writes that are complete, so WFI comes first;
 * - an invalidate drops translations; accesses already translated need a membar after it.
 */
#ifndef MB_HW_NVRM_PUSH_H
#define MB_HW_NVRM_PUSH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "hw/nvrm/arch.h"

/* Owned by one thread while it encodes. */
struct nvrm_push {
    const struct nvrm_arch *arch;
    uint32_t *words;     /* the caller's */
    uint32_t capacity;   /* words */
    uint32_t count;      /* words written */
    const char *problem; /* NULL, or why the first refused step was refused; static text */
};

/* Words that one encoder adds at most. */
enum {
    NVRM_WORDS_SEMAPHORE = 6,
    NVRM_WORDS_WFI = 2,
    NVRM_WORDS_MEMBAR = 5,
    NVRM_WORDS_INVALIDATE = 10, /* with a membar of its own */
    NVRM_WORDS_COPY = 9,
    NVRM_WORDS_SET_OBJECT = 2,
};

void mb__nvrm_push_init(struct nvrm_push *push, const struct nvrm_arch *arch, uint32_t *words,
                        uint32_t capacity);

/* Binds the copy class to its subchannel; once per channel, which channel creation does. */
void mb__nvrm_push_set_copy_object(struct nvrm_push *push);

/*
 * The channel stops until the word at `va` is >= `value`, counted around the wrap (the difference
 * as a signed number is not negative). Other channels of the engine run meanwhile. 32-bit compare
 * of the low word (measured), or of all 64 bits («not run»). `va` is aligned to the size.
 */
void mb__nvrm_push_acquire32(struct nvrm_push *push, uint64_t va, uint32_t value);
void mb__nvrm_push_acquire64(struct nvrm_push *push, uint64_t va, uint64_t value);
/* As acquire32, but the engine's queue stays with this channel while it waits: answers sooner, and
 * keeps other channels of the same engine waiting until their time slice comes. */
void mb__nvrm_push_acquire32_hold(struct nvrm_push *push, uint64_t va, uint32_t value);

enum nvrm_release_flags {
    NVRM_RELEASE_WFI = 1,       /* after all engine work before it; else only after its fetch */
    NVRM_RELEASE_TIMESTAMP = 2, /* also stores GPU nanoseconds at va + 8; va is 16-byte aligned */
};
/* Writes 64 bits at `va`, 8-byte aligned. */
void mb__nvrm_push_release64(struct nvrm_push *push, uint64_t va, uint64_t value, unsigned flags);

/* Waits until the engine has finished what was sent to it. */
void mb__nvrm_push_wfi(struct nvrm_push *push);

enum nvrm_membar { NVRM_MEMBAR_NONE, NVRM_MEMBAR_GPU, NVRM_MEMBAR_SYS };
/* Writes that are complete for the engine become visible to this GPU, or to everyone. */
void mb__nvrm_push_membar(struct nvrm_push *push, enum nvrm_membar scope);

enum nvrm_inval_scope { NVRM_SCOPE_ALL_TLBS, NVRM_SCOPE_LINK_TLBS, NVRM_SCOPE_NON_LINK_TLBS };
enum nvrm_pdb_aperture { NVRM_PDB_VIDMEM = 0, NVRM_PDB_SYSMEM = 2 };
/* From which level of the tree down. 2 MB leaves are cached like directories: NVRM_LEVEL_PDE0 or
 * more. */
enum nvrm_level {
    NVRM_LEVEL_ALL,
    NVRM_LEVEL_PTE,
    NVRM_LEVEL_PDE0,
    NVRM_LEVEL_PDE1,
    NVRM_LEVEL_MAX = 6
};

struct nvrm_invalidate {
    uint64_t pdb; /* physical address of the root page directory, 4096-aligned */
    enum nvrm_pdb_aperture aperture;
    uint64_t va; /* with bytes: first address of the range */
    uint64_t
        bytes; /* 0: the whole address space. Else the smallest aligned power of two that covers
                       the range is invalidated */
    enum nvrm_level level;
    enum nvrm_inval_scope scope;
    bool ack;                /* complete only when every TLB has answered; implied by a membar */
    enum nvrm_membar membar; /* after it: accesses by old translations have reached memory */
};
void mb__nvrm_push_invalidate(struct nvrm_push *push, const struct nvrm_invalidate *inval);

enum nvrm_copy_flags {
    /* May overlap the copy before it: use when they touch different memory. Else a copy starts when
     * the one before it has finished. */
    NVRM_COPY_PIPELINED = 1,
    /* Its writes are not flushed; WFI and a membar must follow before anyone relies on them
     * («not run»). */
    NVRM_COPY_NO_FLUSH = 2,
};
/* One linear copy of `bytes` (1 to 2^32 - 1), addresses of the channel's address space. */
void mb__nvrm_push_copy(struct nvrm_push *push, uint64_t dst_va, uint64_t src_va, uint64_t bytes,
                        unsigned flags);

/* One entry of a channel's ring: `words` of push buffer at `va`. False if it does not fit. */
bool mb__nvrm_gp_entry(uint64_t va, uint32_t words, uint64_t *entry);

#endif
