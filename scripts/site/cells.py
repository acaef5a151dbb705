"""Runs a notebook: a Python file whose cells begin with ``# %%`` or ``# %% [markdown]`` (percent format).

``python scripts/site/cells.py docs/notebooks/first_hour.py`` prints the output of each cell as JSON,
as Jupyter would show it: printed lines, and then the last expression by its ``_repr_html_`` or ``repr``.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import linecache
import re
import sys
from pathlib import Path
from typing import Any

CELL = re.compile(r"^# %%( \[markdown\])?\n", re.MULTILINE)


def cells(text: str) -> list[tuple[str, str]]:
    """Kind (``markdown`` or ``code``) and source of each cell; the text before the first one is no cell."""
    _, *parts = CELL.split(text)
    pairs = zip(parts[::2], parts[1::2], strict=True)
    return [
        ("markdown", re.sub("^# ?", "", source.strip(), flags=re.MULTILINE))
        if mark
        else ("code", source.strip())
        for mark, source in pairs
    ]


def run(path: Path) -> list[dict[str, str]]:
    """Run the code cells in one namespace; return the ``text`` and ``html`` that each shows."""
    names: dict[str, Any] = {"__name__": "__main__"}
    shown = []
    for number, (kind, source) in enumerate(cells(path.read_text(encoding="utf-8"))):
        if kind == "markdown":
            continue
        file = f"{path.stem}, cell {number}"
        # Models are read with the lines of their source, which errors and graph breaks name.
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
        tree = ast.parse(source, file)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        printed = io.StringIO()
        value = None
        with contextlib.redirect_stdout(printed):
            exec(compile(tree, file, "exec"), names)
            if last is not None:
                value = eval(compile(ast.Expression(last.value), file, "eval"), names)
        html = value._repr_html_() if hasattr(value, "_repr_html_") else ""
        text = printed.getvalue() + ("" if value is None or html else f"{value!r}\n")
        shown.append({"text": text, "html": html})
    return shown


def markdown(path: Path, shown: list[dict[str, str]]) -> str:
    """The page of a notebook: its text, its code, and under it what the code shows."""
    parts, outputs = [], iter(shown)
    for kind, source in cells(path.read_text(encoding="utf-8")):
        parts.append(source if kind == "markdown" else f"```python\n{source}\n```")
        if kind == "code" and (output := next(outputs, None)):
            parts += [f"```text\n{output['text'].rstrip()}\n```"] if output["text"] else []
            parts += [output["html"]] if output["html"] else []
    return "\n\n".join(parts)


def ipynb(path: Path) -> str:
    """The notebook in Jupyter's format, without outputs."""
    found = [
        {"cell_type": kind, "id": f"cell{number}", "metadata": {}, "source": source}
        | ({"execution_count": None, "outputs": []} if kind == "code" else {})
        for number, (kind, source) in enumerate(cells(path.read_text(encoding="utf-8")))
    ]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return json.dumps(
        {"cells": found, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}, indent=1
    )


if __name__ == "__main__":
    print(json.dumps(run(Path(sys.argv[1]))))
