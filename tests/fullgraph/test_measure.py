"""Rates: plausible, kept where nothing disturbed them, else doubtful and measured again."""

import dataclasses
import json
import math

import pytest
from tests.extras import NO_KERNELS
from tests.fullgraph.fake_device import FakeDevice
from tests.fullgraph.graphs import CHANNELS, CLASSES, make_graph

import graphbraid
from graphbraid import native
from graphbraid import nn as gnn
from graphbraid.cli.commands.doctor import _rate_rows, _rates
from graphbraid.fullgraph import rates as kept_rates
from graphbraid.fullgraph import rates as measure
from graphbraid.fullgraph.rates import MeasuredRates, machine_rates, measured_rates, rates_file
from graphbraid.machine.hardware import Rates

QUICK = Rates(multiply_flops=1e11, row_bytes=1e10, stream_bytes=2e10, sparse_values=5e8, binary_values=1e10)
SLOW = dataclasses.replace(QUICK, multiply_flops=4e10, sparse_values=2e8)


class Machine:
    """What measuring finds, one process after the other: rates, the share of others, and the time of day."""

    def __init__(self, monkeypatch):
        self.found, self.calls, self.now = [], 0, 1000.0
        self._share = None
        monkeypatch.setattr(kept_rates, "measure", self._measure)
        monkeypatch.setattr(kept_rates, "LEAST_SECONDS", 0.0)
        monkeypatch.setattr("graphbraid.machine.measurements.MOST_OTHERS", 0.1)
        monkeypatch.setattr(kept_rates.OtherPrograms, "share", lambda _: self._share)
        monkeypatch.setattr(kept_rates.time, "time", lambda: self.now)

    def _measure(self, _):
        self.calls += 1
        rates, self._share = self.found.pop(0)
        return rates

    def later(self, seconds, *found):
        """What a process that starts so much later believes."""
        self.now, self.found = self.now + seconds, list(found)
        measured_rates.cache_clear()
        return measured_rates()


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    if native.kernels() is None:
        pytest.skip(NO_KERNELS)
    monkeypatch.setenv("GRAPHBRAID_CACHE", str(tmp_path))
    measured_rates.cache_clear()
    yield
    measured_rates.cache_clear()


@pytest.fixture
def machine(monkeypatch):
    return Machine(monkeypatch)


@pytest.mark.slow
def test_measured_rates_are_those_of_a_computer():
    rates = measure.measure()
    assert all(math.isfinite(v) and v > 0 for v in dataclasses.asdict(rates).values())
    assert 1e8 < rates.multiply_flops < 1e15
    assert 1e7 < rates.row_bytes < 1e14
    assert 1e8 < rates.binary_values < 1e15
    assert 1e7 < rates.exponentials < 1e14
    assert 0 < rates.gamma < 10
    assert 2**21 <= rates.cache_bytes <= 2**25


@pytest.mark.slow
def test_a_device_is_measured_by_its_own_clock():
    device = FakeDevice()
    rates = measure.measure(device)
    assert all(math.isfinite(v) and v > 0 for v in dataclasses.asdict(rates).values())
    assert device.num_timed >= len(dataclasses.asdict(rates)) - 2  # two are sizes


@pytest.mark.parametrize(
    ("speeds", "doublings", "outer"),
    [
        ([1], 0, 10.0),  # all is as fast as a core's cache
        ([6, 5], 1, 0.5 / (1 / 6 - 0.05)),  # of rows at 6, half are found at 10
        ([9, 8, 7, 6], 4, (15 / 16) / (1 / 6 - 1 / 160)),
        ([2, 9], 0, 10.0),
        ([11, 12, 2], 2, 10.0),  # no faster than a core's cache
    ],
)
def test_the_cache_is_as_large_as_rows_are_read_fast(monkeypatch, speeds, doublings, outer):
    found = iter(speeds)
    monkeypatch.setattr(measure, "_row_bytes", lambda *_, **__: float(next(found)))
    size, rate = measure._cache(None, 10.0, 3.0, num_nodes=4)
    assert size == 4 * 64 * 4 * 2**doublings  # above 5.5
    assert rate == pytest.approx(outer)


def test_reads_at_random_are_measured_once_for_a_region_and_the_lines_of_a_row(machine, monkeypatch):
    regions = []

    def rate(seconds, num_rows, *, x, num_dst):
        regions.append((x.nbytes, x.shape[1]))
        return 4e9 + len(regions)

    monkeypatch.setattr(measure, "machine_rates", lambda: QUICK)
    monkeypatch.setattr(measure, "_row_bytes", rate)
    measure._row_rate.cache_clear()
    found = measure.row_rate(20 << 20, 128)
    assert regions == [(16 << 20, 32)]  # the power of two below, and two lines
    assert measure.row_rate(17 << 20, 65) == found
    measure.row_rate(8 << 20, 4 * 172)  # 11 lines, of which no power of two is a multiple
    assert regions[-1] == ((8 << 20) // 704 * 704, 176)
    measure._row_rate.cache_clear()  # another process
    assert measure.row_rate(31 << 20, 128) == found
    assert measure.row_rate(20 << 20, 20) == found + 2
    machine._share = 0.5
    measure.row_rate(4 << 20, 64)
    measure._row_rate.cache_clear()
    assert measure.row_rate(4 << 20, 64) == found + 4  # not kept, as other programs disturbed it
    monkeypatch.setattr(measure.HOST, "free_bytes", lambda: 1 << 20)
    assert measure.row_rate(1 << 40, 64) == found + 5
    assert regions[-1] == (1 << 23, 16)  # at least about twice the cache, whatever is free
    measure._row_rate.cache_clear()


def test_rates_are_measured_once_and_then_read(machine):
    first = machine.later(0, (QUICK, 0.02))
    assert first == MeasuredRates(rates=QUICK, others=0.02, at=1000.0)
    assert machine.later(1e6) == first
    assert machine_rates() == QUICK
    assert machine.calls == 1
    assert json.loads(rates_file().read_text())["rates"] == dataclasses.asdict(QUICK)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"rates": {}}', '{"rates": {"speed": 3}, "others": 0, "doubt": "", "at": 0}']
    + [
        f'{{"rates": {{"row_bytes": {bad}}}, "others": 0, "doubt": "", "at": 0}}'
        for bad in ("-1", "NaN", '"2"')
    ],
)
def test_a_broken_file_is_measured_anew(machine, text, caplog):
    file = rates_file()
    file.parent.mkdir(parents=True)
    file.write_text(text)
    assert machine.later(0, (QUICK, None)).rates == QUICK
    assert f"the rates kept in the cache {file} cannot be used" in caplog.text
    assert json.loads(file.read_text())["rates"] == dataclasses.asdict(QUICK)


