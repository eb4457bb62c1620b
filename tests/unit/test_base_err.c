/* SPDX-License-Identifier: MIT */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "test.h"

TEST(every_error_has_a_name_and_a_text)
{
#define COUNT_ONE(name, value, text)                                                               \
    CHECK_EQ(MB_##name, value);                                                                    \
    CHECK_STR_EQ(mb_error_name(MB_##name), "MB_" #name);                                           \
    CHECK_STR_EQ(mb_error_text(MB_##name), text);
    MB_ERR_LIST(COUNT_ONE)
#undef COUNT_ONE
    CHECK_STR_EQ(mb_error_name((enum mb_err)9999), "MB_ERR_UNKNOWN");
    CHECK(strlen(mb_error_text((enum mb_err)9999)) > 0);
}

TEST(fail_stores_the_text_and_returns_the_error)
{
    CHECK_EQ(mb__fail(MB_ERR_LIMIT, "asked for %d, allowed %d", 7, 5), MB_ERR_LIMIT);
    CHECK_STR_EQ(mb_error_detail(), "asked for 7, allowed 5");
}

TEST(fail_in_puts_a_prefix_in_front)
{
    mb__fail(MB_ERR_IO, "disk full");
    CHECK_EQ(mb__fail_in(MB_ERR_IO, "writing %s", "x"), MB_ERR_IO);
    CHECK_STR_EQ(mb_error_detail(), "writing x: disk full");
}

TEST(the_old_detail_may_be_an_argument)
{
    mb__fail(MB_ERR_IO, "inner");
    mb__fail(MB_ERR_IO, "outer <%s>", mb_error_detail());
    CHECK_STR_EQ(mb_error_detail(), "outer <inner>");
}

TEST(long_texts_are_cut_at_1023_bytes)
{
    char text[2000];

    memset(text, 'a', sizeof(text) - 1);
    text[sizeof(text) - 1] = 0;
    mb__fail(MB_ERR_IO, "%s", text);
    CHECK_EQ(strlen(mb_error_detail()), 1023);
    for (int i = 0; i < 3; i++)
        mb__fail_in(MB_ERR_IO, "prefix %d", i);
    CHECK_EQ(strlen(mb_error_detail()), 1023);
    CHECK_EQ(strncmp(mb_error_detail(), "prefix 2: prefix 1: prefix 0: aaa", 33), 0);
    mb__fail(MB_ERR_IO, "tail");
    mb__fail_in(MB_ERR_IO, "%s", text);
    CHECK_EQ(strlen(mb_error_detail()), 1023);
}

static void *other_thread(void *seen)
{
    snprintf(seen, 64, "%s", mb_error_detail());
    mb__fail(MB_ERR_BUSY, "other");
    return NULL;
}

TEST(details_are_per_thread)
{
    char seen[64] = "untouched";
    pthread_t thread;

    mb__fail(MB_ERR_BUSY, "mine");
    CHECK_EQ(pthread_create(&thread, NULL, other_thread, seen), 0);
    pthread_join(thread, NULL);
    CHECK_STR_EQ(seen, "");
    CHECK_STR_EQ(mb_error_detail(), "mine");
}
