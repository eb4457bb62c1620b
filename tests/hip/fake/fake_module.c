/* SPDX-License-Identifier: MIT */
/*
 * fake_module.c - A FAKE of libamdhip64 (see fake_hip.h): modules are looked at, kernels are three
 * functions in C.
 *
 * A module has to be what the loader of a gfx90a would take, and a kernel has to be in it; what is
 * executed in its place is the C below, so kernels themselves are not tested here.
 */
#include "fake_hip.h"

#include <elf.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/pattern.h"

#define FAKE(name, ...)                                                                            \
    FAKE_API int name(__VA_ARGS__);                                                                \
    int name(__VA_ARGS__)

enum { MACHINE_AMDGPU = 224, FLAGS_MACH = 0xff, MACH_GFX90A = 0x3f };

struct module {
    const char *image;
};

/* Arguments as MoonBright's kernels take them, and how many. */
struct kernel_arguments {
    const struct kernel *kernel;
    uint64_t value[5];
};

struct kernel {
    const char *name;
    unsigned arguments;
    fake_work run;
};

/* What a device does to its memory is not the host's business, and billions of words are not
 * TSan's. */
#define DEVICE_WORK __attribute__((no_sanitize_thread)) static void

DEVICE_WORK fill(void *arguments)
{
    const uint64_t *a = ((struct kernel_arguments *)arguments)->value;
    uint64_t *p = (uint64_t *)(uintptr_t)a[0];

    for (uint64_t i = 0; i < a[1]; i++)
        p[i] = mb_pattern(a[2], i);
}

DEVICE_WORK verify(void *arguments)
{
    const uint64_t *a = ((struct kernel_arguments *)arguments)->value;
    const uint64_t *p = (const uint64_t *)(uintptr_t)a[0];
    uint64_t bad = 0;

    for (uint64_t i = 0; i < a[1]; i++)
        bad += p[i] != mb_pattern(a[2], i);
    atomic_fetch_add((_Atomic uint64_t *)(uintptr_t)a[4], bad);
}

DEVICE_WORK copy(void *arguments)
{
    const uint64_t *a = ((struct kernel_arguments *)arguments)->value;

    memmove((void *)(uintptr_t)a[0], (const void *)(uintptr_t)a[1], a[2] * 8);
}

static const struct kernel kernels[] = {
    {"mb_fill", 4, fill}, {"mb_verify", 5, verify}, {"mb_copy", 4, copy}};

FAKE(hipModuleLoadData, struct module **out, const void *image)
{
    const Elf64_Ehdr *elf = image;

    FAKE_ENTER();
    if (!out || !image || memcmp(elf->e_ident, ELFMAG, SELFMAG) != 0 ||
        elf->e_machine != MACHINE_AMDGPU)
        return FAKE_INVALID_IMAGE;
    if ((elf->e_flags & FLAGS_MACH) != MACH_GFX90A)
        return FAKE_NO_BINARY;
    *out = malloc(sizeof(**out));
    if (!*out)
        return FAKE_OUT_OF_MEMORY;
    (*out)->image = image;
    return FAKE_OK;
}

FAKE(hipModuleUnload, struct module *module)
{
    FAKE_ENTER();
    free(module);
    return FAKE_OK;
}

/* Is there a dynamic symbol of that name? */
static bool has_symbol(const char *image, const char *name)
{
    const Elf64_Ehdr *elf = (const void *)image;
    const Elf64_Shdr *section = (const void *)(image + elf->e_shoff);

    for (unsigned i = 0; i < elf->e_shnum; i++) {
        const Elf64_Sym *symbol = (const void *)(image + section[i].sh_offset);
        const char *names;

        if (section[i].sh_type != SHT_DYNSYM)
            continue;
        names = image + section[section[i].sh_link].sh_offset;
        for (uint64_t k = 0; k < section[i].sh_size / sizeof(*symbol); k++) {
            if (!strcmp(names + symbol[k].st_name, name))
                return true;
        }
    }
    return false;
}

FAKE(hipModuleGetFunction, const struct kernel **out, struct module *module, const char *name)
{
    FAKE_ENTER();
    for (unsigned i = 0; i < sizeof(kernels) / sizeof(kernels[0]); i++) {
        if (strcmp(kernels[i].name, name) != 0 || !has_symbol(module->image, name))
            continue;
        *out = &kernels[i];
        return FAKE_OK;
    }
    return FAKE_NOT_FOUND;
}

FAKE(hipModuleLaunchKernel, const struct kernel *kernel, unsigned gx, unsigned gy, unsigned gz,
     unsigned bx, unsigned by, unsigned bz, unsigned shared, void *stream, void **params,
     void **extra)
{
    struct kernel_arguments *a;

    FAKE_ENTER();
    if (!kernel || !gx || gy != 1 || gz != 1 || bx != 256 || by != 1 || bz != 1 || shared || extra)
        return FAKE_INVALID_VALUE;
    a = calloc(1, sizeof(*a));
    if (!a)
        return FAKE_OUT_OF_MEMORY;
    a->kernel = kernel;
    for (unsigned i = 0; i < kernel->arguments; i++)
        memcpy(&a->value[i], params[i], 8);
    return fake_enqueue(stream, kernel->run, a);
}
