/* series.c - see series.h. */
#include "hw/nvrm/series.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "hw/nvrm/abi.h"

#define SIZE_OF(type) ((uint16_t)sizeof(struct type))
#define PREFIX_OF(type, field) ((uint16_t)offsetof(struct type, field))
#define INFO_BYTES(entries) ((uint16_t)(4 + 8 * (entries)))

static const struct nvrm_series table[] = {
    {
        .major = 570,
        .evidence = "published sources 570.86.15 to 570.211.01; not run",
        .map_dma_bytes = SIZE_OF(nvrm_abi_map_dma_v570),
        .vaspace_bytes = PREFIX_OF(nvrm_abi_vaspace, pasid),
        .schedule_bytes = PREFIX_OF(nvrm_abi_schedule, skip_enable),
        .gpu_info_bytes = INFO_BYTES(65),
        .uvm_free_bytes = SIZE_OF(nvrm_abi_uvm_range),
        .uvm_unregister_channel_bytes = SIZE_OF(nvrm_abi_uvm_unregister_channel),
        .uvm_mps_known = true,
    },
    {
        .major = 575,
        .evidence = "published sources 575.51.02 to 575.64.05; not run",
        .map_dma_bytes = SIZE_OF(nvrm_abi_map_dma_v570),
        .vaspace_bytes = PREFIX_OF(nvrm_abi_vaspace, pasid),
        .schedule_bytes = SIZE_OF(nvrm_abi_schedule),
        .gpu_info_bytes = INFO_BYTES(66),
        .uvm_free_bytes = SIZE_OF(nvrm_abi_uvm_range),
        .uvm_unregister_channel_bytes = SIZE_OF(nvrm_abi_uvm_unregister_channel),
        .uvm_mps_known = true,
    },
    {
        .major = 580,
        .measured = true,
        .evidence = "measured with 580.159.04; published sources 580.65.06 to 580.142",
        .map_dma_bytes = SIZE_OF(nvrm_abi_map_dma),
        .vaspace_bytes = SIZE_OF(nvrm_abi_vaspace),
        .schedule_bytes = SIZE_OF(nvrm_abi_schedule),
        .gpu_info_bytes = INFO_BYTES(70),
        .uvm_free_bytes = SIZE_OF(nvrm_abi_uvm_range),
        .uvm_unregister_channel_bytes = SIZE_OF(nvrm_abi_uvm_unregister_channel),
        .coherent_mode_known = true,
        .uvm_mps_known = true,
    },
    {
        .major = 590,
        .evidence = "published sources 590.44.01 and 590.48.01; not run",
        .map_dma_bytes = SIZE_OF(nvrm_abi_map_dma),
        .vaspace_bytes = SIZE_OF(nvrm_abi_vaspace),
        .schedule_bytes = SIZE_OF(nvrm_abi_schedule),
        .gpu_info_bytes = INFO_BYTES(70),
        .uvm_free_bytes = SIZE_OF(nvrm_abi_uvm_free_v590),
        .uvm_unregister_channel_bytes = SIZE_OF(nvrm_abi_uvm_unregister_channel_v590),
        .coherent_mode_known = true,
    },
    {
        .major = 595,
        .evidence = "published sources 595.44.02 to 595.45.04; not run",
        .map_dma_bytes = SIZE_OF(nvrm_abi_map_dma),
        .vaspace_bytes = SIZE_OF(nvrm_abi_vaspace),
        .schedule_bytes = SIZE_OF(nvrm_abi_schedule),
        .gpu_info_bytes = INFO_BYTES(70),
        .uvm_free_bytes = SIZE_OF(nvrm_abi_uvm_free_v590),
        .uvm_unregister_channel_bytes = SIZE_OF(nvrm_abi_uvm_unregister_channel_v590),
        .coherent_mode_known = true,
        .scrub_engines = true,
    },
};

enum { TABLE_COUNT = sizeof table / sizeof table[0] };

const struct nvrm_series *mb__nvrm_series_at(unsigned index)
{
    return index < TABLE_COUNT ? &table[index] : NULL;
}

enum mb_err mb__nvrm_series_find(unsigned major, const struct nvrm_series **out)
{
    char known[64] = "";
    size_t used = 0;

    for (unsigned i = 0; i < TABLE_COUNT; i++) {
        if (table[i].major == major) {
            *out = &table[i];
            return MB_OK;
        }
        int n = snprintf(known + used, sizeof known - used, i ? ", %u" : "%u", table[i].major);
        if (n > 0 && (size_t)n < sizeof known - used)
            used += (size_t)n;
    }
    return mb__fail(
        MB_ERR_NOT_SUPPORTED,
        "NVIDIA driver series %u: device tables know the series %s; install one of these "
        "or use driver tables",
        major, known);
}

/* Length of the version number that `s` starts with: digits with at least one dot inside, else 0.
 * */
static size_t version_length(const char *s)
{
    size_t n = 0, dots = 0;

    while (isdigit((unsigned char)s[n]) || (s[n] == '.' && n && isdigit((unsigned char)s[n - 1]) &&
                                            isdigit((unsigned char)s[n + 1]))) {
        dots += s[n] == '.';
        n++;
    }
    /* A time of day or a date part is followed by ':' or is a plain number. */
    return dots && (s[n] == '\0' || isspace((unsigned char)s[n])) ? n : 0;
}

enum mb_err mb__nvrm_version_parse(const char *text, struct nvrm_version *out)
{
    const char *line = text ? strstr(text, "NVRM version:") : NULL;
    size_t line_bytes = line ? strcspn(line, "\n") : 0;

    for (size_t i = 1; i < line_bytes; i++) {
        size_t n = isspace((unsigned char)line[i - 1]) ? version_length(line + i) : 0;
        if (!n || n >= sizeof out->text || i + n > line_bytes)
            continue;
        struct nvrm_version found = {.major = (unsigned)strtoul(line + i, NULL, 10)};
        memcpy(found.text, line + i, n);
        const char *open = strstr(line, "Open Kernel Module");
        found.open_module = open && (size_t)(open - line) < line_bytes;
        *out = found;
        return MB_OK;
    }
    return mb__fail(MB_ERR_PARSE,
                    "no version number after \"NVRM version:\" in \"%.80s\"; expected the text of "
                    "/proc/driver/nvidia/version",
                    text ? text : "(null)");
}
