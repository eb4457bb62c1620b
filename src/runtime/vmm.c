/* SPDX-License-Identifier: MIT */
/*
 * Addresses and frames apart: reserve, create, map, alias, sleep.
 *
 * A reservation is a window of vm with one record per page; a memory object is a list of frames
 * with one count per frame of the pages that show it. An alias shows whatever frame its source page
 * shows: of a memory object, whose count it raises, or of a block of malloc, which it pins: freeing
 * the block then takes effect when the last alias is gone.
 *
 * A batch is worked out on the host first. Each change of a page is logged with its old and new
 * record; an error anywhere puts the old records back, and so does a refusal by vm. Only then are
 * counts raised for what is new and dropped for what is old, in this order, so a frame that merely
 * moves is never let go.
 *
 * Locking: the device's lock.
 */
#include <inttypes.h>

#include "base/err.h"
#include "base/log.h"
#include "runtime/vmm_records.h"

enum mb_err mb__vmm_new(struct mb_device *dev)
{
    dev->vmm = calloc(1, sizeof(*dev->vmm));
    return dev->vmm ? MB_OK
                    : mb__fail(MB_ERR_HOST_MEMORY, "no host memory for the mapping records");
}

void mb__vmm_fini(struct mb_device *dev)
{
    struct mb__vmm *vmm = dev->vmm;

    if (!vmm)
        return;
    while (vmm->reservations.root) {
        struct mb__link *link = mb__tree_first(&vmm->reservations);

        mb__tree_erase(&vmm->reservations, link);
        free(MB__TREE_ENTRY(link, struct reservation, by_va));
    }
    while (vmm->mems) {
        struct mb_mem *mem = vmm->mems;

        vmm->mems = mem->next;
        free(mem);
    }
    MB_VEC_FREE(&vmm->log);
    MB_VEC_FREE(&vmm->ops);
    MB_VEC_FREE(&vmm->pfns);
    free(vmm);
    dev->vmm = NULL;
}

uint64_t mb__vmm_bytes(const struct mb_device *dev)
{
    return dev->vmm ? dev->vmm->bytes : 0;
}

/* ------------------------------------------------------------------ reservations */

static enum mb_err check_pages(uint64_t value, const char *what)
{
    if (value % FRAME)
        return mb__fail(MB_ERR_INVALID, "%s 0x%" PRIx64 " is no multiple of the page, 0x%" PRIx64,
                        what, value, FRAME);
    return MB_OK;
}

enum mb_err mb__vmm_reserve(struct mb_device *dev, uint64_t bytes, uint64_t align, void **va)
{
    struct reservation *where;
    enum mb_err err = check_pages(bytes, "size");

    if (!err && (!bytes || bytes / FRAME > UINT32_MAX))
        err = mb__fail(MB_ERR_INVALID,
                       "%" PRIu64 " bytes cannot be reserved; ask for 1 page to 2^32", bytes);
    if (!err && align & (align - 1))
        err = mb__fail(MB_ERR_INVALID, "alignment 0x%" PRIx64 " is no power of two", align);
    if (err)
        return err;
    where = calloc(1, sizeof(*where) + bytes / FRAME * sizeof(where->pages[0]));
    if (!where)
        return mb__fail(MB_ERR_HOST_MEMORY, "no host memory for the records of %" PRIu64 " pages",
                        bytes / FRAME);
    err = mb__alloc_va(dev->vm, bytes, align > FRAME ? align : 0, &where->va);
    if (err) {
        free(where);
        return err;
    }
    where->count = (uint32_t)(bytes / FRAME);
    mb__tree_insert(&dev->vmm->reservations, &where->by_va, where->va.addr, 0);
    mb__note_held(dev);
    *va = (void *)(uintptr_t)where->va.addr;
    return MB_OK;
}

enum mb_err mb__vmm_unreserve(struct mb_device *dev, void *va, uint64_t bytes)
{
    uint64_t addr = (uint64_t)(uintptr_t)va;
    struct reservation *where = find(dev, addr, 1);
    enum mb_err err;

