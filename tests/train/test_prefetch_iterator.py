"""PrefetchIterator: batches come in order, whenever the next one is taken; errors stay where they belong."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphbraid.train.run.ranks import PrefetchIterator


def numbers(count, error=None):
    yield from range(count)
    if error is not None:
        raise error


@given(count=st.integers(0, 6), takes=st.lists(st.integers(0, 2), min_size=7, max_size=7))
def test_batches_come_once_and_in_their_order(count, takes):
    found = []
    batches = PrefetchIterator(numbers(count))
    for times in takes:
        for _ in range(times):  # a second one changes nothing
            batches.take()
        try:
            found.append(next(batches))
        except StopIteration:
            break
    assert found == list(range(count))


def test_what_fails_to_be_taken_fails_where_it_is_asked_for():
    batches = PrefetchIterator(numbers(1, OSError("gone")))
    assert next(batches) == 0
    batches.take()
    with pytest.raises(OSError, match="gone"):
        next(batches)


def test_ctrl_c_is_not_put_off():
    batches = PrefetchIterator(numbers(0, KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        batches.take()
