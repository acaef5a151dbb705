"""Models, placements, layouts and options in any combination: parts teach what the whole graph does."""

from pathlib import Path
from typing import Any

import pytest
from tests.distributed import part_matrix
from tests.distributed.part_matrix import LINKS, READING
from tests.distributed.ranks import run

from graphbraid.distributed import partition, save_partition

pytestmark = pytest.mark.distributed
AT_ONCE = 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of parts of the graphs: with lists whole, and of nodes also in the parts."""
    at = tmp_path_factory.mktemp("matrix")
    for name in ("plain", "typed", "labelled", *part_matrix.LINKED):
        graph = part_matrix.graph_of(name)
        divided = partition(graph, 4, strategy="random")
        for lists in ("parts", "whole")[name not in ("plain", "typed") :]:
            save_partition(graph, divided, at / f"{name}-{lists}", rows=lists)
    return at


def check(parts: Any, whole: Any, alone: Any, name: str, narrow: bool) -> None:
    """Compare what ranks learned on parts and on the whole graph, and what one rank did on it."""
    if isinstance(alone, str):
        assert parts == whole == alone, name  # refused for the same reason
        return
    assert not isinstance(parts, str), (name, parts)
    assert parts["losses"] == whole["losses"], name
    assert parts["weights"] == whole["weights"], name
    near = {"rel": 0.1, "abs": 0.05} if narrow else {"rel": 2e-5, "abs": 2e-6}
    assert parts["losses"] == pytest.approx(alone["losses"], **near), name
    assert parts["weights"] == pytest.approx(alone["weights"], **near), name
    metrics = near | ({"abs": 0.02} if "'task'" in name else {})  # ranks of links jump where scores are close
    assert parts["test"] == pytest.approx(alone["test"], **metrics), name
    for mine, theirs in zip(parts["history"], alone["history"], strict=True):
        assert mine == pytest.approx(theirs, **metrics), name
    assert parts["predicted"] == pytest.approx(
        alone["predicted"], rel=near["rel"] * 10, abs=max(near["abs"], 1e-4)
    ), name


@pytest.mark.parametrize(
    ("size", "first"),
    [
        (2, 0),
        (2, READING),
        (2, READING + 6),
        *(pytest.param(size, 6 * size, marks=pytest.mark.slow) for size in (1, 4)),
        pytest.param(3, 18, marks=pytest.mark.long),
        *(pytest.param(1 + at % 4, 30 + 6 * at, marks=pytest.mark.long) for at in range(8)),
        *(pytest.param(size, LINKS + 6 * size, marks=pytest.mark.slow) for size in (1, 3, 4)),
        pytest.param(2, LINKS + 12, marks=pytest.mark.long),
        *(pytest.param(1 + at % 4, LINKS + 30 + 6 * at, marks=pytest.mark.long) for at in range(8)),
    ],
)
def test_any_combination_teaches_what_one_rank_learns_without_parts(size, first, folder):
    [alone] = run(1, part_matrix.cells, folder, first, AT_ONCE, "whole")
    for said in run(size, part_matrix.cells, folder, first, AT_ONCE, "both"):
        for name, found in said.result.items():
            narrow = "bfloat16" in name
            check(found["parts"], found["whole"], alone.result[name]["whole"], name, narrow)