    if (!where || where->va.addr != addr || where->count * FRAME != bytes)
        return mb__fail(MB_ERR_NOT_FOUND,
                        "%p with %" PRIu64 " bytes is not a whole range of mb_mem_reserve()", va,
                        bytes);
    for (uint32_t i = 0; i < where->count; i++)
        if (where->pages[i].state != PAGE_EMPTY)
            return mb__fail(MB_ERR_BUSY, "page %u of the range at %p is %s; unmap it first", i, va,
                            where->pages[i].state == PAGE_ASLEEP ? "asleep" : "mapped");
    err = mb__free_va(dev->vm, where->va, bytes);
    if (err)
        return err;
    mb__tree_erase(&dev->vmm->reservations, &where->by_va);
    free(where);
    return MB_OK;
}

/* ------------------------------------------------------------------ memory objects */

/* May drop the device's lock for a wait: the caller looks again at what it looked at before. */
static enum mb_err take_frames(struct mb_device *dev, uint32_t frames, struct mb_run *runs,
                               unsigned *count)
{
    enum mb_err err = mb__alloc_pfn(dev->vm, OWNER, frames, 0, runs, frames, count);

    if (err != MB_ERR_NO_MEMORY && err != MB_ERR_LIMIT)
        return err;
    /* The pools' unused frames serve as well; a frame may still have to drain. */
    if (mb__release_others(dev, NULL))
        err = mb__alloc_pfn(dev->vm, OWNER, frames, 0, runs, frames, count);
    if (err != MB_ERR_NO_MEMORY && err != MB_ERR_LIMIT)
        return err;
    err = mb__vm_drain(dev->vm);
    if (!err)
        err = mb__alloc_pfn(dev->vm, OWNER, frames, 0, runs, frames, count);
    if (err != MB_ERR_NO_MEMORY && err != MB_ERR_LIMIT)
        return err;
    /* What streams have not left yet, and frames under windows that go only then. */
    dev->counters.retries++;
    dev->counters.host_waits++;
    if (mb__wait_on_host(dev))
        return err;
    (void)mb__release_others(dev, NULL);
    err = mb__vm_drain(dev->vm);
    return err ? err : mb__alloc_pfn(dev->vm, OWNER, frames, 0, runs, frames, count);
}

/* Calls of vm that fill `frames` places of a memory object, given by index. */
static enum mb_err fill_frames(struct mb_device *dev, uint32_t frames, mb_va *homes, mb_pfn *pfns)
{
    struct mb_run *runs = malloc(frames * sizeof(*runs));
    unsigned count = 0;
    uint32_t used = 0;
    enum mb_err err;

    if (!runs)
        return mb__fail(MB_ERR_HOST_MEMORY, "no host memory for a list of %u runs", frames);
    err = take_frames(dev, frames, runs, &count);
    for (unsigned i = 0; !err && i < count; i++) {
        err = mb__home_pfns(dev->vm, runs[i].home, runs[i].frames, pfns + used);
        for (uint32_t j = 0; j < runs[i].frames; j++)
            homes[used++] = mb__va_add(runs[i].home, j * FRAME);
    }
    free(runs);
    return err;
}

static void give_back(struct mb_device *dev, struct mem_frame *frame)
{
    struct mb_run run = {frame->home, frame->pfn, 1};
    enum mb_err err;

    if (!frame->home.addr)
        return;
    err = mb__free_pfn(dev->vm, OWNER, run, NULL, 0);
    if (err)
        mb__log(MB_LOG_WARN, "runtime", "a frame of a memory object: %s", mb_error_detail());
    frame->home = MB_NO_VA;
    frame->pfn = MB_NO_PFN;
    dev->vmm->bytes -= FRAME;
}

static void mem_free_if_unused(struct mb_device *dev, struct mb_mem *mem)
{
    if (!mem->released || mem->shown)
        return;
    if (mem->prev)
        mem->prev->next = mem->next;
    else
        dev->vmm->mems = mem->next;
    if (mem->next)
        mem->next->prev = mem->prev;
    free(mem);
}

