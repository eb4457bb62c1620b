/* SPDX-License-Identifier: MIT */
/* config.h - the command's options as a configuration of the library. */
#ifndef MB_CLI_CONFIG_H
#define MB_CLI_CONFIG_H

#include <stddef.h>
#include <stdint.h>

/* Options that choose and shape a device, filled by cli_parse(); zero and NULL: the default. */
struct device_options {
    const char *backend;
    const char *model;
    const char *config; /* more keys, as typed; one that is there already is an error */
    uint64_t memory_bytes;
    uint64_t seed; /* not 0: the software GPU runs what is runnable in an order drawn from it */
};

/*
 * Writes "key:value,key:value" to buffer. Returns an enum cli_exit; when the text does not fit,
 * says so in the name of `command`.
 */
int device_config(const char *command, const struct device_options *options, char *buffer,
                  size_t size);

#endif
