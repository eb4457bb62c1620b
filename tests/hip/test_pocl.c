/* SPDX-License-Identifier: MIT */
/*
 * pte_pop as an OpenCL kernel, executed by whatever OpenCL there is (PoCL on a CPU in continuous
 * integration), writes GFX9 tables that the walker of the software MI210 then reads. It is the
 * source that is compiled for gfx90a; the machine code is another, and it was not run on AMD
 * hardware.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hw/sim/dev.h"
#include "support/runtime_rig.h"

#ifdef __SANITIZE_ADDRESS__
/* PoCL and the compiler in it keep what they allocate until the process ends; ours is still
 * checked. Visible, or the sanitizer's library does not find it. */
const char *__lsan_default_suppressions(void);
__attribute__((used, visibility("default"))) const char *__lsan_default_suppressions(void)
{
    return "leak:libpocl\nleak:libLLVM\n";
}
#endif

/* ------------------------------------------------------------ the part of OpenCL that is used */

typedef struct cl_object *cl_handle;

enum {
    CL_MEM_READ_WRITE = 1,
    CL_MEM_USE_HOST_PTR = 8,
    CL_MAP_READ = 1,
    CL_PROGRAM_BUILD_LOG = 0x1183,
    CL_DEVICE_NAME = 0x102b,
};

#define CL_LIST(X)                                                                                 \
    X(clGetPlatformIDs, int, (unsigned, cl_handle *, unsigned *))                                  \
    X(clGetDeviceIDs, int, (cl_handle, uint64_t, unsigned, cl_handle *, unsigned *))               \
    X(clGetDeviceInfo, int, (cl_handle, unsigned, size_t, void *, size_t *))                       \
    X(clCreateContext, cl_handle,                                                                  \
      (const intptr_t *, unsigned, const cl_handle *, void *, void *, int *))                      \
    X(clReleaseContext, int, (cl_handle))                                                          \
    X(clCreateCommandQueueWithProperties, cl_handle,                                               \
      (cl_handle, cl_handle, const uint64_t *, int *))                                             \
    X(clReleaseCommandQueue, int, (cl_handle))                                                     \
    X(clCreateProgramWithSource, cl_handle,                                                        \
      (cl_handle, unsigned, const char **, const size_t *, int *))                                 \
    X(clReleaseProgram, int, (cl_handle))                                                          \
    X(clBuildProgram, int, (cl_handle, unsigned, const cl_handle *, const char *, void *, void *)) \
    X(clGetProgramBuildInfo, int, (cl_handle, cl_handle, unsigned, size_t, void *, size_t *))      \
    X(clCreateKernel, cl_handle, (cl_handle, const char *, int *))                                 \
    X(clReleaseKernel, int, (cl_handle))                                                           \
    X(clSetKernelArg, int, (cl_handle, unsigned, size_t, const void *))                            \
    X(clCreateBuffer, cl_handle, (cl_handle, uint64_t, size_t, void *, int *))                     \
    X(clReleaseMemObject, int, (cl_handle))                                                        \
    X(clEnqueueNDRangeKernel, int,                                                                 \
      (cl_handle, cl_handle, unsigned, const size_t *, const size_t *, const size_t *, unsigned,   \
       const cl_handle *, cl_handle *))                                                            \
    X(clEnqueueMapBuffer, void *,                                                                  \
      (cl_handle, cl_handle, unsigned, uint64_t, size_t, size_t, unsigned, const cl_handle *,      \
       cl_handle *, int *))                                                                        \
    X(clEnqueueUnmapMemObject, int,                                                                \
      (cl_handle, cl_handle, void *, unsigned, const cl_handle *, cl_handle *))                    \
    X(clFinish, int, (cl_handle))

#define CL_MEMBER(name, result, args) static result(*name) args;
CL_LIST(CL_MEMBER)
#undef CL_MEMBER

enum { GROUP = 256, ITEMS = 16 * GROUP };

