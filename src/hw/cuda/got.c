/* SPDX-License-Identifier: MIT */
/*
 * got.c - walks the dynamic section of a loaded object.
 *
 * With lazy binding the word first holds the address of a stub; the stub is reached through the
 * word alone, so once the word is replaced nothing overwrites it again.
 */
#define _GNU_SOURCE
#include "hw/cuda/got.h"

#include <elf.h>
#include <errno.h>
#include <inttypes.h>
#include <link.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/err.h"

#if defined(__x86_64__)
enum { RELOC_SLOT = R_X86_64_JUMP_SLOT, RELOC_DATA = R_X86_64_GLOB_DAT };
#elif defined(__aarch64__)
enum { RELOC_SLOT = R_AARCH64_JUMP_SLOT, RELOC_DATA = R_AARCH64_GLOB_DAT };
#else
enum { RELOC_SLOT = 0, RELOC_DATA = 0 };
#endif

/* What the dynamic section of one object says. */
struct image {
    uintptr_t base;
    const Elf64_Sym *symbols;
    const char *strings;
    const Elf64_Rela *table[2]; /* PLT and ordinary relocations */
    size_t count[2];            /* entries */
    uintptr_t relro_start, relro_end;
};

struct search {
    const char *soname;
    bool found;
    struct image image;
};

static bool name_matches(const char *path, const char *soname)
{
    const char *base = strrchr(path, '/');
    size_t len = strlen(soname);

    base = base ? base + 1 : path;
    if (!len)
        return !*base;
    return !strncmp(base, soname, len) && (base[len] == '\0' || base[len] == '.');
}

/* The linker relocates some of these pointers in place and leaves others as offsets. */
static uintptr_t absolute(uintptr_t base, uintptr_t value)
{
    return value < base ? base + value : value;
}

static void read_dynamic(struct image *image, const Elf64_Dyn *dyn)
{
    for (; dyn->d_tag != DT_NULL; dyn++) {
        uintptr_t p = absolute(image->base, (uintptr_t)dyn->d_un.d_ptr);

        switch (dyn->d_tag) {
        case DT_SYMTAB:
            image->symbols = (const Elf64_Sym *)p;
            break;
        case DT_STRTAB:
            image->strings = (const char *)p;
            break;
        case DT_JMPREL:
            image->table[0] = (const Elf64_Rela *)p;
            break;
        case DT_PLTRELSZ:
            image->count[0] = dyn->d_un.d_val / sizeof(Elf64_Rela);
            break;
        case DT_RELA:
            image->table[1] = (const Elf64_Rela *)p;
            break;
        case DT_RELASZ:
            image->count[1] = dyn->d_un.d_val / sizeof(Elf64_Rela);
            break;
        default:
            break;
        }
    }
}

static int visit(struct dl_phdr_info *info, size_t size, void *user)
{
    struct search *search = user;
    const Elf64_Dyn *dyn = NULL;

    (void)size;
    if (!name_matches(info->dlpi_name, search->soname))
        return 0;
    search->image = (struct image){.base = (uintptr_t)info->dlpi_addr};
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const Elf64_Phdr *ph = &info->dlpi_phdr[i];
        uintptr_t start = search->image.base + (uintptr_t)ph->p_vaddr;

        if (ph->p_type == PT_DYNAMIC)
            dyn = (const Elf64_Dyn *)start;
        if (ph->p_type == PT_GNU_RELRO) {
            search->image.relro_start = start;
            search->image.relro_end = start + (uintptr_t)ph->p_memsz;
        }
    }
    if (!dyn)
        return 0;
    read_dynamic(&search->image, dyn);
    search->found = true;
    return 1;
}

bool mb__got_loaded(const char *soname)
{
    struct search search = {.soname = soname};

    dl_iterate_phdr(visit, &search);
    return search.found;
}

/* The word may lie in pages that were made read-only after relocation. */
static enum mb_err replace(const struct image *image, uintptr_t word, uintptr_t replacement)
{
    uintptr_t page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
    void *page = (void *)(word & ~(page_bytes - 1));
    /* The last, partial page of the region stays writable: the linker rounds its end down. */
    bool protected = word >= image->relro_start && word < (image->relro_end & ~(page_bytes - 1));

    if (__atomic_load_n((uintptr_t *)word, __ATOMIC_RELAXED) == replacement)
        return MB_OK;
    if (protected && mprotect(page, page_bytes, PROT_READ | PROT_WRITE))
        return mb__fail(MB_ERR_PERMISSION, "mprotect of an import word at 0x%" PRIxPTR ": %s", word,
                        strerror(errno));
    __atomic_store_n((uintptr_t *)word, replacement, __ATOMIC_RELEASE);
    if (protected)
        (void)mprotect(page, page_bytes, PROT_READ);
    return MB_OK;
}

enum mb_err mb__got_patch(const char *soname, const char *symbol, void (*replacement)(void),
                          unsigned *count)
{
    struct search search = {.soname = soname};
    unsigned done = 0;

    if (!RELOC_SLOT)
        return mb__fail(MB_ERR_NOT_SUPPORTED, "imports can be redirected on x86-64 and arm64 only");
    dl_iterate_phdr(visit, &search);
    if (!search.found || !search.image.symbols || !search.image.strings)
        return mb__fail(MB_ERR_NOT_FOUND, "%s is not loaded", soname);
    for (unsigned t = 0; t < 2; t++) {
        for (size_t i = 0; search.image.table[t] && i < search.image.count[t]; i++) {
            const Elf64_Rela *rela = &search.image.table[t][i];
            unsigned type = (unsigned)ELF64_R_TYPE(rela->r_info);
            const char *name;
            enum mb_err err;

            if (type != (unsigned)RELOC_SLOT && type != (unsigned)RELOC_DATA)
                continue;
            name = search.image.strings + search.image.symbols[ELF64_R_SYM(rela->r_info)].st_name;
            if (strcmp(name, symbol) != 0)
                continue;
            err = replace(&search.image, search.image.base + (uintptr_t)rela->r_offset,
                          (uintptr_t)replacement);
            if (err)
                return err;
            done++;
        }
    }
    if (!done)
        return mb__fail(MB_ERR_NOT_FOUND, "%s does not import %s by name", soname, symbol);
    *count = done;
    return MB_OK;
}
