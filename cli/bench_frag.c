/* SPDX-License-Identifier: MIT */
/*
 * bench_frag.c - `moonbright bench frag`: how much memory each policy holds to serve each trace.
 *
 * MoonBright itself runs through its public interface, on the software GPU unless told otherwise;
 * the other policies are models (models/model.h) and marked so; what PyTorch reported when the
 * traces were recorded, and what the driver's pool held when it was given them, stands below.
 */
#include "bench.h"
#include "config.h"
#include "data.h"
#include "json.h"
#include "models/run.h"
#include "replay.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum {
    POLICIES_MAX = 32,
    POLICY_BYTES = 128,
    TRACES_MAX = 64,
    STREAMS_MAX = 64,
};

static const char default_policies[] =
    "moonbright+torch-caching+torch-expandable+tf-bfc+cuda-async+"
    "gmlake+gmlake,frag_limit:2MiB";

static const char *const bundled[] = {"densenet161", "gpt2", "llama-recompute",
                                      "moe-offload-recompute", "llama-generate-beam4"};

/* One run of the bench. */
struct frag {
    struct device_options device;
    const char *policies; /* as typed, joined by + */
    const char *commit;   /* of the tree that was built, for the JSON; NULL: not told */
    uint64_t limit_bytes;
    unsigned streams, ordinal;
    bool as_json;

    char policy[POLICIES_MAX][POLICY_BYTES];
    unsigned policy_count;
    char config[1024];
    struct json_writer json;
    int code; /* the worst so far */
};

/* One line of the table; what is not known is UINT64_MAX. */
struct frag_row {
    const char *trace, *policy, *mark;
    uint64_t allocated_bytes, granted_bytes, reserved_bytes;
    double efficiency;
    uint64_t driver_calls, failed_requests;
};

/* ------------------------------------------------------------------ output */

static const char *known(uint64_t value, bool bytes, char text[CLI_NUMBER_MAX])
{
    if (value == UINT64_MAX)
        return "-";
    return bytes ? cli_format_bytes(value, text) : cli_format_count(value, text);
}

static void print_head(void)
{
    printf("%-23s%-36s%11s%11s%11s%11s%9s%8s\n", "trace", "policy", "allocated", "granted",
           "reserved", "alloc/res", "driver", "failed");
    printf("%-23s%-36s%11s%11s%11s%11s%9s\n", "", "", "peak", "peak", "peak", "", "calls");
}

static void print_row(const struct frag_row *row)
{
    char allocated[CLI_NUMBER_MAX];
    char granted[CLI_NUMBER_MAX];
    char reserved[CLI_NUMBER_MAX];
    char calls[CLI_NUMBER_MAX];
    char failed[CLI_NUMBER_MAX];
    int used = printf("%-23s%s%s%s", row->trace, row->policy, *row->mark ? " " : "", row->mark);

    /* The mark's two quotes take two bytes each and one column. */
    used -= strcmp(row->mark, MODEL_MARK) ? 0 : 2;
    printf("%*s%11s%11s%11s%10.2f%%%9s%8s\n", used < 59 ? 59 - used : 1, "",
           known(row->allocated_bytes, true, allocated), known(row->granted_bytes, true, granted),
           known(row->reserved_bytes, true, reserved), 100 * row->efficiency,
           known(row->driver_calls, false, calls), known(row->failed_requests, false, failed));
    fflush(stdout);
}

static void json_head(struct json_writer *w, const char *trace, const char *policy, bool model,
                      const char *label)
{
    json_object(w, NULL);
    json_text(w, "trace", trace);
    json_text(w, "policy", policy);
    json_bool(w, "model", model);
    json_text(w, "label", label);
}

/* ------------------------------------------------------------------ policies */

static int failed(struct frag *frag, const char *trace, const char *policy, int code,
                  const char *problem)
{
    if (code > frag->code)
        frag->code = code;
    return cli_fail(code, "bench frag", "%s with %s: %s", trace, policy, problem);
}

