/* SPDX-License-Identifier: MIT */
/*
 * window.c - address ranges whose leaf slots we write.
 *
 * How       A window is made of 512 MiB pieces, one leaf table each. The driver first maps a donor
 *           handle into every slot, so that it knows the whole range as device memory and keeps the
 *           table for as long as the mapping lives. The table is then proved slot by slot against
 *           the donor's frames, made writable for whoever writes entries, and every slot is set to
 *           one poison frame, which is what "cleared" means here. The driver's own entries are
 *           remembered and put back before the driver unmaps the range.
 * Donors    Mapping costs the driver time per handle, not per byte: a donor of 32 MiB or more makes
 *           16 calls or fewer a piece. A slab of the pool serves without costing memory; only
 *           without any is a donor of its own allocated, which then counts as overhead.
 * Locking   dev->table_lock for lists; driver calls outside of it. restore takes no lock at all.
 */
#include "hw/cuda/cuda.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/log.h"
#include "hw/nvrm/fence.h"
#include "hw/nvrm/uvm.h"

enum { PAGE = 4096, LIST_PAGES = 512 };
#define DONOR_MIN_BYTES ((uint64_t)32 << 20)

/* ------------------------------------------------------------ donors */

static bool can_donate(const struct mb_cuda_slab *slab)
{
    return !slab->handles && slab->bytes >= DONOR_MIN_BYTES && slab->bytes <= MB_CUDA_PIECE_BYTES &&
           MB_CUDA_PIECE_BYTES % slab->bytes == 0;
}

/* table_lock held. Prefers one that vm has given back already, then the smallest. */
static struct mb_cuda_slab *find_donor(struct mb_cuda *dev)
{
    struct mb_cuda_slab *best = NULL;

    for (struct mb_cuda_slab *s = dev->slabs; s; s = s->next) {
        if (can_donate(s) && (!best || (s->released && !best->released) ||
                              (s->released == best->released && s->bytes < best->bytes)))
            best = s;
    }
    return best;
}

/* A donor of our own: a slab that nobody owns. */
static enum mb_err make_donor(struct mb_cuda *dev, struct mb_cuda_slab **out)
{
    struct mb_hw_slab slab;
    mb_va home;
    enum mb_err err = mb__cuda_va_reserve(&dev->base, DONOR_MIN_BYTES, DONOR_MIN_BYTES, &home);

    if (err)
        return err;
    err = mb__cuda_slab_acquire(&dev->base, DONOR_MIN_BYTES, home, &slab);
    if (err) {
        (void)mb__cuda_va_release(&dev->base, home, DONOR_MIN_BYTES);
        return err;
    }
    *out = (struct mb_cuda_slab *)(uintptr_t)slab.cookie;
    pthread_mutex_lock(&dev->table_lock);
    (*out)->donor_uses++; /* so that the release below keeps it */
    pthread_mutex_unlock(&dev->table_lock);
    err = mb__cuda_slab_release(&dev->base, &slab);
    (void)mb__cuda_va_release(&dev->base, home, DONOR_MIN_BYTES);
    return err;
}

static enum mb_err take_donor(struct mb_cuda *dev, struct mb_cuda_slab **out)
{
    struct mb_cuda_slab *donor;

    pthread_mutex_lock(&dev->table_lock);
    donor = find_donor(dev);
    if (donor)
        donor->donor_uses++;
    pthread_mutex_unlock(&dev->table_lock);
    if (!donor)
        return make_donor(dev, out);
    *out = donor;
    return MB_OK;
}

static uint64_t donor_phys(const struct mb_cuda_slab *donor, uint32_t slot)
{
    uint32_t i = slot % donor->frames;

    return donor->pfns ? mb__phys_of_pfn(donor->pfns[i])
                       : mb__phys_of_pfn(donor->first) + i * MB_FRAME_BYTES;
}

/* ------------------------------------------------------------ one piece */

