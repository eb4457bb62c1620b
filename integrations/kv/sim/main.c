/* SPDX-License-Identifier: MIT */
/* main.c - the command line of moonbright-kv. */
#include "sim.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "moonbright-kv: serving with a KV cache, in modelled time (doc/kv.md)\n"
    "\n"
    "  moonbright-kv serve TRACE [options]    replay requests\n"
    "  moonbright-kv prefix [options]         time to the first token by prefix and share\n"
    "  moonbright-kv long [options]           contexts of 4K to 192K without a prefix\n"
    "  moonbright-kv beam [options]           beam search, widths 2 and 4, batches to 128\n"
    "  moonbright-kv attach [options]         a cached prefix until it is usable; on any backend\n"
    "  moonbright-kv host [options]           what the cache's calls take of the host; on any "
    "backend\n"
    "\n"
    "  --model NAME      llama-2-7b, llama-3-8b, llama-3-70b (4 GPUs); default all\n"
    "  --cache NAME      moonbright, cuda-vmm, paged-16, concat; default all\n"
    "  --stretch X       serve: times between requests, times X (1)\n"
    "  --requests N      serve: only the first N\n"
    "  --seed N          beam (1)\n"
    "  --config TEXT     attach, host: of mb_open()\n"
    "  --bytes N, --samples N   attach, host (2147483648, 100)\n"
    "  --commit TEXT     for the first line, which says what was run\n"
    "\n"
    "Exit status: 0 all is well, 1 something failed, 2 bad input.\n";

/* Which commands an option is for; one that would be ignored is refused. */
static const struct {
    const char *name, *commands;
} known_options[] = {
    {"--model", "serve prefix long beam host"},
    {"--cache", "serve prefix long beam"},
    {"--stretch", "serve"},
    {"--requests", "serve"},
    {"--seed", "beam"},
    {"--config", "attach host"},
    {"--bytes", "attach host"},
    {"--samples", "attach host"},
    {"--commit", "serve prefix long beam attach host"},
};

struct options {
    const char *command, *path, *model, *cache, *config, *commit;
    double stretch;
    uint32_t requests;
    uint64_t seed, bytes;
    unsigned samples;
};

static bool number(const char *name, const char *text, double least, double most, double *out)
{
    char *end;

    *out = strtod(text, &end);
    if (end != text && !*end && *out >= least && *out <= most)
        return true;
    fprintf(stderr, "moonbright-kv: %s %s: a number from %g to %g is wanted\n", name, text, least,
            most);
    return false;
}

/* False, having said why: no option, or none of this command. */
static bool belongs(const char *command, const char *name)
{
    for (size_t i = 0; i < sizeof(known_options) / sizeof(known_options[0]); i++) {
        if (strcmp(name, known_options[i].name) != 0)
            continue;
        if (strstr(known_options[i].commands, command))
            return true;
        fprintf(stderr, "moonbright-kv: %s is for %s, not for %s\n", name,
                known_options[i].commands, command);
        return false;
    }
    fprintf(stderr, "moonbright-kv: %s is no option; --help lists them\n", name);
    return false;
}

/* `name` belongs to the command. */
static bool option(struct options *o, const char *name, const char *value)
{
    double n = 0;

    if (!strcmp(name, "--model"))
        return o->model = value, shape_find(value) != NULL;
    if (!strcmp(name, "--cache"))
        return o->cache = value, true;
    if (!strcmp(name, "--config"))
        return o->config = value, true;
    if (!strcmp(name, "--commit"))
        return o->commit = value, true;
    if (!strcmp(name, "--stretch"))
        return number(name, value, 0.01, 1000, &o->stretch);
    if (!strcmp(name, "--requests"))
        return number(name, value, 1, 1e9, &n) && (o->requests = (uint32_t)n, true);
    if (!strcmp(name, "--seed"))
        return number(name, value, 0, 1e15, &n) && (o->seed = (uint64_t)n, true);
    if (!strcmp(name, "--bytes"))
        return number(name, value, 1 << 21, 1e12, &n) && (o->bytes = (uint64_t)n, true);
    return number(name, value, 1, 1e6, &n) && (o->samples = (unsigned)n, true);
}

