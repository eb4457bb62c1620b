/* SPDX-License-Identifier: MIT */
/*
 * discover.c - from "a CUDA context" to "the leaf tables that we may write", by reading alone.
 *
 * Order     own client and checks -> what libcuda registered -> two small mappings of our own, the
 *           anchors -> view of device memory -> instance blocks of libcuda's channels -> page
 *           directory -> walk -> proof. Whatever differs ends it with the reason; up to the end
 *           nothing was written.
 */
#include "hw/cuda/cuda.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/log.h"
#include "hw/cuda/late.h"
#include "hw/nvrm/checks.h"
#include "hw/nvrm/query.h"

static enum mb_err open_client(struct mb_cuda *dev)
{
    struct nvrm_client_request request = {.select = NVRM_BY_UUID};
    struct nvrm_check results[NVRM_CHECK_COUNT];
    enum mb_err err;

    memcpy(request.uuid, dev->uuid, sizeof(request.uuid));
    err = mb__nvrm_client_open(&request, &dev->rm);
    if (err)
        return err;
    err = mb__nvrm_checks_run(dev->rm, dev->force, results);
    for (unsigned i = 0; i < NVRM_CHECK_COUNT; i++) {
        if (results[i].text[0])
            mb__log(MB_LOG_DEBUG, "cuda", "check %s: %s", mb__nvrm_check_name(i), results[i].text);
    }
    return err;
}

/* The anchors: a poison frame and the page of shared words, in the first two slots of a piece of
 * address space of their own. */
static enum mb_err map_anchors(struct mb_cuda *dev, struct mb_cuda_map_event event[2])
{
    cu_mem *handle[2] = {&dev->poison, &dev->shared};
    mb_va va;
    enum mb_err err =
        mb__cuda_va_reserve(&dev->base, MB_CUDA_PIECE_BYTES, MB_CUDA_PIECE_BYTES, &va);

    if (err)
        return err;
    dev->control_va = va.addr;
    for (unsigned i = 0; i < 2; i++) {
        err = mb__cuda_mem_create(dev, MB_FRAME_BYTES, handle[i]);
        if (err)
            return err;
        err = mb__cuda_mem_map(dev, va.addr + i * MB_FRAME_BYTES, MB_FRAME_BYTES, *handle[i],
                               &event[i]);
        if (err) {
            (void)dev->cu->mem_release(*handle[i]);
            *handle[i] = 0;
            return err;
        }
        dev->control_memory[i] = event[i].memory;
    }
    dev->overhead_bytes += 2 * MB_FRAME_BYTES;
    return mb__cuda_result(dev, dev->cu->memset8(va.addr, 0, 2 * MB_FRAME_BYTES),
                           "clearing the shared page");
}

static enum mb_err anchor_phys(struct mb_cuda *dev, const struct mb_cuda_map_event *event,
                               uint64_t *phys)
{
    struct nvrm_owner owner = {.ctl_fd = event->ctl_fd, .client = event->client};
    struct nvrm_surface surface;
    enum mb_err err = mb__nvrm_surface(dev->rm, owner, event->memory, event->offset, &surface);

    if (err)
        return err;
    if (!surface.in_vidmem || surface.compressed || event->bytes != MB_FRAME_BYTES)
        return mb__fail(MB_ERR_NOT_SUPPORTED, "the driver gave memory that is %s",
                        surface.compressed  ? "compressed"
                        : surface.in_vidmem ? "not mapped as a whole"
                                            : "not video memory");
    *phys = surface.phys;
    return MB_OK;
}

/* Words 128 and 129 of one channel's instance block. */
static enum mb_err read_instance(struct mb_cuda *dev, nvrm_handle channel, struct mb_cuda_inst *out)
{
    struct nvrm_owner owner = {.ctl_fd = dev->seen.ctl_fd, .client = dev->seen.client};
    struct nvrm_instance instance;
    struct nvrm_cpu_map map = {.addr = NULL};
    const volatile uint32_t *words;
    enum mb_err err =
        mb__nvrm_channel_instance(dev->rm, owner, dev->seen.subdevice, channel, &instance);

    if (err)
        return err;
    if (!instance.in_vidmem || instance.phys % 4096 || instance.phys >= dev->phys->bytes)
        return mb__fail(MB_ERR_NOT_SUPPORTED,
                        "the instance block of channel 0x%x is not a page of video memory",
                        channel);
    err = mb__nvrm_phys_view_cpu(dev->phys, instance.phys, NVRM_CPU_READ_ONLY, &map);
    if (err)
        return err;
    words = map.addr;
    *out = (struct mb_cuda_inst){.channel = channel, .word128 = words[128], .word129 = words[129]};
    mb__nvrm_cpu_unmap(dev->rm, &map);
    return MB_OK;
}

static enum mb_err find_pdb(struct mb_cuda *dev)
{
    struct mb_cuda_inst inst[MB_SEEN_CHANNELS];
    unsigned count = 0;
    enum mb_err err = MB_OK;

