/* SPDX-License-Identifier: MIT */
/*
 * pte_pop.cu - entries written and the invalidate asked for by one block, on the caller's stream.
 *
 * One block of MB_POP_THREADS threads serves every batch size: a barrier inside the block is all that
 * "entries before ticket" needs, and a single SM stores faster than the launch takes.
 */
#include "kernels/cuda/program.h"
#include "kernels/pte_pop.h"

namespace
{

template <unsigned N> struct pop_params {
    struct mb_pop_head head;
    uint32_t list[N];
};

__device__ inline uint64_t load_acquire(uint64_t address)
{
    uint64_t v;

    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(address) : "memory");
    return v;
}

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

__device__ inline void write_entries(const struct mb_pop_head &head, const uint32_t *list)
{
    for (uint32_t s = 0; s < head.segments; s++) {
        const struct mb_pop_segment &seg = head.segment[s];

        for (uint32_t i = threadIdx.x; i < seg.count; i += blockDim.x) {
            uint64_t lo = seg.tmpl;

            if (seg.at != MB_POP_SAME)
                lo |= (uint64_t)list[seg.at + i] << head.pfn_shift;
            store_slot(seg.slots, head.slot_bytes, i, lo);
        }
    }
}

/* See program.h. Ends the context rather than returning without an answer. */
__device__ void invalidate(const struct mb_pop_head &head)
{
    uint64_t request = load_acquire(head.request);
    uint64_t answer = load_acquire(head.answer);
    uint64_t ticket = request + 1;
    uint64_t start;

    if ((int64_t)(answer + 2 - ticket) < 0)
        ticket = answer + 2;
    if ((int64_t)(ticket - request) > 0) {
        atomicMax(reinterpret_cast<unsigned long long *>(head.request),
                  (unsigned long long)ticket);
    }
    start = now_ns();
    while ((int64_t)(load_acquire(head.answer) - ticket) < 0) {
        if (now_ns() - start > head.timeout_ns) {
            volatile uint64_t *error = reinterpret_cast<volatile uint64_t *>(head.error);

            error[1] = ticket;
            __threadfence_system();
            error[0] = MB_POP_NO_ANSWER;
            __threadfence_system();
            __trap();
        }
    }
}

__device__ inline void pop(const struct mb_pop_head &head, const uint32_t *list)
{
    write_entries(head, list);
    __threadfence();
    __syncthreads();
    if (threadIdx.x)
        return;
    if (head.flags & MB_POP_INVALIDATE) {
        __threadfence();
        invalidate(head);
    }
    if (head.done) {
        __threadfence_system();
        asm volatile("st.release.sys.global.u64 [%0], %1;"
                     :
                     : "l"(head.done), "l"(head.done_value)
                     : "memory");
    }
}

} // namespace

extern "C" {

__global__ void __launch_bounds__(MB_POP_THREADS)
    mb_pop_s(const __grid_constant__ pop_params<MB_POP_LIST_S> p)
{
    pop(p.head, p.list);
}

__global__ void __launch_bounds__(MB_POP_THREADS)
    mb_pop_m(const __grid_constant__ pop_params<MB_POP_LIST_M> p)
{
    pop(p.head, p.list);
}

__global__ void __launch_bounds__(MB_POP_THREADS)
    mb_pop_l(const __grid_constant__ pop_params<MB_POP_LIST_L> p)
{
    pop(p.head, p.list);
}

/* The list lies in pinned host memory (or anywhere the device can read). */
__global__ void __launch_bounds__(MB_POP_THREADS)
    mb_pop_ring(const __grid_constant__ struct mb_pop_head head)
{
    pop(head, reinterpret_cast<const uint32_t *>(head.list));
}

/* Ends the context on purpose: what a dead helper leaves waiting must not wait for ever. */
__global__ void mb_trap()
{
    __trap();
}

/* Does nothing: the floor that costs are compared with. */
__global__ void mb_nop() {}
}
