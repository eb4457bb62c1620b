/* SPDX-License-Identifier: MIT */
/*
 * Any text as a configuration: of mb_open() and of the environment. It is accepted, or refused with
 * a text that names what is wrong; a device that opens works.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "api/config.h"
#include "base/err.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_text(const char *text, bool environment)
{
    struct mb__config config, again;
    enum mb_err err, second;

    memset(&config, 0xee, sizeof(config));
    if (environment)
        need(!setenv("MOONBRIGHT", text, 1));
    err = mb__config_read(0, environment ? NULL : text, &config);
    need(err == MB_OK || err == MB_ERR_CONFIG || err == MB_ERR_HOST_MEMORY);
    need(!err || mb_error_detail()[0]);
    /* Reading changes nothing but its result. */
    second = mb__config_read(0, environment ? NULL : text, &again);
    need(second == err);
    need(err || (config.checks < 16 && config.wait_ns / 1000000 >= 1));
    need(err || memchr(config.vm.audit, 0, sizeof(config.vm.audit)));
    if (environment)
        unsetenv("MOONBRIGHT");
}

/* What is accepted opens, or is refused by the backend with a reason. Only the software GPU, and
 * small. */
static void open_text(const char *text)
{
    struct mb__config config;
    char whole[4200];
    void *block = NULL;
    mb_device dev;

    if (strstr(text, "audit") || strstr(text, "profile") || strstr(text, "trace") ||
        strstr(text, "backend") || strstr(text, "device_memory") || strlen(text) > 4096)
        return;
    snprintf(whole, sizeof(whole), "backend:sim,device_memory:64m%s%s",
             text[strspn(text, " \t")] ? "," : "", text);
    if (mb__config_read(0, whole, &config))
        return;
    if (mb_open(0, whole, &dev)) {
        need(mb_error_detail()[0]);
        return;
    }
    if (!mb_malloc(dev, 3 << 20, &block))
        need(mb_free(dev, block) == MB_OK);
    need(mb_check(dev) == MB_OK);
    mb_close(dev);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);

    need(text != NULL);
    memcpy(text, data, size);
    text[size] = 0;
    read_text(text, false);
    read_text(text, true);
    open_text(text);
    free(text);
    return 0;
}
