/* SPDX-License-Identifier: MIT */
/*
 * journal.c - see journal.h.
 *
 * Tearing   A write of many pages that a fatal signal interrupts ends early, and a page of the file
 *           or of the source is the smallest step in which Linux copies. Records are a power of two
 *           and lie on multiples of it, in the file and in memory, so every such place is the end
 *           of a record.
 * Lists     Frames that lie scattered, mapped one behind the other, would need a record each. Such
 *           a record is followed by ones that hold nothing but frame numbers: the k-th says what
 *           the k-th piece behind the head shows, all else is as in the head. Readers are told of
 *           each piece as if it had a record of its own.
 * Trade-off A record is written as it lies in memory: files are read on the machine, or the kind of
 *           machine, that wrote them. The checksum is CRC-32C, since processors have an instruction
 *           for it; without one a table of 16 words serves.
 */
#include "base/journal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/err.h"
#include "base/file.h"

enum {
    MAGIC = 0x324a424d,     /* "MBJ2" */
    MAGIC_96 = 0x314a424d,  /* "MBJ1": records of 96 bytes, before they had to end with pages */
    BUFFERED_MAX = 1 << 20, /* records kept while the file cannot be written: 128 MiB */
    CHUNK = 1024,           /* records read at a time */
    LIST = 0xff,            /* kind, in the file only: a list that goes on where its head ended */
    LIST_FIRST = 14,        /* frame numbers before the kind */
    LIST_MAX = 27,          /* in one record */
};

/* One record in the file. */
struct disk {
    uint32_t magic;
    uint32_t crc; /* of everything behind it */
    uint64_t sequence, time_ns, batch, va, bytes, phys, stream;
    uint32_t pid, owner;
    uint8_t kind, prot;
    char call[MB_AUDIT_CALL];
};
_Static_assert(sizeof(struct disk) == MB_JOURNAL_BYTES, "the layout is documented");

/* A record of kind LIST. A frame number is a physical address divided by the head's bytes. */
struct list {
    uint32_t magic;
    uint32_t crc;
    uint64_t sequence;
    uint32_t first[LIST_FIRST];
    uint8_t kind, count; /* count: frame numbers, 1 to LIST_MAX */
    uint16_t zero;
    uint32_t rest[LIST_MAX - LIST_FIRST];
};
_Static_assert(sizeof(struct list) == sizeof(struct disk), "records are of one size");
_Static_assert(offsetof(struct list, kind) == offsetof(struct disk, kind), "kinds are compared");
_Static_assert((MB_JOURNAL_BYTES & (MB_JOURNAL_BYTES - 1)) == 0, "pages end with a record");

struct mb__journal {
    int fd;
    pid_t pid;              /* of the opening process */
    uint64_t bytes;         /* of the file: whole records */
    uint64_t sequence;      /* of the last record added */
    uint64_t lost;          /* records that could not be buffered */
    bool torn;              /* part of a record is in the file and could not be cut off */
    void *memory;           /* of buffer, as malloc gave it */
    struct disk *buffer;    /* not written yet; aligned to a record */
    size_t count, capacity; /* of buffer: records */
    size_t head;            /* in buffer: what a list may follow; SIZE_MAX: nothing */
    const char *head_call;  /* caller.call of the head */
    unsigned shift;         /* log2 of the head's bytes */
    uint32_t pieces;        /* of the head and its lists */
};

static _Thread_local struct {
    const char *call;
    const void *stream;
} caller;

void mb__caller_set(const char *call, const void *stream)
{
    caller.call = call;
    caller.stream = stream;
}

/* ------------------------------------------------------------------ records */

/* CRC-32C of a multiple of 8 bytes, four bits a step. */
static uint32_t crc32c_table(const void *data, size_t bytes)
{
    static const uint32_t table[16] = {
        0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3,
        0x61c69362, 0x7198540d, 0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9,
        0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75,
    };
    const uint8_t *p = data;
    uint32_t crc = UINT32_MAX;

    for (size_t i = 0; i < bytes; i++) {
        crc ^= p[i];
        crc = crc >> 4 ^ table[crc & 15];
        crc = crc >> 4 ^ table[crc & 15];
    }
    return ~crc;
}

