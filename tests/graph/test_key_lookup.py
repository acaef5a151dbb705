"""KeyLookup: each pair of a wanted key and an equal one of the list, once, in order."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from graphbraid.graph.csc import KeyLookup

KEYS = st.lists(st.integers(-3, 5), max_size=12)


@given(KEYS, KEYS)
def test_places_are_all_pairs_of_equal_keys(keys: list[int], wanted: list[int]) -> None:
    lookup = KeyLookup(torch.tensor(keys, dtype=torch.int64))
    row, place = lookup.places(torch.tensor(wanted, dtype=torch.int64))
    expected = [(i, j) for i, one in enumerate(wanted) for j, other in enumerate(keys) if one == other]
    assert list(zip(row.tolist(), place.tolist(), strict=True)) == expected
