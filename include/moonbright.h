/*
 * moonbright.h - the public interface of MoonBright, a GPU memory allocator.
 *
 * UNITS      All sizes are bytes, all times nanoseconds unless a name says otherwise.
 * ERRORS     Every call returns enum mb_err; MB_OK is 0. Results go to *out and are untouched on
 *            failure. A failed call changes nothing. mb_error_detail() gives the long text of the
 *            calling thread's last failure: what was asked, what is allowed, what to do.
 * THREADS    All calls may be made from any thread at any time on an open device, except
 *            mb_close(), which must be the last use of it.
 * STREAMS    A call named *_async takes effect in the order of the stream it is given: after
 *            everything enqueued on that stream before it and before everything enqueued later.
 *            It never waits for the device. A stream is the vendor's own (cudaStream_t,
 *            hipStream_t, CUstream) or, on the software GPU, one from mb_stream_create(). NULL is
 *            the default one. What was freed on a stream is remembered by it, and so is a freed
 *            block that mb_record_stream() named it for: before a vendor's stream is destroyed,
 *            mb_stream_destroy() tells MoonBright, or whoever cannot know when that will be calls
 *            mb_stream_seal() behind each free.
 * POINTERS   Device addresses are void * and must not be dereferenced by the host.
 * FORK       After fork() the child's MoonBright is disabled: every call that returns an enum
 *            mb_err returns MB_ERR_FORKED; names of a device are "", and mb_close() does nothing.
 */
#ifndef MOONBRIGHT_H
#define MOONBRIGHT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MB_VERSION_MAJOR 0
#define MB_VERSION_MINOR 1
#define MB_VERSION_PATCH 0

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define MB_API __attribute__((visibility("default")))
#else
#define MB_API
#endif

/* ------------------------------------------------------------------ errors */

/* One list makes the enum, the names and the texts: X(NAME, value, "meaning"). */
#define MB_ERR_LIST(X)                                                                             \
    X(OK, 0, "success")                                                                            \
    X(ERR_INVALID, 1, "an argument is outside what the call allows")                               \
    X(ERR_NO_MEMORY, 2, "the device has no free frames left for this request")                     \
    X(ERR_NO_ADDRESS, 3, "no free virtual address range of that size and alignment")               \
    X(ERR_HOST_MEMORY, 4, "the host is out of memory")                                             \
    X(ERR_NOT_FOUND, 5, "the pointer or handle is not one of this device's")                       \
    X(ERR_DOUBLE_FREE, 6, "the block was freed before")                                            \
    X(ERR_BUSY, 7, "the object is still in use")                                                   \
    X(ERR_LIMIT, 8, "a configured limit would be passed")                                          \
    X(ERR_NOT_SUPPORTED, 9, "this backend or configuration cannot do that")                        \
    X(ERR_PERMISSION, 10, "the process lacks a privilege that the call needs")                     \
    X(ERR_NO_DEVICE, 11, "no such device, or no usable backend")                                   \
    X(ERR_DRIVER, 12, "the vendor's driver refused a call")                                        \
    X(ERR_DEVICE_LOST, 13, "the device context is gone after a fatal fault")                       \
    X(ERR_CONFIG, 14, "a configuration key or value is unknown")                                   \
    X(ERR_PARSE, 15, "the input is not in the expected format")                                    \
    X(ERR_IO, 16, "reading or writing a file failed")                                              \
    X(ERR_TIMEOUT, 17, "the device did not answer in the allowed time")                            \
    X(ERR_DEADLOCK, 18, "streams wait for each other and none can go on")                          \
    X(ERR_CORRUPT, 19, "a record, red zone or page-table entry is not what it must be")            \
    X(ERR_FORKED, 20, "this process is a fork of the one that owns the device")                    \
    X(ERR_NOT_MAPPED, 21, "the address range is not mapped")                                       \
    X(ERR_MAPPED, 22, "the address range is already mapped")                                       \
    X(ERR_PROOF, 23, "the page tables are not what the proof demands; nothing was written")        \
    X(ERR_INTERNAL, 24, "an invariant of MoonBright itself is broken; please report it")

enum mb_err {
#define MB_ERR_ENUM(name, value, text) MB_##name = value,
    MB_ERR_LIST(MB_ERR_ENUM)
#undef MB_ERR_ENUM
};

