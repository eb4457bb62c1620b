/*
 * abi.h - the part of NVIDIA's kernel interface that MoonBright speaks, in our own definitions.
 *
 * Layouts and numbers are facts of the driver's ABI; no vendor header is included or copied. Every
 * size and every offset that a caller relies on is asserted below. Structures that differ between
 * driver series come in one definition per layout; series.h says which series uses which.
 * doc/driver-abi.md names the published version that each one was read from.
 *
 * Field comments: "in" is read by the driver, "out" is written by it. Fields without a comment are
 * not used by MoonBright and stay zero. Handles are client-scoped object names, 0 is none.
 */
#ifndef MB_HW_NVRM_ABI_H
#define MB_HW_NVRM_ABI_H

#include <stddef.h>
#include <stdint.h>

typedef uint32_t nvrm_handle;

#define NVRM_ABI_SIZE(type, bytes)                                                                 \
    _Static_assert(sizeof(struct type) == (bytes), "size of struct " #type " is part of the ABI")
#define NVRM_ABI_AT(type, field, offset)                                                           \
    _Static_assert(offsetof(struct type, field) == (offset), #type "." #field " is misplaced")

/* ------------------------------------------------------------ escapes: ioctl type 'F', read+write
 * */

enum nvrm_escape {
    NVRM_ESC_FREE = 0x29,
    NVRM_ESC_CONTROL = 0x2a,
    NVRM_ESC_ALLOC = 0x2b,
    NVRM_ESC_DUP_OBJECT = 0x34,
    NVRM_ESC_MAP_MEMORY = 0x4e,
    NVRM_ESC_UNMAP_MEMORY = 0x4f,
    NVRM_ESC_MAP_MEMORY_DMA = 0x57,
    NVRM_ESC_UNMAP_MEMORY_DMA = 0x58,
    NVRM_ESC_CARD_INFO = 0xc8,
    NVRM_ESC_REGISTER_FD = 0xc9,
    NVRM_ESC_CHECK_VERSION = 0xd2,
};

struct nvrm_abi_free {
    nvrm_handle client; /* in */
    nvrm_handle parent; /* in */
    nvrm_handle object; /* in */
    uint32_t status;    /* out */
};
NVRM_ABI_SIZE(nvrm_abi_free, 16);
NVRM_ABI_AT(nvrm_abi_free, object, 8);

/* Older callers use the first 32 bytes with `params_bytes` and `status` at 24 and 28; see below. */
struct nvrm_abi_alloc {
    nvrm_handle client;    /* in; 0 when class_id is the root client */
    nvrm_handle parent;    /* in */
    nvrm_handle object;    /* in: the name wanted; out for the root client */
    uint32_t class_id;     /* in */
    uint64_t params;       /* in: host address of the class's own structure, or 0 */
    uint64_t rights;       /* in: 0 */
    uint32_t params_bytes; /* in */
    uint32_t flags;
    uint32_t status; /* out */
    uint32_t pad;
};
NVRM_ABI_SIZE(nvrm_abi_alloc, 48);
NVRM_ABI_AT(nvrm_abi_alloc, class_id, 12);
NVRM_ABI_AT(nvrm_abi_alloc, params, 16);
NVRM_ABI_AT(nvrm_abi_alloc, params_bytes, 32);
NVRM_ABI_AT(nvrm_abi_alloc, status, 40);

/* The short form, accepted beside the one above. MoonBright only decodes it. */
struct nvrm_abi_alloc_short {
    nvrm_handle client;
    nvrm_handle parent;
    nvrm_handle object;
    uint32_t class_id;
    uint64_t params;
    uint32_t params_bytes;
    uint32_t status;
};
NVRM_ABI_SIZE(nvrm_abi_alloc_short, 32);
NVRM_ABI_AT(nvrm_abi_alloc_short, params_bytes, 24);
NVRM_ABI_AT(nvrm_abi_alloc_short, status, 28);

struct nvrm_abi_control {
    nvrm_handle client; /* in */
    nvrm_handle object; /* in */
    uint32_t cmd;       /* in */
    uint32_t flags;
    uint64_t params;       /* in: host address of the command's structure */
    uint32_t params_bytes; /* in: must be the command's exact size */
    uint32_t status;       /* out */
};
NVRM_ABI_SIZE(nvrm_abi_control, 32);
NVRM_ABI_AT(nvrm_abi_control, params, 16);
NVRM_ABI_AT(nvrm_abi_control, status, 28);

struct nvrm_abi_dup {
    nvrm_handle client;     /* in: destination */
    nvrm_handle parent;     /* in: destination */
    nvrm_handle object;     /* in: the name wanted */
    nvrm_handle src_client; /* in */
    nvrm_handle src_object; /* in */
    uint32_t flags;
    uint32_t status; /* out */
};
NVRM_ABI_SIZE(nvrm_abi_dup, 28);
NVRM_ABI_AT(nvrm_abi_dup, src_object, 16);

/* CPU mapping: arms `fd`, a fresh file of the device that backs the memory, for one mmap at 0. */
struct nvrm_abi_map {
    nvrm_handle client; /* in */
    nvrm_handle device; /* in: device or subdevice */
    nvrm_handle memory; /* in */
    uint32_t pad0;
    uint64_t offset; /* in, bytes */
    uint64_t length; /* in, bytes */
    uint64_t linear; /* out: what UNMAP_MEMORY wants back; not a host address */
    uint32_t status; /* out */
    uint32_t flags;  /* in: NVRM_MAP_READ_ONLY */
    int32_t fd;      /* in */
    uint32_t pad1;
};
NVRM_ABI_SIZE(nvrm_abi_map, 56);
NVRM_ABI_AT(nvrm_abi_map, offset, 16);
NVRM_ABI_AT(nvrm_abi_map, linear, 32);
NVRM_ABI_AT(nvrm_abi_map, flags, 44);
NVRM_ABI_AT(nvrm_abi_map, fd, 48);

enum { NVRM_MAP_READ_ONLY = 1 };

struct nvrm_abi_unmap {
    nvrm_handle client; /* in */
    nvrm_handle device; /* in */
    nvrm_handle memory; /* in */
    uint32_t pad;
    uint64_t linear; /* in: from nvrm_abi_map */
    uint32_t status; /* out */
    uint32_t flags;
};
NVRM_ABI_SIZE(nvrm_abi_unmap, 32);
NVRM_ABI_AT(nvrm_abi_unmap, linear, 16);

/* GPU mapping, layout of 570 and 575. */
struct nvrm_abi_map_dma_v570 {
    nvrm_handle client; /* in */
    nvrm_handle device; /* in */
    nvrm_handle dma;    /* in: virtual memory object of the address space */
    nvrm_handle memory; /* in */
    uint64_t offset;    /* in, bytes */
    uint64_t length;    /* in, bytes */
    uint32_t flags;     /* in: NVRM_DMA_* */
    uint32_t pad0;
    uint64_t va;     /* out, bytes */
    uint32_t status; /* out */
    uint32_t pad1;
};
NVRM_ABI_SIZE(nvrm_abi_map_dma_v570, 56);
NVRM_ABI_AT(nvrm_abi_map_dma_v570, va, 40);
NVRM_ABI_AT(nvrm_abi_map_dma_v570, status, 48);

/* The same since 580: two more words of flags before the address. */
struct nvrm_abi_map_dma {
    nvrm_handle client;
    nvrm_handle device;
    nvrm_handle dma;
    nvrm_handle memory;
    uint64_t offset;
    uint64_t length;
    uint32_t flags;
    uint32_t flags2;
    uint32_t kind_override;
    uint32_t pad0;
    uint64_t va;
    uint32_t status;
    uint32_t pad1;
};
NVRM_ABI_SIZE(nvrm_abi_map_dma, 64);
NVRM_ABI_AT(nvrm_abi_map_dma, flags, 32);
NVRM_ABI_AT(nvrm_abi_map_dma, va, 48);
NVRM_ABI_AT(nvrm_abi_map_dma, status, 56);

enum {
    NVRM_DMA_READ_ONLY = 1,    /* bits 1:0 */
    NVRM_DMA_SNOOP = 1 << 4,   /* accesses to host memory snoop the CPU's caches */
    NVRM_DMA_PAGE_4K = 1 << 8, /* bits 11:8 */
};

struct nvrm_abi_unmap_dma {
    nvrm_handle client; /* in */
    nvrm_handle device; /* in */
    nvrm_handle dma;    /* in */
    nvrm_handle memory; /* in */
    uint32_t flags;
    uint32_t pad0;
    uint64_t va;     /* in */
    uint64_t length; /* in: 0 is the whole mapping */
    uint32_t status; /* out */
    uint32_t pad1;
};
NVRM_ABI_SIZE(nvrm_abi_unmap_dma, 48);
NVRM_ABI_AT(nvrm_abi_unmap_dma, va, 24);
NVRM_ABI_AT(nvrm_abi_unmap_dma, status, 40);

enum { NVRM_MAX_CARDS = 32 };

struct nvrm_abi_card {
    uint8_t valid; /* out: 0 or 1 */
    uint8_t pad0[3];
    uint32_t pci_domain; /* out */
    uint8_t pci_bus;     /* out */
    uint8_t pci_slot;    /* out */
    uint8_t pci_function;
    uint8_t pad1;
    uint16_t vendor_id;
    uint16_t device_id;
    uint32_t gpu_id; /* out: RM's name of the GPU */
    uint16_t interrupt_line;
    uint16_t pad2;
    uint64_t reg_address;
    uint64_t reg_bytes;
    uint64_t fb_address;
    uint64_t fb_bytes; /* out: size of BAR1 */
    uint32_t minor;    /* out: N of /dev/nvidiaN */
    uint8_t name[10];
    uint8_t pad3[2];
};
NVRM_ABI_SIZE(nvrm_abi_card, 72);
NVRM_ABI_AT(nvrm_abi_card, pci_domain, 4);
NVRM_ABI_AT(nvrm_abi_card, pci_bus, 8);
NVRM_ABI_AT(nvrm_abi_card, gpu_id, 16);
NVRM_ABI_AT(nvrm_abi_card, fb_bytes, 48);
NVRM_ABI_AT(nvrm_abi_card, minor, 56);

struct nvrm_abi_register_fd {
    int32_t ctl_fd; /* in */
};
NVRM_ABI_SIZE(nvrm_abi_register_fd, 4);

struct nvrm_abi_version {
    uint32_t cmd;   /* in: NVRM_VERSION_QUERY */
    uint32_t reply; /* out: 1 if the driver knows the call */
    char text[64];  /* out: "580.159.04" */
};
NVRM_ABI_SIZE(nvrm_abi_version, 72);

enum { NVRM_VERSION_QUERY = '2' };

/* ------------------------------------------------------------ classes */

enum nvrm_class {
    NVRM_CLASS_MEMORY_SYSTEM = 0x3e,
    NVRM_CLASS_MEMORY_LOCAL = 0x40,
    NVRM_CLASS_ROOT = 0x41,
    NVRM_CLASS_MEMORY_VIRTUAL = 0x70,
    NVRM_CLASS_DEVICE = 0x80,
    NVRM_CLASS_MEMORY_PHYSICAL = 0xc2, /* a view of all video memory; root only */
    NVRM_CLASS_SUBDEVICE = 0x2080,
    NVRM_CLASS_MPS = 0x900e,
    NVRM_CLASS_VASPACE = 0x90f1,
    NVRM_CLASS_CHANNEL_GROUP = 0xa06c,
    NVRM_CLASS_CONF_COMPUTE = 0xcb33,
    /* classes that depend on the GPU are in arch.h */
};

struct nvrm_abi_device {
    uint32_t instance;        /* in */
    nvrm_handle client_share; /* in: whose default address space; our own client */
    nvrm_handle target_client;
    nvrm_handle target_device;
    uint32_t flags;
    uint32_t pad0;
    uint64_t va_bytes;
    uint64_t va_start;
    uint64_t va_limit;
    uint32_t va_mode; /* in: 0, several address spaces are allowed */
    uint32_t pad1;
};
NVRM_ABI_SIZE(nvrm_abi_device, 56);
NVRM_ABI_AT(nvrm_abi_device, client_share, 4);
NVRM_ABI_AT(nvrm_abi_device, va_bytes, 24);
NVRM_ABI_AT(nvrm_abi_device, va_mode, 48);

struct nvrm_abi_subdevice {
    uint32_t instance; /* in */
};
NVRM_ABI_SIZE(nvrm_abi_subdevice, 4);

/* 56 bytes since 580; 570 and 575 end before `pasid`: 48 bytes. */
struct nvrm_abi_vaspace {
    uint32_t index; /* in: 0 */
    uint32_t flags; /* in */
    uint64_t bytes;
    uint64_t start_internal;
    uint64_t limit_internal;
    uint32_t big_page_bytes;
    uint32_t pad0;
    uint64_t base;
    uint32_t pasid;
    uint32_t pad1;
};
NVRM_ABI_SIZE(nvrm_abi_vaspace, 56);
NVRM_ABI_AT(nvrm_abi_vaspace, flags, 4);
NVRM_ABI_AT(nvrm_abi_vaspace, base, 40);
NVRM_ABI_AT(nvrm_abi_vaspace, pasid, 48);

struct nvrm_abi_memory_virtual {
    uint64_t offset;
    uint64_t limit;
    nvrm_handle vaspace; /* in */
    uint32_t pad;
};
NVRM_ABI_SIZE(nvrm_abi_memory_virtual, 24);
NVRM_ABI_AT(nvrm_abi_memory_virtual, vaspace, 16);

struct nvrm_abi_memory {
    uint32_t owner; /* in: our client */
    uint32_t type;  /* in */
    uint32_t flags; /* in */
    uint32_t width;
    uint32_t height;
    int32_t pitch;
    uint32_t attr;  /* in, out */
    uint32_t attr2; /* in, out */
    uint32_t format;
    uint32_t compr_covg;
    uint32_t zcull_covg;
    uint32_t pad0;
    uint64_t range_low;
    uint64_t range_high;
    uint64_t bytes;     /* in, out */
    uint64_t alignment; /* in */
    uint64_t offset;    /* out */
    uint64_t limit;     /* in, out */
    uint64_t address;
    uint32_t ctag_offset;
    nvrm_handle vaspace;
    uint32_t internal_flags;
    uint32_t tag;
    int32_t numa_node;
    uint32_t pad1;
};
NVRM_ABI_SIZE(nvrm_abi_memory, 128);
NVRM_ABI_AT(nvrm_abi_memory, attr, 24);
NVRM_ABI_AT(nvrm_abi_memory, range_low, 48);
NVRM_ABI_AT(nvrm_abi_memory, bytes, 64);
NVRM_ABI_AT(nvrm_abi_memory, alignment, 72);
NVRM_ABI_AT(nvrm_abi_memory, limit, 88);
NVRM_ABI_AT(nvrm_abi_memory, vaspace, 108);
NVRM_ABI_AT(nvrm_abi_memory, numa_node, 120);

enum {
    NVRM_MEM_TYPE_IMAGE = 0,
    NVRM_MEM_TYPE_NOTIFIER = 13,
    /* flags */
    NVRM_MEM_FLAG_IGNORE_BANK = 0x1,
    NVRM_MEM_FLAG_FORCE_ALIGNMENT = 0x100,
    NVRM_MEM_FLAG_HANDLE_PROVIDED = 0x4000,
    NVRM_MEM_FLAG_MAP_NOT_REQUIRED = 0x8000,
    NVRM_MEM_FLAG_PERSISTENT = 0x10000,
    /* attr: page size 24:23, location 26:25, physicality 28:27, CPU caching 31:29 */
    NVRM_MEM_ATTR_PAGE_4K = 1 << 23,
    NVRM_MEM_ATTR_PAGE_HUGE = 3 << 23,
    NVRM_MEM_ATTR_PCI = 1 << 25,
    NVRM_MEM_ATTR_CONTIGUOUS = 2 << 27,
    NVRM_MEM_ATTR_ANY_PAGES = 3 << 27,
    NVRM_MEM_ATTR_CPU_CACHED = 1 << 29,
    /* attr2: zero-bandwidth clears 1:0, GPU cache 3:2, huge page size 21:20 */
    NVRM_MEM_ATTR2_NO_ZBC = 1,
    NVRM_MEM_ATTR2_GPU_CACHED = 1 << 2,
    NVRM_MEM_ATTR2_GPU_UNCACHED = 2 << 2,
    NVRM_MEM_ATTR2_HUGE_2M = 1 << 20,
};

struct nvrm_abi_memory_physical {
    uint64_t bytes;  /* out: size of the view */
    uint32_t format; /* in: page kind of mappings made through it */
    uint32_t pad;
    uint64_t page_bytes; /* in: 0 */
};
NVRM_ABI_SIZE(nvrm_abi_memory_physical, 24);
NVRM_ABI_AT(nvrm_abi_memory_physical, format, 8);
NVRM_ABI_AT(nvrm_abi_memory_physical, page_bytes, 16);

enum { NVRM_KIND_GENERIC = 6 };

struct nvrm_abi_channel_group {
    nvrm_handle error_notifier;
    nvrm_handle ecc_notifier;
    nvrm_handle vaspace;  /* in */
    uint32_t engine_type; /* in */
    uint8_t vgpu_plugin;
    uint8_t pad[3];
};
NVRM_ABI_SIZE(nvrm_abi_channel_group, 20);
NVRM_ABI_AT(nvrm_abi_channel_group, vaspace, 8);
NVRM_ABI_AT(nvrm_abi_channel_group, engine_type, 12);

struct nvrm_abi_memdesc {
    uint64_t base;
    uint64_t bytes;
    uint32_t address_space;
    uint32_t cache;
};
NVRM_ABI_SIZE(nvrm_abi_memdesc, 24);

enum { NVRM_MAX_SUBDEVICES = 8 };

struct nvrm_abi_channel {
    nvrm_handle error_notifier; /* in: memory object that takes the error record */
    nvrm_handle buffer;
    uint64_t gpfifo_va;      /* in */
    uint32_t gpfifo_entries; /* in */
    uint32_t flags;
    nvrm_handle context_share;
    nvrm_handle vaspace;                           /* 0: the group's */
    nvrm_handle userd_memory[NVRM_MAX_SUBDEVICES]; /* in: [0] */
    uint64_t userd_offset[NVRM_MAX_SUBDEVICES];    /* in: [0], bytes */
    uint32_t engine_type;                          /* in */
    uint32_t cid;
    uint32_t subdevice_id;
    nvrm_handle ecc_notifier;
    struct nvrm_abi_memdesc instance, userd, ramfc, methods;
    nvrm_handle phys_group;
    uint32_t internal_flags;
    struct nvrm_abi_memdesc error_mem, ecc_mem;
    uint32_t process_id;
    uint32_t sub_process_id;
    uint32_t encrypt_iv[3];
    uint32_t decrypt_iv[3];
    uint32_t hmac_nonce[8];
    uint32_t tpc_config_id;
    uint32_t pad;
};
NVRM_ABI_SIZE(nvrm_abi_channel, 368);
NVRM_ABI_AT(nvrm_abi_channel, gpfifo_va, 8);
NVRM_ABI_AT(nvrm_abi_channel, vaspace, 28);
NVRM_ABI_AT(nvrm_abi_channel, userd_memory, 32);
NVRM_ABI_AT(nvrm_abi_channel, userd_offset, 64);
NVRM_ABI_AT(nvrm_abi_channel, engine_type, 128);
NVRM_ABI_AT(nvrm_abi_channel, instance, 144);
NVRM_ABI_AT(nvrm_abi_channel, phys_group, 240);
NVRM_ABI_AT(nvrm_abi_channel, error_mem, 248);
NVRM_ABI_AT(nvrm_abi_channel, process_id, 296);
NVRM_ABI_AT(nvrm_abi_channel, hmac_nonce, 328);

struct nvrm_abi_copy {
    uint32_t version;     /* in: 1, engine_type is an engine type and not an index */
    uint32_t engine_type; /* in */
};
NVRM_ABI_SIZE(nvrm_abi_copy, 8);

struct nvrm_abi_usermode {
    uint8_t bar1; /* in: 0, the doorbell through the register BAR */
    uint8_t priv; /* in: 0 */
};
NVRM_ABI_SIZE(nvrm_abi_usermode, 2);

struct nvrm_abi_conf_compute {
    nvrm_handle client; /* in */
};
NVRM_ABI_SIZE(nvrm_abi_conf_compute, 4);

/* Engine types of copy engines: 9 + n up to n = 9, then 0x34 + (n - 10). */
enum { NVRM_ENGINE_COPY0 = 9, NVRM_ENGINE_COPY10 = 0x34 };

/* The error record of a channel, written by the driver. */
struct nvrm_abi_notification {
    uint32_t time_low;
    uint32_t time_high;
    uint32_t info32; /* exception number, as in an Xid */
    uint16_t info16; /* engine type */
    uint16_t status; /* 0: nothing happened; 0xffff: an error */
};
NVRM_ABI_SIZE(nvrm_abi_notification, 16);
NVRM_ABI_AT(nvrm_abi_notification, info32, 8);
NVRM_ABI_AT(nvrm_abi_notification, status, 14);

/* ------------------------------------------------------------ controls */

/* On the object named; (root): the driver asks for CAP_SYS_ADMIN. */
#define NVRM_CMD_GPU_ID_INFO 0x205u            /* root client */
#define NVRM_CMD_GPU_UUID 0x275u               /* root client */
#define NVRM_CMD_SURFACE_PHYS 0x410103u        /* memory object (root) */
#define NVRM_CMD_VIRT_MODE 0x800289u           /* device */
#define NVRM_CMD_GPU_INFO 0x20800102u          /* subdevice */
#define NVRM_CMD_GPU_PIDS 0x2080018du          /* subdevice */
#define NVRM_CMD_CHANNEL_MEM 0x2080110cu       /* subdevice (root) */
#define NVRM_CMD_ARCH_INFO 0x20801701u         /* subdevice */
#define NVRM_CMD_C2C_INFO 0x2080182bu          /* subdevice */
#define NVRM_CMD_GROUP_SCHEDULE 0xa06c0101u    /* channel group */
#define NVRM_CMD_GROUP_TIMESLICE 0xa06c0103u   /* channel group; set */
#define NVRM_CMD_CE_MASK 0x20802a02u           /* subdevice (root) */
#define NVRM_CMD_CE_CAPS 0x20802a03u           /* subdevice */
#define NVRM_CMD_WORK_SUBMIT_TOKEN 0xc36f0108u /* channel */
#define NVRM_CMD_CC_CAPABILITIES 0xcb330101u   /* confidential-computing object */

struct nvrm_abi_gpu_id_info {
    uint32_t gpu_id; /* in */
    uint32_t flags;
    uint32_t device_instance;    /* out */
    uint32_t subdevice_instance; /* out */
    uint32_t sli_status;
    uint32_t board_id;
    uint32_t gpu_instance;
    int32_t numa_node;
};
NVRM_ABI_SIZE(nvrm_abi_gpu_id_info, 32);
NVRM_ABI_AT(nvrm_abi_gpu_id_info, device_instance, 8);

struct nvrm_abi_gpu_uuid {
    uint32_t gpu_id;   /* in */
    uint32_t flags;    /* in: NVRM_UUID_BINARY */
    uint8_t uuid[256]; /* out: 16 bytes are used */
    uint32_t length;   /* out, bytes */
};
NVRM_ABI_SIZE(nvrm_abi_gpu_uuid, 268);
NVRM_ABI_AT(nvrm_abi_gpu_uuid, length, 264);

enum { NVRM_UUID_BINARY = 2, NVRM_UUID_BYTES = 16 };

struct nvrm_abi_surface_phys {
    uint64_t offset; /* in: into the object; out: physical address; bytes */
    uint32_t format; /* out: page kind */
    uint32_t compr_offset;
    uint32_t compr_format; /* out: 0 is uncompressed */
    uint32_t aperture;     /* out: 0 video memory, 1 system memory */
    uint32_t gpu_cache;
    uint32_t p2p_cache;
    uint32_t mmu_context;
    uint32_t pad;
    uint64_t contiguous; /* out: bytes from there on that are contiguous */
};
NVRM_ABI_SIZE(nvrm_abi_surface_phys, 48);
NVRM_ABI_AT(nvrm_abi_surface_phys, aperture, 20);
NVRM_ABI_AT(nvrm_abi_surface_phys, contiguous, 40);

struct nvrm_abi_virt_mode {
    uint32_t mode; /* out */
    uint8_t grid_build;
    uint8_t pad[3];
};
NVRM_ABI_SIZE(nvrm_abi_virt_mode, 8);

struct nvrm_abi_info_entry {
    uint32_t index; /* in */
    uint32_t data;  /* out */
};

/* The list's length is part of the ABI and grows with the series: series.h. */
enum { NVRM_INFO_ENTRIES_MAX = 70 };
struct nvrm_abi_gpu_info {
    uint32_t count; /* in */
    struct nvrm_abi_info_entry list[NVRM_INFO_ENTRIES_MAX];
};
NVRM_ABI_SIZE(nvrm_abi_gpu_info, 564);

enum {
    NVRM_INFO_SMC_MODE = 0x2a,      /* MIG */
    NVRM_INFO_ATS = 0x30,           /* the GPU translates through the CPU's page tables */
    NVRM_INFO_SELF_HOSTED = 0x3b,   /* Grace or the like */
    NVRM_INFO_COHERENT_MODE = 0x44, /* since 580 */
};

enum { NVRM_PIDS_MAX = 950 };
struct nvrm_abi_gpu_pids {
    uint32_t id_type;             /* in: 0, by class */
    uint32_t id;                  /* in: class number */
    uint32_t count;               /* out */
    uint32_t pids[NVRM_PIDS_MAX]; /* out, in the caller's pid namespace */
};
NVRM_ABI_SIZE(nvrm_abi_gpu_pids, 3812);
NVRM_ABI_AT(nvrm_abi_gpu_pids, pids, 12);

struct nvrm_abi_fifo_mem {
    uint32_t aperture; /* out: 1 video memory */
    uint32_t pad;
    uint64_t base;  /* out: physical address */
    uint64_t bytes; /* out */
};
NVRM_ABI_SIZE(nvrm_abi_fifo_mem, 24);
NVRM_ABI_AT(nvrm_abi_fifo_mem, base, 8);

struct nvrm_abi_channel_mem {
    nvrm_handle channel; /* in */
    uint32_t pad0;
    struct nvrm_abi_fifo_mem instance; /* out */
    struct nvrm_abi_fifo_mem ramfc;
    struct nvrm_abi_fifo_mem method[2];
    uint32_t method_count;
    uint32_t pad1;
};
NVRM_ABI_SIZE(nvrm_abi_channel_mem, 112);
NVRM_ABI_AT(nvrm_abi_channel_mem, instance, 8);
NVRM_ABI_AT(nvrm_abi_channel_mem, method_count, 104);

struct nvrm_abi_arch_info {
    uint32_t architecture;   /* out */
    uint32_t implementation; /* out */
    uint32_t revision;
    uint8_t sub_revision;
    uint8_t pad[3];
};
NVRM_ABI_SIZE(nvrm_abi_arch_info, 16);

struct nvrm_abi_c2c_info {
    uint8_t link_up; /* out */
    uint8_t high_speed;
    uint8_t pad[2];
    uint32_t links;
    uint32_t max_links;
    uint32_t link_mask;
    uint32_t link_mbps;
    uint32_t lane_width;
    uint32_t remote; /* out: 1 CPU, 2 GPU */
};
NVRM_ABI_SIZE(nvrm_abi_c2c_info, 28);
NVRM_ABI_AT(nvrm_abi_c2c_info, remote, 24);

/* 3 bytes since 575; 570 ends before `skip_enable`: 2 bytes. */
struct nvrm_abi_schedule {
    uint8_t enable; /* in: 1 */
    uint8_t skip_submit;
    uint8_t skip_enable;
};
NVRM_ABI_SIZE(nvrm_abi_schedule, 3);

struct nvrm_abi_timeslice {
    uint64_t us; /* in: rounded down to what the hardware can */
};
NVRM_ABI_SIZE(nvrm_abi_timeslice, 8);

struct nvrm_abi_ce_caps {
    uint32_t engine_type; /* in */
    uint8_t caps[2];      /* out */
    uint8_t pad[2];
};
NVRM_ABI_SIZE(nvrm_abi_ce_caps, 8);
NVRM_ABI_AT(nvrm_abi_ce_caps, caps, 4);

struct nvrm_abi_ce_mask {
    uint32_t engine_type; /* in */
    uint32_t mask;        /* out: physical engines behind it */
};
NVRM_ABI_SIZE(nvrm_abi_ce_mask, 8);

struct nvrm_abi_token {
    uint32_t token; /* out: what the doorbell takes */
};
NVRM_ABI_SIZE(nvrm_abi_token, 4);

struct nvrm_abi_cc_caps {
    uint8_t cpu;
    uint8_t gpus;
    uint8_t environment;
    uint8_t feature;   /* out: 0 off */
    uint8_t dev_tools; /* out: 0 off */
    uint8_t multi_gpu; /* out: 0 none, 1 protected PCIe, 2 encrypted NVLink */
};
NVRM_ABI_SIZE(nvrm_abi_cc_caps, 6);
NVRM_ABI_AT(nvrm_abi_cc_caps, feature, 3);

/* ------------------------------------------------------------ UVM: bare request numbers */

enum nvrm_uvm_request {
    NVRM_UVM_REGISTER_MPS_CLIENT = 0x13,
    NVRM_UVM_REGISTER_VASPACE = 0x19,
    NVRM_UVM_UNREGISTER_VASPACE = 0x1a,
    NVRM_UVM_REGISTER_CHANNEL = 0x1b,
    NVRM_UVM_UNREGISTER_CHANNEL = 0x1c,
    NVRM_UVM_MAP_EXTERNAL = 0x21,
    NVRM_UVM_FREE = 0x22,
    NVRM_UVM_UNMAP_EXTERNAL = 0x42,
    NVRM_UVM_CREATE_EXTERNAL_RANGE = 0x49,
    NVRM_UVM_INITIALIZE = 0x30000001,
    NVRM_UVM_DEINITIALIZE = 0x30000002,
};

/* How one GPU maps an external allocation. */
struct nvrm_abi_uvm_attr {
    uint8_t uuid[NVRM_UUID_BYTES];
    uint32_t mapping; /* access rights */
    uint32_t caching; /* GPU cache */
    uint32_t format;  /* page kind class */
    uint32_t element_bits;
    uint32_t compression;
};
NVRM_ABI_SIZE(nvrm_abi_uvm_attr, 36);
NVRM_ABI_AT(nvrm_abi_uvm_attr, compression, 32);

enum { NVRM_UVM_MAX_GPUS = 256 };

struct nvrm_abi_uvm_map {
    uint64_t base;                                    /* in */
    uint64_t length;                                  /* in, bytes */
    uint64_t offset;                                  /* in: into the memory object, bytes */
    struct nvrm_abi_uvm_attr attr[NVRM_UVM_MAX_GPUS]; /* in */
    uint64_t attr_count;                              /* in */
    int32_t rm_ctl_fd;                                /* in */
    nvrm_handle client;                               /* in */
    nvrm_handle memory;                               /* in */
    uint32_t status;                                  /* out */
};
NVRM_ABI_SIZE(nvrm_abi_uvm_map, 9264);
NVRM_ABI_AT(nvrm_abi_uvm_map, attr, 24);
NVRM_ABI_AT(nvrm_abi_uvm_map, attr_count, 9240);
NVRM_ABI_AT(nvrm_abi_uvm_map, rm_ctl_fd, 9248);
NVRM_ABI_AT(nvrm_abi_uvm_map, status, 9260);

struct nvrm_abi_uvm_range {
    uint64_t base;   /* in */
    uint64_t length; /* in, bytes */
    uint32_t status; /* out */
    uint32_t pad;
};
NVRM_ABI_SIZE(nvrm_abi_uvm_range, 24);
NVRM_ABI_AT(nvrm_abi_uvm_range, status, 16);

struct nvrm_abi_uvm_unmap {
    uint64_t base;                 /* in */
    uint64_t length;               /* in, bytes */
    uint8_t uuid[NVRM_UUID_BYTES]; /* in */
    uint32_t status;               /* out */
    uint32_t pad;
};
NVRM_ABI_SIZE(nvrm_abi_uvm_unmap, 40);
NVRM_ABI_AT(nvrm_abi_uvm_unmap, status, 32);

/* UVM_FREE up to 580 is struct nvrm_abi_uvm_range; since 590 the length is gone. */
struct nvrm_abi_uvm_free_v590 {
    uint64_t base;   /* in */
    uint32_t status; /* out */
    uint32_t pad;
};
NVRM_ABI_SIZE(nvrm_abi_uvm_free_v590, 16);

struct nvrm_abi_uvm_register_vaspace {
    uint8_t uuid[NVRM_UUID_BYTES]; /* in */
    int32_t rm_ctl_fd;             /* in */
    nvrm_handle client;            /* in */
    nvrm_handle vaspace;           /* in */
    uint32_t status;               /* out */
};
NVRM_ABI_SIZE(nvrm_abi_uvm_register_vaspace, 32);
NVRM_ABI_AT(nvrm_abi_uvm_register_vaspace, vaspace, 24);

struct nvrm_abi_uvm_unregister_vaspace {
    uint8_t uuid[NVRM_UUID_BYTES]; /* in */
    uint32_t status;               /* out */
};
NVRM_ABI_SIZE(nvrm_abi_uvm_unregister_vaspace, 20);

struct nvrm_abi_uvm_register_channel {
    uint8_t uuid[NVRM_UUID_BYTES]; /* in */
    int32_t rm_ctl_fd;             /* in */
    nvrm_handle client;            /* in */
    nvrm_handle channel;           /* in */
    uint32_t pad0;
    uint64_t base;   /* in: of the channel's own buffers, bytes */
    uint64_t length; /* in, bytes */
    uint32_t status; /* out */
    uint32_t pad1;
};
NVRM_ABI_SIZE(nvrm_abi_uvm_register_channel, 56);
NVRM_ABI_AT(nvrm_abi_uvm_register_channel, channel, 24);
NVRM_ABI_AT(nvrm_abi_uvm_register_channel, base, 32);
NVRM_ABI_AT(nvrm_abi_uvm_register_channel, status, 48);

struct nvrm_abi_uvm_unregister_channel {
    uint8_t uuid[NVRM_UUID_BYTES]; /* in */
    nvrm_handle client;            /* in */
    nvrm_handle channel;           /* in */
    uint32_t status;               /* out */
};
NVRM_ABI_SIZE(nvrm_abi_uvm_unregister_channel, 28);
NVRM_ABI_AT(nvrm_abi_uvm_unregister_channel, channel, 20);

/* The same since 590: the GPU is gone. */
struct nvrm_abi_uvm_unregister_channel_v590 {
    nvrm_handle client;  /* in */
    nvrm_handle channel; /* in */
    uint32_t status;     /* out */
};
NVRM_ABI_SIZE(nvrm_abi_uvm_unregister_channel_v590, 12);

#endif
