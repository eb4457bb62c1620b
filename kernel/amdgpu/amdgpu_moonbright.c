// SPDX-License-Identifier: MIT
/*
 * amdgpu_moonbright.c - DESIGN of device-written page tables for amdgpu: compiled against Linux
 * 6.1, never run.
 *
 * How       Directories are made by the driver's own code: an invalid entry is written once per
 *           GiB of the window, for which the driver makes the directory. The directory is then
 *           pinned and shown to the process. Two mappings without a buffer object keep the driver
 *           from using the addresses for anything else.
 * Eviction  Directories and frames are pinned, so neither TTM nor KFD's restore moves them; KFD's
 *           eviction of other buffers stops the queues meanwhile, which is all that is needed.
 *           What is pinned is limited.
 * Flush     By address space identifier, heavyweight, as the driver itself does before it frees
 *           memory.
 * Locking   mb->lock, then the reservation of the root directory, which the directories share.
 * Not done  Suspend; GPUs without a large BAR (tables are read by the CPU when frames go back);
 *           SR-IOV; more than one GPU writing the tables of another.
 */
#include <linux/capability.h>
#include <linux/dma-fence.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "amdgpu.h"
#include "amdgpu_gmc.h"
#include "amdgpu_object.h"
#include "amdgpu_vm.h"

#include "amdgpu_moonbright.h"
#include "moonbright_drm.h"

#define FRAME_BYTES (2ULL << 20)
#define WINDOW_STEP (1ULL << 30)
#define WINDOW_MAX (1ULL << 40)
#define FRAMES_MAX 65536u
#define ENTRY_ADDRESS 0x0000fffffffff000ULL
#define FLUSH_HEAVYWEIGHT 2

struct mb_frames {
    struct list_head link;
    u32 id;
    u32 count;
    struct amdgpu_bo *bo[];
};

struct mb_window {
    struct list_head link;
    u64 va, bytes, tables_va;
    struct amdgpu_bo_va *hold, *tables_hold; /* keep the addresses */
    u32 tables;                              /* pinned so far */
    struct amdgpu_bo *table[];               /* one per GiB; owned by the vm, pinned by us */
};

/* One per file; fpriv->mb. */
struct amdgpu_mb {
    struct mutex lock;
    struct list_head frames, windows;
    u64 pinned, pinned_max;
    u32 next_id;
    int vram_lost; /* adev->vram_lost_counter when the file began */
};

static DEFINE_MUTEX(create_lock);

static struct amdgpu_mb *get_mb(struct amdgpu_device *adev, struct amdgpu_fpriv *fpriv)
{
    struct amdgpu_mb *mb;

    mutex_lock(&create_lock);
    mb = fpriv->mb;
    if (!mb) {
        mb = kzalloc(sizeof(*mb), GFP_KERNEL);
        if (mb) {
            mutex_init(&mb->lock);
            INIT_LIST_HEAD(&mb->frames);
            INIT_LIST_HEAD(&mb->windows);
            /* An eighth stays for everybody else. */
            mb->pinned_max = adev->gmc.real_vram_size / 8 * 7;
            mb->vram_lost = atomic_read(&adev->vram_lost_counter);
            fpriv->mb = mb;
        }
    }
    mutex_unlock(&create_lock);
    return mb;
}

/* Address of a buffer in device memory as an entry holds it. */
static u64 entry_address(struct amdgpu_device *adev, struct amdgpu_bo *bo)
{
    return amdgpu_bo_gpu_offset_no_check(bo) - adev->gmc.vram_start +
           adev->vm_manager.vram_base_offset;
}

/* ------------------------------------------------------------ frames */

static void free_frame(struct amdgpu_bo *bo)
{
    if (!WARN_ON(amdgpu_bo_reserve(bo, true))) {
        amdgpu_bo_unpin(bo);
        amdgpu_bo_unreserve(bo);
    }
    amdgpu_bo_unref(&bo);
}

static int make_frame(struct amdgpu_device *adev, struct amdgpu_bo **out)
{
    struct amdgpu_bo_param bp = {
        .size = FRAME_BYTES,
        .byte_align = FRAME_BYTES,
        .bo_ptr_size = sizeof(struct amdgpu_bo),
        .domain = AMDGPU_GEM_DOMAIN_VRAM,
        /* Cleared: what other processes left there is not for this one. */
        .flags = AMDGPU_GEM_CREATE_VRAM_CONTIGUOUS | AMDGPU_GEM_CREATE_NO_CPU_ACCESS |
                 AMDGPU_GEM_CREATE_VRAM_CLEARED,
        .type = ttm_bo_type_kernel,
    };
    struct amdgpu_bo *bo = NULL;
    int r = amdgpu_bo_create(adev, &bp, &bo);

    if (r)
        return r;
    r = amdgpu_bo_reserve(bo, false);
    if (!r) {
        r = amdgpu_bo_pin(bo, AMDGPU_GEM_DOMAIN_VRAM);
        amdgpu_bo_unreserve(bo);
    }
    if (r)
        amdgpu_bo_unref(&bo);
    else
        *out = bo;
    return r;
}

