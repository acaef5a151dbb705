"""The site's gallery and notebooks: a page for each, with its text, its output and its pictures.

A hook of MkDocs. Examples and notebooks run while the site is built. Their outputs are kept in build/gallery
by the text of the example and of the library, so that a second build is quick.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

from cells import ipynb, markdown
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "build" / "gallery"
EPOCH = re.compile(r"^epoch +\d+: ([a-z ]+) (\d+\.\d+)$", re.MULTILINE)
LONGEST = 60
"""Lines of output that a page shows."""
WIDTH, HEIGHT = 420, 120


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages; called by MkDocs.

    Raises:
        RuntimeError: an example failed.
    """
    lines = [
        "# Gallery",
        "",
        "Each example runs in seconds on a small built-in graph: `python examples/NAME.py`.",
        "",
    ]
    library = hashlib.sha256(b"".join(p.read_bytes() for p in sorted((ROOT / "src").rglob("*.py"))))
    for path in sorted((ROOT / "examples").glob("*.py")):
        text = path.read_text(encoding="utf-8")
        title, _, rest = (ast.get_docstring(ast.parse(text)) or path.stem).partition("\n")
        output = output_of(path, library.hexdigest())
        shown = "\n".join(output.splitlines()[:LONGEST])
        parts = [f"# {path.stem.replace('_', ' ').capitalize()}", title, rest.strip(), curve(output)]
        parts += [
            f"It prints:\n\n```text\n{shown}\n```",
            f'```python title="examples/{path.name}"\n{text}```',
        ]
        page = f"gallery/{path.stem}.md"
        files.append(File.generated(config, page, content="\n\n".join(part for part in parts if part)))
        lines.append(f"- [{path.stem.replace('_', ' ').capitalize()}]({path.stem}.md): {title}")
    files.append(File.generated(config, "gallery/index.md", content="\n".join(lines)))
    for path in sorted((ROOT / "docs" / "notebooks").glob("*.py")):
        output = output_of(path, library.hexdigest(), str(Path(__file__).parent / "cells.py"))
        shown = json.loads(output) if output.startswith("[") else []
        links = f"[Download {path.stem}.ipynb]({path.stem}.ipynb), or [as Python]({path.name})"
        text = "\n\n".join([markdown(path, shown), *([] if shown else [output]), links])
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=text))
        files.append(File.generated(config, f"notebooks/{path.stem}.ipynb", content=ipynb(path)))
    return files


def output_of(path: Path, library: str, *runner: str) -> str:
    """Lines that an example prints, run by a script if one is given; kept for the next build."""
    kept = KEPT / f"{path.stem}-{hashlib.sha256((library + path.read_text()).encode()).hexdigest()[:16]}.txt"
    if not kept.exists():
        done = subprocess.run(
            [sys.executable, *runner, path], capture_output=True, text=True, timeout=600, check=False
        )
        if missing := re.search(r"^ModuleNotFoundError: (.*)$", done.stderr, re.MULTILINE):
            return f"(not run when this page was built: {missing[1]})"
        if done.returncode:
            raise RuntimeError(f"{path} failed:\n{done.stderr[-2000:]}")
        KEPT.mkdir(parents=True, exist_ok=True)
        kept.write_text(done.stdout, encoding="utf-8")
    return kept.read_text(encoding="utf-8")


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
