/* SPDX-License-Identifier: MIT */
/* The configuration text: what is refused, and which source wins. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/config.h"
#include "test.h"

static enum mb_err read_text(const char *text, struct mb__config *config)
{
    unsetenv("MOONBRIGHT");
    return mb__config_read(0, text, config);
}

TEST(defaults)
{
    struct mb__config config;

    CHECK_OK(read_text(NULL, &config));
    CHECK(!config.backend && !config.checks && !config.no_bins && !config.hw.no_oracle);
    CHECK_EQ(config.growth, MB__GROWTH_TIGHT);
    CHECK_EQ(config.release_threshold, UINT64_MAX);
    CHECK_EQ(config.vm.policy, MB_VM_POLICY_AUTO);
    CHECK_OK(read_text("", &config));
}

TEST(every_key_arrives)
{
    struct mb__config config;

    CHECK_OK(read_text("backend:sim,model:a100,device_memory:80GiB,seed:7,explore:yes,oracle:no,"
                       "policy:fresh,deferred:yes,guard:no,limit:1g,growth:fast,cache:no,"
                       "cache_bytes:3m,window_cache:5g,release_threshold:2g,wait_ms:50,"
                       "check:redzone|leaks",
                       &config));
    CHECK_STR_EQ(config.backend, "sim");
    CHECK_STR_EQ(config.hw.model, "a100");
    CHECK_EQ(config.hw.device_memory_bytes, (uint64_t)80 << 30);
    CHECK_EQ(config.hw.seed, 7);
    CHECK(config.hw.explore && config.hw.no_oracle && config.vm.deferred && config.vm.no_guard);
    CHECK_EQ(config.vm.policy, MB_VM_POLICY_FRESH);
    CHECK_EQ(config.vm.limit_bytes, (uint64_t)1 << 30);
    CHECK_EQ(config.growth, MB__GROWTH_FAST);
    CHECK(config.no_bins);
    CHECK_EQ(config.bin_bytes, 3 << 20);
    CHECK_EQ(config.window_bytes, (uint64_t)5 << 30);
    CHECK_EQ(config.release_threshold, (uint64_t)2 << 30);
    CHECK_EQ(config.wait_ns, 50000000);
    CHECK_EQ(config.checks, MB__CHECK_REDZONE | MB__CHECK_LEAKS);
}

/* Milliseconds that are no number of nanoseconds any more would be a short wait, or an endless
 * one. */
TEST(a_wait_that_is_too_long)
{
    struct mb__config config;

    CHECK_OK(read_text("wait_ms:4294967295", &config));
    CHECK_EQ(config.wait_ns, UINT64_C(4294967295) * 1000000);
    CHECK_EQ(read_text("wait_ms:18446744073710", &config), MB_ERR_CONFIG);
    CHECK(strstr(mb_error_detail(), "wait_ms") && strstr(mb_error_detail(), "4294967295"));
    CHECK_EQ(read_text("wait_ms:288230376151711744", &config), MB_ERR_CONFIG);
}

/* A bound of 0 is one, and not the default. */
TEST(no_cache_is_no_cache)
{
    struct mb__config config;

    CHECK_OK(read_text("cache_bytes:0,window_cache:0", &config));
    CHECK(config.bin_bytes > 0 && config.bin_bytes < MB__GRANULE);
    CHECK(config.window_bytes > 0 && config.window_bytes < MB__GRANULE);
    CHECK_OK(read_text("", &config));
    CHECK_EQ(config.bin_bytes, 0);
    CHECK_EQ(config.window_bytes, 0);
}

TEST(unknown_keys_and_values_are_errors_that_list_the_known)
{
    struct mb__config config;

    CHECK_EQ(read_text("grwoth:tight", &config), MB_ERR_CONFIG);
    CHECK(strstr(mb_error_detail(), "growth"));
    CHECK_EQ(read_text("growth:slow", &config), MB_ERR_CONFIG);
    CHECK(strstr(mb_error_detail(), "tight"));
    CHECK_EQ(read_text("check:redzones", &config), MB_ERR_CONFIG);
    CHECK(strstr(mb_error_detail(), "poison"));
    CHECK_EQ(read_text("backend:metal", &config), MB_ERR_CONFIG);
    CHECK_EQ(read_text("device_memory:1", &config), MB_ERR_CONFIG);
    CHECK_EQ(read_text("seed", &config), MB_ERR_CONFIG);
}