enum mb_err mb__vmm_create(struct mb_device *dev, uint64_t bytes, mb_mem *out)
{
    uint64_t frames = bytes / FRAME + (bytes % FRAME != 0);
    struct mb_mem *mem;
    mb_va *homes;
    mb_pfn *pfns;
    enum mb_err err;

    if (!bytes || bytes > dev->hw->caps.total_bytes)
        return mb__fail(bytes ? MB_ERR_NO_MEMORY : MB_ERR_INVALID,
                        "%" PRIu64 " bytes of memory were asked for; the device has %" PRIu64,
                        bytes, dev->hw->caps.total_bytes);
    mem = calloc(1, sizeof(*mem) + frames * sizeof(mem->frames[0]));
    homes = malloc(frames * sizeof(*homes));
    pfns = malloc(frames * sizeof(*pfns));
    err = mem && homes && pfns
              ? fill_frames(dev, (uint32_t)frames, homes, pfns)
              : mb__fail(MB_ERR_HOST_MEMORY, "no host memory for a list of %" PRIu64 " frames",
                         frames);
    for (uint64_t i = 0; !err && i < frames; i++)
        mem->frames[i] = (struct mem_frame){homes[i], pfns[i], 0};
    free(homes);
    free(pfns);
    if (err) {
        free(mem);
        return err;
    }
    mem->count = (uint32_t)frames;
    mem->next = dev->vmm->mems;
    if (mem->next)
        mem->next->prev = mem;
    dev->vmm->mems = mem;
    dev->vmm->bytes += frames * FRAME;
    mb__note_usage(dev);
    *out = mem;
    return MB_OK;
}

static bool mem_known(const struct mb_device *dev, const struct mb_mem *mem)
{
    for (const struct mb_mem *at = dev->vmm->mems; at; at = at->next)
        if (at == mem)
            return !at->released;
    return false;
}

enum mb_err mb__vmm_release(struct mb_device *dev, mb_mem mem)
{
    if (!mem_known(dev, mem))
        return mb__fail(MB_ERR_NOT_FOUND, "%p is no memory of this device, or was released before",
                        (void *)mem);
    mem->released = true;
    for (uint32_t i = 0; i < mem->count; i++)
        if (!mem->frames[i].maps)
            give_back(dev, &mem->frames[i]);
    mem_free_if_unused(dev, mem);
    return MB_OK;
}

/* ------------------------------------------------------------------ references of pages */

static void page_ref(const struct page *page)
{
    if (page->mem) {
        page->mem->frames[page->index].maps++;
        page->mem->shown++;
    }
    if (page->block)
        __atomic_store_n(&page->block->pins, page->block->pins + 1, __ATOMIC_RELAXED);
}

static void page_unref(struct mb_device *dev, const struct page *page)
{
    if (page->mem) {
        struct mem_frame *frame = &page->mem->frames[page->index];

        page->mem->shown--;
        if (!--frame->maps && page->mem->released)
            give_back(dev, frame);
        mem_free_if_unused(dev, page->mem);
    }
    if (page->block)
        mb__block_unpin(dev, page->block);
}

/* ------------------------------------------------------------------ working out a batch */

static enum mb_err log_change(struct mb_device *dev, struct reservation *where, struct page *page,
                              struct page new)
{
    if (!MB_VEC_PUSH(&dev->vmm->log, ((struct change){page, where, *page, new})))
        return mb__fail(MB_ERR_HOST_MEMORY, "no host memory for a batch of %zu pages",
                        dev->vmm->log.count);
    *page = new;
    return MB_OK;
}

static void roll_back(struct mb__vmm *vmm)
{
    for (size_t i = vmm->log.count; i-- > 0;)
        *vmm->log.data[i].page = vmm->log.data[i].old;
    MB_VEC_CLEAR(&vmm->log);
}

