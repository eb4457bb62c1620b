/* SPDX-License-Identifier: MIT */
/* part.c - A FAKE of libamdhip64 with a part of the interface only, as an old runtime has it. */
#define PART_API __attribute__((visibility("default")))

PART_API int hipInit(unsigned flags);
PART_API int hipGetDeviceCount(int *count);

int hipInit(unsigned flags)
{
    return flags ? 1 : 0;
}

int hipGetDeviceCount(int *count)
{
    *count = 1;
    return 0;
}
