/* SPDX-License-Identifier: MIT */
/*
 * fault.c - see fault.h. Functions that cannot fail are passed on by the same wrapper, so that the
 * inner device always sees itself.
 *
 * LOCKING  Counts are atomic; plans are written while no other thread calls, or lose a race by one
 * use.
 */
#include "hw/fault.h"

#ifdef MB_FAULT_INJECTION

#include <stdlib.h>

#include "base/err.h"

/* What shall happen to one function, or to all together. */
struct plan {
    uint64_t uses; /* atomic */
    uint64_t at;   /* fails at this use; 0: never */
    enum mb_err err;
    bool lasting;
};

struct fault_dev {
    struct mb_hw_dev hw; /* first */
    struct mb_hw_ops ops;
    struct mb_hw_dev *inner; /* owned */
    struct plan plan[MB_HW_FAULT_OPS + 1];
    uint64_t hits; /* atomic */
};

static _Thread_local struct {
    enum mb_hw_fault_op op;
    struct plan plan; /* at 0: none */
    bool submit_fence;
} next;

static struct fault_dev *of(struct mb_hw_dev *hw)
{
    return (struct fault_dev *)hw;
}

const char *mb__hw_fault_name(enum mb_hw_fault_op op)
{
    static const char *const name[] = {
#define NAME(name) #name,
        MB_HW_FAULT_LIST(NAME)
#undef NAME
            "any",
    };

    return op <= MB_HW_FAULT_ANY ? name[op] : "?";
}

static enum mb_err use(struct plan *plan)
{
    uint64_t n = __atomic_add_fetch(&plan->uses, 1, __ATOMIC_RELAXED);

    if (!plan->at || n < plan->at || (n > plan->at && !plan->lasting))
        return MB_OK;
    return plan->err;
}

/* Counts a use; the error to return, or MB_OK. */
static enum mb_err trip(struct mb_hw_dev *hw, enum mb_hw_fault_op op)
{
    struct fault_dev *dev = of(hw);
    enum mb_err any = use(&dev->plan[MB_HW_FAULT_ANY]), err = use(&dev->plan[op]);

    err = err ? err : any;
    if (!err)
        return MB_OK;
    __atomic_add_fetch(&dev->hits, 1, __ATOMIC_RELAXED);
    return mb__fail(err, "injected: %s fails at its use %llu", mb__hw_fault_name(op),
                    (unsigned long long)__atomic_load_n(&dev->plan[op].uses, __ATOMIC_RELAXED));
}