static void unprime(struct mb_cuda *dev, uint64_t va, uint64_t bytes)
{
    struct mb_cuda_own_calls own;

    if (!bytes)
        return;
    mb__cuda_own_begin(&own, NULL);
    (void)mb__cuda_result(dev, dev->cu->mem_unmap(va, bytes), "unmapping a window");
    mb__cuda_own_end(&own);
}

/* The driver maps the donor into all slots. */
static enum mb_err prime(struct mb_cuda *dev, uint64_t va, const struct mb_cuda_slab *donor)
{
    struct mb_cuda_own_calls own;
    uint64_t done = 0;
    enum mb_err err = MB_OK;

    mb__cuda_own_begin(&own, NULL);
    while (!err && done < MB_CUDA_PIECE_BYTES) {
        err = mb__cuda_result(dev, dev->cu->mem_map(va + done, donor->bytes, 0, donor->handle, 0),
                              "priming a window");
        done += err ? 0 : donor->bytes;
    }
    if (!err)
        err = mb__cuda_set_access(dev, va, MB_CUDA_PIECE_BYTES, CU_MEM_ACCESS_READ_WRITE);
    mb__cuda_own_end(&own);
    if (err)
        unprime(dev, va, done);
    return err;
}

/* table_lock held. Is the table known as anything else? */
static bool table_known(const struct mb_cuda *dev, uint64_t table)
{
    if (table == dev->control_table || table == dev->space.pdb)
        return true;
    for (const struct mb_cuda_window *w = dev->windows; w; w = w->next) {
        for (unsigned i = 0; i < w->pieces; i++) {
            if (w->piece[i].table_phys == table)
                return true;
        }
    }
    return false;
}

static enum mb_err prove_piece(struct mb_cuda *dev, uint64_t va, struct mb_cuda_piece *piece)
{
    struct mb_cuda_pages *pages = aligned_alloc(64, sizeof(*pages));
    uint64_t phys[MB_CUDA_LEAVES];
    struct mb_cuda_walk walk;
    enum mb_err err;

    if (!pages)
        return mb__fail(MB_ERR_HOST_MEMORY, "no memory for a proof");
    for (uint32_t i = 0; i < MB_CUDA_LEAVES; i++)
        phys[i] = donor_phys(piece->donor, i);
    mb__cuda_pages_init(dev, pages);
    err = mb__cuda_walk(&dev->space, mb__cuda_pages_reader(pages), va, &walk);
    pages->want_copy = true;
    if (!err)
        err = mb__cuda_prove_table(&dev->space, mb__cuda_pages_reader(pages), &walk, phys);
    mb__cuda_pages_fini(pages);
    free(pages);
    if (err)
        return err;
    piece->table_phys = walk.table[walk.levels - 1];
    pthread_mutex_lock(&dev->table_lock);
    bool known = table_known(dev, piece->table_phys);
    pthread_mutex_unlock(&dev->table_lock);
    if (known)
        return mb__fail(MB_ERR_PROOF,
                        "leaf table 0x%" PRIx64 " of va 0x%" PRIx64
                        " is already known as another table",
                        piece->table_phys, va);
    for (uint32_t i = 0; i < MB_CUDA_LEAVES; i++)
        piece->entry[i] = mb__cuda_expect(&dev->space, true, phys[i]).lo;
    return MB_OK;
}

static void drop_piece(struct mb_cuda *dev, uint64_t va, struct mb_cuda_piece *piece)
{
    if (piece->control_va)
        mb__nvrm_gpu_unmap(dev->vas, dev->phys->handle, piece->control_va);
    piece->control_va = 0;
    mb__nvrm_cpu_unmap(dev->rm, &piece->view);
    unprime(dev, va, MB_CUDA_PIECE_BYTES);
    mb__cuda_slab_put(dev, piece->donor);
    piece->donor = NULL;
}

static enum mb_err make_piece(struct mb_cuda *dev, uint64_t va, struct mb_cuda_piece *piece)
{
    enum mb_err err = take_donor(dev, &piece->donor);