#ifdef __x86_64__
__attribute__((target("sse4.2"))) static uint32_t crc32c_fast(const void *data, size_t bytes)
{
    const uint64_t *p = data;
    uint64_t crc = UINT32_MAX;

    for (size_t i = 0; i < bytes / sizeof(*p); i++)
        crc = __builtin_ia32_crc32di(crc, p[i]);
    return ~(uint32_t)crc;
}
#endif

static uint32_t crc32c(const void *data, size_t bytes)
{
#ifdef __x86_64__
    if (__builtin_cpu_supports("sse4.2"))
        return crc32c_fast(data, bytes);
#endif
    return crc32c_table(data, bytes);
}

static uint32_t crc_of(const struct disk *disk)
{
    return crc32c(&disk->sequence, sizeof(*disk) - offsetof(struct disk, sequence));
}

static struct list *list_of(struct disk *disk)
{
    return (struct list *)(void *)disk;
}

static uint32_t *frame_in(struct list *list, unsigned i)
{
    return i < LIST_FIRST ? &list->first[i] : &list->rest[i - LIST_FIRST];
}

static bool valid(const struct disk *disk)
{
    /* Where an ordinary record has its access, a list has its count. */
    return disk->magic == MAGIC && disk->crc == crc_of(disk) &&
           (disk->kind < MB_AUDIT_KINDS ||
            (disk->kind == LIST && disk->prot > 0 && disk->prot <= LIST_MAX));
}

static void from_disk(const struct disk *disk, struct mb_audit_record *out)
{
    *out = (struct mb_audit_record){
        .kind = (enum mb_audit_kind)disk->kind,
        .prot = (enum mb_prot)disk->prot,
        .sequence = disk->sequence,
        .time_ns = disk->time_ns,
        .batch = disk->batch,
        .va = disk->va,
        .bytes = disk->bytes,
        .phys = disk->phys,
        .stream = disk->stream,
        .pid = disk->pid,
        .owner = disk->owner,
    };
    memcpy(out->call, disk->call, sizeof(out->call));
    out->call[sizeof(out->call) - 1] = 0;
}

/* ------------------------------------------------------------------ writing */

/* Room for one more record. */
static bool reserve(struct mb__journal *journal)
{
    size_t capacity = journal->capacity ? 2 * journal->capacity : 64;
    void *memory;
    struct disk *buffer;

    if (journal->count < journal->capacity)
        return true;
    memory = malloc((capacity + 1) * sizeof(*buffer));
    if (!memory)
        return false;
    buffer = (struct disk *)(((uintptr_t)memory + sizeof(*buffer) - 1) & -sizeof(*buffer));
    if (journal->count)
        memcpy(buffer, journal->buffer, journal->count * sizeof(*buffer));
    free(journal->memory);
    journal->memory = memory;
    journal->buffer = buffer;
    journal->capacity = capacity;
    return true;
}

static enum mb_err io_error(const char *what, const char *path)
{
    return mb__fail(errno == ENOMEM ? MB_ERR_HOST_MEMORY : MB_ERR_IO, "audit log%s%s: %s: %s",
                    path ? " " : "", path ? path : "", what, strerror(errno));
}

static bool old_format(int fd)
{
    uint32_t magic = 0;

    return pread(fd, &magic, sizeof(magic), 0) == sizeof(magic) && magic == MAGIC_96;
}

/* Whole, valid records at the file's beginning; a tail behind them is cut off. A file that does not
 * begin with a record is left alone. */
static enum mb_err find_end(struct mb__journal *journal, const char *path)
{
    struct stat st;
    struct disk disk;

