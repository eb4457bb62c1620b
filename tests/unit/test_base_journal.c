/* SPDX-License-Identifier: MIT */
/* The file behind the audit log: what is written is read, torn ends are tolerated, damage is not.
 * */
#include "base/journal.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test.h"

static char path[64];

static void fresh(void)
{
    int fd;

    snprintf(path, sizeof(path), "%s/mb-journal-XXXXXX", P_tmpdir);
    fd = mkstemp(path);
    CHECK(fd >= 0);
    close(fd);
}

static struct mb__journal *open_log(void)
{
    struct mb__journal *journal = NULL;

    CHECK_OK(mb__journal_open(path, "test device", &journal));
    return journal;
}

static void add(struct mb__journal *journal, uint64_t va)
{
    mb__journal_add(journal,
                    (struct mb_audit_record){.kind = MB_AUDIT_MAP, .va = va, .bytes = 4096});
}

struct seen {
    unsigned count;
    uint64_t last_va;
    struct mb_audit_record first;
};

static void visit(void *user, const struct mb_audit_record *record)
{
    struct seen *seen = user;

    if (!seen->count++)
        seen->first = *record;
    seen->last_va = record->va;
}

static struct mb_audit_summary read_log(struct seen *seen)
{
    struct mb_audit_summary sum;

    memset(seen, 0, sizeof(*seen));
    CHECK_OK(mb__journal_read(path, visit, seen, &sum));
    CHECK_EQ(sum.records, seen->count);
    return sum;
}

static off_t size_of(void)
{
    struct stat st;

    CHECK_OK(stat(path, &st));
    return st.st_size;
}

/* Three sessions' worth of nothing special: 1 + `maps` records. */
static void write_session(unsigned maps, bool close_it)
{
    struct mb__journal *journal = open_log();

    for (unsigned i = 1; i <= maps; i++)
        add(journal, i);
    CHECK_OK(mb__journal_flush(journal));
    if (close_it)
        mb__journal_add(journal, (struct mb_audit_record){.kind = MB_AUDIT_CLOSE});
    mb__journal_close(journal);
}

static void scribble(off_t at, const void *bytes, size_t count)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);

    CHECK(fd >= 0);
    CHECK_EQ(pwrite(fd, bytes, count, at), count);
    close(fd);
}

TEST(what_is_written_is_read)
{
    struct mb_audit_summary sum;
    struct seen seen;

    fresh();
    mb__caller_set("before", NULL);
    write_session(3, true);
    sum = read_log(&seen);
    CHECK_EQ(sum.records, 5);
    CHECK_EQ(sum.sessions, 1);
    CHECK_EQ(sum.tail_bytes, 0);
    CHECK(sum.closed);
    CHECK_EQ(seen.first.kind, MB_AUDIT_SESSION);
    CHECK_STR_EQ(seen.first.call, "test device");
    CHECK_EQ(seen.first.pid, getpid());
    CHECK(seen.first.time_ns > (uint64_t)1600000000 * 1000000000);
    write_session(2, false);
    sum = read_log(&seen);
    CHECK_EQ(sum.sessions, 2);
    CHECK_EQ(sum.records, 8);
    CHECK(!sum.closed);
    CHECK_EQ(seen.last_va, 2);
    unlink(path);
}

/* Cut at every byte of the last two records. */
TEST(torn_ends_are_reported_and_cut_off)
{
    struct mb_audit_summary sum;
    struct seen seen;
    off_t whole;

    fresh();
    write_session(4, false);
    whole = size_of();
    for (off_t cut = 1; cut <= 2 * MB_JOURNAL_BYTES; cut++) {
        unsigned lost = (unsigned)((cut + MB_JOURNAL_BYTES - 1) / MB_JOURNAL_BYTES);

        CHECK_OK(truncate(path, whole - cut));
        sum = read_log(&seen);
        CHECK_EQ(sum.records, 5 - lost);
        CHECK_EQ(sum.tail_bytes, lost * MB_JOURNAL_BYTES - (unsigned)cut);
        write_session(0, false); /* the next writer cuts the end off and goes on */
        sum = read_log(&seen);
        CHECK_EQ(sum.records, 6 - lost);
        CHECK_EQ(sum.sessions, 2);
        CHECK_EQ(sum.tail_bytes, 0);
        CHECK_OK(truncate(path, 0));
        write_session(4, false);
        CHECK_EQ(size_of(), whole);
    }
    unlink(path);
}

