/* SPDX-License-Identifier: MIT */
/*
 * home.c - addresses and frames: slabs, mapped by the driver at their home.
 *
 * How       With device tables a slab is one handle. After the driver has mapped it, the frame
 *           numbers are read out of the leaf tables that the proved tree leads to, must be ordinary
 *           leaves of ours, and must agree with what the resource manager says about the memory
 *           object. With driver tables a slab is one handle per frame, as a handle can only be
 *           mapped whole; frame numbers are then made up.
 * Locking   dev->table_lock for lists, figures and the bitmap of owned frames; driver calls are
 *           made outside of it.
 */
#include "hw/cuda/cuda.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "hw/nvrm/query.h"

/* ------------------------------------------------------------ addresses */

enum mb_err mb__cuda_va_reserve(struct mb_hw_dev *hw, uint64_t bytes, uint64_t align, mb_va *out)
{
    struct mb_cuda *dev = mb__cuda(hw);
    struct mb_cuda_scope scope;
    cu_ptr p = 0;
    enum mb_err err;

    if (!bytes || bytes % MB_FRAME_BYTES || align < MB_FRAME_BYTES || (align & (align - 1)))
        return mb__fail(MB_ERR_INVALID,
                        "reserving %" PRIu64 " bytes aligned to %" PRIu64
                        ": both must be multiples of 2 MiB, the alignment a power of two",
                        bytes, align);
    if (bytes > MB_CUDA_VA_BYTES)
        return mb__fail(MB_ERR_NO_ADDRESS,
                        "%" PRIu64 " bytes of addresses; a context has room for %" PRIu64, bytes,
                        MB_CUDA_VA_BYTES);
    err = mb__cuda_enter_relaxed(dev, &scope);
    if (err)
        return err;
    err = mb__cuda_result(dev, dev->cu->reserve(&p, bytes, align, 0, 0), "reserving addresses");
    mb__cuda_leave_relaxed(dev, &scope);
    if (err == MB_ERR_NO_MEMORY)
        return mb__fail(MB_ERR_NO_ADDRESS, "%s", mb_error_detail());
    if (!err)
        *out = mb__va(p);
    return err;
}

enum mb_err mb__cuda_va_release(struct mb_hw_dev *hw, mb_va va, uint64_t bytes)
{
    struct mb_cuda *dev = mb__cuda(hw);
    struct mb_cuda_own_calls own;
    struct mb_cuda_scope scope;
    enum mb_err err = mb__cuda_enter_relaxed(dev, &scope);

    if (err)
        return err;
    mb__cuda_own_begin(&own, NULL);
    err = mb__cuda_result(dev, dev->cu->unreserve(va.addr, bytes), "releasing addresses");
    mb__cuda_own_end(&own);
    mb__cuda_leave_relaxed(dev, &scope);
    return err;
}

/* ------------------------------------------------------------ handles and mappings */

enum mb_err mb__cuda_mem_create(struct mb_cuda *dev, uint64_t bytes, cu_mem *out)
{
    struct cu_mem_prop prop = {
        .type = CU_MEM_TYPE_PINNED,
        .location = {.type = CU_MEM_LOCATION_DEVICE, .id = dev->ordinal},
    };

    return mb__cuda_result(dev, dev->cu->mem_create(out, bytes, &prop, 0),
                           "allocating device memory");
}

enum mb_err mb__cuda_set_access(struct mb_cuda *dev, uint64_t va, uint64_t bytes, int access)
{
    struct cu_mem_access a = {
        .location = {.type = CU_MEM_LOCATION_DEVICE, .id = dev->ordinal},
        .flags = access,
    };

    return mb__cuda_result(dev, dev->cu->mem_access(va, bytes, &a, 1),
                           "giving access to a mapping");
}

enum mb_err mb__cuda_mem_map(struct mb_cuda *dev, uint64_t va, uint64_t bytes, cu_mem handle,
                             struct mb_cuda_map_event *event)
{
    struct mb_cuda_own_calls own;
    enum mb_err err;

