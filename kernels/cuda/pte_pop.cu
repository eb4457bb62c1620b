/* SPDX-License-Identifier: MIT */
/*
 * pte_pop.cu - entries written and the invalidate asked for by one block, on the caller's stream.
 *
 * One block of MB_POP_THREADS threads serves every batch size: a barrier inside the block is all
 * that "entries before ticket" needs, and a single SM stores faster than the launch takes.
 */
#include "kernels/cuda/program.h"
#include "kernels/pte_pop.h"

/* Words that the helper shares lie in device memory; it sees them at system scope. */
#define MB_TICKET_FN __device__ inline
#define MB_TICKET_LOAD(at) load_acquire(at)
#define MB_TICKET_PEEK(at) load_relaxed(at)
#define MB_TICKET_CAS(at, old, wanted)                                                             \
    atomicCAS(reinterpret_cast<unsigned long long *>(at), (unsigned long long)(old),               \
              (unsigned long long)(wanted))
#define MB_TICKET_MAX(at, value)                                                                   \
    ((void)atomicMax(reinterpret_cast<unsigned long long *>(at), (unsigned long long)(value)))

namespace
{

template <unsigned N> struct pop_params {
    struct mb_pop_head head;
    uint16_t list[N];
};

__device__ inline uint64_t load_acquire(uint64_t address)
{
    uint64_t v;

    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(address) : "memory");
    return v;
}

__device__ inline uint64_t load_relaxed(uint64_t address)
{
    uint64_t v;

    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(address) : "memory");
    return v;
}

#include "kernels/cuda/ticket.h"

__device__ inline uint64_t now_ns()
{
    uint64_t t;

    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}

/* The store of a whole slot: mb_pop_store() with the byte size known only at run time. */
__device__ inline void store_slot(uint64_t slots, uint32_t slot_bytes, uint32_t i, uint64_t lo)
{
    struct mb_pte pte;

    pte.lo = lo;
    pte.hi = 0;
    mb_pop_store(reinterpret_cast<uint64_t *>(slots), slot_bytes, i, pte);
}

#define MB_MORE_FN __device__ inline
#define MB_MORE_STORE(slots, slot_bytes, i, lo) store_slot(slots, slot_bytes, i, lo)
#include "kernels/cuda/more.h"

/* Frame numbers as they arrive: 16 bits in the parameters, with segments behind them, 32 in a list
 * in memory, with none. */
struct short_list {
    const uint16_t *list;
    __device__ void write_more(const struct mb_pop_head &head) const
    {
        if (head.segments > MB_POP_SEGMENTS)
            mb_pop_more(&head, list, threadIdx.x, blockDim.x);
    }
    __device__ uint32_t operator()(const struct mb_pop_head &head, uint32_t i) const
    {
        return head.base_pfn + ((uint32_t)list[i] << head.frame_shift);
    }
};

struct long_list {
    const uint32_t *list;
    __device__ void write_more(const struct mb_pop_head &) const
    {
    }
    __device__ uint32_t operator()(const struct mb_pop_head &, uint32_t i) const
    {
        return list[i];
    }
};

template <class List>
__device__ inline void write_entries(const struct mb_pop_head &head, const List &list)
{
    for (uint32_t s = 0; s < head.segments && s < MB_POP_SEGMENTS; s++) {
        const struct mb_pop_segment &seg = head.segment[s];

        for (uint32_t i = threadIdx.x; i < seg.count; i += blockDim.x) {
            uint64_t lo = seg.tmpl;

            if (seg.at != MB_POP_SAME)
                lo |= (uint64_t)list(head, seg.at + i) << head.pfn_shift;
            store_slot(seg.slots, head.slot_bytes, i, lo);
        }
    }
    list.write_more(head);
}

/* Ends the context rather than going on without the answer. */
__device__ inline void give_up(uint64_t value, uint64_t error_at)
{
    volatile uint64_t *error = reinterpret_cast<volatile uint64_t *>(error_at);

    error[1] = value;
    __threadfence_system();
    error[0] = MB_POP_NO_ANSWER;
    __threadfence_system();
    __trap();
}

__device__ inline void await(uint64_t answer, uint64_t value, uint64_t timeout_ns,
                             uint64_t error_at)
{
    uint64_t start = now_ns();

    while (!mb_ticket_answered(answer, value)) {
        if (now_ns() - start > timeout_ns)
            give_up(value, error_at);
    }
}

