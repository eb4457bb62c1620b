/* SPDX-License-Identifier: MIT */
/*
 * kv_program.h - random programs of steps, and the shortest one that still fails.
 *
 * A test's run function executes steps against what it tests. It leaves `text` empty if all went
 * well, and returns a count of its own: for instance of what it met.
 */
#ifndef MB_KV_PROGRAM_H
#define MB_KV_PROGRAM_H

#include <stdio.h>
#include <string.h>

#include "support/runtime_rig.h"

enum {
    TEXT = 400,      /* bytes of what went wrong first */
    STEPS_MAX = 140, /* of a program */
};

struct step {
    uint32_t kind, a, b, c;
};

typedef uint64_t run_steps(const struct step *steps, unsigned count, uint64_t argument, char *text);

static inline void draw_steps(struct step *steps, unsigned count, uint64_t *state)
{
    for (unsigned i = 0; i < count; i++)
        steps[i] = (struct step){(uint32_t)mb_test_random(state), (uint32_t)mb_test_random(state),
                                 (uint32_t)mb_test_random(state), (uint32_t)mb_test_random(state)};
}

/* Takes parts out for as long as it still fails, and prints the steps left, whose number it
 * returns. */
static inline unsigned shrink(run_steps *run, struct step *steps, unsigned count, uint64_t argument,
                              char *text)
{
    static struct step fewer[STEPS_MAX];
    char other[TEXT];

    for (unsigned part = count / 2; part > 0; part /= 2)
        for (unsigned at = 0; at + part <= count;) {
            memcpy(fewer, steps, at * sizeof(*steps));
            memcpy(fewer + at, steps + at + part, (count - at - part) * sizeof(*steps));
            (void)run(fewer, count - part, argument, other);
            if (!*other) {
                at += part;
                continue;
            }
            count -= part;
            memcpy(steps, fewer, count * sizeof(*steps));
            memcpy(text, other, TEXT);
        }
    for (unsigned i = 0; i < count; i++)
        printf("  {%u, %u, %u, %u},\n", steps[i].kind % 16, steps[i].a, steps[i].b, steps[i].c);
    return count;
}

#endif