    mb__cuda_own_begin(&own, event);
    err = mb__cuda_result(dev, dev->cu->mem_map(va, bytes, 0, handle, 0), "mapping device memory");
    if (!err) {
        err = mb__cuda_set_access(dev, va, bytes, CU_MEM_ACCESS_READ_WRITE);
        if (err)
            (void)dev->cu->mem_unmap(va, bytes);
    }
    mb__cuda_own_end(&own);
    if (!err && event && dev->tables != MB_CUDA_DRIVER && !event->seen) {
        mb__cuda_own_begin(&own, NULL);
        (void)dev->cu->mem_unmap(va, bytes);
        mb__cuda_own_end(&own);
        err = mb__fail(MB_ERR_PROOF, "libcuda mapped memory without a call that could be seen");
    }
    return err;
}

static void unmap(struct mb_cuda *dev, uint64_t va, uint64_t bytes)
{
    struct mb_cuda_own_calls own;

    mb__cuda_own_begin(&own, NULL);
    (void)mb__cuda_result(dev, dev->cu->mem_unmap(va, bytes), "unmapping device memory");
    mb__cuda_own_end(&own);
}

static void release(struct mb_cuda *dev, cu_mem handle)
{
    struct mb_cuda_own_calls own;

    mb__cuda_own_begin(&own, NULL);
    (void)mb__cuda_result(dev, dev->cu->mem_release(handle), "freeing device memory");
    mb__cuda_own_end(&own);
}

/* ------------------------------------------------------------ ownership */

/* table_lock held, or before the frame is known to anyone */
void mb__cuda_own(struct mb_cuda *dev, mb_pfn pfn, bool owned)
{
    __atomic_store_n(&dev->owned[pfn.n / MB_FRAME_PFNS], (uint8_t)owned, __ATOMIC_RELEASE);
}

/* Lowest and highest frame number, and all bits that occur in any. */
struct extent {
    uint32_t low, high, bits;
};

static inline __attribute__((always_inline)) struct extent
extent_of(const mb_pfn *pfns, uint32_t count, struct extent e)
{
    for (uint32_t i = 0; i < count; i++) {
        uint32_t pfn = pfns[i].n;

        e.bits |= pfn;
        e.low = pfn < e.low ? pfn : e.low;
        e.high = pfn > e.high ? pfn : e.high;
    }
    return e;
}

/* Four answers at a time do not wait for each other. */
static inline __attribute__((always_inline)) bool owned_of(const uint8_t *owned, const mb_pfn *pfns,
                                                           uint32_t count)
{
    unsigned good[4] = {1, 1, 1, 1};
    uint32_t i = 0;

    for (; i + 4 <= count; i += 4) {
        good[0] &= owned[pfns[i].n / MB_FRAME_PFNS];
        good[1] &= owned[pfns[i + 1].n / MB_FRAME_PFNS];
        good[2] &= owned[pfns[i + 2].n / MB_FRAME_PFNS];
        good[3] &= owned[pfns[i + 3].n / MB_FRAME_PFNS];
    }
    for (; i < count; i++)
        good[0] &= owned[pfns[i].n / MB_FRAME_PFNS];
    return good[0] & good[1] & good[2] & good[3];
}

#if defined(__x86_64__)
/* Unsigned minima of several numbers at once came with SSE4.1; before, they take one at a time. */
__attribute__((target("avx2"), optimize("O3"))) static struct extent
extent_wide(const mb_pfn *pfns, uint32_t count, struct extent e)
{
    return extent_of(pfns, count, e);
}

/* Eight answers with one instruction, each in the lowest of four bytes. */
__attribute__((target("avx2"))) static bool owned_wide(const uint8_t *owned, const mb_pfn *pfns,
                                                       uint32_t count)
{
    _Static_assert(MB_FRAME_PFNS == 512 && sizeof(mb_pfn) == 4, "the shift below");
    __m256i good = _mm256_set1_epi32(1);
    uint32_t i = 0;

    for (; i + 8 <= count; i += 8) {
        __m256i frame =
            _mm256_srli_epi32(_mm256_loadu_si256((const __m256i *)(const void *)(pfns + i)), 9);

        good = _mm256_and_si256(good,
                                _mm256_i32gather_epi32((const int *)(const void *)owned, frame, 1));
    }
    return _mm256_testc_si256(good, _mm256_set1_epi32(1)) && owned_of(owned, pfns + i, count - i);
}
#endif

__attribute__((optimize("O3"))) static struct extent extent(const mb_pfn *pfns, uint32_t count,
                                                            struct extent e)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2"))
        return extent_wide(pfns, count, e);