/* A command, and serve alone takes a trace. */
static bool known(const char *command)
{
    static const char *const commands[] = {"serve", "prefix", "long", "beam", "attach", "host"};

    for (unsigned i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
        if (!strcmp(commands[i], command))
            return true;
    return false;
}

static bool parse_words(int argc, char **argv, struct options *o)
{
    for (int i = 2; i < argc; i++) {
        if (argv[i][0] != '-' && !o->path && !strcmp(o->command, "serve")) {
            o->path = argv[i];
            continue;
        }
        if (argv[i][0] != '-') {
            fprintf(stderr, "moonbright-kv: «%.100s» is one word too many\n", argv[i]);
            return false;
        }
        if (!belongs(o->command, argv[i]))
            return false;
        if (i + 1 == argc) {
            fprintf(stderr, "moonbright-kv: %s wants a value\n", argv[i]);
            return false;
        }
        if (!option(o, argv[i], argv[i + 1]))
            return false;
        i++;
    }
    return true;
}

static bool parse(int argc, char **argv, struct options *o)
{
    *o = (struct options){.stretch = 1, .seed = 1, .bytes = (uint64_t)2 << 30, .samples = 100};
    o->command = argv[1];
    if (!known(o->command)) {
        fprintf(stderr, "moonbright-kv: no such command; --help lists the commands\n");
        return false;
    }
    if (!parse_words(argc, argv, o))
        return false;
    if (!strcmp(o->command, "serve") && !o->path) {
        fprintf(stderr, "moonbright-kv: serve wants a trace; --help lists the commands\n");
        return false;
    }
    for (unsigned p = 0; o->cache; p++) {
        if (p == POLICIES) {
            fprintf(stderr, "moonbright-kv: --cache %s is not known\n", o->cache);
            return false;
        }
        if (!strcmp(o->cache, policy_name(p)))
            break;
    }
    return true;
}

/* A text inside quotes of JSON. */
static void json_word(const char *text)
{
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;

        if (c == '"' || c == '\\')
            printf("\\%c", c);
        else if (c < 0x20)
            printf("\\u%04x", c);
        else
            putchar(c);
    }
}

static void say_what_runs(int argc, char **argv, const char *commit)
{
    printf("{\"what\":\"run\",\"commit\":\"");
    json_word(commit);
    printf("\",\"command\":\"moonbright-kv");
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--commit") != 0 && strcmp(argv[i - 1], "--commit") != 0) {
            putchar(' ');
            json_word(argv[i]);
        }
    printf("\"}\n");
}

static int each(const struct options *o, const struct trace *trace, const struct shape *shape,
                enum policy policy)
{
    static const double shares[] = {0, 0.5, 0.9, 0.99};
    int failed = 0;

    if (trace)
        return serve(stdout, trace, strrchr(o->path, '/') ? strrchr(o->path, '/') + 1 : o->path,
                     shape, policy, o->stretch);
    if (!strcmp(o->command, "prefix"))
        for (uint32_t tokens = 4096; tokens <= 131072; tokens *= 2)
            for (unsigned i = 0; i < 4; i++)
                failed |= prefix(stdout, shape, policy, tokens, shares[i]);
    else if (!strcmp(o->command, "long"))
        for (uint32_t tokens = 4096; tokens <= 196608;
             tokens = tokens == 131072 ? 196608 : 2 * tokens)
            failed |= longer(stdout, shape, policy, tokens);
    else
        for (uint32_t width = 2; width <= 4; width += 2)
            for (uint32_t batch = 1; batch <= 128; batch *= batch < 16 ? 4 : 2)
                failed |= beam(stdout, shape, policy, width, batch, o->seed);
    return failed;
}

static const char *const names[] = {"llama-2-7b", "llama-3-8b", "llama-3-70b"};
enum { ON_ONE_GPU = 2 }; /* of names, the first ones */

static int run_host(const struct options *o)
{
    int failed = 0;

    if (o->model && !strcmp(o->model, names[ON_ONE_GPU])) {
        fprintf(stderr, "moonbright-kv: host: %s is a model of 4 GPUs; allowed are %s and %s\n",
                o->model, names[0], names[1]);
        return 2;
    }
    for (unsigned m = 0; m < ON_ONE_GPU; m++)
        if (!o->model || !strcmp(o->model, names[m])) {
            failed |= host(stdout, o->config, shape_find(names[m]), o->bytes, o->samples);
            failed |= host_beams(stdout, o->config, shape_find(names[m]), o->samples);
        }
    return failed;
}

static int run(const struct options *o, const struct trace *trace)
{
    int failed = 0;

    if (!strcmp(o->command, "attach"))
        return attach(stdout, o->config, o->bytes, o->samples);
    if (!strcmp(o->command, "host"))
        return run_host(o);
    for (unsigned m = 0; m < sizeof(names) / sizeof(names[0]); m++)
        for (unsigned p = 0; p < POLICIES; p++)
            if ((!o->model || !strcmp(o->model, names[m])) &&
                (!o->cache || !strcmp(o->cache, policy_name(p))))
                failed |= each(o, trace, shape_find(names[m]), p);
    return failed;
}

int main(int argc, char **argv)
{
    struct trace trace = {0};
    struct options o;
    bool serving;
    int failed;

    if (argc < 2 || !strcmp(argv[1], "--help") || !strcmp(argv[1], "-h")) {
        fputs(usage, argc < 2 ? stderr : stdout);
        return argc < 2 ? 2 : 0;
    }
    if (!parse(argc, argv, &o))
        return 2;
    serving = o.path != NULL;
    if (serving && !trace_load(&trace, o.path))
        return 2;
    if (serving && o.requests && o.requests < trace.count)
        trace.count = o.requests;
    if (o.commit)
        say_what_runs(argc, argv, o.commit);
    failed = run(&o, serving ? &trace : NULL);
    trace_free(&trace);
    /* An answer that did not reach its reader is no success. */
    if (fflush(stdout) || ferror(stdout)) {
        fprintf(stderr, "moonbright-kv: writing the output failed: %s\n", strerror(errno));
        failed = 1;
    }
    return failed;
}