    if (err)
        return err;
    err = prime(dev, va, piece->donor);
    if (err) {
        mb__cuda_slab_put(dev, piece->donor);
        piece->donor = NULL;
        return err;
    }
    err = prove_piece(dev, va, piece);
    if (!err)
        err =
            mb__nvrm_phys_view_cpu(dev->phys, piece->table_phys, NVRM_CPU_READ_WRITE, &piece->view);
    if (!err && dev->tables == MB_CUDA_ISOLATED)
        err = mb__nvrm_phys_view_gpu(dev->phys, dev->vas, piece->table_phys, false,
                                     &piece->control_va);
    if (err)
        drop_piece(dev, va, piece);
    return err;
}

/* ------------------------------------------------------------ writing over BAR1 */

/* Sets slots to what `want` gives; returns how many differed. No locks. */
static unsigned write_piece(const struct mb_cuda_piece *piece, const uint64_t want[MB_CUDA_LEAVES])
{
    volatile uint64_t *slot = piece->view.addr;
    uint64_t now[512] __attribute__((aligned(64)));
    unsigned changed = 0;

    if (!slot)
        return 0;
    mb__cuda_read_page(slot, now);
    for (unsigned i = 0; i < MB_CUDA_LEAVES; i++) {
        if (now[2 * i] == want[i] && !now[2 * i + 1])
            continue;
        slot[2 * i + 1] = 0;
        slot[2 * i] = want[i];
        changed++;
    }
    mb__nvrm_fence();
    /* A read comes back only after the writes before it have arrived. */
    (void)slot[0];
    return changed;
}

static void poison_want(const struct mb_cuda *dev, uint64_t want[MB_CUDA_LEAVES])
{
    uint64_t lo = mb__cuda_expect(&dev->space, true, mb__phys_of_pfn(dev->poison_pfn)).lo;

    for (unsigned i = 0; i < MB_CUDA_LEAVES; i++)
        want[i] = lo;
}

static enum mb_err poison(struct mb_cuda *dev, struct mb_cuda_window *window)
{
    uint64_t want[MB_CUDA_LEAVES], now[512] __attribute__((aligned(64)));

    poison_want(dev, want);
    for (unsigned p = 0; p < window->pieces; p++) {
        (void)write_piece(&window->piece[p], want);
        mb__cuda_read_page(window->piece[p].view.addr, now);
        for (unsigned i = 0; i < MB_CUDA_LEAVES; i++) {
            if (now[2 * i] != want[i] || now[2 * i + 1])
                return mb__fail(MB_ERR_CORRUPT, "a slot does not hold what was written to it");
        }
    }
    if (!mb__cuda_rescue_invalidate(dev, 2000000))
        return mb__cuda_lose(dev, MB_ERR_DEVICE_LOST,
                             "the helper channel does not answer: a new window cannot be used");
    return MB_OK;
}

unsigned mb__cuda_restore_windows(struct mb_cuda *dev)
{
    unsigned changed = 0;

    for (struct mb_cuda_window *w = dev->windows; w; w = w->next) {
        if (!__atomic_load_n(&w->live, __ATOMIC_ACQUIRE))
            continue;
        for (unsigned p = 0; p < w->pieces; p++)
            changed += write_piece(&w->piece[p], w->piece[p].entry);
        __atomic_store_n(&w->live, false, __ATOMIC_RELEASE);
    }
    return changed;
}

/* ------------------------------------------------------------ where the writer sees the tables */

void mb__cuda_unmap_tables(struct mb_cuda *dev, struct mb_cuda_window *window)
{
    uint64_t bytes = (uint64_t)window->pieces * PAGE;

    if (!window->app_va)
        return;
    (void)mb__nvrm_uvm_unmap(dev->rm, dev->uvm_fd, window->app_va, bytes, dev->uuid);
    (void)mb__nvrm_uvm_free(dev->rm, dev->uvm_fd, window->app_va, bytes);
    window->app_va = 0;
}