/* "MB_ERR_NO_MEMORY"; never NULL. Thread-safe. */
MB_API const char *mb_error_name(enum mb_err err);
/* One line of meaning; never NULL. Thread-safe. */
MB_API const char *mb_error_text(enum mb_err err);
/* The calling thread's last failure in full, or "" if none; valid until its next failing call. */
MB_API const char *mb_error_detail(void);
/* "0.1.0" */
MB_API const char *mb_version(void);

/* ------------------------------------------------------------------ devices */

/* In C a handle is a pointer to the struct of its own name. C++ has one name space for both, so
 * there the struct is called otherwise; it is the same pointer. */
#ifdef __cplusplus
#define MB_HANDLE(name) typedef struct name##_opaque *name
#else
#define MB_HANDLE(name) typedef struct name *name
#endif
MB_HANDLE(mb_device);
MB_HANDLE(mb_pool);
MB_HANDLE(mb_mem);       /* physical memory: a list of frames, no address */
MB_HANDLE(mb_event);     /* a point in a stream */
typedef void *mb_stream; /* the vendor's stream handle, or one of mb_stream_create() */

/* What one backend says about itself on this machine; strings live as long as the process. */
struct mb_backend_info {
    const char *name; /* "sim", "cuda", "hip" */
    bool available;   /* it could be opened now */
    bool chosen;      /* it is what mb_open(.., NULL, ..) would take */
    /* Who writes page tables: "simulated", "device-inline", "device-isolated", "driver". */
    const char *tables;
    /* Why it is not available or not chosen, or what limits it; "" if nothing. */
    const char *reason;
    char device_name[96];
    char driver[64];
};

/* Fills up to `capacity` entries in order of preference and stores the number of backends in
 * *count. Opens nothing that changes the machine's state. Thread-safe. */
MB_API enum mb_err mb_backends(struct mb_backend_info *list, unsigned capacity, unsigned *count);

/* Devices of the backend that mb_open(.., config, ..) would take; their ordinals are below
 * *count. Several may be open at once, and each has addresses of its own: a pointer of one given to
 * another is MB_ERR_NOT_FOUND. `config` as there. */
MB_API enum mb_err mb_device_count(const char *config, int *count);

/*
 * Opens device `ordinal`. `config` is "key:value,key:value"; NULL or "" takes $MOONBRIGHT, then the
 * defaults; keys given in `config` win over the variable's. An unknown key or value is
 * MB_ERR_CONFIG. doc/configuration.md lists the keys. Without `backend`, a GPU serves if there is
 * one, otherwise the software GPU; a GPU that is there but cannot be opened as asked is an error.
 */
MB_API enum mb_err mb_open(int ordinal, const char *config, mb_device *out);
/* Waits for the device, returns every frame and address, reports leaks if asked to. NULL is
 * allowed; of several threads that close a device at once, one does. */
MB_API void mb_close(mb_device dev);
/* Waits until everything enqueued on every stream known to MoonBright has finished. */
MB_API enum mb_err mb_device_sync(mb_device dev);
/* Name of the backend that serves `dev`, and who writes its page tables (see mb_backend_info);
 * these and the next are "" if `dev` is not open. */
MB_API const char *mb_device_backend(mb_device dev);
MB_API const char *mb_device_tables(mb_device dev);
/* The device's own name, like "NVIDIA H200"; lives until mb_close(). */
MB_API const char *mb_device_name(mb_device dev);

/* Streams and events. On CUDA and HIP the vendor's own calls serve as well; these work
 * everywhere. */
MB_API enum mb_err mb_stream_create(mb_device dev, mb_stream *out);
/* Waits for nothing: what was freed on the stream is anybody's once its last work has finished. Of
 * a vendor's stream, which stays as it is, MoonBright forgets all: call it before the vendor's own
 * destroy, which is not told to MoonBright. */
MB_API enum mb_err mb_stream_destroy(mb_device dev, mb_stream stream);
/* From here on what has been freed on the stream so far is looked after without it: the vendor may
 * destroy it at any time, and mb_close() does not touch it. Costs a lock, the stream's place on
 * the warm path and, if anything was freed since the last call, one write that is enqueued on
 * it. Of a stream that MoonBright has not seen, and of the default ones, which live as long as the
 * context, it does nothing. The stream is still known: of more than some thousands that come and
 * go under different handles, mb_stream_destroy() is needed.
 * MB_ERR_NOT_SUPPORTED while the stream is captured and something was freed on it. A new stream to
 * which the vendor gives the same handle counts as the old one, as it does for other caching
 * allocators: its work must come after the old one's, or mb_stream_destroy() is called. */
