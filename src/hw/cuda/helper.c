/* SPDX-License-Identifier: MIT */
/*
 * helper.c - how helper channels are made and how prepared invalidates wait.
 *
 * Why       Prepared invalidates that hold their engine's queue answer sooner than those that give
 *           it away, but while one waits, every other channel of that queue waits for the end of
 *           its time slice. With the driver's slice of 1,024 us that hurts on every engine of an
 *           H200: on 4 the driver's unmaps and slabs, on 3 copies to the host, on 2 copies to the
 *           GPU take 1 ms longer. With one of 4 us nobody waits long, and the answers come as soon.
 * Default   The list's first engine (on an H200 the one that UVM clears page tables with, so that a
 *           program's own copies are left alone), 4 us, prepared invalidates that hold and that run
 *           to their end at close. scripts/gpu-variants compares the ways
 *           (bench/results/h200-variants.jsonl).
 */
#include "hw/cuda/cuda.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/log.h"
#include "hw/nvrm/engines.h"

enum { LIST = -1, APART = -2, SLICE_US = 4 };

/* Index of `text` among names, or -1; NULL is the first. */
static int one_of(const char *text, const char *const *names)
{
    if (!text)
        return 0;
    for (int i = 0; names[i]; i++) {
        if (!strcmp(text, names[i]))
            return i;
    }
    return -1;
}

static enum mb_err read_engine(const char *text, int *engine)
{
    char *end;
    long n;

    static const char *const names[] = {"list", "apart", NULL};
    static const int value[] = {LIST, APART};
    int name = one_of(text, names);

    if (name >= 0) {
        *engine = value[name];
        return MB_OK;
    }
    n = strtol(text, &end, 10);
    if (end == text || *end || n < 0 || n >= NVRM_COPY_ENGINES)
        return mb__fail(MB_ERR_CONFIG,
                        "helper_engine:%s is unknown; list, apart or a number from 0 to %d", text,
                        NVRM_COPY_ENGINES - 1);
    *engine = (int)n;
    return MB_OK;
}

enum mb_err mb__cuda_helper_config(struct mb_cuda *dev, const struct mb_hw_config *config)
{
    static const char *const waits[] = {"hold", "switch", NULL};
    static const char *const ends[] = {"drain", "drop", NULL};
    static const char *const forms[] = {"plain", "fast", NULL};
    static const char *const views[] = {"keep", "close", NULL};
    int wait = one_of(config->helper_wait, waits), end = one_of(config->helper_end, ends);
    int form = one_of(config->kernels, forms), view = one_of(config->walk_views, views);
    int engine = LIST;
    enum mb_err err = read_engine(config->helper_engine, &engine);

    if (err)
        return err;
    if (wait < 0)
        return mb__fail(MB_ERR_CONFIG, "helper_wait:%s is unknown; hold or switch",
                        config->helper_wait);
    if (end < 0)
        return mb__fail(MB_ERR_CONFIG, "helper_end:%s is unknown; drain or drop",
                        config->helper_end);
    if (form < 0)
        return mb__fail(MB_ERR_CONFIG, "kernels:%s is unknown; plain or fast", config->kernels);
    if (view < 0)
        return mb__fail(MB_ERR_CONFIG, "walk_views:%s is unknown; keep or close",
                        config->walk_views);
    dev->helper = (struct mb_cuda_helper){
        .engine = engine,
        .rescue_engine = LIST,
        .hold = wait == 0,
        .drain = end == 0,
        .slice_us = config->helper_slice_us ? config->helper_slice_us : SLICE_US};
    dev->fast = form == 1;
    dev->keep_views = view == 0;
    return MB_OK;
}

/* The rescue channel must not share an engine with channels that wait most of the time. */
static int second_of_list(const struct nvrm_arch *arch, int first)
{
    for (unsigned i = 0; i < NVRM_COPY_CHOICES && arch->copy_choice[i] != 0xff; i++) {
        int engine = arch->copy_choice[i];

        if (first == LIST ? i == 1 : engine != first)
            return engine;
    }
    return LIST;
}

enum mb_err mb__cuda_helper_engines(struct mb_cuda *dev)
{
    struct mb_cuda_helper *h = &dev->helper;
    struct nvrm_copy_caps caps[NVRM_COPY_ENGINES];
    int user[NVRM_USERS], rescue;
    enum mb_err err;

    h->rescue_engine = second_of_list(dev->rm->arch, h->engine);
    if (h->engine != APART)
        return MB_OK;
    err = mb__nvrm_copy_caps(dev->rm, caps);
    if (err)
        return mb__fail_in(err, "helper_engine:apart");
    mb__nvrm_copy_users(caps, dev->rm->series->scrub_engines, user);
    h->engine = mb__nvrm_copy_apart(caps, user, NVRM_NO_ENGINE);
    mb__log(MB_LOG_INFO, "cuda",
            "copy engines: the driver copies to the GPU on %d, to the host on %d, clears on %d, "
            "copies to peers on %d, writes tables on %d; helper on %d",
            user[NVRM_USER_TO_GPU], user[NVRM_USER_TO_HOST], user[NVRM_USER_INTERNAL],
            user[NVRM_USER_TO_PEER], user[NVRM_USER_MEMOPS], h->engine);
    if (h->engine == NVRM_NO_ENGINE)
        return mb__fail(MB_ERR_NOT_SUPPORTED,
                        "helper_engine:apart: the driver works on page tables with every copy "
                        "engine; use helper_engine:list or helper_wait:switch");
    rescue = mb__nvrm_copy_apart(caps, user, h->engine);
    h->rescue_engine = rescue != NVRM_NO_ENGINE ? rescue : second_of_list(dev->rm->arch, h->engine);
    return MB_OK;
}

void mb__cuda_helper_encode(const struct mb_cuda *dev, struct nvrm_push *push, uint64_t n)
{
    struct nvrm_invalidate inval = {
        .pdb = dev->space.pdb, .aperture = NVRM_PDB_VIDMEM, .ack = true, .membar = NVRM_MEMBAR_GPU};
    uint64_t answer = dev->shared_rm->va + MB_SHARED_ANSWER;
    uint64_t request = dev->shared_rm->va + MB_SHARED_REQUEST;

    /* Its predecessor has answered by now unless channels of one engine ran out of order. */
    if (dev->helper.hold) {
        mb__nvrm_push_acquire32_hold(push, answer, (uint32_t)(n - 1));
        mb__nvrm_push_acquire32_hold(push, request, (uint32_t)n);
    } else {
        mb__nvrm_push_acquire32(push, answer, (uint32_t)(n - 1));
        mb__nvrm_push_acquire32(push, request, (uint32_t)n);
    }
    mb__nvrm_push_invalidate(push, &inval);
    mb__nvrm_push_release64(push, answer, n, 0);
}
