"""Belady's replacement over a trace is the optimum of a linear program, and no fixed choice is better."""

import itertools

import numpy as np
import pytest
import torch
from benchmarks.tiers.belady import Trace, belady_hits
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

traces = st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=6), min_size=1, max_size=12).map(
    lambda batches: Trace.of([torch.tensor(batch) for batch in batches], 10)
)


def optimal_hits(trace, capacity):
    """The most hits of any cache: which rows to hold from one of their reads to the next.

    A row held from a read (or from before the first batch) to its next one is a hit, and takes a place in all
    gaps between batches in between, of which each has ``capacity``. The rows of the matrix have consecutive
    ones, so that the linear program has a whole solution.
    """
    held = []  # the gaps before which batches a row is held
    last = {}
    for number, batch in enumerate(trace.batches):
        for row in batch.tolist():
            held.append((last.get(row, -1) + 1, number))
            last[row] = number
    takes = np.zeros((len(trace.batches), len(held)))
    for column, (first, number) in enumerate(held):
        takes[first : number + 1, column] = 1
    found = linprog(
        -np.ones(len(held)), A_ub=takes, b_ub=np.full(len(trace.batches), capacity), bounds=(0, 1)
    )
    assert found.success
    return -found.fun


def static_hits(trace, rows):
    """Reads that fall on a fixed set of rows."""
    return sum(int(np.isin(batch, rows).sum()) for batch in trace.batches)


@given(traces, st.integers(0, 11))
def test_belady_is_the_optimum(trace, capacity):
    assert belady_hits(trace, capacity) == pytest.approx(optimal_hits(trace, capacity), abs=1e-6)


@given(traces, st.integers(0, 10))
def test_no_fixed_choice_of_rows_is_better(trace, capacity):
    best = belady_hits(trace, capacity)
    for rows in itertools.islice(itertools.combinations(range(10), capacity), 60):
        assert static_hits(trace, rows) <= best


@given(traces)
def test_a_cache_of_all_rows_misses_nothing(trace):
    assert belady_hits(trace, 10) == trace.num_reads
    assert belady_hits(trace, 0) == 0
    assert static_hits(trace, range(10)) == trace.num_reads


def test_next_uses_name_the_next_batch_that_reads_a_row():
    trace = Trace.of([torch.tensor([2, 0]), torch.tensor([1]), torch.tensor([0, 1])], 4)
    next_uses, first = trace.next_uses()
    assert [uses.tolist() for uses in next_uses] == [[2, 3], [2], [3, 3]]
    assert first.tolist() == [0, 1, 0, 3]
    assert trace.num_reads == 5
