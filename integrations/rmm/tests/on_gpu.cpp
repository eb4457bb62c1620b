/* SPDX-License-Identifier: MIT */
/*
 * on_gpu.cpp - RMM's buffers on MoonBright's memory on an NVIDIA GPU.
 *
 *     on_gpu CONFIG         as in mb_open(), for example backend:cuda,tables:inline
 *
 * Everything goes through RMM: its current device resource, device_buffer, streams. CUDA fills the
 * buffers and copies them back, so wrong translations show as wrong bytes. Exit status 0: right;
 * 1: not; 77: no NVIDIA driver, or RMM finds no GPU.
 */
#include "../moonbright_resource.hpp"

#include <rmm/cuda_stream.hpp>
#include <rmm/device_buffer.hpp>
#include <rmm/mr/per_device_resource.hpp>

#include <cuda_runtime_api.h>

#include <execinfo.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <random>
#include <vector>

namespace
{

constexpr unsigned streams = 3, steps = 600, live_most = 40;
constexpr std::size_t size_most = std::size_t{24} << 20;
unsigned failed;

void check(bool good, const char *what)
{
    if (!good) {
        failed++;
        std::printf("FAIL %s\n", what);
    }
}

void cuda(cudaError_t err, const char *what)
{
    if (err != cudaSuccess) {
        std::printf("FAIL %s: %s\n", what, cudaGetErrorString(err));
        std::exit(1);
    }
}

/* A buffer, the stream that all its work is on, and the byte that it is full of. */
struct held {
    rmm::device_buffer buffer;
    const rmm::cuda_stream *stream;
    int byte;
};

bool full_of_its_byte(const held &one)
{
    std::vector<unsigned char> host(one.buffer.size());

    cuda(cudaMemcpyAsync(host.data(), one.buffer.data(), host.size(), cudaMemcpyDeviceToHost,
                         one.stream->value()),
         "copy to the host");
    cuda(cudaStreamSynchronize(one.stream->value()), "synchronize");
    return std::all_of(host.begin(), host.end(), [&](unsigned char b) { return b == one.byte; });
}

/* Sizes from a byte to many pages: most are small, as in data frames. */
std::size_t some_size(std::mt19937 &random)
{
    std::size_t most = size_most >> (random() % 22);

    return 1 + random() % std::max<std::size_t>(most, 1);
}

/* Buffers come, grow and go on several streams at once. */
void churn(std::mt19937 &random)
{
    std::vector<rmm::cuda_stream> on(streams);
    std::vector<held> live;
    unsigned wrong = 0;

    for (unsigned step = 0; step < steps; step++) {
        if (live.size() < live_most && random() % 8 < 5) {
            const rmm::cuda_stream &stream = on[random() % streams];
            held one{rmm::device_buffer(some_size(random), stream.view()), &stream,
                     static_cast<int>(random() % 256)};

            cuda(cudaMemsetAsync(one.buffer.data(), one.byte, one.buffer.size(), stream.value()),
                 "fill");
            live.push_back(std::move(one));
            continue;
        }
        if (live.empty())
            continue;
        held &one = live[random() % live.size()];
        if (random() % 4 == 0) { /* a larger block, the content copied, the old one freed */
            std::size_t before = one.buffer.size();

            one.buffer.resize(before * 2, one.stream->view());
            cuda(cudaMemsetAsync(static_cast<char *>(one.buffer.data()) + before, one.byte, before,
                                 one.stream->value()),
                 "fill what was added");
            continue;
        }
        wrong += !full_of_its_byte(one);
        if (&one != &live.back())
            std::swap(one, live.back());
        live.pop_back();
    }
    for (held &one : live)
        wrong += !full_of_its_byte(one);
    std::printf("%u steps, %u wrong buffers\n", steps, wrong);
    check(!wrong, "a buffer has other bytes than were written");
}

void shortage()
{
    bool refused = false;

    try {
        rmm::device_buffer most(std::size_t{1} << 45, rmm::cuda_stream_default);
    } catch (const rmm::out_of_memory &why) {
        refused = true;
        std::printf("32 TiB: %s\n", why.what());
    }
    check(refused, "32 TiB were given");
}

int run(const char *config, unsigned seed)
{
    /* Before CUDA's first call: device tables then know all that libcuda asks of the driver. */
    moonbright::resource memory{0, config};
    std::mt19937 random{seed};
    mb_stats stats{};
    int gpus = 0;
    cudaError_t err = cudaGetDeviceCount(&gpus);

    if (err != cudaSuccess || !gpus) {
        std::printf("SKIP: on_gpu: CUDA finds no GPU: %s\n", cudaGetErrorString(err));
        return 77;
    }
    rmm::mr::set_current_device_resource(memory);
    /* Its streams are gone when it returns, while others take what was freed on them. */
    churn(random);
    churn(random);
    shortage();
    cuda(cudaDeviceSynchronize(), "synchronize");
    rmm::mr::reset_current_device_resource();
    check(!mb_stats_get(memory.device(), &stats), "no statistics");
    check(stats.malloc_calls > steps / 4, "RMM did not allocate from MoonBright");
    check(!stats.live_blocks, "blocks were left");
    check(!mb_check(memory.device()), mb_error_detail());
    std::printf("RESULT {\"what\":\"rmm\",\"tables\":\"%s\",\"malloc_calls\":%llu,"
                "\"allocated_peak_bytes\":%llu,\"reserved_peak_bytes\":%llu,\"failed\":%u}\n",
                mb_device_tables(memory.device()),
                static_cast<unsigned long long>(stats.malloc_calls),
                static_cast<unsigned long long>(stats.allocated_peak_bytes),
                static_cast<unsigned long long>(stats.reserved_peak_bytes), failed);
    return failed ? 1 : 0;
}

/* Where it was, for who has no debugger beside a GPU. */
void crashed(int number)
{
    void *frames[64];

    backtrace_symbols_fd(frames, backtrace(frames, 64), STDOUT_FILENO);
    std::signal(number, SIG_DFL);
    std::raise(number);
}

} // namespace

int main(int argc, char **argv)
{
    const char *text = std::getenv("MB_TEST_SEED");
    unsigned seed =
        text ? static_cast<unsigned>(std::strtoul(text, nullptr, 0)) : std::random_device{}();

    if (argc != 2) {
        std::printf("usage: on_gpu CONFIG\n");
        return 2;
    }
    if (FILE *driver = std::fopen("/proc/driver/nvidia/version", "r")) {
        std::fclose(driver);
    } else {
        std::printf("SKIP: on_gpu: the NVIDIA kernel driver is not loaded\n");
        return 77;
    }
    std::setvbuf(stdout, nullptr, _IONBF, 0); /* what was said before a crash is told */
    std::signal(SIGSEGV, crashed);
    std::printf("seed 0x%x (MB_TEST_SEED)\n", seed);
    try {
        return run(argv[1], seed);
    } catch (const std::exception &why) {
        std::printf("FAIL %s\n", why.what());
        return 1;
    }
}
