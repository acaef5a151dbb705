"""What a message costs the cores: measured once on a machine, and kept."""

import json

import pytest

from graphbraid.fullgraph.measured import messages


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("GRAPHBRAID_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(messages, "_WINDOWS", 3)
    monkeypatch.setattr(messages, "_SUMS", 10)
    messages.message_cost.cache_clear()
    yield
    messages.message_cost.cache_clear()


def test_it_is_measured_once_and_read_by_later_runs(monkeypatch):
    found = messages.message_cost()
    assert 0 <= found < 0.1
    monkeypatch.setattr(messages, "_measured", lambda: pytest.fail("measured again"))
    messages.message_cost.cache_clear()
    assert messages.message_cost() == found


def test_a_kept_cost_that_is_none_is_measured_again(monkeypatch, caplog):
    monkeypatch.setattr(messages, "_measured", lambda: [3.0, 1.0, 2.0])
    assert messages.message_cost() == 2.0  # the middle window
    (file,) = messages._KEPT.file("").parent.glob("*.json")
    file.write_text(json.dumps({"seconds": -1.0}))
    messages.message_cost.cache_clear()
    assert messages.message_cost() == 2.0
    assert "measured again" in caplog.text


def test_where_ranks_cannot_meet_a_typical_cost_is_taken(monkeypatch, caplog):
    import torch.distributed as dist

    def refused(*_):
        raise RuntimeError("no interface here")

    monkeypatch.setattr(dist, "ProcessGroupGloo", refused)
    assert messages.message_cost() == messages.TYPICAL_SECONDS
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

    monkeypatch.setattr(messages.time, "process_time", lambda: now[0])

    def compute():
        now[0] += 1.0

    assert messages._window([Group(), Group()], compute) == pytest.approx(0.5 / 4)
