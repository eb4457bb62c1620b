/* SPDX-License-Identifier: MIT */
/* late.c - see late.h. */
#include "hw/cuda/late.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"

#define CMD_HANDLE_INFO 0xd02u /* on the root client */

enum { ASK_PARENT = 1, ASK_CLASS = 2, HANDLES = 1024 };

struct handle_info {
    nvrm_handle object; /* in */
    uint32_t index;     /* in: ASK_* */
    uint64_t result;    /* out */
};
_Static_assert(sizeof(struct handle_info) == 16, "part of the ABI");

static uint32_t ask(struct nvrm_client *rm, const struct mb_cuda_map_event *event,
                    nvrm_handle object, uint32_t index)
{
    struct handle_info info = {.object = object, .index = index};

    if (mb__nvrm_control_on(rm, event->ctl_fd, event->client, event->client, CMD_HANDLE_INFO, &info,
                            sizeof(info)))
        return 0;
    return (uint32_t)info.result;
}

/* Is `object` below `ancestor`? Parents outside the window end the search. */
static bool below(nvrm_handle first, const nvrm_handle *parents, unsigned count, nvrm_handle object,
                  nvrm_handle ancestor)
{
    for (unsigned depth = 0; depth < 8; depth++) {
        if (object == ancestor)
            return true;
        if (object < first || object - first >= count)
            return false;
        object = parents[object - first];
    }
    return false;
}

enum mb_err mb__cuda_pick_late(nvrm_handle first, const uint32_t *classes,
                               const nvrm_handle *parents, unsigned count, uint32_t channel_class,
                               nvrm_handle device, struct mb_cuda_seen *out)
{
    struct mb_cuda_seen seen = {.late = true, .device = device};

    for (unsigned i = 0; i < count && seen.device; i++) {
        nvrm_handle h = first + i;

        if (classes[i] == NVRM_CLASS_SUBDEVICE && parents[i] == seen.device && !seen.subdevice)
            seen.subdevice = h;
        else if (classes[i] == channel_class && seen.channels < MB_SEEN_CHANNELS &&
                 below(first, parents, count, h, seen.device))
            seen.channel[seen.channels++] = h;
    }
    if (!seen.device || !seen.subdevice || !seen.channels)
        return mb__fail(MB_ERR_NOT_SUPPORTED,
                        "libcuda was initialised before MoonBright, and its %s could not be found "
                        "afterwards; load MoonBright before the first CUDA call",
                        !seen.device      ? "device"
                        : !seen.subdevice ? "subdevice"
                                          : "channels");
    *out = seen;
    return MB_OK;
}

enum mb_err mb__cuda_find_late(struct nvrm_client *rm, const uint8_t uuid[NVRM_UUID_BYTES],
                               const struct mb_cuda_map_event *event, struct mb_cuda_seen *out)
{
    nvrm_handle first = event->memory & ~(nvrm_handle)0xffff;
    uint32_t *classes = calloc(HANDLES, sizeof(*classes));
    nvrm_handle *parents = calloc(HANDLES, sizeof(*parents));
    struct mb_cuda_seen seen;
    enum mb_err err = MB_OK;

    if (!classes || !parents) {
        err = mb__fail(MB_ERR_HOST_MEMORY, "no memory to look for libcuda's objects");
        goto done;
    }
    for (unsigned i = 0; i < HANDLES; i++) {
        classes[i] = ask(rm, event, first + i, ASK_CLASS);
        if (classes[i])
            parents[i] = ask(rm, event, first + i, ASK_PARENT);
    }
    err = mb__cuda_pick_late(first, classes, parents, HANDLES, rm->arch->channel_class,
                             ask(rm, event, event->memory, ASK_PARENT), &seen);
    if (err)
        goto done;
    memcpy(seen.uuid, uuid, NVRM_UUID_BYTES);
    seen.uvm_fd = event->uvm_fd;
    seen.ctl_fd = event->ctl_fd;
    seen.client = event->client;
    *out = seen;
done:
    free(classes);
    free(parents);
    return err;
}
