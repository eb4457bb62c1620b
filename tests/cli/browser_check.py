"""Opens a page in a real browser, at the width of a phone and of a desk, and says what is wrong with it.

    browser_check.py BROWSER PAGE [--screenshot PREFIX]

Asks: does anything reach beyond the window, has every picture a size and a title, is any text of a picture smaller
than 9 pixels, did the console report an error, is something loaded from elsewhere. Prints one line for each finding;
exit status 1 if there is one. The page is shown in a frame of the wanted width, as browsers without a screen refuse
narrow windows.
"""
import html
import json
import pathlib
import re
import subprocess
import sys
import tempfile

WIDTHS = (390, 1200)
PROBE = """
const f = document.getElementById('f');
f.addEventListener('load', () => {
    const d = f.contentDocument, found = [], wide = f.clientWidth;
    d.querySelectorAll('details').forEach(e => { e.open = true; });
    if (d.documentElement.scrollWidth > wide)
        found.push('the page is ' + d.documentElement.scrollWidth + ' pixels wide');
    const svgs = d.querySelectorAll('svg');
    let shown = 0;
    svgs.forEach((svg, i) => {
        const box = svg.getBoundingClientRect(), title = svg.querySelector('title');
        const name = title ? title.textContent : 'picture ' + i;
        const moment = svg.closest('.m');
        if (moment && d.defaultView.getComputedStyle(moment).display === 'none')
            return; /* another moment is chosen; one of them is shown */
        shown++;
        if (box.width < 100 || box.height < 20)
            found.push(name + ': ' + box.width + ' x ' + box.height);
        if (box.right > wide + 0.5)
            found.push(name + ' reaches to ' + box.right);
        if (!title || svg.getAttribute('role') !== 'img')
            found.push(name + ' has no title or is not said to be a picture');
        const scale = svg.viewBox.baseVal && svg.viewBox.baseVal.width ? box.width / svg.viewBox.baseVal.width : 1;
        svg.querySelectorAll('text').forEach(t => {
            const size = parseFloat(d.defaultView.getComputedStyle(t).fontSize) * scale;
            const at = t.getBoundingClientRect();
            if (size < 9)
                found.push(name + ': text of ' + size.toFixed(1) + ' pixels: ' + t.textContent);
            if (at.right > box.right + 12 || at.left < box.left - 12)
                found.push(name + ': text beyond its picture: ' + t.textContent);
        });
    });
    if (svgs.length && !shown)
        found.push('no picture is shown');
    document.getElementById('r').textContent = JSON.stringify(
        {found: found, pictures: svgs.length, tables: d.querySelectorAll('table').length,
         text: d.body.innerText.length});
});
"""


def wrapper(page, width):
    return (f"<!DOCTYPE html><meta charset=utf-8><body style='margin:0'><script id=r type=text/plain></script>"
            f"<iframe id=f style='border:0;width:{width}px;height:2400px' srcdoc=\"{html.escape(page)}\"></iframe>"
            f"<script>{PROBE}</script>")


def browse(browser, path, *more):
    # A profile of its own; no sandbox, as tests may run as root in a container.
    with tempfile.TemporaryDirectory() as profile:
        return subprocess.run(
            [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-dev-shm-usage",
             f"--user-data-dir={profile}", "--enable-logging=stderr", "--v=0", "--virtual-time-budget=8000", *more,
             path.as_uri()], capture_output=True, text=True, timeout=600, check=False)


def check(browser, page, width, scratch, picture):
    path = scratch / f"{width}.html"
    path.write_text(wrapper(page, width), encoding="utf-8")
    run = browse(browser, path, "--dump-dom", f"--window-size={max(width, 500)},2400")
    result = re.search(r'<script id="r"[^>]*>(.*?)</script>', run.stdout, re.DOTALL)
    if not result or not result[1].strip():
        return [f"at {width} pixels: the page did not load: {run.stderr.strip()[-400:]}"], None
    result = json.loads(html.unescape(result[1]))
    found = [f"at {width} pixels: {line}" for line in result["found"][:20]]
    found += [f"console: {line}" for line in run.stderr.splitlines() if "CONSOLE" in line]
    if picture:
        browse(browser, path, f"--screenshot={picture}-{width}.png", f"--window-size={max(width, 500)},2400")
    return found, result


def main():
    browser, name = sys.argv[1], pathlib.Path(sys.argv[2])
    picture = sys.argv[4] if len(sys.argv) > 4 else None
    page = name.read_text(encoding="utf-8")
    found = [f"refers to elsewhere: {link}" for link in
             re.findall(r'(?:src|href)="((?!#|data:)[^"]*)"', page) + re.findall(r"url\(([^)]*)\)|@import", page)]
    with tempfile.TemporaryDirectory() as scratch:
        for width in WIDTHS:
            more, result = check(browser, page, width, pathlib.Path(scratch), picture)
            found += more
    if result:
        print(f"pictures {result['pictures']} tables {result['tables']} text {result['text']}")
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
