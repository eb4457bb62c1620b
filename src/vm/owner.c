/* SPDX-License-Identifier: MIT */
/*
 * Who may name a frame in an entry.
 *
 *   capability   64 bits per owner (a pool, the memory objects), drawn from the vm's secret. A
 *                frame carries its owner's while it is OWNED; an operation must present it. So a
 *                frame number that is wrong, stale or another owner's is refused even if it is a
 *                frame of this vm.
 *   registry     (config: registry:FILE) one word per frame in a file that all MoonBright processes
 *                of a device share. A process claims frames when the driver gives them, and every
 *                entry that vm writes is checked against its claim: a frame that two processes
 *                believe to hold (a wrong physical address, a driver that gave it twice) is refused
 *                to the second, with the process that has it.
 *
 * Claims of the dead  Each process locks one byte of the file for as long as it lives; the kernel
 *                     drops the lock. A word whose claimant is gone counts as unclaimed. The lock
 *                     belongs to the open file, which a fork inherits: its child closes the file
 *                     and does not get the mapping of it. A child that was made behind libc's back
 *                     (clone(2)) keeps both, so a claimant whose process no longer exists is gone
 *                     too; that is asked only among processes that number each other alike.
 * Layout              a head of 4 KiB: magic, 63 claimants of {token, process}, and for each where
 *                     its process is from; then the words. A word is its claimant's token: 58
 *                     random bits and the place in the head.
 * Locking             vm's lock for the process's own state; flock on the file for claims. Words
 *                     are read without a lock: ours change only under vm's lock. `open_lock` is a
 *                     leaf, around the list of open files; fork() takes it.
 * Trade-off           The file is as trustworthy as its permissions (0600): it finds mistakes, not
 *                     a process of the same user that writes false words.
 */
#define _GNU_SOURCE
#include "vm/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "base/log.h"

enum {
    CLAIMANTS = 63,
    HEAD_BYTES = 4096,
    PLACE_MASK = 63, /* of a token: index of its claimant, 1 to 63 */
};

static const uint64_t MAGIC = UINT64_C(0x3130474552424d4d); /* "MMBREG01" */

struct claimant {
    uint64_t token; /* 0: never used */
    uint32_t pid, unused;
};

struct origin {
    uint64_t token;      /* the claimant's; another one: nothing is known */
    uint64_t start;      /* of the process, clock ticks since boot; 0: not known */
    uint32_t ns, unused; /* inode of the name space of its number; 0: not known */
};

struct head {
    uint64_t magic, frames;
    struct claimant claimant[CLAIMANTS + 1]; /* [0] is nobody */
    struct origin origin[CLAIMANTS + 1];
};
_Static_assert(sizeof(struct head) <= HEAD_BYTES, "the words follow the head");

struct mb__registry {
    int fd;                    /* holds the lock of our byte; open_lock; -1: closed */
    uint64_t token;            /* ours */
    struct head *head;         /* in the opening process only */
    uint64_t *words;           /* by frame; atomic */
    pid_t pid;                 /* of the opening process */
    uint32_t ns;               /* as in struct origin */
    struct mb__registry *next; /* of open_files; open_lock */
};

static pthread_mutex_t open_lock = PTHREAD_MUTEX_INITIALIZER;
static struct mb__registry *open_files; /* open_lock */
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;
static int fork_error; /* of pthread_atfork(); written once */

static const uint64_t FRAMES_MAX = MB__FRAMES;

static size_t file_bytes(void)
{
    return HEAD_BYTES + FRAMES_MAX * sizeof(uint64_t);
}

/* ------------------------------------------------------------ capabilities */

enum mb_err mb__owner_open(struct mb_vm *vm)
{
    if (getrandom(vm->secret, sizeof(vm->secret), 0) != (ssize_t)sizeof(vm->secret))
        return mb__fail(MB_ERR_IO, "the kernel gave no random numbers: %s", strerror(errno));
    return mb__registry_open(vm);
}

/* A keyed mix: without the secret nothing can be said of one owner's from another's. Never 0. */
uint64_t mb__owner_cap(const struct mb_vm *vm, uint32_t owner)
{
    uint64_t x = vm->secret[0] + owner * UINT64_C(0x9e3779b97f4a7c15);

    for (unsigned i = 0; i < 3; i++) {
        x ^= vm->secret[1 + i % 3];
        x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
        x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
        x ^= x >> 31;
    }
    return x ? x : 1;
}

/* ------------------------------------------------------------ opening */

static enum mb_err registry_error(const char *path, const char *what)
{
    return mb__fail(MB_ERR_IO, "registry %s: %s: %s", path, what, strerror(errno));
}

static void before_fork(void)
{
    pthread_mutex_lock(&open_lock);
}

static void in_parent(void)
{
    pthread_mutex_unlock(&open_lock);
}

/* The child has no claims and must not keep its parent's. */
static void in_child(void)
{
    for (struct mb__registry *reg = open_files; reg; reg = reg->next) {
        if (reg->fd >= 0)
            close(reg->fd);
        reg->fd = -1;
    }
    open_files = NULL;
    pthread_mutex_unlock(&open_lock);
}

