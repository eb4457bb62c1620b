/* SPDX-License-Identifier: MIT */
/*
 * map_page.c - the page of `moonbright map`: one picture for every moment.
 *
 * WITHOUT SCRIPT  The moments are radio buttons; the style sheet shows the picture of the one that
 *                 is chosen. A script of a few lines, in the page, adds a slider that chooses them.
 * PICTURE         All memory that was ever held, in ROWS rows; a block has the same colour in all
 *                 pictures. What is narrower than a hair is joined with its neighbours.
 */
#include "memmap.h"

#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "evidence/page.h"
#include "evidence/svg.h"

enum { ROWS = 40, ROW_HEIGHT = 11, WIDTH = 400, LARGEST = 8 };
#define PAGE ((uint64_t)1 << MEMMAP_PAGE_SHIFT)
#define HAIR 0.25 /* in units of the picture */

/* Pages that were held at some moment, sorted. */
struct places {
    uint64_t *pages;
    size_t count;
};

static int by_number(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

static bool collect(const struct memmap *map, struct places *p)
{
    size_t total = 1, kept = 0;

    for (unsigned i = 0; i < map->count; i++)
        total += map->moments[i].page_count;
    p->pages = malloc(total * sizeof(*p->pages));
    p->count = 0;
    if (!p->pages)
        return false;
    for (unsigned i = 0; i < map->count; i++) {
        const struct memmap_moment *m = &map->moments[i];

        for (size_t k = 0; k < m->page_count; k++)
            p->pages[p->count++] = m->pages[k];
    }
    if (p->count)
        qsort(p->pages, p->count, sizeof(*p->pages), by_number);
    for (size_t i = 0; i < p->count; i++)
        if (!i || p->pages[i] != p->pages[i - 1])
            p->pages[kept++] = p->pages[i];
    p->count = kept;
    return true;
}

/* Where a raw place lies in the picture's memory; false: it was never held. */
static bool offset_of(const struct places *p, uint64_t at, uint64_t *offset)
{
    uint64_t page = at >> MEMMAP_PAGE_SHIFT;
    const uint64_t *found =
        p->count ? bsearch(&page, p->pages, p->count, sizeof(page), by_number) : NULL;

    if (!found)
        return false;
    *offset = ((uint64_t)(found - p->pages) << MEMMAP_PAGE_SHIFT) + (at & (PAGE - 1));
    return true;
}

/* ------------------------------------------------------------ one picture */

struct picture {
    FILE *out;
    const struct places *places;
    double row_bytes;
    /* What is being joined: one colour class, one stretch of a row. */
    unsigned row, flags;
    uint64_t who;
    double from, to; /* units; to 0: nothing */
    char class[8];
};

static void flush(struct picture *p)
{
    double width = p->to - p->from, y = p->row * ROW_HEIGHT;

    if (p->to <= 0)
        return;
    width = width < HAIR ? HAIR : width;
    fprintf(p->out, "<rect class=\"%s\" x=\"%.2f\" y=\"%.0f\" width=\"%.2f\" height=\"%d\"/>",
            p->class, p->from, y, width, ROW_HEIGHT - 2);
    if (p->flags & MEMMAP_STITCHED)
        fprintf(p->out, "<rect class=\"st\" x=\"%.2f\" y=\"%.0f\" width=\"%.2f\" height=\"2.5\"/>",
                p->from, y + ROW_HEIGHT - 4.5, width);
    if (p->flags & MEMMAP_ALIASED)
        fprintf(p->out, "<rect class=\"al\" x=\"%.2f\" y=\"%.0f\" width=\"%.2f\" height=\"2.5\"/>",
                p->from, y, width);
    p->to = 0;
}

static void stretch(struct picture *p, unsigned row, double from, double to, const char *class,
                    const struct memmap_piece *piece)
{
    unsigned flags = piece ? piece->flags : 0;
    uint64_t who = piece ? piece->who : 0;
    /* Small neighbours become one: they would be hairs, thousands of them. */
    bool small = p->to > 0 && to - from < 2 * HAIR && p->to - p->from < 4 * HAIR;

    if (p->to > 0 && row == p->row && from <= p->to + HAIR / 2 && strcmp(class, p->class) == 0 &&
        flags == p->flags && (who == p->who || small)) {
        p->to = to;
        return;
    }
    flush(p);
    p->row = row;
    p->from = from;
    p->to = to;
    p->flags = flags;
    p->who = who;
    snprintf(p->class, sizeof(p->class), "%s", class);
}

/* A range of the picture's memory, over as many rows as it takes. */
static void range(struct picture *p, uint64_t at, uint64_t bytes, const char *class,
                  const struct memmap_piece *piece)
{
    double begin = (double)at, end = (double)(at + bytes);

    while (begin < end) {
        unsigned row = (unsigned)(begin / p->row_bytes);
        double row_end = (row + 1) * p->row_bytes, to = end < row_end ? end : row_end;

        if (to <= begin) /* rounding at a row's end */
            break;
        stretch(p, row, (begin - row * p->row_bytes) / p->row_bytes * WIDTH,
                (to - row * p->row_bytes) / p->row_bytes * WIDTH, class, piece);
        begin = to;
    }
}

static void piece_of(struct picture *p, const struct memmap_piece *piece)
{
    static const char *const classes[] = {"s0", "s1", "s2", "s3", "s5", "s6", "s7"};
    /* The same block has the same colour at every moment. */
    unsigned colour = (unsigned)((piece->who * 0x9e3779b97f4a7c15u) >> 40) % 7;
    uint64_t at = piece->at, end = piece->at + piece->bytes;

    while (at < end) {
        uint64_t next = (at | (PAGE - 1)) + 1, offset;

        next = next < end ? next : end;
        if (offset_of(p->places, at, &offset))
            range(p, offset, next - at, classes[colour], piece);
        at = next;
    }
}

static void picture(FILE *out, const struct places *places, const struct memmap_moment *m,
                    unsigned number)
{
    struct picture p = {
        .out = out, .places = places, .row_bytes = (double)places->count * (double)PAGE / ROWS};
    char live[CLI_NUMBER_MAX], held[CLI_NUMBER_MAX];

    fprintf(out,
            "<svg class=\"map\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" role=\"img\" "
            "aria-labelledby=\"mt%u md%u\"><title id=\"mt%u\">",
            WIDTH, ROWS * ROW_HEIGHT, WIDTH, ROWS * ROW_HEIGHT, number, number, number);
    html_text(out, m->label);
    fprintf(out, "</title><desc id=\"md%u\">%s in use of %s held, %llu pieces</desc>\n", number,
            cli_format_bytes(m->live_bytes, live), cli_format_bytes(m->held_bytes, held),
            (unsigned long long)m->count);
    for (size_t i = 0; i < m->page_count; i++) {
        uint64_t offset;

        if (offset_of(places, m->pages[i] << MEMMAP_PAGE_SHIFT, &offset))
            range(&p, offset, PAGE, "ho", NULL);
    }
    flush(&p);
    for (size_t i = 0; i < m->count; i++)
        piece_of(&p, &m->pieces[i]);
    flush(&p);
    fputs("</svg>\n", out);
}

/* ------------------------------------------------------------ numbers of a moment */

/* Free ranges inside what is held. */
struct holes {
    uint64_t count, largest;
};

static struct holes holes_of(const struct memmap_moment *m)
{
    struct holes h = {0, 0};
    uint64_t end = 0; /* of the pieces so far */
    size_t at = 0, page = 0;

    while (page < m->page_count) {
        uint64_t begin = m->pages[page] << MEMMAP_PAGE_SHIFT, stop, free_from;

        while (page + 1 < m->page_count && m->pages[page + 1] == m->pages[page] + 1)
            page++;
        stop = (m->pages[page++] + 1) << MEMMAP_PAGE_SHIFT;
        free_from = end > begin ? end : begin;
        while (free_from < stop) {
            uint64_t next = at < m->count && m->pieces[at].at < stop ? m->pieces[at].at : stop;

            if (next > free_from) {
                h.count++;
                h.largest = next - free_from > h.largest ? next - free_from : h.largest;
            }
            if (next == stop)
                break;
            end = m->pieces[at].at + m->pieces[at].bytes;
            free_from = end > free_from ? end : free_from;
            at++;
        }
    }
    return h;
}

static int by_size(const void *a, const void *b)
{
    const struct memmap_piece *x = *(const struct memmap_piece *const *)a;
    const struct memmap_piece *y = *(const struct memmap_piece *const *)b;

    if (x->whole != y->whole)
        return x->whole > y->whole ? -1 : 1;
    return x->who < y->who ? -1 : x->who > y->who;
}

static bool largest(FILE *out, const struct memmap *map, const struct memmap_moment *m)
{
    const struct memmap_piece **order = malloc((m->count + 1) * sizeof(const void *));
    char bytes[CLI_NUMBER_MAX];
    unsigned shown = 0;
    uint64_t last = UINT64_MAX;

    if (!order)
        return false;
    for (size_t i = 0; i < m->count; i++)
        order[i] = &m->pieces[i];
    if (m->count) {
        /* NOLINTNEXTLINE(bugprone-sizeof-expression): an array of pointers */
        qsort(order, m->count, sizeof(*order), by_size);
    }
    fprintf(out,
            "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Largest\"><table>"
            "<caption>Largest</caption><thead><tr><th>%s</th><th>bytes</th><th class=\"t\">how</th>"
            "</tr></thead><tbody>\n",
            map->who);
    for (size_t i = 0; i < m->count && shown < LARGEST; i++) {
        if (order[i]->who == last)
            continue;
        last = order[i]->who;
        shown++;
        fprintf(out, "<tr><td>%s%llx</td><td>%s</td><td class=\"t\">%s%s</td></tr>\n",
                last > 0xffffff ? "0x" : "", (unsigned long long)last,
                cli_format_bytes(order[i]->whole, bytes),
                order[i]->flags & MEMMAP_STITCHED ? "stitched " : "in one piece ",
                order[i]->flags & MEMMAP_ALIASED ? ", a frame at several addresses" : "");
    }
    fputs("</tbody></table></div>\n", out);
    free(order);
    return true;
}

static bool moment(FILE *out, const struct memmap *map, const struct places *places, unsigned at)
{
    const struct memmap_moment *m = &map->moments[at];
    struct holes holes = holes_of(m);
    uint64_t stitched = 0, aliased = 0;
    char a[CLI_NUMBER_MAX], b[CLI_NUMBER_MAX], c[CLI_NUMBER_MAX], d[CLI_NUMBER_MAX],
        e[CLI_NUMBER_MAX];

    for (size_t i = 0; i < m->count; i++) {
        stitched += m->pieces[i].flags & MEMMAP_STITCHED ? m->pieces[i].bytes : 0;
        aliased += m->pieces[i].flags & MEMMAP_ALIASED ? m->pieces[i].bytes : 0;
    }
    fprintf(out, "<article class=\"card m m%u\"><h2>", at);
    html_text(out, m->label);
    fputs("</h2>\n", out);
    picture(out, places, m, at);
    fprintf(out,
            "<p>%s in use by %llu %ss, %s held (%.1f%%). %llu holes, the largest %s. %s stitched, "
            "%s of frames at several addresses.</p>\n",
            cli_format_bytes(m->live_bytes, a), (unsigned long long)m->blocks, map->who,
            cli_format_bytes(m->held_bytes, b),
            m->held_bytes ? 100 * (double)m->live_bytes / (double)m->held_bytes : 0,
            (unsigned long long)holes.count, cli_format_bytes(holes.largest, c),
            cli_format_bytes(stitched, d), cli_format_bytes(aliased, e));
    fputs("<details><summary>Largest</summary>\n", out);
    if (!largest(out, map, m))
        return false;
    fputs("</details></article>\n", out);
    return true;
}

/* ------------------------------------------------------------ the page */

static void curve(FILE *out, const struct memmap *map)
{
    static struct chart_lines c; /* large, and one is drawn at a time */

    memset(&c, 0, sizeof(c));
    c.title = "In use and held";
    c.x.label = map->time;
    c.y.bytes = true;
    c.y.label = "";
    c.count = 2;
    snprintf(c.series[0].name, sizeof(c.series[0].name), "held");
    snprintf(c.series[1].name, sizeof(c.series[1].name), "in use");
    c.series[0].colour = 6;
    for (unsigned i = 0; i < map->count; i++)
        for (unsigned s = 0; s < 2; s++) {
            const struct memmap_moment *m = &map->moments[i];

            c.series[s].x[i] = (double)m->when;
            c.series[s].y[i] = (double)(s ? m->live_bytes : m->held_bytes);
            c.series[s].count = i + 1;
        }
    fputs("<div class=\"card\"><h3>Over time</h3>\n", out);
    svg_lines(out, &c);
    fputs("</div>\n", out);
}

static char *style_of(const struct memmap *map)
{
    static const char common[] =
        ".map{display:block;width:100%;height:auto;background:var(--bg);border-radius:6px}"
        ".ho{fill:var(--line)}.st{fill:var(--ink)}.al{fill:#ffd400}.m{display:none}"
        ".pick{display:flex;flex-wrap:wrap;gap:6px;margin:14px 0;padding:0;border:0}"
        ".pick label{border:1px solid var(--line);background:var(--card);border-radius:8px;"
        "padding:4px 9px;font-size:.85rem;cursor:pointer}"
        "input[name=m]{position:absolute;opacity:0}#slide{width:100%;margin:12px 0}"
        ".key{display:flex;flex-wrap:wrap;gap:6px 18px;font-size:.9rem;color:var(--soft)}"
        ".key i{display:inline-block;width:26px;height:12px;margin-right:6px;vertical-align:-1px}"
        ".maps{display:grid;gap:16px;grid-template-columns:minmax(0,1fr);max-width:860px}\n";
    size_t room = sizeof(common) + map->count * 220u, used;
    char *style = malloc(room);

    if (!style)
        return NULL;
    used = (size_t)snprintf(style, room, "%s", common);
    for (unsigned i = 0; i < map->count; i++)
        used += (size_t)snprintf(style + used, room - used,
                                 "#m%u:checked~.maps .m%u{display:block}"
                                 "#m%u:checked~.pick label[for=m%u]{border-color:var(--accent);"
                                 "color:var(--accent);font-weight:650}"
                                 "#m%u:focus-visible~.pick label[for=m%u]{outline:2px solid}\n",
                                 i, i, i, i, i, i);
    return style;
}

static void head(FILE *out, const struct memmap *map)
{
    fputs("<header><h1>Who holds which memory</h1>\n<p class=\"lead\">", out);
    html_text(out, map->what);
    fputs("</p>\n<p class=\"meta\">", out);
    html_text(out, map->source);
    fputs("</p>\n<p class=\"key\"><span><i style=\"background:var(--s0)\"></i>in use; a colour is "
          "one ",
          out);
    html_text(out, map->who);
    fputs(
        "</span><span><i style=\"background:linear-gradient(var(--s2) 65%,var(--ink) 65%)\"></i>"
        "stitched</span><span><i style=\"background:linear-gradient(#ffd400 35%,var(--s2) 35%)\">"
        "</i>frame shown at several addresses</span><span><i style=\"background:var(--line)\"></i>"
        "held, free: a hole</span><span><i style=\"background:var(--bg);outline:1px solid "
        "var(--line)\"></i>not held then</span></p></header>\n",
        out);
}

/* The moment with most in use is shown first. */
static unsigned fullest(const struct memmap *map)
{
    unsigned best = 0;

    for (unsigned i = 1; i < map->count; i++)
        if (map->moments[i].live_bytes > map->moments[best].live_bytes)
            best = i;
    return best;
}

static void script(FILE *out, const struct memmap *map)
{
    fprintf(out,
            "<script>\n(()=>{const r=[...document.querySelectorAll('input[name=m]')],"
            "s=document.createElement('input');s.type='range';s.id='slide';s.min=0;s.max=%u;"
            "s.setAttribute('aria-label','moment');"
            "const now=()=>r.findIndex(e=>e.checked);s.value=now();"
            "s.oninput=()=>{r[s.value].checked=true};"
            "r.forEach(e=>e.addEventListener('change',()=>{s.value=now()}));"
            "document.querySelector('.pick').before(s)})();\n</script>\n",
            map->count - 1);
}

bool memmap_write(FILE *out, const struct memmap *map)
{
    struct places places = {.pages = NULL};
    char *style = style_of(map);
    unsigned first = fullest(map);
    bool whole = style && collect(map, &places);

    page_begin(out, "Who holds which memory", style ? style : "");
    free(style);
    head(out, map);
    fputs("<main>\n", out);
    for (unsigned i = 0; i < map->count; i++)
        fprintf(out, "<input type=\"radio\" name=\"m\" id=\"m%u\" aria-label=\"moment %u\"%s>\n", i,
                i + 1, i == first ? " checked" : "");
    fputs("<div class=\"pick\" role=\"group\" aria-label=\"Moments\">", out);
    for (unsigned i = 0; i < map->count; i++)
        fprintf(out, "<label for=\"m%u\">%u</label>", i, i + 1);
    fputs("</div>\n<div class=\"maps\">\n", out);
    for (unsigned i = 0; whole && i < map->count; i++)
        whole = moment(out, map, &places, i);
    if (map->count > 1)
        curve(out, map);
    fputs("</div>\n", out);
    if (map->count > 1)
        script(out, map);
    fputs("</main>\n<footer><p>Rows are memory that was held at some moment, in the order of its "
          "addresses.</p></footer>\n",
          out);
    page_end(out);
    free(places.pages);
    return whole;
}
