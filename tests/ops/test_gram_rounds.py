"""A gram whose rows come in rounds has the bits of one of all rows at once."""

import pytest
import torch
from tests.kernels import needs_kernels
from tests.ops.graphs import assert_same_bits_with_any_threads

from graphbraid.ops.linear import GramRounds, rounds_of, tall_gram

ROWS = [0, 1, 7, 2047, 2048, 9001]


def in_rounds(a, b, most):
    gram = GramRounds(a, b.shape[1])
    for part in rounds_of(len(a), most):
        gram.add(part, b[part.ids()])
    return gram.out


def matrices(rows, height, width):
    draw = torch.Generator().manual_seed(rows)
    return torch.randn(rows, height, generator=draw), torch.randn(rows, width, generator=draw)


@pytest.mark.parametrize("rows", ROWS)
def test_rounds_hold_every_row_once(rows):
    for most in (1, 5, 100, 1 << 20):
        found = rounds_of(rows, most)
        assert torch.equal(torch.cat([part.ids() for part in found]).sort().values, torch.arange(rows))
        assert [part.ends for part in found] == [False] * (len(found) - 1) + [True]
        assert max(part.num_rows for part in found) <= max(most, 8)


@needs_kernels
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("height", "width"), [(1, 1), (13, 33), (40, 100), (33, 800), (100, 7)])
def test_the_bits_are_those_of_all_rows_at_once(rows, height, width):
    a, b = matrices(rows, height, width)
    expected = tall_gram(a, b)
    for most in (64, 1000, 1 << 20):
        assert torch.equal(in_rounds(a, b, most), expected)


def test_rows_may_have_any_strides():
    a, b = matrices(2500, 31, 1)
    columns_first = a.t().contiguous().t()
    assert torch.equal(in_rounds(columns_first, b, 300), in_rounds(a, b, 300))
    by_twos = torch.stack([b, b], 2).flatten(1)[:, ::2]
    assert torch.equal(in_rounds(a, by_twos, 300), in_rounds(a, b, 300))


def test_the_bits_do_not_depend_on_threads():
    a, b = matrices(9001, 40, 100)
    assert_same_bits_with_any_threads(lambda: [in_rounds(a, b, 1000)])


@pytest.mark.parametrize("rows", [1, 2500])
def test_the_twin_sums_the_same(rows):
    a, b = matrices(rows, 5, 9)
    gram = GramRounds(a.double(), 9)
    for part in rounds_of(rows, 300):
        gram.add(part, b.double()[part.ids()])  # which no compiled kernel takes
    torch.testing.assert_close(gram.out, a.double().t() @ b.double())


@needs_kernels
def test_rows_of_another_round_are_refused():
    a, b = matrices(3000, 4, 5)
    gram = GramRounds(a, 5)
    part = rounds_of(3000, 100)[0]
    with pytest.raises(ValueError, match="b must have"):
        gram.add(part, b[:99])
