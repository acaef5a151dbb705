"""What moving bytes costs the cores: measured once on a machine, and kept."""

import json
import socket

import pytest

from graphbraid.fullgraph.measured import moving


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("GRAPHBRAID_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(moving, "_PROBE_BYTES", 1 << 20)
    monkeypatch.setattr(moving, "_WINDOWS", 3)
    moving.byte_cost.cache_clear()
    yield
    moving.byte_cost.cache_clear()


def test_it_is_measured_once_and_read_by_later_runs(monkeypatch):
    found = moving.byte_cost()
    assert 1e-11 < found.low <= found.seconds <= found.high < 1e-6  # a byte is copied at least four times
    monkeypatch.setattr(moving, "_measured", lambda: pytest.fail("measured again"))
    moving.byte_cost.cache_clear()
    assert moving.byte_cost() == found


def test_a_kept_cost_that_is_none_is_measured_again(caplog):
    moving.byte_cost()
    (file,) = (moving._KEPT.file("").parent).glob("*.json")
    file.write_text(json.dumps({"seconds": 2e-9, "low": 3e-9, "high": 4e-9}))
    moving.byte_cost.cache_clear()
    assert moving.byte_cost().low > 0
    assert "measured again" in caplog.text


def test_without_a_network_a_typical_cost_is_taken(monkeypatch, caplog):
    def refused():
        raise PermissionError("no sockets here")

    monkeypatch.setattr(moving, "_measured", refused)
    assert moving.byte_cost().seconds == moving.byte_cost().high == moving.TYPICAL_SECONDS
    assert "no sockets here" in caplog.text


def test_the_middle_window_counts_and_half_of_them_lie_between_the_quartiles():
    cost = moving.ByteCost.of([5e-9, 1e-9, 2e-9, 3e-9, 90e-9])
    assert cost == moving.ByteCost(seconds=3e-9, low=2e-9, high=5e-9)


def test_a_connection_that_ends_early_is_an_error_of_both_ends(monkeypatch):
    monkeypatch.setattr(moving, "_send", lambda end: end.shutdown(socket.SHUT_RDWR))
    with pytest.raises(OSError, match="ended early"):
        moving._measured()