static void free_frames(struct mb_frames *frames)
{
    while (frames->count)
        free_frame(frames->bo[--frames->count]);
    kvfree(frames);
}

static int frames_add(struct amdgpu_device *adev, struct amdgpu_mb *mb,
                      struct drm_amdgpu_mb_frames *args)
{
    u64 __user *list = u64_to_user_ptr(args->list);
    struct mb_frames *frames;
    int r = 0;

    if (!args->count || args->count > FRAMES_MAX)
        return -EINVAL;
    if (args->count * FRAME_BYTES > mb->pinned_max - mb->pinned)
        return -ENOMEM;
    frames = kvzalloc(struct_size(frames, bo, args->count), GFP_KERNEL);
    if (!frames)
        return -ENOMEM;
    while (!r && frames->count < args->count) {
        r = make_frame(adev, &frames->bo[frames->count]);
        if (!r && put_user(entry_address(adev, frames->bo[frames->count]), list + frames->count)) {
            free_frame(frames->bo[frames->count]);
            r = -EFAULT;
        }
        frames->count += !r;
    }
    if (r) {
        free_frames(frames);
        return r;
    }
    frames->id = args->id = ++mb->next_id;
    mb->pinned += frames->count * FRAME_BYTES;
    list_add(&frames->link, &mb->frames);
    return 0;
}

/* Does a valid entry of any window name the frame at `address`? */
static bool is_named(struct amdgpu_mb *mb, u64 address)
{
    struct mb_window *w;

    list_for_each_entry(w, &mb->windows, link)
    {
        for (u32 t = 0; t < w->tables; t++) {
            const u64 *entry = amdgpu_bo_kptr(w->table[t]);

            for (u32 i = 0; i < 512; i++) {
                u64 v = READ_ONCE(entry[i]);

                if (v & AMDGPU_PTE_VALID && (v & ENTRY_ADDRESS) == address)
                    return true;
            }
        }
    }
    return false;
}

static int flush(struct amdgpu_device *adev, struct amdgpu_vm *vm)
{
    return amdgpu_gmc_flush_gpu_tlb_pasid(adev, vm->pasid, FLUSH_HEAVYWEIGHT, true);
}

static int frames_drop(struct amdgpu_device *adev, struct amdgpu_vm *vm, struct amdgpu_mb *mb,
                       u32 id)
{
    struct mb_frames *frames;

    list_for_each_entry(frames, &mb->frames, link)
    {
        if (frames->id != id)
            continue;
        for (u32 i = 0; i < frames->count; i++) {
            if (is_named(mb, entry_address(adev, frames->bo[i])))
                return -EBUSY;
        }
        /* The entries are gone; translations must be too before somebody else gets the memory. */
        if (flush(adev, vm))
            return -EIO;
        list_del(&frames->link);
        mb->pinned -= frames->count * FRAME_BYTES;
        free_frames(frames);
        return 0;
    }
    return -ENOENT;
}

/* ------------------------------------------------------------ windows */

/* root reserved. The last-level directory that translates va, or NULL. */
static struct amdgpu_bo *find_table(struct amdgpu_device *adev, struct amdgpu_vm *vm, u64 va)
{
    struct amdgpu_vm_bo_base *base = &vm->root;

    for (unsigned int level = adev->vm_manager.root_level; level < AMDGPU_VM_PDB0; level++) {
        unsigned int shift =
            9 * (AMDGPU_VM_PDB0 - level) + adev->vm_manager.block_size + AMDGPU_GPU_PAGE_SHIFT;
        u64 index = va >> shift;

        if (level != adev->vm_manager.root_level)
            index &= 511;
        base = &to_amdgpu_bo_vm(base->bo)->entries[index];
        if (!base->bo)
            return NULL;
    }
    return base->bo;
}

/* root reserved. Entries of [va, va + bytes) become `flags` at `offset` of device memory, or
 * invalid. */
static int write_entries(struct amdgpu_device *adev, struct amdgpu_vm *vm, u64 va, u64 bytes,
                         u64 flags, u64 offset)
{
    struct dma_fence *fence = NULL;
    int r = amdgpu_vm_update_range(adev, vm, false, false, true, NULL, va >> AMDGPU_GPU_PAGE_SHIFT,
                                   ((va + bytes) >> AMDGPU_GPU_PAGE_SHIFT) - 1, flags, offset,
                                   adev->vm_manager.vram_base_offset, NULL, NULL, &fence);

    if (!r && fence)
        r = (int)dma_fence_wait(fence, false);
    dma_fence_put(fence);
    return r;
}

