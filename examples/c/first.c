/* SPDX-License-Identifier: MIT */
/*
 * The shortest way in from C: memory in stream order, and a block made of what lies scattered.
 *
 *     cc first.c $(pkg-config --cflags --libs moonbright) && ./a.out
 *
 * Runs on the best device present, which without a GPU is the software one.
 */
#include <moonbright.h>
#include <stdio.h>

enum { PIECES = 64 };
#define MIB ((size_t)1 << 20)

static int failed(const char *what)
{
    (void)fprintf(stderr, "%s: %s\n", what, mb_error_detail());
    return 1;
}

int main(void)
{
    mb_device dev;
    mb_stream stream;
    void *pieces[PIECES], *whole;
    struct mb_stats stats;

    if (mb_open(0, "device_memory:1g", &dev))
        return failed("open");
    if (mb_stream_create(dev, &stream))
        return failed("stream");
    /* Work on the stream may use a block at once, and nothing ever waits for its free. */
    for (int i = 0; i < PIECES; i++) {
        if (mb_malloc_async(dev, 12 * MIB, stream, &pieces[i]) ||
            mb_fill_async(dev, pieces[i], 12 * MIB, (uint64_t)i, stream))
            return failed("malloc");
    }
    for (int i = 0; i < PIECES; i += 2) {
        if (mb_free_async(dev, pieces[i], stream))
            return failed("free");
    }
    /* 384 MiB are free, in holes of 12 MiB. Elsewhere this request would take new memory. */
    if (mb_malloc_async(dev, 384 * MIB, stream, &whole))
        return failed("malloc of all that is free");
    /* The neighbours still hold what they held. */
    for (int i = 1; i < PIECES; i += 2) {
        if (mb_verify_async(dev, pieces[i], 12 * MIB, (uint64_t)i, stream) ||
            mb_free_async(dev, pieces[i], stream))
            return failed("verify");
    }
    if (mb_free_async(dev, whole, stream) || mb_stream_sync(dev, stream) ||
        mb_stats_get(dev, &stats))
        return failed("end");
    printf("%s (%s, page tables: %s)\n", mb_device_name(dev), mb_device_backend(dev),
           mb_device_tables(dev));
    printf("asked for %llu MiB at the peak, held %llu MiB; %llu block of many pieces; %llu words "
           "wrong\n",
           (unsigned long long)(stats.requested_peak_bytes / MIB),
           (unsigned long long)(stats.reserved_peak_bytes / MIB),
           (unsigned long long)stats.stitches, (unsigned long long)stats.wrong_words);
    mb_close(dev);
    return stats.wrong_words || !stats.stitches;
}