static void commit(struct mb_device *dev)
{
    struct mb__vmm *vmm = dev->vmm;
    uint64_t generation = ++dev->generation;

    for (size_t i = 0; i < vmm->log.count; i++) {
        page_ref(&vmm->log.data[i].new);
        vmm->log.data[i].where->generation = generation;
    }
    for (size_t i = 0; i < vmm->log.count; i++)
        page_unref(dev, &vmm->log.data[i].old);
    MB_VEC_CLEAR(&vmm->log);
}

/* Appends one page to the operations for vm, to the last one if it goes on there. */
static enum mb_err emit(struct mb_device *dev, enum mb_vm_op_kind kind, mb_va va,
                        const struct page *page)
{
    struct mb__vmm *vmm = dev->vmm;
    struct mb_vm_op *last = vmm->ops.count ? &vmm->ops.data[vmm->ops.count - 1] : NULL;
    struct mb_vm_op op = {.kind = kind, .prot = page->prot, .va = va, .frames = 1};

    if (kind == MB_VM_MAP) {
        op.cap = mb__owner_cap(dev->vm, page->block ? page->block->pool->id : OWNER);
        if (!MB_VEC_PUSH(&vmm->pfns, page->pfn))
            goto no_memory;
    }
    if (last && last->kind == kind && last->cap == op.cap &&
        (kind == MB_VM_UNMAP || last->prot == op.prot) &&
        last->va.addr + last->frames * FRAME == va.addr) {
        last->frames++;
        return MB_OK;
    }
    if (MB_VEC_PUSH(&vmm->ops, op))
        return MB_OK;
no_memory:
    return mb__fail(MB_ERR_HOST_MEMORY, "no host memory for a batch of %zu operations",
                    vmm->ops.count);
}

/* The page that an MB_MAP or MB_ALIAS of `op` puts at page number i of the operation. */
static enum mb_err new_page(struct mb_device *dev, const struct mb_map_op *op, uint32_t i,
                            struct page *out)
{
    uint64_t src = (uint64_t)(uintptr_t)op->src + i * FRAME;
    struct reservation *from;

    *out = (struct page){.state = PAGE_MAPPED, .prot = (uint8_t)op->prot};
    if (op->kind == MB_MAP) {
        out->mem = op->mem;
        out->index = (uint32_t)(op->mem_offset / FRAME) + i;
        out->pfn = op->mem->frames[out->index].pfn;
        if (op->mem->frames[out->index].home.addr)
            return MB_OK;
        return mb__fail(MB_ERR_NOT_MAPPED, "page %u of the memory is asleep; wake it first",
                        out->index);
    }
    from = find(dev, src, FRAME);
    if (from) {
        const struct page *page = &from->pages[(src - from->va.addr) / FRAME];

        if (page->state != PAGE_MAPPED)
            return mb__fail(MB_ERR_NOT_MAPPED, "source page 0x%" PRIx64 " is not mapped", src);
        out->mem = page->mem;
        out->block = page->block;
        out->index = page->index;
        out->pfn = page->pfn;
        return MB_OK;
    }
    out->block = mb__block_holding(dev, src);
    if (!out->block || src + FRAME > out->block->addr + out->block->bytes)
        return mb__fail(MB_ERR_NOT_FOUND,
                        "source page 0x%" PRIx64 " lies neither in a mapping nor wholly in a block",
                        src);
    out->pfn = mb__vm_lookup(dev->vm, mb__va(src));
    return MB_OK;
}

static enum mb_err check_op(struct mb_device *dev, const struct mb_map_op *op)
{
    enum mb_err err = check_pages((uint64_t)(uintptr_t)op->va, "address");

