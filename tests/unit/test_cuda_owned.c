/* SPDX-License-Identifier: MIT */
/* The check that a batch names only frames of this device, against a plain one. No GPU. */
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "hw/cuda/cuda.h"
#include "test.h"

enum { FRAMES = 300, MOST = 70 };

static struct mb_cuda dev;

static void open_record(void)
{
    memset(&dev, 0, sizeof(dev));
    dev.owned = calloc(FRAMES + MB_CUDA_OWNED_SLACK, 1);
    CHECK(dev.owned != NULL);
    dev.owned_frames = FRAMES;
}

static bool plain(const mb_pfn *pfns, uint32_t count, struct mb_cuda_span *span)
{
    bool good = true;

    for (uint32_t i = 0; i < count; i++) {
        uint32_t n = pfns[i].n;

        span->low = n < span->low ? n : span->low;
        span->high = n > span->high ? n : span->high;
        good = good && n % MB_FRAME_PFNS == 0 && n / MB_FRAME_PFNS < FRAMES &&
               dev.owned[n / MB_FRAME_PFNS];
    }
    return good;
}

/* `span` goes in as what the commands before have left. */
static bool same_as_plain(const mb_pfn *pfns, uint32_t count, struct mb_cuda_span span)
{
    struct mb_cuda_span wanted = span;
    bool good = plain(pfns, count, &wanted);

    CHECK_EQ(mb__cuda_owns(&dev, pfns, count, &span), good);
    CHECK_EQ(span.low, wanted.low);
    CHECK_EQ(span.high, wanted.high);
    return good;
}

static mb_pfn frame(uint32_t n)
{
    return (mb_pfn){n * (uint32_t)MB_FRAME_PFNS};
}

TEST(random_lists)
{
    struct mb_rng rng;
    unsigned good = 0, bad = 0;

    open_record();
    mb__rng_seed(&rng, mb_test_seed());
    for (unsigned round = 0; round < 20000; round++) {
        mb_pfn pfns[MOST];
        uint32_t count = (uint32_t)mb__rng_below(&rng, MOST + 1);

        for (unsigned i = 0; i < 8; i++)
            dev.owned[mb__rng_below(&rng, FRAMES)] = mb__rng_below(&rng, 64) != 0;
        for (uint32_t i = 0; i < count; i++)
            pfns[i] = frame((uint32_t)mb__rng_below(&rng, FRAMES));
        if (count && mb__rng_below(&rng, 4) == 0) {
            uint32_t at = (uint32_t)mb__rng_below(&rng, count);
            const uint32_t odd[] = {frame(FRAMES).n, UINT32_MAX, 1, frame(3).n + 8};

            pfns[at].n = odd[mb__rng_below(&rng, 4)];
        }
        if (same_as_plain(pfns, count, (struct mb_cuda_span){UINT32_MAX, 0}))
            good++;
        else
            bad++;
    }
    CHECK(good > 100 && bad > 100);
    free(dev.owned);
}

/* One bad number at every place of every short list. */
TEST(one_bad_number_anywhere)
{
    open_record();
    memset(dev.owned, 1, FRAMES);
    dev.owned[7] = 0;
    for (uint32_t count = 1; count <= 40; count++) {
        for (uint32_t at = 0; at < count; at++) {
            const mb_pfn bad[] = {frame(7), frame(FRAMES), {frame(9).n + 1}, {UINT32_MAX}};
            mb_pfn pfns[MOST];

            for (uint32_t i = 0; i < count; i++)
                pfns[i] = frame(10 + i);
            CHECK(same_as_plain(pfns, count, (struct mb_cuda_span){frame(2).n, frame(290).n}));
            for (unsigned b = 0; b < 4; b++) {
                pfns[at] = bad[b];
                CHECK(!same_as_plain(pfns, count, (struct mb_cuda_span){UINT32_MAX, 0}));
            }
        }
    }
    CHECK(same_as_plain(NULL, 0, (struct mb_cuda_span){5, 6}));
    CHECK(same_as_plain(&(mb_pfn){frame(FRAMES - 1).n}, 1, (struct mb_cuda_span){UINT32_MAX, 0}));
    free(dev.owned);
}
