/* SPDX-License-Identifier: MIT */
/*
 * tlb.c - what is remembered of earlier walks: groups of leaf slots, and directory entries.
 *
 * A TLB is set associative over groups; a group keeps all its slots as they were at the walk, valid
 * and invalid. Dropping everything is one step of an epoch. Dropping a range clears `present` bits
 * of exactly the slots of the range: the promise of a targeted invalidate is about them, and a
 * model that dropped whole groups would hide a caller that asks for too little.
 *
 * Sizes are choices (model.c): large enough that a stale entry survives long enough to be used.
 */
#include "hw/sim/dev.h"

#include <stdlib.h>
#include <string.h>

static unsigned group_shift(const struct sim_dev *dev, unsigned leaf_shift)
{
    return leaf_shift + (unsigned)__builtin_ctz(dev->model->group_slots);
}

static uint32_t set_of(const struct sim_tlb *tlb, uint64_t tag, unsigned leaf_shift)
{
    return (uint32_t)((tag + leaf_shift) * 0x9e3779b97f4a7c15u >> 40) & (tlb->sets - 1);
}

enum mb_err mb__sim_tlb_open(struct sim_tlb *tlb, unsigned entries)
{
    tlb->sets = entries / SIM_TLB_WAYS;
    tlb->epoch = 1;
    tlb->entry = calloc(entries, sizeof(*tlb->entry));
    if (!tlb->entry)
        return mb__fail(MB_ERR_HOST_MEMORY, "software GPU: no host memory for a TLB");
    return MB_OK;
}

void mb__sim_tlb_close(struct sim_tlb *tlb)
{
    free(tlb->entry);
}

static struct sim_group *find_group(struct sim_tlb *tlb, uint64_t tag, unsigned leaf_shift)
{
    struct sim_group *set = &tlb->entry[(size_t)set_of(tlb, tag, leaf_shift) * SIM_TLB_WAYS];

    for (unsigned way = 0; way < SIM_TLB_WAYS; way++) {
        if (set[way].tag == tag && set[way].epoch == tlb->epoch && set[way].shift == leaf_shift)
            return &set[way];
    }
    return NULL;
}

struct sim_group *mb__sim_tlb_find(struct sim_tlb *tlb, const struct sim_dev *dev, uint64_t va,
                                   unsigned leaf_shift, uint64_t *slot)
{
    struct sim_group *group = find_group(tlb, va >> group_shift(dev, leaf_shift), leaf_shift);
    unsigned index = (unsigned)(va >> leaf_shift) & (dev->model->group_slots - 1);

    if (!group || !(group->present >> index & 1))
        return NULL;
    group->used = ++tlb->clock;
    *slot = group->slot[index];
    return group;
}

/* A group that is cached in part is replaced: the walk has read all slots anew. */
void mb__sim_tlb_insert(struct sim_tlb *tlb, const struct sim_dev *dev,
                        const struct sim_group *group)
{
    struct sim_group *set =
        &tlb->entry[(size_t)set_of(tlb, group->tag, group->shift) * SIM_TLB_WAYS];
    struct sim_group *victim = find_group(tlb, group->tag, group->shift);

    (void)dev;
    for (unsigned way = 0; !victim && way < SIM_TLB_WAYS; way++) {
        if (set[way].epoch != tlb->epoch)
            victim = &set[way];
    }
    if (!victim) {
        victim = set;
        for (unsigned way = 1; way < SIM_TLB_WAYS; way++) {
            if (tlb->clock - set[way].used > tlb->clock - victim->used)
                victim = &set[way];
        }
    }
    *victim = *group;
    victim->epoch = tlb->epoch;
    victim->used = ++tlb->clock;
    if (group->shift < MB_FRAME_SHIFT)
        tlb->small++;
}

/* Slots of the group that lie in [va, end). */
static uint16_t slots_between(const struct sim_group *group, unsigned slots, uint64_t va,
                              uint64_t end)
{
    uint64_t first = group->tag * slots << group->shift;
    uint16_t mask = 0;

    for (unsigned i = 0; i < slots; i++) {
        uint64_t at = first + ((uint64_t)i << group->shift);

        if (at < end && at + ((uint64_t)1 << group->shift) > va)
            mask |= (uint16_t)(1u << i);
    }
    return mask;
}

