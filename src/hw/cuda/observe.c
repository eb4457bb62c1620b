/* SPDX-License-Identifier: MIT */
/*
 * observe.c - hooks in libcuda's imports.
 *
 * How       The kernel fills `status` fields, so facts are taken after the call and only when it
 *           succeeded; losses are told before it. errno is what the call left.
 * Locking   `lock` guards `gpus`, `objects`. The hooks run on any thread, possibly while libcuda
 *           holds its own locks; they call nothing of libcuda.
 */
#define _GNU_SOURCE
#include "hw/cuda/observe.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "hw/cuda/got.h"

/* Parents of the objects that matter: device, subdevice, address space. */
struct seen_object {
    nvrm_handle client, parent, object;
    uint32_t class_id;
};

enum { MAX_OBJECTS = 256, MAX_FILES = 4096 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct mb_cuda_seen gpus[MB_SEEN_GPUS];
static unsigned gpu_count;
static struct seen_object objects[MAX_OBJECTS];
static unsigned object_count;
static bool mps_seen;
static int owner_pid;
static const struct nvrm_series *series;           /* NULL: nothing is decoded */
static _Atomic(unsigned char) fd_kinds[MAX_FILES]; /* enum nvrm_fd_kind + 1, 0 unknown */
static _Atomic(mb_cuda_guard) guard_fn;
static int (*next_ioctl)(int, unsigned long, ...);
static int (*next_close)(int);

static __thread struct mb_cuda_map_event *own_event;
static __thread bool own_calls;

void mb__cuda_own_begin(struct mb_cuda_own_calls *own, struct mb_cuda_map_event *event)
{
    own->outer_event = own_event;
    own->outer_own = own_calls;
    own->event = event;
    if (event)
        event->seen = false;
    own_event = event;
    own_calls = true;
}

void mb__cuda_own_end(struct mb_cuda_own_calls *own)
{
    own_event = own->outer_event;
    own_calls = own->outer_own;
}

/* lock held */
static struct mb_cuda_seen *find_gpu(const uint8_t *uuid)
{
    for (unsigned i = 0; i < gpu_count; i++) {
        if (!memcmp(gpus[i].uuid, uuid, NVRM_UUID_BYTES))
            return &gpus[i];
    }
    return NULL;
}

/* lock held. The device is the address space's parent, the subdevice a child of the device. */
static void resolve(struct mb_cuda_seen *gpu)
{
    gpu->device = gpu->subdevice = 0;
    for (unsigned i = 0; i < object_count; i++) {
        if (objects[i].client == gpu->client && objects[i].object == gpu->vaspace &&
            objects[i].class_id == NVRM_CLASS_VASPACE)
            gpu->device = objects[i].parent;
    }
    for (unsigned i = 0; i < object_count; i++) {
        if (objects[i].client == gpu->client && objects[i].class_id == NVRM_CLASS_SUBDEVICE &&
            objects[i].parent == gpu->device)
            gpu->subdevice = objects[i].object;
    }
}

/* lock held. Only what resolve() looks for: libcuda makes hundreds of objects for each GPU, and
 * those of the first must not be pushed out by the eighth. */
static void saw_alloc(const struct nvrm_observed *o)
{
    if (o->class_id != NVRM_CLASS_VASPACE && o->class_id != NVRM_CLASS_SUBDEVICE)
        return;
    if (object_count == MAX_OBJECTS) {
        /* The oldest go: a process that resets its device often leaves dead ones behind. */
        memmove(objects, objects + MAX_OBJECTS / 2, sizeof(objects[0]) * (MAX_OBJECTS / 2));
        object_count = MAX_OBJECTS / 2;
    }
    objects[object_count++] = (struct seen_object){o->client, o->parent, o->object, o->class_id};
}

/* lock held */
static void saw_vaspace(const struct nvrm_observed *o)
{
    struct mb_cuda_seen *gpu = find_gpu(o->uuid);

    if (!gpu && gpu_count < MB_SEEN_GPUS)
        gpu = &gpus[gpu_count++];
    if (!gpu)
        return;
    memset(gpu, 0, sizeof(*gpu));
    memcpy(gpu->uuid, o->uuid, NVRM_UUID_BYTES);
    gpu->uvm_fd = o->fd;
    gpu->ctl_fd = o->rm_ctl_fd;
    gpu->client = o->client;
    gpu->vaspace = o->object;
    gpu->mps = mps_seen;
}

/* lock held */
static void saw_channel_gone(const struct nvrm_observed *o)
{
    for (unsigned g = 0; g < gpu_count; g++) {
        struct mb_cuda_seen *gpu = &gpus[g];

        for (unsigned i = 0; gpu->client == o->client && i < gpu->channels; i++) {
            if (gpu->channel[i] == o->object)
                gpu->channel[i--] = gpu->channel[--gpu->channels];
        }
    }
}

/* lock held */
static void saw_space_gone(const struct nvrm_observed *o)
{
    struct mb_cuda_seen *gpu = find_gpu(o->uuid);

    if (gpu)
        *gpu = gpus[--gpu_count];
}

static void saw_map(const struct nvrm_observed *o)
{
    struct mb_cuda_map_event *event = own_event;

    if (!event || event->seen || o->attr_count != 1)
        return;
    *event = (struct mb_cuda_map_event){.seen = true,
                                        .uvm_fd = o->fd,
                                        .ctl_fd = o->rm_ctl_fd,
                                        .base = o->base,
                                        .bytes = o->length,
                                        .offset = o->offset,
                                        .client = o->client,
                                        .memory = o->object,
                                        .attr = o->attr};
}

static void tell(const struct mb_cuda_loss *loss)
{
    mb_cuda_guard fn = atomic_load_explicit(&guard_fn, memory_order_acquire);

    if (fn && !own_calls)
        fn(loss);
}

void mb__cuda_observe_before(enum nvrm_fd_kind kind, int fd, unsigned long request, const void *arg)
{
    struct mb_cuda_loss loss = {.fd = fd};
    struct nvrm_observed o;

    mb__nvrm_observe(series, kind, fd, request, arg, NVRM_BEFORE, &o);
    switch (o.kind) {
    case NVRM_SAW_FREE:
        loss.kind = MB_LOSS_OBJECT;
        loss.client = o.client;
        loss.object = o.object;
        break;
    case NVRM_SAW_VASPACE_UNREGISTER:
        loss.kind = MB_LOSS_SPACE;
        loss.uuid = o.uuid;
        break;
    case NVRM_SAW_EXTERNAL_UNMAP:
    case NVRM_SAW_RANGE_FREE:
        /* A mapping is one GPU's, a range all GPUs'. */
        loss.uuid = o.kind == NVRM_SAW_EXTERNAL_UNMAP ? o.uuid : NULL;
        loss.kind = MB_LOSS_RANGE;
        loss.base = o.base;
        loss.bytes = o.length;
        break;
    case NVRM_SAW_UVM_END:
        loss.kind = MB_LOSS_FILE;
        break;
    default:
        return;
    }
    tell(&loss);
}

void mb__cuda_observe_after(enum nvrm_fd_kind kind, int fd, unsigned long request, const void *arg)
{
    struct mb_cuda_seen *gpu;
    struct nvrm_observed o;

    mb__nvrm_observe(series, kind, fd, request, arg, NVRM_AFTER, &o);
    if (o.kind == NVRM_SAW_NOTHING || o.status)
        return;
    if (o.kind == NVRM_SAW_EXTERNAL_MAP) {
        saw_map(&o);
        return;
    }
    pthread_mutex_lock(&lock);
    switch (o.kind) {
    case NVRM_SAW_ALLOC:
        saw_alloc(&o);
        break;
    case NVRM_SAW_VASPACE_REGISTER:
        saw_vaspace(&o);
        break;
    case NVRM_SAW_VASPACE_UNREGISTER:
        saw_space_gone(&o);
        break;
    case NVRM_SAW_CHANNEL_REGISTER:
        gpu = find_gpu(o.uuid);
        if (gpu && gpu->client == o.client && gpu->channels < MB_SEEN_CHANNELS)
            gpu->channel[gpu->channels++] = o.object;
        break;
    case NVRM_SAW_CHANNEL_UNREGISTER:
        saw_channel_gone(&o);
        break;
    case NVRM_SAW_MPS:
        mps_seen = true;
        for (unsigned i = 0; i < gpu_count; i++)
            gpus[i].mps = true;
        break;
    default:
        break;
    }
    pthread_mutex_unlock(&lock);
}

/* ------------------------------------------------------------ hooks */

/* The kind of a file, asked once per file number: the answer is forgotten when it is closed. */
static enum nvrm_fd_kind kind_of(int fd)
{
    enum nvrm_fd_kind kind;

