/* SPDX-License-Identifier: MIT */
#include "calls.h"

#include <atomic>
#include <exception>
#include <stdexcept>
#include <string>
#include <thread>

#include "moonbright_torch.h"

namespace
{

thread_local std::string text;
std::atomic<long> filters;

/* A filter that counts its copies. */
class counted
{
  public:
    counted(void *stream, bool thread, bool broken)
        : stream_(stream), by_thread_(thread), broken_(broken), owner_(std::this_thread::get_id())
    {
        filters++;
    }
    counted(const counted &other)
        : stream_(other.stream_), by_thread_(other.by_thread_), broken_(other.broken_),
          owner_(other.owner_)
    {
        filters++;
    }
    counted &operator=(const counted &) = delete;
    ~counted()
    {
        filters--;
    }
    bool operator()(void *stream) const
    {
        if (broken_)
            throw std::runtime_error("a broken filter");
        return by_thread_ ? std::this_thread::get_id() == owner_ : stream == stream_;
    }

  private:
    void *stream_;
    bool by_thread_, broken_;
    std::thread::id owner_;
};

template <class Call> bool caught(Call call)
{
    try {
        call();
        return true;
    } catch (const std::exception &e) {
        text = e.what();
        return false;
    }
}

} // namespace

extern "C" {

const char *calls_text(void)
{
    return text.c_str();
}

void *calls_malloc(size_t bytes, int device, void *stream)
{
    void *ptr = nullptr;

    (void)caught([&] { ptr = mb_torch_malloc(static_cast<ssize_t>(bytes), device, stream); });
    return ptr;
}

bool calls_record(void *ptr, void *stream)
{
    return caught([&] { mb_torch_record_stream(ptr, stream); });
}

bool calls_fraction(double fraction, int device)
{
    return caught([&] { mb_torch_memory_fraction(fraction, device); });
}

bool calls_begin(int device, unsigned long long a, unsigned long long b, void *stream, bool thread)
{
    return caught([&] {
        mb_torch_begin_allocate_to_pool(device, {a, b}, counted(stream, thread, false));
    });
}

bool calls_begin_broken(int device, unsigned long long a, unsigned long long b)
{
    return caught([&] {
        mb_torch_begin_allocate_to_pool(device, {a, b}, counted(nullptr, false, true));
    });
}

bool calls_end(int device, unsigned long long a, unsigned long long b)
{
    return caught([&] { mb_torch_end_allocate_to_pool(device, {a, b}); });
}

void calls_release(int device, unsigned long long a, unsigned long long b)
{
    mb_torch_release_pool(device, {a, b});
}

long calls_filters(void)
{
    return filters;
}
}
