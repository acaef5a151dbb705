"""What bytes and messages cost the cores: measured once on a machine, and kept."""

import json
import socket

import pytest

from graphbraid.fullgraph.measured import moving


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("GRAPHBRAID_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(moving, "_PROBE_BYTES", 1 << 20)
    monkeypatch.setattr(moving, "_WINDOWS", 3)
    monkeypatch.setattr(moving, "_SUMS", 10)
    forget()
    yield
    forget()


def forget():
    moving.byte_cost.cache_clear()
    moving.message_cost.cache_clear()


def test_both_are_measured_once_and_read_by_later_runs(monkeypatch):
    found = moving.byte_cost(), moving.message_cost()
    assert 1e-11 < found[0].low <= found[0].seconds <= found[0].high < 1e-6  # copied at least four times
    assert 0 <= found[1] < 0.1
    for name in ("_byte_windows", "_message_windows"):
        monkeypatch.setattr(moving, name, lambda: pytest.fail("measured again"))
    forget()
    assert (moving.byte_cost(), moving.message_cost()) == found


@pytest.mark.parametrize(
    ("kept", "cost", "content"),
    [
        ("_BYTES", "byte_cost", {"seconds": 2e-9, "low": 3e-9, "high": 4e-9}),
        ("_MESSAGE", "message_cost", {"seconds": -1.0}),
    ],
)
def test_a_kept_cost_that_is_none_is_measured_again(monkeypatch, caplog, kept, cost, content):
    for name in ("_byte_windows", "_message_windows"):
        monkeypatch.setattr(moving, name, lambda: [3.0, 1.0, 2.0])
    found = getattr(moving, cost)()
    (file,) = getattr(moving, kept).file("").parent.glob("*.json")
    file.write_text(json.dumps(content))
    forget()
    assert getattr(moving, cost)() == found
    assert "measured again" in caplog.text


def test_without_a_network_a_typical_cost_is_taken(monkeypatch, caplog):
    def refused():
        raise PermissionError("no sockets here")

    monkeypatch.setattr(moving, "_byte_windows", refused)
    assert moving.byte_cost().seconds == moving.byte_cost().high == moving.TYPICAL_BYTE_SECONDS
    assert "no sockets here" in caplog.text


def test_the_middle_window_counts_and_half_of_them_lie_between_the_quartiles():
    cost = moving.ByteCost.of([5e-9, 1e-9, 2e-9, 3e-9, 90e-9])
    assert cost == moving.ByteCost(seconds=3e-9, low=2e-9, high=5e-9)


def test_a_connection_that_ends_early_is_an_error_of_both_ends(monkeypatch):
    monkeypatch.setattr(moving, "_send", lambda end: end.shutdown(socket.SHUT_RDWR))
    with pytest.raises(OSError, match="ended early"):
        moving._byte_windows()


def test_where_ranks_cannot_meet_a_typical_cost_is_taken(monkeypatch, caplog):
    import torch.distributed as dist

    def refused(*_):
        raise RuntimeError("no interface here")

    monkeypatch.setattr(dist, "ProcessGroupGloo", refused)
    assert moving.message_cost() == moving.TYPICAL_MESSAGE_SECONDS
    assert "have not met: no interface here" in caplog.text


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

    monkeypatch.setattr(moving.time, "process_time", lambda: now[0])

    def compute():
        now[0] += 1.0

    assert moving._window([Group(), Group()], compute) == pytest.approx(0.5 / 4)


def test_the_middle_window_counts(monkeypatch):
    monkeypatch.setattr(moving, "_message_windows", lambda: [3.0, 1.0, 2.0])
    assert moving.message_cost() == 2.0
