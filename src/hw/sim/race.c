/* SPDX-License-Identifier: MIT */
/*
 * race.c - do two streams touch the same bytes without an order between them?
 *
 * Vector clocks over tickets: clock[k] of a stream is the last ticket of stream k that is known to
 * have passed before the stream's present operation. A wait joins the clock of the stream waited
 * for; what the host has seen pass is joined at the next enqueue. A join takes the other stream's
 * present clock, which may know more than it did at the fence: the check may miss an order
 * violation through a third stream, and never invents one.
 *
 * Cost: a hash entry per 512 bytes touched, so this is for small programs; off by default.
 */
#include "hw/sim/dev.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool watched(const struct mb_hw_stream *stream)
{
    return stream->id < SIM_RACE_STREAMS && !stream->helper;
}

/* The stream's clock, made at first use; NULL: not watched, or no host memory. */
static uint64_t *clock_of(struct mb_hw_stream *stream)
{
    if (!stream->clock && stream->id < SIM_RACE_STREAMS)
        stream->clock = calloc(SIM_RACE_STREAMS, sizeof(*stream->clock));
    return stream->clock;
}

static void join(uint64_t *clock, const uint64_t *with)
{
    for (unsigned i = 0; with && i < SIM_RACE_STREAMS; i++) {
        if (with[i] > clock[i])
            clock[i] = with[i];
    }
}

enum mb_err mb__sim_race_check(struct mb_hw_dev *hw, bool on)
{
    struct sim_dev *dev = sim_dev_of(hw);
    enum mb_err err = MB_OK;

    sim_lock(dev);
    if (on && !dev->races.cell) {
        dev->races.cells = (size_t)1 << 16;
        dev->races.cell = calloc(dev->races.cells, sizeof(*dev->races.cell));
        if (!dev->races.cell)
            err = mb__fail(MB_ERR_HOST_MEMORY, "software GPU: no host memory for the race check");
    }
    dev->races.on = on && !err;
    sim_unlock(dev);
    return err;
}

void mb__sim_race_close(struct sim_dev *dev)
{
    free(dev->races.cell);
}

void mb__sim_race_host(struct sim_dev *dev, struct mb_hw_fence fence)
{
    struct sim_races *races = &dev->races;

    if (!races->on)
        return;
    for (unsigned i = 0; i < dev->stream_count; i++) {
        struct mb_hw_stream *stream = dev->stream[i];

        /* No stream: the host waited for all of them. */
        if (!watched(stream) || (fence.stream && fence.stream != stream))
            continue;
        if (!fence.stream)
            races->host[stream->id] = stream->seq;
        else if (races->host[stream->id] < fence.seq)
            races->host[stream->id] = fence.seq;
        join(races->host, stream->clock);
    }
    races->host_version++;
}

enum mb_err mb__sim_race_enqueue(struct sim_dev *dev, struct mb_hw_stream *stream)
{
    enum { WORDS = SIM_RACE_STREAMS * 2 };
    uint32_t words[WORDS];
    struct sim_op *op;
    enum mb_err err;

    if (stream->host_version == dev->races.host_version)
        return MB_OK;
    err = mb__sim_stream_reserve(stream, 1, WORDS);
    if (err)
        return err;
    op = mb__sim_stream_push(stream, SIM_OP_JOIN);
    memcpy(words, dev->races.host, sizeof(words));
    mb__sim_stream_append(stream, op, words, WORDS);
    stream->host_version = dev->races.host_version;
    return MB_OK;
}

void mb__sim_race_step(struct sim_dev *dev, struct mb_hw_stream *stream, const struct sim_op *op)
{
    uint64_t known[SIM_RACE_STREAMS];
    uint64_t *clock = dev->races.on ? clock_of(stream) : NULL;
    const struct mb_hw_stream *other = op->fence.stream;

    if (!clock)
        return;
    if (op->kind == SIM_OP_JOIN) {
        memcpy(known, mb__sim_stream_data(stream), sizeof(known));
        join(clock, known);
    } else if (other) {
        join(clock, other->clock);
        if (watched(other) && clock[other->id] < op->fence.seq)
            clock[other->id] = op->fence.seq;
    }
}

