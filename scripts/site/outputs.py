"""Outputs of examples and notebooks with their pictures, kept in build/gallery by example and library.

Their tests keep what they print, so that the site, which is built after the tests, need not run them again.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "build" / "gallery"
EPOCH = re.compile(r"^epoch +\d+: ([a-z ]+) (\d+\.\d+)$", re.MULTILINE)
SHARE = re.compile(r"([A-Za-z][\w:,. ]*?)[: ]+([01]\.\d{3,})|(\d+) of (\d+) (\w+)")
"""A name with a number from 0 to 1, or so many of so many."""
WIDTH, HEIGHT = 420, 120


@functools.cache
def _library() -> str:
    parts = (path.read_bytes() for path in sorted((ROOT / "src").rglob("*.py")))
    return hashlib.sha256(b"".join(parts)).hexdigest()


def kept_output(path: Path) -> Path:
    """The file that keeps what an example prints; it is there if the example has run."""
    text = _library() + path.read_text(encoding="utf-8")
    return KEPT / f"{path.stem}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.txt"


def keep(path: Path, output: str) -> None:
    """Keep what an example has printed."""
    KEPT.mkdir(parents=True, exist_ok=True)
    file = kept_output(path)
    aside = file.with_suffix(f".{os.getpid()}")
    aside.write_text(output, encoding="utf-8")
    aside.replace(file)


def picture(output: str) -> str:
    """The curve of the epochs, or else a bar for each share that is printed; empty without any."""
    return curve(output) or bars(output)


def curve(output: str) -> str:
    """The value of each epoch as a picture, or nothing where fewer than three epochs are printed."""
    found = EPOCH.findall(output)
    values = [float(value) for name, value in found if name == found[0][0]]
    if len(values) < 3:
        return ""
    low, high = min(values), max(values)
    points = [
        (30 + i * (WIDTH - 60) / (len(values) - 1), 16 + (high - v) / (high - low or 1) * (HEIGHT - 40))
        for i, v in enumerate(values)
    ]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    ends = "".join(
        f'<text x="{x:.0f}" y="{y - 6:.0f}" text-anchor="middle" font-size="11">{v:.2f}</text>'
        for (x, y), v in ((points[0], values[0]), (points[-1], values[-1]))
    )
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" style="max-width:{WIDTH}px" fill="currentColor" role="img">'
        f"<title>{found[0][0]} by epoch</title>"
        f'<polyline points="{line}" fill="none" stroke="#0a9588" stroke-width="2"/>{ends}'
        f'<text x="{WIDTH / 2:.0f}" y="{HEIGHT - 6}" text-anchor="middle" font-size="11">'
        f"{found[0][0]} by epoch</text></svg>"
    )


def bars(output: str) -> str:
    """A bar for each number from 0 to 1, and for each count of a whole."""
    found = []
    for name, value, part, whole, what in SHARE.findall(output):
        share = float(value) if value else int(part) / max(int(whole), 1)
        shown = value or f"{part} of {whole}"
        if share <= 1:
            found.append((name.removesuffix(" has an accuracy of").strip() or what, share, shown))
    if not found:
        return ""
    row, left = 24, 230
    parts = []
    for number, (name, share, shown) in enumerate(found):
        y, long = 8 + number * row, share * (WIDTH - left - 70)
        short = name if len(name) <= 38 else f"{name[:37]}…"
        parts.append(f'<text x="{left - 8}" y="{y + 13}" text-anchor="end">{escape(short)}</text>')
        parts.append(f'<rect x="{left}" y="{y}" width="{long:.1f}" height="{row - 8}" fill="#0a9588"/>')
        parts.append(f'<text x="{left + long + 6:.1f}" y="{y + 13}">{shown}</text>')
    height = 16 + row * len(found)
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" style="max-width:{WIDTH}px" fill="currentColor" font-size="11" '
        f'role="img"><title>numbers of the example</title>{"".join(parts)}</svg>'
    )