    if (!err)
        err = check_pages(op->bytes, "size");
    if (!err && !op->bytes)
        err = mb__fail(MB_ERR_INVALID, "an operation on 0 bytes; leave it out");
    if (!err && (unsigned)op->kind > MB_PROTECT)
        err = mb__fail(MB_ERR_INVALID, "%d is no kind of operation", (int)op->kind);
    if (!err && op->kind != MB_UNMAP && op->prot != MB_PROT_NONE && op->prot != MB_PROT_READ &&
        op->prot != MB_PROT_READ_WRITE)
        err = mb__fail(MB_ERR_INVALID, "%d is no protection; use MB_PROT_*", (int)op->prot);
    if (!err && op->kind == MB_ALIAS)
        err = check_pages((uint64_t)(uintptr_t)op->src, "source");
    if (err || op->kind != MB_MAP)
        return err;
    if (!mem_known(dev, op->mem))
        return mb__fail(MB_ERR_NOT_FOUND, "%p is no memory of this device", (void *)op->mem);
    err = check_pages(op->mem_offset, "offset");
    if (!err && (op->mem_offset > op->mem->count * FRAME ||
                 op->bytes > op->mem->count * FRAME - op->mem_offset))
        err = mb__fail(MB_ERR_INVALID,
                       "%" PRIu64 " bytes from %" PRIu64 " leave the memory of %" PRIu64, op->bytes,
                       op->mem_offset, op->mem->count * FRAME);
    return err;
}

/* One page of one operation: host record and vm's list. */
static enum mb_err work_page(struct mb_device *dev, const struct mb_map_op *op,
                             struct reservation *where, uint32_t i)
{
    uint64_t addr = (uint64_t)(uintptr_t)op->va + i * FRAME;
    struct page *page = &where->pages[(addr - where->va.addr) / FRAME];
    struct page old = *page, new = *page;
    enum mb_err err = MB_OK;

    if (op->kind == MB_MAP || op->kind == MB_ALIAS) {
        if (page->state != PAGE_EMPTY)
            return mb__fail(MB_ERR_MAPPED, "page 0x%" PRIx64 " is %s already; unmap it first", addr,
                            page->state == PAGE_ASLEEP ? "asleep" : "mapped");
        err = new_page(dev, op, i, &new);
    } else if (page->state == PAGE_EMPTY) {
        return mb__fail(MB_ERR_NOT_MAPPED, "page 0x%" PRIx64 " is not mapped", addr);
    } else if (op->kind == MB_UNMAP) {
        new = (struct page){0};
    } else {
        new.prot = (uint8_t)op->prot;
    }
    if (!err)
        err = log_change(dev, where, page, new);
    if (err || old.state == PAGE_ASLEEP)
        return err;
    return emit(dev,
                op->kind == MB_UNMAP     ? MB_VM_UNMAP
                : op->kind == MB_PROTECT ? MB_VM_PROTECT
                                         : MB_VM_MAP,
                mb__va(addr), &new);
}

static enum mb_err work_op(struct mb_device *dev, const struct mb_map_op *op)
{
    struct reservation *where;
    enum mb_err err = check_op(dev, op);

    if (err)
        return err;
    where = find(dev, (uint64_t)(uintptr_t)op->va, op->bytes);
    if (!where)
        return mb__fail(MB_ERR_NOT_FOUND,
                        "[%p, +%" PRIu64 ") does not lie in one range of mb_mem_reserve()", op->va,
                        op->bytes);
    for (uint32_t i = 0; !err && i < op->bytes / FRAME; i++)
        err = work_page(dev, op, where, i);
    return err;
}

static void begin_batch(struct mb__vmm *vmm)
{
    MB_VEC_CLEAR(&vmm->log);
    MB_VEC_CLEAR(&vmm->ops);
    MB_VEC_CLEAR(&vmm->pfns);
}

/* Blocks whose aliases go are used until the stream is here. A batch that fails afterwards leaves
 * them with an order more, which only costs time. */
static enum mb_err await_unmaps(const struct mb__vmm *vmm, struct mb__stream *stream)
{
    enum mb_err err = MB_OK;

    for (size_t i = 0; !err && i < vmm->log.count; i++) {
        struct mb__block *block = vmm->log.data[i].old.block;

        if (block && block != vmm->log.data[i].new.block)
            err = mb__block_await(block, stream);
    }
    return err;
}

/* Hands the operations to vm and, if it takes them, makes the host's record final. */
static enum mb_err submit(struct mb_device *dev, struct mb__stream *stream, bool host)
{
    struct mb__vmm *vmm = dev->vmm;
    struct mb_hw_fence fence = {0};
    const mb_pfn *pfns = vmm->pfns.data;
    enum mb_err err = MB_OK;

