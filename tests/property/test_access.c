/* SPDX-License-Identifier: MIT */
/*
 * Random access of several devices to each other's mappings against a model of three lines: a page
 * has a content number, each device has a protection on it, and a page that is open stays mapped.
 * Devices run in random order of their own; the program orders work of different devices by waiting
 * for a device before another one looks.
 */
#include <string.h>

#include "support/runtime_rig.h"

#define PAGE (2 * RT_MIB)

enum {
    DEVICES = 3,
    PAGES = 40,
    STEPS = 3000,
};

struct page {
    bool mapped;
    uint64_t number; /* of the pattern; 0: undefined */
    enum mb_prot prot[DEVICES];
};

struct world {
    mb_device dev[DEVICES];
    char *va[DEVICES];
    mb_mem mem[DEVICES];
    struct page page[DEVICES][PAGES];
    uint64_t random, count;
    uint64_t peer_reads, peer_writes; /* pages */
};

static uint64_t draw(struct world *world, uint64_t below)
{
    return mb_test_random_below(&world->random, below);
}

/* A random stretch of the owner's pages. */
static void stretch(struct world *world, unsigned *owner, unsigned *first, unsigned *count)
{
    *owner = (unsigned)draw(world, DEVICES);
    *first = (unsigned)draw(world, PAGES);
    *count = 1 + (unsigned)draw(world, draw(world, 2) ? 4 : PAGES - *first);
    if (*count > PAGES - *first)
        *count = PAGES - *first;
}

static void set_access(struct world *world)
{
    static const enum mb_prot prots[] = {MB_PROT_NONE, MB_PROT_READ, MB_PROT_READ_WRITE};
    struct mb_access list[DEVICES];
    unsigned owner, first, count, used = 0;
    enum mb_err err, expected = MB_OK;

    stretch(world, &owner, &first, &count);
    for (unsigned i = 0; i < DEVICES; i++)
        if (i != owner && draw(world, 3))
            list[used++] = (struct mb_access){world->dev[i], prots[draw(world, 3)]};
    for (unsigned i = first; i < first + count; i++)
        if (!world->page[owner][i].mapped)
            expected = MB_ERR_NOT_MAPPED;
    err = mb_mem_set_access(world->dev[owner], world->va[owner] + first * PAGE, count * PAGE, list,
                            used);
    CHECK_EQ(err, expected);
    for (unsigned i = first; !err && i < first + count; i++)
        for (unsigned k = 0, at = 0; k < DEVICES && at < used; k++)
            if (world->dev[k] == list[at].dev)
                world->page[owner][i].prot[k] = list[at++].prot;
}

static void map_or_unmap(struct world *world)
{
    unsigned owner, first, count, mapped = 0, open = 0;
    struct mb_map_op op = {.prot = MB_PROT_READ_WRITE};
    enum mb_err err, expected = MB_OK;

    stretch(world, &owner, &first, &count);
    op.kind = draw(world, 2) ? MB_MAP : MB_UNMAP;
    op.va = world->va[owner] + first * PAGE;
    op.bytes = count * PAGE;
    op.mem = world->mem[owner];
    op.mem_offset = first * PAGE;
    for (unsigned i = first; i < first + count; i++) {
        mapped += world->page[owner][i].mapped;
        for (unsigned k = 0; k < DEVICES; k++)
            open += world->page[owner][i].prot[k] != MB_PROT_NONE;
    }
    if (op.kind == MB_MAP && mapped)
        expected = MB_ERR_MAPPED;
    if (op.kind == MB_UNMAP && (open || mapped < count))
        expected = open ? MB_ERR_BUSY : MB_ERR_NOT_MAPPED;
    err = mb_mem_map_async(world->dev[owner], &op, 1, NULL);
    CHECK_EQ(err, expected);
    for (unsigned i = first; !err && i < first + count; i++)
        world->page[owner][i].mapped = op.kind == MB_MAP;
}

static enum mb_prot may(const struct world *world, unsigned dev, unsigned owner, unsigned page)
{
    if (!world->page[owner][page].mapped)
        return MB_PROT_NONE;
    return dev == owner ? MB_PROT_READ_WRITE : world->page[owner][page].prot[dev];
}

static void use(struct world *world)
{
    unsigned dev = (unsigned)draw(world, DEVICES), owner, first, count;
    bool write = draw(world, 2);

    stretch(world, &owner, &first, &count);
    for (unsigned i = first; i < first + count; i++) {
        enum mb_prot prot = may(world, dev, owner, i), told = MB_PROT_NONE;
        struct page *page = &world->page[owner][i];
        void *va = world->va[owner] + i * PAGE;

        if (page->mapped && dev != owner) {
            RT_OK(mb_mem_get_access(world->dev[owner], va, world->dev[dev], &told));
            CHECK_EQ(told, prot);
        }
        if (write && prot == MB_PROT_READ_WRITE) {
            page->number = ++world->count;
            rt_fill(world->dev[dev], va, PAGE, page->number, NULL);
            world->peer_writes += dev != owner;
        } else if (prot != MB_PROT_NONE && page->number) {
            rt_verify(world->dev[dev], va, PAGE, page->number, NULL);
            world->peer_reads += dev != owner;
        }
    }
    RT_OK(mb_device_sync(world->dev[dev]));
}

static void open_world(struct world *world, const char *kind)
{
    char config[160];

    memset(world, 0, sizeof(*world));
    world->random = mb_test_seed();
    for (int i = 0; i < DEVICES; i++) {
        snprintf(config, sizeof(config), "backend:sim,device_memory:256m,seed:%llu%s",
                 (unsigned long long)draw(world, 1 << 20), kind);
        RT_OK(mb_open(i, config, &world->dev[i]));
        RT_OK(mb_mem_reserve(world->dev[i], PAGES * PAGE, 0, (void **)&world->va[i]));
        RT_OK(mb_mem_create(world->dev[i], PAGES * PAGE, &world->mem[i]));
    }
}

static void close_world(struct world *world)
{
    for (unsigned i = 0; i < DEVICES; i++)
        rt_clean(world->dev[i]);
    /* In any order, and with access still given. */
    for (unsigned i = (unsigned)draw(world, DEVICES), n = 0; n < DEVICES; n++, i++)
        mb_close(world->dev[i % DEVICES]);
}

TEST(random_access_of_three_devices)
{
    static const char *const kinds[] = {"", ",explore:yes", ",explore:yes,driver_home:yes",
                                        ",model:mi210,explore:yes", ",policy:fresh,explore:yes"};

    for (unsigned k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
        struct world world;

        open_world(&world, kinds[k]);
        for (unsigned i = 0; i < STEPS; i++) {
            unsigned what = (unsigned)draw(&world, 10);

            if (what < 3)
                set_access(&world);
            else if (what < 5)
                map_or_unmap(&world);
            else
                use(&world);
        }
        printf("%s: peers read %llu pages, wrote %llu\n", kinds[k],
               (unsigned long long)world.peer_reads, (unsigned long long)world.peer_writes);
        CHECK(world.peer_reads > 100 && world.peer_writes > 100);
        close_world(&world);
    }
}
