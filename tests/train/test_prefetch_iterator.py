"""PrefetchIterator: batches come in order, whenever the next one is taken; errors stay where they belong."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphbraid.train.run.fit import PrefetchIterator


def numbers(count, closed, error=None):
    try:
        yield from range(count)
        if error is not None:
            raise error
    finally:
        closed.append(True)


@given(count=st.integers(0, 6), takes=st.lists(st.integers(0, 2), min_size=7, max_size=7))
def test_batches_come_once_and_in_their_order(count, takes):
    closed, found = [], []
    batches = PrefetchIterator(numbers(count, closed))
    for times in takes:
        for _ in range(times):  # a second one changes nothing
            batches.take()
        try:
            found.append(next(batches))
        except StopIteration:
            break
    assert found == list(range(count))
    batches.close()
    assert closed == [True]


def test_what_fails_to_be_taken_fails_where_it_is_asked_for():
    batches = PrefetchIterator(numbers(1, [], OSError("gone")))
    assert next(batches) == 0
    batches.take()
    with pytest.raises(OSError, match="gone"):
        next(batches)


def test_ctrl_c_is_not_put_off():
    batches = PrefetchIterator(numbers(0, [], KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        batches.take()


def test_a_batch_that_nobody_asks_for_is_let_go():
    closed = []
    batches = PrefetchIterator(numbers(3, closed))
    batches.take()
    batches.close()
    assert closed == [True]
    with pytest.raises(StopIteration):
        next(batches)