MB_API enum mb_err mb_stream_seal(mb_device dev, mb_stream stream);
MB_API enum mb_err mb_stream_sync(mb_device dev, mb_stream stream);
MB_API enum mb_err mb_event_create(mb_device dev, mb_event *out);
MB_API enum mb_err mb_event_destroy(mb_device dev, mb_event event);
MB_API enum mb_err mb_event_record(mb_device dev, mb_event event, mb_stream stream);
/* Later work of `stream` waits for the event. Also tells the allocator of the dependency. Of an
 * event recorded on a stream that is still captured: `stream` is captured into the same graph from
 * then on, or joined there, and the allocator, which cannot see replays, reuses nothing by it. */
MB_API enum mb_err mb_stream_wait_event(mb_device dev, mb_stream stream, mb_event event);

/* ------------------------------------------------------------------ malloc */

/* Blocks are aligned to 512 bytes. 0 bytes gives a unique address that may only be freed. */
MB_API enum mb_err mb_malloc(mb_device dev, size_t bytes, void **out);
/* Waits for no stream: the caller promises that the block is no longer used by the device, as with
 * cudaFree after a synchronize; use mb_free_async() otherwise. NULL is allowed. See GRAPHS for a
 * pool that keeps its memory. */
MB_API enum mb_err mb_free(mb_device dev, void *ptr);
/* Grows in place where the next addresses are free, otherwise maps the same frames at a longer
 * range, otherwise copies on the default stream and waits. On failure the old block stands. */
MB_API enum mb_err mb_realloc(mb_device dev, void *ptr, size_t bytes, void **out);

/* The block may be used by work enqueued on `stream` after the call, or on streams ordered after
 * it. May make `stream` wait for work that is enqueued on another one, as CUDA's pools do, and by
 * default even while the device has memory. Kernels that wait for what a kernel of another stream
 * will write, or for the host, must not be waited for: such programs open with growth:independent
 * (no waits while there is memory) or set MB_POOL_REUSE_INTERNAL_DEPS to 0 (none at all). */
MB_API enum mb_err mb_malloc_async(mb_device dev, size_t bytes, mb_stream stream, void **out);
/* The block may be reused once `stream` has reached this point. NULL ptr is allowed. */
MB_API enum mb_err mb_free_async(mb_device dev, void *ptr, mb_stream stream);
/* Tells that `stream` uses the block too: a later free waits for what is on that stream at the
 * free. */
MB_API enum mb_err mb_record_stream(mb_device dev, void *ptr, mb_stream stream);

/* ------------------------------------------------------------------ pools */

enum mb_pool_attr {
    MB_POOL_RELEASE_THRESHOLD,   /* bytes kept at a synchronize; default UINT64_MAX */
    MB_POOL_LIMIT,               /* bytes of frames this pool may hold; 0: no limit */
    MB_POOL_REUSE_FOLLOW_EVENTS, /* 1: reuse across streams when an event orders them */
    MB_POOL_REUSE_OPPORTUNISTIC, /* 1: reuse across streams when the free is already complete */
    MB_POOL_REUSE_INTERNAL_DEPS, /* 1: may insert a stream wait to reuse a block */
    MB_POOL_RESERVED_CURRENT,    /* read only from here on; HIGH may be reset by writing 0 */
    MB_POOL_RESERVED_HIGH,
    MB_POOL_USED_CURRENT,
    MB_POOL_USED_HIGH,
    MB_POOL_KEEP, /* writable; 1: for a captured graph, see below. Set before the first block */
};

/*
 * GRAPHS     What is allocated while a stream is captured must stay where it is until the graph is
 *            destroyed, and what is freed there must not serve anybody else. A pool with
 *            MB_POOL_KEEP does that: its blocks are never stitched, no stream waits, its memory is
 *            reused only in the order of the stream that freed it or along events that MoonBright
 *            was told of, and nothing of it goes elsewhere until the attribute is 0 again.
 *            mb_free() of such a block frees in the order of the stream it was allocated on.
 *            Other pools, mb_mem_map_async(), mb_mem_sleep(), mb_mem_wake() and mb_stream_sync()
 *            are MB_ERR_NOT_SUPPORTED on a stream that is known to be captured (configuration key
 *            capture:check; the default on the software GPU).
 */
MB_API enum mb_err mb_pool_create(mb_device dev, mb_pool *out);
/* MB_ERR_BUSY while blocks of it live, a freed one is still shown by an alias or open to another
 * device, or a stream that freed into it is being captured. Where one frame holds memory freed on
 * several streams, waits on the host until they have passed: MB_ERR_TIMEOUT after wait_ms
 * (configuration); then the pool lives on and may be destroyed later. */