/* As "check:uaf|$MORE" is where MORE is not set. */
TEST(a_list_without_one_of_its_names_is_refused)
{
    static const char *const lists[] = {"uaf|", "|uaf", "uaf||leaks", "|", "uaf|leaks|uaf"};
    struct mb__config config;

    for (unsigned i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
        char text[32];

        snprintf(text, sizeof(text), "check:%s", lists[i]);
        CHECK_EQ(read_text(text, &config), MB_ERR_CONFIG);
        CHECK(strstr(mb_error_detail(), i < 4 ? "a name is missing" : "uaf is given twice"));
    }
    CHECK_OK(read_text("check:", &config)); /* none, also where the environment names some */
    CHECK_EQ(config.checks, 0);
    CHECK_OK(read_text("check:leaks|uaf", &config));
    CHECK_EQ(config.checks, MB__CHECK_UAF | MB__CHECK_LEAKS);
}

/* As "audit:$LOG" is where LOG is not set: whoever asks for a log or a registry must not go without
 * one in silence. */
TEST(a_file_without_a_name_is_refused)
{
    static const char *const keys[] = {"audit", "registry", "profile", "trace"};
    struct mb__config config;

    for (unsigned i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        char text[32];

        snprintf(text, sizeof(text), "%s:", keys[i]);
        CHECK_EQ(read_text(text, &config), MB_ERR_CONFIG);
        CHECK(strstr(mb_error_detail(), keys[i]) && strstr(mb_error_detail(), "leave the key out"));
        snprintf(text, sizeof(text), "%s:x", keys[i]);
        CHECK_OK(read_text(text, &config));
    }
}

TEST(address_space_that_is_no_whole_frames)
{
    mb_device dev = NULL;

    unsetenv("MOONBRIGHT");
    CHECK_EQ(mb_open(0, "backend:sim,home_space:1", &dev), MB_ERR_INVALID);
    CHECK(strstr(mb_error_detail(), "home_space is 1") && strstr(mb_error_detail(), "2 MiB"));
    CHECK_EQ(mb_open(0, "backend:sim,window_space:3m", &dev), MB_ERR_INVALID);
    CHECK(strstr(mb_error_detail(), "window_space 3145728"));
    CHECK_PTR_EQ(dev, NULL);
}

TEST(those_who_look_on)
{
    struct mb__config config;

    CHECK_OK(read_text("trace:t.csv,trace_format:rmm,history:7,nvtx:yes", &config));
    CHECK_STR_EQ(config.trace, "t.csv");
    CHECK_STR_EQ(config.nvtx, "yes");
    CHECK(config.trace_rmm);
    CHECK_EQ(config.history, 7);
    CHECK_OK(read_text("nvtx:no", &config));
    CHECK(!*config.nvtx && !*config.trace && !config.trace_rmm && !config.history);
    CHECK_OK(read_text("nvtx:1", &config));
    CHECK_STR_EQ(config.nvtx, "yes");
    CHECK_OK(read_text("nvtx:/lib/x.so", &config));
    CHECK_STR_EQ(config.nvtx, "/lib/x.so");
    CHECK_EQ(read_text("trace_format:json", &config), MB_ERR_CONFIG);
    CHECK_EQ(read_text("history:99999999", &config), MB_ERR_CONFIG);
}

TEST(the_call_wins_over_the_environment)
{
    struct mb__config config;

    setenv("MOONBRIGHT", "growth:fast,seed:5", 1);
    CHECK_OK(mb__config_read(0, "growth:patient", &config));
    CHECK_EQ(config.growth, MB__GROWTH_PATIENT);
    CHECK_EQ(config.hw.seed, 5);
    setenv("MOONBRIGHT", "nonsense", 1);
    CHECK_EQ(mb__config_read(0, NULL, &config), MB_ERR_CONFIG);
    CHECK(strstr(mb_error_detail(), "MOONBRIGHT"));
    unsetenv("MOONBRIGHT");
}
