/* SPDX-License-Identifier: MIT */
/* concept.cpp - the resource on the software GPU, with nothing of RMM or CUDA: what the concept of
 * cuda::mr asks for, spelled out. */
#include "../moonbright_resource.hpp"

#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

#define MUST(condition)                                                                            \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                   \
            std::exit(1);                                                                          \
        }                                                                                          \
    } while (0)

struct stream_ref { // as cuda::stream_ref
    mb_stream stream;
    mb_stream get() const
    {
        return stream;
    }
};
struct stream_view { // as rmm::cuda_stream_view
    mb_stream stream;
    mb_stream value() const
    {
        return stream;
    }
};

using R = moonbright::resource;
static_assert(std::is_same_v<void *, decltype(std::declval<R &>().allocate(
                                         stream_ref{}, std::size_t{1}, std::size_t{1}))>);
static_assert(noexcept(std::declval<R &>().deallocate(stream_ref{}, nullptr, std::size_t{1},
                                                      std::size_t{1})));
static_assert(std::is_same_v<void *, decltype(std::declval<R &>().allocate_sync(std::size_t{1},
                                                                                std::size_t{1}))>);
static_assert(noexcept(std::declval<R &>().deallocate_sync(nullptr, std::size_t{1},
                                                           std::size_t{1})));
static_assert(std::is_copy_constructible_v<R> && std::is_nothrow_move_constructible_v<R>);

template <class Stream> static void use(R &memory, mb_stream native)
{
    std::vector<std::pair<void *, std::size_t>> blocks;

    for (std::size_t i = 1; i < 40; i++) {
        std::size_t bytes = i * 77777 / 8 * 8;
        void *p = memory.allocate(Stream{native}, bytes, 256);

        MUST(!mb_fill_async(memory.device(), p, bytes, i, native));
        blocks.push_back({p, bytes});
    }
    for (std::size_t i = 1; i < 40; i++) {
        MUST(!mb_verify_async(memory.device(), blocks[i - 1].first, blocks[i - 1].second, i,
                              native));
        memory.deallocate(Stream{native}, blocks[i - 1].first, blocks[i - 1].second, 256);
    }
}

/* On a stand-in for libcuda whose device memory is this process's: a block may be used with CUDA's
 * own calls as soon as it is there, also one that was composed of what others left. */
static int driver_tables()
{
    constexpr std::size_t small = std::size_t{3} << 20, large = std::size_t{16} << 20;
    R memory{0, "backend:cuda,tables:driver"};
    mb_stream stream = nullptr;
    std::vector<void *> blocks;
    struct mb_pointer_info info = {};
    unsigned stitched = 0;

    MUST(std::string{mb_device_tables(memory.device())} == "driver");
    MUST(!mb_stream_create(memory.device(), &stream));
    for (unsigned round = 0; round < 20; round++) {
        for (unsigned i = 0; i < 40; i++)
            blocks.push_back(memory.allocate(stream_ref{stream}, small));
        for (unsigned i = 0; i < 40; i += 2)
            memory.deallocate(stream_ref{stream}, blocks[i], small);
        for (unsigned i = 0; i < 3; i++) {
            void *p = memory.allocate(stream_ref{stream}, large + (std::size_t{round} << 21));

            std::memset(p, 1, large);
            MUST(!mb_pointer_info(memory.device(), p, &info));
            stitched += info.stitched;
            memory.deallocate(stream_ref{stream}, p, large);
        }
        for (unsigned i = 1; i < 40; i += 2)
            memory.deallocate(stream_ref{stream}, blocks[i], small);
        blocks.clear();
    }
    MUST(stitched);
    MUST(!mb_device_sync(memory.device()));
    MUST(!mb_stream_destroy(memory.device(), stream));
    std::printf("ok: %u stitched\n", stitched);
    return 0;
}

using create_fn = int (*)(mb_stream *, unsigned);
using destroy_fn = int (*)(mb_stream);

/* A composed block, freed behind work on a stream that ends then: its addresses are cleared later,
 * and not on that stream. */
