/* SPDX-License-Identifier: MIT */
/* Driver versions, series, GPU generations and names of driver answers. No GPU. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "hw/nvrm/abi.h"
#include "hw/nvrm/arch.h"
#include "hw/nvrm/series.h"
#include "hw/nvrm/status.h"
#include "test.h"

static const struct {
    const char *text, *version;
    unsigned major;
    bool open_module;
} recorded[] = {
    /* the open module, 580 and later form */
    {"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  "
     "(dvs-builder@U22-I3)  Wed Nov 12 10:11:12 UTC 2025\nGCC version:  gcc version 11.4.0\n",
     "580.159.04", 580, true},
    /* two parts only */
    {"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  575.64  Release Build  (a@b)\n",
     "575.64", 575, true},
    /* another processor */
    {"NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  595.45.04  Release Build\n",
     "595.45.04", 595, true},
    /* the proprietary module */
    {"NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu Jan 23 22:50:36 UTC 2025\n"
     "GCC version:  gcc version 13.3.0 (Ubuntu 13.3.0-6ubuntu2~24.04)\n",
     "570.86.15", 570, false},
    /* the words of the open module in another line do not count */
    {"NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.90.07  Fri\nGCC version: Open Kernel "
     "Module\n",
     "550.90.07", 550, false},
    /* no newline at the end */
    {"NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.54.03", "535.54.03", 535, false},
};

TEST(versions_of_both_modules_are_read)
{
    for (size_t i = 0; i < sizeof recorded / sizeof recorded[0]; i++) {
        struct nvrm_version v;
        CHECK_OK(mb__nvrm_version_parse(recorded[i].text, &v));
        CHECK_STR_EQ(v.text, recorded[i].version);
        CHECK_EQ(v.major, recorded[i].major);
        CHECK_EQ(v.open_module, recorded[i].open_module);
    }
}

TEST(a_text_without_a_version_is_refused)
{
    static const char *const texts[] = {
        "",
        "\n",
        "NVRM version:",
        "NVRM version: \n580.1.2\n",
        "NVRM version: x86_64 580\n",
        "NVRM version: 22:20:39 UTC\n",
        "580.159.04\n",
        "NVRM version: v580.1\n",
        "GCC version:  gcc version 11.4.0 (Ubuntu)\n",
    };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct nvrm_version v = {.major = 77};
        CHECK_EQ(mb__nvrm_version_parse(texts[i], &v), MB_ERR_PARSE);
        CHECK_EQ(v.major, 77);
        CHECK(strlen(mb_error_detail()) > 0);
    }
    struct nvrm_version v;
    CHECK_EQ(mb__nvrm_version_parse(NULL, &v), MB_ERR_PARSE);
}

TEST(any_text_is_parsed_without_a_crash)
{
    static const char alphabet[] = "NVRM version: 0123456789..\n\t(x";
    uint64_t state = mb_test_seed();
    char text[80];

    for (int round = 0; round < 20000; round++) {
        size_t n = (size_t)mb_test_random_below(&state, sizeof text);
        for (size_t i = 0; i < n; i++)
            text[i] = alphabet[mb_test_random_below(&state, sizeof alphabet - 1)];
        text[n] = '\0';
        if (n > 13 && round % 2)
            memcpy(text, "NVRM version:", 13);
        struct nvrm_version v;
        if (mb__nvrm_version_parse(text, &v) == MB_OK) {
            CHECK(strchr(v.text, '.') != NULL);
            CHECK(strstr(text, v.text) != NULL);
        }
    }
}

TEST(known_series_have_their_layouts)
{
    static const unsigned majors[] = {570, 575, 580, 590, 595};
    for (unsigned i = 0; i < 5; i++) {
        const struct nvrm_series *s = NULL;
        CHECK_OK(mb__nvrm_series_find(majors[i], &s));
        CHECK_PTR_EQ(s, mb__nvrm_series_at(i));
        CHECK_EQ(s->measured, majors[i] == 580);
        CHECK_EQ(strstr(s->evidence, "not run") != NULL, majors[i] != 580);
        /* Facts of the published sources, written down a second time. */
        CHECK_EQ(s->map_dma_bytes, majors[i] < 580 ? 56 : 64);
        CHECK_EQ(s->vaspace_bytes, majors[i] < 580 ? 48 : 56);
        CHECK_EQ(s->schedule_bytes, majors[i] < 575 ? 2 : 3);
        CHECK_EQ(s->gpu_info_bytes, majors[i] < 575 ? 524 : majors[i] < 580 ? 532 : 564);
        CHECK_EQ(s->uvm_free_bytes, majors[i] < 590 ? 24 : 16);
        CHECK_EQ(s->uvm_unregister_channel_bytes, majors[i] < 590 ? 28 : 12);
        CHECK_EQ(s->coherent_mode_known, majors[i] >= 580);
        CHECK_EQ(s->uvm_mps_known, majors[i] < 590);
    }
    CHECK_PTR_EQ(mb__nvrm_series_at(5), NULL);
}

