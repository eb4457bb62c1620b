/* SPDX-License-Identifier: MIT */
#include "config.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "cli.h"

/* Appends ",key:value"; *used grows past size when it does not fit. */
__attribute__((format(printf, 4, 5))) static void append(char *buffer, size_t size, size_t *used,
                                                         const char *format, ...)
{
    va_list arguments;
    int n;

    if (*used && *used < size)
        buffer[(*used)++] = ',';
    va_start(arguments, format);
    n = vsnprintf(*used < size ? buffer + *used : NULL, *used < size ? size - *used : 0, format,
                  arguments);
    va_end(arguments);
    *used += n > 0 ? (size_t)n : 0;
}

int device_config(const char *command, const struct device_options *o, char *buffer, size_t size)
{
    size_t used = 0;

    buffer[0] = '\0';
    if (o->backend)
        append(buffer, size, &used, "backend:%s", o->backend);
    if (o->model)
        append(buffer, size, &used, "model:%s", o->model);
    if (o->memory_bytes)
        append(buffer, size, &used, "device_memory:%" PRIu64, o->memory_bytes);
    if (o->seed)
        append(buffer, size, &used, "seed:%" PRIu64 ",explore:1", o->seed);
    if (o->config && *o->config)
        append(buffer, size, &used, "%s", o->config);
    if (used >= size)
        return cli_fail(CLI_BAD_INPUT, command, "the configuration is longer than %zu bytes",
                        size - 1);
    return CLI_OK;
}
