/* SPDX-License-Identifier: MIT */
/* cudart.c - asks NVIDIA's own CUDA runtime for memory, so that it looks up the driver's functions.
 * On the fake of libcuda it gives up afterwards, which is no failure here. */
#include <stddef.h>
#include <stdio.h>

int cudaGetDeviceCount(int *count);
int cudaMalloc(void **ptr, size_t bytes);

int main(void)
{
    void *ptr = NULL;
    int count = 0, first = cudaGetDeviceCount(&count), second = cudaMalloc(&ptr, 1 << 20);

    printf("cudaGetDeviceCount: %d, cudaMalloc: %d\n", first, second);
    return 0;
}
