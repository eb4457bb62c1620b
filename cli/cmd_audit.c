/* SPDX-License-Identifier: MIT */
/*
 * cmd_audit.c - `moonbright audit`: what an audit log tells, for a frame, for an address, or in
 * all.
 *
 * A batch's outcome stands behind its changes, so a log is read twice: first for the outcomes, then
 * for what is asked. Of a damaged log that is what stands before the damage.
 */
#include "audit_mapped.h"
#include "cli.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "moonbright.h"

enum {
    PFN_SHIFT = 12, /* frame numbers in messages are of 4 KiB */
};

/* What became of a batch. */
struct outcome {
    uint64_t session, batch;
    enum mb_audit_kind kind; /* DONE or UNDONE */
};

struct audit {
    struct outcome *outcomes; /* in the order of the log */
    size_t count, capacity;
    uint64_t session; /* of the record being read, from 1 */
    char device[MB_AUDIT_CALL];
    bool by_frame, by_va, mapped, failed;
    uint64_t phys, va; /* asked for */
    uint64_t shown;    /* records printed */
    uint64_t of[MB_AUDIT_KINDS];
    struct audit_mapped last; /* with `mapped` */
};

/* ------------------------------------------------------------------ outcomes */

static void note_outcome(void *user, const struct mb_audit_record *record)
{
    struct audit *audit = user;

    audit->session += record->kind == MB_AUDIT_SESSION;
    audit->of[record->kind]++;
    if (record->kind != MB_AUDIT_DONE && record->kind != MB_AUDIT_UNDONE)
        return;
    if (audit->count == audit->capacity) {
        size_t capacity = audit->capacity ? 2 * audit->capacity : 256;
        struct outcome *grown = realloc(audit->outcomes, capacity * sizeof(*grown));

        if (!grown) {
            audit->failed = true;
            return;
        }
        audit->outcomes = grown;
        audit->capacity = capacity;
    }
    audit->outcomes[audit->count++] = (struct outcome){audit->session, record->batch, record->kind};
}

static int compare_outcomes(const void *a, const void *b)
{
    const struct outcome *x = a, *y = b;

    if (x->session != y->session)
        return x->session < y->session ? -1 : 1;
    return x->batch < y->batch ? -1 : x->batch > y->batch;
}

static enum audit_outcome outcome_of(const struct audit *audit, uint64_t batch)
{
    struct outcome key = {audit->session, batch, MB_AUDIT_DONE};
    const struct outcome *found = NULL;

    if (!batch)
        return AUDIT_DONE;
    if (audit->count)
        found = bsearch(&key, audit->outcomes, audit->count, sizeof(key), compare_outcomes);
    if (!found)
        return AUDIT_UNKNOWN;
    return found->kind == MB_AUDIT_DONE ? AUDIT_DONE : AUDIT_REFUSED;
}

/* ------------------------------------------------------------------ printing */

static void print_time(uint64_t ns)
{
    time_t seconds = (time_t)(ns / 1000000000);
    struct tm tm;
    char text[32];

    if (!gmtime_r(&seconds, &tm) || !strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &tm))
        snprintf(text, sizeof(text), "%" PRIu64, (uint64_t)seconds);
    printf("%s.%09" PRIu64 "Z", text, ns % 1000000000);
}