/* Consecutive pages of a 2 MiB range in the application's space; never reused, as a window of 1 GiB
 * takes two of 512. The driver is called without the lock. */
static enum mb_err take_list_pages(struct mb_cuda *dev, unsigned pages, uint64_t *va)
{
    cu_ptr fresh = 0;
    bool taken;
    enum mb_err err;

    if (pages > LIST_PAGES)
        return mb__fail(MB_ERR_LIMIT, "a window of more than 256 GiB at once");
    for (;;) {
        pthread_mutex_lock(&dev->table_lock);
        if (fresh) {
            dev->list_va = fresh;
            dev->list_used = 0;
        }
        taken = dev->list_va && dev->list_used + pages <= LIST_PAGES;
        if (taken) {
            *va = dev->list_va + (uint64_t)dev->list_used * PAGE;
            dev->list_used += pages;
        }
        pthread_mutex_unlock(&dev->table_lock);
        if (taken)
            return MB_OK;
        err = mb__cuda_result(dev, dev->cu->reserve(&fresh, MB_FRAME_BYTES, MB_FRAME_BYTES, 0, 0),
                              "reserving addresses for tables");
        if (err)
            return err;
    }
}

static enum mb_err map_tables(struct mb_cuda *dev, struct mb_cuda_window *window)
{
    uint64_t base = 0, bytes = (uint64_t)window->pieces * PAGE;
    enum mb_err err;

    err = take_list_pages(dev, window->pieces, &base);
    if (!err)
        err = mb__nvrm_uvm_create_range(dev->rm, dev->uvm_fd, base, bytes);
    if (err)
        return err;
    window->app_va = base;
    for (unsigned p = 0; !err && p < window->pieces; p++) {
        struct nvrm_uvm_mapping m = {.base = base + (uint64_t)p * PAGE,
                                     .length = PAGE,
                                     .offset = window->piece[p].table_phys,
                                     .memory = dev->phys->handle,
                                     .attr = dev->attr};

        err = mb__nvrm_uvm_map(dev->rm, dev->uvm_fd, &m);
    }
    if (err)
        mb__cuda_unmap_tables(dev, window);
    return err;
}

/* ------------------------------------------------------------ windows */

static void free_window(struct mb_cuda_window *w)
{
    free(w->piece);
    free(w->cleared);
    free(w);
}

static struct mb_cuda_window *new_window(struct mb_cuda *dev, mb_va va, unsigned pieces)
{
    struct mb_cuda_window *w = calloc(1, sizeof(*w));

    if (!w)
        return NULL;
    w->va = va;
    w->piece = calloc(pieces, sizeof(*w->piece));
    if (dev->tables == MB_CUDA_ISOLATED)
        w->cleared = malloc((size_t)pieces * MB_CUDA_LEAVES);
    if (!w->piece || (dev->tables == MB_CUDA_ISOLATED && !w->cleared)) {
        free_window(w);
        return NULL;
    }
    if (w->cleared)
        memset(w->cleared, 1, (size_t)pieces * MB_CUDA_LEAVES);
    return w;
}

static void drop_pieces(struct mb_cuda *dev, struct mb_cuda_window *w)
{
    while (w->pieces) {
        w->pieces--;
        drop_piece(dev, w->va.addr + w->pieces * MB_CUDA_PIECE_BYTES, &w->piece[w->pieces]);
    }
}

/* The driver's entries are there again, nothing is cached, nobody can write the tables, and nothing
 * finds the window: it may be unmapped. Others may have been adopted since. */
