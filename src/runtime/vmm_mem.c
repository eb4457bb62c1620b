/* SPDX-License-Identifier: MIT */
/*
 * Memory objects: a list of frames with one count per frame of the pages that show it.
 *
 * An object whose handle was released stays until the last page that shows it is gone; each frame
 * goes back to vm when its own count reaches 0, neighbours together.
 *
 * Locking: the device's lock.
 */
#include "base/err.h"
#include "base/log.h"
#include "runtime/vmm_records.h"

static enum mb_err take_frames(struct mb_device *dev, uint32_t frames, struct mb_run *runs,
                               unsigned *count)
{
    enum mb_err err = mb__alloc_pfn(dev->vm, OWNER, frames, 0, runs, frames, count);

    if (err != MB_ERR_NO_MEMORY && err != MB_ERR_LIMIT)
        return err;
    /* The pools' unused frames serve as well. */
    if (mb__release_others(dev, NULL))
        err = mb__alloc_pfn(dev->vm, OWNER, frames, 0, runs, frames, count);
    if (err != MB_ERR_NO_MEMORY && err != MB_ERR_LIMIT)
        return err;
    /* Frames that drain, what streams have not left yet, and frames under windows that go only
     * then; what the pools release after that has to drain too. The waits drop the lock: others
     * must not stand still for streams that are not theirs. */
    dev->counters.retries++;
    dev->counters.host_waits++;
    if (mb__wait_on_host(dev))
        return err;
    if (mb__release_others(dev, NULL) && mb__wait_on_host(dev))
        return err;
    return mb__alloc_pfn(dev->vm, OWNER, frames, 0, runs, frames, count);
}

enum mb_err mb__mem_frames(struct mb_device *dev, uint32_t frames, mb_va *homes, mb_pfn *pfns)
{
    struct mb_run *runs = malloc(frames * sizeof(*runs));
    unsigned count = 0;
    uint32_t used = 0;
    enum mb_err err;

    if (!runs)
        return mb__fail(MB_ERR_HOST_MEMORY, "no host memory for a list of %u runs", frames);
    err = take_frames(dev, frames, runs, &count);
    for (unsigned i = 0; !err && i < count; i++) {
        if (runs[i].frames == 1)
            pfns[used] = runs[i].pfn;
        else
            err = mb__home_pfns(dev->vm, runs[i].home, runs[i].frames, pfns + used);
        for (uint32_t j = 0; j < runs[i].frames; j++)
            homes[used++] = mb__va_add(runs[i].home, j * FRAME);
    }
    free(runs);
    return err;
}

void mb__mem_give_back(struct mb_device *dev, struct mb_mem *mem, uint32_t first, uint32_t count)
{
    uint32_t end = first + count, at, next;

    for (at = first; at < end; at = next) {
        struct mb_run run = {mem->homes[at], mem->pfns[at], 1};

        next = at + 1;
        if (!run.home.addr)
            continue;
        while (next < end && mem->homes[next].addr == run.home.addr + run.frames * FRAME) {
            next++;
            run.frames++;
        }
        if (mb__free_pfn(dev->vm, OWNER, run, NULL, 0))
            mb__log(MB_LOG_WARN, "runtime", "frames of a memory object: %s", mb_error_detail());
        for (uint32_t i = at; i < next; i++) {
            mem->homes[i] = MB_NO_VA;
            mem->pfns[i] = MB_NO_PFN;
        }
        mem->absent += run.frames;
        dev->vmm->bytes -= run.frames * FRAME;
    }
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

void mb__mems_fini(struct mb_device *dev)
{
    while (dev->vmm->mems) {
        struct mb_mem *mem = dev->vmm->mems;

        dev->vmm->mems = mem->next;
        free(mem);
    }
    mb__map_free(&dev->vmm->by_handle);
}

static struct mb_mem *mem_new(uint64_t frames)
{
    struct mb_mem *mem = calloc(
        1, sizeof(*mem) + frames * (sizeof(*mem->homes) + sizeof(*mem->pfns) + sizeof(*mem->maps)));

    if (!mem)
        return NULL;
    mem->count = (uint32_t)frames;
    mem->pfns = (mb_pfn *)(void *)(mem->homes + frames);
    mem->maps = (uint32_t *)(void *)(mem->pfns + frames);
    return mem;
}

static uint64_t handle_key(const struct mb_mem *mem)
{
    return (uint64_t)(uintptr_t)mem;
}

static enum mb_err no_list(uint64_t frames)
{
    return mb__fail(MB_ERR_HOST_MEMORY, "no host memory for a list of %" PRIu64 " frames", frames);
}

enum mb_err mb__vmm_create(struct mb_device *dev, uint64_t bytes, mb_mem *out)
{
    uint64_t frames = bytes / FRAME + (bytes % FRAME != 0);
    struct mb__vmm *vmm = dev->vmm;
    struct mb_mem *mem;
    enum mb_err err;

    if (!bytes || bytes > dev->hw->caps.total_bytes || frames > PAGE_INDEX)
        return mb__fail(bytes ? MB_ERR_NO_MEMORY : MB_ERR_INVALID,
                        "%" PRIu64 " bytes of memory were asked for; the device has %" PRIu64,
                        bytes, dev->hw->caps.total_bytes);
    mem = mem_new(frames);
    if (!mem)
        return no_list(frames);
    err = mb__mem_frames(dev, mem->count, mem->homes, mem->pfns);
    if (err) {
        free(mem);
        return err;
    }
    /* Known only now: the lock may have been dropped, and the handle be somebody's old one. */
    vmm->bytes += frames * FRAME;
    if (mb__map_put(&vmm->by_handle, handle_key(mem), 1)) {
        mb__mem_give_back(dev, mem, 0, mem->count);
        free(mem);
        return no_list(frames);
    }
    mem->next = vmm->mems;
    if (mem->next)
        mem->next->prev = mem;
    vmm->mems = mem;
    mb__note_usage(dev);
    *out = mem;
    return MB_OK;
}

bool mb__mem_known_slow(const struct mb_device *dev, const struct mb_mem *mem)
{
    struct mb__vmm *vmm = dev->vmm;

    if (!mb__map_get(&vmm->by_handle, handle_key(mem), NULL))
        return false;
    vmm->last_mem = (struct mb_mem *)(uintptr_t)mem;
    return true;
}

enum mb_err mb__vmm_release(struct mb_device *dev, mb_mem mem)
{
    uint32_t next;

    if (!mb__mem_known(dev, mem))
        return mb__fail(MB_ERR_NOT_FOUND, "%p is no memory of this device, or was released before",
                        (void *)mem);
    (void)mb__map_del(&dev->vmm->by_handle, handle_key(mem), NULL);
    dev->vmm->last_mem = NULL;
    mem->released = true;
    for (uint32_t i = 0; i < mem->count; i = next) {
        for (next = i; next < mem->count && !mem->maps[next];)
            next++;
        mb__mem_give_back(dev, mem, i, next - i);
        next += next == i;
    }
    mem_free_if_unused(dev, mem);
    return MB_OK;
}

void mb__mem_let_go(struct mb_device *dev, struct mb_mem *mem, const struct page *pages,
                    uint32_t count)
{
    uint32_t run;

    for (uint32_t i = 0; i < count; i += run) {
        uint32_t first = page_index(&pages[i]);

        for (run = 0; i + run < count && page_index(&pages[i + run]) == first + run &&
                      !mem->maps[first + run];)
            run++;
        mb__mem_give_back(dev, mem, first, run);
        run += !run;
    }
    mem_free_if_unused(dev, mem);
}
