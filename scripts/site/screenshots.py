"""Take pictures of the site's main pages and of both report pages, as a phone, a tablet and a desk show them.

    make docs && python scripts/site/screenshots.py site

Writes docs/screenshots/NAME-WIDTH.webp, and says how large all are together. Needs Chromium and Pillow.
The reports are of a run that the script makes: by a plan, with rows on disk and a trace.
"""

from __future__ import annotations

import functools
import http.server
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from check import WIDTHS, Quiet
from PIL import Image

ROOT = Path(__file__).parents[2]
PLACE = ROOT / "docs" / "screenshots"
PAGES = {
    "home": "/",
    "install": "/install/",
    "tutorial": "/tutorial/",
    "guide": "/guides/from_pyg/",
    "notebook": "/notebooks/first_hour/",
    "gallery": "/gallery/",
    "reference": "/api/training/",
    "results": "/results/",
}
HEIGHT = 1100
REPORT_HEIGHT = 2600
QUALITY = 40
RUN = (
    *("convert", "braid-100k", "store"),
    *("train", "--data", "store", "--model", "sage", "--epochs", "8", "--batch-size", "64", "--seed", "1"),
    *("--plan", "auto", "--host", "512KiB", "--trace", "run/trace.json", "--out", "run", "--quiet"),
    *("report", "run"),
)


def main() -> None:
    """Take all pictures of the site that the command names."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("chromium is not installed")
    shutil.rmtree(PLACE, ignore_errors=True)
    PLACE.mkdir()
    handler = functools.partial(Quiet, directory=sys.argv[1])
    with (
        http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server,
        tempfile.TemporaryDirectory() as folder,
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        make_run(Path(folder))
        shots = [
            (name, f"http://127.0.0.1:{server.server_port}{page}", HEIGHT) for name, page in PAGES.items()
        ]
        shots.append(("report", f"file://{folder}/run/report.html", REPORT_HEIGHT))
        shots.append(("timeline", f"file://{folder}/run/trace.html", HEIGHT))
        for name, url, height in shots:
            for width in WIDTHS:
                take(browser, url, PLACE / f"{name}-{width}.webp", width, height)
        server.shutdown()
    print(f"{sum(path.stat().st_size for path in PLACE.iterdir()) / 1e6:.2f} MB in {PLACE}")


def make_run(folder: Path) -> None:
    """Train, and write both report pages."""
    begins = [at for at, word in enumerate(RUN) if word in ("convert", "train", "report")]
    for begin, end in zip(begins, [*begins[1:], len(RUN)], strict=True):
        command = [str(Path(sys.executable).with_name("graphbraid")), *RUN[begin:end]]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)


def take(browser: str, url: str, place: Path, width: int, height: int) -> None:
    """Take one picture. Chromium's window is at least 500 pixels wide, so a frame has the width."""
    with tempfile.TemporaryDirectory() as folder:
        frame = Path(folder) / "frame.html"
        style = f"border:0;width:{width}px;height:{height}px"
        frame.write_text(f'<body style="margin:0"><iframe src="{url}" style="{style}"></iframe>')
        switches = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        switches += ["--disable-background-networking", f"--user-data-dir={folder}/profile"]
        switches += [f"--window-size={max(width, 500)},{height}", f"--screenshot={folder}/shot.png"]
        switches += ["--virtual-time-budget=8000", frame.as_uri()]
        subprocess.run([browser, *switches], capture_output=True, timeout=300, check=True)
        with Image.open(f"{folder}/shot.png") as shot:
            shot.convert("RGB").crop((0, 0, width, height)).save(place, quality=QUALITY, method=6)


if __name__ == "__main__":
    main()
