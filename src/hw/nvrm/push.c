/* push.c - see push.h. Bit positions are in doc/driver-abi.md. */
#include "hw/nvrm/push.h"

#include <stddef.h>

enum {
    SUBCHANNEL_HOST = 0,
    SUBCHANNEL_COPY = 4,
    /* host methods */
    METHOD_SET_OBJECT = 0x00,
    METHOD_MEM_OP_A = 0x28,
    METHOD_SEM_ADDR_LO = 0x5c,
    METHOD_WFI = 0x78,
    /* copy engine methods */
    METHOD_LAUNCH = 0x300,
    METHOD_OFFSET_IN = 0x400,
    METHOD_LINE_LENGTH = 0x418,
    MAX_VALUES = 5,
};

/* SEM_EXECUTE */
#define SEM_RELEASE 1u
#define SEM_ACQUIRE_CIRCULAR_GEQ 3u
#define SEM_ACQUIRE_SWITCH (1u << 12)
#define SEM_RELEASE_WFI (1u << 20)
#define SEM_64BIT (1u << 24)
#define SEM_TIMESTAMP (1u << 25)

#define WFI_ALL 1u

/* MEM_OP_A */
#define INVAL_SCOPE_SHIFT 6
#define INVAL_SYSMEMBAR (1u << 11)
/* MEM_OP_C */
#define MEMBAR_TYPE_SYS 0u
#define MEMBAR_TYPE_GPU 1u
#define INVAL_ACK_GLOBALLY (1u << 5)
#define INVAL_LEVEL_SHIFT 7
#define INVAL_APERTURE_SHIFT 10
/* MEM_OP_D, operation in 31:27 */
#define OP_MEMBAR (5u << 27)
#define OP_INVALIDATE (9u << 27)
#define OP_INVALIDATE_TARGETED (10u << 27)
#define PDB_HIGH_MASK 0x7ffffffu

/* LAUNCH */
#define LAUNCH_PIPELINED 1u
#define LAUNCH_NOT_PIPELINED 2u
#define LAUNCH_FLUSH (1u << 2)
#define LAUNCH_SRC_PITCH (1u << 7)
#define LAUNCH_DST_PITCH (1u << 8)

/* ring entry */
#define GP_SUBROUTINE ((uint64_t)1 << 41)
#define GP_LENGTH_SHIFT 42
#define GP_LENGTH_MAX ((1u << 21) - 1)
#define GP_VA_BITS 40

static uint32_t low32(uint64_t v)
{
    return (uint32_t)v;
}

static uint32_t high32(uint64_t v)
{
    return (uint32_t)(v >> 32);
}

static bool fits(uint64_t value, unsigned bits)
{
    return bits >= 64 || value >> bits == 0;
}

void mb__nvrm_push_init(struct nvrm_push *push, const struct nvrm_arch *arch, uint32_t *words,
                        uint32_t capacity)
{
    *push = (struct nvrm_push){.arch = arch, .words = words, .capacity = capacity};
}

static void refuse(struct nvrm_push *push, const char *problem)
{
    if (!push->problem)
        push->problem = problem;
}

static void method(struct nvrm_push *push, unsigned subchannel, unsigned address,
                   const uint32_t *values, unsigned count)
{
    if (push->problem)
        return;
    if (push->capacity - push->count < count + 1) {
        refuse(push, "the push buffer's words are used up");
        return;
    }
    push->words[push->count++] = 1u << 29 | count << 16 | subchannel << 13 | address >> 2;
    for (unsigned i = 0; i < count; i++)
        push->words[push->count++] = values[i];
}

#define METHOD(push, subchannel, address, ...)                                                     \
    do {                                                                                           \
        const uint32_t values_[] = {__VA_ARGS__};                                                  \
        _Static_assert(sizeof values_ / sizeof values_[0] <= MAX_VALUES, "words per method");      \
        method(push, subchannel, address, values_, sizeof values_ / sizeof values_[0]);            \
    } while (0)

void mb__nvrm_push_set_copy_object(struct nvrm_push *push)
{
    METHOD(push, SUBCHANNEL_COPY, METHOD_SET_OBJECT, push->arch->copy_class);
}

static void semaphore(struct nvrm_push *push, uint64_t va, uint64_t value, uint32_t execute,
                      uint64_t alignment)
{
    if (va % alignment || !fits(va, push->arch->semaphore_va_bits)) {
        refuse(push, "a semaphore's address is misaligned or beyond what the host reaches");
        return;
    }
    METHOD(push, SUBCHANNEL_HOST, METHOD_SEM_ADDR_LO, low32(va), high32(va), low32(value),
           high32(value), execute);
}

void mb__nvrm_push_acquire32(struct nvrm_push *push, uint64_t va, uint32_t value)
{
    semaphore(push, va, value, SEM_ACQUIRE_CIRCULAR_GEQ | SEM_ACQUIRE_SWITCH, 4);
}

void mb__nvrm_push_acquire64(struct nvrm_push *push, uint64_t va, uint64_t value)
{
    semaphore(push, va, value, SEM_ACQUIRE_CIRCULAR_GEQ | SEM_ACQUIRE_SWITCH | SEM_64BIT, 8);
}

void mb__nvrm_push_acquire32_hold(struct nvrm_push *push, uint64_t va, uint32_t value)
{
    semaphore(push, va, value, SEM_ACQUIRE_CIRCULAR_GEQ, 4);
}

