"""RunRanks.ahead: batches come in order, whenever the next one is taken; errors stay where they belong."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphbraid.train.run.ranks import RunRanks


def numbers(count, error=None):
    yield from range(count)
    if error is not None:
        raise error


def ahead(batches):
    ranks = RunRanks(None, SimpleNamespace(rank=0, size=2), None)
    return ranks, ranks.ahead(batches)


@given(count=st.integers(0, 6), takes=st.lists(st.integers(0, 2), min_size=7, max_size=7))
def test_batches_come_once_and_in_their_order(count, takes):
    found = []
    ranks, batches = ahead(numbers(count))
    for times in takes:
        for _ in range(times):  # a second one changes nothing
            ranks.take()
        found += [next(batches, None)]
    assert found == [*range(count), *[None] * (7 - count)]


def test_what_fails_to_be_taken_fails_where_it_is_asked_for():
    ranks, batches = ahead(numbers(1, OSError("gone")))
    assert next(batches) == 0
    ranks.take()
    with pytest.raises(OSError, match="gone"):
        next(batches)


def test_ctrl_c_is_not_put_off():
    ranks, _ = ahead(numbers(0, KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        ranks.take()