static void take_back(struct mb_cuda *dev, struct mb_cuda_window *w)
{
    struct mb_cuda_window **at;

    for (unsigned p = 0; p < w->pieces; p++)
        (void)write_piece(&w->piece[p], w->piece[p].entry);
    __atomic_store_n(&w->live, false, __ATOMIC_RELEASE);
    if (!mb__cuda_rescue_invalidate(dev, 2000000))
        (void)mb__cuda_lose(dev, MB_ERR_DEVICE_LOST,
                            "the helper channel does not answer: a window may be cached");
    pthread_mutex_lock(&dev->table_lock);
    for (at = &dev->windows; *at != w; at = &(*at)->next)
        ;
    __atomic_store_n(at, w->next, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&dev->table_lock);
    mb__cuda_unmap_tables(dev, w);
}

static enum mb_err adopt(struct mb_cuda *dev, mb_va va, unsigned pieces,
                         struct mb_cuda_window **out)
{
    struct mb_cuda_window *w = new_window(dev, va, pieces);
    struct mb__detail detail;
    enum mb_err err = MB_OK;

    if (!w)
        return mb__fail(MB_ERR_HOST_MEMORY, "no memory for a window's record");
    while (!err && w->pieces < pieces) {
        err = make_piece(dev, va.addr + w->pieces * MB_CUDA_PIECE_BYTES, &w->piece[w->pieces]);
        w->pieces += !err;
    }
    if (!err && dev->tables == MB_CUDA_INLINE)
        err = map_tables(dev, w);
    if (err)
        goto undo;
    pthread_mutex_lock(&dev->table_lock);
    w->live = true;
    w->next = dev->windows;
    __atomic_store_n(&dev->windows, w, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&dev->table_lock);
    err = poison(dev, w);
    if (!err) {
        *out = w;
        return MB_OK;
    }
    mb__detail_keep(&detail);
    take_back(dev, w);
    mb__detail_put(&detail);
undo:
    drop_pieces(dev, w);
    free_window(w);
    return err;
}

enum mb_err mb__cuda_tree_adopt(struct mb_hw_dev *hw, mb_va va, uint64_t bytes,
                                struct mb_hw_view *out)
{
    struct mb_cuda *dev = mb__cuda(hw);
    struct mb_cuda_window *w = NULL;
    struct mb_cuda_scope scope;
    enum mb_err err;

    if (!bytes || bytes % MB_CUDA_PIECE_BYTES || va.addr % MB_CUDA_PIECE_BYTES ||
        bytes / MB_CUDA_PIECE_BYTES > UINT32_MAX / MB_CUDA_LEAVES)
        return mb__fail(MB_ERR_INVALID,
                        "a window of %" PRIu64 " bytes at 0x%" PRIx64
                        ": both must be multiples of 512 MiB",
                        bytes, va.addr);
    err = mb__cuda_enter_relaxed(dev, &scope);
    if (err)
        return err;
    if (dev->tables == MB_CUDA_DRIVER)
        err = mb__cuda_driver_adopt(dev, va, bytes, out);
    else
        err = adopt(dev, va, (unsigned)(bytes / MB_CUDA_PIECE_BYTES), &w);
    mb__cuda_leave_relaxed(dev, &scope);
    if (err || !w)
        return err;
    *out = (struct mb_hw_view){.va = va,
                               .bytes = bytes,
                               .leaf_shift = MB_FRAME_SHIFT,
                               .slot_bytes = 16,
                               .table = w->app_va ? w->app_va : w->piece[0].control_va,
                               .clear_pfn = dev->poison_pfn,
                               .cookie = (uintptr_t)w};
    return MB_OK;
}

static void disown(struct mb_cuda *dev, struct mb_cuda_window *w)
{
    take_back(dev, w);
    drop_pieces(dev, w);
    free_window(w);
}

void mb__cuda_tree_disown(struct mb_hw_dev *hw, struct mb_hw_view *view)
{
    struct mb_cuda *dev = mb__cuda(hw);
    struct mb_cuda_scope scope;

    if (mb__cuda_enter_relaxed(dev, &scope)) {
        mb__log(MB_LOG_WARN, "cuda", "window not given back: %s", mb_error_detail());
        return;
    }
    if (dev->tables == MB_CUDA_DRIVER)
        mb__cuda_driver_disown(dev, view);
    else
        disown(dev, (struct mb_cuda_window *)(uintptr_t)view->cookie);
    mb__cuda_leave_relaxed(dev, &scope);
    memset(view, 0, sizeof(*view));
}

