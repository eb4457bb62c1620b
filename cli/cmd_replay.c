/* SPDX-License-Identifier: MIT */
/* cmd_replay.c - `moonbright replay TRACE...`. */
#include "cli.h"
#include "config.h"
#include "models/run.h"
#include "replay.h"
#include "report.h"

#include <stdio.h>
#include <string.h>

enum {
    STREAMS_MAX = 64, /* of the generator */
};

/* The options as typed. */
struct replay_arguments {
    struct device_options device;
    const char *verify, *tables; /* NULL: off */
    const char *policy;
    const char *format;
    unsigned streams;
    unsigned trace_device;
    unsigned ordinal;
    uint64_t limit_bytes;
    uint64_t events;
    bool json;
    bool quiet;
};

static int choose_verify(const char *text, enum verify_mode *mode)
{
    if (!text)
        *mode = VERIFY_OFF;
    else if (!*text || !strcmp(text, "edges"))
        *mode = VERIFY_EDGES;
    else if (!strcmp(text, "full"))
        *mode = VERIFY_FULL;
    else
        return cli_fail(CLI_BAD_INPUT, "replay", "--verify is \"%.64s\"; expected edges or full",
                        text);
    return CLI_OK;
}

static int choose_tables(const char *text, enum replay_tables *out)
{
    if (!text)
        *out = TABLES_OFF;
    else if (!*text)
        *out = TABLES_LOOK;
    else if (!strcmp(text, "repair"))
        *out = TABLES_REPAIR;
    else
        return cli_fail(CLI_BAD_INPUT, "replay",
                        "--tables is \"%.64s\"; expected nothing or repair", text);
    return CLI_OK;
}

static int choose_policy(const char *name, const struct replay_policy **policy)
{
    if (replay_policy_by_name(name, policy))
        return CLI_OK;
    cli_fail(CLI_BAD_INPUT, "replay", "there is no policy \"%.64s\"; expected one of", name);
    for (unsigned i = 0; i < replay_policy_count; i++)
        fprintf(stderr, "  %-20s %s\n", replay_policies[i].name, replay_policies[i].summary);
    for (unsigned i = 0; model_infos[i]; i++)
        fprintf(stderr, "  %-20s %s %s\n", model_infos[i]->name, MODEL_MARK,
                model_infos[i]->summary);
    return CLI_BAD_INPUT;
}

/* A model of another allocator has no device, and draws nothing but the spreading over streams. */
static int check_model(const struct replay_arguments *a)
{
    const char *option = a->device.backend                          ? "--backend"
                         : a->ordinal                               ? "--device"
                         : a->device.config                         ? "--config"
                         : a->device.model                          ? "--model"
                         : a->device.seed && !a->streams            ? "--seed without --streams"
                         : a->device.memory_bytes && a->limit_bytes ? "--device-memory with --limit"
                                                                    : NULL;

    if (a->verify || a->tables)
        return cli_fail(
            CLI_BAD_INPUT, "replay", "--%s was given with the model \"%.64s\", which writes no %s",
            a->verify ? "verify" : "tables", a->policy, a->verify ? "memory" : "page tables");
    if (option)
        return cli_fail(CLI_BAD_INPUT, "replay",
                        "%s has no meaning for the model \"%.64s\", which opens no device", option,
                        a->policy);
    return CLI_OK;
}

/* Everything that can be wrong with the options alone. */
static int check_arguments(const struct replay_arguments *a, struct replay_options *options,
                           struct trace_options *trace)
{
    int code = choose_verify(a->verify, &options->verify);

    if (!code)
        code = choose_tables(a->tables, &options->tables);
    if (!code && model_named(a->policy))
        code = check_model(a);
    if (!code && !model_named(a->policy))
        code = choose_policy(a->policy, &options->policy);
    if (code)
        return code;
    if (!trace_format_by_name(a->format, &trace->format))
        return cli_fail(CLI_BAD_INPUT, "replay",
                        "there is no format \"%.64s\"; expected auto, torch-csv, rmm-csv or "
                        "torch-snapshot",
                        a->format);
    if (a->streams > STREAMS_MAX || a->streams == 1)
        return cli_fail(CLI_BAD_INPUT, "replay",
                        "--streams is %u; expected 2 to %d, or 0 for the trace's own", a->streams,
                        STREAMS_MAX);
    trace->device = a->trace_device;
    options->seed = a->device.seed ? a->device.seed : 1;
    options->limit_bytes = a->limit_bytes;
    options->max_events = a->events;
    options->quiet = a->quiet;
    options->device = a->ordinal;
    return CLI_OK;
}

