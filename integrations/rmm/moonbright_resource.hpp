/* SPDX-License-Identifier: MIT */
/*
 * moonbright_resource.hpp - MoonBright as a memory resource of RMM and of libcu++.
 *
 *     moonbright::resource memory{0};                        // opens device 0
 *     rmm::device_async_resource_ref ref{memory};            // RMM from 25.10 on: a concept
 *     moonbright::device_memory_resource old{0};             // before: a base class
 *
 * Header-only, C++17, on the C interface; link with libmoonbright. The concept of cuda::mr is met for
 * any stream type with get() or value(), so the header works without RMM as well. Memory is ordered by
 * the stream it is taken and given on; the *_sync calls give memory that any stream may use, and
 * take it back when the device is done with it.
 * THREADS   As the C interface: any thread, any time. A resource may be copied; copies are equal and
 *           share the device, which is closed with the last one that opened it.
 * ERRORS    rmm::out_of_memory where RMM is there, otherwise moonbright::bad_alloc, whose what() says what was asked and
 *           who holds the memory.
 */
#ifndef MOONBRIGHT_RESOURCE_HPP
#define MOONBRIGHT_RESOURCE_HPP

#include <moonbright.h>

#include <cstddef>
#include <cstdio>
#include <memory>
#include <new>
#include <string>
#include <utility>

#if __has_include(<cuda/memory_resource>)
#include <cuda/memory_resource>
#define MOONBRIGHT_HAS_CUDA_MR 1
#endif
#if __has_include(<rmm/error.hpp>)
#include <rmm/error.hpp>
#define MOONBRIGHT_HAS_RMM 1
#elif __has_include(<rmm/detail/error.hpp>)
#include <rmm/detail/error.hpp>
#define MOONBRIGHT_HAS_RMM 1
#endif
#if __has_include(<rmm/mr/device_memory_resource.hpp>)
#include <rmm/mr/device_memory_resource.hpp>
#define MOONBRIGHT_HAS_RMM_BASE 1
#elif __has_include(<rmm/mr/device/device_memory_resource.hpp>)
#include <rmm/mr/device/device_memory_resource.hpp>
#define MOONBRIGHT_HAS_RMM_BASE 1
#endif

namespace moonbright
{

class bad_alloc : public std::bad_alloc
{
  public:
    explicit bad_alloc(std::string text) : text_{std::move(text)}
    {
    }
    const char *what() const noexcept override
    {
        return text_.c_str();
    }

  private:
    std::string text_;
};

namespace detail
{

[[noreturn]] inline void fail(mb_err err)
{
    std::string text = std::string{mb_error_name(err)} + ": " + mb_error_detail();
#ifdef MOONBRIGHT_HAS_RMM
    if (err == MB_ERR_NO_MEMORY || err == MB_ERR_LIMIT || err == MB_ERR_NO_ADDRESS)
        throw rmm::out_of_memory{text};
#endif
    throw bad_alloc{text};
}

/* cudaStream_t of whatever names a stream: cuda::stream_ref, rmm::cuda_stream_view, the handle. */
inline mb_stream handle(mb_stream stream)
{
    return stream;
}
template <class Stream>
auto handle(const Stream &stream) -> decltype(static_cast<mb_stream>(stream.get()))
{
    return static_cast<mb_stream>(stream.get());
}
template <class Stream>
auto handle(const Stream &stream) -> decltype(static_cast<mb_stream>(stream.value()))
{
    return static_cast<mb_stream>(stream.value());
}

} // namespace detail

class resource
{
  public:
    static constexpr std::size_t alignment_bytes = 512;

    /* Opens the device; `config` as in mb_open(). */
    explicit resource(int ordinal = 0, const char *config = nullptr)
    {
        mb_device device = nullptr;
        mb_err err = mb_open(ordinal, config, &device);

        if (err)
            detail::fail(err);
        owner_ =
            std::shared_ptr<void>(device, [](void *dev) { mb_close(static_cast<mb_device>(dev)); });
        device_ = device;
    }
    /* A device that the caller keeps open for longer than every copy. */
    explicit resource(mb_device device) : device_{device}
    {
    }

    template <class Stream>
    void *allocate(Stream stream, std::size_t bytes, std::size_t alignment = alignment_bytes)
    {
        void *out = nullptr;

        check(alignment);
        if (mb_err err = mb_malloc_async(device_, bytes, detail::handle(stream), &out))
            detail::fail(err);
        if (mb_err err = mb_wait_mapped(device_, out)) { // CUDA's own copies may come at once
            note(mb_free_async(device_, out, detail::handle(stream)));
            detail::fail(err);
        }
        return out;
    }
    template <class Stream>
    void deallocate(Stream stream, void *ptr, std::size_t, std::size_t = alignment_bytes) noexcept
    {
        mb_err err = mb_free_async(device_, ptr, detail::handle(stream));

        /* RMM's streams are destroyed without a word to their resource. */
        note(err ? err : mb_stream_seal(device_, detail::handle(stream)));
    }
    void *allocate_sync(std::size_t bytes, std::size_t alignment = alignment_bytes)
    {
        void *out = nullptr;

        check(alignment);
        if (mb_err err = mb_malloc(device_, bytes, &out))
            detail::fail(err);
        return out;
    }
    void deallocate_sync(void *ptr, std::size_t, std::size_t = alignment_bytes) noexcept
    {
        mb_err err = mb_device_sync(device_);

        note(err ? err : mb_free(device_, ptr));
    }

    mb_device device() const noexcept
    {
        return device_;
    }
    bool operator==(const resource &other) const noexcept
    {
        return device_ == other.device_;
    }
    bool operator!=(const resource &other) const noexcept
    {
        return device_ != other.device_;
    }
#ifdef MOONBRIGHT_HAS_CUDA_MR
    friend constexpr void get_property(const resource &, cuda::mr::device_accessible) noexcept
    {
    }
#endif

  private:
    static void check(std::size_t alignment)
    {
        if (alignment > alignment_bytes || (alignment & (alignment - 1)))
            throw bad_alloc{"an alignment of " + std::to_string(alignment) +
                            " bytes was asked for; powers of two up to 512 are possible"};
    }
    static void note(mb_err err) noexcept
    {
        if (err)
            std::fprintf(stderr, "moonbright: a block could not be given back: %s: %s\n",
                         mb_error_name(err), mb_error_detail());
    }

    std::shared_ptr<void> owner_;
    mb_device device_ = nullptr;
};

#ifdef MOONBRIGHT_HAS_RMM_BASE
/* For RMM before it turned to concepts. */
class device_memory_resource final : public rmm::mr::device_memory_resource
{
  public:
    explicit device_memory_resource(int ordinal = 0, const char *config = nullptr)
        : memory_{ordinal, config}
    {
    }
    explicit device_memory_resource(mb_device device) : memory_{device}
    {
    }

    mb_device device() const noexcept
    {
        return memory_.device();
    }

  private:
    void *do_allocate(std::size_t bytes, rmm::cuda_stream_view stream) override
    {
        return memory_.allocate(stream.value(), bytes);
    }
    /* Some versions promise noexcept and some do not; this suits both. */
    void do_deallocate(void *ptr, std::size_t bytes, rmm::cuda_stream_view stream) noexcept override
    {
        memory_.deallocate(stream.value(), ptr, bytes);
    }
    bool do_is_equal(const rmm::mr::device_memory_resource &other) const noexcept override
    {
        auto *same = dynamic_cast<const device_memory_resource *>(&other);

        return same && same->memory_ == memory_;
    }

    resource memory_;
};
#endif

} // namespace moonbright

#endif
