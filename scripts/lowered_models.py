"""Writes docs/lowered_models.md from the matrix of models in the tests.

Run it as ``python scripts/lowered_models.py`` from the repository's root; a test holds the page to it.
"""

from __future__ import annotations

import sys
from itertools import groupby
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "lowered_models.md"
_HEAD = """# Lowered models

`graphbraid.compile` lowers a model only where that is known to give what PyTorch Geometric gives.
This page is the list: made by `scripts/lowered_models.py` from the {count} models that the tests
(`tests/fullgraph/matrix`) run on four graphs: one with isolated nodes, loops and repeated edges, a
directed, an undirected and a real one. Of each, outputs, every gradient, buffers, steps of Adam and
predictions are held to PyG in float64, whether it is lowered or left alone. Partly lowered, a model
has [graph breaks](fullgraph.md#graph-breaks): parts that run as they are written, between lowered ones.
Left alone, all of it runs as it is written. `explain()` names the module or call, the reason and what
would be needed.

A class is recognised by what it is, not by its name: a hook, a parametrization, a method of an
instance's own, an option or an attribute that is not listed makes a model run as it is written. Layers of
one's own, made from PyG's `MessagePassing` or as subclasses of its layers, are read by a trace
([layers of your own](fullgraph.md#other-layers-and-your-own)).
"""

_TYPED = """## Models over node types

Layers for each relation in PyG's `HeteroConv`, or of a model that `to_hetero` has transformed
(`tests/fullgraph/typed_cases.py`), on a graph with isolated nodes, loops and repeated edges, a relation
without edges and a type that no edge leads to.
"""


def page() -> str:
    """The page's text."""
    for folder in (ROOT, ROOT / "src"):
        sys.path.insert(0, str(folder))
    from tests.fullgraph.matrix.cases import CASES
    from tests.fullgraph.matrix.compare import LEFT_ALONE, LOWERED, PARTLY

    lines = [_HEAD.format(count=len(CASES))]
    for part, group in groupby(CASES, key=lambda case: case.part):
        cases = list(group)
        lines.append(f"## {part[0].upper()}{part[1:]}\n")
        for verdict in (LOWERED, PARTLY, LEFT_ALONE):
            names = [_quoted(case) for case in cases if case.expected == verdict]
            if names:
                lines.append(f"{verdict.capitalize()}: {'; '.join(names)}.\n")
    lines.append(_typed())
    return "\n".join(lines)


def _typed() -> str:
    """The models over node types."""
    from tests.fullgraph.matrix.compare import LEFT_ALONE, LOWERED
    from tests.fullgraph.typed_cases import HETERO, TRANSFORMED
    from tests.fullgraph.typed_cases import LEFT_ALONE as OTHERS

    names = {LOWERED: (*HETERO, *TRANSFORMED), LEFT_ALONE: OTHERS}
    verdicts = [f"{verdict.capitalize()}: {'; '.join(some)}.\n" for verdict, some in names.items()]
    return "\n".join([_TYPED, *verdicts])


def _quoted(case: Any) -> str:
    name = case.name.replace("_", " ") if case.part == "forwards" else case.name
    is_code = any(sign in name for sign in "=().") and not any(word in name for word in ("PyG's", "one's"))
    return f"`{name}`" if is_code else name


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