#endif
    return extent_of(pfns, count, e);
}

/* On the way of every batch: one pass for the extent, which makes the second one, over the record,
 * safe without a look at each number. */
bool mb__cuda_owns(const struct mb_cuda *dev, const mb_pfn *pfns, uint32_t count,
                   struct mb_cuda_span *span)
{
    struct extent e = extent(pfns, count, (struct extent){UINT32_MAX, 0, 0});

    span->low = e.low < span->low ? e.low : span->low;
    span->high = e.high > span->high ? e.high : span->high;
    if (!count)
        return true;
    if (e.high / MB_FRAME_PFNS >= dev->owned_frames || e.bits % MB_FRAME_PFNS)
        return false;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2"))
        return owned_wide(dev->owned, pfns, count);
#endif
    return owned_of(dev->owned, pfns, count);
}

static mb_pfn slab_pfn(const struct mb_cuda_slab *slab, uint32_t i)
{
    return slab->pfns ? slab->pfns[i] : (mb_pfn){slab->first.n + i * (uint32_t)MB_FRAME_PFNS};
}

/* table_lock held */
static void own_slab(struct mb_cuda *dev, const struct mb_cuda_slab *slab, bool owned)
{
    for (uint32_t i = 0; i < slab->frames; i++)
        mb__cuda_own(dev, slab_pfn(slab, i), owned);
}

/* ------------------------------------------------------------ device tables */

/* What the resource manager says about byte `offset` of the mapping must be what the entry says. */
static enum mb_err cross_check(struct mb_cuda *dev, const struct mb_cuda_map_event *event,
                               uint64_t offset, uint64_t phys)
{
    struct nvrm_owner owner = {.ctl_fd = event->ctl_fd, .client = event->client};
    struct nvrm_surface surface;
    enum mb_err err =
        mb__nvrm_surface(dev->rm, owner, event->memory, event->offset + offset, &surface);

    if (err)
        return err;
    if (!surface.in_vidmem || surface.compressed)
        return mb__fail(MB_ERR_NOT_SUPPORTED, "the driver gave memory that is %s",
                        surface.compressed ? "compressed" : "not video memory");
    if (surface.phys != phys)
        return mb__fail(MB_ERR_PROOF,
                        "byte %" PRIu64 " of a new slab lies at 0x%" PRIx64
                        " by its entry, at 0x%" PRIx64 " by the resource manager",
                        offset, phys, surface.phys);
    return MB_OK;
}

/* Reads the physical addresses of all frames of a mapping from its leaf tables. */
static enum mb_err read_frames(struct mb_cuda *dev, mb_va home, uint32_t frames, uint64_t *phys)
{
    struct mb_cuda_pages *pages = aligned_alloc(64, sizeof(*pages));
    enum mb_err err = MB_OK;
    uint32_t done = 0;

    if (!pages)
        return mb__fail(MB_ERR_HOST_MEMORY, "no memory to read a page table");
    mb__cuda_pages_init(dev, pages);
    while (!err && done < frames) {
        struct mb_cuda_walk walk;
        uint32_t n;

        pages->want_copy = false;
        err = mb__cuda_walk(&dev->space, mb__cuda_pages_reader(pages),
                            home.addr + done * MB_FRAME_BYTES, &walk);
        if (err)
            break;
        n = MB_CUDA_LEAVES - walk.slot;
        if (n > frames - done)
            n = frames - done;
        pages->want_copy = n > 8;
        err = mb__cuda_read_frames(&dev->space, mb__cuda_pages_reader(pages), &walk, walk.slot, n,
                                   phys + done);
        done += n;
    }
    mb__cuda_pages_fini(pages);
    free(pages);
    return err;
}

/* Fills first or pfns from physical addresses, and checks every run against the resource manager.
 * */