static void drop_slots(struct sim_tlb *tlb, const struct sim_dev *dev, struct sim_group *group,
                       uint64_t va, uint64_t end)
{
    if (!group || group->epoch != tlb->epoch)
        return;
    group->present &= (uint16_t)~slots_between(group, dev->model->group_slots, va, end);
    if (!group->present)
        group->epoch = tlb->epoch - 1;
}

void mb__sim_tlb_invalidate(struct sim_tlb *tlb, const struct sim_dev *dev, uint64_t va,
                            uint64_t bytes)
{
    unsigned shift = group_shift(dev, MB_FRAME_SHIFT);
    uint64_t end = va + bytes, groups = (bytes >> shift) + 2;

    if (!bytes) {
        tlb->epoch++;
        tlb->small = 0;
        return;
    }
    if (!tlb->small && groups < tlb->sets) {
        for (uint64_t tag = va >> shift; tag <= (end - 1) >> shift; tag++)
            drop_slots(tlb, dev, find_group(tlb, tag, MB_FRAME_SHIFT), va, end);
        return;
    }
    for (size_t i = 0; i < (size_t)tlb->sets * SIM_TLB_WAYS; i++)
        drop_slots(tlb, dev, &tlb->entry[i], va, end);
}

static struct sim_pde *pde_slot(struct sim_pdc *pdc, const struct sim_dev *dev, uint64_t va,
                                unsigned level, uint64_t *tag)
{
    *tag = va >> dev->geo.level[level].shift << 3 | level;
    return &pdc->entry[(*tag * 0x9e3779b97f4a7c15u >> 40) % SIM_PDES];
}

struct sim_pde *mb__sim_pdc_find(struct sim_pdc *pdc, const struct sim_dev *dev, uint64_t va,
                                 unsigned level)
{
    uint64_t tag;
    struct sim_pde *pde = pde_slot(pdc, dev, va, level, &tag);

    return pde->tag == tag && pde->epoch == pdc->epoch ? pde : NULL;
}

void mb__sim_pdc_insert(struct sim_pdc *pdc, const struct sim_dev *dev, uint64_t va, unsigned level,
                        const struct mb_dir *dir)
{
    uint64_t tag;
    struct sim_pde *pde = pde_slot(pdc, dev, va, level, &tag);

    pde->tag = tag;
    pde->epoch = pdc->epoch;
    pde->valid = dir->valid;
    pde->valid_big = dir->valid_big;
    pde->table = dir->table_phys;
    pde->table_big = dir->table_phys_big;
}

void mb__sim_pdc_invalidate(struct sim_pdc *pdc, const struct sim_dev *dev, uint64_t va,
                            uint64_t bytes)
{
    if (!bytes) {
        pdc->epoch++;
        return;
    }
    for (unsigned i = 0; i < SIM_PDES; i++) {
        struct sim_pde *pde = &pdc->entry[i];
        unsigned shift = dev->geo.level[pde->tag & 7].shift;
        uint64_t first = pde->tag >> 3 << shift;

        if (pde->epoch == pdc->epoch && first < va + bytes && first + ((uint64_t)1 << shift) > va)
            pde->epoch = pdc->epoch - 1;
    }
}

void mb__sim_invalidate(struct sim_dev *dev, uint64_t va, uint64_t bytes)
{
    for (unsigned i = 0; i < dev->model->utlbs; i++)
        mb__sim_tlb_invalidate(&dev->utlb[i], dev, va, bytes);
    mb__sim_tlb_invalidate(&dev->l2, dev, va, bytes);
    mb__sim_tlb_invalidate(&dev->ce, dev, va, bytes);
    mb__sim_pdc_invalidate(&dev->pdc, dev, va, bytes);
    mb__sim_pdc_invalidate(&dev->ce_pdc, dev, va, bytes);
}
