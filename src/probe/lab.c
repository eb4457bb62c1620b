/* SPDX-License-Identifier: MIT */
/*
 * lab.c - what every lab has: device, frames, window, streams.
 *
 * On a backend whose trees are ours (tree_is_ours) the window's tables are built here, and cleared
 * slots are invalid entries. Elsewhere the backend primes the window, and cleared slots show a
 * donor.
 */
#include "probe/lab.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"

enum { PIECE_SHIFT = 29 }; /* windows are multiples of 512 MiB */

const char *mb__lab_vendor_name(enum mb_lab_vendor way)
{
    static const char *const names[MB_LAB_VENDORS] = {
        "CUDA VMM, 2 MB handles", "CUDA VMM, one handle", "cuMemAlloc", "cuMemAllocAsync, warm",
        "cuMemAllocAsync, cold"};

    return names[way];
}

/* ------------------------------------------------------------ open and close */

static const struct mb_lab_ops *ops_of(const char *backend)
{
    return strcmp(backend, "cuda") == 0  ? &mb__lab_cuda
           : strcmp(backend, "sim") == 0 ? &mb__lab_sim
                                         : NULL;
}

static enum mb_err open_device(const char *wanted, const struct mb_hw_config *config,
                               struct mb_lab *lab)
{
    for (unsigned i = 0; i < mb__hw_backend_count; i++) {
        const struct mb_hw_backend *b = &mb__hw_backends[i];
        struct mb_backend_info info = {.reason = ""};
        enum mb_err err;

        if (wanted && strcmp(wanted, b->name) != 0)
            continue;
        b->describe(config->ordinal, &info);
        if (!wanted && !info.available)
            continue;
        lab->backend = b->name;
        lab->ops = ops_of(b->name);
        if (!lab->ops)
            return mb__fail(MB_ERR_NOT_SUPPORTED,
                            "measuring on the backend %s is not possible; sim and cuda are",
                            b->name);
        err = b->open(config, &lab->hw);
        return err;
    }
    return mb__fail(MB_ERR_NO_DEVICE, "no backend %s that could be opened",
                    wanted ? wanted : "was found");
}

static enum mb_err open_streams(struct mb_lab *lab)
{
    const struct mb_hw_ops *ops = lab->hw->ops;
    enum mb_err err = MB_OK;

    for (unsigned i = 0; !err && i < 4; i++) {
        err = ops->stream_create(lab->hw, &lab->native[i]);
        if (!err)
            err = ops->stream_open(lab->hw, lab->native[i], &lab->stream[i]);
    }
    return err;
}

enum mb_err mb__lab_open(const char *backend, const struct mb_hw_config *config, uint64_t seed,
                         struct mb_lab *lab)
{
    enum mb_err err;

    memset(lab, 0, sizeof(*lab));
    mb__rng_seed(&lab->rng, seed);
    err = open_device(backend, config, lab);
    if (err)
        return err;
    lab->tmpl_rw = mb_fmt_leaf_template(lab->hw->caps.format, MB_FRAME_SHIFT,
                                        mb_fmt_user_flags(lab->hw->caps.format, 1), MB_AP_VID,
                                        lab->hw->caps.kind);
    lab->tmpl_ro = mb_fmt_leaf_template(lab->hw->caps.format, MB_FRAME_SHIFT,
                                        mb_fmt_user_flags(lab->hw->caps.format, 0), MB_AP_VID,
                                        lab->hw->caps.kind);
    err = lab->ops->open(lab);
    if (!err)
        err = open_streams(lab);
    if (err)
        mb__lab_close(lab);
    return err;
}

