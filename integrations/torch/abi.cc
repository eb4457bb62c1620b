/* SPDX-License-Identifier: MIT */
/*
 * abi.cc - the functions that PyTorch calls, in the types that it calls them with.
 *
 * C++ because a pool's name is a std::pair and its filter a std::function, and because a failed
 * allocation must throw: PyTorch takes whatever is returned for memory. Python shows a c10 error as
 * torch.OutOfMemoryError and any other std::exception as RuntimeError.
 */
#include <cstdio>
#include <cstring>
#include <cxxabi.h>
#include <dlfcn.h>
#include <new>
#include <stdexcept>
#include <string>

#include "moonbright_torch.h"
#include "plugin.h"

using id_pair = std::pair<unsigned long long, unsigned long long>;

/* ------------------------------------------------------------------ throwing */

namespace
{

/* As c10 declares it. */
struct source_location {
    const char *function, *file;
    uint32_t line;
};

using error_constructor = void (*)(void *self, source_location where, std::string text);

/* More than c10::Error takes in any PyTorch; only its size is unknown here. */
constexpr size_t ERROR_ROOM = 1024;

/* What PyTorch's libraries export of c10::OutOfMemoryError. Its constructor is inherited and never
 * exported, so the object is built as its base class and then given the class's table. */
struct oom_class {
    error_constructor construct = nullptr;
    std::type_info *type = nullptr;
    void **table = nullptr; /* offset, type, destructor, ... */
};

void *loaded(const char *library, const char *symbol)
{
    void *handle = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
    void *found = handle ? dlsym(handle, symbol) : nullptr;

    if (handle)
        (void)dlclose(handle);
    return found;
}

oom_class find_oom_class()
{
    static const char *const libraries[] = {"libc10_cuda.so", "libtorch_python.so", "libc10.so"};
    oom_class found;

    found.construct = reinterpret_cast<error_constructor>(
        loaded("libc10.so", "_ZN3c105ErrorC1ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11"
                            "char_traitsIcESaIcEEE"));
    for (const char *library : libraries) {
        if (!found.table) {
            found.type =
                static_cast<std::type_info *>(loaded(library, "_ZTIN3c1016OutOfMemoryErrorE"));
            found.table = static_cast<void **>(loaded(library, "_ZTVN3c1016OutOfMemoryErrorE"));
        }
    }
    return found;
}

[[noreturn]] void throw_oom(const std::string &text)
{
    /* Not kept: PyTorch may be loaded after the first failure. */
    const oom_class oom = find_oom_class();

    if (!oom.construct || !oom.type || !oom.table)
        throw std::runtime_error(text);
    void *object = abi::__cxa_allocate_exception(ERROR_ROOM);
    oom.construct(object, source_location{"mb_torch_malloc", "moonbright", 0}, text);
    void *table = oom.table + 2;
    std::memcpy(object, &table, sizeof(table));
    abi::__cxa_throw(object, oom.type, reinterpret_cast<void (*)(void *)>(oom.table[2]));
}

[[noreturn]] void throw_error(enum mb_err err)
{
    const std::string text = mb__torch_error();

    if (err == MB_ERR_NO_MEMORY || err == MB_ERR_NO_ADDRESS || err == MB_ERR_LIMIT)
        throw_oom(text);
    throw std::runtime_error(text);
}

void check(enum mb_err err)
{
    if (err != MB_OK)
        throw_error(err);
}

/* ------------------------------------------------------------------ filters */

using filter_function = std::function<bool(void *)>;

/* A filter that fails does not want the allocation; the caller holds a lock. */
bool filter_match(void *user, void *stream)
{
    try {
        return (*static_cast<filter_function *>(user))(stream);
    } catch (...) {
        return false;
    }
}

void filter_destroy(void *user)
{
    delete static_cast<filter_function *>(user);
}

mb__torch_id id_of(const id_pair &id)
{
    return mb__torch_id{id.first, id.second};
}

} // namespace

/* ------------------------------------------------------------------ PyTorch's calls */

extern "C" {

void *mb_torch_malloc(ssize_t bytes, int device, void *stream)
{
    void *ptr = nullptr;

    if (bytes < 0)
        throw std::runtime_error("MoonBright: an allocation of a negative size");
    check(mb__torch_malloc(static_cast<size_t>(bytes), device, stream, &ptr));
    return ptr;
}

void mb_torch_free(void *ptr, ssize_t bytes, int device, void *stream)
{
    (void)bytes;
    mb__torch_free(ptr, device, stream);
}

void mb_torch_init(int devices)
{
    (void)devices; /* each is opened when it is used */
}

void mb_torch_reset(void)
{
    mb__torch_reset();
}

void mb_torch_memory_fraction(double fraction, int device)
{
    check(mb__torch_fraction(fraction, device));
}

void *mb_torch_base_alloc(void *ptr, size_t *bytes)
{
    return mb__torch_base(ptr, bytes);
}

void mb_torch_record_stream(void *ptr, void *stream)
{
    check(mb__torch_record(ptr, stream));
}

void mb_torch_begin_allocate_to_pool(int device, id_pair id, std::function<bool(void *)> filter)
{
    const mb__torch_filter given = {new filter_function(std::move(filter)), filter_match,
                                    filter_destroy};

    check(mb__torch_pool_begin(device, id_of(id), &given));
}

void mb_torch_end_allocate_to_pool(int device, id_pair id)
{
    check(mb__torch_pool_end(device, id_of(id)));
}

void mb_torch_release_pool(int device, id_pair id)
{
    /* Called by destructors of graphs. */
    if (mb__torch_pool_release(device, id_of(id)) != MB_OK)
        (void)std::fprintf(stderr, "moonbright: torch: %s\n", mb__torch_error());
}
}