/* Every single byte of a record in the middle matters. */
TEST(damage_before_the_end_is_found)
{
    struct seen seen;
    int fd;

    fresh();
    write_session(4, true);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0);
    for (off_t at = 2 * MB_JOURNAL_BYTES; at < 3 * MB_JOURNAL_BYTES; at++) {
        unsigned char byte, flipped;

        CHECK_EQ(pread(fd, &byte, 1, at), 1);
        flipped = byte ^ 0x10;
        scribble(at, &flipped, 1);
        memset(&seen, 0, sizeof(seen));
        CHECK_EQ(mb__journal_read(path, visit, &seen, NULL), MB_ERR_CORRUPT);
        CHECK_EQ(seen.count, 2);
        scribble(at, &byte, 1);
    }
    close(fd);
    read_log(&seen);
    CHECK_EQ(seen.count, 6);
    unlink(path);
}

/* A record that was cut out leaves a gap in the numbers. */
TEST(missing_records_are_found)
{
    char record[MB_JOURNAL_BYTES];
    int fd;

    fresh();
    write_session(4, true);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0);
    for (off_t i = 3; i < 6; i++) {
        CHECK_EQ(pread(fd, record, sizeof(record), i * MB_JOURNAL_BYTES), MB_JOURNAL_BYTES);
        scribble((i - 1) * MB_JOURNAL_BYTES, record, sizeof(record));
    }
    close(fd);
    CHECK_OK(truncate(path, 5 * MB_JOURNAL_BYTES));
    CHECK_EQ(mb__journal_read(path, NULL, NULL, NULL), MB_ERR_CORRUPT);
    CHECK(strstr(mb_error_detail(), "record 4") != NULL);
    unlink(path);
}

enum { LISTED = 1024, PIECE = 2 << 20 };

static struct mb_audit_record piece_of(unsigned i)
{
    return (struct mb_audit_record){.kind = MB_AUDIT_MAP,
                                    .prot = MB_PROT_READ_WRITE,
                                    .batch = 7,
                                    .owner = 3,
                                    .va = UINT64_C(0x700000000000) + (uint64_t)i * PIECE,
                                    .bytes = PIECE,
                                    .phys = (uint64_t)(i * 389 % LISTED) * PIECE};
}

static void check_piece(void *user, const struct mb_audit_record *record)
{
    struct mb_audit_record want;
    unsigned *next = user;

    if (record->kind != MB_AUDIT_MAP)
        return;
    want = piece_of((*next)++);
    CHECK_EQ(record->prot, want.prot);
    CHECK_EQ(record->batch, want.batch);
    CHECK_EQ(record->owner, want.owner);
    CHECK_EQ(record->va, want.va);
    CHECK_EQ(record->bytes, want.bytes);
    CHECK_EQ(record->phys, want.phys);
    CHECK_EQ(record->pid, getpid());
    CHECK_STR_EQ(record->call, "mb_test");
}

/* Pieces side by side with frames anywhere share records, and are read as if they did not. */
TEST(scattered_frames_are_listed)
{
    struct mb__journal *journal;
    struct mb_audit_summary sum;
    unsigned next = 0;
    off_t empty;

    fresh();
    journal = open_log();
    empty = size_of();
    mb__caller_set("mb_test", NULL);
    for (unsigned i = 0; i < LISTED; i++)
        mb__journal_add(journal, piece_of(i));
    CHECK_OK(mb__journal_flush(journal));
    CHECK_EQ(size_of() - empty, (1 + (LISTED - 1 + 26) / 27) * MB_JOURNAL_BYTES);
    mb__journal_close(journal);
    CHECK_OK(mb__journal_read(path, check_piece, &next, &sum));
    CHECK_EQ(next, LISTED);
    CHECK_EQ(sum.records, 1 + LISTED);
    CHECK_EQ(sum.tail_bytes, 0);
    /* Cut inside the list: what is left is whole. */
    CHECK_OK(truncate(path, 3 * MB_JOURNAL_BYTES));
    next = 0;
    CHECK_OK(mb__journal_read(path, check_piece, &next, &sum));
    CHECK_EQ(next, 1 + 27);
    unlink(path);
}

/* Whatever differs in more than the frame gets a record of its own, and so does what would be added
 * to records that are in the file or that a rewind must not touch. */
TEST(other_changes_are_not_listed)
{
    struct mb__journal *journal;
    struct mb_audit_summary sum;
    unsigned next = 0;
    off_t before;
    struct mb__journal_mark mark;

    fresh();
    journal = open_log();
    mb__caller_set("mb_test", NULL);
    mb__journal_add(journal, piece_of(0));
    CHECK_OK(mb__journal_flush(journal));
    before = size_of();
    mb__journal_add(journal, piece_of(1));
    mark = mb__journal_mark(journal);
    mb__journal_add(journal, piece_of(2));
    mb__journal_add(journal, piece_of(3));
    mb__journal_rewind(journal, &mark);
    mb__journal_add(journal, piece_of(2));
    for (unsigned i = 3; i < 10; i++) {
        struct mb_audit_record other = piece_of(i);

        other.kind = i == 3 ? MB_AUDIT_UNMAP : MB_AUDIT_PROTECT;
        other.prot = i == 4 ? MB_PROT_READ : other.prot;
        other.batch += i == 5;
        other.owner += i == 6;
        other.va += i == 7 ? PIECE : 0;
        other.bytes *= i == 8 ? 2 : 1;
        other.phys += i == 9 ? 4096 : 0;
        mb__journal_add(journal, other);
    }
    CHECK_OK(mb__journal_flush(journal));
    CHECK_EQ(size_of() - before, 9 * MB_JOURNAL_BYTES);
    mb__journal_close(journal);
    CHECK_OK(mb__journal_read(path, check_piece, &next, &sum));
    CHECK_EQ(next, 3);
    CHECK_EQ(sum.records, 1 + 10);
    unlink(path);
}

