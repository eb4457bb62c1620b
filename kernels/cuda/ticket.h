/* SPDX-License-Identifier: MIT */
/*
 * ticket.h - how a kernel asks the helper for an invalidate; the protocol is in program.h.
 *
 * One body for the device and for the host's test of it. Whoever includes it defines how words of
 * shared memory are read and changed: MB_TICKET_FN, MB_TICKET_LOAD (acquire), MB_TICKET_PEEK
 * (relaxed), MB_TICKET_CAS (returns what was there) and MB_TICKET_MAX; an address is a uint64_t.
 *
 * ORDER     The caller's entries are visible before mb_ticket() and mb_ticket_fast() are called.
 */
#ifndef MB_KERNELS_CUDA_TICKET_H
#define MB_KERNELS_CUDA_TICKET_H

#include <stdint.h>

/* The smallest ticket whose invalidate has not started, `found` being a value of request that was
 * read after the entries were visible; raises request to it. */
MB_TICKET_FN uint64_t mb_ticket_behind(uint64_t request_at, uint64_t answer_at, uint64_t found)
{
    uint64_t answer = MB_TICKET_LOAD(answer_at);
    uint64_t ticket = found + 1;

    if ((int64_t)(answer + 2 - ticket) < 0)
        ticket = answer + 2;
    if ((int64_t)(ticket - found) > 0)
        MB_TICKET_MAX(request_at, ticket);
    return ticket;
}

MB_TICKET_FN uint64_t mb_ticket(uint64_t request_at, uint64_t answer_at)
{
    return mb_ticket_behind(request_at, answer_at, MB_TICKET_LOAD(request_at));
}

/* Both words before the entries are written; idle if they are equal. */
struct mb_ticket_seen {
    uint64_t request, answer;
};

MB_TICKET_FN struct mb_ticket_seen mb_ticket_look(uint64_t request_at, uint64_t answer_at)
{
    struct mb_ticket_seen seen;

    seen.request = MB_TICKET_PEEK(request_at);
    seen.answer = MB_TICKET_PEEK(answer_at);
    return seen;
}

MB_TICKET_FN uint64_t mb_ticket_fast(uint64_t request_at, uint64_t answer_at,
                                     struct mb_ticket_seen seen)
{
    uint64_t found;

    if (seen.request != seen.answer)
        return mb_ticket(request_at, answer_at);
    found = MB_TICKET_CAS(request_at, seen.request, seen.request + 1);
    return found == seen.request ? found + 1 : mb_ticket_behind(request_at, answer_at, found);
}

MB_TICKET_FN int mb_ticket_answered(uint64_t answer_at, uint64_t ticket)
{
    return (int64_t)(MB_TICKET_LOAD(answer_at) - ticket) >= 0;
}

#endif