    if (fstat(journal->fd, &st))
        return io_error("its size cannot be had", path);
    if (!S_ISREG(st.st_mode))
        return mb__fail(MB_ERR_IO, "audit log %s: it is no regular file", path);
    journal->bytes = (uint64_t)st.st_size / sizeof(disk) * sizeof(disk);
    if (st.st_size &&
        (pread(journal->fd, &disk, sizeof(disk), 0) != sizeof(disk) || disk.magic != MAGIC))
        return mb__fail(MB_ERR_CORRUPT,
                        "audit log %s: it holds something else%s; name a file that does not exist",
                        path, old_format(journal->fd) ? " (a log of an older version)" : "");
    while (journal->bytes && (pread(journal->fd, &disk, sizeof(disk),
                                    (off_t)(journal->bytes - sizeof(disk))) != sizeof(disk) ||
                              !valid(&disk)))
        journal->bytes -= sizeof(disk);
    if (journal->bytes != (uint64_t)st.st_size && ftruncate(journal->fd, (off_t)journal->bytes))
        return io_error("its torn end cannot be cut off", path);
    return MB_OK;
}

enum mb_err mb__journal_open(const char *path, const char *device, struct mb__journal **out)
{
    struct mb__journal *journal = calloc(1, sizeof(*journal));
    struct mb_audit_record session = {.kind = MB_AUDIT_SESSION};
    enum mb_err err;

    if (!journal)
        return mb__fail(MB_ERR_HOST_MEMORY, "no host memory for the audit log");
    journal->pid = getpid();
    journal->head = SIZE_MAX;
    journal->fd =
        open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (journal->fd < 0) {
        err = io_error("it cannot be opened", path);
        goto undo_memory;
    }
    if (flock(journal->fd, LOCK_EX | LOCK_NB)) {
        err = errno == EWOULDBLOCK
                  ? mb__fail(MB_ERR_BUSY,
                             "audit log %s: another device writes it; name another file", path)
                  : io_error("it cannot be locked", path);
        goto undo_fd;
    }
    err = find_end(journal, path);
    if (err)
        goto undo_fd;
    mb__caller_set(device, NULL);
    mb__journal_add(journal, session);
    mb__caller_set("mb_open", NULL);
    err = mb__journal_flush(journal);
    if (err)
        goto undo_buffer;
    *out = journal;
    return MB_OK;

undo_buffer:
    free(journal->memory);
undo_fd:
    close(journal->fd);
undo_memory:
    free(journal);
    return err;
}

void mb__journal_close(struct mb__journal *journal)
{
    if (!journal)
        return;
    if (journal->pid == getpid())
        (void)mb__journal_flush(journal);
    close(journal->fd);
    free(journal->memory);
    free(journal);
}

static uint64_t stream_of(const struct mb_audit_record *record)
{
    return record->stream ? record->stream : (uint64_t)(uintptr_t)caller.stream;
}

/* May the record be a piece of the list behind the head? */
static bool continues(const struct mb__journal *journal, const struct mb_audit_record *next)
{
    const struct disk *head;

    if (journal->head == SIZE_MAX)
        return false;
    head = &journal->buffer[journal->head];
    return next->va == head->va + head->bytes * journal->pieces && head->bytes == next->bytes &&
           head->kind == (uint8_t)next->kind && head->prot == (uint8_t)next->prot &&
           head->batch == next->batch && head->owner == next->owner &&
           head->stream == stream_of(next) && journal->head_call == caller.call &&
           !(next->phys & (next->bytes - 1)) && next->phys >> journal->shift <= UINT32_MAX;
}

/* Puts the piece into the last list, or into a new one. False: no memory. */
static bool add_piece(struct mb__journal *journal, uint64_t phys)
{
    struct list *list = list_of(&journal->buffer[journal->count - 1]);

    if (list->kind != LIST || list->count == LIST_MAX) {
        if (journal->count >= BUFFERED_MAX || !reserve(journal))
            return false;
        list = list_of(&journal->buffer[journal->count++]);
        *list = (struct list){.magic = MAGIC, .sequence = ++journal->sequence, .kind = LIST};
    }
    *frame_in(list, list->count++) = (uint32_t)(phys >> journal->shift);
    journal->pieces++;
    return true;
}

