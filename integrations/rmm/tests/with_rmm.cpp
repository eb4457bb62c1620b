/* SPDX-License-Identifier: MIT */
/* with_rmm.cpp - the resource behind RMM's own types, on the software GPU. Nothing here calls CUDA. */
#include "../moonbright_resource.hpp"

#include <rmm/resource_ref.hpp>

#include <cstdlib>

static_assert(cuda::mr::resource_with<moonbright::resource, cuda::mr::device_accessible>);
static_assert(!cuda::mr::resource_with<moonbright::resource, cuda::mr::host_accessible>);

int main()
{
    moonbright::resource memory{0, "backend:sim,device_memory:1GiB"};
    rmm::device_async_resource_ref ref{memory};
    rmm::device_resource_ref sync{memory};
    cuda::stream_ref stream{cudaStream_t{nullptr}};
    mb_stats stats{};
    bool refused = false;

    void *a = ref.allocate(stream, std::size_t{3} << 20, 256);
    void *b = sync.allocate_sync(1000, 256);
    if (mb_stats_get(memory.device(), &stats) || stats.live_blocks != 2)
        return 1;
    ref.deallocate(stream, a, std::size_t{3} << 20, 256);
    sync.deallocate_sync(b, 1000, 256);
    try {
        (void)ref.allocate(stream, std::size_t{4} << 30, 256);
    } catch (const rmm::out_of_memory &) {
        refused = true;
    }
    if (!refused || mb_stats_get(memory.device(), &stats) || stats.live_blocks)
        return 1;
    std::puts("ok");
    return 0;
}
