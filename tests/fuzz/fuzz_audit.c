/* SPDX-License-Identifier: MIT */
/*
 * Any bytes as an audit log: read to its end or refused with a text; what is read is in order. Bit
 * i of the first byte says whether record 8k + i gets the right checksum, so that the fuzzer comes
 * past it.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fuzz.h"
#include "moonbright.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { RECORD = 128 };

struct seen {
    uint64_t count, sessions, last;
};

static void visit(void *user, const struct mb_audit_record *record)
{
    struct seen *seen = user;

    need((unsigned)record->kind < MB_AUDIT_KINDS);
    need(memchr(record->call, 0, sizeof(record->call)) != NULL);
    need(mb_audit_name(record->kind)[0] != '?');
    if (record->kind == MB_AUDIT_SESSION)
        seen->sessions++, seen->last = 0;
    /* The pieces of a list have the number of the record that lists them. */
    need(record->sequence == seen->last + 1 || (record->sequence == seen->last && seen->last));
    seen->last = record->sequence;
    seen->count++;
}

static uint32_t crc32c(const uint8_t *p, size_t bytes)
{
    uint32_t crc = UINT32_MAX;

    for (size_t i = 0; i < bytes; i++) {
        crc ^= p[i];
        for (unsigned bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? UINT32_C(0x82f63b78) : 0);
    }
    return ~crc;
}

static void check_file(const uint8_t *data, size_t size)
{
    struct mb_audit_summary sum;
    struct seen seen = {0};
    char path[64];
    enum mb_err err;
    int fd = memfd_create("audit", MFD_CLOEXEC);

    need(fd >= 0);
    need(write(fd, data, size) == (ssize_t)size);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    err = mb_audit_read(path, visit, &seen, &sum);
    need(err == MB_OK || err == MB_ERR_CORRUPT || err == MB_ERR_PARSE);
    need(!err || mb_error_detail()[0]);
    if (!err)
        need(sum.records == seen.count && sum.sessions == seen.sessions &&
             sum.records * RECORD + sum.tail_bytes >= size && sum.tail_bytes <= size);
    close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint8_t magic[4] = {'M', 'B', 'J', '2'};
    uint8_t *copy;

    if (!size)
        return 0;
    copy = malloc(size);
    need(copy != NULL);
    memcpy(copy, data + 1, size - 1);
    for (size_t i = 0; (i + 1) * RECORD <= size - 1; i++) {
        uint8_t *record = copy + i * RECORD;
        uint32_t crc;

        if (!(data[0] >> i % 8 & 1))
            continue;
        memcpy(record, magic, sizeof(magic));
        crc = crc32c(record + 8, RECORD - 8);
        memcpy(record + 4, &crc, sizeof(crc));
    }
    check_file(copy, size - 1);
    free(copy);
    return 0;
}