void mb__journal_add(struct mb__journal *journal, struct mb_audit_record record)
{
    struct timespec now;
    struct disk *disk;

    if (continues(journal, &record) && add_piece(journal, record.phys))
        return;
    clock_gettime(CLOCK_REALTIME, &now);
    journal->sequence++;
    if (journal->count >= BUFFERED_MAX || !reserve(journal)) {
        journal->lost++;
        return;
    }
    /* Frame numbers of a list are addresses shifted by the head's size. */
    journal->head =
        record.bytes && !(record.bytes & (record.bytes - 1)) ? journal->count : SIZE_MAX;
    journal->head_call = caller.call;
    journal->shift = record.bytes ? (unsigned)__builtin_ctzll(record.bytes) : 0;
    journal->pieces = 1;
    disk = &journal->buffer[journal->count++];
    *disk = (struct disk){
        .magic = MAGIC,
        .sequence = journal->sequence,
        .time_ns = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec,
        .batch = record.batch,
        .va = record.va,
        .bytes = record.bytes,
        .phys = record.phys,
        .stream = stream_of(&record),
        .pid = (uint32_t)journal->pid,
        .owner = record.owner,
        .kind = (uint8_t)record.kind,
        .prot = (uint8_t)record.prot,
    };
    if (caller.call)
        strncpy(disk->call, caller.call, sizeof(disk->call) - 1);
}

enum mb_err mb__journal_flush(struct mb__journal *journal)
{
    size_t bytes = journal->count * sizeof(struct disk);
    ssize_t wrote;

    if (journal->lost)
        return mb__fail(MB_ERR_IO, "audit log: %llu records could not be kept; close the device",
                        (unsigned long long)journal->lost);
    if (journal->torn)
        return mb__fail(MB_ERR_IO, "audit log: a record was written in part; close the device");
    if (!bytes)
        return MB_OK;
    for (size_t i = 0; i < journal->count; i++)
        journal->buffer[i].crc = crc_of(&journal->buffer[i]);
    journal->head = SIZE_MAX; /* what is in the file, whole or in part, is not added to */
    do {
        wrote = write(journal->fd, journal->buffer, bytes);
    } while (wrote < 0 && errno == EINTR);
    if (wrote == (ssize_t)bytes) {
        journal->bytes += bytes;
        journal->count = 0;
        return MB_OK;
    }
    /* A full disk may have taken a part. */
    if (wrote > 0) {
        errno = ENOSPC;
        if (ftruncate(journal->fd, (off_t)journal->bytes))
            journal->torn = true;
    }
    return io_error("records cannot be written", NULL);
}

struct mb__journal_mark mb__journal_mark(struct mb__journal *journal)
{
    journal->head = SIZE_MAX; /* what is forgotten later is whole records */
    return (struct mb__journal_mark){journal->count, journal->sequence, journal->lost};
}

void mb__journal_rewind(struct mb__journal *journal, const struct mb__journal_mark *mark)
{
    journal->count = mark->count;
    journal->sequence = mark->sequence;
    journal->lost = mark->lost;
    journal->head = SIZE_MAX;
}

/* ------------------------------------------------------------------ reading */

struct reader {
    FILE *file;
    mb_audit_visit visit;
    void *user;
    struct mb_audit_summary sum;
    uint64_t at;                 /* bytes: of the next record */
    uint64_t bad_at;             /* of the first bad one; UINT64_MAX: none */
    uint64_t sequence;           /* expected next */
    struct mb_audit_record head; /* what a list may follow; bytes 0: nothing */
    uint32_t pieces;             /* of the head and its lists */
};

/* Tells of each piece of a list. False: it follows no record that it could belong to. */
static bool take_list(struct reader *reader, struct disk *disk)
{
    struct list *list = list_of(disk);

    if (!reader->head.bytes)
        return false;
    for (unsigned i = 0; i < list->count; i++) {
        struct mb_audit_record record = reader->head;

        record.sequence = list->sequence;
        record.va += record.bytes * reader->pieces++;
        record.phys = *frame_in(list, i) * record.bytes;
        reader->sum.records++;
        if (reader->visit)
            reader->visit(reader->user, &record);
    }
    return true;
}