static enum mb_err take_frames(struct mb_cuda *dev, struct mb_cuda_slab *slab,
                               const struct mb_cuda_map_event *event, const uint64_t *phys)
{
    bool consecutive = true;

    if (!slab->frames)
        return mb__fail(MB_ERR_INTERNAL, "a slab without frames");

    if (event->base > slab->home.addr || event->base + event->bytes < slab->home.addr + slab->bytes)
        return mb__fail(MB_ERR_PROOF,
                        "libcuda mapped a handle of %" PRIu64
                        " bytes in pieces; only whole handles are understood",
                        slab->bytes);
    for (uint32_t i = 0; i < slab->frames; i++) {
        bool follows = i && phys[i] == phys[i - 1] + MB_FRAME_BYTES;

        if (!follows || i + 1 == slab->frames) {
            enum mb_err err = cross_check(
                dev, event, slab->home.addr - event->base + i * MB_FRAME_BYTES, phys[i]);

            if (err)
                return err;
        }
        consecutive = consecutive && (!i || follows);
    }
    slab->first = mb__pfn_of_phys(phys[0]);
    if (consecutive)
        return MB_OK;
    slab->pfns = malloc(sizeof(*slab->pfns) * slab->frames);
    if (!slab->pfns)
        return mb__fail(MB_ERR_HOST_MEMORY, "no memory for %u frame numbers", slab->frames);
    for (uint32_t i = 0; i < slab->frames; i++)
        slab->pfns[i] = mb__pfn_of_phys(phys[i]);
    return MB_OK;
}

/* What a slab costs, for who asks why a call took long ($MOONBRIGHT_LOG=debug): ends of steps. */
static void tell_cost(const struct mb_cuda_slab *slab, const uint64_t ns[5])
{
    mb__log(MB_LOG_DEBUG, "cuda",
            "slab of %" PRIu64 " MiB, us: allocating %.1f, mapping %.1f, reading its entries %.1f, "
            "asking the resource manager %.1f",
            slab->bytes >> 20, (double)(ns[1] - ns[0]) * 1e-3, (double)(ns[2] - ns[1]) * 1e-3,
            (double)(ns[3] - ns[2]) * 1e-3, (double)(ns[4] - ns[3]) * 1e-3);
}

static enum mb_err acquire_device(struct mb_cuda *dev, struct mb_cuda_slab *slab)
{
    struct mb_cuda_map_event event = {.seen = false};
    uint64_t *phys = calloc(slab->frames, sizeof(*phys)), ns[5] = {mb__now_ns()};
    enum mb_err err;

    if (!phys)
        return mb__fail(MB_ERR_HOST_MEMORY, "no memory for %u frame addresses", slab->frames);
    err = mb__cuda_mem_create(dev, slab->bytes, &slab->handle);
    ns[1] = mb__now_ns();
    if (err)
        goto undo_phys;
    err = mb__cuda_mem_map(dev, slab->home.addr, slab->bytes, slab->handle, &event);
    ns[2] = mb__now_ns();
    if (err)
        goto undo_handle;
    err = read_frames(dev, slab->home, slab->frames, phys);
    ns[3] = mb__now_ns();
    if (!err)
        err = take_frames(dev, slab, &event, phys);
    ns[4] = mb__now_ns();
    if (err)
        goto undo_map;
    tell_cost(slab, ns);
    slab->memory_client = event.client;
    slab->memory = event.memory;
    free(phys);
    return MB_OK;
undo_map:
    unmap(dev, slab->home.addr, slab->bytes);
undo_handle:
    release(dev, slab->handle);
undo_phys:
    free(phys);
    return err;
}

enum mb_err mb__cuda_slab_prove(struct mb_cuda *dev, const struct mb_cuda_slab *slab)
{
    uint64_t *phys = calloc(slab->frames, sizeof(*phys));
    enum mb_err err =
        phys ? read_frames(dev, slab->home, slab->frames, phys)
             : mb__fail(MB_ERR_HOST_MEMORY, "no memory for %u frame addresses", slab->frames);

    for (uint32_t i = 0; phys && !err && i < slab->frames; i++)
        if (phys[i] != mb__phys_of_pfn(slab_pfn(slab, i)))
            err = mb__fail(MB_ERR_PROOF,
                           "the driver moved frame %u of the slab at 0x%" PRIx64 " from 0x%" PRIx64
                           " to 0x%" PRIx64,
                           i, slab->home.addr, mb__phys_of_pfn(slab_pfn(slab, i)), phys[i]);
    free(phys);
    return err;
}

/* ------------------------------------------------------------ driver tables */