    if (!dev->seen.subdevice)
        return mb__fail(MB_ERR_PROOF, "libcuda's subdevice object was not seen");
    for (unsigned i = 0; !err && i < dev->seen.channels; i++) {
        err = read_instance(dev, dev->seen.channel[i], &inst[count]);
        count += !err;
    }
    if (err)
        return err;
    dev->space = (struct mb_cuda_space){
        .fmt = dev->rm->arch->mmu == NVRM_MMU_V3 ? MB_FMT_GMMU_V3 : MB_FMT_GMMU_V2,
        .kind = NVRM_KIND_GENERIC,
        .memory_bytes = dev->phys->bytes,
    };
    return mb__cuda_agree_pdb(inst, count, dev->space.memory_bytes, &dev->space.pdb);
}

static enum mb_err prove(struct mb_cuda *dev, const struct mb_cuda_map_event event[2])
{
    struct mb_cuda_pages *pages = aligned_alloc(64, sizeof(*pages));
    uint64_t *phys = malloc(sizeof(*phys) * MB_CUDA_LEAVES);
    struct mb_cuda_walk walk;
    enum mb_err err = MB_OK;

    if (!pages || !phys) {
        err = mb__fail(MB_ERR_HOST_MEMORY, "no memory for a proof");
        goto done;
    }
    for (unsigned i = 0; i < MB_CUDA_LEAVES; i++)
        phys[i] = MB_CUDA_EMPTY;
    for (unsigned i = 0; !err && i < 2; i++) {
        err = anchor_phys(dev, &event[i], &phys[i]);
        dev->control_phys[i] = phys[i];
    }
    if (err)
        goto done;
    mb__cuda_pages_init(dev, pages);
    err = mb__cuda_walk(&dev->space, mb__cuda_pages_reader(pages), dev->control_va, &walk);
    pages->want_copy = true;
    if (!err)
        err = mb__cuda_prove_table(&dev->space, mb__cuda_pages_reader(pages), &walk, phys);
    mb__cuda_pages_fini(pages);
    if (err)
        goto done;
    dev->control_table = walk.table[walk.levels - 1];
    dev->poison_pfn = mb__pfn_of_phys(phys[0]);
    mb__log(MB_LOG_DEBUG, "cuda",
            "proved: page directory 0x%" PRIx64 ", leaf table 0x%" PRIx64 " of va 0x%" PRIx64,
            dev->space.pdb, dev->control_table, dev->control_va);
done:
    free(pages);
    free(phys);
    return err;
}

/* What libcuda was seen to make, or what the resource manager says about it. Both if libcuda was
 * initialised before MoonBright (cuInit makes the device and the subdevice), its context after. */
static enum mb_err find_seen(struct mb_cuda *dev, const struct mb_cuda_map_event *event)
{
    bool unseen = mb__cuda_observed(dev->uuid, &dev->seen) != MB_OK;
    struct mb_cuda_seen late;
    enum mb_err err;

    if (!unseen && dev->seen.subdevice)
        return MB_OK;
    err = mb__cuda_find_late(dev->rm, dev->uuid, event, &late);
    if (err)
        return err;
    if (unseen) {
        dev->seen = late;
        mb__cuda_observe_late(&dev->seen);
        return MB_OK;
    }
    dev->seen.device = late.device;
    dev->seen.subdevice = late.subdevice;
    return MB_OK;
}

enum mb_err mb__cuda_discover(struct mb_cuda *dev)
{
    struct mb_cuda_map_event event[2] = {{.seen = false}, {.seen = false}};
    enum mb_err err = open_client(dev);

    if (!err)
        err = map_anchors(dev, event);
    if (!err)
        err = find_seen(dev, &event[0]);
    if (!err && dev->seen.mps)
        err = mb__fail(MB_ERR_NOT_SUPPORTED, "the process is a client of MPS");
    if (!err && event[0].client != dev->seen.client)
        err = mb__fail(MB_ERR_PROOF,
                       "libcuda mapped memory as client 0x%x, but registered the "
                       "address space as client 0x%x",
                       event[0].client, dev->seen.client);
    if (!err)
        err = mb__nvrm_phys_create(dev->rm, &dev->phys);
    if (!err)
        err = find_pdb(dev);
    if (!err)
        err = prove(dev, event);
    if (!err) {
        dev->attr = event[0].attr;
        dev->uvm_fd = event[0].uvm_fd;
    }
    return err;
}

void mb__cuda_discover_undo(struct mb_cuda *dev)
{
    cu_mem *handle[2] = {&dev->poison, &dev->shared};
    struct mb_cuda_own_calls own;

    mb__nvrm_mem_destroy(&dev->shared_rm);
    mb__cuda_pages_drop(dev);
    mb__nvrm_phys_destroy(&dev->phys);
    mb__nvrm_vas_destroy(&dev->vas);
    mb__nvrm_client_close(&dev->rm);
    mb__cuda_own_begin(&own, NULL);
    for (unsigned i = 0; i < 2; i++) {
        if (!*handle[i])
            continue;
        (void)dev->cu->mem_unmap(dev->control_va + i * MB_FRAME_BYTES, MB_FRAME_BYTES);
        (void)dev->cu->mem_release(*handle[i]);
        *handle[i] = 0;
    }
    if (dev->control_va)
        (void)dev->cu->unreserve(dev->control_va, MB_CUDA_PIECE_BYTES);
    mb__cuda_own_end(&own);
    dev->control_va = 0;
    dev->overhead_bytes = 0;
}