MB_API enum mb_err mb_pool_destroy(mb_pool pool);
MB_API enum mb_err mb_pool_default(mb_device dev, mb_pool *out);
MB_API enum mb_err mb_pool_set(mb_pool pool, enum mb_pool_attr attr, uint64_t value);
MB_API enum mb_err mb_pool_get(mb_pool pool, enum mb_pool_attr attr, uint64_t *value);
MB_API enum mb_err mb_pool_malloc_async(mb_pool pool, size_t bytes, mb_stream stream, void **out);
/* Gives free memory back to the driver until at most `keep_bytes` stay held. */
MB_API enum mb_err mb_pool_trim(mb_pool pool, uint64_t keep_bytes);

/* ------------------------------------------------------------------ addresses, frames, mappings */

/* Access to a mapping. */
enum mb_prot {
    MB_PROT_NONE = 0,
    MB_PROT_READ = 1,
    MB_PROT_READ_WRITE = 3,
};

enum mb_map_kind {
    MB_MAP,     /* va .. va+bytes shows mem at mem_offset */
    MB_ALIAS,   /* va .. va+bytes shows the frames now at `src`; each has a reference more */
    MB_UNMAP,   /* part of a mapping, a whole one, or several */
    MB_PROTECT, /* change access of a mapped range */
};

/* One operation of a batch. Addresses, sizes and offsets are multiples of mb_page_bytes(). */
struct mb_map_op {
    enum mb_map_kind kind;
    enum mb_prot prot; /* MB_MAP, MB_ALIAS, MB_PROTECT */
    void *va;
    uint64_t bytes;
    mb_mem mem;          /* MB_MAP */
    uint64_t mem_offset; /* MB_MAP */
    const void *src;     /* MB_ALIAS */
};

/* Smallest unit of mapping on this device: 2 MiB on all of today's backends. */
MB_API uint64_t mb_page_bytes(mb_device dev);
/* align: a power of two; 0 or less than a page: one page. MB_ERR_NO_ADDRESS: no range of that size
 * and alignment is free, or none can be; the text says which. */
MB_API enum mb_err mb_mem_reserve(mb_device dev, uint64_t bytes, uint64_t align, void **va);
/* MB_ERR_BUSY while anything is mapped there. */
MB_API enum mb_err mb_mem_unreserve(mb_device dev, void *va, uint64_t bytes);
/* `bytes` is rounded up to pages; the frames need not be contiguous. */
MB_API enum mb_err mb_mem_create(mb_device dev, uint64_t bytes, mb_mem *out);
/* Drops the caller's reference; frames go back when the last mapping of them is gone. */
MB_API enum mb_err mb_mem_release(mb_device dev, mb_mem mem);
/* One operation, done when the call returns. When the device is lost or stuck and cannot be waited
 * for, the error's text says that the pages have changed; every other error leaves them alone. */
MB_API enum mb_err mb_mem_map(mb_device dev, const struct mb_map_op *op);
/* All or nothing, in stream order, one submission. `ops` may be reused at once. The host does not
 * wait, but for a stream whose queue is full of batches that it has not got to: with isolated
 * tables up to 4 s, then it is MB_ERR_BUSY and may be tried again; with inline tables as long as
 * the driver's launches wait there. Other calls on the device wait meanwhile. */
MB_API enum mb_err mb_mem_map_async(mb_device dev, const struct mb_map_op *ops, unsigned count,
                                    mb_stream stream);
/* Drops the frames of a mapped range, contents lost, addresses and accounting kept. */
MB_API enum mb_err mb_mem_sleep(mb_device dev, void *va, uint64_t bytes, mb_stream stream);
/* Gives a sleeping range new frames (contents undefined). */
MB_API enum mb_err mb_mem_wake(mb_device dev, void *va, uint64_t bytes, mb_stream stream);

/*
 * ACCESS OF OTHER DEVICES   Addresses are unified: a device that was given access sees a page at
 * the address at which its owner sees it. Pages of mb_mem_reserve() are opened one by one, a block
 * of malloc as a whole: with it the pages it begins and ends in, which may hold other blocks.
 *
 * What is open keeps its frames. A block that is freed while it is open comes back when the last
 * device has lost access (which can still be taken, by its old address); a mapped page can then not
 * be unmapped or put to sleep: MB_ERR_BUSY. mb_close() of either device takes back what is still
 * open.
 */