/* table_lock held. First of `frames` consecutive unused frame numbers. */
static enum mb_err invent_pfns(struct mb_cuda *dev, uint32_t frames, mb_pfn *out)
{
    uint64_t run = 0;

    for (uint64_t f = 1; f < dev->owned_frames; f++) {
        run = dev->owned[f] ? 0 : run + 1;
        if (run == frames) {
            *out = (mb_pfn){(uint32_t)((f + 1 - frames) * MB_FRAME_PFNS)};
            return MB_OK;
        }
    }
    return mb__fail(MB_ERR_NO_MEMORY, "no room for %u frame numbers", frames);
}

static void drop_handles(struct mb_cuda *dev, struct mb_cuda_slab *slab, uint32_t made,
                         uint32_t mapped)
{
    if (mapped)
        unmap(dev, slab->home.addr, mapped * MB_FRAME_BYTES);
    for (uint32_t i = 0; i < made; i++)
        release(dev, slab->handles[i]);
    free(slab->handles);
    slab->handles = NULL;
}

static enum mb_err acquire_driver(struct mb_cuda *dev, struct mb_cuda_slab *slab)
{
    uint32_t made = 0, mapped = 0;
    enum mb_err err = MB_OK;

    slab->handles = calloc(slab->frames, sizeof(*slab->handles));
    if (!slab->handles)
        return mb__fail(MB_ERR_HOST_MEMORY, "no memory for %u handles", slab->frames);
    while (!err && made < slab->frames) {
        err = mb__cuda_mem_create(dev, MB_FRAME_BYTES, &slab->handles[made]);
        made += !err;
    }
    while (!err && mapped < slab->frames) {
        err = mb__cuda_result(dev,
                              dev->cu->mem_map(slab->home.addr + mapped * MB_FRAME_BYTES,
                                               MB_FRAME_BYTES, 0, slab->handles[mapped], 0),
                              "mapping device memory");
        mapped += !err;
    }
    if (!err)
        err = mb__cuda_set_access(dev, slab->home.addr, slab->bytes, CU_MEM_ACCESS_READ_WRITE);
    if (err)
        drop_handles(dev, slab, made, mapped);
    return err;
}

/* ------------------------------------------------------------ slabs */

static void free_slab(struct mb_cuda_slab *slab)
{
    while (slab->grants) {
        struct mb_cuda_grant *next = slab->grants->next;

        free(slab->grants);
        slab->grants = next;
    }
    free(slab->pfns);
    free(slab);
}

static void give_up(struct mb_cuda *dev, struct mb_cuda_slab *slab)
{
    if (slab->handles) {
        drop_handles(dev, slab, slab->frames, slab->frames);
    } else {
        unmap(dev, slab->home.addr, slab->bytes);
        release(dev, slab->handle);
    }
    free_slab(slab);
}

/* table_lock held: makes the slab known. */
static enum mb_err publish(struct mb_cuda *dev, struct mb_cuda_slab *slab)
{
    if (slab->handles) {
        enum mb_err err = invent_pfns(dev, slab->frames, &slab->first);

        if (err)
            return err;
        for (uint32_t i = 0; i < slab->frames; i++)
            dev->frame_handle[slab->first.n / MB_FRAME_PFNS + i] = slab->handles[i];
    }
    own_slab(dev, slab, true);
    slab->next = dev->slabs;
    dev->slabs = slab;
    return MB_OK;
}

static enum mb_err check_request(struct mb_cuda *dev, uint64_t bytes, mb_va home)
{
    if (!bytes || bytes % MB_FRAME_BYTES || home.addr % MB_FRAME_BYTES ||
        bytes / MB_FRAME_BYTES > UINT32_MAX)
        return mb__fail(MB_ERR_INVALID,
                        "a slab of %" PRIu64 " bytes at 0x%" PRIx64 ": both are multiples of 2 MiB",
                        bytes, home.addr);
    pthread_mutex_lock(&dev->table_lock);
    bool fits = bytes <= dev->limit_bytes && dev->held_bytes <= dev->limit_bytes - bytes;
    if (fits)
        dev->held_bytes += bytes;
    pthread_mutex_unlock(&dev->table_lock);
    if (!fits)
        return mb__fail(MB_ERR_NO_MEMORY,
                        "%" PRIu64 " bytes more would pass the cap of %" PRIu64
                        " bytes set for this device",
                        bytes, dev->limit_bytes);
    return MB_OK;
}

