"""How devices that read each other divide their memory: the division of least expected time."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphbraid.features.tiers.device_sizing import ReadRates, split_over_peers
from graphbraid.features.tiers.tier_report import ReadShareCurve

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
