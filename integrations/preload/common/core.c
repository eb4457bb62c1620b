/* SPDX-License-Identifier: MIT */
/*
 * core.c - see core.h.
 *
 * Locking   `open_lock` guards opening and closing; readers load slots[].dev without it. Closing
 *           while another thread allocates is the program's error, as a device reset is.
 * Fork      A handler marks the child; from then on the vendor serves, and answers as it does.
 * End       Devices stay open: the vendor's own exit handlers may run first.
 */
#define _GNU_SOURCE
#include "core.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static struct {
    _Atomic(mb_device) dev;
    bool tried; /* and failed if dev is NULL; open_lock */
} slots[CORE_DEVICES];

static pthread_mutex_t open_lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool forked;
static bool watching_forks; /* open_lock */
static __thread unsigned depth __attribute__((tls_model("initial-exec")));

/* ------------------------------------------------------------ switches */

static bool has_word(const char *list, const char *word)
{
    size_t length = strlen(word);

    for (const char *at = list; at && (at = strstr(at, word)); at += length) {
        if ((at == list || at[-1] == ',') && (!at[length] || at[length] == ','))
            return true;
    }
    return false;
}

/* A word that is misspelt would be one that does nothing. */
static void warn_of_unknown(const char *list)
{
    static const char known[] = "off,ipc,time,trace";

    while (list && *list) {
        size_t length = strcspn(list, ",");
        char word[32];

        snprintf(word, sizeof(word), "%.*s", (int)(length < 31 ? length : 31), list);
        if (length && !has_word(known, word))
            core_note("MOONBRIGHT_PRELOAD: \"%s\" is no word of it; there are %s", word, known);
        list += length + (list[length] == ',');
    }
}

unsigned core_modes(void)
{
    static _Atomic unsigned known; /* bit 31: read */
    unsigned modes = atomic_load_explicit(&known, memory_order_relaxed);
    const char *text;

    if (modes)
        return modes;
    text = getenv("MOONBRIGHT_PRELOAD");
    modes = 1u << 31;
    modes |= has_word(text, "off") ? CORE_OFF : 0u;
    modes |= has_word(text, "time") ? CORE_TIME : 0u;
    modes |= has_word(text, "ipc") ? CORE_IPC : 0u;
    modes |= has_word(text, "trace") ? CORE_TRACE : 0u;
    if (!atomic_exchange_explicit(&known, modes, memory_order_relaxed))
        warn_of_unknown(text);
    return modes;
}

void core_note(const char *format, ...)
{
    char text[640];
    size_t head;
    va_list args;
    int length = snprintf(text, sizeof(text), "moonbright: %s: ", core_vendor.preload);

    if (length < 0)
        return;
    head = (size_t)length;

    va_start(args, format);
    length = vsnprintf(text + head, sizeof(text) - head - 1, format, args);
    va_end(args);
    if (length < 0)
        return;
    if ((size_t)length > sizeof(text) - head - 2)
        length = (int)(sizeof(text) - head - 2);
    text[head + (size_t)length] = '\n';
    if (write(STDERR_FILENO, text, head + (size_t)length + 1) < 0)
        return; /* nobody to tell */
}

/* ------------------------------------------------------------ devices */

bool core_inside(void)
{
    return depth != 0;
}

void core_enter(void)
{
    depth++;
}

void core_leave(void)
{
    depth--;
}

static void in_child(void)
{
    atomic_store(&forked, true);
}

bool core_forked(void)
{
    return atomic_load(&forked);
}

mb_device core_opened(int ordinal)
{
    if (ordinal < 0 || ordinal >= CORE_DEVICES || atomic_load(&forked))
        return NULL;
    return atomic_load_explicit(&slots[ordinal].dev, memory_order_acquire);
}

static uint64_t open_ns; /* spent in mb_open(); open_lock */
/* Waited for a device to be opened, by this thread or by another one that was first. */
static _Thread_local __attribute__((tls_model("global-dynamic"))) uint64_t opening_ns;
static _Atomic uint64_t all_opening_ns;

static uint64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Does $MOONBRIGHT name the key? */
static bool configured(const char *key)
{
    const char *at = getenv("MOONBRIGHT");

    while (at && *at) {
        at += strspn(at, ", ");
        if (strncmp(at, key, strlen(key)) == 0)
            return true;
        at += strcspn(at, ",");
    }
    return false;
}

/* Unless the user says otherwise: the vendor's backend; and, as in the vendor's own pools, no
 * stream is made to wait for another while there is memory. A program may let its streams wait for
 * values that others of its streams write. */
static mb_device try_open(int ordinal) /* open_lock held */
{
    char config[64];
    mb_device dev = NULL;
    uint64_t start = now_ns();
    enum mb_err err;

    slots[ordinal].tried = true;
    /* Before the long wait: a child of another thread would find open_lock locked for ever. */
    if (!watching_forks)
        watching_forks = !pthread_atfork(NULL, NULL, in_child);
    snprintf(config, sizeof(config), "%s%s", configured("backend:") ? "" : core_vendor.backend,
             configured("growth:")    ? ""
             : configured("backend:") ? "growth:independent"
                                      : ",growth:independent");
    err = mb_open(ordinal, config, &dev);
    open_ns += now_ns() - start;
    if (err) {
        core_note("device %d stays with %s: %s: %s", ordinal, core_vendor.name, mb_error_name(err),
                  mb_error_detail());
        return NULL;
    }
    atomic_store_explicit(&slots[ordinal].dev, dev, memory_order_release);
    return dev;
}

