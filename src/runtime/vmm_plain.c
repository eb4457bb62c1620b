/* SPDX-License-Identifier: MIT */
/*
 * Batches that change one stretch of pages in one way, as most do: an operation on a range, a list
 * of operations on its pages one after the other, or one of operations on ranges each of which
 * begins where the one before ends; of maps also behind an unmap of the same range. Then no page is
 * touched twice, so none carries marks, and vm is told one operation that follows from the list and
 * not from the pages.
 *
 *   1. stretch   the first and the last operation say whether the batch may be one; operations on
 *                ranges are looked at one by one
 *   2. fits      pages that must show something do, pages that must be empty are, frames are there
 *   3. submit    vm takes it or not: then nothing has changed
 *   4. settle    records of pages, counts of the frames that they show and of those they showed;
 *                the device is at work meanwhile
 *
 * A batch of a few such stretches that have no page in common, as of sequences that end and begin,
 * goes the same way, as one batch of as many operations.
 *
 * Lists of single pages that get frames, and aliases, are worked out in one loop that makes vm's
 * list as well. So their records change before the batch is submitted; what has to be put back when
 * vm refuses it is saved before.
 *
 * Nothing is refused here but by vm: whatever is wrong, or only unusual (aliases of blocks, pages
 * asleep, devices with access), goes the general way, which has the words for it.
 *
 * Locking: the device's lock.
 * Cost: a loop over the pages' records in step 2 and one or two in step 4, one over the operations.
 */
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "base/err.h"
#include "runtime/access.h"
#include "runtime/vmm_records.h"

enum { STRETCHES = 16 }; /* of a batch, at most: each is compared with each */

/* The batch, as far as it is one. */
struct stretch {
    const struct mb_map_op *ops; /* the caller's, without the unmap that stands before maps */
    unsigned count;              /* of them: 1, or one for each page, or with `ranges` any */
    bool ranges;                 /* operations on ranges, known to be alike and in a row */
    enum mb_map_kind kind;
    enum mb_prot prot; /* unless kind is MB_UNMAP */
    bool over;         /* maps that take the place of what is mapped there */
    struct reservation *where;
    uint32_t first, pages; /* of where */
    uint32_t done;         /* early: pages that were given a frame, whose count is up */
    bool early;            /* records change before the batch is submitted */
    const mb_pfn *pfns;    /* of the pages, for vm: the memory object's own list or mb__vmm.pfns */
};

static uint64_t addr_of(const struct mb_map_op *op)
{
    return (uint64_t)(uintptr_t)op->va;
}

static bool prot_ok(enum mb_prot prot)
{
    return prot == MB_PROT_READ_WRITE || prot == MB_PROT_READ || prot == MB_PROT_NONE;
}

static struct page *pages_of(const struct stretch *s)
{
    return &s->where->pages[s->first];
}

/* How many of the operations, from the first on, do the same on ranges in a row; *bytes: theirs. */
static unsigned in_a_row(const struct mb_map_op *ops, unsigned count, uint64_t *bytes)
{
    unsigned i;

    *bytes = 0;
    for (i = 0; i < count; i++) {
        if (ops[i].kind != ops->kind || addr_of(&ops[i]) != addr_of(ops) + *bytes ||
            !ops[i].bytes || ops[i].bytes % FRAME || ops[i].bytes > UINT64_MAX - *bytes ||
            (ops->kind != MB_UNMAP && ops[i].prot != ops->prot))
            break;
        *bytes += ops[i].bytes;
    }
    return i;
}

/* All that can be said of operations that do the same without a look at pages. */
static bool in_order(const struct mb_map_op *first, uint64_t bytes)
{
    return bytes && (addr_of(first) | bytes) % FRAME == 0 && (unsigned)first->kind <= MB_PROTECT &&
           (first->kind == MB_UNMAP || prot_ok(first->prot));
}