static cl_handle device, context, queue, program;

static void open_library(void)
{
    void *library = dlopen("libOpenCL.so.1", RTLD_NOW | RTLD_LOCAL);

    if (!library)
        SKIP("there is no OpenCL loader: install ocl-icd-libopencl1 and pocl-opencl-icd");
#define CL_RESOLVE(name, result, args)                                                             \
    *(void **)(&name) = dlsym(library, #name);                                                     \
    if (!(name))                                                                                   \
        SKIP("the OpenCL loader lacks " #name);
    CL_LIST(CL_RESOLVE)
#undef CL_RESOLVE
}

/* The first device of any platform. */
static void open_device(void)
{
    cl_handle platform[16];
    unsigned platforms = 0, devices = 0;
    char name[128] = "";

    if (clGetPlatformIDs(16, platform, &platforms) || !platforms)
        SKIP("there is no OpenCL platform: install pocl-opencl-icd");
    for (unsigned i = 0; i < platforms && i < 16 && !devices; i++)
        (void)clGetDeviceIDs(platform[i], 0xffffffffu, 1, &device, &devices);
    if (!devices)
        SKIP("there is no OpenCL device");
    CHECK_EQ(clGetDeviceInfo(device, CL_DEVICE_NAME, sizeof(name), name, NULL), 0);
    printf("  OpenCL device: %s (not AMD hardware)\n", name);
}

static void build(void)
{
    const char *source = "#include \"kernels/opencl/pte_pop.cl\"\n";
    const char *root = getenv("MB_SOURCE_DIR"), *build_dir = getenv("MB_BUILD_DIR");
    char options[4096], log[8192] = "";
    int status = 0;

    /* What PoCL has compiled is this build's own: a test that finds what another one, or another
     * user's, left behind does not compile. */
    if (build_dir) {
        snprintf(options, sizeof(options), "%s/pocl", build_dir);
        CHECK_EQ(setenv("POCL_CACHE_DIR", options, 0), 0);
    }
    open_library();
    open_device();
    snprintf(options, sizeof(options), "-I%s -cl-std=CL1.2", root ? root : ".");
    context = clCreateContext(NULL, 1, &device, NULL, NULL, &status);
    CHECK_EQ(status, 0);
    queue = clCreateCommandQueueWithProperties(context, device, NULL, &status);
    CHECK_EQ(status, 0);
    program = clCreateProgramWithSource(context, 1, &source, NULL, &status);
    CHECK_EQ(status, 0);
    status = clBuildProgram(program, 1, &device, options, NULL, NULL);
    if (status) {
        (void)clGetProgramBuildInfo(program, device, CL_PROGRAM_BUILD_LOG, sizeof(log) - 1, log,
                                    NULL);
        FAIL("OpenCL does not compile pte_pop.cl (%d): %s", status, log);
    }
}

static void release(void)
{
    CHECK_EQ(clReleaseProgram(program), 0);
    CHECK_EQ(clReleaseCommandQueue(queue), 0);
    CHECK_EQ(clReleaseContext(context), 0);
}

static cl_handle wrap(void *host, size_t bytes)
{
    int status = 0;
    cl_handle buffer =
        clCreateBuffer(context, CL_MEM_READ_WRITE | CL_MEM_USE_HOST_PTR, bytes, host, &status);

    CHECK_EQ(status, 0);
    /* cppcheck-suppress returnDanglingLifetime ; the call writes to &status and does not keep it */
    return buffer;
}

/* Runs a kernel on the table at `slots`; afterwards the host sees what it wrote. */
static void pop(const char *name, uint64_t *slots, uint64_t count, const uint32_t *pfns,
                uint64_t tmpl)
{
    cl_handle table = wrap(slots, count * 8), list = wrap((void *)(uintptr_t)pfns, count * 4);
    uint64_t first = 0, step = ITEMS;
    size_t items = ITEMS, group = GROUP;
    int status = 0;
    cl_handle kernel = clCreateKernel(program, name, &status);
    void *seen;

    CHECK_EQ(status, 0);
    CHECK_EQ(clSetKernelArg(kernel, 0, sizeof(cl_handle), &table), 0);
    CHECK_EQ(clSetKernelArg(kernel, 1, 8, &first), 0);
    CHECK_EQ(clSetKernelArg(kernel, 2, 8, &count), 0);
    CHECK_EQ(clSetKernelArg(kernel, 3, sizeof(cl_handle), &list), 0);
    CHECK_EQ(clSetKernelArg(kernel, 4, 8, &tmpl), 0);
    CHECK_EQ(clSetKernelArg(kernel, 5, 8, &step), 0);
    CHECK_EQ(clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &items, &group, 0, NULL, NULL), 0);
    seen = clEnqueueMapBuffer(queue, table, 1, CL_MAP_READ, 0, count * 8, 0, NULL, NULL, &status);
    CHECK_EQ(status, 0);
    CHECK_PTR_EQ(seen, slots);
    CHECK_EQ(clEnqueueUnmapMemObject(queue, table, seen, 0, NULL, NULL), 0);
    CHECK_EQ(clFinish(queue), 0);
    CHECK_EQ(clReleaseKernel(kernel), 0);
    CHECK_EQ(clReleaseMemObject(list), 0);
    CHECK_EQ(clReleaseMemObject(table), 0);
}

/* ------------------------------------------------------------ the software MI210 */

struct gpu {
    struct mb_hw_dev *dev;
    const struct mb_hw_ops *hw;
    struct mb_hw_stream *stream;
    struct mb_fmt_geometry geometry;
};

static void gpu_open(struct gpu *gpu)
{
    struct mb_hw_config config = {.model = "mi210"};

    RT_OK(mb__sim_open(&config, &gpu->dev));
    gpu->hw = gpu->dev->ops;
    CHECK_EQ(gpu->dev->caps.format, MB_FMT_GFX9_TF);
    gpu->geometry = mb_fmt_geometry(MB_FMT_GFX9_TF);
    RT_OK(gpu->hw->stream_open(gpu->dev, NULL, &gpu->stream));
}

static uint64_t new_tables(struct gpu *gpu, uint64_t count)
{
    uint64_t phys = 0;

    RT_OK(gpu->hw->table_alloc(gpu->dev, count * 4096, &phys));
    return phys;
}

/* Entry of `level` for va in the table at `table` points to the table at `child`. */
static void point(struct gpu *gpu, uint64_t table, unsigned level, uint64_t va, uint64_t child)
{
    struct mb_dir dir = {.valid = 1, .table_phys = child};
    struct mb_hw_cmd cmd = {.kind = MB_HW_DIR};

    cmd.dir.table_phys = table;
    cmd.dir.level = level;
    cmd.dir.index = mb_fmt_index(gpu->geometry.level[level], va);
    cmd.dir.value = mb_fmt_encode_dir(MB_FMT_GFX9_TF, level, &dir);
    RT_OK(gpu->hw->submit(gpu->dev, gpu->stream, &cmd, 1));
}

/* Directories for [va, va + count GiB), whose PDB0 tables lie one after another; the first one's
 * address. */
static uint64_t build_tree(struct gpu *gpu, uint64_t va, uint64_t count)
{
    uint64_t tables = new_tables(gpu, count), parent = 0;

    for (uint64_t i = 0; i < count; i++) {
        uint64_t at = va + (i << 30);

        if (!parent || at % ((uint64_t)1 << 39) == 0) {
            parent = new_tables(gpu, 1);
            point(gpu, gpu->hw->root_phys(gpu->dev), 0, at, parent);
        }
        point(gpu, parent, 1, at, tables + i * 4096);
    }
    RT_OK(gpu->hw->device_sync(gpu->dev));
    return tables;
}

static uint64_t *host_of(struct gpu *gpu, uint64_t phys, uint64_t bytes)
{
    uint64_t *host = mb__sim_table_at(sim_dev_of(gpu->dev), phys, bytes);

    CHECK(host != NULL);
    return host;
}

static uint32_t *random_pfns(uint64_t count, uint32_t align)
{
    uint64_t state = mb_test_seed();
    uint32_t *pfns = malloc(count * sizeof(*pfns));

    CHECK(pfns != NULL);
    for (uint64_t i = 0; i < count; i++)
        pfns[i] = (uint32_t)mb_test_random(&state) / align * align;
    return pfns;
}

static uint64_t template_of(unsigned shift)
{
    return mb_fmt_leaf_template(MB_FMT_GFX9_TF, shift, mb_fmt_user_flags(MB_FMT_GFX9_TF, 1),
                                MB_AP_VID, 1);
}

static uint64_t count_wrong(struct gpu *gpu, uint64_t va, unsigned shift, uint64_t count,
                            const uint32_t *pfns)
{
    uint64_t wrong = 0;

    for (uint64_t i = 0; i < count; i++)
        wrong += mb__sim_walk(gpu->dev, mb__va(va + (i << shift))).n != pfns[i];
    return wrong;
}

TEST(a_million_entries_of_2_mib)
{
    enum { GIBS = 2048 };
    const uint64_t count = (uint64_t)GIBS * 512, va = (uint64_t)1 << 44;
    struct gpu gpu;
    uint32_t *pfns;
    uint64_t *slots, phys;

    build();
    gpu_open(&gpu);
    pfns = random_pfns(count, MB_FRAME_PFNS);
    phys = build_tree(&gpu, va, GIBS);
    slots = host_of(&gpu, phys, count * 8);
    /* Without the kernel's writes all of them are wrong: the walk says something. */
    CHECK_EQ(count_wrong(&gpu, va, 21, 512, pfns), 512);
    pop("mb_pop_gfx9_tf_2m", slots, count, pfns, template_of(21));
    CHECK_EQ(count_wrong(&gpu, va, 21, count, pfns), 0);
    printf("  %llu entries, 0 wrong\n", (unsigned long long)count);
    /* Every bit is what the host's encoder gives, not only the address. */
    for (uint64_t i = 0; i < count; i++)
        CHECK_EQ(slots[i], mb_fmt_leaf_at(MB_FMT_GFX9_TF, 21, template_of(21), pfns[i]).lo);
    /* The golden value of doc/formats.md, through the kernel. */
    pfns[0] = 0x123400;
    pop("mb_pop_gfx9_tf_2m", slots, 1, pfns, template_of(21));
    CHECK_EQ(slots[0], 0x02000001234004f1u);
    free(pfns);
    gpu.hw->close(gpu.dev);
    release();
}

/* Below PDB0: translate-further pointers to tables of 4 KiB entries. */
TEST(entries_of_4_kib)
{
    enum { TABLES = 256 };
    const uint64_t count = (uint64_t)TABLES * 512, va = (uint64_t)1 << 44;
    struct gpu gpu;
    uint32_t *pfns;
    uint64_t *slots, pdb0, ptbs;

    build();
    gpu_open(&gpu);
    pfns = random_pfns(count, 1);
    pdb0 = build_tree(&gpu, va, 1);
    ptbs = new_tables(&gpu, TABLES);
    for (uint64_t i = 0; i < TABLES; i++)
        point(&gpu, pdb0, 2, va + (i << 21), ptbs + i * 4096);
    RT_OK(gpu.hw->device_sync(gpu.dev));
    slots = host_of(&gpu, ptbs, count * 8);
    pop("mb_pop_gfx9_tf_4k", slots, count, pfns, template_of(12));
    CHECK_EQ(count_wrong(&gpu, va, 12, count, pfns), 0);
    free(pfns);
    gpu.hw->close(gpu.dev);
    release();
}
