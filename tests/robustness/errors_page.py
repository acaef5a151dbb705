"""Writes ``docs/errors.md`` from the table of bad inputs: ``python -m tests.robustness.errors_page``."""

import itertools
from pathlib import Path

from tests.robustness import (
    bad_files,
    bad_graphs,
    bad_links,
    bad_options,
    bad_orders,
    bad_partitions,
    bad_plans,
    bad_runs,
)
from tests.robustness.cases import CASES

PATH = Path(__file__).parents[2] / "docs" / "errors.md"
_MODULES = (bad_files, bad_graphs, bad_orders, bad_options, bad_plans, bad_runs, bad_partitions, bad_links)
_ORDER = [module.__name__ for module in _MODULES]
COMMAND = "python -m tests.robustness.errors_page"

_HEAD = """# Errors

Every message says what was wrong and where, and what would be right. Below are the mistakes that the tests
make on purpose, each with the words its message holds, and what it ends with: the
[exit code](cli.md#exit-codes) of the command, or the class that the Python call raises. All classes are in
`graphbraid.errors`; each is also the built-in error one would expect (`ConfigError` and `DataError` are
`ValueError`s, `MissingPackageError` is an `ImportError`, the others are `RuntimeError`s).

"""


def render() -> str:
    """The page."""
    parts = [_HEAD]
    in_order = sorted(CASES, key=lambda case: _ORDER.index(case.provoke.__module__))
    kinds = list(dict.fromkeys(case.kind for case in in_order))
    by_kind = sorted(in_order, key=lambda case: kinds.index(case.kind))
    for kind, cases in itertools.groupby(by_kind, key=lambda case: case.kind):
        parts += [f"## {kind}\n\n", "| mistake | the message says | ends with |\n| --- | --- | --- |\n"]
        for case in cases:
            says = " … ".join(
                f"`{_cell(text)}`" if "`" not in text else f"`` {_cell(text)} ``" for text in case.says
            )
            ends = str(case.code) if case.error is None else f"`{case.error.__name__}`"
            parts.append(f"| {_cell(case.what)} | {says} | {ends} |\n")
        parts.append("\n")
    return "".join(parts).rstrip() + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    PATH.write_text(render(), encoding="utf-8")
