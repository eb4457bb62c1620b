/* SPDX-License-Identifier: MIT */
/*
 * Batches of map, unmap, alias and protect: any number of operations in any order. Most batches are
 * one stretch of pages and need not come here: vmm_plain.c.
 *
 * A batch is worked out on the host first. An alias shows whatever frame its source page
 * shows: of a memory object, whose count it raises, or of a block of malloc, which it pins: freeing
 * the block then takes effect when the last alias is gone.
 *
 *   1. work    every operation changes the pages' records; what they held before is saved
 *   2. emit    the pages, not the operations, say what vm is told: where a page was touched twice
 *              the last word counts, and operations of single pages in any order become runs
 *   3. submit  vm takes all or nothing; an error anywhere puts the saved records back
 *   4. commit  counts go up for what is shown now, then down for what was shown before: a frame
 *              that merely moves is never let go
 *
 * Locking: the device's lock.
 * Cost: a few passes over 16 bytes a page, and four bytes for each frame's number and count.
 */
#include "base/err.h"
#include "runtime/access.h"
#include "runtime/vmm_records.h"

enum {
    FEW = 8,    /* changes of the log that are emitted as they stand there */
    SPREAD = 4, /* more are emitted in the order of addresses, if at most so many pages for each one
                   touched have to be looked at */
};

static enum mb_err check_pages(uint64_t value, const char *what)
{
    if (value % FRAME)
        return mb__fail(MB_ERR_INVALID, "%s 0x%" PRIx64 " is no multiple of the page, 0x%" PRIx64,
                        what, value, FRAME);
    return MB_OK;
}

/* ------------------------------------------------------------------ the log */

void mb__batch_begin(struct mb__vmm *vmm)
{
    MB_VEC_CLEAR(&vmm->log);
    MB_VEC_CLEAR(&vmm->saved);
    MB_VEC_CLEAR(&vmm->ops);
    MB_VEC_CLEAR(&vmm->pfns);
    vmm->changed = 0;
}

static enum mb_err no_room(const struct mb__vmm *vmm)
{
    return mb__fail(MB_ERR_HOST_MEMORY, "no host memory for a batch of %zu pages", vmm->changed);
}

static inline enum mb_err log_change(struct mb__vmm *vmm, struct change change)
{
    struct change *last = vmm->log.count ? &vmm->log.data[vmm->log.count - 1] : NULL;

    if (last && last->where == change.where && last->empty == change.empty &&
        last->first + last->count == change.first)
        last->count += change.count;
    else if (!MB_VEC_PUSH(&vmm->log, change))
        return no_room(vmm);
    vmm->changed += change.count;
    return MB_OK;
}

static inline enum mb_err note(struct mb__vmm *vmm, struct reservation *where, uint32_t first,
                               uint32_t count)
{
    struct page *old;
    enum mb_err err;

    if (!MB_VEC_RESERVE(&vmm->saved, vmm->saved.count + count))
        return no_room(vmm);
    err = log_change(vmm, (struct change){where, first, count, false});
    if (err)
        return err;
    old = vmm->saved.data + vmm->saved.count;
    vmm->saved.count += count;
    if (count == 1)
        *old = where->pages[first];
    else
        memcpy(old, &where->pages[first], count * sizeof(*old));
    return MB_OK;
}

/* Takes the last page out of the log, unchanged since. */
static void unlog_page(struct mb__vmm *vmm)
{
    struct change *last = vmm->log.data + vmm->log.count - 1;

    vmm->changed--;
    vmm->saved.count -= !last->empty;
    if (!--last->count)
        vmm->log.count--;
}

enum mb_err mb__batch_note(struct mb__vmm *vmm, struct reservation *where, uint32_t first,
                           uint32_t count)
{
    return note(vmm, where, first, count);
}