mb_device core_device(int ordinal)
{
    mb_device dev = core_opened(ordinal);
    uint64_t start;
    bool opening;

    if (dev || ordinal < 0 || ordinal >= CORE_DEVICES || atomic_load(&forked) ||
        (core_modes() & CORE_OFF) || core_inside())
        return dev;
    core_enter();
    start = now_ns();
    pthread_mutex_lock(&open_lock);
    dev = core_opened(ordinal);
    opening = dev || !slots[ordinal].tried; /* this thread opens it, or waited for one that did */
    if (!dev && !slots[ordinal].tried)
        dev = try_open(ordinal);
    pthread_mutex_unlock(&open_lock);
    start = opening ? now_ns() - start : 0;
    opening_ns += start;
    atomic_fetch_add_explicit(&all_opening_ns, start, memory_order_relaxed);
    core_leave();
    return dev;
}

bool core_serves(int ordinal)
{
    bool failed;

    if (ordinal < 0 || ordinal >= CORE_DEVICES || (core_modes() & CORE_OFF) ||
        atomic_load(&forked) || core_inside())
        return false;
    if (core_opened(ordinal))
        return true;
    pthread_mutex_lock(&open_lock);
    failed = slots[ordinal].tried && !slots[ordinal].dev;
    pthread_mutex_unlock(&open_lock);
    return !failed;
}

void core_close(int ordinal)
{
    mb_device dev;

    if (ordinal < 0 || ordinal >= CORE_DEVICES || atomic_load(&forked))
        return;
    core_enter();
    pthread_mutex_lock(&open_lock);
    dev = atomic_exchange(&slots[ordinal].dev, NULL);
    slots[ordinal].tried = false;
    if (dev)
        mb_close(dev);
    pthread_mutex_unlock(&open_lock);
    core_leave();
}

mb_device core_owner(const void *ptr, struct mb_pointer_info *info, int *ordinal)
{
    mb_device dev = NULL;

    if (!ptr || core_inside())
        return NULL;
    core_enter();
    for (int i = 0; i < CORE_DEVICES && !dev; i++) {
        mb_device candidate = core_opened(i);

        if (candidate && !mb_pointer_info(candidate, ptr, info)) {
            dev = candidate;
            *ordinal = i;
        }
    }
    core_leave();
    return dev;
}

/* ------------------------------------------------------------ times */

static struct {
    _Atomic uint64_t calls, total_ns, max_ns;
} times[CORE_KINDS];

static const char *const kinds[CORE_KINDS] = {"alloc", "free", "alloc_async", "free_async"};

struct core_stamp core_begin(enum core_kind kind)
{
    bool measured = (core_modes() & CORE_TIME) && !core_inside();

    return (struct core_stamp){
        .start_ns = measured ? now_ns() : 0,
        .opening_ns = measured ? opening_ns : 0,
        .kind = kind,
    };
}

void core_end(struct core_stamp *stamp)
{
    uint64_t ns, most;

    if (!stamp->start_ns)
        return;
    ns = now_ns() - stamp->start_ns - (opening_ns - stamp->opening_ns);
    atomic_fetch_add_explicit(&times[stamp->kind].calls, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&times[stamp->kind].total_ns, ns, memory_order_relaxed);
    most = atomic_load_explicit(&times[stamp->kind].max_ns, memory_order_relaxed);
    while (ns > most &&
           !atomic_compare_exchange_weak_explicit(&times[stamp->kind].max_ns, &most, ns,
                                                  memory_order_relaxed, memory_order_relaxed))
        ;
}

/* One object of JSON on a line, appended to the file that MOONBRIGHT_PRELOAD_TIMES names, else to
 * stderr. The time to open devices is told apart: no call's time has it, neither of the one that
 * opens nor of those that wait for it. */
__attribute__((destructor)) static void tell_times(void)
{
    const char *path = getenv("MOONBRIGHT_PRELOAD_TIMES");
    char text[1024];
    int n, fd = STDERR_FILENO;

    uint64_t calls = 0;

    for (unsigned k = 0; k < CORE_KINDS; k++)
        calls += times[k].calls;
    if (!(core_modes() & CORE_TIME) || !calls || atomic_load(&forked))
        return;
    n = snprintf(text, sizeof(text),
                 "{\"what\":\"preload times\",\"by\":\"%s\",\"open_ns\":%" PRIu64
                 ",\"waited_for_open_ns\":%" PRIu64,
                 core_modes() & CORE_OFF ? "vendor" : "moonbright", open_ns, all_opening_ns);
    for (unsigned k = 0; k < CORE_KINDS; k++)
        n += snprintf(text + n, sizeof(text) - (size_t)n,
                      ",\"%s\":{\"calls\":%" PRIu64 ",\"total_ns\":%" PRIu64 ",\"max_ns\":%" PRIu64
                      "}",
                      kinds[k], times[k].calls, times[k].total_ns, times[k].max_ns);
    n += snprintf(text + n, sizeof(text) - (size_t)n, "}\n");
    if (path && *path)
        fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd < 0 || write(fd, text, (size_t)n) < 0)
        core_note("the times could not be written to %s: %s", path && *path ? path : "stderr",
                  strerror(errno));
    if (fd > STDERR_FILENO)
        (void)close(fd);
}
