/* os.c - see os.h. */
#include "hw/nvrm/os.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "hw/nvrm/fence.h"

enum { AGAIN_LIMIT = 1000, GUARD_BYTES = 4096, SPINS_BEFORE_YIELD = 256 };

static int system_open(const struct nvrm_os *os, const char *path, int flags)
{
    (void)os;
    int fd = open(path, flags);
    return fd < 0 ? -errno : fd;
}

static int system_close(const struct nvrm_os *os, int fd)
{
    (void)os;
    return close(fd) ? -errno : 0;
}

/* The driver asks for a repeat with EINTR, and with EAGAIN while it is busy. */
static int system_ioctl(const struct nvrm_os *os, int fd, unsigned long request, void *arg)
{
    (void)os;
    for (int again = 0;;) {
        if (syscall(SYS_ioctl, fd, request, arg) >= 0)
            return 0;
        if (errno != EINTR && (errno != EAGAIN || ++again > AGAIN_LIMIT))
            return -errno;
    }
}

static int system_map(const struct nvrm_os *os, size_t bytes, int prot, int fd, void **out)
{
    (void)os;
    void *addr = mmap(NULL, bytes, prot, MAP_SHARED, fd, 0);
    if (addr == MAP_FAILED)
        return -errno;
    *out = addr;
    return 0;
}

static int system_unmap(const struct nvrm_os *os, void *addr, size_t bytes)
{
    (void)os;
    return munmap(addr, bytes) ? -errno : 0;
}

static int system_dont_fork(const struct nvrm_os *os, void *addr, size_t bytes)
{
    (void)os;
    return madvise(addr, bytes, MADV_DONTFORK) ? -errno : 0;
}

/* Spinning is cheapest for the usual few microseconds. */
static void system_pause(const struct nvrm_os *os, unsigned turn)
{
    (void)os;
    if (turn % SPINS_BEFORE_YIELD == 0)
        sched_yield();
    else
        mb__nvrm_cpu_relax();
}

const struct nvrm_os mb__nvrm_os_system = {
    .open = system_open,
    .close = system_close,
    .ioctl = system_ioctl,
    .map = system_map,
    .unmap = system_unmap,
    .dont_fork = system_dont_fork,
    .pause = system_pause,
};

unsigned long mb__nvrm_escape_request(unsigned escape, size_t bytes)
{
    return _IOC(_IOC_READ | _IOC_WRITE, 'F', escape, bytes);
}

void mb__nvrm_fork_guard_init(struct nvrm_fork_guard *guard)
{
    void *page =
        mmap(NULL, GUARD_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    guard->page = NULL;
    guard->owner = (int)getpid();
    if (page == MAP_FAILED)
        return;
    if (madvise(page, GUARD_BYTES, MADV_WIPEONFORK)) {
        munmap(page, GUARD_BYTES);
        return;
    }
    guard->page = page;
    *guard->page = 1;
}

bool mb__nvrm_fork_guard_is_child(const struct nvrm_fork_guard *guard)
{
    return guard->page ? !*guard->page : guard->owner != (int)getpid();
}

void mb__nvrm_fork_guard_fini(struct nvrm_fork_guard *guard)
{
    if (guard->page)
        munmap((void *)(uintptr_t)guard->page, GUARD_BYTES);
    guard->page = NULL;
}
