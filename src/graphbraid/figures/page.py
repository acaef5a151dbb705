"""HTML: a page with its sections, an object's display in a notebook, and the tables of both."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

PARTS = """
.scroll{overflow-x:auto}table{border-collapse:collapse}th,td{padding:.2rem .8rem .2rem 0;text-align:left;
border-bottom:1px solid #8884;white-space:nowrap}
@media(max-width:600px){tr:not(:has(td:nth-child(3)))>td{white-space:normal}}
pre{background:#8881;padding:.7rem;overflow-x:auto;font-size:.85em}@media(min-width:800px){pre{white-space:pre-wrap}}
.figures{display:flex;flex-wrap:wrap;gap:1rem}figure{margin:0;flex:1 1 300px;max-width:100%}
figcaption{font-weight:600}svg{width:100%;height:auto;font-size:11px;fill:currentColor}
.grid{stroke:currentColor;stroke-opacity:.15;fill:none}.legend span{margin-right:1rem;white-space:nowrap}
.legend i{display:inline-block;width:.8em;height:.8em;margin-right:.3em}
"""
"""Style of tables, text and charts. Their colours are translucent or the text's, to suit light and dark."""
STYLE = """
:root{color-scheme:light dark}
body{font:15px/1.5 system-ui,sans-serif;margin:0 auto;padding:1rem;max-width:1080px}
h1{font-size:1.5rem;margin:.2rem 0}
h2{font-size:1.15rem;margin:2rem 0 .5rem;border-bottom:1px solid #8884}
"""


def page(title: str, sections: Iterable[tuple[str, str]]) -> str:
    """Return the page; sections without content are left out."""
    body = "".join(f"<section><h2>{escape(name)}</h2>{text}</section>" for name, text in sections if text)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}{PARTS}</style></head>"
        f"<body><h1>{escape(title)}</h1>{body}</body></html>\n"
    )


def notebook(head: str, *parts: str) -> str:
    """Return an object's display in a notebook: a line, and tables, text or charts under it.

    The style is nested, so that it leaves the rest of the notebook as it is.
    """
    style = f"<style>.graphbraid{{{PARTS}}}</style>"
    return f'<div class="graphbraid">{style}<p><b>{escape(head)}</b></p>{"".join(parts)}</div>'


def preformatted(text: object) -> str:
    """Return text as it is printed."""
    return f"<pre>{escape(str(text))}</pre>"


def table(rows: Iterable[Sequence[object]], heads: Sequence[str] = ()) -> str:
    """Return a table that scrolls by itself where the screen is narrow."""
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    lines = ("".join(f"<td>{escape(cell_text(cell))}</td>" for cell in row) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return (
        f'<div class="scroll"><table>{f"<tr>{head}</tr>" if head else ""}{body}</table></div>' if body else ""
    )


def figures(drawn: Iterable[str]) -> str:
    """Place charts side by side where the screen is wide."""
    found = "".join(drawn)
    return f'<div class="figures">{found}</div>' if found else ""


def cell_text(cell: object) -> str:
    """Return a value as a table shows it."""
    if isinstance(cell, float):
        return f"{cell:.4g}"
    return f"{cell:,}" if isinstance(cell, int) and not isinstance(cell, bool) else str(cell)