static bool find_pages(struct mb_device *dev, struct stretch *s, uint64_t bytes)
{
    uint64_t addr = addr_of(s->ops);

    s->where = find(dev, addr, bytes);
    if (!s->where)
        return false;
    s->first = (uint32_t)((addr - s->where->va.addr) / FRAME);
    s->pages = (uint32_t)(bytes / FRAME);
    return true;
}

/* Of a list of pages no more than three operations are looked at: the others are compared when they
 * are worked on. */
static bool find_stretch(struct mb_device *dev, const struct mb_map_op *ops, unsigned count,
                         struct stretch *s)
{
    bool over = count > 1 && ops[0].kind == MB_UNMAP && ops[1].kind == MB_MAP;
    const struct mb_map_op *first = ops + over;
    uint64_t bytes, addr;
    bool ranges;

    if (!count || mb__access_any(dev)) /* pages may be open to a peer */
        return false;
    count -= over;
    bytes = count == 1 ? first->bytes : count * FRAME;
    addr = addr_of(first);
    ranges =
        count > 1 && (first->bytes != FRAME || addr_of(&first[count - 1]) != addr + bytes - FRAME);
    if (ranges && (first->kind == MB_ALIAS || in_a_row(first, count, &bytes) < count))
        return false;
    if (over && (ops[0].va != first->va || ops[0].bytes != bytes))
        return false;
    if (!in_order(first, bytes))
        return false;
    *s = (struct stretch){.ops = first,
                          .count = count,
                          .ranges = ranges,
                          .kind = first->kind,
                          .prot = first->prot,
                          .over = over};
    return find_pages(dev, s, bytes);
}

/* Operation `i` of a list does with page `i` what the first one does with the first page. */
static inline bool in_line(const struct stretch *s, unsigned i)
{
    const struct mb_map_op *op = &s->ops[i];

    return op->kind == s->kind && op->bytes == FRAME &&
           addr_of(op) == addr_of(s->ops) + i * FRAME &&
           (s->kind == MB_UNMAP || op->prot == s->prot);
}

/* ------------------------------------------------------------------ fits */

/* All MAPPED, and unless `blocks` none an alias of a block, which would have to be awaited. */
__attribute__((optimize("O3"))) static bool all_mapped(const struct page *pages, uint32_t count,
                                                       bool blocks)
{
    const uint32_t mask = PAGE_STATE | (blocks ? 0 : (uint32_t)PAGE_OF_BLOCK);
    const uint32_t mapped = page_word(PAGE_MAPPED, MB_PROT_NONE);
    uint32_t other = 0;

    for (uint32_t i = 0; i < count; i++)
        other |= (pages[i].word & mask) ^ mapped;
    return !other;
}

__attribute__((optimize("O3"))) static bool all_empty(const struct page *pages, uint32_t count)
{
    uintptr_t owners = 0;

    for (uint32_t i = 0; i < count; i++)
        owners |= (uintptr_t)pages[i].owner;
    return !owners;
}

static bool usable(const struct mb_device *dev, const struct mb_mem *mem)
{
    return mb__mem_known(dev, mem) && !mem->absent;
}

/* The frames of an operation on a range; NULL: they are not all there. */
static const mb_pfn *frames_of(const struct mb_device *dev, const struct mb_map_op *op)
{
    uint64_t index = op->mem_offset / FRAME;

    if (!usable(dev, op->mem) || op->mem_offset % FRAME || index > op->mem->count ||
        op->bytes / FRAME > op->mem->count - index)
        return NULL;
    return op->mem->pfns + index;
}