/* The part of the record that was asked for: one page, or all of it. */
static void print_record(const struct audit *audit, const struct mb_audit_record *record)
{
    static const char *const access[] = {"no access", "read-only", "", "read-write"};
    static const char *const outcomes[] = {"", " (refused; nothing changed)",
                                           " (planned; whether it was done is not known)"};
    uint64_t skip = 0, bytes = record->bytes;

    if (audit->by_frame)
        skip = (audit->phys - record->phys) & ~(uint64_t)((1 << PFN_SHIFT) - 1);
    else if (audit->by_va)
        skip = (audit->va - record->va) & ~(uint64_t)((1 << PFN_SHIFT) - 1);
    if (audit->by_frame || audit->by_va)
        bytes = (uint64_t)1 << PFN_SHIFT;
    print_time(record->time_ns);
    printf("  pid %" PRIu32 "  %-8s frame 0x%" PRIx64 " at 0x%" PRIx64, record->pid,
           mb_audit_name(record->kind), (record->phys + skip) >> PFN_SHIFT, record->va + skip);
    if (bytes > (uint64_t)1 << PFN_SHIFT)
        printf(" and on, %" PRIu64 " bytes", bytes);
    if (record->kind == MB_AUDIT_MAP || record->kind == MB_AUDIT_PROTECT ||
        record->kind == MB_AUDIT_PEER)
        printf(", %s", access[record->prot & 3]);
    if (record->kind == MB_AUDIT_PEER)
        printf(" for device %" PRIu64, record->stream);
    printf(", owner %" PRIu32 ", by %s", record->owner, record->call[0] ? record->call : "?");
    if (record->stream && record->kind != MB_AUDIT_PEER)
        printf(" on stream 0x%" PRIx64, record->stream);
    if (record->batch)
        printf(", batch %" PRIu64, record->batch);
    printf("%s\n", outcomes[outcome_of(audit, record->batch)]);
}

static void print_session(const struct audit *audit, const struct mb_audit_record *record)
{
    print_time(record->time_ns);
    printf("  pid %" PRIu32 "  %-8s %s\n", record->pid,
           record->kind == MB_AUDIT_SESSION ? "open" : "close",
           record->kind == MB_AUDIT_SESSION ? record->call : audit->device);
}

static void show(void *user, const struct mb_audit_record *record)
{
    struct audit *audit = user;

    if (record->kind == MB_AUDIT_SESSION) {
        audit->session++;
        memcpy(audit->device, record->call, sizeof(audit->device));
    }
    if (audit->mapped) {
        audit_mapped_take(&audit->last, record, outcome_of(audit, record->batch));
        return;
    }
    if (record->kind == MB_AUDIT_SESSION || record->kind == MB_AUDIT_CLOSE) {
        print_session(audit, record);
        return;
    }
    if (!record->bytes)
        return;
    if (audit->by_frame && audit->phys - record->phys >= record->bytes)
        return;
    if (audit->by_va && audit->va - record->va >= record->bytes)
        return;
    audit->shown++;
    print_record(audit, record);
}

static void print_summary(const struct audit *audit, const struct mb_audit_summary *sum)
{
    if (!sum->records) {
        printf("the log is empty\n");
        return;
    }
    printf("%" PRIu64 " records, %" PRIu64 " sessions, the last %s\n", sum->records, sum->sessions,
           sum->closed ? "closed" : "not closed: its process was killed, or is running");
    printf("%" PRIu64 " batches done, %" PRIu64 " refused\n", audit->of[MB_AUDIT_DONE],
           audit->of[MB_AUDIT_UNDONE]);
    if (audit->of[MB_AUDIT_REPAIR])
        printf("%" PRIu64 " entries were written over by repairs\n", audit->of[MB_AUDIT_REPAIR]);
    if (sum->tail_bytes)
        printf("the last %" PRIu64 " bytes of the file are torn and were not read\n",
               sum->tail_bytes);
}

/* ------------------------------------------------------------------ what was mapped */

static void print_mapped(void *user, const struct mb_audit_record *record)
{
    print_record(user, record);
}

static void add_bytes(void *user, const struct mb_audit_record *record)
{
    uint64_t *bytes = user;

    bytes[record->kind == MB_AUDIT_HOME ? 0 : 1] += record->bytes;
}

static int show_mapped(struct audit *audit)
{
    const struct audit_mapped *last = &audit->last;
    uint64_t bytes[2] = {0, 0};

    if (last->odd)
        return cli_fail(CLI_FAILED, "audit",
                        "the log has records that are not of whole pages of "
                        "2 MiB; --all shows them");
    if (last->no_memory || !audit_mapped_each(last, add_bytes, bytes))
        return cli_fail(CLI_FAILED, "audit", "there is no memory for all that was mapped");
    if (last->closed || !last->session.sequence) {
        printf("nothing is mapped: %s\n",
               last->closed ? "the last session was closed" : "the log is empty");
        return CLI_OK;
    }
    print_session(audit, &last->session);
    printf("not closed: its process was killed, or is running. %" PRIu64
           " bytes are mapped at their home, %" PRIu64 " in windows\n",
           bytes[0], bytes[1]);
    if (!audit_mapped_each(last, print_mapped, audit))
        return cli_fail(CLI_FAILED, "audit", "there is no memory for all that was mapped");
    for (size_t i = 0; i < last->open.count; i++)
        print_record(audit, &last->open.at[i]);
    return CLI_OK;
}

