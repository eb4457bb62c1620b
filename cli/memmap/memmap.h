/* SPDX-License-Identifier: MIT */
/*
 * memmap.h - who holds which memory at a number of moments; what `moonbright map` draws.
 *
 * PLACES  A piece lies at a raw place: a device physical address (traces, audit logs) or an address
 *         of PyTorch's (snapshots). The page shows only memory that was held at some moment, in the
 *         order of places, without the gaps between.
 */
#ifndef MB_CLI_MEMMAP_MEMMAP_H
#define MB_CLI_MEMMAP_MEMMAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { MEMMAP_PAGE_SHIFT = 21, MEMMAP_MOMENTS_MAX = 60, MEMMAP_ERROR = 1024 };

enum memmap_flag {
    MEMMAP_STITCHED = 1, /* part of a block whose memory is not in one piece */
    MEMMAP_ALIASED = 2,  /* its frame is shown at more than one address */
};

struct memmap_piece {
    uint64_t at, bytes; /* raw place */
    uint64_t who;       /* number of the block or owner */
    uint64_t whole;     /* bytes of the block */
    unsigned flags;
};

struct memmap_moment {
    char label[64];
    uint64_t when; /* event or record */
    uint64_t live_bytes, held_bytes, blocks;
    struct memmap_piece *pieces; /* sorted by place */
    size_t count, capacity;
    uint64_t *pages; /* held ones, sorted; raw place >> MEMMAP_PAGE_SHIFT */
    size_t page_count;
};

/* Owner: the caller; begin with zeros, end with memmap_free(). */
struct memmap {
    char source[256], what[160]; /* for people: the file, and what its pieces are */
    const char *who;             /* "block", "owner" */
    const char *time;            /* "event", "record" */
    struct memmap_moment moments[MEMMAP_MOMENTS_MAX];
    unsigned count;
    bool failed; /* the host ran out of memory */
};

void memmap_free(struct memmap *map);
struct memmap_moment *memmap_moment(struct memmap *map, uint64_t when, const char *label);
void memmap_add(struct memmap *map, struct memmap_moment *m, const struct memmap_piece *piece);
/* Sorts; call when all pieces of the moment are there. */
void memmap_finish(struct memmap *map, struct memmap_moment *m);

/* ------------------------------------------------------------ numbers by number */

/* A table of 64-bit numbers; key UINT64_MAX is not allowed. Begin with zeros. */
struct memmap_table {
    uint64_t *keys, *values;
    size_t count, used, capacity; /* `used` counts removed entries too */
};

/* false: the host is out of memory */
bool memmap_put(struct memmap_table *t, uint64_t key, uint64_t value);
bool memmap_get(const struct memmap_table *t, uint64_t key, uint64_t *value);
void memmap_remove(struct memmap_table *t, uint64_t key);
/* The next entry from *at on; false: no more. */
bool memmap_each(const struct memmap_table *t, size_t *at, uint64_t *key, uint64_t *value);
void memmap_clear(struct memmap_table *t); /* frees it */

/* ------------------------------------------------------------ sources */

/* All return an enum cli_exit; `error` says what is wrong and where. */

/* A trace, served by MoonBright on the software GPU. */
int memmap_of_trace(struct memmap *map, const char *path, const char *config, unsigned moments,
                    char error[MEMMAP_ERROR]);
/* What PyTorch recorded, as it lay there. */
int memmap_of_snapshot(struct memmap *map, const char *path, unsigned moments,
                       char error[MEMMAP_ERROR]);
/* An audit log, also of a program that is running. */
int memmap_of_log(struct memmap *map, const char *path, unsigned moments, char error[MEMMAP_ERROR]);

/* map_page.c; false: the host is out of memory, and the page lacks a part. */
bool memmap_write(FILE *out, const struct memmap *map);

#endif