struct mb_access {
    mb_device dev; /* any open device of the owner's backend; the owner itself too (mappings) */
    enum mb_prot prot;
};
/* Gives the devices of the list access, or with MB_PROT_NONE takes it: all of them or none. Done
 * when the call returns, by the driver, on the host. Where access is taken or reduced the host
 * waits for all work of that device; work on streams of others that makes use of it is the
 * caller's to order. Devices not in the list keep what they have. MB_ERR_NOT_SUPPORTED says why a
 * device cannot have access. */
MB_API enum mb_err mb_mem_set_access(mb_device owner, void *va, uint64_t bytes,
                                     const struct mb_access *list, unsigned count);
/* What `dev` may do at an address of `owner`. */
MB_API enum mb_err mb_mem_get_access(mb_device owner, const void *ptr, mb_device dev,
                                     enum mb_prot *out);
/* MB_OK if `dev` could be given access to memory of `owner`; else the reason. */
MB_API enum mb_err mb_device_can_access(mb_device dev, mb_device owner);

struct mb_pointer_info {
    void *base;     /* start of the block or mapping */
    uint64_t bytes; /* its size as requested */
    uint64_t
        generation; /* grows with every remap of the range: renew registrations when it moved */
    bool driver_visible;   /* the vendor driver's own records describe these addresses truthfully */
    bool stitched;         /* frames are not physically consecutive */
    unsigned aliases_high; /* largest reference count of a frame below it */
};
/* Takes the time of a look-up, but for the first question after a mapping of the device changed:
 * that looks at every frame of the block or mapping. Struct and call share a name, as with stat();
 * g++ -Wshadow would warn of that. */
#if defined(__cplusplus) && defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow"
#endif
MB_API enum mb_err mb_pointer_info(mb_device dev, const void *ptr, struct mb_pointer_info *out);
#if defined(__cplusplus) && defined(__GNUC__)
#pragma GCC diagnostic pop
#endif

/*
 * Waits on the host until the vendor's own calls, which look an address up when they are called
 * and not in stream order, know the live block that `ptr` lies in. With driver tables a block
 * composed of scattered frames is mapped in stream order, so copies and fills of the vendor's
 * refuse it until then; everything else is known at once, and then nothing waits, and with device
 * tables nothing is looked at either. Kernels need no such wait. Waits without a lock held, and for
 * the block's map alone, which comes behind the work of the stream that it was allocated on. NULL:
 * nothing to wait for. Mappings of mb_mem_map_async() are no blocks: for these, mb_stream_sync().
 * ERRORS  MB_ERR_NOT_FOUND: no live block (told with driver tables only), MB_ERR_DEVICE_LOST.
 */
MB_API enum mb_err mb_wait_mapped(mb_device dev, const void *ptr);

/* Called after a remap has been enqueued, without locks held; must not call back into MoonBright.
 * It may be called for a moment after another thread has set a new one. */
typedef void (*mb_remap_hook)(void *user, void *va, uint64_t bytes, uint64_t generation);
MB_API enum mb_err mb_set_remap_hook(mb_device dev, mb_remap_hook hook, void *user);

enum mb_hook_kind {
    MB_HOOK_MALLOC, /* ptr, bytes as asked for, stream (NULL for mb_malloc()) */
    MB_HOOK_FREE,   /* the same of the free; mb_realloc() is a free and a malloc */
    MB_HOOK_GROW,   /* a pool got frames, mapped from ptr on */
    MB_HOOK_TRIM,   /* a pool gave frames back */
    MB_HOOK_STITCH, /* a block was composed of several ranges; ptr is its address */
    MB_HOOK_MAP,    /* addresses came to show frames: mb_mem_map*(), mb_mem_wake() */
    MB_HOOK_UNMAP,  /* addresses show nothing: mb_mem_map*(), mb_mem_sleep() */
    MB_HOOK_OOM,    /* a request of `bytes` failed for want of frames, addresses or by a limit */
    MB_HOOK_REMAP,  /* frames behind addresses may have changed: renew registrations */
};
struct mb_hook_event {
    enum mb_hook_kind kind;
    void *ptr; /* NULL: none */
    uint64_t bytes;
    mb_stream stream;
    uint64_t time_us; /* since 1970 */
};
/*
 * Called on a thread inside a call to MoonBright, with no lock held, after what happened; the event
 * may be another thread's. Events of one address come in order unless two threads deliver at once.
 * The hook may call MoonBright: events of that are delivered after it has returned. It may be
 * called for a moment after another thread has set a new one, but not after mb_close().
 */