static struct sim_cell *cell_at(const struct sim_races *races, uint64_t piece)
{
    size_t i = (size_t)(piece * MB_PATTERN_GOLDEN >> 20) & (races->cells - 1);

    while (races->cell[i].piece && races->cell[i].piece != piece + 1)
        i = (i + 1) & (races->cells - 1);
    return &races->cell[i];
}

/* Twice the cells; false: no host memory, the check goes off. */
static bool grow(struct sim_races *races)
{
    struct sim_races bigger = {.cells = 2 * races->cells};

    bigger.cell = calloc(bigger.cells, sizeof(*bigger.cell));
    if (!bigger.cell) {
        races->on = false;
        return false;
    }
    for (size_t i = 0; i < races->cells; i++) {
        if (races->cell[i].piece)
            *cell_at(&bigger, races->cell[i].piece - 1) = races->cell[i];
    }
    free(races->cell);
    races->cell = bigger.cell;
    races->cells = bigger.cells;
    return true;
}

static void report(struct sim_dev *dev, const struct mb_hw_stream *stream, uint64_t piece,
                   const char *what, unsigned other, uint64_t seq)
{
    if (dev->sim.races++)
        return;
    snprintf(
        dev->races.first, sizeof(dev->races.first),
        "stream %u %s physical 0x%llx, which stream %u used at its ticket %llu; no fence orders "
        "the two",
        stream->id, what, (unsigned long long)piece << SIM_RACE_SHIFT, other,
        (unsigned long long)seq);
}

static void touch(struct sim_dev *dev, const struct mb_hw_stream *stream, const uint64_t *clock,
                  uint64_t seq, uint64_t piece, bool write)
{
    struct sim_cell *cell = cell_at(&dev->races, piece);
    unsigned me = stream->id;

    if (!cell->piece) {
        cell->piece = piece + 1;
        dev->races.used++;
    }
    if (cell->write_seq && cell->writer != me && clock[cell->writer] < cell->write_seq)
        report(dev, stream, piece, write ? "writes" : "reads", cell->writer, cell->write_seq);
    for (unsigned i = 0; write && i < 2; i++) {
        if (cell->read_seq[i] && cell->reader[i] != me &&
            clock[cell->reader[i]] < cell->read_seq[i])
            report(dev, stream, piece, "writes", cell->reader[i], cell->read_seq[i]);
    }
    if (write) {
        cell->writer = (uint8_t)me;
        cell->write_seq = seq;
        cell->read_seq[0] = cell->read_seq[1] = 0;
    } else {
        unsigned i = cell->read_seq[0] && cell->reader[0] != me;

        cell->reader[i] = (uint8_t)me;
        cell->read_seq[i] = seq;
    }
}

void mb__sim_race_access(struct sim_dev *dev, struct mb_hw_stream *stream, uint64_t phys,
                         uint64_t bytes, bool write)
{
    uint64_t *clock = dev->races.on && watched(stream) ? clock_of(stream) : NULL;
    uint64_t last = (phys + bytes - 1) >> SIM_RACE_SHIFT;

    if (!clock)
        return;
    for (uint64_t piece = phys >> SIM_RACE_SHIFT; piece <= last; piece++) {
        if (dev->races.used * 2 > dev->races.cells && !grow(&dev->races))
            return;
        touch(dev, stream, clock, mb__sim_stream_head(stream)->seq, piece, write);
    }
}

void mb__sim_first_race(struct mb_hw_dev *hw, char *text, size_t size)
{
    struct sim_dev *dev = sim_dev_of(hw);

    sim_lock(dev);
    snprintf(text, size, "%s", dev->races.first);
    sim_unlock(dev);
}
