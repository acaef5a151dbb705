"""The memory of a device for hot rows: what is free, what rows are read, and what the link would cost."""

import pytest
import torch
from tests.train.communities import random_graph

from graphbraid.estimates.machine import link_rate
from graphbraid.features.tiers import device_sizing
from graphbraid.features.tiers.device_sizing import DeviceMemory, device_budget

ROW, NODES = 4 * 100, 1000
MAP = 4 * NODES


@pytest.fixture(scope="module")
def graph():
    return random_graph(NODES, 4, 100)


@pytest.fixture(autouse=True)
def no_least_reserve(monkeypatch):
    monkeypatch.setattr(device_sizing, "LEAST_RESERVE_BYTES", 0)


def reads(num_read=600):
    """A tenth of these rows takes nine tenths of the reads."""
    values = torch.zeros(NODES, dtype=torch.float64)
    values[:num_read] = 1.0
    values[: num_read // 10] = 81.0
    return values


def budget(graph, free, *, link=None, seconds=None, needed=0):
    memory = DeviceMemory(free_bytes=free, link_bytes_per_second=link)
    return device_budget(graph, reads(), memory, needed_bytes=needed, epoch_seconds=seconds)


def test_rows_that_are_read_take_what_the_rest_leaves(graph):
    some = budget(graph, 1_000_000, needed=900_000 - MAP - 250 * ROW)
    assert some.hot == MAP + 250 * ROW
    assert "250 rows" in some.reason
    assert some.reserve_bytes == 100_000
    whole = budget(graph, 1 << 30)
    assert whole.hot == MAP + 600 * ROW, "the others are never read"
    none = budget(graph, 1_000_000, needed=900_000 - MAP - ROW + 1)
    assert none.hot is None
    assert "no memory" in none.reason
    assert budget(graph, None).hot is None
    assert (
        device_budget(
            graph.replace(x=None),
            reads(),
            DeviceMemory(free_bytes=9, link_bytes_per_second=1.0),
            needed_bytes=0,
            epoch_seconds=1.0,
        ).hot
        is None
    )


def test_the_link_says_how_many_are_worth_it(graph):
    link = float(reads().sum()) * ROW  # all rows of an epoch in a second
    slow = budget(graph, 1 << 30, link=link, seconds=0.1)
    assert 0.98 * 600 * ROW <= slow.hot - MAP <= 600 * ROW
    assert "s an epoch on the link" in slow.reason
    middling = budget(graph, 1 << 30, link=link, seconds=12.0)
    assert 60 * ROW <= middling.hot - MAP < 80 * ROW, "the tenth that takes nine tenths of the reads"
    fast = budget(graph, 1 << 30, link=link, seconds=200.0)
    assert fast.hot is None
    assert "less than 1 %" in fast.reason


def test_a_link_is_measured(monkeypatch):
    monkeypatch.setattr("graphbraid.estimates.machine.COPIED_BYTES", 1 << 16)
    assert link_rate(torch.device("cpu")) > 0