void mb__lab_close(struct mb_lab *lab)
{
    const struct mb_hw_ops *ops;
    mb_va va = lab->view.va;
    uint64_t bytes = lab->view.bytes;

    if (!lab->hw)
        return;
    ops = lab->hw->ops;
    (void)ops->device_sync(lab->hw);
    if (bytes && !lab->hw->caps.tree_is_ours) {
        ops->tree_disown(lab->hw, &lab->view);
        (void)ops->va_release(lab->hw, va, bytes);
    } else if (bytes) {
        (void)mb__lab_write(lab, lab->stream[0], 0, lab->slots, NULL,
                            MB_LAB_INVALIDATE | MB_LAB_MEMBAR);
        (void)ops->device_sync(lab->hw);
    }
    for (unsigned s = 0; s < lab->slabs; s++)
        (void)ops->slab_release(lab->hw, &lab->slab[s]);
    if (lab->own)
        lab->ops->close(lab);
    for (unsigned i = 0; i < 4; i++) {
        if (lab->stream[i])
            ops->stream_close(lab->hw, lab->stream[i]);
        if (lab->native[i])
            (void)ops->stream_destroy(lab->hw, lab->native[i]);
    }
    ops->close(lab->hw);
    free(lab->slab);
    free(lab->pfn);
    memset(lab, 0, sizeof(*lab));
}

/* ------------------------------------------------------------ frames */

enum mb_err mb__lab_pool(struct mb_lab *lab, uint32_t frames, uint64_t slab_bytes)
{
    uint64_t bytes = (uint64_t)frames << MB_FRAME_SHIFT, at = 0;
    unsigned slabs = (unsigned)((bytes + slab_bytes - 1) / slab_bytes);
    enum mb_err err;

    lab->slab = calloc(slabs, sizeof(*lab->slab));
    lab->pfn = calloc(frames, sizeof(*lab->pfn));
    if (!lab->slab || !lab->pfn)
        return mb__fail(MB_ERR_HOST_MEMORY, "no memory for a list of %u frames", frames);
    err = lab->hw->ops->va_reserve(lab->hw, bytes, (uint64_t)1 << PIECE_SHIFT, &lab->home);
    while (!err && at < bytes) {
        uint64_t part = bytes - at < slab_bytes ? bytes - at : slab_bytes;
        struct mb_hw_slab *slab = &lab->slab[lab->slabs];

        err = lab->hw->ops->slab_acquire(lab->hw, part, mb__va_add(lab->home, at), slab);
        if (err)
            break;
        lab->slabs++;
        for (uint32_t i = 0; i < slab->frames; i++)
            lab->pfn[lab->frames++] =
                slab->pfns ? slab->pfns[i] : (mb_pfn){slab->first.n + i * (uint32_t)MB_FRAME_PFNS};
        at += part;
    }
    return err;
}

/* ------------------------------------------------------------ window */

static enum mb_err submit(struct mb_lab *lab, const struct mb_hw_cmd *cmds, unsigned count)
{
    return lab->hw->ops->submit(lab->hw, lab->stream[0], cmds, count);
}

static enum mb_err link_dir(struct mb_lab *lab, uint64_t table, unsigned level, mb_va va,
                            uint64_t child)
{
    struct mb_fmt_geometry geo = mb_fmt_geometry(lab->hw->caps.format);
    struct mb_dir dir = {.valid = 1, .table_phys = child};
    struct mb_hw_cmd cmds[2] = {{.kind = MB_HW_DIR}, {.kind = MB_HW_BARRIER}};

    cmds[0].dir.table_phys = table;
    cmds[0].dir.level = level;
    cmds[0].dir.index = mb_fmt_index(geo.level[level], va.addr);
    cmds[0].dir.value = mb_fmt_encode_dir(lab->hw->caps.format, level, &dir);
    return submit(lab, cmds, 2);
}

/* Directories and consecutive leaf tables for a window that one chain of directories covers. The
 * tables live until the device closes. */