void mb__batch_undo(struct mb__vmm *vmm)
{
    size_t saved = vmm->saved.count;

    for (size_t i = vmm->log.count; i-- > 0;) {
        const struct change *change = &vmm->log.data[i];
        struct page *pages = &change->where->pages[change->first];

        if (change->empty) {
            memset(pages, 0, change->count * sizeof(*pages));
            continue;
        }
        saved -= change->count;
        memcpy(pages, &vmm->saved.data[saved], change->count * sizeof(*pages));
    }
    MB_VEC_CLEAR(&vmm->log);
}

/* ------------------------------------------------------------------ working out */

/* Where an operation works. */
struct place {
    struct reservation *where;
    uint32_t first, count; /* pages */
};

static uint64_t page_addr(const struct place *at, uint32_t page)
{
    return at->where->va.addr + page * FRAME;
}

static enum mb_err already(const struct place *at, uint32_t page)
{
    return mb__fail(MB_ERR_MAPPED, "page 0x%" PRIx64 " is %s already; unmap it first",
                    page_addr(at, page),
                    page_state(&at->where->pages[page]) == PAGE_ASLEEP ? "asleep" : "mapped");
}

/* Logs pages that are to be empty. */
static enum mb_err note_empty(struct mb_device *dev, const struct place *at, uint32_t page,
                              uint32_t count)
{
    uint32_t words = 0;

    for (uint32_t i = 0; i < count; i++) {
        if (at->where->pages[page + i].owner)
            return already(at, page + i);
        words |= at->where->pages[page + i].word;
    }
    if (words) /* unmapped by this batch */
        return note(dev->vmm, at->where, page, count);
    return log_change(dev->vmm, (struct change){at->where, page, count, true});
}

static enum mb_err work_map(struct mb_device *dev, const struct mb_map_op *op,
                            const struct place *at)
{
    uint32_t index = (uint32_t)(op->mem_offset / FRAME);
    uint32_t word = page_word(PAGE_MAPPED, op->prot) | PAGE_MOVED;
    const mb_pfn *pfns = op->mem->pfns + index;
    struct page *pages = &at->where->pages[at->first];
    enum mb_err err;

    for (uint32_t i = 0; op->mem->absent && i < at->count; i++)
        if (!op->mem->homes[index + i].addr)
            return mb__fail(MB_ERR_NOT_MAPPED,
                            op->mem->maps[index + i]
                                ? "page %u of the memory is asleep; wake it first"
                                : "page %u of the memory was unmapped asleep and has no frame any "
                                  "more; create other memory",
                            index + i);
    err = note_empty(dev, at, at->first, at->count);
    for (uint32_t i = 0; !err && i < at->count; i++)
        pages[i] = (struct page){op->mem, word | (index + i) | next_marks(pages[i].word), pfns[i]};
    return err;
}

/* The block that holds src. Its pins are counted when the batch has been submitted; until then the
 * mark keeps the warm path, which takes no lock, from giving it to somebody else. */
struct mb__block *mb__block_to_show(struct mb_device *dev, uint64_t src)
{
    struct mb__block *block = mb__block_holding(dev, src);

    return block && mb__block_hold(block) ? block : NULL;
}

/* Aliases up to `most` pages of the block that holds src; *count: how many. */
static enum mb_err alias_block(struct mb_device *dev, uint64_t src, enum mb_prot prot,
                               const struct place *at, uint32_t page, uint32_t most,
                               uint32_t *count)
{
    struct mb__block *block = mb__block_to_show(dev, src);
    uint32_t word = page_word(PAGE_MAPPED, prot) | (uint32_t)PAGE_OF_BLOCK | PAGE_MOVED;
    uint64_t whole = block ? (mb__block_end(block) - src) / FRAME : 0;
    struct page *pages = &at->where->pages[page];
    enum mb_err err;

    if (!whole)
        return mb__fail(MB_ERR_NOT_FOUND,
                        "source page 0x%" PRIx64 " lies neither in a mapping nor wholly in a block",
                        src);
    *count = whole < most ? (uint32_t)whole : most;
    if (!MB_VEC_RESERVE(&dev->vmm->found, *count))
        return mb__fail(MB_ERR_HOST_MEMORY, "no host memory for a list of %u frames", *count);
    mb__vm_lookup_run(dev->vm, mb__va(src), *count, dev->vmm->found.data);
    err = note_empty(dev, at, page, *count);
    for (uint32_t i = 0; !err && i < *count; i++)
        pages[i] = (struct page){block, word | next_marks(pages[i].word), dev->vmm->found.data[i]};
    return err;
}

