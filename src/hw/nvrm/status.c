/*
 * status.c - see status.h.
 *
 * The numbers up to 0x8a agree in every series of series.c; a driver may lack the last ones. From
 * 0x8b on one number means different things in different series, so these get no name.
 */
#include "hw/nvrm/status.h"

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>

#include "hw/nvrm/abi.h"

/* Status 1 onwards. */
static const char *const status_names[] = {"BROKEN_FB",
                                           "BUFFER_TOO_SMALL",
                                           "BUSY_RETRY",
                                           "CALLBACK_NOT_SCHEDULED",
                                           "CARD_NOT_PRESENT",
                                           "CYCLE_DETECTED",
                                           "DMA_IN_USE",
                                           "DMA_MEM_NOT_LOCKED",
                                           "DMA_MEM_NOT_UNLOCKED",
                                           "DUAL_LINK_INUSE",
                                           "ECC_ERROR",
                                           "FIFO_BAD_ACCESS",
                                           "FREQ_NOT_SUPPORTED",
                                           "GPU_DMA_NOT_INITIALIZED",
                                           "GPU_IS_LOST",
                                           "GPU_IN_FULLCHIP_RESET",
                                           "GPU_NOT_FULL_POWER",
                                           "GPU_UUID_NOT_FOUND",
                                           "HOT_SWITCH",
                                           "I2C_ERROR",
                                           "I2C_SPEED_TOO_HIGH",
                                           "ILLEGAL_ACTION",
                                           "IN_USE",
                                           "INFLATE_COMPRESSED_DATA_FAILED",
                                           "INSERT_DUPLICATE_NAME",
                                           "INSUFFICIENT_RESOURCES",
                                           "INSUFFICIENT_PERMISSIONS",
                                           "INSUFFICIENT_POWER",
                                           "INVALID_ACCESS_TYPE",
                                           "INVALID_ADDRESS",
                                           "INVALID_ARGUMENT",
                                           "INVALID_BASE",
                                           "INVALID_CHANNEL",
                                           "INVALID_CLASS",
                                           "INVALID_CLIENT",
                                           "INVALID_COMMAND",
                                           "INVALID_DATA",
                                           "INVALID_DEVICE",
                                           "INVALID_DMA_SPECIFIER",
                                           "INVALID_EVENT",
                                           "INVALID_FLAGS",
                                           "INVALID_FUNCTION",
                                           "INVALID_HEAP",
                                           "INVALID_INDEX",
                                           "INVALID_IRQ_LEVEL",
                                           "INVALID_LIMIT",
                                           "INVALID_LOCK_STATE",
                                           "INVALID_METHOD",
                                           "INVALID_OBJECT",
                                           "INVALID_OBJECT_BUFFER",
                                           "INVALID_OBJECT_HANDLE",
                                           "INVALID_OBJECT_NEW",
                                           "INVALID_OBJECT_OLD",
                                           "INVALID_OBJECT_PARENT",
                                           "INVALID_OFFSET",
                                           "INVALID_OPERATION",
                                           "INVALID_OWNER",
                                           "INVALID_PARAM_STRUCT",
                                           "INVALID_PARAMETER",
                                           "INVALID_PATH",
                                           "INVALID_POINTER",
                                           "INVALID_REGISTRY_KEY",
                                           "INVALID_REQUEST",
                                           "INVALID_STATE",
                                           "INVALID_STRING_LENGTH",
                                           "INVALID_READ",
                                           "INVALID_WRITE",
                                           "INVALID_XLATE",
                                           "IRQ_NOT_FIRING",
                                           "IRQ_EDGE_TRIGGERED",
                                           "MEMORY_TRAINING_FAILED",
                                           "MISMATCHED_SLAVE",
                                           "MISMATCHED_TARGET",
                                           "MISSING_TABLE_ENTRY",
                                           "MODULE_LOAD_FAILED",
                                           "MORE_DATA_AVAILABLE",
                                           "MORE_PROCESSING_REQUIRED",
                                           "MULTIPLE_MEMORY_TYPES",
                                           "NO_FREE_FIFOS",
                                           "NO_INTR_PENDING",
                                           "NO_MEMORY",
                                           "NO_SUCH_DOMAIN",
                                           "NO_VALID_PATH",
                                           "NOT_COMPATIBLE",
                                           "NOT_READY",
                                           "NOT_SUPPORTED",
                                           "OBJECT_NOT_FOUND",
                                           "OBJECT_TYPE_MISMATCH",
                                           "OPERATING_SYSTEM",
                                           "OTHER_DEVICE_FOUND",
                                           "OUT_OF_RANGE",
                                           "OVERLAPPING_UVM_COMMIT",
                                           "PAGE_TABLE_NOT_AVAIL",
                                           "PID_NOT_FOUND",
                                           "PROTECTION_FAULT",
                                           "RC_ERROR",
                                           "REJECTED_VBIOS",
                                           "RESET_REQUIRED",
                                           "STATE_IN_USE",
                                           "SIGNAL_PENDING",
                                           "TIMEOUT",
                                           "TIMEOUT_RETRY",
                                           "TOO_MANY_PRIMARIES",
                                           "UVM_ADDRESS_IN_USE",
                                           "MAX_SESSION_LIMIT_REACHED",
                                           "LIB_RM_VERSION_MISMATCH",
                                           "PRIV_SEC_VIOLATION",
                                           "GPU_IN_DEBUG_MODE",
                                           "FEATURE_NOT_ENABLED",
                                           "RESOURCE_LOST",
                                           "PMU_NOT_READY",
                                           "FLCN_ERROR",
                                           "FATAL_ERROR",
                                           "MEMORY_ERROR",
                                           "INVALID_LICENSE",
                                           "NVLINK_INIT_ERROR",
                                           "NVLINK_MINION_ERROR",
                                           "NVLINK_CLOCK_ERROR",
                                           "NVLINK_TRAINING_ERROR",
                                           "NVLINK_CONFIGURATION_ERROR",
                                           "RISCV_ERROR",
                                           "FABRIC_MANAGER_NOT_PRESENT",
                                           "ALREADY_SIGNALLED",
                                           "QUEUE_TASK_SLOT_NOT_AVAILABLE",
                                           "KEY_ROTATION_IN_PROGRESS",
                                           "TEST_ONLY_CODE_NOT_ENABLED",
                                           "SECURE_BOOT_FAILED",
                                           "INSUFFICIENT_ZBC_ENTRY",
                                           "NVLINK_FABRIC_NOT_READY",
                                           "NVLINK_FABRIC_FAILURE",
                                           "GPU_MEMORY_ONLINING_FAILURE",
                                           "REDUCTION_MANAGER_NOT_AVAILABLE",
                                           "THRESHOLD_CROSSED",
                                           "RESOURCE_RETIREMENT_ERROR",
                                           "FABRIC_STATE_OUT_OF_SYNC",
                                           "BUFFER_FULL",
                                           "BUFFER_EMPTY",
                                           "MC_FLA_OFFSET_TABLE_FULL"};

