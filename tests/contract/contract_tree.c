/* SPDX-License-Identifier: MIT */
/*
 * The helpers' page-table tree, for backends that leave it to vm.
 *
 * Children are entered before their parents (the new branch hangs together before anything points
 * to it), with a barrier between levels and an invalidate at the end: invalid directory entries may
 * be cached.
 */
#include "contract.h"

enum {
    MAX_NEW = 64, /* directory entries of one build */
};

/* A build in progress. */
struct build {
    struct contract_link link[MAX_NEW]; /* parents before children */
    unsigned count;
};

static uint64_t table_key(const struct contract *c, unsigned level, uint64_t va)
{
    return (uint64_t)level << 60 | va >> c->geometry.level[level - 1].shift;
}

static void add_link(struct build *b, struct contract_link link)
{
    CHECK(b->count < MAX_NEW);
    b->link[b->count++] = link;
}

/* The table of `level` that translates va, made if it is missing. */
static uint64_t table_of(struct contract *c, struct build *b, unsigned level, uint64_t va)
{
    uint64_t phys = 0, bytes, key;
    uint64_t parent;

    if (level == 0)
        return c->hw->root_phys(c->dev);
    key = table_key(c, level, va);
    if (mb__map_get(&c->tables, key, &phys))
        return phys;
    parent = table_of(c, b, level - 1, va);
    bytes = c->geometry.level[level].table_bytes;
    CHECK_OK(c->hw->table_alloc(c->dev, bytes, &phys));
    CHECK_OK(mb__map_put(&c->tables, key, phys));
    add_link(b, (struct contract_link){parent, phys, bytes,
                                       mb_fmt_index(c->geometry.level[level - 1], va), level - 1});
    return phys;
}

static struct mb_hw_cmd dir_cmd(const struct contract *c, const struct contract_link *link,
                                bool valid)
{
    struct mb_dir dir = {
        .valid = valid, .aperture = MB_AP_VID, .table_phys = valid ? link->child_phys : 0};
    struct mb_hw_cmd cmd = {.kind = MB_HW_DIR};

    cmd.dir.table_phys = link->parent_phys;
    cmd.dir.index = link->index;
    cmd.dir.level = link->level;
    cmd.dir.value = mb_fmt_encode_dir(c->caps->format, link->level, &dir);
    return cmd;
}

static void submit_and_wait(struct contract *c, const struct mb_hw_cmd *cmds, unsigned count)
{
    CHECK_OK(c->hw->submit(c->dev, c->setup, cmds, count));
    contract_wait_host(c, contract_fence(c, c->setup));
}

static void enter_links(struct contract *c, const struct build *b, mb_va va, uint64_t bytes)
{
    struct mb_hw_cmd cmds[2 * MAX_NEW + 1];
    unsigned n = 0;

    for (unsigned i = b->count; i > 0; i--) {
        cmds[n++] = dir_cmd(c, &b->link[i - 1], true);
        if (i == 1 || b->link[i - 2].level != b->link[i - 1].level)
            cmds[n++] = contract_cmd(MB_HW_BARRIER);
        CHECK(MB_VEC_PUSH(&c->links, b->link[i - 1]));
    }
    cmds[n] = contract_cmd(MB_HW_INVALIDATE);
    cmds[n].inval.va = va;
    cmds[n++].inval.bytes = bytes;
    submit_and_wait(c, cmds, n);
}

void contract_build(struct contract *c, mb_va va, uint64_t bytes, uint64_t *leaf_tables,
                    uint64_t *leaf_table_bytes)
{
    unsigned last = c->geometry.levels - 1;
    const struct mb_fmt_level *level = &c->geometry.level[last];
    uint64_t reach = (uint64_t)1 << c->geometry.level[last - 1].shift;
    uint64_t count = (bytes + reach - 1) / reach, phys = 0;
    struct build b = {.count = 0};
    struct build sorted = {.count = 0};

    CHECK_EQ(va.addr % reach, 0);
    CHECK_OK(c->hw->table_alloc(c->dev, count * level->table_bytes, &phys));
    for (uint64_t i = 0; i < count; i++) {
        uint64_t at = va.addr + i * reach;
        uint64_t parent = table_of(c, &b, last - 1, at);

        add_link(&b, (struct contract_link){
                         parent, phys + i * level->table_bytes, i ? 0 : count * level->table_bytes,
                         mb_fmt_index(c->geometry.level[last - 1], at), last - 1});
    }
    for (unsigned l = 0; l < last; l++)
        for (unsigned i = 0; i < b.count; i++)
            if (b.link[i].level == l)
                sorted.link[sorted.count++] = b.link[i];
    enter_links(c, &sorted, va, bytes);
    *leaf_tables = phys;
    *leaf_table_bytes = count * level->table_bytes;
}

void contract_unlink(struct contract *c, uint64_t phys, uint64_t bytes)
{
    struct mb_hw_cmd cmds[MAX_NEW + 2];
    unsigned n = 0;

    for (size_t i = 0; i < c->links.count;) {
        struct contract_link *link = &c->links.data[i];

        if (link->child_phys < phys || link->child_phys >= phys + bytes) {
            i++;
            continue;
        }
        CHECK(n < MAX_NEW);
        cmds[n++] = dir_cmd(c, link, false);
        MB_VEC_SWAP_REMOVE(&c->links, i);
    }
    cmds[n++] = contract_cmd(MB_HW_BARRIER);
    cmds[n++] = contract_cmd(MB_HW_INVALIDATE); /* everything: range 0, bytes 0 */
    submit_and_wait(c, cmds, n);
    c->hw->table_free(c->dev, phys, bytes);
}

void contract_unlink_all(struct contract *c)
{
    /* Deepest tables first: the parents of those that remain are still there. */
    for (unsigned level = c->geometry.levels; level > 0; level--) {
        for (size_t i = 0; i < c->links.count;) {
            struct contract_link link = c->links.data[i];

            if (link.level + 1 == level && link.child_bytes) {
                contract_unlink(c, link.child_phys, link.child_bytes);
                i = 0;
            } else {
                i++;
            }
        }
    }
    CHECK_EQ(c->links.count, 0);
    mb__map_free(&c->tables);
}