    if (!host)
        err = await_unmaps(vmm, stream);
    if (err)
        return err;
    for (size_t i = 0; i < vmm->ops.count; i++) {
        if (vmm->ops.data[i].kind != MB_VM_MAP)
            continue;
        vmm->ops.data[i].pfns = pfns;
        pfns += vmm->ops.data[i].frames;
    }
    if (vmm->ops.count)
        err = mb__pte_pop(dev->vm, stream->hw, vmm->ops.data, (unsigned)vmm->ops.count, &fence);
    if (err)
        return err;
    commit(dev);
    if (host && vmm->ops.count)
        err = dev->hw->ops->fence_wait_host(dev->hw, fence, 0);
    return err;
}

enum mb_err mb__vmm_apply(struct mb_device *dev, const struct mb_map_op *ops, unsigned count,
                          bool host, mb_stream native)
{
    struct mb__stream *stream = dev->own;
    enum mb_err err = host ? MB_OK : mb__stream_get(dev, native, &stream);

    begin_batch(dev->vmm);
    for (unsigned i = 0; !err && i < count; i++) {
        err = work_op(dev, &ops[i]);
        if (err)
            mb__fail_in(err, "operation %u of %u", i, count);
    }
    if (!err)
        err = submit(dev, stream, host);
    if (err)
        roll_back(dev->vmm);
    mb__note_held(dev);
    return err;
}

/* ------------------------------------------------------------------ sleep and wake */

static enum mb_err sleep_page(struct mb_device *dev, struct reservation *where, struct page *page,
                              mb_va va)
{
    struct page new = *page;
    enum mb_err err;

    if (page->state == PAGE_ASLEEP)
        return MB_OK;
    if (page->state != PAGE_MAPPED)
        return mb__fail(MB_ERR_NOT_MAPPED, "page 0x%" PRIx64 " is not mapped", va.addr);
    if (!page->mem || page->mem->frames[page->index].maps != 1)
        return mb__fail(MB_ERR_BUSY,
                        "the frame of page 0x%" PRIx64 " is shown elsewhere too; unmap "
                        "the other pages first",
                        va.addr);
    new.state = PAGE_ASLEEP;
    err = log_change(dev, where, page, new);
    return err ? err : emit(dev, MB_VM_UNMAP, va, &new);
}

static enum mb_err locate(struct mb_device *dev, void *va, uint64_t bytes,
                          struct reservation **where)
{
    uint64_t addr = (uint64_t)(uintptr_t)va;
    enum mb_err err = check_pages(addr, "address");

    if (!err)
        err = check_pages(bytes, "size");
    if (err)
        return err;
    *where = bytes ? find(dev, addr, bytes) : NULL;
    if (!*where)
        return mb__fail(MB_ERR_NOT_FOUND,
                        "[%p, +%" PRIu64 ") does not lie in one range of mb_mem_reserve()", va,
                        bytes);
    return MB_OK;
}

enum mb_err mb__vmm_sleep(struct mb_device *dev, void *va, uint64_t bytes, mb_stream native)
{
    uint64_t addr = (uint64_t)(uintptr_t)va;
    struct mb__stream *stream;
    struct reservation *where;
    uint64_t first;
    enum mb_err err = locate(dev, va, bytes, &where);

    if (!err)
        err = mb__stream_get(dev, native, &stream);
    if (err)
        return err;
    first = (addr - where->va.addr) / FRAME;
    begin_batch(dev->vmm);
    for (uint64_t i = 0; !err && i < bytes / FRAME; i++)
        err = sleep_page(dev, where, &where->pages[first + i], mb__va(addr + i * FRAME));
    if (!err)
        err = submit(dev, stream, false);
    if (err) {
        roll_back(dev->vmm);
        return err;
    }
    for (uint64_t i = 0; i < bytes / FRAME; i++)
        give_back(dev, &where->pages[first + i].mem->frames[where->pages[first + i].index]);
    return MB_OK;
}

