"""weighted_columns: equal to one spmm for each column of weights, forward and backward, and clear errors."""

import pytest
import torch
from tests.ops.graphs import DTYPES, skewed, square, without_edges
from torch import Tensor

from graphbraid.errors import DataError
from graphbraid.graph.csc import Csc
from graphbraid.ops import spmm
from graphbraid.ops.relations import weighted_columns


def given(csc: Csc, width: int, count: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Return rows of the sources and weights of the edges, in float32 for rows of 16 bits."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(csc.num_src, width, generator=draw, dtype=torch.float64).to(dtype)
    weight = torch.randn(csc.num_edges, count, generator=draw, dtype=torch.float64)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    return x.requires_grad_(), weight.to(wide).requires_grad_()


def column_by_column(csc: Csc, x: Tensor, weight: Tensor, own: bool) -> Tensor:
    columns = [spmm(csc, x, weight=one.contiguous()) for one in weight.unbind(1)]
    return torch.cat([*columns, x[: csc.num_dst]] if own else columns, 1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("width", "count"), [(1, 1), (7, 3), (33, 2)])
@pytest.mark.parametrize("own", [False, True])
def test_equals_one_sum_for_each_column(dtype, width, count, own):
    csc = skewed()
    x, weight = given(csc, width, count, dtype)
    out, expected = weighted_columns(csc, x, weight, own=own), column_by_column(csc, x, weight, own)
    assert out.dtype == dtype
    torch.testing.assert_close(out, expected)
    to = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    found, wanted = (torch.autograd.grad(one, (x, weight), to) for one in (out, expected))
    loose = {"rtol": 5e-2, "atol": 2e-1} if dtype.itemsize == 2 else {"rtol": 1e-4, "atol": 1e-4}
    torch.testing.assert_close(found, wanted, **loose)


@pytest.mark.parametrize("own", [False, True])
def test_gradients_are_those_of_differences(own):
    csc = skewed(5, 8)
    assert torch.autograd.gradcheck(lambda *two: weighted_columns(csc, *two, own=own), given(csc, 3, 2))


def test_without_edges_or_weights_there_are_own_rows_alone():
    csc = without_edges(3, 5)
    x, weight = given(csc, 2, 4)
    out = weighted_columns(csc, x, weight, own=True)
    assert torch.equal(out, torch.cat([torch.zeros(3, 8, dtype=x.dtype), x[:3]], 1))
    assert torch.equal(torch.autograd.grad(out.sum(), x)[0][:, 0], torch.tensor([1.0, 1, 1, 0, 0]).double())
    whole = square()
    x = torch.randn(50, 2)
    assert torch.equal(weighted_columns(whole, x, torch.ones(whole.num_edges, 0), own=True), x)


def test_a_gradient_is_found_only_for_what_needs_one():
    csc = skewed()
    x, weight = given(csc, 3, 2)
    weighted_columns(csc, x.detach(), weight).sum().backward()
    assert x.grad is None
    assert weight.grad is not None


def test_rows_may_be_strided_and_gradients_may_be_expanded():
    csc = skewed()
    x, weight = given(csc, 6, 2)
    torch.testing.assert_close(
        weighted_columns(csc, x[:, 1:4], weight), weighted_columns(csc, x[:, 1:4].contiguous(), weight)
    )
    out = weighted_columns(csc, x, weight)
    found = torch.autograd.grad(out, (x, weight), torch.ones(1, 1).double().expand_as(out))
    again = torch.autograd.grad(weighted_columns(csc, x, weight).sum(), (x, weight))
    torch.testing.assert_close(found, again)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"csc": 3}, "csc must be Csc"),
        ({"x": torch.ones(59, 3)}, r"x must have one row per source node \(60\)"),
        ({"x": torch.ones(60, 3, dtype=torch.int64)}, "x must be floating point"),
        ({"weight": torch.ones(3, 2)}, r"weight must have one row per edge \(\d+\); got shape \(3, 2\)"),
        ({"weight": torch.ones(3)}, "weight must"),
        ({"csc": without_edges(5, 3), "x": torch.ones(3, 3), "weight": torch.ones(0, 2)}, "own rows of 5"),
    ],
)
def test_what_does_not_fit_is_refused(change, message):
    csc = skewed()
    whole = {"csc": csc, "x": torch.ones(60, 3), "weight": torch.ones(csc.num_edges, 2)} | change
    with pytest.raises(DataError, match=message):
        weighted_columns(**whole, own=True)
