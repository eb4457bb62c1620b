/* SPDX-License-Identifier: MIT */
/*
 * What trust costs the host: ns of vm's own work per frame of a map and an unmap of 1,024 frames in
 * random order, plain, with the registry of frames, and with the audit log.
 *
 * The software GPU opens everything; then its submit takes no batch any more, so that what is left
 * is vm's share: record, checks, plan, commands, log. Variants take turns, so that what else the
 * machine does hits all of them; the least of all rounds counts.
 *
 *     bench_trust            a line of JSON
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/rng.h"
#include "hw/sim/sim.h"
#include "vm/vm.h"

enum { FRAMES = 1024, ROUNDS = 400, VARIANTS = 3, OWNER = 1 };

static const char *const names[VARIANTS] = {"plain", "registry", "audit"};

#define MUST(call)                                                                                 \
    do {                                                                                           \
        if (call) {                                                                                \
            fprintf(stderr, "bench_trust: %s: %s\n", #call, mb_error_detail());                    \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static struct mb_hw_ops idle; /* the software GPU's, without execution */
static struct mb_hw_stream *own;

static enum mb_err no_submit(struct mb_hw_dev *dev, struct mb_hw_stream *stream,
                             const struct mb_hw_cmd *cmds, unsigned count)
{
    (void)dev, (void)stream, (void)cmds, (void)count;
    return MB_OK;
}

static enum mb_err no_fence(struct mb_hw_dev *dev, struct mb_hw_stream *stream,
                            struct mb_hw_fence *out)
{
    (void)dev, (void)stream;
    *out = (struct mb_hw_fence){0};
    return MB_OK;
}

struct variant {
    struct mb_hw_dev *hw;
    struct mb_vm *vm;
    mb_pfn pfns[FRAMES];
    mb_va va;
    const struct mb_hw_ops *ops; /* the software GPU's */
    char file[64];
    uint64_t map_ns, unmap_ns; /* least */
};

static void variant_open(struct variant *v, unsigned kind)
{
    struct mb_hw_config hw = {.device_memory_bytes = UINT64_C(141) << 30, .no_oracle = true};
    struct mb_vm_config config = {.policy = MB_VM_POLICY_INLINE};
    struct mb_run runs[1];
    struct mb_rng rng;
    unsigned count;
    int fd;

    snprintf(v->file, sizeof(v->file), "%s/mb-bench-trust-XXXXXX", P_tmpdir);
    fd = mkstemp(v->file);
    if (fd >= 0)
        close(fd);
    v->map_ns = v->unmap_ns = UINT64_MAX;
    if (kind == 1)
        snprintf(config.registry, sizeof(config.registry), "%s", v->file);
    if (kind == 2)
        snprintf(config.audit, sizeof(config.audit), "%s", v->file);
    MUST(mb__sim_open(&hw, &v->hw));
    MUST(mb__vm_open(v->hw, &config, &v->vm));
    MUST(mb__alloc_pfn(v->vm, OWNER, 16 * FRAMES, MB_PFN_CONTIGUOUS, runs, 1, &count));
    mb__rng_seed(&rng, 7);
    for (unsigned i = 0; i < FRAMES; i++) { /* anywhere in 32 GiB, each once */
        uint64_t at = 16 * i + mb__rng_below(&rng, 16);

        MUST(mb__home_pfns(v->vm, mb__va_add(runs[0].home, at << MB_FRAME_SHIFT), 1, &v->pfns[i]));
    }
    for (unsigned i = FRAMES - 1; i > 0; i--) {
        unsigned k = (unsigned)mb__rng_below(&rng, i + 1);
        mb_pfn swap = v->pfns[i];

        v->pfns[i] = v->pfns[k];
        v->pfns[k] = swap;
    }
    MUST(mb__alloc_va(v->vm, (uint64_t)FRAMES << MB_FRAME_SHIFT, 0, &v->va));
    MUST(v->hw->ops->device_sync(v->hw));
    v->ops = v->hw->ops;
    idle = *v->ops;
    idle.submit = no_submit;
    idle.submit_fence = NULL;
    idle.fence_record = no_fence;
    idle.intend = NULL;
    v->hw->ops = &idle;
}

static void variant_round(struct variant *v)
{
    struct mb_vm_op op = {.kind = MB_VM_MAP,
                          .prot = MB_PROT_READ_WRITE,
                          .va = v->va,
                          .frames = FRAMES,
                          .cap = mb__owner_cap(v->vm, OWNER),
                          .pfns = v->pfns};
    uint64_t start = mb__now_ns(), ns;

    MUST(mb__pte_pop(v->vm, own, &op, 1, NULL));
    ns = mb__now_ns() - start;
    v->map_ns = ns < v->map_ns ? ns : v->map_ns;
    op.kind = MB_VM_UNMAP;
    start = mb__now_ns();
    MUST(mb__pte_pop(v->vm, own, &op, 1, NULL));
    ns = mb__now_ns() - start;
    v->unmap_ns = ns < v->unmap_ns ? ns : v->unmap_ns;
}

int main(void)
{
    static struct variant v[VARIANTS];

    for (unsigned i = 0; i < VARIANTS; i++)
        variant_open(&v[i], i);
    own = (struct mb_hw_stream *)v; /* never looked into: nothing is submitted */
    for (unsigned round = 0; round < ROUNDS; round++) {
        for (unsigned i = 0; i < VARIANTS; i++)
            variant_round(&v[i]);
    }
    printf(
        "{\"bench\": \"trust\", \"version\": \"%s\", \"frames\": %d, \"rounds\": %d, \"rows\": [",
        mb_version(), FRAMES, ROUNDS);
    for (unsigned i = 0; i < VARIANTS; i++) {
        printf("%s{\"what\": \"%s\", \"map_ns\": %llu, \"unmap_ns\": %llu, \"map_ratio\": %.3f, "
               "\"unmap_ratio\": %.3f}",
               i ? ", " : "", names[i], (unsigned long long)v[i].map_ns,
               (unsigned long long)v[i].unmap_ns, (double)v[i].map_ns / (double)v[0].map_ns,
               (double)v[i].unmap_ns / (double)v[0].unmap_ns);
        v[i].hw->ops = v[i].ops;
        mb__vm_close(v[i].vm);
        v[i].hw->ops->close(v[i].hw);
        unlink(v[i].file);
    }
    printf("]}\n");
    return 0;
}