/* Frames for the sleeping pages of a range; both arrays are the caller's to free. */
static enum mb_err wake_frames(struct mb_device *dev, uint32_t asleep, mb_va **homes, mb_pfn **pfns)
{
    *homes = calloc(asleep ? asleep : 1, sizeof(**homes));
    *pfns = calloc(asleep ? asleep : 1, sizeof(**pfns));
    if (!*homes || !*pfns)
        return mb__fail(MB_ERR_HOST_MEMORY, "no host memory for a list of %u frames", asleep);
    return asleep ? fill_frames(dev, asleep, *homes, *pfns) : MB_OK;
}

static enum mb_err wake_pages(struct mb_device *dev, struct reservation *where, struct page *pages,
                              uint32_t count, const mb_pfn *pfns)
{
    enum mb_err err = MB_OK;

    begin_batch(dev->vmm);
    for (uint32_t i = 0, used = 0; !err && i < count; i++) {
        struct page new = pages[i];

        if (pages[i].state != PAGE_ASLEEP)
            continue;
        new.state = PAGE_MAPPED;
        new.pfn = pfns[used++];
        err = log_change(dev, where, &pages[i], new);
        if (!err)
            err = emit(dev, MB_VM_MAP,
                       mb__va_add(where->va, (uint64_t)(&pages[i] - where->pages) * FRAME), &new);
    }
    return err;
}

static uint32_t count_asleep(const struct page *pages, uint32_t count)
{
    uint32_t asleep = 0;

    for (uint32_t i = 0; i < count; i++)
        asleep += pages[i].state == PAGE_ASLEEP;
    return asleep;
}

/* While frames were waited for, another thread may have changed the range. */
static enum mb_err look_again(struct mb_device *dev, void *va, uint64_t bytes, uint32_t asleep,
                              struct reservation **where, struct page **pages)
{
    enum mb_err err = locate(dev, va, bytes, where);

    if (err)
        return err;
    *pages = &(*where)->pages[((uint64_t)(uintptr_t)va - (*where)->va.addr) / FRAME];
    if (count_asleep(*pages, (uint32_t)(bytes / FRAME)) == asleep)
        return MB_OK;
    return mb__fail(MB_ERR_BUSY, "another thread changed the range at %p during its wake", va);
}

enum mb_err mb__vmm_wake(struct mb_device *dev, void *va, uint64_t bytes, mb_stream native)
{
    uint32_t count = (uint32_t)(bytes / FRAME), asleep, used = 0;
    struct mb__stream *stream;
    struct reservation *where;
    struct page *pages;
    mb_va *homes = NULL;
    mb_pfn *pfns = NULL;
    enum mb_err err = locate(dev, va, bytes, &where);

    if (!err)
        err = mb__stream_get(dev, native, &stream);
    if (err)
        return err;
    pages = &where->pages[((uint64_t)(uintptr_t)va - where->va.addr) / FRAME];
    asleep = count_asleep(pages, count);
    err = wake_frames(dev, asleep, &homes, &pfns);
    if (err)
        goto done;
    begin_batch(dev->vmm);
    err = look_again(dev, va, bytes, asleep, &where, &pages);
    if (!err)
        err = mb__stream_get(dev, native, &stream);
    if (!err)
        err = wake_pages(dev, where, pages, count, pfns);
    if (!err)
        err = submit(dev, stream, false);
    if (err) {
        roll_back(dev->vmm);
        for (uint32_t i = 0; i < asleep; i++)
            (void)mb__free_pfn(dev->vm, OWNER, (struct mb_run){homes[i], pfns[i], 1}, NULL, 0);
        goto done;
    }
    for (uint32_t i = 0; i < count; i++) {
        struct mem_frame *frame = pages[i].mem ? &pages[i].mem->frames[pages[i].index] : NULL;

        if (!frame || frame->home.addr)
            continue;
        frame->home = homes[used];
        frame->pfn = pfns[used++];
        dev->vmm->bytes += FRAME;
    }
    mb__note_usage(dev);
done:
    free(homes);
    free(pfns);
    return err;
}