typedef void (*mb_event_hook)(void *user, const struct mb_hook_event *event);
/* One hook at a time; NULL ends it. While there is one, calls take longer. */
MB_API enum mb_err mb_set_event_hook(mb_device dev, mb_event_hook hook, void *user);

/* ------------------------------------------------------------------ device work */

/* Small device-side helpers that work on every backend; used by tests, replay and benches.
 * Addresses and sizes are multiples of 8 bytes. Word i of the range is mb_pattern_word(seed, i). */
MB_API uint64_t mb_pattern_word(uint64_t seed, uint64_t index);
MB_API enum mb_err mb_fill_async(mb_device dev, void *va, uint64_t bytes, uint64_t seed,
                                 mb_stream stream);
/* Adds the number of words that differ to mb_stats.wrong_words. */
MB_API enum mb_err mb_verify_async(mb_device dev, const void *va, uint64_t bytes, uint64_t seed,
                                   mb_stream stream);
MB_API enum mb_err mb_copy_async(mb_device dev, void *dst, const void *src, uint64_t bytes,
                                 mb_stream stream);
struct mb_copy {
    void *dst;
    const void *src;
    uint64_t bytes; /* 0: nothing */
};
/*
 * All copies of a list as one piece of work of the stream, with few launches or one. Addresses and
 * sizes are multiples of 8, but for an entry of 0 bytes, whose addresses may be anything. Among the
 * copies there is no order: no destination may overlap the source or the destination of another
 * copy, nor its own source. That is not checked; what such bytes hold afterwards is open. The list
 * is read during the call. MB_OK for count 0.
 * ERRORS  All copies are checked before anything is launched; MB_ERR_INVALID names the first that
 * is not allowed, and nothing is copied. If the driver refuses a launch (MB_ERR_DRIVER,
 * MB_ERR_DEVICE_LOST), copies of earlier launches may take place; the same call may be made again.
 */
MB_API enum mb_err mb_copy_list_async(mb_device dev, const struct mb_copy *list, unsigned count,
                                      mb_stream stream);

/* ------------------------------------------------------------------ measuring */

/* Nanoseconds of the host's clock as the device's backend knows it: monotonic time, or the virtual
 * time of the software GPU. */
MB_API uint64_t mb_clock_ns(mb_device dev);

/* Of several samples, microseconds; NaN: not measured. */
struct mb_spread {
    double median_us, p99_us, min_us;
};

/* One line of a bench. Strings live until the callback returns. */
struct mb_bench_row {
    const char *what; /* "map", "unmap", ... */
    const char *how;  /* who did it: "device-inline", "CUDA VMM, 2 MB handles", ... */
    uint64_t bytes;
    unsigned samples;
    struct mb_spread host;     /* the calling thread is blocked */
    struct mb_spread complete; /* until it has taken effect on its stream */
    struct mb_spread used;     /* until a kernel behind it has touched every page */
    const char *note;          /* what `value` is, or why nothing was measured; "" if neither */
    double value;              /* NaN: none */
    bool modelled;             /* virtual time of the software GPU */
};
typedef void (*mb_bench_callback)(void *user, const struct mb_bench_row *row);

struct mb_bench_options {
    const char *name;      /* map, unmap, remap, alias, protect, alloc, beside, host */
    const uint64_t *sizes; /* bytes, multiples of 2 MiB; NULL: 2 MiB to 2 GiB */
    unsigned size_count;
    unsigned samples; /* 0: default; fewer are taken of what lasts long */
    unsigned pending; /* beside: batches that wait while copies run; 0: 1000 */
    uint64_t seed;    /* of the frame lists */
    bool no_vendor;   /* leave the vendor's own calls out */
    /* For several devices at once: */
    unsigned vendor_ways;     /* only the first so many of the vendor's ways; 0: all */
    void (*turn)(void *user); /* called before each timed turn, to begin together; NULL: none. Then
                                 the number of turns depends on nothing measured */
    void *turn_user;
    /* Software GPU only: how many other devices are in the driver meanwhile, served by threads of
     * the same process, by other processes; and how many processes use this very device. */
    unsigned crowd_threads, crowd_processes, crowd_sharers;
};
/*
 * Opens the device by itself, so the caller should have none open on it, measures and closes. Every
 * timed iteration of a mapping brings a new random list of frames from host memory. `config` as in
 * mb_open(). Not for use beside other work on the device.
 */
