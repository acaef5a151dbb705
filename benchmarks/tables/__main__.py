"""Writes the tables of the README and the docs from the committed results.

python -m benchmarks.tables [--check]
"""

from __future__ import annotations

import sys

from benchmarks.common.contenders import ROOT
from benchmarks.common.options import parser_of
from benchmarks.tables.pages import PAGES, PICTURES, made, write_pages


def main() -> None:
    """Write or check."""
    parser = parser_of(__doc__)
    parser.add_argument("--check", action="store_true", help="fail if a page differs from the results")
    if not parser.parse_args().check:
        write_pages()
        return
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        if made(text) != text:
            sys.exit(f"{page.relative_to(ROOT)} is out of step with the results; run this without --check")
    for picture, draw in PICTURES.items():
        if not picture.exists() or picture.read_text(encoding="utf-8") != draw():
            sys.exit(f"{picture.relative_to(ROOT)} is out of step with the results; run this without --check")


if __name__ == "__main__":
    main()
