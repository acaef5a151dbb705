"""The site's gallery and notebooks: a page for each, with its text, its output and its pictures.

A hook of MkDocs. Examples and notebooks run while the site is built, unless their outputs are kept from their
tests or from an earlier build (outputs.py).
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

from cells import ipynb, markdown
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from outputs import keep, kept_output, picture

ROOT = Path(__file__).parents[2]
_CASE = {"pyg": "PyG", "csv": "CSV", "sage": "SAGE", "optuna": "Optuna", "ray": "Ray"}
LONGEST = 60
"""Lines of output that a page shows."""


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
    for path in sorted((ROOT / "examples").glob("*.py")):
        text = path.read_text(encoding="utf-8")
        title, _, rest = (ast.get_docstring(ast.parse(text)) or path.stem).partition("\n")
        output = output_of(path)
        shown = "\n".join(output.splitlines()[:LONGEST])
        parts = [f"# {named(path)}", title, rest.strip(), picture(output)]
        parts += [
            f"It prints:\n\n```text\n{shown}\n```",
            f'```python title="examples/{path.name}"\n{text}```',
        ]
        page = f"gallery/{path.stem}.md"
        files.append(File.generated(config, page, content="\n\n".join(part for part in parts if part)))
        lines.append(f"- [{named(path)}]({path.stem}.md): {title}")
    files.append(File.generated(config, "gallery/index.md", content="\n".join(lines)))
    for path in sorted((ROOT / "docs" / "notebooks").glob("*.py")):
        output = output_of(path, str(Path(__file__).parent / "cells.py"))
        shown = json.loads(output) if output.startswith("[") else []
        links = (
            f"Download this notebook: [{path.stem}.ipynb]({path.stem}.ipynb), or [as Python]({path.name})."
        )
        text = "\n\n".join([markdown(path, shown), *([] if shown else [output]), links])
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=text))
        files.append(File.generated(config, f"notebooks/{path.stem}.ipynb", content=ipynb(path)))
    return files


def named(path: Path) -> str:
    """The title of an example: its name in words."""
    words = [_CASE.get(word, word) for word in path.stem.split("_")]
    return " ".join([words[0][0].upper() + words[0][1:], *words[1:]])


def output_of(path: Path, *runner: str) -> str:
    """Lines that an example prints, run by a script if one is given; kept for the next build."""
    kept = kept_output(path)
    if not kept.exists():
        done = subprocess.run(
            [sys.executable, *runner, path], capture_output=True, text=True, timeout=600, check=False
        )
        if missing := re.search(r"^ModuleNotFoundError: (.*)$", done.stderr, re.MULTILINE):
            return f"(not run when this page was built: {missing[1]})"
        if done.returncode:
            raise RuntimeError(f"{path} failed:\n{done.stderr[-2000:]}")
        keep(path, done.stdout)
    return kept.read_text(encoding="utf-8")
