/* SPDX-License-Identifier: MIT */
/* engines.c - see engines.h. */
#include "hw/nvrm/engines.h"

#include "base/err.h"

enum {
    CAP_GRAPHICS = 0x01,
    CAP_SHARED = 0x02,
    CAP_SYSTEM_READ = 0x04,
    CAP_SYSTEM_WRITE = 0x08,
    CAP_LINK = 0x10,
    CAP_SCRUB = 0x40, /* in the second byte */
};

static uint32_t engine_type(unsigned engine)
{
    return engine < 10 ? NVRM_ENGINE_COPY0 + engine : NVRM_ENGINE_COPY10 + engine - 10;
}

enum mb_err mb__nvrm_copy_caps(struct nvrm_client *client,
                               struct nvrm_copy_caps caps[NVRM_COPY_ENGINES])
{
    enum mb_err err = MB_ERR_NOT_SUPPORTED;
    bool any = false;

    for (unsigned i = 0; i < NVRM_COPY_ENGINES; i++) {
        struct nvrm_abi_ce_caps c = {.engine_type = engine_type(i)};
        struct nvrm_abi_ce_mask m = {.engine_type = engine_type(i)};
        enum mb_err now =
            mb__nvrm_control(client, client->subdevice, NVRM_CMD_CE_CAPS, &c, sizeof c);

        caps[i] = (struct nvrm_copy_caps){.there = false};
        if (!now)
            now = mb__nvrm_control(client, client->subdevice, NVRM_CMD_CE_MASK, &m, sizeof m);
        if (now) {
            err = now;
            continue;
        }
        caps[i] = (struct nvrm_copy_caps){
            .there = m.mask != 0,
            .graphics = c.caps[0] & CAP_GRAPHICS,
            .shared = c.caps[0] & CAP_SHARED,
            .system_read = c.caps[0] & CAP_SYSTEM_READ,
            .system_write = c.caps[0] & CAP_SYSTEM_WRITE,
            .link = c.caps[0] & CAP_LINK,
            .scrub = c.caps[1] & CAP_SCRUB,
            .hardware = m.mask,
        };
        any = any || caps[i].there;
    }
    return any ? MB_OK : mb__fail_in(err, "no copy engine could be asked what it can do");
}

static int users_of(const int user[NVRM_USERS], unsigned known, int engine)
{
    int count = 0;

    for (unsigned u = 0; u < known; u++)
        count += user[u] == engine;
    return count;
}

static int more(uint32_t a, uint32_t b)
{
    return __builtin_popcount(b) - __builtin_popcount(a);
}

/* Below 0: a is better for that work than b; 0: equal. */
static int for_work(const struct nvrm_copy_caps *a, const struct nvrm_copy_caps *b,
                    enum nvrm_copy_user work, bool scrub_first)
{
    int d = 0;

    switch (work) {
    case NVRM_USER_TO_GPU:
        d = b->system_read - a->system_read;
        return d ? d : a->link - b->link;
    case NVRM_USER_TO_HOST:
        d = b->system_write - a->system_write;
        return d ? d : a->link - b->link;
    case NVRM_USER_INTERNAL:
        d = scrub_first ? b->scrub - a->scrub : 0;
        if (!d)
            d = more(a->hardware, b->hardware);
        return d ? d : a->link - b->link;
    case NVRM_USER_TO_PEER:
        return more(a->hardware, b->hardware);
    default:
        return 0;
    }
}

void mb__nvrm_copy_users(const struct nvrm_copy_caps caps[NVRM_COPY_ENGINES], bool scrub_first,
                         int user[NVRM_USERS])
{
    for (unsigned u = 0; u < NVRM_USERS; u++) {
        int best = NVRM_NO_ENGINE;

        for (int i = 0; i < NVRM_COPY_ENGINES; i++) {
            int d;

            if (!caps[i].there || caps[i].graphics)
                continue;
            if (best == NVRM_NO_ENGINE) {
                best = i;
                continue;
            }
            d = for_work(&caps[i], &caps[best], (enum nvrm_copy_user)u, scrub_first);
            if (!d)
                d = users_of(user, u, i) - users_of(user, u, best);
            if (!d)
                d = caps[i].shared - caps[best].shared;
            if (d < 0) /* of equals the lower number, which came first */
                best = i;
        }
        user[u] = best;
    }
}

/* What UVM loses if the engine is held: 0 nothing; else migrations of managed memory wait. */
static int loss(const int user[NVRM_USERS], int engine)
{
    return 4 * (user[NVRM_USER_TO_GPU] == engine) + 2 * (user[NVRM_USER_TO_HOST] == engine) +
           (user[NVRM_USER_TO_PEER] == engine);
}

int mb__nvrm_copy_apart(const struct nvrm_copy_caps caps[NVRM_COPY_ENGINES],
                        const int user[NVRM_USERS], int but)
{
    int best = NVRM_NO_ENGINE;

    for (int i = NVRM_COPY_ENGINES - 1; i >= 0; i--) {
        if (!caps[i].there || caps[i].graphics || i == but || user[NVRM_USER_INTERNAL] == i ||
            user[NVRM_USER_MEMOPS] == i)
            continue;
        if (best == NVRM_NO_ENGINE || loss(user, i) < loss(user, best) ||
            (loss(user, i) == loss(user, best) && caps[best].shared && !caps[i].shared))
            best = i;
    }
    return best;
}