static void watch_forks(void)
{
    fork_error = pthread_atfork(before_fork, in_parent, in_child);
}

/* From the moment that the file is open a fork closes it. */
static bool file_open(struct mb__registry *reg, const char *path)
{
    pthread_mutex_lock(&open_lock);
    reg->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    reg->next = open_files;
    open_files = reg;
    pthread_mutex_unlock(&open_lock);
    return reg->fd >= 0;
}

static void file_close(struct mb__registry *reg)
{
    struct mb__registry **at = &open_files;

    pthread_mutex_lock(&open_lock);
    while (*at && *at != reg)
        at = &(*at)->next;
    if (*at)
        *at = reg->next;
    if (reg->fd >= 0)
        close(reg->fd);
    pthread_mutex_unlock(&open_lock);
}

/* When the process started, in clock ticks since boot; 0: that cannot be had. */
static uint64_t start_of(pid_t pid)
{
    enum { FIELDS = 19 }; /* from the state, behind the name, to the start */

    char name[40], text[512];
    const char *at;
    ssize_t n = -1;
    int fd;

    snprintf(name, sizeof(name), "/proc/%d/stat", (int)pid);
    fd = open(name, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        n = read(fd, text, sizeof(text) - 1);
        close(fd);
    }
    text[n < 0 ? 0 : n] = '\0';
    at = strrchr(text, ')'); /* the name may hold anything */
    for (unsigned i = 0; at && i <= FIELDS; i++)
        at = strchr(at + 1, ' ');
    return at ? strtoull(at, NULL, 10) : 0;
}

static uint32_t name_space(void)
{
    struct stat st;

    return stat("/proc/self/ns/pid", &st) ? 0 : (uint32_t)st.st_ino;
}

/* Is it certain that the claimant's process is no more, whoever holds its lock? */
static bool gone(const struct mb__registry *reg, unsigned place)
{
    const struct origin *from = &reg->head->origin[place];
    pid_t pid = (pid_t)reg->head->claimant[place].pid;
    uint64_t start;

    if (from->token != reg->head->claimant[place].token || !from->ns || from->ns != reg->ns ||
        pid <= 0)
        return false;
    if (kill(pid, 0) && errno == ESRCH)
        return true;
    start = start_of(pid);
    return start && from->start && start != from->start;
}

/* Bytes 0 to 63 of the file stand for the claimants. */
static int place_lock(int fd, int kind, short type, unsigned place, struct flock *out)
{
    *out = (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_start = place, .l_len = 1};
    return fcntl(fd, kind, out);
}

/* Does the process that wrote this word live? Our own lock does not stop us from asking. */
static bool alive(const struct mb__registry *reg, uint64_t word)
{
    unsigned place = word & PLACE_MASK;
    struct flock lock;

    if (!place || __atomic_load_n(&reg->head->claimant[place].token, __ATOMIC_RELAXED) != word)
        return false;
    if (word == reg->token)
        return true;
    if (gone(reg, place))
        return false;
    return place_lock(reg->fd, F_OFD_GETLK, F_WRLCK, place, &lock) || lock.l_type != F_UNLCK;
}

static enum mb_err take_place(struct mb__registry *reg, const char *path)
{
    for (unsigned place = 1; place <= CLAIMANTS; place++) {
        struct claimant *claimant = &reg->head->claimant[place];
        struct flock lock;
        uint64_t token;

        if (place_lock(reg->fd, F_OFD_SETLK, F_WRLCK, place, &lock))
            continue;
        do {
            if (getrandom(&token, sizeof(token), 0) != (ssize_t)sizeof(token))
                return registry_error(path, "the kernel gave no random numbers");
            token = (token & ~(uint64_t)PLACE_MASK) | place;
        } while (token >> 6 == 0 || token == claimant->token);
        claimant->pid = (uint32_t)reg->pid;
        reg->head->origin[place] =
            (struct origin){.token = token, .start = start_of(reg->pid), .ns = reg->ns};
        __atomic_store_n(&claimant->token, token, __ATOMIC_RELAXED);
        reg->token = token;
        return MB_OK;
    }
    return mb__fail(MB_ERR_BUSY, "registry %s: %d processes hold it, and there is room for no more",
                    path, CLAIMANTS);
}

/* A new file gets its head; anything that is not a registry is left alone. flock is held. */
static enum mb_err prepare(struct mb__registry *reg, const char *path)
{
    struct stat st;
    void *memory;

    if (fstat(reg->fd, &st))
        return registry_error(path, "its size cannot be had");
    if (!S_ISREG(st.st_mode) || (st.st_size && (size_t)st.st_size != file_bytes()))
        return mb__fail(MB_ERR_CORRUPT,
                        "registry %s: it holds something else; name a file that does not exist",
                        path);
    if (!st.st_size && ftruncate(reg->fd, (off_t)file_bytes()))
        return registry_error(path, "it cannot be made large enough");
    memory = mmap(NULL, file_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, reg->fd, 0);
    if (memory == MAP_FAILED)
        return registry_error(path, "it cannot be mapped");
    reg->head = memory;
    if (madvise(memory, file_bytes(), MADV_DONTFORK))
        return registry_error(path, "it cannot be kept from forks");
    reg->words = (uint64_t *)((char *)memory + HEAD_BYTES);
    /* Also after a process that died between the two. */
    if (!reg->head->magic)
        *reg->head = (struct head){.magic = MAGIC, .frames = FRAMES_MAX};
    if (reg->head->magic != MAGIC || reg->head->frames != FRAMES_MAX)
        return mb__fail(MB_ERR_CORRUPT, "registry %s: it is no registry of this version", path);
    return take_place(reg, path);
}

