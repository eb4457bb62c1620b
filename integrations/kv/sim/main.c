/* SPDX-License-Identifier: MIT */
/* main.c - the command line of moonbright-kv. */
#include "sim.h"

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
    "\n"
    "  --model NAME      llama-2-7b, llama-3-8b, llama-3-70b (4 GPUs); default all\n"
    "  --cache NAME      moonbright, cuda-vmm, paged-16, concat; default all\n"
    "  --stretch X       serve: times between requests, times X (1)\n"
    "  --requests N      serve: only the first N\n"
    "  --seed N          beam (1)\n"
    "  --config TEXT     attach: of mb_open()\n"
    "  --bytes N, --samples N   attach (2147483648, 100)\n"
    "  --commit TEXT     for the first line, which says what was run\n";

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
    if (!strcmp(name, "--requests") && number(name, value, 1, 1e9, &n))
        return o->requests = (uint32_t)n, true;
    if (!strcmp(name, "--seed") && number(name, value, 0, 1e15, &n))
        return o->seed = (uint64_t)n, true;
    if (!strcmp(name, "--bytes") && number(name, value, 1 << 21, 1e12, &n))
        return o->bytes = (uint64_t)n, true;
    if (!strcmp(name, "--samples") && number(name, value, 1, 1e6, &n))
        return o->samples = (unsigned)n, true;
    if (n == 0)
        fprintf(stderr, "moonbright-kv: %s is no option\n", name);
    return false;
}

static bool parse(int argc, char **argv, struct options *o)
{
    *o = (struct options){.stretch = 1, .seed = 1, .bytes = (uint64_t)2 << 30, .samples = 100};
    o->command = argc > 1 ? argv[1] : "";
    for (int i = 2; i < argc; i++) {
        if (argv[i][0] != '-' && !o->path) {
            o->path = argv[i];
            continue;
        }
        if (i + 1 == argc) {
            fprintf(stderr, "moonbright-kv: %s wants a value, or is one too many\n", argv[i]);
            return false;
        }
        if (!option(o, argv[i], argv[i + 1]))
            return false;
        i++;
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

/* A command without a trace. */
static bool known(const char *command)
{
    static const char *const commands[] = {"prefix", "long", "beam", "attach"};

    for (unsigned i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
        if (!strcmp(commands[i], command))
            return true;
    return false;
}

int main(int argc, char **argv)
{
    static const char *const names[] = {"llama-2-7b", "llama-3-8b", "llama-3-70b"};
    struct trace trace = {0};
    struct options o;
    bool serving;
    int failed = 0;

    if (argc < 2 || !strcmp(argv[1], "--help")) {
        fputs(usage, argc < 2 ? stderr : stdout);
        return argc < 2 ? 2 : 0;
    }
    if (!parse(argc, argv, &o))
        return 2;
    serving = !strcmp(o.command, "serve");
    if (serving ? !o.path : !known(o.command)) {
        fprintf(stderr, "moonbright-kv: %s; --help lists the commands\n",
                serving ? "serve wants a trace" : "no such command");
        return 2;
    }
    if (serving && !trace_load(&trace, o.path))
        return 1;
    if (serving && o.requests && o.requests < trace.count)
        trace.count = o.requests;
    if (o.commit) {
        printf("{\"what\":\"run\",\"commit\":\"%s\",\"command\":\"moonbright-kv", o.commit);
        for (int i = 1; i < argc; i++)
            if (strcmp(argv[i], "--commit") != 0 && strcmp(argv[i - 1], "--commit") != 0)
                printf(" %s", argv[i]);
        printf("\"}\n");
    }
    if (!strcmp(o.command, "attach"))
        return attach(stdout, o.config, o.bytes, o.samples);
    for (unsigned m = 0; m < sizeof(names) / sizeof(names[0]); m++)
        for (unsigned p = 0; p < POLICIES; p++)
            if ((!o.model || !strcmp(o.model, names[m])) &&
                (!o.cache || !strcmp(o.cache, policy_name(p))))
                failed |= each(&o, serving ? &trace : NULL, shape_find(names[m]), p);
    trace_free(&trace);
    return failed;
}