static bool list_frames(struct mb_device *dev, struct stretch *s)
{
    struct mb__vmm *vmm = dev->vmm;

    if (s->count == 1) {
        s->pfns = frames_of(dev, s->ops);
        return s->pfns;
    }
    if (!MB_VEC_RESERVE(&vmm->pfns, vmm->pfns.count + s->pages))
        return false;
    s->pfns = vmm->pfns.data + vmm->pfns.count;
    for (unsigned i = 0; i < s->count; i++) {
        uint32_t count = (uint32_t)(s->ops[i].bytes / FRAME);
        const mb_pfn *pfns = frames_of(dev, &s->ops[i]);

        if (!pfns)
            return false;
        memcpy(vmm->pfns.data + vmm->pfns.count, pfns, count * sizeof(*pfns));
        vmm->pfns.count += count;
    }
    return true;
}

static bool all_in_line(const struct stretch *s)
{
    for (unsigned i = 0; s->count > 1 && !s->ranges && i < s->count; i++)
        if (!in_line(s, i))
            return false;
    return true;
}

static bool fits(struct mb_device *dev, struct stretch *s)
{
    const struct page *pages = pages_of(s);
    bool good = s->kind == MB_MAP && !s->over ? all_empty(pages, s->pages)
                                              : all_mapped(pages, s->pages, s->kind == MB_PROTECT);

    return good && (s->kind == MB_MAP ? list_frames(dev, s) : all_in_line(s));
}

/* ------------------------------------------------------------------ settle */

/* Counts of what pages showed before go down. */
static void let_go(struct mb_device *dev, const struct page *old, uint32_t count)
{
    for (uint32_t i = 0, from; i < count;) {
        struct mb_mem *mem = old[i].owner;
        uint32_t *maps = mem->maps;

        for (from = i; i < count && old[i].owner == mem; i++)
            maps[page_index(&old[i])]--;
        mem->shown -= i - from;
        if (mem->released)
            mb__mem_let_go(dev, mem, old + from, i - from);
    }
}

/* Counts of the frames that an operation on a range shows go up. */
__attribute__((optimize("O3"))) static void count_up(const struct mb_map_op *op)
{
    uint32_t *maps = op->mem->maps + op->mem_offset / FRAME;
    uint32_t count = (uint32_t)(op->bytes / FRAME);

    for (uint32_t i = 0; i < count; i++)
        maps[i]++;
    op->mem->shown += count;
}

/* Four pages from four frames, a store for each; compilers make three. Returns how many. */
static uint32_t fill_fours(struct page *restrict pages, const mb_pfn *restrict pfns, uint32_t count,
                           struct mb_mem *mem, uint32_t word)
{
    uint32_t i = 0;
#if defined(__SSE2__)
    const __m128i owner = _mm_set1_epi64x((long long)(uintptr_t)mem);
    __m128i words = _mm_add_epi32(_mm_set1_epi32((int)word), _mm_setr_epi32(0, 1, 2, 3));

    _Static_assert(sizeof(struct page) == sizeof(__m128i), "a page is one store");
    for (; i + 4 <= count; i += 4) {
        __m128i frames = _mm_loadu_si128((const __m128i *)(const void *)(pfns + i));
        __m128i low = _mm_unpacklo_epi32(words, frames), high = _mm_unpackhi_epi32(words, frames);
        __m128i *to = (__m128i *)(void *)(pages + i);

        _mm_storeu_si128(to, _mm_unpacklo_epi64(owner, low));
        _mm_storeu_si128(to + 1, _mm_unpackhi_epi64(owner, low));
        _mm_storeu_si128(to + 2, _mm_unpacklo_epi64(owner, high));
        _mm_storeu_si128(to + 3, _mm_unpackhi_epi64(owner, high));
        words = _mm_add_epi32(words, _mm_set1_epi32(4));
    }
#else
    (void)pages, (void)pfns, (void)count, (void)mem, (void)word;
#endif
    return i;
}

static void fill_pages(struct page *restrict pages, const mb_pfn *restrict pfns, uint32_t count,
                       struct mb_mem *mem, uint32_t word)
{
    for (uint32_t i = fill_fours(pages, pfns, count, mem, word); i < count; i++)
        pages[i] = (struct page){mem, word + i, pfns[i]};
}

