/* SPDX-License-Identifier: MIT */
/*
 * host_memory.c - addresses of the host for the KV cache: what a GPU's page tables do there is done
 * here by mmap of shared memory, so a decoder on a CPU sees aliases, copies and read-only blocks as
 * one on a GPU does. Pages may be small, as the models of tests are. A write into a shared block
 * is a segmentation fault. There are no streams: everything has happened when a call returns.
 */
#define _GNU_SOURCE /* memfd_create */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "moonbright_kv.h"

/* Owner: the cache, which frees it when it is closed; until it is open, who had the mapper made. */
struct place {
    uint64_t page;
    bool broken; /* a batch was made in part: what addresses show is not known any more */
};

/* What an mb_mem is here. */
struct file {
    int fd;
};

static _Thread_local char text[256];

static enum mb_err fail(enum mb_err err, const char *what)
{
    snprintf(text, sizeof(text), "%s: %s", what, strerror(errno));
    return err;
}

/* As a device's ranges do, one begins at a multiple of the page: what is around it goes back. */
static enum mb_err reserve(void *user, uint64_t bytes, void **va)
{
    const struct place *place = user;
    uint64_t page = place->page, before;
    char *at =
        mmap(NULL, bytes + page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (at == MAP_FAILED)
        return fail(MB_ERR_NO_ADDRESS, "mmap of a range");
    before = (page - (uint64_t)(uintptr_t)at % page) % page;
    if (before)
        munmap(at, before);
    munmap(at + before + bytes, page - before);
    *va = at + before;
    return MB_OK;
}

static void unreserve(void *user, void *va, uint64_t bytes)
{
    (void)user;
    munmap(va, bytes);
}

static enum mb_err create(void *user, uint64_t bytes, mb_mem *out)
{
    struct file *file = malloc(sizeof(*file));

    (void)user;
    if (!file)
        return fail(MB_ERR_HOST_MEMORY, "malloc");
    file->fd = memfd_create("moonbright-kv", MFD_CLOEXEC);
    if (file->fd < 0 || ftruncate(file->fd, (off_t)bytes)) {
        fail(MB_ERR_NO_MEMORY, "memfd");
        if (file->fd >= 0)
            close(file->fd);
        free(file);
        return MB_ERR_NO_MEMORY;
    }
    *out = (mb_mem)(void *)file;
    return MB_OK;
}

static void release(void *user, mb_mem mem)
{
    struct file *file = (struct file *)(void *)mem;

    (void)user;
    close(file->fd);
    free(file);
}

static bool apply(const struct mb_map_op *op)
{
    int prot = PROT_READ | (op->prot == MB_PROT_READ_WRITE ? PROT_WRITE : 0);
    const struct file *file = (const struct file *)(const void *)op->mem;

    switch (op->kind) {
    case MB_MAP:
        return mmap(op->va, op->bytes, prot, MAP_SHARED | MAP_FIXED, file->fd,
                    (off_t)op->mem_offset) != MAP_FAILED;
    case MB_UNMAP:
        return mmap(op->va, op->bytes, PROT_NONE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != MAP_FAILED ||
               !mprotect(op->va, op->bytes, PROT_NONE); /* mostly needs no room for a mapping */
    case MB_PROTECT:
        return !mprotect(op->va, op->bytes, prot);
    case MB_ALIAS:
        break;
    }
    errno = EINVAL;
    return false;
}

/* Fails only when the kernel has no room for one more mapping. As that leaves a batch half made,
 * nothing is shown from then on, and sequences and the cache can only be closed. What cannot be
 * hidden is no error, or a cache could not be closed: nobody is to look there any more, and ranges
 * are given back whole. */
static enum mb_err map(void *user, const struct mb_map_op *ops, unsigned count, mb_stream stream)
{
    struct place *place = user;

    (void)stream;
    for (unsigned i = 0; place->broken && i < count; i++)
        if (ops[i].kind != MB_UNMAP) {
            snprintf(text, sizeof(text),
                     "mmap failed before, in the middle of a batch; close the "
                     "cache");
            return MB_ERR_HOST_MEMORY;
        }
    for (unsigned i = 0; i < count; i++)
        if (!apply(&ops[i])) {
            place->broken = true;
            if (ops[i].kind != MB_UNMAP)
                return fail(MB_ERR_HOST_MEMORY, "mmap of a block; close the cache");
        }
    return MB_OK;
}

static enum mb_err copy(void *user, const struct mb_copy *list, unsigned count, mb_stream stream)
{
    (void)user;
    (void)stream;
    for (unsigned i = 0; i < count; i++)
        memcpy(list[i].dst, list[i].src, list[i].bytes);
    return MB_OK;
}

static enum mb_err order(void *user, mb_stream from, mb_stream to)
{
    (void)user;
    (void)from;
    (void)to;
    return MB_OK;
}

static const char *detail(void *user)
{
    (void)user;
    return text;
}

static void give_up(void *user)
{
    free(user);
}

/* page_bytes: a multiple of the host's page. */
MB_API enum mb_err mb_kv_host_mapper(uint64_t page_bytes, struct mb_kv_mapper *out);
MB_API enum mb_err mb_kv_host_mapper(uint64_t page_bytes, struct mb_kv_mapper *out)
{
    uint64_t host = (uint64_t)sysconf(_SC_PAGESIZE);
    struct place *place;

    if (!page_bytes || page_bytes % host)
        return MB_ERR_INVALID;
    place = malloc(sizeof(*place));
    if (!place)
        return MB_ERR_HOST_MEMORY;
    *place = (struct place){page_bytes, false};
    *out = (struct mb_kv_mapper){
        .user = place,
        .page_bytes = page_bytes,
        .reserve = reserve,
        .unreserve = unreserve,
        .create = create,
        .release = release,
        .map = map,
        .copy = copy,
        .order = order,
        .detail = detail,
        .close = give_up,
    };
    return MB_OK;
}
