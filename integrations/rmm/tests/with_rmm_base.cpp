/* SPDX-License-Identifier: MIT */
/* with_rmm_base.cpp - the same for RMM before it turned to concepts: a base class. */
#include "../moonbright_resource.hpp"

#ifndef MOONBRIGHT_HAS_RMM_BASE
#error "this RMM has no base class"
#endif

int main()
{
    moonbright::device_memory_resource memory{0, "backend:sim,device_memory:1GiB"};
    rmm::mr::device_memory_resource *base = &memory;
    rmm::cuda_stream_view stream;
    mb_stats stats{};
    bool refused = false;

    void *a = base->allocate(std::size_t{3} << 20, stream);
    if (!base->is_equal(memory) || mb_stats_get(memory.device(), &stats) || stats.live_blocks != 1)
        return 1;
    base->deallocate(a, std::size_t{3} << 20, stream);
    try {
        (void)base->allocate(std::size_t{4} << 30, stream);
    } catch (const rmm::out_of_memory &) {
        refused = true;
    }
    if (!refused || mb_stats_get(memory.device(), &stats) || stats.live_blocks)
        return 1;
    std::puts("ok");
    return 0;
}