static int open_trace(const char *path, const struct replay_arguments *a,
                      const struct replay_options *options, const struct trace_options *trace,
                      struct trace_reader **out)
{
    struct trace_reader *reader = NULL;
    struct trace_reader *spread = NULL;
    char error[1024];
    enum trace_status status = trace_open(path, trace, &reader, error, sizeof(error));
    enum trace_format format;

    if (status)
        return cli_fail(status == TRACE_HOST_MEMORY ? CLI_FAILED : CLI_BAD_INPUT, "replay", "%s",
                        error);
    format = trace_info(reader)->format;
    if (a->trace_device != TRACE_ANY_DEVICE && format != TRACE_FORMAT_SNAPSHOT) {
        trace_close(reader);
        return cli_fail(CLI_BAD_INPUT, "replay",
                        "--trace-device is for snapshots; %.200s is of the format %s, which names "
                        "no devices",
                        path, trace_format_name(format));
    }
    if (a->streams && trace_open_streams(reader, a->streams, options->seed, &spread)) {
        trace_close(reader);
        return cli_fail(CLI_FAILED, "replay", "the host is out of memory");
    }
    *out = spread ? spread : reader;
    return CLI_OK;
}

static int replay_one(const char *path, const struct replay_arguments *a,
                      const struct replay_options *options, const struct trace_options *trace)
{
    static struct replay_result result; /* large, and one replay runs at a time */
    const struct report_context context = {
        .trace = path,
        .policy = options->policy->name,
        .verify = options->verify == VERIFY_FULL    ? "full"
                  : options->verify == VERIFY_EDGES ? "edges"
                                                    : "off",
        .tables = options->tables != TABLES_OFF,
        .seed = options->seed,
        .streams = a->streams,
    };
    struct trace_reader *reader = NULL;
    int code = open_trace(path, a, options, trace, &reader);

    if (code)
        return code;
    code = replay_run(reader, path, options, &result);
    trace_close(reader);
    if (result.bad_input)
        return cli_fail(code, "replay", "%s", result.problem);
    if (a->json)
        report_json(&context, &result);
    else if (result.backend[0]) /* else nothing was measured */
        report_text(&context, &result);
    if (code)
        cli_fail(code, "replay", "%s: %s", path, result.problem);
    return code;
}

/* Another allocator's policy, as a model: needs no device. */
static int model_one(const char *path, const struct replay_arguments *a,
                     const struct replay_options *options, const struct trace_options *trace)
{
    static struct model_result result; /* large, and one runs at a time */
    struct trace_reader *reader = NULL;
    uint64_t limit = a->limit_bytes ? a->limit_bytes : a->device.memory_bytes;
    int code = open_trace(path, a, options, trace, &reader);

    if (code)
        return code;
    code = model_run(reader, a->policy, limit, a->events, &result);
    trace_close(reader);
    if (code)
        return cli_fail(code, "replay", "%s", result.problem);
    if (a->json)
        model_report_json(path, &result);
    else
        model_report_text(path, &result);
    if (result.stats.failed_requests)
        return cli_fail(CLI_FAILED, "replay", "%s: %llu requests were refused", path,
                        (unsigned long long)result.stats.failed_requests);
    return CLI_OK;
}

/* Input that is wrong outranks a run that failed: the caller has to look at the input first. */
static int worse(int a, int b)
{
    return a > b ? a : b;
}