static void registry_free(struct mb__registry *reg)
{
    if (reg->head && reg->pid == getpid())
        munmap(reg->head, file_bytes());
    file_close(reg); /* and with it the locks */
    free(reg);
}

enum mb_err mb__registry_open(struct mb_vm *vm)
{
    const char *path = vm->config.registry;
    struct mb__registry *reg;
    enum mb_err err;

    if (!path[0])
        return MB_OK;
    if (vm->hw->caps.host_blocking)
        return mb__fail(MB_ERR_NOT_SUPPORTED,
                        "registry:%s: entries are the driver's here, and frames have no number; "
                        "leave the key out or use device tables",
                        path);
    pthread_once(&fork_once, watch_forks);
    reg = fork_error ? NULL : calloc(1, sizeof(*reg));
    if (!reg)
        return mb__no_host_memory("the registry");
    reg->pid = getpid();
    reg->ns = name_space();
    if (!file_open(reg, path) || flock(reg->fd, LOCK_EX)) {
        err = registry_error(path, "it cannot be opened");
        registry_free(reg);
        return err;
    }
    err = prepare(reg, path);
    (void)flock(reg->fd, LOCK_UN);
    if (err)
        registry_free(reg);
    else
        vm->registry = reg;
    return err;
}

void mb__registry_close(struct mb_vm *vm)
{
    if (!vm->registry)
        return;
    /* Whatever is still claimed counts as unclaimed from here on. */
    if (vm->registry->pid == getpid())
        __atomic_store_n(&vm->registry->head->claimant[vm->registry->token & PLACE_MASK].token, 0,
                         __ATOMIC_RELAXED);
    registry_free(vm->registry);
    vm->registry = NULL;
}

/* ------------------------------------------------------------ claims */

static uint32_t slab_frame(const struct mb_hw_slab *slab, uint32_t i)
{
    return mb__frame_of(slab->pfns ? slab->pfns[i].n : slab->first.n) + (slab->pfns ? 0 : i);
}

static void unclaim(struct mb__registry *reg, const struct mb_hw_slab *slab, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        uint64_t *word = &reg->words[slab_frame(slab, i)];

        if (__atomic_load_n(word, __ATOMIC_RELAXED) == reg->token)
            __atomic_store_n(word, 0, __ATOMIC_RELEASE);
    }
}

enum mb_err mb__registry_claim(struct mb_vm *vm, const struct mb_hw_slab *slab)
{
    struct mb__registry *reg = vm->registry;
    enum mb_err err = MB_OK;
    uint64_t dead = 0; /* a token whose claimant is known to be gone: asked once */

    if (!reg)
        return MB_OK;
    if (flock(reg->fd, LOCK_EX))
        return registry_error(vm->config.registry, "it cannot be locked");
    for (uint32_t i = 0; !err && i < slab->frames; i++) {
        uint32_t frame = slab_frame(slab, i);
        uint64_t word = __atomic_load_n(&reg->words[frame], __ATOMIC_ACQUIRE);

        if (word && word != dead && alive(reg, word)) {
            unclaim(reg, slab, i);
            err = mb__fail(MB_ERR_DRIVER,
                           "the driver gave frame %#x, which process %u holds (registry %s); "
                           "nothing of this slab is used",
                           frame, reg->head->claimant[word & PLACE_MASK].pid, vm->config.registry);
            break;
        }
        dead = word ? word : dead;
        __atomic_store_n(&reg->words[frame], reg->token, __ATOMIC_RELEASE);
    }
    (void)flock(reg->fd, LOCK_UN);
    return err;
}

void mb__registry_unclaim(struct mb_vm *vm, const struct mb_hw_slab *slab)
{
    /* No lock: only we may change our own words. */
    if (vm->registry)
        unclaim(vm->registry, slab, slab->frames);
}

enum mb_err mb__registry_holds(const struct mb_vm *vm, const mb_pfn *pfns, uint32_t count)
{
    const struct mb__registry *reg = vm->registry;
    uint32_t i = 0;

    enum { AHEAD = 12 };

    for (; i < count; i++) {
        if (i + AHEAD < count)
            __builtin_prefetch(&reg->words[mb__frame_of(pfns[i + AHEAD].n)]);
        if (__atomic_load_n(&reg->words[mb__frame_of(pfns[i].n)], __ATOMIC_RELAXED) != reg->token)
            break;
    }
    if (i == count)
        return MB_OK;
    return mb__fail(MB_ERR_CORRUPT,
                    "frame %#x is not this process's (registry %s); no entry was written",
                    mb__frame_of(pfns[i].n), vm->config.registry);
}