/* ------------------------------------------------------------ checks */

static enum mb_err check_template(const struct mb_cuda *dev, uint64_t tmpl)
{
    struct mb_pte pte = {.lo = tmpl, .hi = 0};
    struct mb_leaf leaf;
    uint32_t allowed =
        MB_LEAF_VALID | MB_LEAF_READ_ONLY | MB_LEAF_NO_ATOMICS | MB_LEAF_NO_ACCESS_COUNT;

    if (!mb_fmt_decode_leaf(dev->space.fmt, MB_FRAME_SHIFT, pte, &leaf) ||
        !(leaf.flags & MB_LEAF_VALID) || leaf.flags & ~allowed || leaf.aperture != MB_AP_VID ||
        leaf.kind != dev->space.kind || leaf.phys)
        return mb__fail(MB_ERR_INVALID,
                        "template 0x%016" PRIx64 " is not an ordinary leaf of device memory", tmpl);
    return MB_OK;
}

enum mb_err mb__cuda_check_leaves(struct mb_cuda *dev, const struct mb_hw_cmd *cmd,
                                  struct mb_cuda_window **window, struct mb_cuda_span *span)
{
    const struct mb_hw_view *view = cmd->leaves.view;
    struct mb_cuda_window *w = (struct mb_cuda_window *)(uintptr_t)view->cookie;
    uint64_t slots = view->bytes >> MB_FRAME_SHIFT;
    enum mb_err err = MB_OK;

    if (!w || cmd->leaves.first > slots || cmd->leaves.count > slots - cmd->leaves.first)
        return mb__fail(MB_ERR_INVALID, "slots %u..%" PRIu64 " of a window that has %" PRIu64,
                        cmd->leaves.first, (uint64_t)cmd->leaves.first + cmd->leaves.count, slots);
    if (cmd->leaves.pfns) {
        if (!mb__cuda_owns(dev, cmd->leaves.pfns, cmd->leaves.count, span))
            return mb__fail(MB_ERR_CORRUPT, "a frame of the batch is not owned by this device: "
                                            "nothing was written");
        if (dev->tables != MB_CUDA_DRIVER)
            err = check_template(dev, cmd->leaves.tmpl);
    }
    if (!err)
        *window = w;
    return err;
}

enum mb_err mb__cuda_read_slots(struct mb_hw_dev *hw, const struct mb_hw_view *view, uint32_t first,
                                uint32_t count, struct mb_pte *out)
{
    struct mb_cuda *dev = mb__cuda(hw);
    struct mb_cuda_window *w = (struct mb_cuda_window *)(uintptr_t)view->cookie;
    uint64_t page[512] __attribute__((aligned(64)));
    unsigned now = UINT32_MAX;

    if (mb__cuda_forked())
        return mb__fail(MB_ERR_FORKED, "a fork cannot use its parent's device");
    if (first > view->bytes >> MB_FRAME_SHIFT || count > (view->bytes >> MB_FRAME_SHIFT) - first)
        return mb__fail(MB_ERR_INVALID, "slots %u..%u are outside the window", first,
                        first + count);
    if (dev->tables == MB_CUDA_DRIVER)
        return mb__cuda_driver_read_slots(dev, view, first, count, out);
    for (uint32_t i = 0; i < count; i++) {
        unsigned piece = (first + i) / MB_CUDA_LEAVES, slot = (first + i) % MB_CUDA_LEAVES;

        if (piece != now)
            mb__cuda_read_page(w->piece[piece].view.addr, page);
        now = piece;
        out[i] = (struct mb_pte){.lo = page[2 * slot], .hi = page[2 * slot + 1]};
    }
    return MB_OK;
}