static int run(int argc, char **argv)
{
    struct replay_arguments a = {
        .policy = "moonbright", .format = "auto", .trace_device = TRACE_ANY_DEVICE};
    const struct cli_option table[] = {
        {"--backend", CLI_TEXT, &a.device.backend},
        {"--device", CLI_UNSIGNED, &a.ordinal},
        {"--config", CLI_TEXT, &a.device.config},
        {"--device-memory", CLI_BYTES, &a.device.memory_bytes},
        {"--model", CLI_TEXT, &a.device.model},
        {"--seed", CLI_U64, &a.device.seed},
        {"--verify", CLI_CHOICE, &a.verify},
        {"--tables", CLI_CHOICE, &a.tables},
        {"--streams", CLI_UNSIGNED, &a.streams},
        {"--policy", CLI_TEXT, &a.policy},
        {"--limit", CLI_BYTES, &a.limit_bytes},
        {"--events", CLI_U64, &a.events},
        {"--format", CLI_TEXT, &a.format},
        {"--trace-device", CLI_UNSIGNED, &a.trace_device},
        {"--json", CLI_FLAG, &a.json},
        {"--quiet", CLI_FLAG, &a.quiet},
        {NULL, CLI_FLAG, NULL},
    };
    struct replay_options options = {.policy = &replay_policies[0]};
    struct trace_options trace = {0};
    char config[1024];
    bool done = false;
    int count = 0;
    int code = cli_parse(&cli_replay, table, argc, argv, &count, &done);

    if (code || done)
        return code;
    if (!count)
        return cli_fail(CLI_BAD_INPUT, "replay",
                        "no trace was given; expected one or more files, or - for standard input");
    code = check_arguments(&a, &options, &trace);
    if (!code)
        code = device_config("replay", &a.device, config, sizeof(config));
    if (code)
        return code;
    options.config = config;
    for (int i = 1; i <= count; i++)
        code = worse(code, model_named(a.policy) ? model_one(argv[i], &a, &options, &trace)
                                                 : replay_one(argv[i], &a, &options, &trace));
    return code;
}

const struct cli_command cli_replay = {
    .name = "replay",
    .summary = "serve a recorded allocation trace and measure",
    .help =
        "usage: moonbright replay TRACE... [OPTION...]\n\n"
        "TRACE is a log of op,id,bytes,stream lines, an RMM log (Thread,Time,Action,Pointer,Size,\n"
        "Stream) or a PyTorch memory snapshot pickle, gzipped or not; - is standard input.\n\n"
        "  --backend NAME        sim, cuda or hip; default: the best present\n"
        "  --device N            which GPU, from 0; the software GPU is there 8 times\n"
        "  --model NAME          which GPU the software GPU is, as h200, a100, mi210\n"
        "  --device-memory SIZE  of the software GPU, or a cap on a real one: 80GiB\n"
        "  --config K:V,...      more configuration, as in the variable MOONBRIGHT\n"
        "  --verify[=full]       write and read back block edges and a word in every frame; full:\n"
        "                        every word\n"
        "  --tables[=repair]     compare every page-table entry with the library's record when "
        "the\n"
        "                        trace has ended and when all is freed; repair: write the record\n"
        "                        over what differs. What differs is a failure either way\n"
        "  --streams N           spread the trace over N streams (2 to 64) with uses across them\n"
        "  --seed N              of contents and spreading; also lets the software GPU run what "
        "can\n"
        "                        run in an order drawn from N, instead of the order of the calls\n"
        "  --policy NAME         moonbright (default), moonbright-blocking, or a model of another\n"
        "                        allocator: torch-caching, torch-expandable, tf-bfc, cuda-async,\n"
        "                        gmlake, with options as in torch-caching,max_split_size:200MiB\n"
        "  --limit SIZE          refuse to hold more frames than this\n"
        "  --events N            stop after N events\n"
        "  --format NAME         torch-csv, rmm-csv, torch-snapshot; default: by the first bytes\n"
        "  --trace-device N      of a snapshot with several devices\n"
        "  --json                one JSON object for each trace, on one line\n"
        "  --quiet               no progress\n\n"
        "Exit status: 0 all is well, 1 a request failed or an access was wrong, 2 bad input.\n",
    .run = run,
};
