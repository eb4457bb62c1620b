/* SPDX-License-Identifier: MIT */
#include "sim_rig.h"

#include "test.h"

#include <string.h>

#define WINDOW_BYTES ((uint64_t)RIG_SLOTS << MB_FRAME_SHIFT)

void rig_took(enum mb_err err)
{
    CHECK(err == MB_OK || err == MB_ERR_DEVICE_LOST);
}

/* Directories from the root to linear last-level tables for the window. */
static void build_tree(struct sim_rig *rig)
{
    unsigned last = rig->geo.levels - 1;
    uint64_t reach = (uint64_t)1 << (rig->geo.level[last].shift + rig->geo.level[last].bits);
    uint64_t leaves, table = rig->ops->root_phys(rig->dev);

    CHECK_OK(rig->ops->table_alloc(rig->dev, WINDOW_BYTES / reach * 4096, &leaves));
    for (unsigned l = 0; l + 1 < last; l++) {
        uint64_t child;
        struct mb_dir dir = {.valid = 1};
        struct mb_hw_cmd cmd = {.kind = MB_HW_DIR};

        CHECK_OK(rig->ops->table_alloc(rig->dev, 4096, &child));
        dir.table_phys = child;
        cmd.dir.table_phys = table;
        cmd.dir.level = l;
        cmd.dir.index = mb_fmt_index(rig->geo.level[l], rig->window.addr);
        cmd.dir.value = mb_fmt_encode_dir(rig->dev->caps.format, l, &dir);
        rig_submit(rig, 0, &cmd, 1);
        table = child;
    }
    rig->directory = table;
    for (uint64_t off = 0; off < WINDOW_BYTES; off += reach) {
        struct mb_dir dir = {.valid = 1, .table_phys = leaves + off / reach * 4096};
        struct mb_hw_cmd cmds[2] = {{.kind = MB_HW_DIR}, {.kind = MB_HW_BARRIER}};

        cmds[0].dir.table_phys = table;
        cmds[0].dir.level = last - 1;
        cmds[0].dir.index = mb_fmt_index(rig->geo.level[last - 1], rig->window.addr + off);
        cmds[0].dir.value = mb_fmt_encode_dir(rig->dev->caps.format, last - 1, &dir);
        rig_submit(rig, 0, cmds, 2);
    }
    rig->view = (struct mb_hw_view){
        .va = rig->window,
        .bytes = WINDOW_BYTES,
        .leaf_shift = MB_FRAME_SHIFT,
        .slot_bytes = mb_fmt_slot_bytes(rig->dev->caps.format, MB_FRAME_SHIFT),
        .table = leaves,
        .clear_pfn = MB_NO_PFN,
    };
}

void rig_open(struct sim_rig *rig, const struct mb_hw_config *config)
{
    struct mb_hw_config used = {0};
    const struct mb_hw_ops *ops;
    struct mb_hw_dev *dev;

    if (config)
        used = *config;
    if (!used.device_memory_bytes)
        used.device_memory_bytes = (uint64_t)1 << 30;
    memset(rig, 0, sizeof(*rig));
    CHECK_OK(mb__sim_open(&used, &rig->dev));
    dev = rig->dev;
    ops = rig->ops = dev->ops;
    rig->geo = mb_fmt_geometry(dev->caps.format);
    CHECK_OK(ops->va_reserve(dev, (uint64_t)RIG_FRAMES << MB_FRAME_SHIFT, 0, &rig->home));
    CHECK_OK(ops->va_reserve(dev, WINDOW_BYTES, (uint64_t)1 << 30, &rig->window));
    CHECK_OK(ops->slab_acquire(dev, (uint64_t)RIG_FRAMES << MB_FRAME_SHIFT, rig->home, &rig->slab));
    for (unsigned i = 0; i < RIG_STREAMS; i++) {
        if (i)
            CHECK_OK(ops->stream_create(dev, &rig->native[i]));
        CHECK_OK(ops->stream_open(dev, rig->native[i], &rig->stream[i]));
    }
    rig->tmpl =
        mb_fmt_leaf_template(dev->caps.format, MB_FRAME_SHIFT,
                             mb_fmt_user_flags(dev->caps.format, 1), MB_AP_VID, dev->caps.kind);
    if (dev->caps.tree_is_ours)
        build_tree(rig);
    else
        CHECK_OK(ops->tree_adopt(dev, rig->window, WINDOW_BYTES, &rig->view));
    CHECK_OK(rig_sync(rig));
}

void rig_close(struct sim_rig *rig)
{
    rig->ops->close(rig->dev);
    rig->dev = NULL;
}

