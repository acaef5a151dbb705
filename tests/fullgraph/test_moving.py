"""What moving bytes costs the cores: measured once on a machine, and kept."""

import json

import pytest

from graphbraid.fullgraph.measured import moving


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("GRAPHBRAID_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(moving, "_PROBE_BYTES", 1 << 20)
    moving.byte_seconds.cache_clear()
    yield
    moving.byte_seconds.cache_clear()


def test_it_is_measured_once_and_read_by_later_runs(monkeypatch):
    found = moving.byte_seconds()
    assert 1e-11 < found < 1e-6  # a byte is copied at least four times
    monkeypatch.setattr(moving, "_measured", lambda: pytest.fail("measured again"))
    moving.byte_seconds.cache_clear()
    assert moving.byte_seconds() == found


def test_a_kept_cost_that_is_none_is_measured_again(caplog):
    moving.byte_seconds()
    (file,) = (moving._KEPT.file("").parent).glob("*.json")
    file.write_text(json.dumps({"byte_processor_seconds": -1}))
    moving.byte_seconds.cache_clear()
    assert moving.byte_seconds() > 0
    assert "measured again" in caplog.text


def test_without_a_network_a_typical_cost_is_taken(monkeypatch, caplog):
    def refused():
        raise PermissionError("no sockets here")

    monkeypatch.setattr(moving, "_measured", refused)
    assert moving.byte_seconds() == moving.TYPICAL_SECONDS
    assert "no sockets here" in caplog.text