void mb__nvrm_push_release64(struct nvrm_push *push, uint64_t va, uint64_t value, unsigned flags)
{
    uint32_t execute = SEM_RELEASE | SEM_64BIT;

    if (flags & NVRM_RELEASE_WFI)
        execute |= SEM_RELEASE_WFI;
    if (flags & NVRM_RELEASE_TIMESTAMP)
        execute |= SEM_TIMESTAMP;
    semaphore(push, va, value, execute, flags & NVRM_RELEASE_TIMESTAMP ? 16 : 8);
}

void mb__nvrm_push_wfi(struct nvrm_push *push)
{
    METHOD(push, SUBCHANNEL_HOST, METHOD_WFI, WFI_ALL);
}

void mb__nvrm_push_membar(struct nvrm_push *push, enum nvrm_membar scope)
{
    if (scope == NVRM_MEMBAR_NONE)
        return;
    METHOD(push, SUBCHANNEL_HOST, METHOD_MEM_OP_A, 0, 0,
           scope == NVRM_MEMBAR_SYS ? MEMBAR_TYPE_SYS : MEMBAR_TYPE_GPU, OP_MEMBAR);
}

/* log2 of the smallest naturally aligned power of two that covers [va, va + bytes); 64: everything.
 * */
static unsigned cover_log2(uint64_t va, uint64_t bytes)
{
    uint64_t differ = va ^ (va + bytes - 1);
    unsigned log2 = 12;

    while (log2 < 64 && differ >> log2)
        log2++;
    return log2;
}

static const char *invalidate_problem(const struct nvrm_invalidate *inval)
{
    if (inval->pdb & 0xfff || !fits(inval->pdb, 12 + 20 + 27))
        return "a page directory's address is misaligned or too large";
    if (inval->va & 0xfff || inval->bytes & 0xfff)
        return "a range to invalidate is not made of 4096-byte pages";
    if (inval->bytes && inval->va + inval->bytes - 1 < inval->va)
        return "a range to invalidate wraps around";
    if ((unsigned)inval->level > NVRM_LEVEL_MAX)
        return "a page-table level does not exist";
    return NULL;
}

void mb__nvrm_push_invalidate(struct nvrm_push *push, const struct nvrm_invalidate *inval)
{
    const char *problem = invalidate_problem(inval);
    uint32_t a = (uint32_t)inval->scope << INVAL_SCOPE_SHIFT, b = 0;
    uint32_t c = low32(inval->pdb) | (uint32_t)inval->aperture << INVAL_APERTURE_SHIFT |
                 (uint32_t)inval->level << INVAL_LEVEL_SHIFT;
    uint32_t op = OP_INVALIDATE;

    if (problem) {
        refuse(push, problem);
        return;
    }
    unsigned log2 = inval->bytes ? cover_log2(inval->va, inval->bytes) : 64;
    if (log2 < 64) {
        op = OP_INVALIDATE_TARGETED;
        a |= (log2 - 12) | low32(inval->va);
        b = high32(inval->va);
    }
    if (inval->ack || inval->membar != NVRM_MEMBAR_NONE)
        c |= INVAL_ACK_GLOBALLY;
    if (inval->membar == NVRM_MEMBAR_SYS)
        a |= INVAL_SYSMEMBAR;
    METHOD(push, SUBCHANNEL_HOST, METHOD_MEM_OP_A, a, b, c,
           op | (high32(inval->pdb) & PDB_HIGH_MASK));
    if (inval->membar == NVRM_MEMBAR_GPU && push->arch->membar_after_invalidate)
        mb__nvrm_push_membar(push, NVRM_MEMBAR_GPU);
}

void mb__nvrm_push_copy(struct nvrm_push *push, uint64_t dst_va, uint64_t src_va, uint64_t bytes,
                        unsigned flags)
{
    unsigned bits = push->arch->copy_va_bits;
    uint32_t launch = LAUNCH_SRC_PITCH | LAUNCH_DST_PITCH;

    if (!bytes || bytes > UINT32_MAX || !fits(dst_va, bits) || !fits(src_va, bits) ||
        !fits(dst_va + bytes - 1, bits) || !fits(src_va + bytes - 1, bits)) {
        refuse(push, "a copy has no bytes, too many, or an address beyond what the engine reaches");
        return;
    }
    METHOD(push, SUBCHANNEL_COPY, METHOD_OFFSET_IN, high32(src_va), low32(src_va), high32(dst_va),
           low32(dst_va));
    METHOD(push, SUBCHANNEL_COPY, METHOD_LINE_LENGTH, low32(bytes));
    launch |= flags & NVRM_COPY_PIPELINED ? LAUNCH_PIPELINED : LAUNCH_NOT_PIPELINED;
    if (!(flags & NVRM_COPY_NO_FLUSH))
        launch |= LAUNCH_FLUSH;
    METHOD(push, SUBCHANNEL_COPY, METHOD_LAUNCH, launch);
}

bool mb__nvrm_gp_entry(uint64_t va, uint32_t words, uint64_t *entry)
{
    if (va & 3 || !fits(va, GP_VA_BITS) || !words || words > GP_LENGTH_MAX)
        return false;
    *entry = va | GP_SUBROUTINE | (uint64_t)words << GP_LENGTH_SHIFT;
    return true;
}