/* The page at `src` becomes one more view of what `from` shows. */
static inline bool alias_page(struct page *page, const struct page *from, uint32_t prot_word)
{
    if (page->owner || page_state(from) != PAGE_MAPPED)
        return false;
    *page = (struct page){from->owner,
                          (from->word & ~(PAGE_MARKS | PAGE_PROT)) | prot_word | PAGE_MOVED |
                              next_marks(page->word),
                          from->pfn};
    return true;
}

static enum mb_err work_alias(struct mb_device *dev, const struct mb_map_op *op,
                              const struct place *at)
{
    uint64_t src = (uint64_t)(uintptr_t)op->src;
    uint32_t part = 0, prot_word = page_word(PAGE_EMPTY, op->prot);
    enum mb_err err = MB_OK;

    for (uint32_t i = 0; !err && i < at->count; i += part, src += part * FRAME) {
        struct reservation *from = find_near(dev, src, FRAME, &dev->vmm->last_source);
        uint32_t left = at->count - i, page = at->first + i, source;

        if (!from) {
            err = alias_block(dev, src, op->prot, at, page, left, &part);
            continue;
        }
        source = (uint32_t)((src - from->va.addr) / FRAME);
        part = from->count - source < left ? from->count - source : left;
        err = note(dev->vmm, at->where, page, part);
        /* One by one: a page that this operation made may be the source of a later one. */
        for (uint32_t k = 0; !err && k < part; k++) {
            if (alias_page(&at->where->pages[page + k], &from->pages[source + k], prot_word))
                continue;
            err = at->where->pages[page + k].owner
                      ? already(at, page + k)
                      : mb__fail(MB_ERR_NOT_MAPPED, "source page 0x%" PRIx64 " is not mapped",
                                 src + k * FRAME);
        }
    }
    return err;
}

static inline void change_page(struct page *page, bool unmap, uint32_t prot_word)
{
    uint32_t marks = next_marks(page->word);

    if (unmap)
        *page = (struct page){.word = marks};
    else
        page->word = (page->word & ~(PAGE_MARKS | PAGE_PROT)) | prot_word | marks;
}

static enum mb_err work_change(struct mb_device *dev, const struct mb_map_op *op,
                               const struct place *at)
{
    uint32_t prot_word = op->kind == MB_PROTECT ? page_word(PAGE_EMPTY, op->prot) : 0;
    struct page *pages = &at->where->pages[at->first];
    enum mb_err err;

    for (uint32_t i = 0; i < at->count; i++)
        if (!pages[i].owner)
            return mb__fail(MB_ERR_NOT_MAPPED, "page 0x%" PRIx64 " is not mapped",
                            page_addr(at, at->first + i));
    err = note(dev->vmm, at->where, at->first, at->count);
    for (uint32_t i = 0; !err && i < at->count; i++)
        change_page(&pages[i], op->kind == MB_UNMAP, prot_word);
    return err;
}

static enum mb_err check_mem(struct mb_device *dev, const struct mb_map_op *op)
{
    uint64_t bytes;
    enum mb_err err;

    if (!mb__mem_known(dev, op->mem))
        return mb__fail(MB_ERR_NOT_FOUND, "%p is no memory of this device", (void *)op->mem);
    bytes = op->mem->count * FRAME;
    err = check_pages(op->mem_offset, "offset");
    if (!err && (op->mem_offset > bytes || op->bytes > bytes - op->mem_offset))
        err = mb__fail(MB_ERR_INVALID,
                       "%" PRIu64 " bytes from %" PRIu64 " leave the memory of %" PRIu64, op->bytes,
                       op->mem_offset, bytes);
    return err;
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
    return err || op->kind != MB_MAP ? err : check_mem(dev, op);
}