enum { STATUS_NAMES = sizeof status_names / sizeof status_names[0] };

const char *mb__nvrm_status_name(uint32_t status)
{
    if (status == NVRM_STATUS_OK)
        return "OK";
    if (status == 0xffff)
        return "GENERIC";
    return status <= STATUS_NAMES ? status_names[status - 1] : "UNKNOWN";
}

enum mb_err mb__nvrm_status_err(uint32_t status)
{
    switch (status) {
    case NVRM_STATUS_OK:
        return MB_OK;
    case NVRM_STATUS_NO_PERMISSION:
        return MB_ERR_PERMISSION;
    case NVRM_STATUS_NO_MEMORY:
    case NVRM_STATUS_NO_RESOURCES:
        return MB_ERR_NO_MEMORY;
    case NVRM_STATUS_NOT_SUPPORTED:
    case NVRM_STATUS_INVALID_CLASS:
        return MB_ERR_NOT_SUPPORTED;
    case NVRM_STATUS_GPU_LOST:
    case NVRM_STATUS_RC_ERROR:
    case NVRM_STATUS_RESET_REQUIRED:
        return MB_ERR_DEVICE_LOST;
    case NVRM_STATUS_TIMEOUT:
    case NVRM_STATUS_TIMEOUT_RETRY:
        return MB_ERR_TIMEOUT;
    default:
        return MB_ERR_DRIVER;
    }
}

enum mb_err mb__nvrm_errno_err(int error)
{
    switch (error) {
    case 0:
        return MB_OK;
    case EACCES:
    case EPERM:
        return MB_ERR_PERMISSION;
    case ENOENT:
    case ENODEV:
    case ENXIO:
        return MB_ERR_NO_DEVICE;
    case ENOMEM:
    case EMFILE:
    case ENFILE:
        return MB_ERR_HOST_MEMORY;
    default:
        return MB_ERR_DRIVER;
    }
}

struct number_name {
    uint32_t number;
    const char *name;
};

static const char *find(const struct number_name *list, size_t count, uint32_t number)
{
    for (size_t i = 0; i < count; i++)
        if (list[i].number == number)
            return list[i].name;
    return NULL;
}

