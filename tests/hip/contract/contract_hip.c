/* SPDX-License-Identifier: MIT */
/*
 * The contract, held to the `hip` backend on A FAKE of HIP (tests/hip/fake): what is tested is
 * MoonBright's side of the interface. It says nothing about AMD hardware, on which it was not run.
 */
#include <string.h>

#include "contract.h"
#include "fake_access.h"

#define GIB ((uint64_t)1 << 30)

static const struct contract_config configs[] = {
    {.backend = "hip", .name = "hip on the fake", .hw = {.device_memory_bytes = 4 * GIB}},
};

/* That the rules below are skipped for want of a device would be a failure of this test's
 * set-up. */
TEST(the_fake_is_what_was_loaded)
{
    struct mb_backend_info info = {0};

    for (unsigned i = 0; i < mb__hw_backend_count; i++) {
        if (!strcmp(mb__hw_backends[i].name, "hip"))
            mb__hw_backends[i].describe(0, &info);
    }
    CHECK(info.name != NULL);
    CHECK(fake_count("hipGetDeviceCount") > 0);
    if (!info.available && !strstr(info.reason, "no kernels"))
        FAIL("%s", info.reason);
}

#define RUN_RULE(name)                                                                             \
    TEST(name)                                                                                     \
    {                                                                                              \
        contract_run(configs, sizeof(configs) / sizeof(configs[0]), contract_##name);              \
    }
CONTRACT_RULES(RUN_RULE)
