/* SPDX-License-Identifier: MIT */
/*
 * snapshot.c - the pickle that PyTorch writes from torch.cuda.memory._snapshot().
 *
 * A dict with «device_traces», for each device a list of dicts (action, addr, size, stream, ...),
 * and «segments», what the allocator held when the snapshot was taken. A free counts when it has
 * completed (free_completed), as only then PyTorch itself may reuse the block. What was held before
 * the first event is segments minus what the events took and gave back, so that PyTorch's own peak
 * is right also when recording began late or old events were dropped.
 */
#include "pickle.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_PICKLE_BYTES ((uint64_t)4 << 30)
#define DEFAULT_PICKLE_MEMORY ((uint64_t)1 << 30)

/* Owner: the reader. */
struct snapshot {
    struct trace_core core;
    struct pickle_document *document;
    const struct pickle_items *events; /* of the device, in the document */
    uint32_t next;                     /* index of the next event */
};

enum action {
    ACTION_BAD, /* not text */
    ACTION_ALLOC,
    ACTION_FREE,
    ACTION_SEGMENT_ALLOC,
    ACTION_SEGMENT_FREE,
    ACTION_OOM,
    ACTION_IGNORED, /* says nothing about memory, or is of a newer PyTorch */
};

static enum action action_of(const struct pickle_value *value)
{
    static const struct {
        const char *name;
        enum action action;
    } names[] = {
        {"alloc", ACTION_ALLOC},
        {"free_completed", ACTION_FREE},
        {"segment_alloc", ACTION_SEGMENT_ALLOC},
        {"segment_map", ACTION_SEGMENT_ALLOC},
        {"segment_free", ACTION_SEGMENT_FREE},
        {"segment_unmap", ACTION_SEGMENT_FREE},
        {"oom", ACTION_OOM},
    };

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (pickle_is_text(value, names[i].name))
            return names[i].action;
    return value && value->kind == PICKLE_STR ? ACTION_IGNORED : ACTION_BAD;
}

static enum trace_status need_unsigned(struct snapshot *self, const struct pickle_value *event,
                                       const char *key, uint64_t *out)
{
    if (!pickle_unsigned(pickle_get(event, key), out))
        return trace_core_fail(
            &self->core, self->next,
            "the event has no \"%s\" that is a whole number, 0 or more; expected "
            "action, addr, size, stream",
            key);
    return TRACE_OK;
}

/* One event of the list; *use false if it moves no memory. */
static enum trace_status read_event(struct snapshot *self, const struct pickle_value *value,
                                    struct trace_record *record, bool *use)
{
    enum action action = action_of(pickle_get(value, "action"));
    enum trace_status status;

    static const enum trace_op ops[] = {
        [ACTION_ALLOC] = TRACE_ALLOC,
        [ACTION_FREE] = TRACE_FREE,
        [ACTION_SEGMENT_ALLOC] = TRACE_SEGMENT_ALLOC,
        [ACTION_SEGMENT_FREE] = TRACE_SEGMENT_FREE,
        [ACTION_OOM] = TRACE_ALLOC_FAILED,
    };

    *use = false;
    if (action == ACTION_BAD)
        return trace_core_fail(&self->core, self->next,
                               "the event is a %s without a text \"action\"; expected a dict with "
                               "action, addr, size, stream",
                               pickle_kind_name(value->kind));
    if (action == ACTION_IGNORED) {
        self->core.info.ignored++;
        return TRACE_OK;
    }
    *record = (struct trace_record){.op = ops[action], .line = self->next, .bytes_known = true};
    status = need_unsigned(self, value, "size", &record->bytes);
    if (!status)
        status = need_unsigned(self, value, "stream", &record->stream);
    if (!status && action != ACTION_OOM)
        status = need_unsigned(self, value, "addr", &record->block);
    *use = true;
    return status;
}

static enum trace_status snapshot_next(void *opaque, struct trace_event *event)
{
    struct snapshot *self = opaque;
    struct trace_record record = {0};
    bool use;

    while (self->next < self->events->count) {
        const struct pickle_value *value = &self->events->values[self->next];
        enum trace_status status = read_event(self, value, &record, &use);

        if (!status && use)
            status = trace_core_accept(&self->core, &record, event);
        self->next++;
        if (status || use)
            return status;
    }
    return TRACE_END;
}

static const struct trace_info *snapshot_info(void *opaque)
{
    struct snapshot *self = opaque;

    return &self->core.info;
}

static const char *snapshot_error(void *opaque)
{
    struct snapshot *self = opaque;

    return self->core.error;
}

static void snapshot_close(void *opaque)
{
    struct snapshot *self = opaque;

    pickle_free(self->document);
    trace_core_fini(&self->core);
    free(self);
}

/* ------------------------------------------------------------------ opening */

static const struct pickle_items *sequence_of(const struct pickle_value *value)
{
    if (!value || (value->kind != PICKLE_LIST && value->kind != PICKLE_TUPLE))
        return NULL;
    return value->u.items;
}