static enum mb_err work_op(struct mb_device *dev, const struct mb_map_op *op)
{
    uint64_t addr = (uint64_t)(uintptr_t)op->va;
    struct place at;
    enum mb_err err = check_op(dev, op);

    if (err)
        return err;
    at.where = find(dev, addr, op->bytes);
    if (!at.where)
        return mb__fail(MB_ERR_NOT_FOUND,
                        "[%p, +%" PRIu64 ") does not lie in one range of mb_mem_reserve()", op->va,
                        op->bytes);
    at.first = (uint32_t)((addr - at.where->va.addr) / FRAME);
    at.count = (uint32_t)(op->bytes / FRAME);
    if (op->kind == MB_UNMAP)
        err = mb__access_closed(dev, addr, op->bytes);
    if (err)
        return err;
    if (op->kind == MB_MAP)
        return work_map(dev, op, &at);
    return op->kind == MB_ALIAS ? work_alias(dev, op, &at) : work_change(dev, op, &at);
}

static inline bool prot_ok(enum mb_prot prot)
{
    return prot == MB_PROT_READ_WRITE || prot == MB_PROT_READ || prot == MB_PROT_NONE;
}

/* One page of an operation that is known to be in order but for its source. */
static inline bool work_page(struct mb__vmm *vmm, const struct mb_map_op *op, struct page *page)
{
    uint32_t prot_word = page_word(PAGE_EMPTY, op->prot);

    if (op->kind == MB_MAP) {
        struct mb_mem *mem = op->mem;
        uint64_t index = op->mem_offset / FRAME;

        if (page->owner || mem != vmm->last_mem || !mem || mem->absent || index >= mem->count)
            return false;
        *page = (struct page){mem,
                              page_word(PAGE_MAPPED, op->prot) | (uint32_t)index | PAGE_MOVED |
                                  next_marks(page->word),
                              mem->pfns[index]};
        return true;
    }
    if (op->kind == MB_ALIAS) {
        struct reservation *from = vmm->last_source;
        uint64_t offset = from ? (uint64_t)(uintptr_t)op->src - from->va.addr : 0;

        return from && offset / FRAME < from->count &&
               alias_page(page, &from->pages[offset / FRAME], prot_word);
    }
    if (!page->owner)
        return false;
    change_page(page, op->kind == MB_UNMAP, prot_word);
    return true;
}

/* A list of single pages, as random frames come: what work_op() does for each, as long as the
 * reservation, the object and the source are those of the operation before. Stops before the first
 * that is anything else, a wrong one included; returns how many it did. */
static unsigned work_pages(struct mb__vmm *vmm, const struct mb_map_op *ops, unsigned count)
{
    struct reservation *where = vmm->last;
    unsigned done = 0;

    for (; where && done < count; done++) {
        const struct mb_map_op *op = &ops[done];
        uint64_t offset = (uint64_t)(uintptr_t)op->va - where->va.addr;
        uint64_t other = op->kind == MB_MAP     ? op->mem_offset
                         : op->kind == MB_ALIAS ? (uint64_t)(uintptr_t)op->src
                                                : 0;
        uint32_t page = (uint32_t)(offset / FRAME);
        enum mb_err err;

        if (op->bytes != FRAME || (unsigned)op->kind > MB_PROTECT || (offset | other) % FRAME ||
            offset / FRAME >= where->count || (op->kind != MB_UNMAP && !prot_ok(op->prot)))
            break;
        err = !where->pages[page].owner && !where->pages[page].word
                  ? log_change(vmm, (struct change){where, page, 1, true})
                  : note(vmm, where, page, 1);
        if (err)
            break;
        if (!work_page(vmm, op, &where->pages[page])) {
            unlog_page(vmm);
            break;
        }
    }
    return done;
}