/* ------------------------------------------------------------------ command */

static int read_twice(struct audit *audit, const char *path, bool all)
{
    bool shows = all || audit->by_frame || audit->by_va || audit->mapped;
    struct mb_audit_summary sum = {0};
    enum mb_err err = mb_audit_read(path, note_outcome, audit, &sum);
    int code = CLI_OK;

    if (!err && audit->failed)
        return cli_fail(CLI_FAILED, "audit", "there is no memory for %zu batches", audit->count);
    if (audit->count)
        qsort(audit->outcomes, audit->count, sizeof(*audit->outcomes), compare_outcomes);
    audit->session = 0;
    if (shows && (!err || err == MB_ERR_CORRUPT))
        err = mb_audit_read(path, show, audit, &sum);
    if (audit->mapped && (!err || err == MB_ERR_CORRUPT))
        code = show_mapped(audit);
    if (err)
        return cli_fail(err == MB_ERR_IO || err == MB_ERR_PARSE ? CLI_BAD_INPUT : CLI_FAILED,
                        "audit", "%s", mb_error_detail());
    if ((audit->by_frame || audit->by_va) && !audit->shown)
        printf("nothing in the log names it\n");
    if (!shows)
        print_summary(audit, &sum);
    return code;
}

static int run(int argc, char **argv)
{
    struct audit audit = {0};
    const char *frame = NULL, *va = NULL;
    bool all = false, done = false;
    const struct cli_option options[] = {{"--frame", CLI_TEXT, &frame},
                                         {"--va", CLI_TEXT, &va},
                                         {"--all", CLI_FLAG, &all},
                                         {"--mapped", CLI_FLAG, &audit.mapped},
                                         {NULL, CLI_FLAG, NULL}};
    int count = 0, code = cli_parse(&cli_audit, options, argc, argv, &count, &done);

    if (code || done)
        return code;
    if (count != 1)
        return cli_fail(CLI_BAD_INPUT, "audit", "%d files were given; expected one", count);
    if ((frame != NULL) + (va != NULL) + all + audit.mapped > 1)
        return cli_fail(CLI_BAD_INPUT, "audit",
                        "--frame, --va, --all and --mapped exclude each other");
    if (frame && (!cli_parse_u64(frame, &audit.phys) || audit.phys >> (64 - PFN_SHIFT)))
        return cli_fail(CLI_BAD_INPUT, "audit",
                        "--frame is \"%.64s\"; expected a frame number as messages print it",
                        frame);
    if (va && !cli_parse_u64(va, &audit.va))
        return cli_fail(CLI_BAD_INPUT, "audit", "--va is \"%.64s\"; expected an address", va);
    audit.phys <<= PFN_SHIFT;
    audit.by_frame = frame != NULL;
    audit.by_va = va != NULL;
    code = read_twice(&audit, argv[1], all);
    audit_mapped_free(&audit.last);
    free(audit.outcomes);
    return code;
}

const struct cli_command cli_audit = {
    .name = "audit",
    .summary = "who mapped a frame when, from an audit log",
    .help = "usage: moonbright audit FILE [--frame N | --va ADDRESS | --mapped | --all]\n\n"
            "FILE was written by a device opened with audit:FILE.\n"
            "  --frame N     everything that happened to frame N, a number of 4 KiB frames as "
            "messages\n"
            "                print it\n"
            "  --va ADDRESS  everything that happened at an address\n"
            "  --mapped      what was mapped when the last session ended, as by a kill, or is now\n"
            "  --all         every record\n"
            "Without one of these: how many sessions, records and batches there are.\n",
    .run = run,
};