/* Up, then down: a frame that merely moves is never let go. */
static void settle_maps(struct mb_device *dev, const struct stretch *s)
{
    struct page *pages = pages_of(s);
    const mb_pfn *pfns = s->pfns;

    for (unsigned i = 0; i < s->count; i++)
        count_up(&s->ops[i]);
    if (s->over)
        let_go(dev, pages, s->pages);
    for (unsigned i = 0; i < s->count; i++) {
        uint32_t count = (uint32_t)(s->ops[i].bytes / FRAME);
        uint32_t first = (uint32_t)(s->ops[i].mem_offset / FRAME);

        fill_pages(pages, pfns, count, s->ops[i].mem, page_word(PAGE_MAPPED, s->prot) | first);
        pages += count;
        pfns += count;
    }
}

__attribute__((optimize("O3"))) static void protect_pages(struct page *pages, uint32_t count,
                                                          uint32_t prot_word)
{
    for (uint32_t i = 0; i < count; i++)
        pages[i].word = (pages[i].word & ~PAGE_PROT) | prot_word;
}

static void settle_rest(struct mb_device *dev, const struct stretch *s)
{
    struct page *pages = pages_of(s);

    if (s->kind == MB_UNMAP) {
        let_go(dev, pages, s->pages);
        memset(pages, 0, s->pages * sizeof(*pages));
    } else {
        protect_pages(pages, s->pages, page_word(PAGE_EMPTY, s->prot));
    }
}

static void settle_all(struct mb_device *dev, const struct stretch *list, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        if (list[i].kind == MB_MAP)
            settle_maps(dev, &list[i]);
    for (unsigned i = 0; i < count; i++)
        if (list[i].kind != MB_MAP)
            settle_rest(dev, &list[i]);
}

/* ------------------------------------------------------------------ early */

/* Must the pages be empty? Then nothing has to be saved. */
static bool from_empty(const struct stretch *s)
{
    return (s->kind == MB_MAP && !s->over) || s->kind == MB_ALIAS;
}

static bool prepare(struct mb__vmm *vmm, const struct stretch *s)
{
    if (!MB_VEC_RESERVE(&vmm->pfns, s->pages))
        return false;
    if (from_empty(s))
        return MB_VEC_PUSH(&vmm->log, ((struct change){s->where, s->first, s->pages, true}));
    return all_mapped(pages_of(s), s->pages, false) &&
           !mb__batch_note(vmm, s->where, s->first, s->pages);
}

/* Operations from s->done on, as long as they map frames of this object. */
static void map_frames(struct stretch *s, struct mb_mem *mem, mb_pfn *list)
{
    const uint32_t word = page_word(PAGE_MAPPED, s->prot), frames = mem->count;
    const mb_pfn *pfns = mem->pfns;
    struct page *pages = pages_of(s);
    uint32_t *maps = mem->maps, i;

    for (i = s->done; i < s->count; i++) {
        uint64_t offset = s->ops[i].mem_offset, index = offset / FRAME;

        if (s->ops[i].mem != mem || !in_line(s, i) || offset % FRAME || index >= frames ||
            (pages[i].owner && !s->over))
            break;
        list[i] = pfns[index];
        pages[i] = (struct page){mem, word | (uint32_t)index, pfns[index]};
        maps[index]++;
    }
    mem->shown += i - s->done;
    s->done = i;
}

static bool map_list(struct mb_device *dev, struct stretch *s)
{
    mb_pfn *list = dev->vmm->pfns.data;
    uint32_t before;

    s->pfns = list;
    do {
        before = s->done;
        if (!usable(dev, s->ops[before].mem))
            return false;
        map_frames(s, s->ops[before].mem, list);
    } while (s->done > before && s->done < s->pages);
    return s->done == s->pages;
}

