/* SPDX-License-Identifier: MIT */
/*
 * context.c - which device a call is for, and what ends contexts and streams.
 *
 * Only the primary context of a device is MoonBright's: addresses of another context are another
 * address space, so its calls go to the driver.
 * Locking   contexts[] and resets[] are written under `lock` and read without it.
 */
#include "cuda.h"
#include "held.h"

#include <pthread.h>
#include <stdatomic.h>

const struct core_vendor core_vendor = {"preload", "CUDA", "backend:cuda"};

static _Atomic(void *) contexts[CORE_DEVICES]; /* primary context, once it was seen current */
static _Atomic uint64_t resets[CORE_DEVICES];  /* of the primary context, so far */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void *cuda_context(int ordinal)
{
    return atomic_load_explicit(&contexts[ordinal], memory_order_acquire);
}

/* Ordinal of the device whose primary context `ctx` is; -1: of none. */
static int ordinal_of(void *ctx)
{
    void *primary = NULL;
    int device = -1;

    for (int i = 0; i < CORE_DEVICES; i++) {
        if (cuda_context(i) == ctx)
            return i;
    }
    if (REAL(ctx_device, &device) || device < 0 || device >= CORE_DEVICES ||
        REAL(primary_retain, &primary, device))
        return -1;
    (void)REAL(primary_release, device);
    if (primary != ctx)
        return -1;
    pthread_mutex_lock(&lock);
    atomic_store_explicit(&contexts[device], ctx, memory_order_release);
    pthread_mutex_unlock(&lock);
    return device;
}

uint64_t cuda_resets(void *ctx)
{
    int ordinal = ctx ? ordinal_of(ctx) : -1;

    return ordinal < 0 ? 0 : atomic_load_explicit(&resets[ordinal], memory_order_acquire);
}

mb_device cuda_current(int *ordinal)
{
    void *ctx = NULL;
    int at;

    if ((core_modes() & CORE_OFF) || core_inside() || REAL(ctx_current, &ctx) || !ctx)
        return NULL;
    at = ordinal_of(ctx);
    *ordinal = at;
    return at < 0 ? NULL : core_device(at);
}

int cuda_result(enum mb_err err)
{
    switch (err) {
    case MB_OK:
        return CU_OK;
    case MB_ERR_NO_MEMORY:
    case MB_ERR_NO_ADDRESS:
    case MB_ERR_LIMIT:
    case MB_ERR_HOST_MEMORY:
        return CU_OUT_OF_MEMORY;
    case MB_ERR_INVALID:
    case MB_ERR_DOUBLE_FREE:
    case MB_ERR_NOT_FOUND:
    case MB_ERR_BUSY:
        return CU_INVALID_VALUE;
    case MB_ERR_NOT_SUPPORTED:
        return CU_NOT_SUPPORTED;
    case MB_ERR_FORKED:
        return CU_NOT_INITIALIZED;
    default:
        core_note("%s: %s", mb_error_name(err), mb_error_detail());
        return CU_UNKNOWN;
    }
}

/* ------------------------------------------------------------ ends */

/* All of the device's memory goes with its context, so MoonBright's device does first. */
static void before_reset(int device)
{
    if (device < 0 || device >= CORE_DEVICES || core_inside() || core_forked())
        return;
    core_close(device);
    held_forget(device);
    cuda_pools_forget(device);
    pthread_mutex_lock(&lock);
    atomic_store_explicit(&contexts[device], NULL, memory_order_release);
    atomic_fetch_add_explicit(&resets[device], 1, memory_order_release);
    pthread_mutex_unlock(&lock);
}

CUDA(cuDevicePrimaryCtxReset, int device)
{
    before_reset(device);
    return REAL(primary_reset_v1, device);
}

CUDA(cuDevicePrimaryCtxReset_v2, int device)
{
    before_reset(device);
    return REAL(primary_reset, device);
}

/* Its handle may be another stream's soon; MoonBright has to know that this one is over. */
CUDA(cuStreamDestroy_v2, void *stream)
{
    if (stream && !core_inside()) {
        core_enter();
        for (int i = 0; i < CORE_DEVICES; i++) {
            mb_device dev = core_opened(i);

            if (dev && !mb_stream_destroy(dev, stream))
                break;
        }
        core_leave();
    }
    return REAL(stream_destroy, stream);
}

/* ------------------------------------------------------------ peers */

/* MoonBright's memory is mapped for its own device only, so peers are told that they have to copy,
 * which works; with "ipc", memory that peers may want is the driver's. */
static bool hides_peers(int device)
{
    return !(core_modes() & CORE_IPC) && core_serves(device);
}

CUDA(cuDeviceCanAccessPeer, int *can, int device, int peer)
{
    int result = REAL(can_access_peer, can, device, peer);

    if (!result && hides_peers(peer))
        *can = 0;
    return result;
}

CUDA(cuCtxEnablePeerAccess, void *peer, unsigned flags)
{
    for (int i = 0; peer && i < CORE_DEVICES; i++) {
        if (cuda_context(i) != peer || !hides_peers(i))
            continue;
        core_note("cuCtxEnablePeerAccess: memory of device %d is MoonBright's and mapped "
                  "for that device only; copy between devices, or set MOONBRIGHT_PRELOAD=ipc",
                  i);
        return CU_PEER_UNSUPPORTED;
    }
    return REAL(enable_peer, peer, flags);
}
