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

`graphbraid.compile` lowers a model only if that is known to give PyTorch Geometric's results.
`scripts/lowered_models.py` makes this list from the {count} models that the tests
(`tests/fullgraph/matrix`) run on four graphs: one with isolated nodes, loops and repeated edges, a
directed, an undirected and a real one. Outputs, every gradient, buffers, steps of Adam and predictions
are compared with PyG in float64, whether a model is lowered or left alone. A partly lowered model has
[graph breaks](fullgraph.md#graph-breaks): parts that run as written, between lowered ones. A model that
is left alone runs as written as a whole. `explain()` names the module or call, the reason and what would
be needed.

A class is recognised by its identity, not by its name. A hook, a parametrization, a method of a single
instance, an option or an attribute that is not listed makes a model run as written. Your own layers, made
from PyG's `MessagePassing` or as subclasses of its layers, are read by a trace
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
    from tests.fullgraph.typed_cases import HETERO, MATRICES, TRANSFORMED
    from tests.fullgraph.typed_cases import LEFT_ALONE as OTHERS

    names = {LOWERED: (*HETERO, *TRANSFORMED, *MATRICES), LEFT_ALONE: OTHERS}
    verdicts = [f"{verdict.capitalize()}: {'; '.join(some)}.\n" for verdict, some in names.items()]
    return "\n".join([_TYPED, *verdicts])


def _quoted(case: Any) -> str:
    name = case.name.replace("_", " ") if case.part == "forwards" else case.name
    is_code = any(sign in name for sign in "=().") and not any(word in name for word in ("PyG's", "one's"))
    return f"`{name}`" if is_code else name


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
