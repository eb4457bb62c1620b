/* SPDX-License-Identifier: MIT */
/*
 * names.c - the three ways to a function of the driver: symbols, dlsym(), cuGetProcAddress().
 *
 * dlsym     The real one looks at its caller's address for RTLD_NEXT and for the search scope of
 *           RTLD_DEFAULT. So ours asks cuda_answer() and, if that has nothing to say, jumps to the
 *           real one with the caller's return address in place.
 * Recursion MoonBright itself gets the driver's own functions: it is known by the thread being
 *           inside a call of ours, or by the address that asks.
 * Locking   The table of real functions is made once. It is made anew until libcuda is there.
 */
#define _GNU_SOURCE
#include "cuda.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

typedef void *(*dlsym_function)(void *handle, const char *name);

/* Read by the entry below. */
__attribute__((visibility("hidden"))) dlsym_function cuda_real_dlsym;
__attribute__((visibility("hidden"))) void *cuda_answer(void *handle, const char *name,
                                                        void *caller);

struct entry {
    const char *symbol, *name;
    void *ours;
    size_t member; /* offset in struct cuda_real */
    int since;
    enum cuda_zero zero;
};

static const struct entry entries[] = {
#define ENTRY(member, symbol, name, since, zero, args)                                             \
    {#symbol, name, (void *)(uintptr_t)symbol, offsetof(struct cuda_real, member), since, zero},
    CUDA_LIST(ENTRY)
#undef ENTRY
};
enum { ENTRIES = sizeof(entries) / sizeof(entries[0]) };

/* ------------------------------------------------------------ the driver's own */

static void find_dlsym(void)
{
    static const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.2.5", "GLIBC_2.17", "GLIBC_2.27"};

    for (unsigned i = 0; i < sizeof(versions) / sizeof(versions[0]) && !cuda_real_dlsym; i++)
        cuda_real_dlsym = (dlsym_function)(uintptr_t)dlvsym(RTLD_NEXT, "dlsym", versions[i]);
}

static struct cuda_real table;
static atomic_bool complete;
static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;

/* table_lock held */
static void fill(void *library)
{
#define RESOLVE(member, symbol, name, since, zero, args)                                           \
    *(void **)(&table.member) = cuda_real_dlsym(library, #symbol);
#define RESOLVE_OTHER(member, symbol, args)                                                        \
    *(void **)(&table.member) = cuda_real_dlsym(library, #symbol);
    CUDA_LIST(RESOLVE)
    CUDA_OTHERS(RESOLVE_OTHER)
#undef RESOLVE
#undef RESOLVE_OTHER
}

const struct cuda_real *cuda_real(void)
{
    void *library;

    if (atomic_load_explicit(&complete, memory_order_acquire))
        return &table;
    pthread_mutex_lock(&table_lock);
    find_dlsym();
    /* Whoever calls us has loaded it; it is never loaded for our sake. */
    library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (library && cuda_real_dlsym && !atomic_load(&complete)) {
        fill(library);
        atomic_store_explicit(&complete, true, memory_order_release);
    }
    pthread_mutex_unlock(&table_lock);
    return &table;
}

/* ------------------------------------------------------------ dlsym */

/* MoonBright, this library or the driver itself (`own`: a function of it) asks. */
static bool of_ours(const void *caller, const void *own)
{
    const void *exempt[] = {(const void *)(uintptr_t)mb_open, (const void *)(uintptr_t)cuda_answer,
                            own};
    Dl_info theirs, info;

    if (!dladdr(caller, &theirs))
        return false;
    for (unsigned i = 0; i < sizeof(exempt) / sizeof(exempt[0]); i++) {
        if (exempt[i] && dladdr(exempt[i], &info) && info.dli_fbase == theirs.dli_fbase)
            return true;
    }
    return false;
}

static bool idle(void)
{
    return (core_modes() & (CORE_OFF | CORE_TIME)) == CORE_OFF || core_inside();
}

static void traced(const char *way, const char *symbol)
{
    if (core_modes() & CORE_TRACE)
        core_note("%s: %s", way, symbol);
}

static const struct entry *find_symbol(const char *symbol)
{
    for (unsigned i = 0; i < ENTRIES; i++) {
        if (!strcmp(entries[i].symbol, symbol))
            return &entries[i];
    }
    return NULL;
}

/* What dlsym() answers, or NULL: the real one does. */
void *cuda_answer(void *handle, const char *name, void *caller)
{
    const struct entry *entry;
    void *theirs, *own;

    if (!cuda_real_dlsym)
        find_dlsym();
    if (!name || name[0] != 'c' || name[1] != 'u' || handle == RTLD_NEXT || handle == RTLD_DEFAULT)
        return NULL;
    entry = find_symbol(name);
    if (!entry || idle())
        return NULL;
    /* Only where the driver's own would have been found: other libraries may use the name too. */
    theirs = cuda_real_dlsym(handle, name);
    memcpy(&own, (const char *)cuda_real() + entry->member, sizeof(own));
    if (!theirs || theirs != own || of_ours(caller, own))
        return NULL;
    traced("dlsym", entry->symbol);
    return entry->ours;
}

#if defined(__x86_64__)
__asm__(".text\n"
        ".globl dlsym\n"
        ".type dlsym, @function\n"
        "dlsym:\n"
        "    .cfi_startproc\n"
        "    endbr64\n"
        "    pushq %rdi\n"
        "    .cfi_adjust_cfa_offset 8\n"
        "    pushq %rsi\n"
        "    .cfi_adjust_cfa_offset 8\n"
        "    subq $8, %rsp\n"
        "    .cfi_adjust_cfa_offset 8\n"
        "    movq 24(%rsp), %rdx\n" /* return address */
        "    call cuda_answer\n"
        "    addq $8, %rsp\n"
        "    .cfi_adjust_cfa_offset -8\n"
        "    popq %rsi\n"
        "    .cfi_adjust_cfa_offset -8\n"
        "    popq %rdi\n"
        "    .cfi_adjust_cfa_offset -8\n"
        "    testq %rax, %rax\n"
        "    jnz 1f\n"
        "    movq cuda_real_dlsym(%rip), %rax\n"
        "    jmp *%rax\n"
        "1:  ret\n"
        "    .cfi_endproc\n"
        ".size dlsym, .-dlsym\n"
        ".previous\n");
#else
/* The last call is a jump when the compiler optimizes; otherwise RTLD_NEXT would start here. */
EXPORT void *dlsym(void *handle, const char *name);
__attribute__((optimize("O2"))) void *dlsym(void *handle, const char *name)
{
    void *answer = cuda_answer(handle, name, __builtin_return_address(0));

    return answer ? answer : cuda_real_dlsym(handle, name);
}
#endif

/* ------------------------------------------------------------ cuGetProcAddress */

enum { FLAG_PER_THREAD = 2 };

/* Replaces what the driver found by ours. */
static void replace(const char *name, void **out, int version, uint64_t flags)
{
    enum cuda_zero zero = flags & FLAG_PER_THREAD ? PER_THREAD : LEGACY;
    const struct entry *best = NULL;

    if (!name || !out || !*out || idle())
        return;
    for (unsigned i = 0; i < ENTRIES; i++) {
        const struct entry *e = &entries[i];

        if ((e->zero == ANY || e->zero == zero) && e->since <= version && !strcmp(e->name, name) &&
            (!best || e->since > best->since))
            best = e;
    }
    if (!best)
        best = find_symbol(name);
    if (!best)
        return;
    traced("cuGetProcAddress", best->symbol);
    *out = best->ours;
}

CUDA(cuGetProcAddress, const char *name, void **out, int version, uint64_t flags)
{
    int result = REAL(proc_v1, name, out, version, flags);

    if (!result)
        replace(name, out, version, flags);
    return result;
}

CUDA(cuGetProcAddress_v2, const char *name, void **out, int version, uint64_t flags, int *status)
{
    int result = REAL(proc, name, out, version, flags, status);

    if (!result)
        replace(name, out, version, flags);
    return result;
}
