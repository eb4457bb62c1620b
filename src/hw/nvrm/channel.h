/*
 * channel.h - a helper channel: a queue of the GPU's own in the control address space.
 *
 * It runs on a copy engine that libcuda does not use, may issue TLB invalidates for any page
 * directory (the driver gives that right to a client with CAP_SYS_ADMIN), and copies memory of the
 * control space. Several channels may live on one client; in isolated mode there is one per stream,
 * so that no queue holds a wait in front of work that does not depend on it.
 *
 * A submission is a list of encoded segments (push.h). It gets a ticket; it is done when the
 * channel's progress word has reached the ticket, which happens after all its engine work. Tickets
 * of a channel start at 1, grow by 1 and never wrap.
 *
 * The channel never overwrites words or ring entries that the GPU may still read: both are given
 * back by the progress word alone (newer GPUs do not report their read position). When there is no
 * room a submission waits up to its time limit, or returns MB_ERR_BUSY at once if that is 0.
 *
 * LOCKING  One mutex per channel, held by submit and wait while they look; a submission that waits
 *          for room keeps it. done and error only read memory and need no lock. Encoding needs
 *          none.
 * ORDER    Submissions of one channel execute in the order in which submit returned.
 */
#ifndef MB_HW_NVRM_CHANNEL_H
#define MB_HW_NVRM_CHANNEL_H

#include "hw/nvrm/memory.h"
#include "hw/nvrm/push.h"

struct nvrm_channel_request {
    uint32_t ring_entries; /* a power of two, 8 to 16384; 0: 1024 */
    uint32_t push_bytes;   /* multiple of 4096; 0: 1 MiB */
    int copy_engine;       /* index of the copy engine, or -1: the GPU's list, first that works */
    uint32_t timeslice_us; /* how long it may keep its engine from others; 0: the driver's */
    uint64_t start_timeout_ns; /* for the first, empty submission that proves it alive; 0: 2 s */
};

struct nvrm_channel_stats {
    uint64_t submissions, segments, words; /* since creation */
    uint64_t waits_for_room;               /* submissions that found no room at first */
};

struct nvrm_channel;

/* Creates, schedules and tries a channel. Needs CAP_SYS_ADMIN for invalidates to be accepted. */
enum mb_err mb__nvrm_channel_create(struct nvrm_vas *vas,
                                    const struct nvrm_channel_request *request,
                                    struct nvrm_channel **out);
/* Does not wait: what is queued is dropped. Sets *channel to NULL; NULL inside is allowed. */
void mb__nvrm_channel_destroy(struct nvrm_channel **channel);

/* Largest sum of words of one submission. */
uint32_t mb__nvrm_channel_max_words(const struct nvrm_channel *channel);
/* The copy engine's index; class and generation are in the client. */
int mb__nvrm_channel_engine(const struct nvrm_channel *channel);
void mb__nvrm_channel_stats(struct nvrm_channel *channel, struct nvrm_channel_stats *out);

/*
 * Copies `count` segments into the ring, in order, and rings the doorbell once. Errors, each with
 * nothing sent: MB_ERR_INVALID (a segment is empty or marked), MB_ERR_LIMIT (too large),
 * MB_ERR_BUSY and MB_ERR_TIMEOUT (no room), MB_ERR_DEVICE_LOST.
 */
enum mb_err mb__nvrm_channel_submit(struct nvrm_channel *channel, const struct nvrm_push *segments,
                                    uint32_t count, uint64_t timeout_ns, uint64_t *ticket);

/* Rings the doorbell again when something is unfinished. For a watchdog: a ring that the GPU missed
 * costs its period, not the channel. Any thread. */
void mb__nvrm_channel_poke(struct nvrm_channel *channel);

bool mb__nvrm_channel_done(const struct nvrm_channel *channel, uint64_t ticket);
/* MB_ERR_TIMEOUT, or MB_ERR_DEVICE_LOST as soon as the driver reports an error of the channel. */
enum mb_err mb__nvrm_channel_wait(struct nvrm_channel *channel, uint64_t ticket,
                                  uint64_t timeout_ns);

/* Waits for all that was submitted before the call; errors as wait. An acquire that nobody
 * satisfies keeps a channel from becoming idle: satisfy it first. */
enum mb_err mb__nvrm_channel_idle(struct nvrm_channel *channel, uint64_t timeout_ns);

/* What the driver recorded when it stopped the channel. */
struct nvrm_channel_error {
    uint32_t code;        /* exception number, as in the kernel log's Xid */
    uint32_t engine_type; /* NVRM_ENGINE_COPY0 + n */
    uint64_t time_ns;     /* of the driver's clock */
    const char *text;     /* one line, static */
};
/*
 * For a watchdog; any thread, any rate, a few loads. MB_OK: alive as far as the driver knows (*out
 * untouched). MB_ERR_DEVICE_LOST: stopped for good. A channel that is stuck without an error also
 * answers MB_OK: compare tickets for that.
 */
enum mb_err mb__nvrm_channel_error(const struct nvrm_channel *channel,
                                   struct nvrm_channel_error *out);

#endif