static int open_trace(struct frag *frag, const char *path, struct trace_reader **out)
{
    const struct trace_options options = {.device = TRACE_ANY_DEVICE};
    struct trace_reader *reader = NULL;
    struct trace_reader *spread = NULL;
    char error[1024];

    if (trace_open(path, &options, &reader, error, sizeof(error)))
        return cli_fail(CLI_BAD_INPUT, "bench frag", "%s", error);
    if (frag->streams && trace_open_streams(reader, frag->streams, frag->device.seed, &spread)) {
        trace_close(reader);
        return cli_fail(CLI_FAILED, "bench frag", "the host is out of memory");
    }
    *out = spread ? spread : reader;
    return CLI_OK;
}

static int run_model(struct frag *frag, struct trace_reader *reader, const char *trace,
                     const char *spec)
{
    static struct model_result r; /* large, and one runs at a time */
    struct frag_row row = {.trace = trace, .policy = spec, .mark = MODEL_MARK};
    int code = model_run(reader, spec, frag->limit_bytes, 0, &r);

    if (code)
        return failed(frag, trace, spec, code, r.problem);
    row.allocated_bytes = r.stats.requested_peak_bytes;
    row.granted_bytes = r.stats.granted_peak_bytes;
    row.reserved_bytes = r.stats.reserved_peak_bytes;
    row.efficiency =
        r.stats.reserved_peak_bytes ? (double)row.allocated_bytes / (double)row.reserved_bytes : 1;
    row.driver_calls = model_driver_calls(&r.stats);
    row.failed_requests = r.stats.failed_requests;
    if (frag->as_json) {
        json_head(&frag->json, trace, spec, true, MODEL_MARK);
        json_text(&frag->json, "backend", NULL);
        model_json_figures(&frag->json, &r);
        json_end_object(&frag->json);
    } else {
        print_row(&row);
    }
    return CLI_OK;
}

static void json_moonbright(struct frag *frag, const struct frag_row *row,
                            const struct replay_result *r)
{
    struct json_writer *w = &frag->json;

    json_head(w, row->trace, row->policy, false, "");
    json_text(w, "backend", r->backend);
    json_text(w, "tables", r->tables);
    json_u64(w, "peak_allocated_bytes", row->allocated_bytes);
    json_u64(w, "peak_granted_bytes", row->granted_bytes);
    json_u64(w, "peak_reserved_bytes", row->reserved_bytes);
    json_u64(w, "peak_frames_used_bytes", r->stats.frames_used_peak_bytes);
    json_double(w, "efficiency", row->efficiency);
    json_u64(w, "failed_requests", row->failed_requests);
    json_text(w, "driver_calls", NULL); /* the library does not count them */
    json_u64(w, "map_batches", r->stats.map_batches);
    json_u64(w, "unmap_batches", r->stats.unmap_batches);
    json_u64(w, "entries_written", r->stats.entries_written);
    json_u64(w, "invalidates", r->stats.invalidates);
    json_u64(w, "stitches", r->stats.stitches);
    json_u64(w, "wrong_accesses", r->stats.wrong_accesses + r->stats.wrong_words + r->stats.faults);
    json_end_object(w);
}

