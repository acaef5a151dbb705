"""The arena: live buffers never share bytes, and the allocation is near the least there can be."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from graphbraid.fullgraph.step.tasks import Arena, Buffer, StepTask, most_live_bytes, place

INTERVALS = st.lists(
    st.tuples(st.integers(1, 4000), st.integers(0, 30), st.integers(0, 10)), min_size=1, max_size=40
)


def buffers_of(intervals):
    return [
        Buffer(str(i), (rows, 1), first=first, last=first + length)
        for i, (rows, first, length) in enumerate(intervals)
    ]


@given(INTERVALS)
def test_buffers_alive_together_stand_apart(intervals):
    buffers = buffers_of(intervals)
    total = place(buffers)
    for i, a in enumerate(buffers):
        assert 0 <= a.offset <= total - a.nbytes
        for b in buffers[:i]:
            together = a.first <= b.last and b.first <= a.last
            assert not together or a.offset + a.nbytes <= b.offset or b.offset + b.nbytes <= a.offset
    assert most_live_bytes(buffers) <= total <= sum(b.nbytes for b in buffers)


def test_buffers_that_follow_each_other_share_bytes():
    a, b, c = (Buffer(name, (100, 8)) for name in "abc")
    tasks = [StepTask("1", lambda: None, (a, b)), StepTask("2", lambda: None, (b, c))]
    arena = Arena(tasks)
    assert arena.nbytes == arena.least_bytes == 2 * a.nbytes
    assert arena.separate_bytes == 3 * a.nbytes
    arena.allocate()
    assert a.tensor.data_ptr() == c.tensor.data_ptr()
    assert a.tensor.data_ptr() % 64 == 0
    assert a.tensor.shape == (100, 8)


def test_a_kept_buffer_outlives_the_last_task():
    a, b = Buffer("a", (10, 1)), Buffer("b", (10, 1))
    tasks = [StepTask("1", lambda: None, (a,)), StepTask("2", lambda: None, (b,))]
    assert Arena(tasks).nbytes == a.nbytes
    assert Arena(tasks, keep=[a]).nbytes == 2 * a.nbytes


def test_each_dtype_gets_its_bytes():
    half, wide = Buffer("h", (7, 3), torch.bfloat16), Buffer("w", (7, 3), torch.float64)
    arena = Arena([StepTask("1", lambda: None, (half, wide))])
    arena.allocate()
    half.tensor.fill_(1)
    wide.tensor.fill_(2)
    assert (half.tensor == 1).all()
    assert (wide.tensor == 2).all()
    assert arena.nbytes == 64 + 192