/* ------------------------------------------------------------------ what vm is told */

enum { NOTHING = -1 };

/* What a touched page needs of vm, by its word. */
static int kind_of(uint32_t word)
{
    if ((word & PAGE_STATE) == (uint32_t)PAGE_MAPPED << PAGE_STATE_SHIFT)
        return word & PAGE_MOVED ? MB_VM_MAP : MB_VM_PROTECT;
    return word & PAGE_WAS ? MB_VM_UNMAP : NOTHING;
}

/* Takes the marks off a stretch of pages that need the same and lists their frames behind the
 * others, where there is room; returns its length. */
static uint32_t take_stretch(struct page *page, uint32_t most, mb_pfn *pfns)
{
    const uint32_t mask = PAGE_STATE | PAGE_PROT | PAGE_MARKS | (uint32_t)PAGE_OF_BLOCK;
    const uint32_t same = page->word & mask;
    const void *block = page_block(page);
    uint32_t n = 0;

    do {
        pfns[n] = page[n].pfn;
        page[n].word &= ~PAGE_MARKS;
        n++;
    } while (n < most && (page[n].word & mask) == same && (!block || page[n].owner == block));
    return n;
}

static enum mb_err add_op(struct mb__vmm *vmm, struct mb_vm_op op)
{
    struct mb_vm_op *last = vmm->ops.count ? &vmm->ops.data[vmm->ops.count - 1] : NULL;

    if (last && last->kind == op.kind && last->cap == op.cap &&
        (op.kind == MB_VM_UNMAP || last->prot == op.prot) &&
        last->va.addr + last->frames * FRAME == op.va.addr) {
        last->frames += op.frames;
        return MB_OK;
    }
    if (MB_VEC_PUSH(&vmm->ops, op))
        return MB_OK;
    return mb__fail(MB_ERR_HOST_MEMORY, "no host memory for a batch of %zu operations",
                    vmm->ops.count);
}

/* For whom the page's frame is named in an entry. */
static uint64_t cap_of(const struct mb_device *dev, const struct page *page)
{
    const struct mb__block *block = page_block(page);

    return mb__owner_cap(dev->vm, block ? block->pool->id : OWNER);
}

static enum mb_err emit_pages(struct mb_device *dev, struct reservation *where, uint32_t first,
                              uint32_t count)
{
    struct mb__vmm *vmm = dev->vmm;
    uint32_t end = first + count;
    enum mb_err err = MB_OK;

    while (!err && first < end) {
        struct page *page = &where->pages[first];
        uint32_t word = page->word, stretch;
        int kind = kind_of(word);

        if (!(word & PAGE_TOUCHED)) {
            first++;
            continue;
        }
        stretch = take_stretch(page, end - first, vmm->pfns.data + vmm->pfns.count);
        if (kind == MB_VM_MAP)
            vmm->pfns.count += stretch;
        if (kind != NOTHING)
            err = add_op(vmm, (struct mb_vm_op){
                                  .kind = (enum mb_vm_op_kind)kind,
                                  .prot = (enum mb_prot)((word & PAGE_PROT) >> PAGE_PROT_SHIFT),
                                  .cap = kind == MB_VM_MAP ? cap_of(dev, page) : 0,
                                  .va = mb__va_add(where->va, first * FRAME),
                                  .frames = stretch});
        first += stretch;
    }
    return err;
}

/* Are the batch's pages of one reservation, and close to each other? Then they lie in [*low,
 * *high). */
static bool is_dense(const struct mb__vmm *vmm, uint32_t *low, uint32_t *high)
{
    const struct change *change = vmm->log.data, *end = change + vmm->log.count;
    struct reservation *where = change->where;
    uint32_t least = UINT32_MAX, most = 0;

    for (; change < end; change++) {
        if (change->where != where)
            return false;
        least = change->first < least ? change->first : least;
        most = change->first + change->count > most ? change->first + change->count : most;
    }
    *low = least;
    *high = most;
    return most - least <= SPREAD * vmm->changed;
}

