/* SPDX-License-Identifier: MIT */
/*
 * graph.c - capture and replay, as far as memory is concerned: a graph is a list of accesses at
 * addresses that were fixed when it was captured.
 *
 * What each address must show is asked anew at every launch, so an address that is unmapped or
 * somebody else's by then is seen like a use after free: by the oracle, or by what the next owner
 * finds. A captured stream has no point in time: a fence recorded there does not pass before
 * something is executed on the stream after the capture.
 *
 * Fork and join  A stream that waits for a fence of a captured one is captured into the same graph
 *                from then on, until the capture ends where it began; by then it must have been
 *                waited for, as in CUDA. Accesses stand in the order in which they were captured,
 *                which is one of the orders that the graph allows, and a launch runs them in it.
 */
#include "hw/sim/dev.h"

#include <stdlib.h>

#include "base/vec.h"

struct node {
    enum sim_op_kind kind;
    mb_va va, src;
    uint64_t bytes, seed;
};

struct mb_sim_graph {
    MB_VEC(struct node) nodes;
    const struct mb_hw_stream *origin; /* of the capture; NULL once it is over */
};

enum mb_err mb__sim_not_captured(const struct mb_hw_stream *stream, const char *what)
{
    if (!stream->graph)
        return MB_OK;
    return mb__fail(MB_ERR_NOT_SUPPORTED, "%s: stream %u is being captured", what, stream->id);
}

bool mb__sim_graph_takes(struct mb_hw_stream *stream, enum sim_op_kind kind, mb_va va, mb_va src,
                         uint64_t bytes, uint64_t seed, enum mb_err *err)
{
    struct node node = {kind, va, src, bytes, seed};

    if (!stream->graph)
        return false;
    stream->joined = false;
    *err = MB_VEC_PUSH(&stream->graph->nodes, node)
               ? MB_OK
               : mb__fail(MB_ERR_HOST_MEMORY, "software GPU: no host memory for a graph");
    return true;
}

bool mb__sim_graph_takes_list(struct mb_hw_stream *stream, const struct mb_copy *list,
                              unsigned count, enum mb_err *err)
{
    if (!stream->graph)
        return false;
    *err = MB_VEC_RESERVE(&stream->graph->nodes, stream->graph->nodes.count + count)
               ? MB_OK
               : mb__fail(MB_ERR_HOST_MEMORY, "software GPU: no host memory for a graph");
    for (unsigned i = 0; !*err && i < count; i++)
        if (list[i].bytes)
            (void)mb__sim_graph_takes(stream, SIM_OP_COPY, mb__va((uintptr_t)list[i].dst),
                                      mb__va((uintptr_t)list[i].src), list[i].bytes, 0, err);
    return true;
}

enum mb_err mb__sim_capture_wait(struct mb_hw_stream *stream, struct mb_hw_stream *other,
                                 bool inside)
{
    struct sim_dev *dev = stream->dev;

    if (!inside)
        return mb__fail(MB_ERR_NOT_SUPPORTED,
                        "stream %u is being captured, and the event is of work outside of the "
                        "capture: let the stream wait for it before the capture begins",
                        stream->id);
    if (stream->graph && stream->graph != other->graph)
        return mb__fail(MB_ERR_NOT_SUPPORTED,
                        "streams %u and %u are being captured into two graphs, and no graph waits "
                        "for another inside: order their launches",
                        stream->id, other->id);
    if (!stream->graph) {
        __atomic_add_fetch(&dev->captures, 1, __ATOMIC_RELAXED);
        stream->graph = other->graph;
    }
    stream->joined = false;
    other->joined = true;
    return MB_OK;
}

/* No stream is captured into the graph any more. */
static void detach(struct sim_dev *dev, struct mb_sim_graph *graph)
{
    for (unsigned i = 0; i < dev->stream_count; i++) {
        if (dev->stream[i]->graph != graph)
            continue;
        dev->stream[i]->graph = NULL;
        __atomic_sub_fetch(&dev->captures, 1, __ATOMIC_RELAXED);
    }
    graph->origin = NULL;
}

void mb__sim_captures_close(struct sim_dev *dev)
{
    for (unsigned i = 0; i < dev->stream_count; i++) {
        struct mb_sim_graph *graph = dev->stream[i]->graph;

        if (!graph)
            continue;
        detach(dev, graph);
        mb__sim_graph_free(graph);
    }
}

