/* status.h - names for the numbers that the driver answers with. */
#ifndef MB_HW_NVRM_STATUS_H
#define MB_HW_NVRM_STATUS_H

#include <stdint.h>

#include "moonbright.h"

/* RM status numbers that MoonBright acts on; every other one only gets its name printed. */
enum nvrm_status {
    NVRM_STATUS_OK = 0,
    NVRM_STATUS_GPU_LOST = 0x0f,
    NVRM_STATUS_NO_RESOURCES = 0x1a,
    NVRM_STATUS_NO_PERMISSION = 0x1b,
    NVRM_STATUS_INVALID_CLASS = 0x22,
    NVRM_STATUS_NO_MEMORY = 0x51,
    NVRM_STATUS_NOT_SUPPORTED = 0x56,
    NVRM_STATUS_OBJECT_NOT_FOUND = 0x57,
    NVRM_STATUS_RC_ERROR = 0x60,
    NVRM_STATUS_RESET_REQUIRED = 0x62,
    NVRM_STATUS_TIMEOUT = 0x65,
    NVRM_STATUS_TIMEOUT_RETRY = 0x66,
};

/* Name of an RM status, "UNKNOWN" if it has none; never NULL. */
const char *mb__nvrm_status_name(uint32_t status);
/* What MoonBright's caller gets for a failed status, or for a failed call (errno value > 0). */
enum mb_err mb__nvrm_status_err(uint32_t status);
enum mb_err mb__nvrm_errno_err(int error);

/* Short names for error texts, "?" if unknown; never NULL. */
const char *mb__nvrm_cmd_name(uint32_t cmd);
const char *mb__nvrm_class_name(uint32_t class_id);

/* One line about an exception number as an Xid message carries it; never NULL. */
const char *mb__nvrm_xid_text(uint32_t code);

#endif