MB_API enum mb_err mb_bench_run(int ordinal, const char *config,
                                const struct mb_bench_options *options, mb_bench_callback callback,
                                void *user);

/* A question to the hardware, and what the software GPU would answer. Static. */
struct mb_litmus_info {
    const char *name;
    const char *question;
    const char *rule;     /* of the software GPU, as doc/litmus.md names it */
    const char *expected; /* the model's answer; '|' separates answers that the rule allows */
    bool dangerous;       /* may end the context: run it in a process of its own */
};
enum mb_litmus_verdict {
    MB_LITMUS_CONFIRMED, /* the rule holds */
    MB_LITMUS_CHANGED,   /* the hardware answers otherwise: the rule must be changed */
    MB_LITMUS_NOT_RUN,   /* `answer` says why */
};
struct mb_litmus_result {
    struct mb_litmus_info info;
    enum mb_litmus_verdict verdict;
    char answer[256];
};
/* Fills up to `capacity` entries and stores the number of programs in *count. */
MB_API enum mb_err mb_litmus_list(struct mb_litmus_info *list, unsigned capacity, unsigned *count);
/* Opens the device by itself, runs one program and closes. MB_ERR_NOT_FOUND: no such program. */
MB_API enum mb_err mb_litmus_run(int ordinal, const char *config, const char *name, uint64_t seed,
                                 struct mb_litmus_result *out);

enum mb_fact_verdict {
    MB_FACT_AS_KNOWN,     /* as the built-in profile says, within the fact's tolerance */
    MB_FACT_DIFFERS,      /* not so */
    MB_FACT_NEW,          /* there is no built-in profile for this device, or it lacks the fact */
    MB_FACT_NOT_MEASURED, /* `note` says why */
};
struct mb_fact {
    const char *name, *unit;
    double value, known; /* NaN: none */
    enum mb_fact_verdict verdict;
    const char *note;
};
typedef void (*mb_fact_callback)(void *user, const struct mb_fact *fact);
/*
 * Measures on the device what MoonBright's design relies on, tells each fact, and, if `path` is not
 * NULL, writes them as a profile that the configuration key profile:PATH reads (doc/probe.md).
 */
MB_API enum mb_err mb_probe_run(int ordinal, const char *config, const char *path, uint64_t seed,
                                mb_fact_callback callback, void *user);

/* ------------------------------------------------------------------ statistics, checks */

/* Percentiles come from a histogram with at most 2% relative bin width. */
struct mb_latency {
    uint64_t count;
    uint64_t p50_ns, p99_ns, p999_ns, max_ns, total_ns;
};

/* A consistent copy under the device's lock. requested <= allocated <= mapped <= owned and
 * owned + free = held frames, at every moment. */
struct mb_stats {
    uint64_t requested_bytes, requested_peak_bytes;     /* as callers asked */
    uint64_t allocated_bytes, allocated_peak_bytes;     /* after rounding */
    uint64_t frames_used_bytes, frames_used_peak_bytes; /* frames with at least one live byte */
    uint64_t reserved_bytes, reserved_peak_bytes; /* all held from the driver: frames used and free,
                                                     anchors, donors */
    uint64_t overhead_bytes;                      /* anchors and donors alone */
    uint64_t table_bytes;                         /* page-table memory that MoonBright allocated */
    uint64_t live_blocks, malloc_calls, free_calls, failed_requests;
    uint64_t stitched_blocks, stitches, grows, trims;
    uint64_t map_batches, entries_written, unmap_batches, invalidates, epochs;
    uint64_t va_handed_out_bytes; /* sum over time */
    uint64_t wrong_words;         /* mb_verify_async mismatches */
    uint64_t wrong_accesses;      /* oracle of the software GPU: stale or foreign translations */
    uint64_t faults;              /* accesses to invalid entries */
    uint64_t quarantined_bytes;   /* addresses that wait for a flush before they are used again */
    struct mb_latency malloc_latency, free_latency, map_latency;
};
MB_API enum mb_err mb_stats_get(mb_device dev, struct mb_stats *out);
MB_API enum mb_err mb_stats_reset_peaks(mb_device dev);

enum mb_stats_format {
    MB_STATS_TEXT, /* lines "key value" */
    MB_STATS_JSON, /* one object, key: value */
};
/* The statistics by the names of PyTorch's memory_stats() (doc/statistics.md). *needed (may be
 * NULL) gets the size with the terminating 0; capacity 0 only asks for it, one too small is
 * MB_ERR_INVALID. */