/* Handles of this backend are its streams; NULL is the default one. */
static struct mb_hw_stream *stream_of(struct sim_dev *dev, mb_stream native)
{
    struct mb_hw_stream *stream = native ? native : dev->stream[0];

    return mb__sim_stream_known(dev, stream) ? stream : NULL;
}

enum mb_err mb__sim_capture_begin(struct mb_hw_dev *hw, mb_stream native)
{
    struct sim_dev *dev = sim_dev_of(hw);
    struct mb_hw_stream *stream;
    struct mb_sim_graph *graph;
    enum mb_err err = MB_OK;

    sim_lock(dev);
    stream = stream_of(dev, native);
    if (!stream || stream->graph) {
        err = mb__fail(MB_ERR_INVALID, "capture: %p is no stream, or is captured already", native);
    } else if (!(graph = calloc(1, sizeof(*graph)))) {
        err = mb__fail(MB_ERR_HOST_MEMORY, "software GPU: no host memory for a graph");
    } else {
        /* In this order: gcc 12's analyzer loses what a structure holds at the first builtin. */
        __atomic_add_fetch(&dev->captures, 1, __ATOMIC_RELAXED);
        graph->origin = stream;
        stream->graph = graph;
    }
    sim_unlock(dev);
    return err;
}

/* A stream of the capture that nobody waited for after its last work; NULL: none. */
static const struct mb_hw_stream *left_over(const struct sim_dev *dev,
                                            const struct mb_sim_graph *graph)
{
    for (unsigned i = 0; i < dev->stream_count; i++) {
        const struct mb_hw_stream *stream = dev->stream[i];

        if (stream->graph == graph && stream != graph->origin && !stream->joined)
            return stream;
    }
    return NULL;
}

enum mb_err mb__sim_capture_end(struct mb_hw_dev *hw, mb_stream native, struct mb_sim_graph **out)
{
    struct sim_dev *dev = sim_dev_of(hw);
    const struct mb_hw_stream *loose;
    struct mb_hw_stream *stream;
    struct mb_sim_graph *graph;
    enum mb_err err = MB_OK;

    sim_lock(dev);
    stream = stream_of(dev, native);
    graph = stream ? stream->graph : NULL;
    if (!graph || graph->origin != stream) {
        err = mb__fail(MB_ERR_INVALID, "capture: none began on %p", native);
        goto out;
    }
    loose = left_over(dev, graph);
    if (loose) {
        err = mb__fail(MB_ERR_INVALID, "capture: stream %u was forked and never joined", loose->id);
        detach(dev, graph);
        mb__sim_graph_free(graph);
        goto out;
    }
    detach(dev, graph);
    *out = graph;
out:
    sim_unlock(dev);
    return err;
}

enum mb_err mb__sim_graph_launch(struct mb_hw_dev *hw, const struct mb_sim_graph *graph,
                                 struct mb_hw_stream *stream)
{
    struct sim_dev *dev = sim_dev_of(hw);
    enum mb_err err;

    sim_lock(dev);
    err = mb__sim_not_captured(stream, "graph launch");
    for (size_t i = 0; !err && i < graph->nodes.count; i++) {
        const struct node *node = &graph->nodes.data[i];

        err = mb__sim_access_enqueue(dev, stream, node->kind, node->va, node->src, node->bytes,
                                     node->seed, 0);
    }
    sim_unlock(dev);
    return err;
}

void mb__sim_graph_free(struct mb_sim_graph *graph)
{
    if (!graph)
        return;
    MB_VEC_FREE(&graph->nodes);
    free(graph);
}

/* On the way of every malloc: a device on which nothing is captured is not locked. */
bool mb__sim_stream_capturing(struct mb_hw_dev *hw, mb_stream native)
{
    struct sim_dev *dev = sim_dev_of(hw);
    const struct mb_hw_stream *stream;
    bool capturing;

    if (!__atomic_load_n(&dev->captures, __ATOMIC_RELAXED))
        return false;
    sim_lock(dev);
    stream = stream_of(dev, native);
    capturing = stream && stream->graph;
    sim_unlock(dev);
    return capturing;
}
