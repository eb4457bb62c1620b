/* SPDX-License-Identifier: MIT */
/*
 * The long form of report 6: a day of serving. Requests come and go; each reserves the addresses of
 * its longest context, shows the pages of a common prompt by alias, maps pages of its own as tokens
 * arrive, and lets go of everything at its end. Activations are allocated and freed beside them, on
 * two streams.
 *
 * More than 128 TiB of addresses are handed out in all. No stale or foreign translation may be used
 * (an address that came back too early), and the host's memory must stay as it was after the
 * warm-up.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/runtime_rig.h"

enum {
    RUNNING = 32,
    PROMPT_PAGES = 8,
    OWN_PAGES = 24, /* at most */
};

static const uint64_t CONTEXT = 16 * RT_GIB, TOTAL = (uint64_t)129 << 40;

struct request {
    void *va; /* NULL: none */
    mb_mem own;
    unsigned pages, mapped; /* of its own */
    uint64_t number;
};

struct server {
    mb_device dev;
    mb_stream streams[2];
    uint64_t page, requests, state;
    void *prompt_va;
    mb_mem prompt;
    struct request running[RUNNING];
};

/* Resident set in bytes. */
static uint64_t resident(void)
{
    unsigned long long total = 0, pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");

    CHECK(file && fscanf(file, "%llu %llu", &total, &pages) == 2);
    fclose(file);
    return pages * 4096;
}

static mb_stream stream_of(struct server *server, const struct request *request)
{
    return server->streams[request->number % 2];
}

static void begin(struct server *server, struct request *request)
{
    struct mb_map_op op = {.kind = MB_ALIAS,
                           .prot = MB_PROT_READ,
                           .bytes = PROMPT_PAGES * server->page,
                           .src = server->prompt_va};

    request->number = ++server->requests;
    request->pages = 1 + (unsigned)mb_test_random_below(&server->state, OWN_PAGES);
    request->mapped = 0;
    RT_OK(mb_mem_reserve(server->dev, CONTEXT, 0, &request->va));
    RT_OK(mb_mem_create(server->dev, request->pages * server->page, &request->own));
    op.va = request->va;
    RT_OK(mb_mem_map_async(server->dev, &op, 1, stream_of(server, request)));
}

static char *own_page(const struct server *server, const struct request *request, unsigned i)
{
    return (char *)request->va + (PROMPT_PAGES + i) * server->page;
}

/* A few more tokens: the next page. */
static void go_on(struct server *server, struct request *request)
{
    mb_stream stream = stream_of(server, request);
    char *va = own_page(server, request, request->mapped);
    struct mb_map_op op = {.kind = MB_MAP,
                           .prot = MB_PROT_READ_WRITE,
                           .va = va,
                           .bytes = server->page,
                           .mem = request->own,
                           .mem_offset = request->mapped * server->page};
    void *activations;

    RT_OK(mb_mem_map_async(server->dev, &op, 1, stream));
    rt_fill(server->dev, va, 4096, request->number, stream);
    request->mapped++;
    activations =
        rt_malloc(server->dev, 1 + mb_test_random_below(&server->state, 24 * RT_MIB), stream);
    RT_OK(mb_free_async(server->dev, activations, stream));
}

static void end(struct server *server, struct request *request)
{
    mb_stream stream = stream_of(server, request);
    struct mb_map_op op = {.kind = MB_UNMAP,
                           .va = request->va,
                           .bytes = (PROMPT_PAGES + request->mapped) * server->page};

    RT_OK(mb_verify_async(server->dev, request->va, 4096, rt_seed(server->prompt_va, 1), stream));
    for (unsigned i = 0; i < request->mapped; i++)
        rt_verify(server->dev, own_page(server, request, i), 4096, request->number, stream);
    RT_OK(mb_mem_map_async(server->dev, &op, 1, stream));
    RT_OK(mb_mem_release(server->dev, request->own));
    RT_OK(mb_mem_unreserve(server->dev, request->va, CONTEXT));
    request->va = NULL;
}

static void tick(struct server *server)
{
    struct request *request = &server->running[mb_test_random_below(&server->state, RUNNING)];

    if (!request->va)
        begin(server, request);
    else if (request->mapped < request->pages && mb_test_random_below(&server->state, 8))
        go_on(server, request);
    else
        end(server, request);
}

static void start(struct server *server, const char *config)
{
    struct mb_map_op op = {.kind = MB_MAP, .prot = MB_PROT_READ_WRITE};
    mb_event ready;

    memset(server, 0, sizeof(*server));
    server->dev = rt_open(config);
    server->page = mb_page_bytes(server->dev);
    server->state = mb_test_seed();
    server->streams[0] = rt_stream(server->dev);
    server->streams[1] = rt_stream(server->dev);
    RT_OK(mb_mem_reserve(server->dev, PROMPT_PAGES * server->page, 0, &server->prompt_va));
    RT_OK(mb_mem_create(server->dev, PROMPT_PAGES * server->page, &server->prompt));
    op.va = server->prompt_va;
    op.bytes = PROMPT_PAGES * server->page;
    op.mem = server->prompt;
    RT_OK(mb_mem_map(server->dev, &op));
    rt_fill(server->dev, server->prompt_va, op.bytes, 1, server->streams[0]);
    RT_OK(mb_event_create(server->dev, &ready));
    RT_OK(mb_event_record(server->dev, ready, server->streams[0]));
    RT_OK(mb_stream_wait_event(server->dev, server->streams[1], ready));
    RT_OK(mb_event_destroy(server->dev, ready));
}

static void stop(struct server *server)
{
    struct mb_map_op op = {
        .kind = MB_UNMAP, .va = server->prompt_va, .bytes = PROMPT_PAGES * server->page};

    for (unsigned i = 0; i < RUNNING; i++)
        if (server->running[i].va)
            end(server, &server->running[i]);
    RT_OK(mb_device_sync(server->dev));
    RT_OK(mb_mem_map(server->dev, &op));
    RT_OK(mb_mem_release(server->dev, server->prompt));
    RT_OK(mb_mem_unreserve(server->dev, server->prompt_va, op.bytes));
    rt_close(server->dev);
}

static void serve(const char *config)
{
    static struct server server;
    uint64_t ticks = 0, warm = 0, now, tables = 0;
    struct mb_stats stats;

    start(&server, config);
    do {
        for (unsigned i = 0; i < 1000; i++)
            tick(&server);
        ticks += 1000;
        RT_OK(mb_device_sync(server.dev));
        stats = rt_stats(server.dev);
        if (!warm && stats.va_handed_out_bytes > TOTAL / 8) {
            warm = resident();
            tables = stats.table_bytes;
        }
    } while (stats.va_handed_out_bytes < TOTAL);
    now = resident();
    printf("%llu requests, %llu ticks, %.1f TiB of addresses, resident %.1f -> %.1f MiB\n",
           (unsigned long long)server.requests, (unsigned long long)ticks,
           (double)stats.va_handed_out_bytes / (double)((uint64_t)1 << 40),
           (double)warm / (double)RT_MIB, (double)now / (double)RT_MIB);
    CHECK(warm > 0);
    CHECK_LE(now, warm + warm / 10 + 8 * RT_MIB);
    CHECK_LE(stats.table_bytes, tables + tables / 10);
    stop(&server);
}

TEST(a_day_of_serving_inline)
{
    serve("backend:sim,device_memory:8g,policy:inline,window_space:2t");
}

TEST(a_day_of_serving_fresh)
{
    serve("backend:sim,device_memory:8g,policy:fresh,window_space:2t");
}