static bool composed_and_gone(R &memory, create_fn create, destroy_fn destroy)
{
    constexpr std::size_t small = std::size_t{3} << 20, large = std::size_t{16} << 20;
    mb_stream stream = nullptr;
    std::vector<void *> blocks;
    struct mb_pointer_info info = {};

    MUST(!create(&stream, 0));
    for (unsigned i = 0; i < 40; i++)
        blocks.push_back(memory.allocate(stream_ref{stream}, small));
    for (unsigned i = 0; i < 40; i += 2)
        memory.deallocate(stream_ref{stream}, blocks[i], small);
    void *p = memory.allocate(stream_ref{stream}, large);
    MUST(!mb_pointer_info(memory.device(), p, &info));
    for (unsigned i = 0; i < 8; i++)
        MUST(!mb_fill_async(memory.device(), p, large, i, stream));
    memory.deallocate(stream_ref{stream}, p, large);
    for (unsigned i = 1; i < 40; i += 2)
        memory.deallocate(stream_ref{stream}, blocks[i], small);
    MUST(!destroy(stream));
    return info.stitched;
}

/* Streams of the vendor's come and go without a word, and what was freed on them serves others. */
static int short_streams()
{
    constexpr std::size_t bytes = std::size_t{5} << 20;
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW), *context = nullptr;
    MUST(cuda);
    auto retain = reinterpret_cast<int (*)(void **, int)>(dlsym(cuda, "cuDevicePrimaryCtxRetain"));
    auto enter = reinterpret_cast<int (*)(void *)>(dlsym(cuda, "cuCtxSetCurrent"));
    auto create = reinterpret_cast<create_fn>(dlsym(cuda, "cuStreamCreate"));
    auto destroy = reinterpret_cast<destroy_fn>(dlsym(cuda, "cuStreamDestroy_v2"));
    unsigned stitched = 0;
    MUST(retain && enter && create && destroy);
    {
        R memory{0, "backend:cuda,tables:driver,device_memory:1GiB,window_cache:64MiB"};

        MUST(!retain(&context, 0) && !enter(context));

        for (unsigned round = 0; round < 30; round++) {
            mb_stream one = nullptr, other = nullptr;
            std::vector<void *> blocks;

            MUST(!create(&one, 0) && !create(&other, 0));
            for (unsigned i = 0; i < 20; i++)
                blocks.push_back(
                    memory.allocate(stream_ref{i % 2 ? one : other}, i % 3 ? bytes : 900));
            for (unsigned i = 0; i < 20; i++)
                memory.deallocate(stream_ref{i % 2 ? one : other}, blocks[i], 0);
            MUST(!destroy(one) && !destroy(other));
            void *p = memory.allocate(stream_ref{nullptr}, 30 * bytes);
            memory.deallocate(stream_ref{nullptr}, p, 0);
            stitched += composed_and_gone(memory, create, destroy);
        }
        MUST(stitched);
    } /* closed: that must not look at them either */
    std::puts("ok: short-lived streams");
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 2 && std::string{argv[1]} == "driver")
        return driver_tables();
    if (argc == 2 && std::string{argv[1]} == "streams")
        return short_streams();
    R memory{0, "backend:sim,device_memory:1GiB"};
    R copy = memory;
    mb_stream stream = nullptr;
    mb_stats stats{};
    int refused = 0;

    MUST(copy == memory && !(copy != memory));
    MUST(!mb_stream_create(memory.device(), &stream));
    use<stream_ref>(memory, stream);
    use<stream_view>(copy, nullptr);
    void *p = memory.allocate_sync(1 << 20);
    memory.deallocate_sync(p, 1 << 20);
    try {
        (void)memory.allocate(stream_ref{stream}, std::size_t{4} << 30);
    } catch (const std::bad_alloc &e) {
        refused += std::string{e.what()}.find("MB_ERR_NO_MEMORY") != std::string::npos;
    }
    try {
        (void)memory.allocate(stream_ref{stream}, 64, 4096);
    } catch (const moonbright::bad_alloc &) {
        refused++;
    }
    MUST(refused == 2);
    R borrowed{memory.device()};
    MUST(borrowed == memory);
    MUST(!mb_device_sync(memory.device()) && !mb_stats_get(memory.device(), &stats));
    MUST(stats.wrong_words == 0 && stats.wrong_accesses == 0 && stats.live_blocks == 0);
    MUST(!mb_stream_destroy(memory.device(), stream));
    std::puts("ok");
    return 0;
}