/* The clock is slow to read: only every 64th look at the answer is followed by one at the clock. */
__device__ inline void await_fast(uint64_t answer, uint64_t value, uint64_t timeout_ns,
                                  uint64_t error_at)
{
    uint64_t start = 0;

    for (uint32_t looks = 1; !mb_ticket_answered(answer, value); looks++) {
        if (looks % 64)
            continue;
        if (!start)
            start = now_ns();
        else if (now_ns() - start > timeout_ns)
            give_up(value, error_at);
    }
}

/* What must be seen before it has been made visible by a fence, or answered by the helper. */
__device__ inline void pass(uint64_t done, uint64_t value)
{
    if (done)
        asm volatile("st.relaxed.sys.global.u64 [%0], %1;" : : "l"(done), "l"(value) : "memory");
}

/* One thread's fence behind the barrier covers the stores of all (fences are cumulative), and the
 * words are asked for while the entries are on their way. */
template <class List>
__device__ inline void pop_fast(const struct mb_pop_head &head, const List &list)
{
    struct mb_ticket_seen seen = {0, 1};

    if (!threadIdx.x && head.flags & MB_POP_INVALIDATE)
        seen = mb_ticket_look(head.request, head.answer);
    write_entries(head, list);
    __syncthreads();
    if (threadIdx.x)
        return;
    __threadfence();
    if (head.flags & MB_POP_INVALIDATE)
        await_fast(head.answer, mb_ticket_fast(head.request, head.answer, seen), head.timeout_ns,
                   head.error);
    pass(head.done, head.done_value);
}

template <class List> __device__ inline void pop(const struct mb_pop_head &head, const List &list)
{
    if (head.flags & MB_POP_FAST) {
        pop_fast(head, list);
        return;
    }
    write_entries(head, list);
    __threadfence();
    __syncthreads();
    if (threadIdx.x)
        return;
    if (head.flags & MB_POP_INVALIDATE)
        await(head.answer, mb_ticket(head.request, head.answer), head.timeout_ns, head.error);
    pass(head.done, head.done_value);
}

/* The parameters' address as ordinary memory: lanes that read different words of constant memory
 * would be served one after the other. */
__device__ inline const uint16_t *as_memory(const uint16_t *p)
{
    const uint16_t *q;

    asm volatile("mov.u64 %0, %1;" : "=l"(q) : "l"(p));
    return q;
}

} // namespace

extern "C" {

__global__ void __launch_bounds__(MB_POP_THREADS)
    mb_pop_s(const __grid_constant__ pop_params<MB_POP_LIST_S> p)
{
    pop(p.head, short_list{as_memory(p.list)});
}

__global__ void __launch_bounds__(MB_POP_THREADS)
    mb_pop_m(const __grid_constant__ pop_params<MB_POP_LIST_M> p)
{
    pop(p.head, short_list{as_memory(p.list)});
}

__global__ void __launch_bounds__(MB_POP_THREADS)
    mb_pop_l(const __grid_constant__ pop_params<MB_POP_LIST_L> p)
{
    pop(p.head, short_list{as_memory(p.list)});
}

__global__ void __launch_bounds__(MB_POP_THREADS)
    mb_pop_xl(const __grid_constant__ pop_params<MB_POP_LIST_XL> p)
{
    pop(p.head, short_list{as_memory(p.list)});
}

/* The list lies in pinned host memory (or anywhere the device can read). */
__global__ void __launch_bounds__(MB_POP_THREADS)
    mb_pop_ring(const __grid_constant__ struct mb_pop_head head)
{
    pop(head, long_list{reinterpret_cast<const uint32_t *>(head.list)});
}

__global__ void mb_await(const __grid_constant__ struct mb_await a)
{
    if (a.announce)
        asm volatile("st.release.sys.global.u64 [%0], %1;"
                     :
                     : "l"(a.announce), "l"(a.announce_value)
                     : "memory");
    if (a.flags & MB_POP_FAST)
        await_fast(a.answer, a.answer_value, a.timeout_ns, a.error);
    else
        await(a.answer, a.answer_value, a.timeout_ns, a.error);
    pass(a.done, a.done_value);
}

/* Ends the context on purpose: what a dead helper leaves waiting must not wait for ever. */
__global__ void mb_trap()
{
    __trap();
}

/* Does nothing: the floor that costs are compared with. */
__global__ void mb_nop()
{
}
}
