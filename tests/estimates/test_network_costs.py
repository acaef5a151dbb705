"""What messages and bytes cost the cores: measured once on a machine, and kept."""

import dataclasses
import json
import socket

import pytest

from graphbraid.estimates import cluster as costs
from graphbraid.estimates.cluster import NetworkCosts, network_costs


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("GRAPHBRAID_CACHE", str(tmp_path / "cache"))
    for name, value in {"_PROBE_BYTES": 1 << 20, "_WINDOWS": 3, "_SUMS": 10}.items():
        monkeypatch.setattr(costs, name, value)
    network_costs.cache_clear()
    yield
    network_costs.cache_clear()


def test_they_are_measured_once_and_read_by_later_runs(monkeypatch):
    found = network_costs()
    assert 0 <= found.message < 0.1
    assert 1e-11 < found.byte_low <= found.byte <= found.byte_high < 1e-6  # a byte is copied at least 4 times
    monkeypatch.setattr(costs, "_measured", lambda: pytest.fail("measured again"))
    network_costs.cache_clear()
    assert network_costs() == found


@pytest.mark.parametrize("broken", [{"message": -1.0}, {"byte_low": 1.0}, {"byte": float("nan")}])
def test_kept_costs_that_are_none_are_measured_again(broken, monkeypatch, caplog):
    monkeypatch.setattr(costs, "_measured", lambda: NetworkCosts(message=2.0))
    assert network_costs().message == 2.0
    (file,) = costs._KEPT.file("").parent.glob("*.json")
    file.write_text(json.dumps(dataclasses.asdict(NetworkCosts()) | broken))
    network_costs.cache_clear()
    assert network_costs().message == 2.0
    assert "measured again" in caplog.text


def test_where_ranks_cannot_meet_typical_costs_are_taken(monkeypatch, caplog):
    import torch.distributed as dist

    def refused(*_):
        raise RuntimeError("no interface here")

    monkeypatch.setattr(dist, "ProcessGroupGloo", refused)
    assert network_costs() == NetworkCosts()
    assert "have not met: no interface here" in caplog.text


def test_a_connection_that_ends_early_is_an_error_of_both_ends(monkeypatch, caplog):
    monkeypatch.setattr(costs, "_send", lambda end: end.shutdown(socket.SHUT_RDWR))
    assert network_costs() == NetworkCosts()
    assert "ended early" in caplog.text


def test_the_middle_window_counts_and_half_of_them_lie_between_the_quartiles(monkeypatch):
    moved, summed = iter([5e-9, 1e-9, 2e-9, 3e-9, 90e-9]), iter([0.0, 3.0, 1.0, 2.0, 9.0, 0.5])
    monkeypatch.setattr(costs, "_WINDOWS", 5)
    monkeypatch.setattr(costs, "_moved", lambda _: next(moved))
    monkeypatch.setattr(costs, "_summed", lambda *_: next(summed))
    assert network_costs() == NetworkCosts(message=2.0, byte=3e-9, byte_low=2e-9, byte_high=5e-9)


def test_seconds_are_those_of_the_process_beyond_what_it_computes(monkeypatch):
    """A clock that each sum moves by half a second of two ranks, and each gathering by one."""
    now = [0.0]

    class Work:
        asked = 0

        def is_completed(self):
            self.asked += 1
            return self.asked > 2

        def wait(self):
            now[0] += 0.25

    class Group:
        def allreduce(self, numbers):
            assert len(numbers) == 1
            return Work()

    monkeypatch.setattr(costs.time, "process_time", lambda: now[0])

    def compute():
        now[0] += 1.0

    assert costs._summed([Group(), Group()], compute) == pytest.approx(0.5 / 4)