TEST(an_unknown_series_is_refused_by_name)
{
    static const unsigned majors[] = {0, 535, 565, 571, 585, 600, 4000000000u};
    for (unsigned i = 0; i < sizeof majors / sizeof majors[0]; i++) {
        const struct nvrm_series *s = NULL;
        char number[16];
        CHECK_EQ(mb__nvrm_series_find(majors[i], &s), MB_ERR_NOT_SUPPORTED);
        CHECK_PTR_EQ(s, NULL);
        snprintf(number, sizeof number, "series %u:", majors[i]);
        CHECK(strstr(mb_error_detail(), number) != NULL);
        CHECK(strstr(mb_error_detail(), "570, 575, 580, 590, 595") != NULL);
    }
}

TEST(generations_are_found_by_number)
{
    static const struct {
        uint32_t architecture, implementation;
        const char *name;
        uint16_t channel, copy, usermode;
        enum nvrm_mmu mmu;
    } known[] = {
        {0x170, 0, "GA100", 0xc56f, 0xc6b5, 0xc561, NVRM_MMU_V2},
        {0x170, 2, "GA10x", 0xc56f, 0xc7b5, 0xc561, NVRM_MMU_V2},
        {0x170, 7, "GA10x", 0xc56f, 0xc7b5, 0xc561, NVRM_MMU_V2},
        {0x180, 0, "GH100", 0xc86f, 0xc8b5, 0xc661, NVRM_MMU_V3},
        {0x190, 2, "AD10x", 0xc56f, 0xc7b5, 0xc561, NVRM_MMU_V2},
        {0x1a0, 0, "GB10x", 0xc96f, 0xc9b5, 0xc661, NVRM_MMU_V3},
        {0x1a0, 4, "GB10x", 0xc96f, 0xc9b5, 0xc661, NVRM_MMU_V3},
        {0x1b0, 2, "GB20x", 0xca6f, 0xcab5, 0xc761, NVRM_MMU_V3},
    };
    for (unsigned i = 0; i < sizeof known / sizeof known[0]; i++) {
        const struct nvrm_arch *a = NULL;
        CHECK_OK(mb__nvrm_arch_find(known[i].architecture, known[i].implementation, &a));
        CHECK_STR_EQ(a->name, known[i].name);
        CHECK_EQ(a->channel_class, known[i].channel);
        CHECK_EQ(a->copy_class, known[i].copy);
        CHECK_EQ(a->usermode_class, known[i].usermode);
        CHECK_EQ(a->mmu, known[i].mmu);
        CHECK_EQ(a->top_level, a->mmu == NVRM_MMU_V3 ? 6 : 5);
        CHECK_EQ(a->measured, strcmp(a->name, "GH100") == 0);
        CHECK_EQ(a->membar_after_invalidate, a->architecture < 0x1a0);
        CHECK_EQ(a->usermode_params, a->usermode_class >= 0xc661);
    }
}

TEST(integrated_and_unknown_gpus_are_refused)
{
    static const uint32_t ids[][2] = {
        {0x170, 1},   {0x170, 0xb}, {0x160, 2},      {0x180, 1}, {0x1a0, 0xb},
        {0x1b0, 0xb}, {0x1b0, 0xc}, {0xe0000023, 4}, {0x1c0, 0}, {0, 0},
    };
    for (unsigned i = 0; i < sizeof ids / sizeof ids[0]; i++) {
        const struct nvrm_arch *a = NULL;
        CHECK_EQ(mb__nvrm_arch_find(ids[i][0], ids[i][1], &a), MB_ERR_NOT_SUPPORTED);
        CHECK_PTR_EQ(a, NULL);
        CHECK(strstr(mb_error_detail(), "GH100") != NULL);
    }
}