static int run_moonbright(struct frag *frag, struct trace_reader *reader, const char *trace,
                          const char *name)
{
    static struct replay_result r; /* large, and one runs at a time */
    struct replay_options options = {.config = frag->config,
                                     .device = frag->ordinal,
                                     .seed = frag->device.seed,
                                     .limit_bytes = frag->limit_bytes,
                                     .quiet = true};
    struct frag_row row = {.trace = trace, .policy = name, .mark = "", .driver_calls = UINT64_MAX};
    int code;

    if (!replay_policy_by_name(name, &options.policy))
        return failed(frag, trace, name, CLI_BAD_INPUT,
                      "there is no such policy; --help lists them");
    code = replay_run(reader, trace, &options, &r);
    /* Refused requests are a result here, as they are of the models; all else is a failure. */
    if (!r.backend[0] || r.bad_input || (code && !r.failed_requests))
        return failed(frag, trace, name, code ? code : CLI_FAILED, r.problem);
    /* With refusals, what was served: the same as of the models. */
    row.allocated_bytes =
        r.failed_requests ? r.stats.requested_peak_bytes : r.trace.requested_peak_bytes;
    row.granted_bytes = r.stats.allocated_peak_bytes;
    row.reserved_bytes = r.stats.reserved_peak_bytes;
    row.efficiency =
        row.reserved_bytes ? (double)row.allocated_bytes / (double)row.reserved_bytes : 1;
    row.failed_requests = r.failed_requests;
    if (frag->as_json)
        json_moonbright(frag, &row, &r);
    else
        print_row(&row);
    return CLI_OK;
}

/* What was measured elsewhere, and by whom: for the bundled traces as they are. */
struct measured {
    const char *name, *label;
    uint64_t allocated, granted; /* UINT64_MAX: not known */
    uint64_t reserved;
    double efficiency;
};

static void show_measured(struct frag *frag, const char *trace, const struct measured *m)
{
    struct frag_row row = {.trace = trace,
                           .policy = m->name,
                           .mark = "(measured)",
                           .allocated_bytes = m->allocated,
                           .granted_bytes = m->granted,
                           .reserved_bytes = m->reserved,
                           .efficiency = m->efficiency,
                           .driver_calls = UINT64_MAX,
                           .failed_requests = UINT64_MAX};

    if (!frag->as_json) {
        print_row(&row);
        return;
    }
    json_head(&frag->json, trace, m->name, false, m->label);
    if (m->allocated != UINT64_MAX)
        json_u64(&frag->json, "peak_allocated_bytes", m->allocated);
    if (m->granted != UINT64_MAX)
        json_u64(&frag->json, "peak_granted_bytes", m->granted);
    json_u64(&frag->json, "peak_reserved_bytes", m->reserved);
    json_double(&frag->json, m->allocated != UINT64_MAX ? "efficiency" : "efficiency_granted",
                m->efficiency);
    json_end_object(&frag->json);
}

/* By name and, as other traces may have that name too, by the most that was asked for. */
static void show_recorded(struct frag *frag, const char *trace, uint64_t asked)
{
    struct recorded_result r;
    struct measured m = {.label = "measured by PyTorch 2.11 on one H200", .allocated = UINT64_MAX};

    /* PyTorch reports GiB with two decimals, of sizes that it has rounded up. */
    if (data_recorded(trace, &r) && asked > r.allocated_bytes / 100 * 95 &&
        asked <= r.allocated_bytes / 100 * 105) {
        m.granted = r.allocated_bytes;
        m.name = "PyTorch, default";
        m.reserved = r.reserved_bytes;
        m.efficiency = r.efficiency;
        show_measured(frag, trace, &m);
        m.name = "PyTorch, expandable";
        m.reserved = r.reserved_expandable_bytes;
        m.efficiency = r.efficiency_expandable;
        show_measured(frag, trace, &m);
    }
    if (data_recorded_pool(trace, &m.allocated, &m.reserved) && asked == m.allocated) {
        m.name = "CUDA's pool";
        m.label = "measured on one H200, driver 580.159.04";
        m.granted = UINT64_MAX;
        m.efficiency = (double)m.allocated / (double)m.reserved;
        show_measured(frag, trace, &m);
    }
}

/* ------------------------------------------------------------------ the bench */