/* root reserved. Makes the directory of one GiB exist, pins it, makes it readable for the CPU. */
static int make_table(struct amdgpu_device *adev, struct amdgpu_vm *vm, u64 va,
                      struct amdgpu_bo **out)
{
    struct amdgpu_bo *bo;
    int r = write_entries(adev, vm, va, FRAME_BYTES, 0, 0);

    if (r)
        return r;
    bo = find_table(adev, vm, va);
    if (!bo)
        return -ENXIO;
    r = amdgpu_bo_pin(bo, AMDGPU_GEM_DOMAIN_VRAM);
    if (r)
        return r;
    r = amdgpu_bo_kmap(bo, NULL);
    if (r) {
        amdgpu_bo_unpin(bo);
        return r;
    }
    *out = amdgpu_bo_ref(bo);
    return 0;
}

/* root reserved. Takes everything back that add_window made so far. */
static void undo_window(struct amdgpu_device *adev, struct amdgpu_vm *vm, struct mb_window *w)
{
    if (w->tables_hold)
        WARN_ON(write_entries(adev, vm, w->tables_va, w->bytes / WINDOW_STEP * PAGE_SIZE, 0, 0));
    /* Whole GiB become invalid one level up; the driver drops its reference to the directories
     * then. */
    if (w->hold)
        WARN_ON(write_entries(adev, vm, w->va, w->bytes, 0, 0));
    WARN_ON(amdgpu_vm_update_pdes(adev, vm, false));
    /* Before the directories can be anybody else's memory. */
    WARN_ON(flush(adev, vm));
    while (w->tables) {
        struct amdgpu_bo *bo = w->table[--w->tables];

        amdgpu_bo_kunmap(bo);
        amdgpu_bo_unpin(bo);
        amdgpu_bo_unref(&bo);
    }
    if (w->tables_hold)
        amdgpu_vm_bo_del(adev, w->tables_hold);
    if (w->hold)
        amdgpu_vm_bo_del(adev, w->hold);
    kvfree(w);
}

/* root reserved. A mapping without memory: the driver gives the addresses to nobody. */
static int keep_addresses(struct amdgpu_device *adev, struct amdgpu_vm *vm, u64 va, u64 bytes,
                          struct amdgpu_bo_va **out)
{
    struct amdgpu_bo_va *hold = amdgpu_vm_bo_add(adev, vm, NULL);
    int r;

    if (!hold)
        return -ENOMEM;
    r = amdgpu_vm_bo_map(adev, hold, va, 0, bytes, 0);
    if (r)
        amdgpu_vm_bo_del(adev, hold);
    else
        *out = hold;
    return r;
}

/* root reserved */
static int fill_window(struct amdgpu_device *adev, struct amdgpu_vm *vm, struct mb_window *w)
{
    u32 tables = (u32)(w->bytes / WINDOW_STEP);
    /* Uncached: what a kernel writes has to be in memory for the walker. */
    u64 flags =
        AMDGPU_PTE_VALID | AMDGPU_PTE_READABLE | AMDGPU_PTE_WRITEABLE | AMDGPU_PTE_MTYPE_VG10(3);
    int r = keep_addresses(adev, vm, w->va, w->bytes, &w->hold);

    if (!r)
        r = keep_addresses(adev, vm, w->tables_va, (u64)tables * PAGE_SIZE, &w->tables_hold);
    while (!r && w->tables < tables) {
        r = make_table(adev, vm, w->va + w->tables * WINDOW_STEP, &w->table[w->tables]);
        w->tables += !r;
    }
    for (u32 i = 0; !r && i < tables; i++)
        r = write_entries(adev, vm, w->tables_va + (u64)i * PAGE_SIZE, PAGE_SIZE, flags,
                          amdgpu_bo_gpu_offset_no_check(w->table[i]) - adev->gmc.vram_start);
    return r ? r : amdgpu_vm_update_pdes(adev, vm, false);
}

static int window_add(struct amdgpu_device *adev, struct amdgpu_vm *vm, struct amdgpu_mb *mb,
                      const struct drm_amdgpu_mb_window *args)
{
    struct mb_window *w;
    int r;

    if (!args->bytes || args->bytes > WINDOW_MAX || args->bytes % WINDOW_STEP ||
        args->va % WINDOW_STEP || args->tables_va % PAGE_SIZE ||
        args->va >= AMDGPU_GMC_HOLE_START - args->bytes ||
        args->tables_va >= AMDGPU_GMC_HOLE_START - args->bytes / WINDOW_STEP * PAGE_SIZE)
        return -EINVAL;
    w = kvzalloc(struct_size(w, table, args->bytes / WINDOW_STEP), GFP_KERNEL);
    if (!w)
        return -ENOMEM;
    w->va = args->va;
    w->bytes = args->bytes;
    w->tables_va = args->tables_va;
    r = amdgpu_bo_reserve(vm->root.bo, false);
    if (r) {
        kvfree(w);
        return r;
    }
    r = fill_window(adev, vm, w);
    if (r)
        undo_window(adev, vm, w);
    else
        list_add(&w->link, &mb->windows);
    amdgpu_bo_unreserve(vm->root.bo);
    return r;
}