static enum mb_err emit(struct mb_device *dev)
{
    struct mb__vmm *vmm = dev->vmm;
    uint32_t low, high;
    enum mb_err err = MB_OK;

    if (!vmm->log.count)
        return MB_OK;
    if (!MB_VEC_RESERVE(&vmm->pfns, vmm->changed))
        return no_room(vmm);
    if (vmm->log.count > FEW && is_dense(vmm, &low, &high))
        return emit_pages(dev, vmm->log.data[0].where, low, high - low);
    for (size_t i = 0; !err && i < vmm->log.count; i++)
        err =
            emit_pages(dev, vmm->log.data[i].where, vmm->log.data[i].first, vmm->log.data[i].count);
    return err;
}

/* ------------------------------------------------------------------ submission */

/* Was this page saved before the batch changed it the first time? */
static inline bool is_first(const struct page *old)
{
    return !(old->word & PAGE_TOUCHED);
}

/* Do all these pages show now, or sleep over, what they did before? Then no count changes: so it is
 * with a protect, a sleep and a wake. */
static bool all_stay(const struct page *now, const struct page *old, uint32_t count)
{
    uintptr_t owners = 0;
    uint32_t words = 0;

    for (uint32_t i = 0; i < count; i++) {
        owners |= (uintptr_t)now[i].owner ^ (uintptr_t)old[i].owner;
        words |= now[i].word ^ old[i].word;
    }
    return !owners && !(words & (PAGE_INDEX | (uint32_t)PAGE_OF_BLOCK));
}

/* Raises the counts of what pages show now, once for each page. `old` NULL: each stands in the log
 * for the first time. */
static inline void ref_pages(const struct page *page, const struct page *old, uint32_t count)
{
    for (uint32_t i = 0, next; i < count; i = next) {
        struct mb__block *block = page_block(&page[i]);
        struct mb_mem *mem = page_mem(&page[i]);
        uint32_t *maps = mem ? mem->maps : NULL;
        uint32_t refs = 0;

        for (next = i; next < count && page[next].owner == page[i].owner; next++) {
            uint32_t one = !old || is_first(&old[next]);

            refs += one;
            if (maps)
                maps[page_index(&page[next])] += one;
        }
        if (mem)
            mem->shown += refs;
        if (block)
            __atomic_store_n(&block->pins, block->pins + refs, __ATOMIC_RELAXED);
    }
}

/* Lowers the counts of what pages showed before the batch. */
static void unref_pages(struct mb_device *dev, const struct page *old, uint32_t count)
{
    for (uint32_t i = 0, next; i < count; i = next) {
        struct mb__block *block = page_block(&old[i]);
        struct mb_mem *mem = page_mem(&old[i]);
        uint32_t *maps, refs = 0;

        next = i + 1;
        if (!is_first(&old[i])) /* its object may have gone with a page before */
            continue;
        maps = mem ? mem->maps : NULL;
        for (next = i; next < count && old[next].owner == old[i].owner; next++) {
            uint32_t one = is_first(&old[next]);

            refs += one;
            if (maps)
                maps[page_index(&old[next])] -= one;
        }
        if (mem)
            mem->shown -= refs;
        if (mem && mem->released)
            mb__mem_let_go(dev, mem, old + i, next - i);
        if (block)
            mb__block_unpin(dev, block, refs);
    }
}

/* Counts of what the batch's pages showed go down, in stretches between those that stay. */
static void unref_all(struct mb_device *dev)
{
    struct mb__vmm *vmm = dev->vmm;
    const struct change *change = vmm->log.data, *end = change + vmm->log.count;
    const struct page *old = vmm->saved.data, *from = old;

    for (; change < end; change++) {
        if (change->empty)
            continue;
        if (all_stay(&change->where->pages[change->first], old, change->count)) {
            unref_pages(dev, from, (uint32_t)(old - from));
            from = old + change->count;
        }
        old += change->count;
    }
    unref_pages(dev, from, (uint32_t)(old - from));
}

