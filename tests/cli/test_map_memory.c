/* SPDX-License-Identifier: MIT */
/*
 * `moonbright map` while the host runs out of memory: the n-th allocation fails, for every n, once
 * or from then on. Either the page is there, byte for byte as with enough memory, or the command
 * says that it failed and the file that was there before is as it was, with nothing beside it.
 */
#include <dirent.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/cli.h"
#include "support/alloc_faults.h"
#include "support/runtime_rig.h"

/* ------------------------------------------------------------ the command */

static char work[] = P_tmpdir "/map_memory.XXXXXX";

static char *in_work(const char *name, char out[64])
{
    snprintf(out, 64, "%s/%s", work, name);
    return out;
}

static char *contents(const char *path)
{
    FILE *file = fopen(path, "r");
    char *text = calloc(1, 1 << 20);
    size_t size;

    CHECK(file && text);
    size = fread(text, 1, (1 << 20) - 1, file);
    CHECK(size < (1 << 20) - 1);
    fclose(file);
    return text;
}

static void write_file(const char *name, const char *text)
{
    char path[64];
    FILE *file = fopen(in_work(name, path), "w");

    CHECK(file && fputs(text, file) >= 0);
    CHECK_EQ(fclose(file), 0);
}

/* Exit status of `map INPUT -o page` in a process of its own, as charts are numbered through a
 * process; its complaints are thrown away. *hit: an allocation failed. */
static int map_of(const char *input, uint64_t n, bool lasting, bool *hit)
{
    int status = 0;
    pid_t child;

    fflush(NULL);
    child = fork();
    CHECK(child >= 0);
    if (!child) {
        char from[64], page[64];
        char *argv[] = {"map", in_work(input, from), "-o", in_work("page", page), "--moments", "3",
                        NULL};

        if (!freopen("/dev/null", "w", stderr))
            _exit(100);
        fail_at(n, lasting);
        status = cli_map.run(6, argv);
        _exit(status | (plan.hits != 0) << 4);
    }
    CHECK_EQ(waitpid(child, &status, 0), child);
    if (!WIFEXITED(status) || WEXITSTATUS(status) == 100)
        FAIL("map %s without allocation %" PRIu64 "%s ended with 0x%x", input, n,
             lasting ? " and all later ones" : "", status);
    *hit = WEXITSTATUS(status) >> 4;
    return WEXITSTATUS(status) & 15;
}

static unsigned files_in_work(void)
{
    DIR *dir = opendir(work);
    unsigned count = 0;

    CHECK(dir != NULL);
    while (readdir(dir))
        count++;
    closedir(dir);
    return count - 2;
}

/* False: the command makes fewer than n allocations. */
static bool run_without(const char *input, const char *whole, unsigned files, uint64_t n,
                        bool lasting)
{
    char path[64], *page;
    bool hit;
    int status;

    write_file("page", "before");
    status = map_of(input, n, lasting, &hit);
    page = contents(in_work("page", path));
    if (strcmp(page, status == CLI_OK ? whole : "before") != 0)
        FAIL("map %s without allocation %" PRIu64 "%s: status %d, and the page is\n%.200s", input,
             n, lasting ? " and all later ones" : "", status, page);
    CHECK_EQ(files_in_work(), files);
    free(page);
    return hit;
}

static void every_allocation(const char *input)
{
    unsigned files, failed = 0;
    char path[64], *whole;
    bool hit;

    CHECK_EQ(map_of(input, 0, false, &hit), CLI_OK);
    whole = contents(in_work("page", path));
    CHECK(strstr(whole, "</html>"));
    files = files_in_work();
    for (uint64_t n = 1;
         run_without(input, whole, files, n, false) && run_without(input, whole, files, n, true);
         n++)
        failed++;
    printf("map %s: %u allocations, each failed once and for good\n", input, failed);
    CHECK(failed > 5);
    free(whole);
}

static void begin(void)
{
    memset(work + strlen(work) - 6, 'X', 6);
    CHECK(mkdtemp(work) != NULL);
}

static void end(const char *input)
{
    char path[64];

    CHECK_EQ(unlink(in_work(input, path)), 0);
    CHECK_EQ(unlink(in_work("page", path)), 0);
    CHECK_EQ(rmdir(work), 0);
}

/* In another process: what a process forks after it has opened a device may open none. */
static void make_log(void)
{
    char config[160], path[64];
    pid_t child = fork();
    int status = 0;

    CHECK(child >= 0);
    if (!child) {
        mb_device dev = NULL;
        void *ptr[3] = {NULL};
        enum mb_err err;

        snprintf(config, sizeof(config), "backend:sim,device_memory:64m,audit:%s",
                 in_work("log", path));
        err = mb_open(0, config, &dev);
        for (unsigned i = 0; !err && i < 3; i++)
            err = mb_malloc_async(dev, 8 * RT_MIB, NULL, &ptr[i]);
        err = err ? err : mb_free_async(dev, ptr[1], NULL);
        mb_close(dev);
        _exit((int)err);
    }
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
}

TEST(of_an_audit_log)
{
    begin();
    make_log();
    every_allocation("log");
    end("log");
}

TEST(of_a_trace)
{
    begin();
    write_file("trace", "S,0,20971520,0\na,1,8388608,0\na,2,4194304,0\nf,1,8388608,0\n"
                        "a,3,12582912,0\na,4,2097152,1\n");
    every_allocation("trace");
    end("trace");
}
