"""What the tests of feature rows share."""

import pytest
from tests.features.tables import stored_graph

from graphbraid.fullgraph.rates import MeasuredRates
from graphbraid.graph import Graph
from graphbraid.machine.hardware import Rates


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    """A graph in a store."""
    return stored_graph(tmp_path_factory.mktemp("g"))


@pytest.fixture(autouse=True)
def typical_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower models by typical rates: to measure the machine takes a sanitizer's kernels minutes."""
    rates = MeasuredRates(rates=Rates())
    monkeypatch.setattr("graphbraid.fullgraph.rates.measured_rates", lambda _: rates)