/* Shows a memory object's frame that is mapped at `from`? Aliases of blocks are not. */
static inline bool shows_frame(const struct page *from)
{
    return (from->word & (PAGE_STATE | (uint32_t)PAGE_OF_BLOCK)) ==
           page_word(PAGE_MAPPED, MB_PROT_NONE);
}

static inline bool may_alias(const struct page *page, const struct page *from)
{
    return !page->owner && shows_frame(from);
}

static inline void show_too(struct page *page, const struct page *from, uint32_t prot_word,
                            uint32_t *maps)
{
    *page = (struct page){from->owner, (from->word & ~PAGE_PROT) | prot_word, from->pfn};
    maps[page_index(from)]++;
}

/* One by one: a page that the operation made may be the source of a later one. */
static bool alias_range(struct mb_device *dev, struct stretch *s)
{
    uint64_t src = (uint64_t)(uintptr_t)s->ops->src;
    struct reservation *where =
        src % FRAME ? NULL : find_near(dev, src, s->pages * FRAME, &dev->vmm->last_source);
    const uint32_t prot_word = page_word(PAGE_EMPTY, s->prot);
    mb_pfn *list = dev->vmm->pfns.data;
    struct page *pages = pages_of(s);
    const struct page *from = where ? &where->pages[(src - where->va.addr) / FRAME] : NULL;

    s->pfns = list;
    for (uint32_t i = 0; from && i < s->pages && may_alias(&pages[i], &from[i]); s->done = i) {
        struct mb_mem *mem = from[i].owner;
        uint32_t *maps = mem->maps;

        for (; i < s->pages && from[i].owner == mem && may_alias(&pages[i], &from[i]); i++) {
            list[i] = from[i].pfn;
            show_too(&pages[i], &from[i], prot_word, maps);
        }
        mem->shown += i - s->done;
    }
    return s->done == s->pages;
}

static bool alias_list(struct mb_device *dev, struct stretch *s)
{
    const uint32_t prot_word = page_word(PAGE_EMPTY, s->prot);
    mb_pfn *list = dev->vmm->pfns.data;
    struct page *pages = pages_of(s);

    s->pfns = list;
    for (; s->done < s->pages; s->done++) {
        uint64_t src = (uint64_t)(uintptr_t)s->ops[s->done].src;
        struct reservation *where = find_near(dev, src, FRAME, &dev->vmm->last_source);
        const struct page *from;
        struct mb_mem *mem;

        if (!where || src % FRAME || !in_line(s, s->done))
            return false;
        from = &where->pages[(src - where->va.addr) / FRAME];
        if (!may_alias(&pages[s->done], from))
            return false;
        mem = from->owner;
        list[s->done] = from->pfn;
        show_too(&pages[s->done], from, prot_word, mem->maps);
        mem->shown++;
    }
    return true;
}

static bool change(struct mb_device *dev, struct stretch *s)
{
    if (s->kind == MB_MAP)
        return map_list(dev, s);
    return s->count == 1 ? alias_range(dev, s) : alias_list(dev, s);
}

static void put_back(struct mb__vmm *vmm, const struct stretch *s)
{
    const struct page *pages = pages_of(s);

    for (uint32_t i = 0; i < s->done; i++) {
        struct mb_mem *mem = pages[i].owner;

        mem->maps[page_index(&pages[i])]--;
        mem->shown--;
    }
    if (from_empty(s)) /* those behind are as they were */
        vmm->log.data[0].count = s->done;
    mb__batch_undo(vmm);
}

/* ------------------------------------------------------------------ submission */

static struct mb_vm_op vm_op(const struct mb_device *dev, const struct stretch *s)
{
    static const enum mb_vm_op_kind kinds[] = {[MB_MAP] = MB_VM_MAP,
                                               [MB_UNMAP] = MB_VM_UNMAP,
                                               [MB_ALIAS] = MB_VM_MAP,
                                               [MB_PROTECT] = MB_VM_PROTECT};

