/* SPDX-License-Identifier: MIT */
/*
 * Giving access to peers while the backend fails, at each of its uses: a call that fails has
 * changed nobody's access, in the record and in the peers' entries. Where not even that can be had
 * again, the owner is lost, and no frame that a peer may still reach is handed out.
 */
#include <string.h>

#include "base/log.h"
#include "hw/fault.h"
#include "runtime/runtime.h"
#include "support/runtime_rig.h"

#define PAGE (2 * RT_MIB)

enum { PAGES = 4, N_MAX = 100 };

#ifdef MB_FAULT_INJECTION

/* `a` owns; b may read all pages and write page 1, c nothing. */
struct world {
    mb_device a, b, c;
    mb_mem mem;
    char *va;
};

static mb_device open_at(int ordinal)
{
    mb_device dev = NULL;

    RT_OK(mb_open(ordinal, "backend:sim,device_memory:128m", &dev));
    return dev;
}

static void give(struct world *w, unsigned page, unsigned pages, mb_device dev, enum mb_prot prot)
{
    struct mb_access access = {dev, prot};

    RT_OK(mb_mem_set_access(w->a, w->va + page * PAGE, pages * PAGE, &access, 1));
}

static void set_up(struct world *w)
{
    struct mb_map_op op = {.kind = MB_MAP, .prot = MB_PROT_READ_WRITE, .bytes = PAGES * PAGE};

    w->a = open_at(0);
    w->b = open_at(1);
    w->c = open_at(2);
    RT_OK(mb_mem_create(w->a, PAGES * PAGE, &w->mem));
    RT_OK(mb_mem_reserve(w->a, PAGES * PAGE, 0, &op.va));
    w->va = op.va;
    op.mem = w->mem;
    RT_OK(mb_mem_map(w->a, &op));
    rt_fill(w->a, w->va, PAGES * PAGE, 1, NULL);
    RT_OK(mb_device_sync(w->a));
    give(w, 0, PAGES, w->b, MB_PROT_READ);
    give(w, 1, 1, w->b, MB_PROT_READ_WRITE);
}

static void tear_down(struct world *w)
{
    mb_close(w->c);
    mb_close(w->b);
    mb_close(w->a);
}

static void records_are_as_before(const struct world *w)
{
    for (unsigned i = 0; i < PAGES; i++) {
        enum mb_prot prot = MB_PROT_NONE;

        RT_OK(mb_mem_get_access(w->a, w->va + i * PAGE, w->b, &prot));
        CHECK_EQ(prot, i == 1 ? MB_PROT_READ_WRITE : MB_PROT_READ);
        RT_OK(mb_mem_get_access(w->a, w->va + i * PAGE, w->c, &prot));
        CHECK_EQ(prot, MB_PROT_NONE);
    }
    RT_OK(mb_check(w->a));
}

/* What b may do works. What nobody may faults: one try, as it ends the device that makes it. */
static void entries_are_as_before(struct world *w, unsigned try)
{
    mb_device culprit = try & 1 ? w->b : w->c;

    rt_verify(w->b, w->va, PAGES * PAGE, 1, NULL);
    rt_clean(w->b);
    rt_fill(w->b, w->va + PAGE, PAGE, 2, NULL);
    rt_clean(w->b);
    if (try & 1)
        rt_fill(w->b, w->va + (try % 3 == 0 ? 0 : 2 + try % 2) * PAGE, PAGE, 3, NULL);
    else
        rt_verify(w->c, w->va + try / 2 % PAGES * PAGE, PAGE, 1, NULL);
    CHECK_EQ(mb_device_sync(culprit), MB_ERR_DEVICE_LOST);
}

/* Something that was not put back: nothing of the owner's is handed out any more. */
static bool is_lost(const struct world *w)
{
    void *block = NULL;
    enum mb_err err = mb_malloc(w->a, 12 * RT_MIB, &block);

    if (!err)
        RT_OK(mb_free(w->a, block));
    return err == MB_ERR_DEVICE_LOST;
}

static void forget_faults(const struct world *w)
{
    for (int op = 0; op <= MB_HW_FAULT_ANY; op++)
        mb__hw_fault_set(w->a->hw, (enum mb_hw_fault_op)op, 0, MB_OK, false);
}

/* The n-th use of `op` by the call fails; false: it has fewer uses. */
static bool fails_at(enum mb_hw_fault_op op, uint64_t n, bool lasting, unsigned *lost)
{
    struct world w = {NULL};
    struct mb_access list[2];
    enum mb_err err;

    set_up(&w);
    list[0] = (struct mb_access){w.b, MB_PROT_READ_WRITE};
    list[1] = (struct mb_access){w.c, MB_PROT_READ};
    mb__hw_fault_set(w.a->hw, op, n, MB_ERR_DRIVER, lasting);
    err = mb_mem_set_access(w.a, w.va, PAGES * PAGE, list, 2);
    forget_faults(&w);
    if (!err) {
        rt_fill(w.b, w.va, PAGES * PAGE, 4, NULL);
        rt_clean(w.b);
        rt_verify(w.c, w.va, PAGES * PAGE, 4, NULL);
        rt_clean(w.c);
    } else if (is_lost(&w)) {
        CHECK(lasting); /* a backend that works again can put back */
        ++*lost;
    } else {
        records_are_as_before(&w);
        entries_are_as_before(&w, (unsigned)n);
    }
    tear_down(&w);
    return err != MB_OK;
}

static void sweep(bool lasting, unsigned *failed, unsigned *lost)
{
    static const enum mb_hw_fault_op ops[] = {MB_HW_FAULT_peer_access, MB_HW_FAULT_ANY};

    mb__log_set(MB_LOG_OFF);
    for (unsigned i = 0; i < sizeof(ops) / sizeof(ops[0]); i++) {
        uint64_t n = 1;

        while (n < N_MAX && fails_at(ops[i], n, lasting, lost))
            n++;
        CHECK(n < N_MAX);
        CHECK(n > 3);
        *failed += (unsigned)n - 1;
    }
}

TEST(a_call_that_fails_changes_no_access)
{
    unsigned failed = 0, lost = 0;

    sweep(false, &failed, &lost);
    CHECK_EQ(lost, 0);
    printf("COUNT calls for access of peers that failed, nothing changed %u\n", failed);
}

TEST(what_cannot_be_put_back_is_not_handed_out)
{
    unsigned failed = 0, lost = 0;

    sweep(true, &failed, &lost);
    CHECK(lost > 0);
    printf("COUNT owners lost as access of a peer could not be taken back %u\n", lost);
}

#else

TEST(peers_and_faults)
{
    SKIP("fault injection is not compiled in: configure with MB_FAULTS=ON");
}

#endif