static void commit(struct mb_device *dev)
{
    struct mb__vmm *vmm = dev->vmm;
    const struct change *change = vmm->log.data, *end = change + vmm->log.count;
    const struct page *old = vmm->saved.data;
    uint64_t generation = ++dev->generation;

    for (; change < end; change++) {
        const struct page *now = &change->where->pages[change->first];

        change->where->generation = generation;
        if (change->empty) {
            ref_pages(now, NULL, change->count);
            continue;
        }
        if (!all_stay(now, old, change->count))
            ref_pages(now, old, change->count);
        old += change->count;
    }
    unref_all(dev);
    MB_VEC_CLEAR(&vmm->log);
}

/* Blocks whose aliases go are used until the stream is here. A batch that fails afterwards leaves
 * them with an order more, which only costs time. */
static enum mb_err await_unmaps(const struct mb__vmm *vmm, struct mb__stream *stream)
{
    const struct page *old = vmm->saved.data;
    const struct mb__block *last = NULL;
    enum mb_err err = MB_OK;
    uint32_t words = 0;

    for (size_t i = 0; i < vmm->saved.count; i++)
        words |= old[i].word;
    if (!(words & (uint32_t)PAGE_OF_BLOCK))
        return MB_OK;
    for (size_t i = 0; !err && i < vmm->log.count; i++) {
        const struct change *change = &vmm->log.data[i];
        const struct page *now = &change->where->pages[change->first];

        for (uint32_t k = 0; !change->empty && !err && k < change->count; k++, old++, now++) {
            struct mb__block *block = page_block(old);

            if (!block || block == last || !is_first(old) || now->owner == block)
                continue;
            err = mb__block_await(block, stream);
            last = block;
        }
    }
    return err;
}

enum mb_err mb__batch_wait(struct mb_device *dev, struct mb_hw_fence fence)
{
    enum mb_err err;

    mb__unlock(&dev->lock);
    err = dev->hw->ops->fence_wait_host(dev->hw, fence, 0);
    if (err)
        err = dev->hw->ops->device_sync(dev->hw);
    mb__lock(&dev->lock);
    if (err)
        return mb__fail_in(err, "the pages have changed in the order of the device, but it is not "
                                "known when it is there");
    return MB_OK;
}

enum mb_err mb__batch_end(struct mb_device *dev, struct mb__stream *stream, bool host)
{
    struct mb__vmm *vmm = dev->vmm;
    struct mb_hw_fence fence = {0};
    const mb_pfn *pfns;
    enum mb_err err = emit(dev);

    if (!err && !host)
        err = await_unmaps(vmm, stream);
    if (err)
        return err;
    pfns = vmm->pfns.data;
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
    return host && vmm->ops.count ? mb__batch_wait(dev, fence) : MB_OK;
}

enum mb_err mb__vmm_apply(struct mb_device *dev, const struct mb_map_op *ops, unsigned count,
                          bool host, mb_stream native)
{
    struct mb__stream *stream = dev->own;
    enum mb_err err = host ? MB_OK : mb__not_captured(dev, native);

    if (!err && !host)
        err = mb__stream_get(dev, native, &stream);
    mb__batch_begin(dev->vmm);
    if (!err && mb__batch_plain(dev, ops, count, stream, host, &err))
        goto done;
    mb__batch_begin(dev->vmm);
    for (unsigned i = 0; !err && i < count; i++) {
        err = work_op(dev, &ops[i]);
        if (err)
            mb__fail_in(err, "operation %u of %u", i, count);
        else if (!mb__access_any(dev)) /* else each may be open to a peer */
            i += work_pages(dev->vmm, ops + i + 1, count - i - 1);
    }
    if (!err)
        err = mb__batch_end(dev, stream, host);
    if (err)
        mb__batch_undo(dev->vmm);
done:
    mb__note_held(dev);
    return err;
}