mb_pfn rig_pfn(const struct sim_rig *rig, unsigned frame)
{
    if (rig->slab.pfns)
        return rig->slab.pfns[frame];
    return (mb_pfn){rig->slab.first.n + frame * MB_FRAME_PFNS};
}

mb_va rig_va(const struct sim_rig *rig, unsigned slot)
{
    return mb__va_add(rig->window, (uint64_t)slot << MB_FRAME_SHIFT);
}

void rig_submit(struct sim_rig *rig, unsigned stream, const struct mb_hw_cmd *cmds, unsigned count)
{
    rig_took(rig->ops->submit(rig->dev, rig->stream[stream], cmds, count));
}

void rig_intend(struct sim_rig *rig, unsigned slot, unsigned count, unsigned frame)
{
    for (unsigned i = 0; rig->ops->intend && i < count; i++) {
        mb_pfn pfn = rig_pfn(rig, frame + i);

        rig->ops->intend(rig->dev, rig_va(rig, slot + i), 1, MB_FRAME_SHIFT, &pfn);
    }
}

static void write_slots(struct sim_rig *rig, unsigned stream, unsigned slot, unsigned count,
                        const mb_pfn *pfns, unsigned flags)
{
    struct mb_hw_cmd cmds[4];
    unsigned n = 0;

    memset(cmds, 0, sizeof(cmds));
    cmds[n].kind = MB_HW_LEAVES;
    cmds[n].leaves.view = &rig->view;
    cmds[n].leaves.first = slot;
    cmds[n].leaves.count = count;
    cmds[n].leaves.pfns = pfns;
    cmds[n++].leaves.tmpl = rig->tmpl;
    if (!(flags & RIG_NO_BARRIER))
        cmds[n++].kind = MB_HW_BARRIER;
    if (flags & (RIG_INVALIDATE | RIG_TARGETED)) {
        cmds[n].kind = MB_HW_INVALIDATE;
        if (flags & RIG_TARGETED) {
            cmds[n].inval.va = rig_va(rig, slot);
            cmds[n].inval.bytes = (uint64_t)count << MB_FRAME_SHIFT;
        }
        n++;
    }
    if (flags & RIG_MEMBAR)
        cmds[n++].kind = MB_HW_MEMBAR;
    rig_submit(rig, stream, cmds, n);
}

void rig_map(struct sim_rig *rig, unsigned stream, unsigned slot, unsigned count, unsigned frame,
             unsigned flags)
{
    mb_pfn pfns[RIG_FRAMES];

    for (unsigned i = 0; i < count; i++)
        pfns[i] = rig_pfn(rig, frame + i);
    if (!(flags & RIG_NO_INTEND))
        rig_intend(rig, slot, count, frame);
    write_slots(rig, stream, slot, count, pfns, flags);
}

void rig_unmap(struct sim_rig *rig, unsigned stream, unsigned slot, unsigned count, unsigned flags)
{
    if (rig->ops->intend && !(flags & RIG_NO_INTEND))
        rig->ops->intend(rig->dev, rig_va(rig, slot), count, MB_FRAME_SHIFT, NULL);
    write_slots(rig, stream, slot, count, NULL, flags);
}

void rig_fill(struct sim_rig *rig, unsigned stream, unsigned slot, uint64_t bytes, uint64_t seed)
{
    rig_took(rig->ops->fill(rig->dev, rig->stream[stream], rig_va(rig, slot), bytes, seed));
}

void rig_verify(struct sim_rig *rig, unsigned stream, unsigned slot, uint64_t bytes, uint64_t seed)
{
    rig_took(rig->ops->verify(rig->dev, rig->stream[stream], rig_va(rig, slot), bytes, seed));
}

void rig_touch(struct sim_rig *rig, unsigned stream, unsigned slot)
{
    rig_fill(rig, stream, slot, 8, slot);
}

struct mb_hw_fence rig_fence(struct sim_rig *rig, unsigned stream)
{
    struct mb_hw_fence fence = {NULL, 0};

    rig_took(rig->ops->fence_record(rig->dev, rig->stream[stream], &fence));
    return fence;
}

void rig_wait(struct sim_rig *rig, unsigned stream, struct mb_hw_fence fence)
{
    rig_took(rig->ops->fence_wait_stream(rig->dev, rig->stream[stream], fence));
}

enum mb_err rig_sync(struct sim_rig *rig)
{
    return rig->ops->device_sync(rig->dev);
}

struct mb_hw_counters rig_counters(struct sim_rig *rig)
{
    struct mb_hw_counters counters;

    rig->ops->counters(rig->dev, &counters);
    return counters;
}

struct mb_sim_counters rig_sim(struct sim_rig *rig)
{
    struct mb_sim_counters counters;

    mb__sim_counters(rig->dev, &counters);
    return counters;
}
