/* SPDX-License-Identifier: MIT */
/* The set of live handles against a naive one, and read while it changes. */
#include "base/handles.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "test.h"

enum { HANDLES = 4096 };

static const void *handle(unsigned i)
{
    return (const void *)(uintptr_t)(UINT64_C(0x7f0000000000) + 64 * i);
}

TEST(random_against_naive)
{
    struct mb__handles live = MB__HANDLES_INIT;
    static bool there[HANDLES];
    uint64_t state = mb_test_seed();

    memset(there, 0, sizeof(there));
    CHECK(!mb__handles_has(&live, handle(0)));
    for (unsigned step = 0; step < 200000; step++) {
        unsigned i = (unsigned)mb_test_random_below(&state, step < 100000 ? HANDLES : 50);

        if (there[i])
            mb__handles_del(&live, handle(i));
        else
            CHECK(mb__handles_add(&live, handle(i)));
        there[i] = !there[i];
        i = (unsigned)mb_test_random_below(&state, HANDLES);
        CHECK_EQ(mb__handles_has(&live, handle(i)), there[i]);
        CHECK(!mb__handles_has(&live, (const char *)handle(i) + 8));
    }
    CHECK(!mb__handles_has(&live, NULL));
    CHECK(!mb__handles_has(&live, (const void *)1));
    mb__handles_del(&live, NULL);
    mb__handles_del(&live, (const void *)1);
    for (unsigned i = 0; i < HANDLES; i++)
        CHECK_EQ(mb__handles_has(&live, handle(i)), there[i]);
    mb__handles_fini(&live);
    CHECK(!mb__handles_has(&live, handle(0)));
}

struct shared {
    struct mb__handles live;
    bool stop; /* atomic */
    unsigned missed;
};

static void *reader(void *user)
{
    struct shared *s = user;

    while (!__atomic_load_n(&s->stop, __ATOMIC_ACQUIRE)) {
        s->missed += !mb__handles_has(&s->live, handle(1));
        s->missed += mb__handles_has(&s->live, handle(2));
    }
    return NULL;
}

/* What stays is always seen, what never was never, while tables grow under the reader. */
TEST(read_while_it_changes)
{
    static struct shared s = {.live = MB__HANDLES_INIT};
    pthread_t thread;

    CHECK(mb__handles_add(&s.live, handle(1)));
    CHECK_EQ(pthread_create(&thread, NULL, reader, &s), 0);
    for (unsigned round = 0; round < 20; round++) {
        for (unsigned i = 3; i < HANDLES; i++)
            CHECK(mb__handles_add(&s.live, handle(i)));
        for (unsigned i = 3; i < HANDLES; i++)
            mb__handles_del(&s.live, handle(i));
    }
    __atomic_store_n(&s.stop, true, __ATOMIC_RELEASE);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK_EQ(s.missed, 0);
    mb__handles_fini(&s.live);
}
