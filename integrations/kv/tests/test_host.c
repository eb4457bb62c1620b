/* SPDX-License-Identifier: MIT */
/* The mapper on host memory: what it shows, and a kernel that has no room for one more mapping. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdbool.h>
#include <sys/mman.h>

static unsigned mappings_left; /* until mmap() fails for good; 0: it does not */
static bool full;
static bool splits_fail; /* mprotect() needs one more mapping as well */

/* Of the mapper, which is compiled in below. */
static void *scarce_mmap(void *at, size_t bytes, int prot, int flags, int fd, off_t offset)
{
    if (mappings_left && !--mappings_left)
        full = true;
    if (full) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    return mmap(at, bytes, prot, flags, fd, offset);
}

static int scarce_mprotect(void *at, size_t bytes, int prot)
{
    if (full && splits_fail) {
        errno = ENOMEM;
        return -1;
    }
    return mprotect(at, bytes, prot);
}

#define mmap scarce_mmap
#define mprotect scarce_mprotect
#include "../mappers/host_memory.c" /* NOLINT(bugprone-suspicious-include): sees mmap above */
#undef mprotect
#undef mmap

#include "kv_rig.h" /* its names come after the mapper's, which are not the same */

static const struct mb_kv_config tiny = {.layers = 2,
                                         .kv_heads = 1,
                                         .head_dim = 8,
                                         .element_bytes = 1,
                                         .group_layers = 1,
                                         .max_tokens = 4096,
                                         .max_sequences = 4,
                                         .chunk_blocks = 3};

static mb_kv open_host(struct mb_kv_mapper *mapper)
{
    mb_kv kv = NULL;

    CHECK_OK(mb_kv_host_mapper((uint64_t)sysconf(_SC_PAGESIZE), mapper));
    KV_OK(mb_kv_open_on(mapper, &tiny, &kv));
    return kv;
}

static char *token_of(mb_kv kv, mb_kv_seq seq, uint32_t group, uint32_t token)
{
    uint64_t bytes;

    return kv_token_at(kv, seq, group, token, &bytes);
}

/* A letter per token. */
static void put(mb_kv kv, mb_kv_seq seq, uint32_t from, uint32_t to, char letter)
{
    for (uint32_t i = from; i < to; i++)
        for (uint32_t g = 0; g < 2; g++)
            memset(token_of(kv, seq, g, i), letter + (char)g, 16);
}

static bool has(mb_kv kv, mb_kv_seq seq, uint32_t from, uint32_t to, char letter)
{
    for (uint32_t i = from; i < to; i++)
        for (uint32_t g = 0; g < 2; g++)
            for (uint32_t b = 0; b < 16; b++)
                if (token_of(kv, seq, g, i)[b] != letter + (char)g)
                    return false;
    return true;
}

TEST(a_fork_goes_its_own_way)
{
    struct mb_kv_mapper mapper;
    mb_kv kv = open_host(&mapper);
    mb_kv_seq seq = 0, beam = 0;

    KV_OK(mb_kv_seq_open(kv, 0, &seq));
    KV_OK(mb_kv_append(kv, &(struct mb_kv_grow){seq, 700}, 1, NULL));
    put(kv, seq, 0, 700, 'a');
    KV_OK(mb_kv_fork(kv, seq, &beam));
    KV_OK(mb_kv_append(kv, (struct mb_kv_grow[]){{seq, 50}, {beam, 60}}, 2, NULL));
    put(kv, seq, 700, 750, 'p');
    put(kv, beam, 700, 760, 'x');
    CHECK(has(kv, seq, 0, 700, 'a') && has(kv, seq, 700, 750, 'p'));
    CHECK(has(kv, beam, 0, 700, 'a') && has(kv, beam, 700, 760, 'x'));
    KV_OK(mb_kv_check(kv));
    KV_OK(mb_kv_close(kv));
}

/* Refused, a configuration leaves the mapper to its owner, who may try another. */
TEST(a_mapper_is_its_owners_after_a_failed_open)
{
    struct mb_kv_config config = tiny;
    struct mb_kv_mapper mapper;
    mb_kv kv = NULL;

    CHECK_OK(mb_kv_host_mapper((uint64_t)sysconf(_SC_PAGESIZE), &mapper));
    config.max_tokens = 0;
    CHECK_EQ(mb_kv_open_on(&mapper, &config, &kv), MB_ERR_INVALID);
    KV_OK(mb_kv_open_on(&mapper, &tiny, &kv));
    KV_OK(mb_kv_close(kv));
    CHECK_OK(mb_kv_host_mapper((uint64_t)sysconf(_SC_PAGESIZE), &mapper));
    CHECK_EQ(mb_kv_open_on(&mapper, &config, &kv), MB_ERR_INVALID);
    mapper.close(mapper.user); /* LeakSanitizer sees it otherwise */
}

/* Of each batch that fails somewhere: what was there before is never read as something else, and
 * the cache can be closed, though no mapping is to be had. */
static void fill_up(void)
{
    unsigned failed = 0;

    for (unsigned n = 1; n < 40; n++) {
        struct mb_kv_mapper mapper;
        mb_kv kv = open_host(&mapper);
        mb_kv_seq seq = 0, beam = 0;

        KV_OK(mb_kv_seq_open(kv, 0, &seq));
        KV_OK(mb_kv_append(kv, &(struct mb_kv_grow){seq, 700}, 1, NULL));
        put(kv, seq, 0, 700, 'a');
        KV_OK(mb_kv_fork(kv, seq, &beam));
        mappings_left = n;
        if (mb_kv_append(kv, (struct mb_kv_grow[]){{seq, 400}, {beam, 400}}, 2, NULL)) {
            failed++;
            CHECK(strstr(mb_kv_error_detail(), "close the cache") != NULL);
            mappings_left = 0;
            full = false;
            /* Room again: too late, as part of the batch was made. */
            CHECK_EQ(mb_kv_append(kv, &(struct mb_kv_grow){seq, 1}, 1, NULL), MB_ERR_HOST_MEMORY);
            CHECK(strstr(mb_kv_error_detail(), "close the cache") != NULL);
            full = true;
        }
        KV_OK(mb_kv_close(kv));
        mappings_left = 0;
        full = false;
    }
    CHECK(failed > 0 && failed < 39);
}

TEST(no_room_for_one_more_mapping)
{
    fill_up();
}

TEST(no_room_to_split_a_mapping_either)
{
    splits_fail = true;
    fill_up();
    splits_fail = false;
}
