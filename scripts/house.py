"""Prints the rooms of src/graphbraid, each with the first sentence of its docstring, and their floors.

``python scripts/house.py --write`` rewrites the blocks of docs/architecture.md that stand between markers:
the rooms, the rooms of csrc, and the floors. ``--check`` fails if the page differs from the code.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import EllipsisType
from typing import TypeAlias

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "graphbraid"
PAGE = ROOT / "docs" / "architecture.md"
_Floors: TypeAlias = Sequence[Iterable[str | EllipsisType]]
_NAME_WIDTH, _WIDTH = 18, 120


def block() -> str:
    """The tree as a Markdown text block; floors as the tests list them, lowest first."""
    return "\n".join(["```text", "src/graphbraid/", *_lines(), "```\n"])


def floors_block() -> str:
    """What may import what, as a Markdown text block: the highest floor first."""
    floors, _ = _floors()
    return "\n".join(["```text", _downwards(floors), "```\n"])


def floors_inside_block() -> str:
    """What may import what inside the rooms, as a Markdown text block."""
    _, inner_floors = _floors()
    width = max(map(len, inner_floors)) + 2
    lines = [f"{room}:".ljust(width) + _downwards(inner) for room, inner in sorted(inner_floors.items())]
    return "\n".join(["```text", *lines, "```\n"])


def csrc_rooms() -> dict[str, str]:
    """What each room of csrc is for, lowest first, as its README says."""
    text = (PACKAGE / "csrc" / "README.md").read_text(encoding="utf-8")
    return dict(re.findall(r"^- `(\w+)/`: (.+)$", text, re.MULTILINE))


def csrc_block() -> str:
    """The rooms of csrc as a Markdown text block."""
    lines = [line for name, job in csrc_rooms().items() for line in _entry(f"{name}/", job, 1)]
    return "\n".join(["```text", "csrc/", *lines, "```\n"])


def page(text: str) -> str:
    """The page ``text`` with its blocks made anew; refused where markers are missing or twice there."""
    blocks = {
        "house": block(),
        "floors": floors_block(),
        "csrc": csrc_block(),
        "floors-inside": floors_inside_block(),
    }
    for name, made in blocks.items():
        place = re.compile(rf"(?<=<!-- {name} -->\n).*?(?=<!-- /{name} -->)", re.DOTALL)
        if len(place.findall(text)) != 1:
            raise SystemExit(
                f"{PAGE.relative_to(ROOT)} needs one pair of <!-- {name} --> and <!-- /{name} --> lines"
            )
        text = place.sub(lambda _, made=made: made, text)
    return text


def _lines() -> Iterator[str]:
    floors, _ = _floors()
    modules = [path for path in PACKAGE.glob("*.py") if path.stem not in ("__init__", "__main__")]
    for module in sorted(modules, key=lambda path: (_place(path.stem, floors), path.stem)):
        yield from _entry(module.name, _sentence(module), 1)
    yield from _rooms(PACKAGE, floors, 1)
    yield from _entry("csrc/", _sentence_of_cpp(PACKAGE / "csrc" / "module.cpp"), 1)


def _rooms(folder: Path, floors: _Floors, depth: int) -> Iterator[str]:
    _, inner_floors = _floors()
    for room in _in_order(folder, floors):
        yield from _entry(f"{room.name}/", _sentence(room / "__init__.py"), depth)
        yield from _rooms(room, inner_floors.get(room.relative_to(PACKAGE).as_posix(), ()), depth + 1)


def _downwards(floors: _Floors) -> str:
    """Floors in a line, each from the one below it; an ellipsis is the modules that none names."""
    return " ▸ ".join(
        ", ".join("…" if name is ... else str(name) for name in floor) for floor in floors[::-1]
    )


def _floors() -> tuple[_Floors, dict[str, _Floors]]:
    for folder in (ROOT, ROOT / "src"):
        sys.path.insert(0, str(folder))
    from tests.test_imports import FLOORS, INNER_FLOORS

    return FLOORS, INNER_FLOORS


def _in_order(folder: Path, floors: _Floors) -> list[Path]:
    """The packages in ``folder``, lowest floor first; those that no floor names come last."""
    packages = sorted(path.parent for path in folder.glob("*/__init__.py"))
    return sorted(packages, key=lambda path: (_place(path.name, floors), path.name))


def _place(name: str, floors: _Floors) -> int:
    names = [name for floor in floors for name in floor]
    return names.index(name) if name in names else len(names)


def _sentence(module: Path) -> str:
    text = ast.get_docstring(ast.parse(module.read_text(encoding="utf-8")))
    if not text:
        raise SystemExit(
            f"{module.relative_to(ROOT)} has no docstring: its first sentence says what it is for"
        )
    return _first_sentence(text)


def _sentence_of_cpp(source: Path) -> str:
    comment = re.match(r"(?://.*\n)+", source.read_text(encoding="utf-8"))
    if comment is None:
        raise SystemExit(f"{source.relative_to(ROOT)} must begin with a comment that says what it is for")
    return _first_sentence(re.sub(r"^// ?", "", comment.group(), flags=re.MULTILINE))


def _first_sentence(text: str) -> str:
    paragraph = " ".join(text.partition("\n\n")[0].split())
    return re.split(r"\.(?= [A-Z]|$)", paragraph, maxsplit=1)[0].replace("``", "")


def _entry(name: str, sentence: str, depth: int) -> list[str]:
    head = ("  " * depth + name).ljust(_NAME_WIDTH)
    return textwrap.wrap(sentence, _WIDTH, initial_indent=head, subsequent_indent=" " * _NAME_WIDTH)


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--write", action="store_true", help="rewrite the blocks in the pages")
    chosen.add_argument("--check", action="store_true", help="fail where a page differs from the code")
    arguments = parser.parse_args()
    text = PAGE.read_text(encoding="utf-8")
    if arguments.write:
        PAGE.write_text(page(text), encoding="utf-8")
    elif not arguments.check:
        print(block() + floors_block() + csrc_block() + floors_inside_block(), end="")
    elif page(text) != text:
        shown = PAGE.relative_to(ROOT)
        print(f"{shown} does not show the house as it is: run scripts/house.py --write", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
