/* SPDX-License-Identifier: MIT */
/*
 * vec.c - see vec.h.
 *
 * Growth is a function of its own, not inline: it is rare, and gcc 12's analyzer, which does not
 * see through it then, reports each realloc() that moves the array of a structure as a leak.
 */
#include "base/vec.h"

bool mb__vec_grow(void *data, size_t *capacity, size_t need, size_t item_bytes)
{
    size_t wanted = *capacity < 8 ? 8 : *capacity + *capacity / 2;
    void *old, *grown;

    if (wanted < need)
        wanted = need;
    if (wanted > PTRDIFF_MAX / item_bytes)
        return false;
    memcpy(&old, data, sizeof(old));
    grown = realloc(old, wanted * item_bytes);
    if (!grown)
        return false;
    memcpy(data, &grown, sizeof(grown));
    *capacity = wanted;
    /* cppcheck-suppress memleak ; *data owns it now */
    return true;
}