    if (fd < 0 || fd >= MAX_FILES)
        return mb__nvrm_fd_kind(fd);
    kind = (enum nvrm_fd_kind)(atomic_load_explicit(&fd_kinds[fd], memory_order_relaxed) - 1);
    if ((int)kind < 0) {
        kind = mb__nvrm_fd_kind(fd);
        atomic_store_explicit(&fd_kinds[fd], (unsigned char)(kind + 1), memory_order_relaxed);
    }
    return kind;
}

static int hook_ioctl(int fd, unsigned long request, ...)
{
    enum nvrm_fd_kind kind;
    va_list args;
    void *arg;
    int rc, error;

    va_start(args, request);
    arg = va_arg(args, void *);
    va_end(args);
    if (getpid() != owner_pid)
        return next_ioctl(fd, request, arg);
    error = errno;
    kind = kind_of(fd);
    mb__cuda_observe_before(kind, fd, request, arg);
    errno = error;
    rc = next_ioctl(fd, request, arg);
    error = errno;
    if (!rc)
        mb__cuda_observe_after(kind, fd, request, arg);
    errno = error;
    return rc;
}

static int hook_close(int fd)
{
    struct mb_cuda_loss loss = {.kind = MB_LOSS_FILE, .fd = fd};

    if (getpid() == owner_pid) {
        if (kind_of(fd) != NVRM_FD_OTHER)
            tell(&loss);
        if (fd >= 0 && fd < MAX_FILES)
            atomic_store_explicit(&fd_kinds[fd], 0, memory_order_relaxed);
    }
    return next_close(fd);
}

void mb__cuda_observe_reset(const struct nvrm_series *of, mb_cuda_guard guard)
{
    pthread_mutex_lock(&lock);
    gpu_count = object_count = 0;
    mps_seen = false;
    series = of;
    owner_pid = getpid();
    pthread_mutex_unlock(&lock);
    atomic_store_explicit(&guard_fn, guard, memory_order_release);
}

static enum mb_err find_series(const struct nvrm_series **out)
{
    struct nvrm_version version;
    char text[1024];
    size_t n = 0;
    FILE *f = fopen("/proc/driver/nvidia/version", "re");
    enum mb_err err;