    return (struct mb_vm_op){.kind = kinds[s->kind],
                             .prot = s->prot,
                             .cap = mb__owner_cap(dev->vm, OWNER),
                             .va = mb__va_add(s->where->va, s->first * FRAME),
                             .frames = s->pages,
                             .pfns = s->pfns};
}

static enum mb_err submit(struct mb_device *dev, const struct stretch *list, unsigned count,
                          struct mb__stream *stream, bool host)
{
    struct mb__vmm *vmm = dev->vmm;
    struct mb_vm_op ops[STRETCHES];
    struct mb_hw_fence fence = {0};
    enum mb_err err;

    for (unsigned i = 0; i < count; i++)
        ops[i] = vm_op(dev, &list[i]);
    err = mb__pte_pop(dev->vm, stream->hw, ops, count, &fence);
    if (err && list->early)
        put_back(vmm, list);
    if (err)
        return err;
    dev->generation++;
    for (unsigned i = 0; i < count; i++)
        list[i].where->generation = dev->generation;
    if (list->early)
        let_go(dev, vmm->saved.data, (uint32_t)vmm->saved.count);
    else
        settle_all(dev, list, count);
    MB_VEC_CLEAR(&vmm->log);
    return host ? mb__batch_wait(dev, fence) : MB_OK;
}

static bool change_early(struct mb_device *dev, struct stretch *s)
{
    if (!prepare(dev->vmm, s))
        return false;
    if (change(dev, s))
        return true;
    put_back(dev->vmm, s);
    return false;
}

/* ------------------------------------------------------------------ several */

/* Have two of the stretches a page in common? */
static bool overlap(const struct stretch *list, unsigned count)
{
    for (unsigned i = 1; i < count; i++)
        for (unsigned k = 0; k < i; k++)
            if (list[i].where == list[k].where && list[i].first < list[k].first + list[k].pages &&
                list[k].first < list[i].first + list[i].pages)
                return true;
    return false;
}

/* Returns how many stretches the batch is made of; 0: of anything else, or of too many. */
static unsigned find_several(struct mb_device *dev, const struct mb_map_op *ops, unsigned count,
                             struct stretch *list)
{
    unsigned found = 0;
    size_t pages = 0;

    if (mb__access_any(dev))
        return 0;
    for (unsigned at = 0, part; at < count; at += part) {
        struct stretch *s = &list[found];
        uint64_t bytes;

        part = in_a_row(ops + at, count - at, &bytes);
        if (found == STRETCHES || ops[at].kind == MB_ALIAS || !in_order(&ops[at], bytes))
            return 0;
        *s = (struct stretch){.ops = ops + at,
                              .count = part,
                              .ranges = true,
                              .kind = ops[at].kind,
                              .prot = ops[at].prot};
        if (!find_pages(dev, s, bytes))
            return 0;
        pages += s->pages;
        found++;
    }
    /* At once, as each keeps a pointer to its part. */
    if (overlap(list, found) || !MB_VEC_RESERVE(&dev->vmm->pfns, pages))
        return 0;
    for (unsigned i = 0; i < found; i++)
        if (!fits(dev, &list[i]))
            return 0;
    return found;
}

bool mb__batch_plain(struct mb_device *dev, const struct mb_map_op *ops, unsigned count,
                     struct mb__stream *stream, bool host, enum mb_err *err)
{
    struct stretch list[STRETCHES];
    unsigned found = 1;

    if (find_stretch(dev, ops, count, list)) {
        list->early =
            list->kind == MB_ALIAS || (list->kind == MB_MAP && list->count > 1 && !list->ranges);
        if (!(list->early ? change_early(dev, list) : fits(dev, list)))
            return false;
    } else {
        found = find_several(dev, ops, count, list);
    }
    if (!found)
        return false;
    *err = submit(dev, list, found, stream, host);
    return true;
}
