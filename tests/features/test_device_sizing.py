"""The memory of a device for hot rows: what is free, what is read, what the link costs, what peers share."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.train.communities import random_graph

from graphbraid.estimates.machine import link_rate
from graphbraid.features.tiers import device_sizing
from graphbraid.features.tiers.device_sizing import DeviceMemory, ReadRates, device_budget, split_over_peers
from graphbraid.features.tiers.tier_report import ReadShareCurve

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


# ---- how devices that read each other divide their memory: the division of least expected time


STEEP = torch.arange(1, 1001).double().reciprocal()
FLAT = torch.ones(1000)


def seconds(served, own, shared, num_peers, rates):
    upto = served.share(own + shared)
    at_peers = (upto - served.share(own)) * (num_peers - 1) / num_peers
    return at_peers / rates.peer + (1 - upto) / rates.host


@given(
    score=st.lists(st.floats(0, 100), min_size=1, max_size=60),
    capacity=st.integers(1, 80),
    num_peers=st.integers(2, 8),
    rates=st.tuples(st.floats(0.1, 100), st.floats(0.1, 100)),
)
def test_no_other_division_is_expected_to_be_faster(score, capacity, num_peers, rates):
    served, rates, num_rows = ReadShareCurve(torch.tensor(score)), ReadRates(*rates), len(score)
    found = split_over_peers(served, num_rows, capacity, num_peers, rates)
    assert 0 <= found.own <= min(capacity, num_rows)
    assert found.own + -(-found.shared // num_peers) <= min(capacity, num_rows)
    assert found.own + found.shared <= num_rows
    taken = seconds(served, found.own, found.shared, num_peers, rates)
    kept = min(capacity, num_rows)
    every = [(own, min(num_peers * (kept - own), num_rows - own)) for own in (0, kept)]
    assert taken <= min(seconds(served, own, shared, num_peers, rates) for own, shared in every) + 1e-9


@pytest.mark.parametrize("score", [STEEP, FLAT], ids=["steep", "flat"])
@pytest.mark.parametrize("num_peers", [2, 4])
def test_the_extremes(score, num_peers):
    served = ReadShareCurve(score)
    fast, slow = ReadRates(peer=1e12, host=1e9), ReadRates(peer=1e9, host=1e9)
    assert split_over_peers(served, 1000, 100, num_peers, fast)[:2] == (0, 100 * num_peers)
    assert split_over_peers(served, 1000, 100, num_peers, slow)[:2] == (100, 0)
    assert split_over_peers(served, 1000, 1000, num_peers, fast)[:2] == (1000, 0)
    for unknown in (ReadRates(None, 1e9), ReadRates(1e9, None)):
        found = split_over_peers(served, 1000, 100, num_peers, unknown)
        assert found[:2] == (100, 0)
        assert "is not known" in found.reason


def test_between_them_the_rows_read_most_are_on_each_device():
    found = split_over_peers(ReadShareCurve(STEEP), 1000, 128, 4, ReadRates(peer=2e9, host=1e9))
    assert 0 < found.own < 128
    assert found.shared == 4 * (128 - found.own)
    assert (
        f"{found.own:,} rows on each of 4 devices and {found.shared:,} interleaved over them" in found.reason
    )
    assert "2 times as fast as the host's" in found.reason