MB_API enum mb_err mb_stats_text(mb_device dev, enum mb_stats_format format, char *out,
                                 size_t capacity, size_t *needed);

/*
 * Writes what is allocated, and the last calls if history:N is configured, as a pickle in the
 * structure of PyTorch's memory snapshots; PyTorch's visualiser and `moonbright replay` read it.
 * The file appears when it is complete. MB_ERR_IO.
 */
MB_API enum mb_err mb_snapshot(mb_device dev, const char *path);

/* Runs every invariant check; on MB_ERR_CORRUPT, mb_error_detail() names the first broken one. */
MB_API enum mb_err mb_check(mb_device dev);

struct mb_tables_report {
    uint64_t entries;  /* compared */
    uint64_t busy;     /* of addresses with a batch under way: not judged */
    uint64_t wrong;    /* other than the record says */
    uint64_t foreign;  /* of the wrong ones: valid, and naming a frame that is not this device's */
    uint64_t repaired; /* of the wrong ones: as the record says again */
    void *first;       /* address of the first wrong one; NULL: none */
};
/*
 * Compares every live page-table entry of this device with the host's record; with `repair`, writes
 * the record over what differs, invalidates, waits for that and compares again. MB_ERR_CORRUPT
 * while something differs; *out (may be NULL) is filled then too. Holds the device's lock for as
 * long as it takes.
 */
MB_API enum mb_err mb_check_tables(mb_device dev, bool repair, struct mb_tables_report *out);

/* ------------------------------------------------------------------ audit log */

/* What a record of the log tells; see doc/audit.md. */
enum mb_audit_kind {
    MB_AUDIT_SESSION,  /* a device was opened; call: its name */
    MB_AUDIT_HOME,     /* frames were had from the driver and are mapped at their home */
    MB_AUDIT_HOMELESS, /* they go back to the driver */
    MB_AUDIT_TAKE,     /* frames get an owner */
    MB_AUDIT_GIVE,     /* the owner gives them back */
    MB_AUDIT_MAP,      /* planned by a batch: addresses will show frames */
    MB_AUDIT_UNMAP,    /* planned: they will no longer show these frames */
    MB_AUDIT_PROTECT,  /* planned: access to them changes */
    MB_AUDIT_DONE,     /* the batch was submitted; without it, nobody knows */
    MB_AUDIT_UNDONE,   /* the batch was refused and changed nothing */
    MB_AUDIT_REPAIR,   /* an entry that was not the record's has been written over */
    MB_AUDIT_CLOSE,    /* the device was closed and nothing is mapped any more */
    MB_AUDIT_PEER,     /* access of another device, whose ordinal is in `stream`, has changed */
    MB_AUDIT_KINDS
};

enum { MB_AUDIT_CALL = 54 };

struct mb_audit_record {
    enum mb_audit_kind kind;
    enum mb_prot prot;  /* MAP, PROTECT, PEER */
    uint64_t sequence;  /* in its session, from 1; the pieces of one list share it */
    uint64_t time_ns;   /* since 1970 */
    uint64_t batch;     /* number in its session; 0: of no batch */
    uint64_t va, bytes; /* addresses; 0: none */
    uint64_t phys;      /* device physical address of the first frame; the others follow it */
    uint64_t stream;    /* the caller's handle; 0: default, or none. PEER: ordinal of the device */
    uint32_t pid;
    uint32_t owner;           /* accounting tag: a pool or memory object of the session */
    char call[MB_AUDIT_CALL]; /* public call, cut off if longer */
};
typedef void (*mb_audit_visit)(void *user, const struct mb_audit_record *record);

struct mb_audit_summary {
    uint64_t records, sessions; /* records: as many as were visited */
    uint64_t tail_bytes;        /* torn end of the file, not read */
    bool closed;                /* the last session ended with mb_close() */
};
/* Reads a log that the configuration key audit:PATH made, in order; needs no device. `visit` and
 * `out` may be NULL. MB_ERR_IO, MB_ERR_PARSE (no log), MB_ERR_CORRUPT (damaged before its end).
 * Thread-safe. */
MB_API enum mb_err mb_audit_read(const char *path, mb_audit_visit visit, void *user,
                                 struct mb_audit_summary *out);
/* "map", "take"; never NULL. */
MB_API const char *mb_audit_name(enum mb_audit_kind kind);

#ifdef __cplusplus
}
#endif
#endif
