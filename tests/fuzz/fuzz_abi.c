/* SPDX-License-Identifier: MIT */
/*
 * Any bytes as arguments of an ioctl that libcuda makes: the observer must read no byte outside the
 * structure that the request names, follow no pointer before the call, and say nothing of what it
 * cannot know.
 *
 * Input     byte 0: file, moment; byte 1: driver series; bytes 2 to 5: request; the argument
 * structure.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

#include "fuzz.h"
#include "hw/nvrm/observe.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { HEAD = 6 };

/* Bytes that the decoder may read: by UVM's documented structures, or as the request says. */
static size_t argument_bytes(enum nvrm_fd_kind kind, unsigned long request)
{
    if (kind != NVRM_FD_UVM)
        return _IOC_SIZE(request);
    switch (request) {
    case NVRM_UVM_REGISTER_VASPACE:
        return sizeof(struct nvrm_abi_uvm_register_vaspace);
    case NVRM_UVM_UNREGISTER_VASPACE:
        return sizeof(struct nvrm_abi_uvm_unregister_vaspace);
    case NVRM_UVM_REGISTER_CHANNEL:
        return sizeof(struct nvrm_abi_uvm_register_channel);
    case NVRM_UVM_UNREGISTER_CHANNEL:
        return sizeof(struct nvrm_abi_uvm_unregister_channel);
    case NVRM_UVM_MAP_EXTERNAL:
        return sizeof(struct nvrm_abi_uvm_map);
    case NVRM_UVM_UNMAP_EXTERNAL:
        return sizeof(struct nvrm_abi_uvm_unmap);
    case NVRM_UVM_FREE:
        return sizeof(struct nvrm_abi_uvm_range);
    default:
        return 0;
    }
}

static void check(const struct nvrm_observed *seen, enum nvrm_fd_kind kind)
{
    need(seen->fd == 5);
    need((unsigned)seen->kind <= NVRM_SAW_FREE);
    if (kind == NVRM_FD_OTHER)
        need(seen->kind == NVRM_SAW_NOTHING);
    if (seen->kind == NVRM_SAW_EXTERNAL_MAP)
        need(seen->attr_count >= 1 && seen->attr_count <= NVRM_UVM_MAX_GPUS);
    if (seen->kind == NVRM_SAW_ALLOC)
        need(seen->class_id == NVRM_CLASS_DEVICE || seen->class_id == NVRM_CLASS_SUBDEVICE ||
             seen->class_id == NVRM_CLASS_VASPACE);
    if (seen->kind == NVRM_SAW_NOTHING)
        need(!seen->client && !seen->object && !seen->length);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    enum nvrm_fd_kind kind;
    const struct nvrm_series *series;
    struct nvrm_observed seen, again;
    unsigned long request;
    unsigned count = 0;
    uint32_t word;
    size_t bytes;
    uint8_t *argument;

    if (size < HEAD)
        return 0;
    kind = (enum nvrm_fd_kind)(data[0] & 3);
    while (mb__nvrm_series_at(count))
        count++;
    need(count > 0);
    series = data[1] == 0xff ? NULL : mb__nvrm_series_at(data[1] % count);
    memcpy(&word, data + 2, sizeof(word));
    request = word;
    bytes = argument_bytes(kind, request);
    /* A block of just that size, so that ASan sees a read outside. */
    argument = malloc(bytes ? bytes : 1);
    need(argument != NULL);
    memset(argument, 0, bytes ? bytes : 1);
    memcpy(argument, data + HEAD, size - HEAD < bytes ? size - HEAD : bytes);
    /* Before the call nothing may be followed; after it, what the driver has read: here only NULL
     * is. */
    mb__nvrm_observe(series, kind, 5, request, argument, NVRM_BEFORE, &seen);
    check(&seen, kind);
    mb__nvrm_observe(series, kind, 5, request, argument, NVRM_BEFORE, &again);
    need(seen.kind == again.kind && seen.base == again.base && seen.object == again.object);
    mb__nvrm_observe(series, kind, 5, request, NULL, data[0] & 4 ? NVRM_AFTER : NVRM_BEFORE, &seen);
    need(seen.kind == NVRM_SAW_NOTHING || seen.kind == NVRM_SAW_UVM_END);
    free(argument);
    return 0;
}
