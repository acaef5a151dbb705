"""What the fake device is said to do in a second."""

import time

import pytest
from tests.fullgraph.fake_device import FakeDevice

from graphbraid.fullgraph import rates as kept_rates
from graphbraid.fullgraph.rates import MeasuredRates, rates_file
from graphbraid.machine.hardware import Rates


@pytest.fixture(scope="session", autouse=True)
def rates_of_the_fake_device(own_dataset_cache: None) -> None:
    """Keep typical rates of it: a device's are measured on large operands, and its clock tells nothing."""
    kept_rates._KEPT.write(rates_file(FakeDevice()), MeasuredRates(rates=Rates(), at=time.time()))


@pytest.fixture(autouse=True)
def programs_run_on_small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run programs on the batches of tests, which are small. test_small_batches.py tests the choice."""
    name = "graphbraid.fullgraph.batches.fusing.BatchProgram.takes_longer"
    monkeypatch.setattr(name, lambda *_, **__: False)