TEST(every_generation_is_complete)
{
    unsigned n = 0;
    for (const struct nvrm_arch *a; (a = mb__nvrm_arch_at(n)) != NULL; n++) {
        CHECK(a->channel_class && a->copy_class && a->usermode_class);
        CHECK(a->compute_class && a->graphics_class);
        CHECK_EQ(a->doorbell_offset, 0x90);
        CHECK(a->implementation_low <= a->implementation_high);
        unsigned choices = 0;
        while (choices < NVRM_COPY_CHOICES && a->copy_choice[choices] != 0xff)
            CHECK(a->copy_choice[choices++] < 20);
        CHECK(choices > 0 && choices < NVRM_COPY_CHOICES);
        CHECK_STR_EQ(mb__nvrm_class_name(a->channel_class), "channel");
        CHECK_STR_EQ(mb__nvrm_class_name(a->copy_class), "copy engine");
        CHECK_STR_EQ(mb__nvrm_class_name(a->usermode_class), "doorbell");
    }
    CHECK_EQ(n, 6);
}

TEST(status_names_sit_at_their_numbers)
{
    static const struct {
        uint32_t status;
        const char *name;
    } known[] = {
        {0, "OK"},
        {1, "BROKEN_FB"},
        {0x0f, "GPU_IS_LOST"},
        {0x1a, "INSUFFICIENT_RESOURCES"},
        {0x1b, "INSUFFICIENT_PERMISSIONS"},
        {0x1f, "INVALID_ARGUMENT"},
        {0x22, "INVALID_CLASS"},
        {0x28, "INVALID_EVENT"},
        {0x3b, "INVALID_PARAMETER"},
        {0x40, "INVALID_STATE"},
        {0x51, "NO_MEMORY"},
        {0x56, "NOT_SUPPORTED"},
        {0x57, "OBJECT_NOT_FOUND"},
        {0x60, "RC_ERROR"},
        {0x62, "RESET_REQUIRED"},
        {0x65, "TIMEOUT"},
        {0x66, "TIMEOUT_RETRY"},
        {0x88, "BUFFER_FULL"},
        {0x8a, "MC_FLA_OFFSET_TABLE_FULL"},
        {0x8b, "UNKNOWN"},
        {0xffff, "GENERIC"},
        {0x7fff, "UNKNOWN"},
        {0xffffffff, "UNKNOWN"},
    };
    for (unsigned i = 0; i < sizeof known / sizeof known[0]; i++)
        CHECK_STR_EQ(mb__nvrm_status_name(known[i].status), known[i].name);
    for (uint32_t s = 1; s < 0x200; s++)
        CHECK(mb__nvrm_status_name(s) != NULL);
}

TEST(driver_answers_become_our_errors)
{
    CHECK_EQ(mb__nvrm_status_err(0), MB_OK);
    CHECK_EQ(mb__nvrm_status_err(0x1b), MB_ERR_PERMISSION);
    CHECK_EQ(mb__nvrm_status_err(0x51), MB_ERR_NO_MEMORY);
    CHECK_EQ(mb__nvrm_status_err(0x1a), MB_ERR_NO_MEMORY);
    CHECK_EQ(mb__nvrm_status_err(0x56), MB_ERR_NOT_SUPPORTED);
    CHECK_EQ(mb__nvrm_status_err(0x0f), MB_ERR_DEVICE_LOST);
    CHECK_EQ(mb__nvrm_status_err(0x65), MB_ERR_TIMEOUT);
    CHECK_EQ(mb__nvrm_status_err(0x1f), MB_ERR_DRIVER);
    CHECK_EQ(mb__nvrm_errno_err(0), MB_OK);
    CHECK_EQ(mb__nvrm_errno_err(EACCES), MB_ERR_PERMISSION);
    CHECK_EQ(mb__nvrm_errno_err(ENOENT), MB_ERR_NO_DEVICE);
    CHECK_EQ(mb__nvrm_errno_err(ENOMEM), MB_ERR_HOST_MEMORY);
    CHECK_EQ(mb__nvrm_errno_err(EINVAL), MB_ERR_DRIVER);
}

TEST(exceptions_have_a_text)
{
    CHECK(strstr(mb__nvrm_xid_text(31), "MMU fault") != NULL);
    CHECK(strstr(mb__nvrm_xid_text(94), "retired") != NULL);
    CHECK(strstr(mb__nvrm_xid_text(39), "copy engine") != NULL);
    CHECK(strstr(mb__nvrm_xid_text(71), "copy engine") != NULL);
    CHECK(strstr(mb__nvrm_xid_text(135), "copy engine") != NULL);
    CHECK(strstr(mb__nvrm_xid_text(136), "copy engine") == NULL);
    CHECK(mb__nvrm_xid_text(0xffffffff) != NULL);
    CHECK_STR_EQ(mb__nvrm_cmd_name(NVRM_CMD_SURFACE_PHYS), "GET_SURFACE_PHYS_ATTR");
    CHECK_STR_EQ(mb__nvrm_cmd_name(1), "?");
    CHECK_STR_EQ(mb__nvrm_class_name(1), "?");
}
