/* SPDX-License-Identifier: MIT */
#include "page.h"

#include "svg.h"

/* Okabe and Ito's colours, which also the colour-blind tell apart, lighter on dark ground. */
static const char *const style[] = {
    ":root{--bg:#fbfaf7;--card:#fff;--ink:#1c2330;--soft:#5b6472;--line:#e3e1db;--grid:#ecebe6;"
    "--accent:#0b5c8a;--s0:#0072b2;--s1:#d55e00;--s2:#009e73;--s3:#a3478a;--s4:#b98a00;"
    "--s5:#3f8fc0;--s6:#6b6f76;--s7:#8a5a2b;--good:#0a7a55;--bad:#b3261e}\n",
    "@media(prefers-color-scheme:dark){:root{--bg:#12161d;--card:#1a202a;--ink:#e8eaee;"
    "--soft:#a3acba;--line:#2c3442;--grid:#262e3a;--accent:#7cc4ee;--s0:#56b4e9;--s1:#f0883e;"
    "--s2:#2cc295;--s3:#d98bc4;--s4:#e6c229;--s5:#8ecdf2;--s6:#a3a8b0;--s7:#c99a6b;--good:#4fd1a1;"
    "--bad:#ff8a80}}\n",
    "*{box-sizing:border-box}html{-webkit-text-size-adjust:100%;scroll-behavior:smooth}"
    "body{margin:0;background:var(--bg);color:var(--ink);"
    "font:16px/1.55 system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',sans-serif}"
    "header,main,footer{max-width:1080px;margin:0 auto;padding:0 16px}\n",
    "header{padding-top:40px}h1{font-size:clamp(1.7rem,5vw,2.5rem);line-height:1.15;margin:0 0 8px;"
    "letter-spacing:-.02em}h2{font-size:1.45rem;margin:0 0 6px;letter-spacing:-.01em}"
    "h3{font-size:1rem;margin:0 0 10px;line-height:1.35}p{margin:0 0 12px;max-width:70ch}"
    "a{color:var(--accent)}\n",
    ".lead{color:var(--soft);font-size:1.06rem}.meta{color:var(--soft);font-size:.86rem;"
    "overflow-wrap:anywhere}section{padding:34px 0 6px;border-top:1px solid var(--line);"
    "margin-top:30px;scroll-margin-top:8px}\n",
    "nav ul{list-style:none;display:flex;flex-wrap:wrap;gap:8px;margin:18px 0 0;padding:0}"
    "nav a{display:block;padding:5px 12px;border:1px solid var(--line);border-radius:999px;"
    "background:var(--card);text-decoration:none;font-size:.88rem;color:var(--ink)}"
    "nav a:hover,nav a:focus{border-color:var(--accent)}\n",
    ".cards{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,430px),1fr));"
    "gap:16px;margin:16px 0}.card{background:var(--card);border:1px solid var(--line);"
    "border-radius:12px;padding:16px;min-width:0}.card p{font-size:.86rem;color:var(--soft);"
    "margin:8px 0 0}\n",
    ".scroll{overflow-x:auto;-webkit-overflow-scrolling:touch;border:1px solid var(--line);"
    "border-radius:10px;background:var(--card);margin:12px 0}table{border-collapse:collapse;"
    "width:100%;font-size:.875rem;font-variant-numeric:tabular-nums}"
    "th,td{padding:7px 10px;text-align:right;white-space:nowrap;"
    "border-bottom:1px solid var(--line)}tr:last-child td{border-bottom:0}"
    "th{color:var(--soft);font-weight:600;background:var(--bg)}"
    "th:first-child,td:first-child,.t{text-align:left}.w{white-space:normal;min-width:11rem}"
    "td.best{color:var(--good);font-weight:650}caption{text-align:left;padding:10px;"
    "font-weight:600}\n",
    "details{margin:10px 0}summary{cursor:pointer;color:var(--accent);font-size:.92rem;"
    "padding:6px 0}.badge{display:inline-block;font-size:.72rem;line-height:1.5;padding:0 7px;"
    "border-radius:999px;border:1px solid currentColor;white-space:nowrap;vertical-align:1px;"
    "font-weight:600}.k0{color:var(--good)}.k1{color:var(--s3)}.k2{color:var(--s1)}"
    ".k3{color:var(--soft)}\n",
    "svg.chart{display:block;width:100%;height:auto;max-width:520px;overflow:visible}"
    "svg text{font:12.5px system-ui,-apple-system,'Segoe UI',Roboto,sans-serif;fill:var(--ink)}"
    "svg .tick,svg .label{fill:var(--soft);font-size:12px}svg .value{font-weight:650}"
    "svg .grid{stroke:var(--grid);fill:none}svg .axis{stroke:var(--soft);fill:none}"
    "svg .track{fill:var(--grid)}svg .line{fill:none;stroke-width:2.2;stroke-linejoin:round}\n",
    ".s0{fill:var(--s0)}.s1{fill:var(--s1)}.s2{fill:var(--s2)}.s3{fill:var(--s3)}"
    ".s4{fill:var(--s4)}.s5{fill:var(--s5)}.s6{fill:var(--s6)}.s7{fill:var(--s7)}"
    ".l0{stroke:var(--s0)}.l1{stroke:var(--s1)}.l2{stroke:var(--s2)}.l3{stroke:var(--s3)}"
    ".l4{stroke:var(--s4);stroke-dasharray:6 3}.l5{stroke:var(--s5);stroke-dasharray:6 3}"
    ".l6{stroke:var(--s6);stroke-dasharray:6 3}.l7{stroke:var(--s7);stroke-dasharray:6 3}\n",
    "@media(max-width:600px){th,td{padding:7px 7px}td:first-child{white-space:normal;"
    "min-width:7rem}}\n",
    "footer{padding:30px 16px 50px;color:var(--soft);font-size:.86rem}"
    "@media print{nav{display:none}section{break-inside:avoid}}\n",
};

void page_begin(FILE *out, const char *title, const char *more_style)
{
    fputs("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
          "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n"
          "<meta name=\"color-scheme\" content=\"light dark\">\n"
          "<link rel=\"icon\" href=\"data:,\">\n<title>",
          out);
    html_text(out, title);
    fputs("</title>\n<style>\n", out);
    for (size_t i = 0; i < sizeof(style) / sizeof(style[0]); i++)
        fputs(style[i], out);
    fputs(more_style, out);
    fputs("</style>\n</head>\n<body>\n", out);
}

void page_end(FILE *out)
{
    fputs("</body>\n</html>\n", out);
}

void page_badge(FILE *out, enum figure_kind kind)
{
    fprintf(out, "<span class=\"badge k%d\">%s</span>", (int)kind, figure_kind_name(kind));
}