/* Returns an enum cli_exit for what ends the bench; a policy's failure does not. */
static int run_trace(struct frag *frag, const char *path)
{
    char trace[64];
    uint64_t asked = 0;

    trace_short_name(path, trace, sizeof(trace));
    for (unsigned i = 0; i < frag->policy_count; i++) {
        const char *policy = frag->policy[i];
        struct trace_reader *reader = NULL;
        int code = open_trace(frag, path, &reader);

        if (code)
            return code;
        if (model_named(policy))
            code = run_model(frag, reader, trace, policy);
        else
            code = run_moonbright(frag, reader, trace, policy);
        asked = trace_info(reader)->requested_peak_bytes;
        trace_close(reader);
        if (code == CLI_BAD_INPUT)
            return code;
    }
    if (!frag->streams && !frag->limit_bytes)
        show_recorded(frag, trace, asked);
    return CLI_OK;
}

static int split_policies(struct frag *frag)
{
    const char *at = frag->policies;

    do {
        size_t length = strcspn(at, "+");

        if (!length || (at[length] && !at[length + 1]) || length >= POLICY_BYTES ||
            frag->policy_count == POLICIES_MAX)
            return cli_fail(CLI_BAD_INPUT, "bench frag",
                            "--policies is \"%.64s\"; expected up to %d names of up to %d bytes, "
                            "joined by +",
                            frag->policies, POLICIES_MAX, POLICY_BYTES - 1);
        memcpy(frag->policy[frag->policy_count++], at, length);
        at += length;
        at += *at == '+';
    } while (*at);
    return CLI_OK;
}

/* What shapes a device needs a policy that opens one. */
static int check_device(const struct frag *frag, bool shaped)
{
    for (unsigned i = 0; i < frag->policy_count; i++)
        if (!model_named(frag->policy[i]))
            return CLI_OK;
    return shaped ? cli_fail(CLI_BAD_INPUT, "bench frag",
                             "--backend, --device and --config have no meaning for models, which "
                             "open no device; name moonbright in --policies, too")
                  : CLI_OK;
}

static void begin_json(struct frag *frag, int argc, char **argv)
{
    struct json_writer *w = &frag->json;

    w->out = stdout;
    json_object(w, NULL);
    json_text(w, "bench", "frag");
    json_text(w, "version", mb_version());
    json_text(w, "commit", frag->commit);
    json_array(w, "command");
    json_text(w, NULL, "moonbright");
    json_text(w, NULL, "bench");
    for (int i = 0; i < argc; i++)
        json_text(w, NULL, argv[i]);
    json_end_array(w);
    json_u64(w, "limit_bytes", frag->limit_bytes);
    json_u64(w, "generated_streams", frag->streams);
    json_u64(w, "seed", frag->device.seed);
    json_array(w, "rows");
}

static void print_foot(const struct frag *frag)
{
    char text[CLI_NUMBER_MAX];

    printf("\nallocated: what the trace asked for; granted: after the policy's rounding; reserved: "
           "all bytes\nheld from the driver; alloc/res: their ratio, for PyTorch's measured rows "
           "granted "
           "by reserved.\n" MODEL_MARK
           " rows are calculated from the policy's rules (doc/models.md); MoonBright ran%s.\n",
           frag->device.backend && strcmp(frag->device.backend, "sim") != 0
               ? " on the chosen backend"
               : " on the software GPU");
    if (frag->limit_bytes)
        printf("No policy was allowed to hold more than %s.\n",
               cli_format_bytes(frag->limit_bytes, text));
}

static int run_bundled(struct frag *frag)
{
    int code = CLI_OK;

    for (size_t i = 0; i < sizeof(bundled) / sizeof(bundled[0]) && !code; i++) {
        char name[64];
        char path[4096];

        snprintf(name, sizeof(name), "torch/%s.csv.gz", bundled[i]);
        if (!data_find(name, path, sizeof(path)))
            return cli_fail(CLI_FAILED, "bench frag",
                            "the bundled trace is not at %s; name traces, or set MOONBRIGHT_DATA "
                            "to the directory that holds torch/",
                            path);
        code = run_trace(frag, path);
    }
    return code;
}

