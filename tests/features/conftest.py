"""What the tests of feature rows share."""

import pytest

from graphbraid.fullgraph.rates import MeasuredRates
from graphbraid.machine.hardware import Rates


@pytest.fixture(autouse=True)
def typical_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower models by typical rates: to measure the machine takes a sanitizer's kernels minutes."""
    rates = MeasuredRates(rates=Rates())
    monkeypatch.setattr("graphbraid.fullgraph.rates.measured_rates", lambda _: rates)