/* PASS(name, (parameters), (arguments)): counted, then passed on. */
#define PASS(name, parameters, arguments)                                                          \
    static enum mb_err name parameters                                                             \
    {                                                                                              \
        enum mb_err err = trip(dev, MB_HW_FAULT_##name);                                           \
                                                                                                   \
        dev = of(dev)->inner;                                                                      \
        return err ? err : dev->ops->name arguments;                                               \
    }

PASS(va_reserve, (struct mb_hw_dev * dev, uint64_t bytes, uint64_t align, mb_va *out),
     (dev, bytes, align, out))
PASS(va_release, (struct mb_hw_dev * dev, mb_va va, uint64_t bytes), (dev, va, bytes))
PASS(slab_acquire, (struct mb_hw_dev * dev, uint64_t bytes, mb_va home, struct mb_hw_slab *out),
     (dev, bytes, home, out))
PASS(slab_release, (struct mb_hw_dev * dev, struct mb_hw_slab *slab), (dev, slab))
PASS(table_alloc, (struct mb_hw_dev * dev, uint64_t bytes, uint64_t *phys), (dev, bytes, phys))
PASS(tree_adopt, (struct mb_hw_dev * dev, mb_va va, uint64_t bytes, struct mb_hw_view *out),
     (dev, va, bytes, out))
PASS(submit,
     (struct mb_hw_dev * dev, struct mb_hw_stream *stream, const struct mb_hw_cmd *cmds,
      unsigned count),
     (dev, stream, cmds, count))
/* One use: what it is made of where the inner device lacks it is not counted. */
static enum mb_err submit_fence(struct mb_hw_dev *dev, struct mb_hw_stream *stream,
                                const struct mb_hw_cmd *cmds, unsigned count,
                                struct mb_hw_fence *done)
{
    enum mb_err err = trip(dev, MB_HW_FAULT_submit_fence);

    dev = of(dev)->inner;
    if (!err && dev->ops->submit_fence)
        return dev->ops->submit_fence(dev, stream, cmds, count, done);
    if (!err)
        err = dev->ops->submit(dev, stream, cmds, count);
    return err ? err : dev->ops->fence_record(dev, stream, done);
}

PASS(stream_create, (struct mb_hw_dev * dev, mb_stream *native), (dev, native))
PASS(stream_destroy, (struct mb_hw_dev * dev, mb_stream native), (dev, native))
PASS(stream_open, (struct mb_hw_dev * dev, mb_stream native, struct mb_hw_stream **out),
     (dev, native, out))
PASS(fence_record, (struct mb_hw_dev * dev, struct mb_hw_stream *stream, struct mb_hw_fence *out),
     (dev, stream, out))
PASS(fence_wait_stream,
     (struct mb_hw_dev * dev, struct mb_hw_stream *stream, struct mb_hw_fence fence),
     (dev, stream, fence))
PASS(fence_wait_host, (struct mb_hw_dev * dev, struct mb_hw_fence fence, uint64_t timeout_ns),
     (dev, fence, timeout_ns))
PASS(device_sync, (struct mb_hw_dev * dev), (dev))
PASS(fill,
     (struct mb_hw_dev * dev, struct mb_hw_stream *stream, mb_va va, uint64_t bytes, uint64_t seed),
     (dev, stream, va, bytes, seed))
PASS(verify,
     (struct mb_hw_dev * dev, struct mb_hw_stream *stream, mb_va va, uint64_t bytes, uint64_t seed),
     (dev, stream, va, bytes, seed))
PASS(copy,
     (struct mb_hw_dev * dev, struct mb_hw_stream *stream, mb_va dst, mb_va src, uint64_t bytes),
     (dev, stream, dst, src, bytes))
PASS(copy_list,
     (struct mb_hw_dev * dev, struct mb_hw_stream *stream, const struct mb_copy *list,
      unsigned count),
     (dev, stream, list, count))
PASS(read_slots,
     (struct mb_hw_dev * dev, const struct mb_hw_view *view, uint32_t first, uint32_t count,
      struct mb_pte *out),
     (dev, view, first, count, out))

PASS(scrub_slots,
     (struct mb_hw_dev * dev, const struct mb_hw_view *view, uint32_t first, uint32_t count,
      const struct mb_scrub_want *want, uint32_t *wrong, uint32_t capacity, uint32_t *differing),
     (dev, view, first, count, want, wrong, capacity, differing))

/* The peer is such a device too: all devices of a build are. */
static enum mb_err peer_access(struct mb_hw_dev *dev, struct mb_hw_dev *peer, mb_va va,
                               uint32_t frames, const mb_pfn *pfns, enum mb_prot prot)
{
    enum mb_err err = trip(dev, MB_HW_FAULT_peer_access);

    dev = of(dev)->inner;
    return err ? err : dev->ops->peer_access(dev, of(peer)->inner, va, frames, pfns, prot);
}

/* A wait like the other one. */
static enum mb_err event_wait(struct mb_hw_dev *dev, struct mb_hw_stream *stream,
                              struct mb_hw_fence fence)
{
    enum mb_err err = trip(dev, MB_HW_FAULT_fence_wait_stream);

    dev = of(dev)->inner;
    return err ? err : dev->ops->event_wait(dev, stream, fence);
}

static bool stream_capturing(struct mb_hw_dev *dev, mb_stream native)
{
    dev = of(dev)->inner;
    return dev->ops->stream_capturing(dev, native);
}

static void table_free(struct mb_hw_dev *dev, uint64_t phys, uint64_t bytes)
{
    dev = of(dev)->inner;
    dev->ops->table_free(dev, phys, bytes);
}

static uint64_t root_phys(struct mb_hw_dev *dev)
{
    dev = of(dev)->inner;
    return dev->ops->root_phys(dev);
}

static void tree_disown(struct mb_hw_dev *dev, struct mb_hw_view *view)
{
    dev = of(dev)->inner;
    dev->ops->tree_disown(dev, view);
}

static void stream_close(struct mb_hw_dev *dev, struct mb_hw_stream *stream)
{
    dev = of(dev)->inner;
    dev->ops->stream_close(dev, stream);
}

static bool fence_done(struct mb_hw_dev *dev, struct mb_hw_fence fence)
{
    dev = of(dev)->inner;
    return dev->ops->fence_done(dev, fence);
}

static void counters(struct mb_hw_dev *dev, struct mb_hw_counters *out)
{
    dev = of(dev)->inner;
    dev->ops->counters(dev, out);
}

static enum mb_err health(struct mb_hw_dev *dev)
{
    dev = of(dev)->inner;
    return dev->ops->health(dev);
}

static void intend(struct mb_hw_dev *dev, mb_va va, uint32_t count, unsigned leaf_shift,
                   const mb_pfn *pfns)
{
    dev = of(dev)->inner;
    dev->ops->intend(dev, va, count, leaf_shift, pfns);
}

static void close_both(struct mb_hw_dev *dev)
{
    of(dev)->inner->ops->close(of(dev)->inner);
    free(of(dev));
}

/* Functions that the inner device lacks stay NULL. */
static void fill_ops(struct mb_hw_ops *ops, const struct mb_hw_ops *inner)
{
    *ops = *inner;
#define SET(name) ops->name = inner->name ? name : NULL;
    MB_HW_FAULT_LIST(SET)
    SET(table_free)
    SET(root_phys)
    SET(tree_disown)
    SET(stream_close)
    SET(fence_done)
    SET(counters)
    SET(health)
    SET(intend)
    SET(stream_capturing)
    SET(event_wait)
#undef SET
    ops->close = close_both;
}

enum mb_err mb__hw_fault_wrap(struct mb_hw_dev *inner, struct mb_hw_dev **out)
{
    struct fault_dev *dev = calloc(1, sizeof(*dev));

    if (!dev)
        return mb__fail(MB_ERR_HOST_MEMORY, "no host memory for a device that fails");
    fill_ops(&dev->ops, inner->ops);
    if (next.submit_fence)
        dev->ops.submit_fence = submit_fence;
    dev->inner = inner;
    dev->hw.ops = &dev->ops;
    dev->hw.caps = inner->caps;
    if (next.plan.at) {
        dev->plan[next.op] = next.plan;
        next.plan.at = 0;
    }
    *out = &dev->hw;
    return MB_OK;
}

struct mb_hw_dev *mb__hw_fault_inner(struct mb_hw_dev *dev)
{
    return of(dev)->inner;
}

void mb__hw_fault_set(struct mb_hw_dev *dev, enum mb_hw_fault_op op, uint64_t n, enum mb_err err,
                      bool lasting)
{
    struct plan *plan = &of(dev)->plan[op];

    plan->err = err;
    plan->lasting = lasting;
    plan->at = n;
    __atomic_store_n(&plan->uses, 0, __ATOMIC_RELEASE);
}

void mb__hw_fault_next(enum mb_hw_fault_op op, uint64_t n, enum mb_err err, bool lasting)
{
    next.op = op;
    next.plan = (struct plan){.at = n, .err = err, .lasting = lasting};
}

void mb__hw_fault_submit_fence(bool on)
{
    next.submit_fence = on;
}

uint64_t mb__hw_fault_uses(struct mb_hw_dev *dev, enum mb_hw_fault_op op)
{
    return __atomic_load_n(&of(dev)->plan[op].uses, __ATOMIC_RELAXED);
}

uint64_t mb__hw_fault_hits(struct mb_hw_dev *dev)
{
    return __atomic_load_n(&of(dev)->hits, __ATOMIC_RELAXED);
}

#else

/* Not part of this build. */
extern int mb__hw_fault_absent;

#endif
