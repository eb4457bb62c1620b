/*
 * os.h - every way from nvrm into the kernel, as a table, so that tests can make each call fail.
 *
 * The system's ioctl goes straight to the kernel and not through libc's function of that name,
 * which MoonBright's observer of libcuda may have replaced.
 *
 * All functions return 0 (open: a file number) or a negative errno value.
 */
#ifndef MB_HW_NVRM_OS_H
#define MB_HW_NVRM_OS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Static or owned by the test; it outlives every client that uses it. Functions are thread-safe. */
struct nvrm_os {
    int (*open)(const struct nvrm_os *os, const char *path, int flags);
    int (*close)(const struct nvrm_os *os, int fd);
    int (*ioctl)(const struct nvrm_os *os, int fd, unsigned long request, void *arg);
    /* Shared mapping of `bytes` from offset 0 of `fd`. */
    int (*map)(const struct nvrm_os *os, size_t bytes, int prot, int fd, void **out);
    int (*unmap)(const struct nvrm_os *os, void *addr, size_t bytes);
    /* A child made by fork() must not inherit the mapping. */
    int (*dont_fork)(const struct nvrm_os *os, void *addr, size_t bytes);
    /* Called between two looks of a wait for the GPU, `turn` counts from 1: spin, and now and then
     * give the processor away. */
    void (*pause)(const struct nvrm_os *os, unsigned turn);
};

extern const struct nvrm_os mb__nvrm_os_system;

/* ioctl request of a resource-manager escape: type 'F', read and write, exact size. */
unsigned long mb__nvrm_escape_request(unsigned escape, size_t bytes);

/*
 * A word that reads as «forked» in a child: one page that the kernel wipes on fork. Costs a load
 * per check, no system call. Owned by one client.
 */
struct nvrm_fork_guard {
    volatile unsigned char *page; /* 1 in the owner, 0 in a child; NULL: compare process ids */
    int owner;                    /* process id of the owner */
};
void mb__nvrm_fork_guard_init(struct nvrm_fork_guard *guard);
bool mb__nvrm_fork_guard_is_child(const struct nvrm_fork_guard *guard);
void mb__nvrm_fork_guard_fini(struct nvrm_fork_guard *guard);

#endif