static int run_all(struct frag *frag, int argc, char **words, int count, char **argv)
{
    int code = CLI_OK;

    if (frag->as_json)
        begin_json(frag, argc, words);
    else
        print_head();
    if (!count)
        code = run_bundled(frag);
    for (int i = 1; i <= count && !code; i++)
        code = run_trace(frag, argv[i]);
    if (frag->as_json) {
        json_end_array(&frag->json);
        json_bool(&frag->json, "ok", !code && !frag->code);
        json_end_object(&frag->json);
        json_finish(&frag->json);
    } else if (!code) {
        print_foot(frag);
    }
    return code > frag->code ? code : frag->code;
}

static int run(int argc, char **argv)
{
    static struct frag frag; /* large, and a process runs one */
    const struct cli_option table[] = {
        {"--policies", CLI_TEXT, &frag.policies},      {"--limit", CLI_BYTES, &frag.limit_bytes},
        {"--streams", CLI_UNSIGNED, &frag.streams},    {"--seed", CLI_U64, &frag.device.seed},
        {"--backend", CLI_TEXT, &frag.device.backend}, {"--device", CLI_UNSIGNED, &frag.ordinal},
        {"--config", CLI_TEXT, &frag.device.config},   {"--commit", CLI_TEXT, &frag.commit},
        {"--json", CLI_FLAG, &frag.as_json},           {NULL, CLI_FLAG, NULL},
    };
    char *words[TRACES_MAX];
    int count = 0;
    bool done = false;
    int code;

    if (argc > TRACES_MAX)
        return cli_fail(CLI_BAD_INPUT, "bench frag", "%d words were given; at most %d are allowed",
                        argc, TRACES_MAX);
    memcpy(words, argv, (size_t)argc * sizeof(*words)); /* as typed, for the record */
    frag = (struct frag){.policies = default_policies, .device = {.seed = 1}};
    code = cli_parse(&cli_bench_frag, table, argc, argv, &count, &done);
    if (code || done)
        return code;
    if (frag.streams > STREAMS_MAX || frag.streams == 1)
        return cli_fail(CLI_BAD_INPUT, "bench frag",
                        "--streams is %u; expected 2 to %d, or 0 for the trace's own", frag.streams,
                        STREAMS_MAX);
    code = split_policies(&frag);
    if (!code)
        code = check_device(&frag, frag.device.backend || frag.device.config || frag.ordinal);
    if (!frag.device.backend)
        frag.device.backend = "sim";
    if (!code)
        code = device_config("bench frag", &frag.device, frag.config, sizeof(frag.config));
    return code ? code : run_all(&frag, argc, words, count, argv);
}

const struct cli_command cli_bench_frag = {
    .name = "bench frag",
    .summary = "memory held by each policy to serve each trace",
    .help =
        "usage: moonbright bench frag [TRACE...] [OPTION...]\n\n"
        "Without TRACE: the five bundled ones.\n\n"
        "  --policies A+B+...  default: moonbright, all models, gmlake,frag_limit:2MiB. A model "
        "may\n"
        "                      be followed by its options: torch-caching,max_split_size:200MiB.\n"
        "                      Models: torch-caching, torch-expandable, tf-bfc, cuda-async, "
        "gmlake\n"
        "  --limit SIZE        no policy may hold more: who fails first\n"
        "  --streams N         spread the traces over N streams (2 to 64)\n"
        "  --seed N            of the spreading and the software GPU; default 1\n"
        "  --backend NAME      of moonbright; default sim\n"
        "  --device N          of moonbright: which GPU, from 0\n"
        "  --config K:V,...    of moonbright, as in the variable MOONBRIGHT\n"
        "  --json              one JSON object\n"
        "  --commit TEXT       which commit was built, for the JSON\n\n"
        "Models are marked «model» in the table and \"model\": true in JSON.\n",
    .run = run,
};
