/* SPDX-License-Identifier: MIT */
/* single.c - experiments without a trace: prefixes, long contexts, beams. */
#include "sim.h"

#include <inttypes.h>
#include <stdlib.h>

enum { DECODED = 64 };

static int complain(const char *what)
{
    fprintf(stderr, "moonbright-kv: %s: %s\n", what, mb_kv_error_detail());
    return 1;
}

static void head(FILE *out, const char *what, const struct shape *shape, enum policy policy)
{
    fprintf(out,
            "{\"what\":\"%s\",\"figures\":\"model\",\"model\":\"%s\",\"gpus\":%u,\"cache\":\"%s\",",
            what, shape->name, shape->gpus, policy_name(policy));
}

int prefix(FILE *out, const struct shape *shape, enum policy policy, uint32_t tokens, double share)
{
    uint32_t shared = (uint32_t)(tokens * share), hit = 0;
    int32_t *text = make_tokens(tokens);
    struct mb_kv_grow grow = {0};
    double attach_s = 0, map_s = 0, compute_s;
    enum mb_err err = MB_OK;
    struct place place = {0};

    if (!text || !place_open(&place, policy, shape, tokens + 1, 4, shape_kv_bytes(shape))) {
        free(text);
        return 1;
    }
    if (place.kv) {
        if (shared)
            err = place_publish(&place, text, shared);
        (void)place_cost(&place);
        if (!err)
            err = mb_kv_seq_open(place.kv, 0, &grow.seq);
        place_begin(&place);
        if (!err)
            err = mb_kv_attach(place.kv, grow.seq, text, tokens - 1, &hit);
        if (!err)
            err = mb_kv_sync(place.kv, place.stream);
        attach_s = place_cost(&place);
        place_begin(&place);
        grow.tokens = tokens - hit;
        if (!err)
            err = mb_kv_append(place.kv, &grow, 1, place.stream);
        map_s = place_cost(&place);
    }
    free(text);
    if (err) {
        place_close(&place);
        return complain("prefix");
    }
    compute_s = cost_prefill(shape, tokens - hit, hit);
    head(out, "prefix", shape, policy);
    fprintf(out,
            "\"tokens\":%u,\"share\":%g,\"hit\":%u,\"attach_us\":%.1f,\"map_us\":%.1f,"
            "\"compute_ms\":%.3f,\"ttft_ms\":%.3f}\n",
            tokens, share, hit, 1e6 * attach_s, 1e6 * map_s, 1e3 * compute_s,
            1e3 * (attach_s + map_s + compute_s));
    place_close(&place);
    return 0;
}

int longer(FILE *out, const struct shape *shape, enum policy policy, uint32_t tokens)
{
    double map_s = 0, move_s = 0, compute_s = cost_prefill(shape, tokens, 0), last = compute_s;
    double ttft_s, one;
    struct mb_kv_grow grow = {0, tokens};
    enum mb_err err = MB_OK;
    struct place place = {0};

    if ((double)tokens * (double)shape_token_bytes(shape) > (double)shape_kv_bytes(shape)) {
        head(out, "long", shape, policy);
        fprintf(out, "\"tokens\":%u,\"fits\":false}\n", tokens);
        return 0;
    }
    if (!place_open(&place, policy, shape, tokens + DECODED + 1, 4, shape_kv_bytes(shape)))
        return 1;
    if (place.kv) {
        err = mb_kv_seq_open(place.kv, 0, &grow.seq);
        place_begin(&place);
        if (!err)
            err = mb_kv_append(place.kv, &grow, 1, place.stream);
        map_s = place_cost(&place);
    }
    ttft_s = map_s + compute_s;
    grow.tokens = 1;
    for (uint32_t i = 0; !err && i < DECODED; i++) {
        place_begin(&place);
        if (place.kv)
            err = mb_kv_append(place.kv, &grow, 1, place.stream);
        one = place.kv ? place_cost(&place) : 0;
        if (policy == POLICY_VMM)
            one = one > last ? one - last : 0;
        last = cost_decode(shape, 1, tokens + i + 1);
        map_s += one;
        compute_s += last;
        if (policy == POLICY_CONCAT)
            move_s += cost_move((double)(tokens + i) * (double)shape_token_bytes(shape));
    }
    if (!err) {
        head(out, "long", shape, policy);
        fprintf(out,
                "\"tokens\":%u,\"fits\":true,\"ttft_ms\":%.3f,\"tpot_ms\":%.4f,\"map_us\":%.1f}\n",
                tokens, 1e3 * ttft_s, 1e3 * (map_s + move_s + compute_s - ttft_s) / DECODED,
                1e6 * map_s);
    }
    place_close(&place);
    return err ? complain("long") : 0;
}