enum mb_err mb__cuda_slab_acquire(struct mb_hw_dev *hw, uint64_t bytes, mb_va home,
                                  struct mb_hw_slab *out)
{
    struct mb_cuda *dev = mb__cuda(hw);
    struct mb_cuda_scope scope;
    struct mb_cuda_slab *slab = NULL;
    enum mb_err err = check_request(dev, bytes, home);

    if (err)
        return err;
    err = mb__cuda_enter_relaxed(dev, &scope);
    if (err)
        goto undo_held;
    slab = calloc(1, sizeof(*slab));
    if (!slab) {
        err = mb__fail(MB_ERR_HOST_MEMORY, "no memory for a slab's record");
        goto undo_scope;
    }
    slab->bytes = bytes;
    slab->home = home;
    slab->frames = (uint32_t)(bytes / MB_FRAME_BYTES);
    err = dev->tables == MB_CUDA_DRIVER ? acquire_driver(dev, slab) : acquire_device(dev, slab);
    if (err) {
        free(slab->pfns);
        free(slab);
        goto undo_scope;
    }
    pthread_mutex_lock(&dev->table_lock);
    err = publish(dev, slab);
    pthread_mutex_unlock(&dev->table_lock);
    if (err) {
        give_up(dev, slab);
        goto undo_scope;
    }
    mb__cuda_leave_relaxed(dev, &scope);
    *out = (struct mb_hw_slab){.first = slab->first,
                               .pfns = slab->pfns,
                               .frames = slab->frames,
                               .home_mapped = true,
                               .home = home,
                               .cookie = (uintptr_t)slab};
    return MB_OK;
undo_scope:
    mb__cuda_leave_relaxed(dev, &scope);
undo_held:
    pthread_mutex_lock(&dev->table_lock);
    dev->held_bytes -= bytes;
    pthread_mutex_unlock(&dev->table_lock);
    return err;
}

/* table_lock held */
static void unlink_slab(struct mb_cuda *dev, const struct mb_cuda_slab *slab)
{
    struct mb_cuda_slab **at = &dev->slabs;

    while (*at != slab)
        at = &(*at)->next;
    *at = slab->next;
}

/* A slab that windows are primed with stays until they go: its memory is then overhead. */
enum mb_err mb__cuda_slab_release(struct mb_hw_dev *hw, struct mb_hw_slab *out)
{
    struct mb_cuda *dev = mb__cuda(hw);
    struct mb_cuda_slab *slab = (struct mb_cuda_slab *)(uintptr_t)out->cookie;
    struct mb_cuda_scope scope;
    bool keep;
    enum mb_err err = mb__cuda_enter_relaxed(dev, &scope);

    if (err)
        return err;
    pthread_mutex_lock(&dev->table_lock);
    own_slab(dev, slab, false);
    for (uint32_t i = 0; slab->handles && i < slab->frames; i++)
        dev->frame_handle[slab->first.n / MB_FRAME_PFNS + i] = 0;
    keep = slab->donor_uses != 0;
    slab->released = keep;
    if (keep) {
        dev->overhead_bytes += slab->bytes;
    } else {
        unlink_slab(dev, slab);
        dev->held_bytes -= slab->bytes;
    }
    pthread_mutex_unlock(&dev->table_lock);
    if (keep)
        unmap(dev, slab->home.addr, slab->bytes);
    else
        give_up(dev, slab);
    mb__cuda_leave_relaxed(dev, &scope);
    memset(out, 0, sizeof(*out));
    return MB_OK;
}

/* Called by window.c when a window primed with the slab has gone. With the last one a released slab
 * goes too; it leaves the list in the same step, or another window could be primed with it. */
void mb__cuda_slab_put(struct mb_cuda *dev, struct mb_cuda_slab *slab)
{
    bool last;

    pthread_mutex_lock(&dev->table_lock);
    last = --slab->donor_uses == 0 && slab->released;
    if (last) {
        unlink_slab(dev, slab);
        dev->held_bytes -= slab->bytes;
        dev->overhead_bytes -= slab->bytes;
    }
    pthread_mutex_unlock(&dev->table_lock);
    if (!last)
        return;
    release(dev, slab->handle);
    free_slab(slab);
}
