"""One budget for several kinds of items: the curves, and how memory is divided between them."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphbraid.errors import DataError
from graphbraid.features.budgets import Curve, split

ITEMS = st.lists(st.tuples(st.integers(0, 9), st.integers(1, 7)), max_size=12)


def curve_of(items):
    saved = torch.tensor([s for s, _ in items], dtype=torch.float64)
    return Curve.of(saved, torch.tensor([b for _, b in items], dtype=torch.int64))


def taken_one_by_one(budget, curves):
    """The best next item of the curves that still fit, again and again."""
    counts, left, is_open = [0] * len(curves), budget, [True] * len(curves)
    while True:
        best = None
        for k, curve in enumerate(curves):
            if is_open[k] and counts[k] < len(curve):
                density = float(curve.saved[counts[k]] / curve.size[counts[k]])
                if best is None or density > best[0]:
                    best = density, k
        if best is None:
            return counts
        k = best[1]
        size = int(curves[k].size[counts[k]])
        if size > left:
            is_open[k] = False
        else:
            counts[k], left = counts[k] + 1, left - size


@given(st.lists(ITEMS, min_size=1, max_size=3), st.integers(-1, 60))
def test_memory_goes_to_what_saves_most_per_byte(kinds, budget):
    curves = [curve_of(items) for items in kinds]
    counts = split(budget, curves)
    assert counts == taken_one_by_one(budget, curves)
    used = sum(curve.num_bytes(count) for curve, count in zip(curves, counts, strict=True))
    assert used <= max(budget, 0)
    for curve, count in zip(curves, counts, strict=True):  # exact to the last item that fits
        assert count == len(curve) or used + int(curve.size[count]) > budget


@given(ITEMS)
def test_a_curve_is_in_the_order_of_benefit_per_byte(items):
    curve = curve_of(items)
    ratio = [s / b for s, b in items]
    assert curve.order.tolist() == sorted(range(len(items)), key=lambda i: (-ratio[i], i))
    assert curve.num_bytes(len(curve)) == sum(b for _, b in items)
    if sum(s for s, _ in items):
        assert curve.share(len(curve)) == 1.0
    assert curve.share(0) == 0.0


def test_items_of_one_size_and_those_that_save_nothing():
    curve = Curve.of(torch.tensor([1.0, -3.0, 5.0]), 10)
    assert curve.order.tolist() == [2, 0, 1]
    assert curve.saved.tolist() == [5.0, 1.0, 0.0]
    assert split(29, [curve]) == [2]
    assert split(30, [curve]) == [3]


def test_what_is_no_curve_is_refused():
    for saved, size, said in (
        (torch.ones(2), torch.ones(3, dtype=torch.int64), "one for each of 2 items"),
        (torch.ones(2), torch.ones(2), "size must be int64"),
        (torch.ones(2), torch.tensor([1, 0]), "size at least 1"),
        (torch.tensor([1.0, float("nan")]), 1, "saved must be finite"),
    ):
        with pytest.raises(DataError, match=said):
            Curve.of(saved, size)