static enum mb_err take(struct reader *reader, struct disk *disk, const char *path)
{
    struct mb_audit_record record;

    if (reader->bad_at != UINT64_MAX)
        return mb__fail(MB_ERR_CORRUPT,
                        "audit log %s: the record at byte %llu is damaged, and others follow", path,
                        (unsigned long long)reader->bad_at);
    from_disk(disk, &record);
    if (disk->kind == MB_AUDIT_SESSION) {
        reader->sum.sessions++;
        reader->sequence = 1;
        reader->sum.closed = false;
    }
    if (!reader->sum.sessions || record.sequence != reader->sequence)
        return mb__fail(
            MB_ERR_CORRUPT,
            "audit log %s: at byte %llu stands record %llu of its session, expected %llu", path,
            (unsigned long long)reader->at, (unsigned long long)record.sequence,
            (unsigned long long)reader->sequence);
    reader->sequence++;
    if (disk->kind == LIST) {
        if (take_list(reader, disk))
            return MB_OK;
        return mb__fail(MB_ERR_CORRUPT, "audit log %s: at byte %llu stands a list without its head",
                        path, (unsigned long long)reader->at);
    }
    reader->head = record;
    /* What the writer makes no head is none here: a session, or bytes that are no power of two. */
    if (disk->kind == MB_AUDIT_SESSION || record.bytes & (record.bytes - 1))
        reader->head.bytes = 0;
    reader->pieces = 1;
    reader->sum.records++;
    reader->sum.closed = record.kind == MB_AUDIT_CLOSE;
    if (reader->visit)
        reader->visit(reader->user, &record);
    return MB_OK;
}

static enum mb_err read_all(struct reader *reader, const char *path)
{
    struct disk chunk[CHUNK];
    size_t bytes;
    enum mb_err err = MB_OK;

    while (!err && (bytes = fread(chunk, 1, sizeof(chunk), reader->file)) > 0) {
        size_t count = bytes / sizeof(chunk[0]);

        for (size_t i = 0; !err && i < count; i++, reader->at += sizeof(chunk[0])) {
            if (valid(&chunk[i]))
                err = take(reader, &chunk[i], path);
            else if (reader->bad_at == UINT64_MAX)
                reader->bad_at = reader->at;
        }
        if (bytes % sizeof(chunk[0]) && reader->bad_at == UINT64_MAX)
            reader->bad_at = reader->at;
        reader->at += bytes % sizeof(chunk[0]);
        if (!err && !reader->sum.records && !reader->bad_at) /* no log, perhaps without an end */
            break;
    }
    if (!err && ferror(reader->file))
        err = io_error("it cannot be read", path);
    if (reader->bad_at != UINT64_MAX)
        reader->sum.tail_bytes = reader->at - reader->bad_at;
    return err;
}

enum mb_err mb__journal_read(const char *path, mb_audit_visit visit, void *user,
                             struct mb_audit_summary *out)
{
    struct reader reader = {.visit = visit, .user = user, .bad_at = UINT64_MAX};
    const char *problem = "";
    enum mb_err err;
    bool old;

    reader.file = mb__file_open(path, &problem);
    if (!reader.file)
        return mb__fail(errno == ENOMEM ? MB_ERR_HOST_MEMORY : MB_ERR_IO,
                        "audit log %s: it cannot be opened: %s", path, problem);
    old = old_format(fileno(reader.file));
    err = read_all(&reader, path);
    fclose(reader.file);
    if (!err && !reader.sum.records && reader.at)
        err = mb__fail(MB_ERR_PARSE, "%s: it is no audit log of this version%s", path,
                       old ? "; an older version wrote it" : "");
    if (!err && out)
        *out = reader.sum;
    return err;
}