def test_a_digit_that_changed_on_the_disk_is_noticed(machine):
    machine.later(0, (QUICK, None))
    text = rates_file().read_text()
    rates_file().write_text(text.replace("1000", "9000", 1))
    assert rates_file().read_text() != text
    assert machine.later(0, (SLOW, None)).rates == SLOW


def test_where_nothing_can_be_kept_typical_rates_are_taken(machine, tmp_path, caplog):
    (tmp_path / "rates").write_text("a file where the folder should be")
    assert machine.later(0, (QUICK, 0.0)).rates == Rates()
    assert "could not be kept" in caplog.text


def test_rates_taken_beside_other_programs_are_doubtful_and_measured_again_until_it_is_quiet(machine, caplog):
    beside = machine.later(0, (SLOW, 0.45))
    assert beside.rates == SLOW
    assert beside.doubt == "other programs had 45% of the cores while they were measured"
    assert "a later run measures them again" in caplog.text
    assert machine.later(kept_rates.AGAIN_SECONDS - 1) == beside  # not by every process of a busy machine
    worse = dataclasses.replace(SLOW, row_bytes=1e9)
    still = machine.later(1, (worse, 0.8))
    assert (still.rates, still.others, still.at) == (SLOW, 0.45, machine.now)  # the less disturbed of the two
    quiet = machine.later(kept_rates.AGAIN_SECONDS, (QUICK, 0.03))
    assert quiet == MeasuredRates(rates=QUICK, others=0.03, at=machine.now)
    assert machine.later(1e6) == quiet
    assert machine.calls == 3


def test_rates_unlike_an_earlier_quiet_measurement_are_doubtful_until_another_agrees(machine, monkeypatch):
    machine.later(0, (QUICK, 0.0))
    monkeypatch.setattr(
        kept_rates.torch, "__version__", "another"
    )  # the key is another, the machine the same
    odd = machine.later(10, (SLOW, 0.0))
    assert odd.doubt == "multiply_flops is 4e+10, but was 1e+11 in an earlier quiet measurement"
    third = machine.later(100, (dataclasses.replace(QUICK, row_bytes=1e9), 0.0))
    assert third.doubt == "row_bytes is 1e+09, but was 1e+10 in an earlier quiet measurement"
    again = machine.later(100, (dataclasses.replace(third.rates, row_bytes=1.1e9), 0.0))
    assert not again.doubt  # it is so now
    assert machine.later(1e6) == again


def test_another_machine_s_rates_say_nothing(machine, monkeypatch):
    machine.later(0, (QUICK, 0.0))
    monkeypatch.setattr(type(kept_rates.HOST), "name", "another processor")
    assert not machine.later(10, (SLOW, 0.0)).doubt


def test_a_measurement_too_short_to_see_others_goes_on_and_keeps_the_faster(machine, monkeypatch):
    monkeypatch.setattr(kept_rates, "LEAST_SECONDS", 1.0)
    clock = iter([0.0, 0.0, 0.4, 0.8, 1.2])  # the watcher's, the limit's, then after each measurement
    monkeypatch.setattr(kept_rates.time, "perf_counter", lambda: next(clock, 2.0))
    mixed = dataclasses.replace(QUICK, row_bytes=9e9), dataclasses.replace(SLOW, row_bytes=2e10)
    found = machine.later(0, *[(rates, 0.0) for rates in (SLOW, *mixed)])
    assert found.rates == dataclasses.replace(QUICK, row_bytes=2e10)


def test_explain_and_doctor_say_that_rates_are_doubtful(machine):
    model = gnn.GCN(CHANNELS, 8, CLASSES, 2)
    machine.later(0, (SLOW, 0.45))
    said = "other programs had 45% of the cores while they were measured"
    assert f"weighed by doubtful rates: {said}" in graphbraid.compile(model, make_graph()).explain()
    assert ("doubtful", f"{said}; a later run measures again") in _rate_rows(_rates())
    machine.later(1000, (QUICK, 0.0))
    assert "doubtful" not in graphbraid.compile(model, make_graph()).explain()
    assert "doubtful" not in dict(_rate_rows(_rates()))


@pytest.mark.slow
def test_rates_of_a_device_without_room_are_typical_ones(caplog):
    class Full(FakeDevice):
        def seconds(self, run):
            raise RuntimeError("out of memory")

    assert machine_rates(Full()) == Rates()
    assert "could not be measured, typical ones are taken: out of memory" in caplog.text


def test_a_device_has_rates_of_its_own(machine):
    machine.found = [(QUICK, 0.9)]
    device = FakeDevice()
    assert machine_rates(device) == QUICK
    assert not measured_rates(device).doubt  # its speed is not the cores'
    assert rates_file(device).is_file()
    assert not rates_file().exists()
