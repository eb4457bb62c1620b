/* SPDX-License-Identifier: MIT */
/* nvrm_fake_gpu.c - the copy engine of nvrm_fake.h: runs the words of a push buffer. A FAKE. */
#include <string.h>

#include "nvrm_fake.h"

struct decoder {
    uint64_t semaphore_va, semaphore_value, src, dst;
    uint32_t length, mem_op[4];
};

static bool semaphore(struct nvrm_fake *f, const struct decoder *d, uint32_t execute)
{
    uint64_t *word = nvrm_fake_at(f, d->semaphore_va, 8);

    if (!word) {
        f->bad_words++;
        return true;
    }
    if ((execute & 7) == 1) {
        f->releases++;
        f->waiting_releases += execute >> 20 & 1;
        *word = d->semaphore_value;
        return true;
    }
    f->acquires++;
    return execute >> 24 & 1 ? (int64_t)(*word - d->semaphore_value) >= 0
                             : (int32_t)((uint32_t)*word - (uint32_t)d->semaphore_value) >= 0;
}

/* False: the channel is blocked at this method. */
static bool method(struct nvrm_fake *f, struct decoder *d, unsigned address, uint32_t value)
{
    switch (address) {
    case 0x00:
        return true;
    case 0x28:
    case 0x2c:
    case 0x30:
        d->mem_op[(address - 0x28) / 4] = value;
        return true;
    case 0x34:
        d->mem_op[3] = value;
        f->membars += value >> 27 == 5;
        if (value >> 27 == 9 || value >> 27 == 10) {
            f->invalidates++;
            memcpy(f->last_invalidate, d->mem_op, sizeof d->mem_op);
        }
        return true;
    case 0x5c:
        d->semaphore_va = (d->semaphore_va & ~0xffffffffull) | value;
        return true;
    case 0x60:
        d->semaphore_va = (d->semaphore_va & 0xffffffff) | (uint64_t)value << 32;
        return true;
    case 0x64:
        d->semaphore_value = (d->semaphore_value & ~0xffffffffull) | value;
        return true;
    case 0x68:
        d->semaphore_value = (d->semaphore_value & 0xffffffff) | (uint64_t)value << 32;
        return true;
    case 0x6c:
        return semaphore(f, d, value);
    case 0x78:
        f->wfis++;
        return true;
    case 0x400:
        d->src = (d->src & 0xffffffff) | (uint64_t)value << 32;
        return true;
    case 0x404:
        d->src = (d->src & ~0xffffffffull) | value;
        return true;
    case 0x408:
        d->dst = (d->dst & 0xffffffff) | (uint64_t)value << 32;
        return true;
    case 0x40c:
        d->dst = (d->dst & ~0xffffffffull) | value;
        return true;
    case 0x418:
        d->length = value;
        return true;
    case 0x300: {
        void *to = nvrm_fake_at(f, d->dst, d->length);
        void *from = nvrm_fake_at(f, d->src, d->length);
        f->copies++;
        if (to && from)
            memmove(to, from, d->length);
        else
            f->bad_words++;
        return true;
    }
    default:
        f->bad_words++;
        return true;
    }
}

/* One ring entry; false: blocked, nothing of it counts as done. A blocked entry is run again from
 * its start, so tests put an acquire first in a segment. */
static bool entry(struct nvrm_fake *f, uint64_t value)
{
    uint64_t va = value & 0xfffffffffcull;
    uint32_t words = (uint32_t)(value >> 42) & 0x1fffff;
    const uint32_t *w = nvrm_fake_at(f, va, (uint64_t)words * 4);
    struct decoder d = {0};

    if (!w || !(value >> 41 & 1)) {
        f->bad_words++;
        return true;
    }
    for (uint32_t i = 0; i < words;) {
        uint32_t header = w[i++], count = header >> 16 & 0x1fff, address = (header & 0xfff) << 2;
        if (header >> 29 != 1 || i + count > words) {
            f->bad_words++;
            return true;
        }
        for (uint32_t k = 0; k < count; k++, address += 4)
            if (!method(f, &d, address, w[i++]))
                return false;
    }
    return true;
}

static void run_channel(struct nvrm_fake *f, struct fake_object *ch)
{
    struct fake_object *userd = nvrm_fake_object(f, ch->userd_memory);
    const uint64_t *ring = nvrm_fake_at(f, ch->ring_va, (uint64_t)ch->entries * 8);
    unsigned ran = 0;

    if (!userd || !ring)
        return;
    uint32_t put = *(uint32_t *)(void *)(userd->bytes + ch->userd_offset + 0x8c);
    f->blocked = false;
    while (ch->get != put && (!f->run_limit || ran++ < f->run_limit)) {
        if (!entry(f, ring[ch->get])) {
            f->blocked = true;
            return;
        }
        ch->get = (ch->get + 1) % ch->entries;
    }
}

void nvrm_fake_gpu_run(struct nvrm_fake *f)
{
    for (unsigned i = 0; !f->frozen && i < FAKE_OBJECTS; i++)
        if (f->objects[i].live && f->objects[i].entries && f->objects[i].scheduled)
            run_channel(f, &f->objects[i]);
}

void nvrm_fake_gpu_fault(struct nvrm_fake *f, uint32_t code)
{
    for (unsigned i = 0; i < FAKE_OBJECTS; i++) {
        struct fake_object *o =
            f->objects[i].live ? nvrm_fake_object(f, f->objects[i].notifier) : NULL;
        if (!f->objects[i].entries || !o)
            continue;
        *(struct nvrm_abi_notification *)(void *)o->bytes =
            (struct nvrm_abi_notification){.time_low = 7,
                                           .info32 = code,
                                           .info16 = (uint16_t)f->objects[i].engine,
                                           .status = 0xffff};
        f->objects[i].scheduled = false;
    }
}
