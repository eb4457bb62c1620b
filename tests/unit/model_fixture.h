/* Shared by the tests of cli/models: opening a policy, calls that must succeed, the invariants. */
#ifndef MB_TESTS_MODEL_FIXTURE_H
#define MB_TESTS_MODEL_FIXTURE_H

#include "cli/models/model.h"
#include "test.h"

#define KIB ((uint64_t)1 << 10)
#define MIB ((uint64_t)1 << 20)

static inline struct model *open_model(const char *spec, uint64_t limit_bytes)
{
    struct model *model = NULL;
    char error[512] = "";

    if (model_open(spec, limit_bytes, &model, error, sizeof(error)))
        FAIL("%s: %s", spec, error);
    return model;
}

static inline void check_model(const struct model *model)
{
    char problem[256] = "";

    if (!model_check(model, problem, sizeof(problem)))
        FAIL("%s: %s", model_info(model)->name, problem);
}

/* A request that must be served, on stream 0; returns where it lies. */
static inline uint64_t take(struct model *model, uint32_t slot, uint64_t bytes)
{
    CHECK_EQ(model_alloc(model, slot, bytes, 0), MODEL_OK);
    check_model(model);
    return model_address(model, slot);
}

static inline uint64_t take_on(struct model *model, uint32_t slot, uint64_t bytes, uint32_t stream)
{
    CHECK_EQ(model_alloc(model, slot, bytes, stream), MODEL_OK);
    check_model(model);
    return model_address(model, slot);
}

static inline void refuse(struct model *model, uint32_t slot, uint64_t bytes)
{
    CHECK_EQ(model_alloc(model, slot, bytes, 0), MODEL_NO_MEMORY);
    check_model(model);
}

static inline void give(struct model *model, uint32_t slot)
{
    CHECK_EQ(model_free(model, slot, 0), MODEL_OK);
    check_model(model);
}

static inline void give_on(struct model *model, uint32_t slot, uint32_t stream)
{
    CHECK_EQ(model_free(model, slot, stream), MODEL_OK);
    check_model(model);
}

static inline void trim(struct model *model)
{
    CHECK_EQ(model_trim(model), MODEL_OK);
    check_model(model);
}

#define RESERVED(model) (model_stats(model)->reserved_bytes)
#define GRANTED(model) (model_stats(model)->granted_bytes)

#endif