static enum mb_err build_tree(struct mb_lab *lab, mb_va va, uint64_t bytes)
{
    struct mb_fmt_geometry geo = mb_fmt_geometry(lab->hw->caps.format);
    unsigned last = geo.levels - 1;
    uint64_t reach = (uint64_t)1 << (geo.level[last].shift + geo.level[last].bits);
    uint64_t table = lab->hw->ops->root_phys(lab->hw), leaves, child;
    enum mb_err err =
        lab->hw->ops->table_alloc(lab->hw, (bytes + reach - 1) / reach * 4096, &leaves);

    for (unsigned l = 0; !err && l + 1 < last; l++) {
        err = lab->hw->ops->table_alloc(lab->hw, 4096, &child);
        if (!err)
            err = link_dir(lab, table, l, va, child);
        table = child;
    }
    for (uint64_t off = 0; !err && off < bytes; off += reach)
        err = link_dir(lab, table, last - 1, mb__va_add(va, off), leaves + off / reach * 4096);
    if (err)
        return err;
    lab->view = (struct mb_hw_view){
        .va = va,
        .bytes = bytes,
        .leaf_shift = MB_FRAME_SHIFT,
        .slot_bytes = mb_fmt_slot_bytes(lab->hw->caps.format, MB_FRAME_SHIFT),
        .table = leaves,
        .clear_pfn = MB_NO_PFN,
    };
    return MB_OK;
}

enum mb_err mb__lab_window(struct mb_lab *lab, uint32_t slots)
{
    uint64_t piece = (uint64_t)1 << PIECE_SHIFT;
    uint64_t bytes = (((uint64_t)slots << MB_FRAME_SHIFT) + piece - 1) / piece * piece;
    uint64_t align = piece;
    mb_va va;
    enum mb_err err;

    /* A window of our own must lie below one directory of the level above the leaves. */
    while (lab->hw->caps.tree_is_ours && align < bytes)
        align *= 2;
    err = lab->hw->ops->va_reserve(lab->hw, bytes, align, &va);
    if (err)
        return err;
    if (lab->hw->caps.tree_is_ours)
        err = build_tree(lab, va, bytes);
    else
        err = lab->hw->ops->tree_adopt(lab->hw, va, bytes, &lab->view);
    if (!err)
        lab->slots = (uint32_t)(bytes >> MB_FRAME_SHIFT);
    return err ? err : lab->ops->sync(lab, NULL);
}

enum mb_err mb__lab_write(struct mb_lab *lab, struct mb_hw_stream *stream, uint32_t slot,
                          uint32_t count, const mb_pfn *pfns, unsigned flags)
{
    struct mb_hw_cmd cmds[4];
    unsigned n = 0;

    memset(cmds, 0, sizeof(cmds));
    cmds[n].kind = MB_HW_LEAVES;
    cmds[n].leaves.view = &lab->view;
    cmds[n].leaves.first = slot;
    cmds[n].leaves.count = count;
    cmds[n].leaves.pfns = pfns;
    cmds[n++].leaves.tmpl = flags & MB_LAB_READ_ONLY ? lab->tmpl_ro : lab->tmpl_rw;
    cmds[n++].kind = MB_HW_BARRIER;
    if (flags & (MB_LAB_INVALIDATE | MB_LAB_TARGETED)) {
        cmds[n].kind = MB_HW_INVALIDATE;
        if (flags & MB_LAB_TARGETED) {
            cmds[n].inval.va = mb__lab_va(lab, slot);
            cmds[n].inval.bytes = (uint64_t)count << MB_FRAME_SHIFT;
        }
        n++;
    }
    if (flags & MB_LAB_MEMBAR)
        cmds[n++].kind = MB_HW_MEMBAR;
    /* The same call that vm makes: the batch brings its own fence where the backend offers that. */
    if (lab->hw->ops->submit_fence) {
        struct mb_hw_fence done;

        return lab->hw->ops->submit_fence(lab->hw, stream, cmds, n, &done);
    }
    return lab->hw->ops->submit(lab->hw, stream, cmds, n);
}
