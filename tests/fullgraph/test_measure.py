"""Rates: plausible, kept, read back, and measured anew where what is kept is broken."""

import dataclasses
import json
import math

import pytest
from tests.extras import NO_KERNELS
from tests.fullgraph.fake_device import FakeDevice

from graphbraid import kernels
from graphbraid.fullgraph import measure
from graphbraid.ops.rates import Rates

QUICK = Rates(multiply_flops=1e11, row_bytes=1e10, stream_bytes=2e10, sparse_values=5e8, binary_values=1e10)


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    if kernels.native() is None:
        pytest.skip(NO_KERNELS)
    monkeypatch.setenv("GRAPHBRAID_CACHE", str(tmp_path))
    measure.machine_rates.cache_clear()
    yield
    measure.machine_rates.cache_clear()


def test_measured_rates_are_those_of_a_computer():
    rates = measure.measure()
    assert all(math.isfinite(v) and v > 0 for v in dataclasses.asdict(rates).values())
    assert 1e8 < rates.multiply_flops < 1e15
    assert 1e7 < rates.row_bytes < 1e14
    assert 1e8 < rates.binary_values < 1e15
    assert 0 < rates.gamma < 10


def test_rates_are_measured_once_and_then_read(monkeypatch):
    calls = []
    monkeypatch.setattr(measure, "measure", lambda _: calls.append(1) or QUICK)
    assert measure.machine_rates() == QUICK
    measure.machine_rates.cache_clear()
    assert measure.machine_rates() == QUICK
    assert len(calls) == 1
    assert json.loads(measure.rates_file().read_text()) == dataclasses.asdict(QUICK)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"multiply_flops": 1}x', '{"speed": 3}'])
def test_a_broken_file_is_measured_anew(monkeypatch, text):
    monkeypatch.setattr(measure, "measure", lambda _: QUICK)
    file = measure.rates_file()
    file.parent.mkdir(parents=True)
    file.write_text(text)
    assert measure.machine_rates() == QUICK
    assert json.loads(file.read_text()) == dataclasses.asdict(QUICK)


def test_where_nothing_can_be_kept_typical_rates_are_taken(monkeypatch, tmp_path, caplog):
    monkeypatch.setattr(measure, "measure", lambda _: QUICK)
    (tmp_path / "rates").write_text("a file where the folder should be")
    assert measure.machine_rates() == Rates()
    assert "could not be kept" in caplog.text


def test_rates_of_a_device_without_room_are_typical_ones(caplog):
    class Full(FakeDevice):
        def seconds(self, run):
            raise RuntimeError("out of memory")

    assert measure.machine_rates(Full()) == Rates()
    assert "could not be measured, typical ones are taken: out of memory" in caplog.text


def test_a_device_has_rates_of_its_own(monkeypatch):
    kept = {}
    monkeypatch.setattr(measure, "measure", lambda device: kept.setdefault(device.name, QUICK))
    assert measure.machine_rates(FakeDevice()) == QUICK
    assert measure.rates_file(FakeDevice()).is_file()
    assert not measure.rates_file().exists()