#define COUNT_OF(list) (sizeof(list) / sizeof(list)[0])

const char *mb__nvrm_cmd_name(uint32_t cmd)
{
    static const struct number_name list[] = {
        {NVRM_CMD_GPU_ID_INFO, "GPU_GET_ID_INFO_V2"},
        {NVRM_CMD_GPU_UUID, "GPU_GET_UUID_FROM_GPU_ID"},
        {NVRM_CMD_SURFACE_PHYS, "GET_SURFACE_PHYS_ATTR"},
        {NVRM_CMD_VIRT_MODE, "GPU_GET_VIRTUALIZATION_MODE"},
        {NVRM_CMD_GPU_INFO, "GPU_GET_INFO_V2"},
        {NVRM_CMD_GPU_PIDS, "GPU_GET_PIDS"},
        {NVRM_CMD_CHANNEL_MEM, "FIFO_GET_CHANNEL_MEM_INFO"},
        {NVRM_CMD_ARCH_INFO, "MC_GET_ARCH_INFO"},
        {NVRM_CMD_C2C_INFO, "BUS_GET_C2C_INFO"},
        {NVRM_CMD_GROUP_SCHEDULE, "GPFIFO_SCHEDULE"},
        {NVRM_CMD_WORK_SUBMIT_TOKEN, "GPFIFO_GET_WORK_SUBMIT_TOKEN"},
        {NVRM_CMD_CC_CAPABILITIES, "CONF_COMPUTE_GET_CAPABILITIES"},
    };
    const char *name = find(list, COUNT_OF(list), cmd);
    return name ? name : "?";
}

const char *mb__nvrm_class_name(uint32_t class_id)
{
    static const struct number_name list[] = {
        {NVRM_CLASS_ROOT, "root client"},
        {NVRM_CLASS_DEVICE, "device"},
        {NVRM_CLASS_SUBDEVICE, "subdevice"},
        {NVRM_CLASS_VASPACE, "address space"},
        {NVRM_CLASS_MEMORY_VIRTUAL, "virtual memory"},
        {NVRM_CLASS_MEMORY_SYSTEM, "system memory"},
        {NVRM_CLASS_MEMORY_LOCAL, "video memory"},
        {NVRM_CLASS_MEMORY_PHYSICAL, "view of physical memory"},
        {NVRM_CLASS_CHANNEL_GROUP, "channel group"},
        {NVRM_CLASS_CONF_COMPUTE, "confidential computing"},
        {0xc56f, "channel"},
        {0xc86f, "channel"},
        {0xc96f, "channel"},
        {0xca6f, "channel"},
        {0xc6b5, "copy engine"},
        {0xc7b5, "copy engine"},
        {0xc8b5, "copy engine"},
        {0xc9b5, "copy engine"},
        {0xcab5, "copy engine"},
        {0xc561, "doorbell"},
        {0xc661, "doorbell"},
        {0xc761, "doorbell"},
    };
    const char *name = find(list, COUNT_OF(list), class_id);
    return name ? name : "?";
}

/* Copy engine n reports its own number: 0, 3 and 6 begin at 39, 70 and 75. */
static bool is_copy_engine(uint32_t code)
{
    return (code >= 39 && code <= 41) || (code >= 70 && code <= 72) || (code >= 75 && code <= 77) ||
           code == 85 || (code >= 126 && code <= 135);
}

const char *mb__nvrm_xid_text(uint32_t code)
{
    static const struct number_name list[] = {
        {13, "exception of the graphics and compute engine"},
        {31, "MMU fault: an access to an address without a valid translation"},
        {32, "the host engine met a broken push buffer"},
        {43, "the channel was reset"},
        {44, "fault during a context switch"},
        {45, "the channel was removed, usually after an error of another one"},
        {48, "uncorrectable memory error"},
        {63, "a memory page or row was retired"},
        {64, "retiring a memory page or row failed"},
        {69, "a method was sent with a wrong class or value"},
        {79, "the GPU fell off the bus"},
        {94, "contained memory error: the frame must be retired"},
        {95, "uncontained memory error: the GPU needs a reset"},
        {119, "the GPU's system processor did not answer"},
        {120, "the GPU's system processor failed"},
        {141, "fast-path error"},
        {154, "the GPU asks for a recovery action"},
        {171, "uncorrectable error in memory"},
        {172, "uncorrectable error in a cache or register file"},
    };
    if (is_copy_engine(code))
        return "exception of a copy engine";
    const char *text = find(list, COUNT_OF(list), code);
    return text ? text : "an exception without a text in MoonBright";
}