static int window_drop(struct amdgpu_device *adev, struct amdgpu_vm *vm, struct amdgpu_mb *mb,
                       u64 va)
{
    struct mb_window *w;
    int r;

    list_for_each_entry(w, &mb->windows, link)
    {
        if (w->va != va)
            continue;
        r = amdgpu_bo_reserve(vm->root.bo, false);
        if (r)
            return r;
        list_del(&w->link);
        undo_window(adev, vm, w);
        amdgpu_bo_unreserve(vm->root.bo);
        return 0;
    }
    return -ENOENT;
}

/* ------------------------------------------------------------ the ioctl */

static void query(struct amdgpu_device *adev, struct amdgpu_mb *mb, struct drm_amdgpu_mb_query *out)
{
    *out = (struct drm_amdgpu_mb_query){
        .version = AMDGPU_MB_VERSION,
        .gc_version = adev->ip_versions[GC_HWIP][0],
        .translate_further = adev->gmc.translate_further,
        .block_size = adev->vm_manager.block_size,
        .frame_bytes = FRAME_BYTES,
        .window_step = WINDOW_STEP,
        .pinned_bytes = mb->pinned,
        .pinned_max = mb->pinned_max,
    };
}

static int dispatch(struct amdgpu_device *adev, struct amdgpu_vm *vm, struct amdgpu_mb *mb,
                    struct drm_amdgpu_mb *args)
{
    switch (args->op) {
    case AMDGPU_MB_FRAMES_DROP:
        return frames_drop(adev, vm, mb, args->frames.id);
    case AMDGPU_MB_WINDOW_DROP:
        return window_drop(adev, vm, mb, args->window.va);
    default:
        break;
    }
    if (mb->vram_lost != atomic_read(&adev->vram_lost_counter))
        return -ECANCELED;
    switch (args->op) {
    case AMDGPU_MB_QUERY:
        query(adev, mb, &args->query);
        return 0;
    case AMDGPU_MB_FRAMES_ADD:
        return frames_add(adev, mb, &args->frames);
    case AMDGPU_MB_WINDOW_ADD:
        return window_add(adev, vm, mb, &args->window);
    case AMDGPU_MB_FLUSH:
        return flush(adev, vm);
    default:
        return -EINVAL;
    }
}

int amdgpu_mb_ioctl(struct drm_device *dev, void *data, struct drm_file *filp)
{
    struct amdgpu_device *adev = drm_to_adev(dev);
    struct amdgpu_fpriv *fpriv = filp->driver_priv;
    struct drm_amdgpu_mb *args = data;
    struct amdgpu_mb *mb;
    int r;

    if (!capable(CAP_SYS_RAWIO))
        return -EPERM;
    /* Entries, depths and flush are those of this generation only. */
    if (adev->ip_versions[GC_HWIP][0] != IP_VERSION(9, 4, 2) || !adev->gmc.translate_further ||
        !amdgpu_gmc_vram_full_visible(&adev->gmc) || amdgpu_sriov_vf(adev))
        return -EOPNOTSUPP;
    if (args->flags)
        return -EINVAL;
    if (!fpriv->vm.is_compute_context)
        return -ENOTCONN; /* give the file to KFD first: the flush goes by its identifier */
    mb = get_mb(adev, fpriv);
    if (!mb)
        return -ENOMEM;
    r = mutex_lock_interruptible(&mb->lock);
    if (r)
        return r;
    r = dispatch(adev, &fpriv->vm, mb, args);
    mutex_unlock(&mb->lock);
    return r;
}

void amdgpu_mb_release(struct amdgpu_device *adev, struct amdgpu_fpriv *fpriv)
{
    struct amdgpu_mb *mb = fpriv->mb;

    if (!mb)
        return;
    if (!WARN_ON(amdgpu_bo_reserve(fpriv->vm.root.bo, true))) {
        while (!list_empty(&mb->windows)) {
            struct mb_window *w = list_first_entry(&mb->windows, struct mb_window, link);

            list_del(&w->link);
            undo_window(adev, &fpriv->vm, w);
        }
        amdgpu_bo_unreserve(fpriv->vm.root.bo);
    }
    while (!list_empty(&mb->frames)) {
        struct mb_frames *frames = list_first_entry(&mb->frames, struct mb_frames, link);

        list_del(&frames->link);
        free_frames(frames);
    }
    fpriv->mb = NULL;
    mutex_destroy(&mb->lock);
    kfree(mb);
}
