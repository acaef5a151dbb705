"""Every case on every graph: lowered where that is expected, and PyTorch Geometric's numbers either way."""

import importlib.util
import re
from pathlib import Path

import pytest
import torch
from tests.extras import NO_PYG

pytest.importorskip("torch_geometric", reason=NO_PYG)
from tests.fullgraph.matrix.cases import CASES
from tests.fullgraph.matrix.compare import LOWERED, PARTLY, assert_alike, engine_of, verdict
from tests.fullgraph.matrix.graphs import GRAPHS, data_of


def is_slow(number):
    """Not so the first case of each part, and every twentieth."""
    return bool(number % 20) and CASES[number].part == CASES[number - 1].part


def marks_of(number, graph):
    """Every model runs on the graph that has everything; on the others run those that are not slow on it."""
    if graph == "untidy":
        return [pytest.mark.slow] if is_slow(number) else []
    return [pytest.mark.long if is_slow(number) else pytest.mark.slow]


@pytest.mark.parametrize(
    ("case", "graph"),
    [
        pytest.param(case, graph, id=f"{case.id}-{graph}", marks=marks_of(number, graph))
        for number, case in enumerate(CASES)
        for graph in GRAPHS
    ],
)
def test_equals_pyg(case, graph):
    data = case.prepare(data_of(graph))
    torch.manual_seed(5)
    twin = case.make()
    torch.manual_seed(5)
    model = case.make()
    state = torch.get_rng_state()
    engine = engine_of(model, data)
    assert torch.equal(state, torch.get_rng_state())
    is_small = case.expected == PARTLY and "[small]" in engine.explain()  # one graph has few edges
    assert is_small or verdict(engine) == case.expected, engine.explain()
    if case.expected != LOWERED and not is_small:
        assert re.search(case.reason, engine.explain())
    assert_alike(model, twin, data, engine, steps=2)


def test_there_are_at_least_200_models():
    assert len({case.id for case in CASES}) == len(CASES) >= 200


def test_the_page_of_lowered_models_is_made_from_the_matrix():
    path = Path(__file__).parents[3] / "scripts" / "lowered_models.py"
    spec = importlib.util.spec_from_file_location("lowered_models", path)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.PAGE.read_text(encoding="utf-8") == script.page(), "run scripts/lowered_models.py"