/* ------------------------------------------------------------------ beams */

enum {
    BEAM_PROMPT = 1024,
    BEAM_STEPS = 128,
};

static uint64_t draw(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    return z ^ (z >> 31);
}

/* Prompts, each forked to `width` beams. */
static enum mb_err start_beams(struct place *place, mb_kv_seq *seqs, uint32_t width, uint32_t count)
{
    enum mb_err err = MB_OK;

    for (uint32_t i = 0; !err && i < count; i++) {
        struct mb_kv_grow grow = {0, BEAM_PROMPT};

        if (i % width) {
            err = mb_kv_fork(place->kv, seqs[i - i % width], &seqs[i]);
            continue;
        }
        err = mb_kv_seq_open(place->kv, 0, &seqs[i]);
        grow.seq = seqs[i];
        if (!err)
            err = mb_kv_append(place->kv, &grow, 1, place->stream);
    }
    return err;
}

int beam(FILE *out, const struct shape *shape, enum policy policy, uint32_t width, uint32_t batch,
         uint64_t seed)
{
    uint32_t count = width * batch;
    mb_kv_seq *seqs = calloc(count, sizeof(*seqs));
    struct mb_kv_grow *grow = calloc(count, sizeof(*grow));
    uint32_t *from = calloc(count, sizeof(*from));
    double seconds = 0, map_s = 0, move_s = 0, one, compute_s;
    struct mb_kv_stats stats = {0};
    enum mb_err err = MB_OK;
    struct place place = {0};
    int status = 1;

    if (!seqs || !grow || !from ||
        !place_open(&place, policy, shape, BEAM_PROMPT + BEAM_STEPS + 1, count,
                    shape_kv_bytes(shape)))
        goto done;
    if (place.kv)
        err = start_beams(&place, seqs, width, count);
    (void)place_cost(&place);
    for (uint32_t step = 0; !err && step < BEAM_STEPS; step++) {
        double read = (double)count * (BEAM_PROMPT + step + 1);

        for (uint32_t i = 0; i < count; i++) {
            /* Which beams go on is the model's affair; here the better half does, drawn. */
            from[i] = i - i % width + (uint32_t)(draw(&seed) % ((width + 1) / 2 + 1) % width);
            grow[i] = (struct mb_kv_grow){seqs[i], 1};
        }
        place_begin(&place);
        if (place.kv) {
            err = mb_kv_reorder(place.kv, seqs, from, count);
            if (!err)
                err = mb_kv_append(place.kv, grow, count, place.stream);
        }
        one = place.kv ? place_cost(&place) : 0;
        map_s += one;
        compute_s = cost_decode(shape, count, read);
        if (!place.kv) /* index_select of all, then concatenation of all */
            move_s += 2 * cost_move(read * (double)shape_token_bytes(shape));
        seconds += one + compute_s;
    }
    seconds += move_s;
    if (!err && place.kv)
        err = mb_kv_get_stats(place.kv, &stats);
    if (!err) {
        head(out, "beam", shape, policy);
        fprintf(out,
                "\"width\":%u,\"batch\":%u,\"prompt\":%d,\"steps\":%d,\"tokens_per_s\":%.1f,"
                "\"step_ms\":%.3f,\"mapping_share\":%.5f,\"moving_share\":%.5f,\"copies\":%" PRIu64
                ",\"copied_mib\":%.1f,\"mapped_pages\":%" PRIu64 ",\"live_gib\":%.2f}\n",
                width, batch, BEAM_PROMPT, BEAM_STEPS, (double)batch * BEAM_STEPS / seconds,
                1e3 * seconds / BEAM_STEPS, map_s / seconds, move_s / seconds, stats.copies,
                (double)stats.copied_bytes / 1048576, stats.mapped_pages,
                place.kv ? (double)stats.live_blocks * (double)place.layout.block_bytes / 1073741824
                         : (double)count * (BEAM_PROMPT + BEAM_STEPS) *
                               (double)shape_token_bytes(shape) / 1073741824);
        status = 0;
    } else if (err == MB_ERR_NO_MEMORY) {
        head(out, "beam", shape, policy);
        fprintf(out, "\"width\":%u,\"batch\":%u,\"fits\":false}\n", width, batch);
        status = 0;
    } else {
        status = complain("beam");
    }
done:
    place_close(&place);
    free(seqs);
    free(grow);
    free(from);
    return status;
}