static enum trace_status fail_open(struct snapshot *self, const char *text)
{
    snprintf(self->core.error, sizeof(self->core.error), "%.200s:offset 0: %s", self->core.name,
             text);
    return TRACE_BAD_INPUT;
}

/* Chooses the device and its events. */
static enum trace_status find_events(struct snapshot *self, unsigned device)
{
    const struct pickle_value *root = pickle_root(self->document);
    const struct pickle_items *traces = sequence_of(pickle_get(root, "device_traces"));
    const struct pickle_items *events;

    if (root->kind != PICKLE_DICT || !traces)
        return fail_open(self, "the pickle is no PyTorch memory snapshot; expected a dict with a "
                               "list \"device_traces\"");
    for (uint32_t i = 0; i < traces->count; i++) {
        events = sequence_of(&traces->values[i]);
        if (!events)
            return fail_open(self,
                             "\"device_traces\" holds something else than lists; expected one "
                             "list of events for each device");
        if (!events->count)
            continue;
        self->core.info.devices++;
        if (!self->events && (device == TRACE_ANY_DEVICE || device == i)) {
            self->events = events;
            self->core.info.device = i;
        }
    }
    if (!self->events)
        return fail_open(self, device == TRACE_ANY_DEVICE
                                   ? "the snapshot holds no events; expected one taken after "
                                     "torch.cuda.memory._record_memory_history()"
                                   : "the snapshot has no events of that device; expected another "
                                     "device number");
    return TRACE_OK;
}

/* Bytes in segments of the device when the snapshot was taken. */
static uint64_t segment_total(const struct snapshot *self)
{
    const struct pickle_items *segments =
        sequence_of(pickle_get(pickle_root(self->document), "segments"));
    uint64_t total = 0;

    for (uint32_t i = 0; segments && i < segments->count; i++) {
        uint64_t device = 0;
        uint64_t bytes = 0;

        (void)pickle_unsigned(pickle_get(&segments->values[i], "device"), &device);
        if (device == self->core.info.device &&
            pickle_unsigned(pickle_get(&segments->values[i], "total_size"), &bytes) &&
            bytes <= TRACE_BLOCK_MAX && total <= TRACE_RUNNING_MAX - bytes)
            total += bytes;
    }
    return total;
}

/* What was held before the first event: what is held after the last, undone event by event. */
static void set_initial_segments(struct snapshot *self)
{
    uint64_t held = segment_total(self);

    for (uint32_t i = self->events->count; i-- > 0;) {
        const struct pickle_value *event = &self->events->values[i];
        enum action action = action_of(pickle_get(event, "action"));
        uint64_t bytes = 0;

        if ((action != ACTION_SEGMENT_ALLOC && action != ACTION_SEGMENT_FREE) ||
            !pickle_unsigned(pickle_get(event, "size"), &bytes) || bytes > TRACE_BLOCK_MAX)
            continue;
        if (action == ACTION_SEGMENT_FREE)
            held += bytes <= TRACE_RUNNING_MAX - held ? bytes : 0;
        else
            held -= bytes <= held ? bytes : held;
    }
    self->core.info.segment_bytes = held;
    self->core.info.segment_peak_bytes = held;
}

static enum trace_status load(struct snapshot *self, struct trace_input *input,
                              const struct trace_options *options)
{
    const struct trace_limits *limits = &options->limits;
    char problem[256];
    uint64_t offset = 0;
    enum trace_status status;

    trace_input_limit(input, limits->pickle_bytes ? limits->pickle_bytes : DEFAULT_PICKLE_BYTES);
    status =
        pickle_read(input, limits->pickle_memory ? limits->pickle_memory : DEFAULT_PICKLE_MEMORY,
                    &self->document, &offset, problem);
    if (status) {
        snprintf(self->core.error, sizeof(self->core.error), "%.200s:offset %" PRIu64 ": %s",
                 self->core.name, offset, problem);
        return status;
    }
    status = find_events(self, options->device);
    if (!status)
        set_initial_segments(self);
    return status;
}

static const struct trace_source_ops snapshot_ops = {snapshot_next, snapshot_info, snapshot_error,
                                                     snapshot_close};

enum trace_status trace_snapshot_open(struct trace_input *input, const char *name,
                                      const struct trace_options *options,
                                      struct trace_reader **out, char *error, size_t error_size)
{
    struct snapshot *self = calloc(1, sizeof(*self));
    struct trace_reader *reader = self ? trace_reader_new(&snapshot_ops, self) : NULL;
    enum trace_status status;

    if (!reader) {
        snprintf(error, error_size, "%s: the host is out of memory", name);
        free(self);
        return TRACE_HOST_MEMORY;
    }
    trace_core_init(&self->core, name, TRACE_FORMAT_SNAPSHOT, &options->limits);
    self->core.position = "event ";
    status = load(self, input, options);
    if (status) {
        snprintf(error, error_size, "%s", self->core.error);
        trace_close(reader);
        return status;
    }
    trace_input_close(input);
    *out = reader;
    return TRACE_OK;
}