    if (!f)
        return mb__fail(MB_ERR_NO_DEVICE, "the NVIDIA kernel driver is not loaded");
    n = fread(text, 1, sizeof(text) - 1, f);
    fclose(f);
    text[n] = '\0';
    err = mb__nvrm_version_parse(text, &version);
    return err ? err : mb__nvrm_series_find(version.major, out);
}

/* lock held */
static enum mb_err install(mb_cuda_guard guard)
{
    unsigned count;
    enum mb_err err = find_series(&series);

    if (err)
        return err;
    /* What the application itself would call, interposers of its own included. */
    *(void **)(&next_ioctl) = dlsym(RTLD_DEFAULT, "ioctl");
    *(void **)(&next_close) = dlsym(RTLD_DEFAULT, "close");
    if (!next_ioctl || !next_close)
        return mb__fail(MB_ERR_NOT_SUPPORTED, "libc has no ioctl or close to pass calls to");
    owner_pid = getpid();
    atomic_store_explicit(&guard_fn, guard, memory_order_release);
    err = mb__got_patch("libcuda.so", "ioctl", (void (*)(void))hook_ioctl, &count);
    return err ? err : mb__got_patch("libcuda.so", "close", (void (*)(void))hook_close, &count);
}

enum mb_err mb__cuda_observe(mb_cuda_guard guard)
{
    static bool done;
    enum mb_err err = MB_OK;

    pthread_mutex_lock(&lock);
    if (!done)
        err = install(guard);
    done = !err;
    pthread_mutex_unlock(&lock);
    return err;
}

enum mb_err mb__cuda_observed(const uint8_t uuid[NVRM_UUID_BYTES], struct mb_cuda_seen *out)
{
    struct mb_cuda_seen *gpu;

    pthread_mutex_lock(&lock);
    gpu = find_gpu(uuid);
    if (gpu) {
        if (!gpu->subdevice)
            resolve(gpu);
        *out = *gpu;
    }
    pthread_mutex_unlock(&lock);
    if (!gpu)
        return mb__fail(MB_ERR_NOT_FOUND,
                        "libcuda's registration of this GPU with the kernel driver "
                        "was not seen: it was initialised before MoonBright");
    return MB_OK;
}

void mb__cuda_observe_late(const struct mb_cuda_seen *seen)
{
    struct mb_cuda_seen *gpu;

    pthread_mutex_lock(&lock);
    gpu = find_gpu(seen->uuid);
    if (!gpu && gpu_count < MB_SEEN_GPUS)
        gpu = &gpus[gpu_count++];
    if (gpu) {
        *gpu = *seen;
        gpu->late = true;
    }
    pthread_mutex_unlock(&lock);
}