TEST(other_files_are_refused_and_left_alone)
{
    struct mb__journal *journal = NULL;
    static const char text[200] = "not a log";

    fresh();
    scribble(0, text, sizeof(text));
    CHECK_EQ(mb__journal_open(path, "x", &journal), MB_ERR_CORRUPT);
    CHECK_EQ(size_of(), sizeof(text));
    CHECK_EQ(mb__journal_read(path, NULL, NULL, NULL), MB_ERR_PARSE);
    CHECK_EQ(mb__journal_open("/dev/null", "x", &journal), MB_ERR_IO);
    CHECK_EQ(mb__journal_open("/nonexistent/log", "x", &journal), MB_ERR_IO);
    CHECK_EQ(mb__journal_open(P_tmpdir, "x", &journal), MB_ERR_IO);
    CHECK_EQ(mb__journal_read("/nonexistent/log", NULL, NULL, NULL), MB_ERR_IO);
    CHECK_PTR_EQ(journal, NULL);
    unlink(path);
}

TEST(one_writer_at_a_time)
{
    struct mb__journal *journal, *second = NULL;

    fresh();
    journal = open_log();
    CHECK_EQ(mb__journal_open(path, "x", &second), MB_ERR_BUSY);
    CHECK_PTR_EQ(second, NULL);
    mb__journal_close(journal);
    second = open_log();
    mb__journal_close(second);
    unlink(path);
}

/* /dev/full cannot be locked as a regular file, so the disk is made full by a limit of the file's
 * size. */
TEST(a_full_disk_loses_nothing)
{
    struct seen seen;
    pid_t child;
    int status;

    fresh();
    fflush(stdout);
    child = fork();
    CHECK(child >= 0);
    if (!child) {
        struct mb__journal *journal = NULL;
        enum mb_err err;

        if (mb__journal_open(path, "x", &journal))
            _exit(1);
        signal(SIGXFSZ, SIG_IGN);
        for (unsigned i = 0; i < 3; i++)
            mb__journal_add(journal, (struct mb_audit_record){.kind = MB_AUDIT_MAP, .va = i});
        setrlimit(RLIMIT_FSIZE, &(struct rlimit){2 * MB_JOURNAL_BYTES + 10, RLIM_INFINITY});
        err = mb__journal_flush(journal);
        if (err != MB_ERR_IO)
            _exit(2);
        setrlimit(RLIMIT_FSIZE, &(struct rlimit){RLIM_INFINITY, RLIM_INFINITY});
        if (mb__journal_flush(journal))
            _exit(3);
        mb__journal_close(journal);
        _exit(0);
    }
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
    CHECK_EQ(read_log(&seen).records, 4);
    CHECK_EQ(seen.last_va, 2);
    unlink(path);
}

TEST(rewinding_takes_records_back)
{
    struct mb__journal *journal;
    struct seen seen;
    struct mb__journal_mark mark;

    fresh();
    journal = open_log();
    add(journal, 1);
    mark = mb__journal_mark(journal);
    add(journal, 2);
    mb__journal_rewind(journal, &mark);
    add(journal, 3);
    mb__journal_close(journal);
    /* cppcheck-suppress uninitvar ; read_log() has filled what it returns */
    CHECK_EQ(read_log(&seen).records, 3);
    CHECK_EQ(seen.last_va, 3);
    unlink(path);
}

TEST(rewinding_takes_back_what_had_no_room)
{
    enum { ROOM = 1 << 20 }; /* records that are kept until a flush */
    struct mb__journal *journal;
    struct mb__journal_mark mark;
    struct seen seen;

    fresh();
    journal = open_log();
    mark = mb__journal_mark(journal);
    for (uint64_t i = 0; i < ROOM + 2; i++)
        add(journal, 2 * i + 1);
    CHECK_EQ(mb__journal_flush(journal), MB_ERR_IO);
    mb__journal_rewind(journal, &mark);
    CHECK_OK(mb__journal_flush(journal));
    add(journal, 3);
    mb__journal_close(journal);
    /* cppcheck-suppress uninitvar ; read_log() has filled what it returns */
    CHECK_EQ(read_log(&seen).records, 2);
    CHECK_EQ(seen.last_va, 3);
    unlink(path);
}
