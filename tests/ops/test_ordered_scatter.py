"""Scatters by ordered kernels: values, gradients and ties as PyTorch has them; others are left to PyTorch."""

import functools
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.nn import aggr

from graphbraid.graph.csc import Csc
from graphbraid.ops import aggregate_messages, library
from graphbraid.ops.message_reductions import OrderedScatters

_DEGREES = torch.tensor([0, 3, 0, 1, 5, 0, 2, 0])
_INDEX = torch.arange(8).repeat_interleave(_DEGREES)
_INDPTR = torch.cat((torch.zeros(1, dtype=torch.int64), _DEGREES.cumsum(0)))
_NAN, _INF = float("nan"), float("inf")


def _rows(kind: str) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    if kind == "ties":
        return torch.randint(-1, 2, (11, 6), generator=generator).double()
    rows = torch.randn(11, 6, generator=generator, dtype=torch.float64)
    hit = torch.rand(11, 6, generator=generator) < 0.3
    found = {"nan": rows.masked_fill(hit, _NAN), "infinite": rows.masked_fill(hit, -_INF)}
    return found.get(kind, rows).view(11, *((2, 3) if kind == "towers" else (6,)))


def _both(function: Callable[[Tensor], Tensor], rows: Tensor) -> list[tuple[Tensor, ...]]:
    """Return the result of a function and the gradient of its rows, by PyTorch and by the kernels."""
    found = []
    for mode in (nullcontext(), OrderedScatters(_INDEX, _INDPTR)):
        leaf = rows.clone().requires_grad_()
        with mode:
            out = function(leaf)
        given = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
        found.append((out.detach(), *torch.autograd.grad(out, leaf, given)))
    return found


_ALL = ["sum", "mean", "max", "min", "var", "std"]
_AGGREGATIONS: dict[str, Callable[[], Any]] = {
    "all": lambda: aggr.MultiAggregation(_ALL),
    "pna": lambda: aggr.DegreeScalerAggregation(
        ["mean", "min", "max", "std"], ["identity", "amplification", "attenuation"], torch.tensor([1, 2, 3])
    ),
    "semi": lambda: aggr.StdAggregation(semi_grad=True),
    "softmax": aggr.SoftmaxAggregation,
    "power": aggr.PowerMeanAggregation,
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("kind", ["normal", "ties", "towers", "nan", "infinite"])
@pytest.mark.parametrize("name", _AGGREGATIONS)
def test_pygs_aggregations_give_the_same_values_and_gradients(name, kind, dtype):
    module = _AGGREGATIONS[name]()
    expected, found = _both(lambda rows: module(rows, _INDEX, dim_size=8, dim=0), _rows(kind).to(dtype))
    for one, other in zip(expected, found, strict=True):
        torch.testing.assert_close(other, one, equal_nan=True)


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the sums and maxima that ran by kernels."""
    calls: list[str] = []

    def noted(kind: Any, *given: Any) -> Any:
        calls.append(kind.__name__)
        return library.run(kind, *given)

    monkeypatch.setattr(f"{OrderedScatters.__module__}.run", noted)
    return calls


def _column(index: Tensor, rows: Tensor) -> Tensor:
    return index.view(-1, 1).expand_as(rows)


def _sum(index: Tensor, rows: Tensor) -> Tensor:
    return rows.new_ones(8, 6).scatter_add_(0, _column(index, rows), rows)


def _largest(index: Tensor, rows: Tensor, *, include_self: bool = False, reduce: str = "amax") -> Tensor:
    into = rows.new_full((8, 6), 0.25)
    return into.scatter_reduce_(0, _column(index, rows), rows, reduce=reduce, include_self=include_self)


def test_scatters_keep_what_the_rows_held_before(kernels):
    for function in (_sum, _largest):
        expected, found = _both(functools.partial(function, _INDEX), _rows("ties") / 4)
        for one, other in zip(expected, found, strict=True):
            torch.testing.assert_close(other, one)
    assert kernels == ["_OrderedSum", "_Maximum"]


@pytest.mark.parametrize(
    "function",
    [
        lambda rows: _sum(_INDEX.clone(), rows),
        lambda rows: _sum(_INDEX.flip(0), rows),
        lambda rows: _sum(_INDEX[:10], rows[:10]),
        lambda rows: _largest(_INDEX, rows, include_self=True),
        lambda rows: _largest(_INDEX, rows, reduce="prod"),
        lambda rows: rows.new_zeros(9, 6).scatter_add_(0, _column(_INDEX, rows), rows),
        lambda rows: rows.new_zeros(11, 8).scatter_add_(1, _INDEX[:6].view(1, -1).expand(11, 6), rows),
        lambda rows: rows.sum(1).new_zeros(8).scatter_add_(0, _INDEX, rows.sum(1)),
        lambda rows: rows.new_zeros(8, 6).scatter_add(0, _column(_INDEX, rows), rows),
    ],
    ids=["copy", "reversed", "fewer", "self", "product", "rows", "columns", "vector", "copied"],
)
def test_other_scatters_run_by_pytorch(function, kernels):
    expected, found = _both(function, _rows("normal"))
    assert all(torch.equal(one, other) for one, other in zip(expected, found, strict=True))
    assert not kernels


def test_an_index_that_is_written_to_is_no_longer_in_order(kernels):
    index, rows = _INDEX.clone(), _rows("normal")
    with OrderedScatters(index, _INDPTR):
        index.copy_(index.flip(0))
        found = _sum(index, rows)
    assert torch.equal(found, _sum(_INDEX.flip(0), rows))
    assert not kernels


@pytest.mark.parametrize("edge_width", [None, 1 << 17], ids=["one block", "blocks"])
def test_aggregations_of_blocks_run_by_kernels(edge_width, kernels):
    """Blocks of 256 edges begin at nodes with and without edges."""
    degrees = torch.randint(0, 4, (900,), generator=torch.Generator().manual_seed(1)) * 2
    indptr = torch.cat((torch.zeros(1, dtype=torch.int64), degrees.cumsum(0)))
    sources = torch.randint(0, 50, (int(indptr[-1]),), generator=torch.Generator().manual_seed(2))
    index, module = torch.arange(900).repeat_interleave(degrees), _AGGREGATIONS["pna"]()

    def aggregate(rows: Tensor, *, index: Tensor, num_rows: int) -> Tensor:
        out: Tensor = module(rows.tanh(), index, dim_size=num_rows)
        return out

    csc = Csc(indptr, sources.int(), num_src=50)
    x = torch.randint(-2, 3, (50, 6), generator=torch.Generator().manual_seed(3)).double().requires_grad_()
    found = aggregate_messages(
        csc, aggregate, sources=(x,), reduction="own", by_destination=True, shape=(72,), edge_width=edge_width
    )
    assert set(kernels) == {"_OrderedSum", "_Maximum"}
    expected = aggregate(x[sources], index=index, num_rows=900)
    torch.testing.assert_close(found, expected)
    given = torch.linspace(-1, 1, found.numel(), dtype=torch.float64).view_as(found)
    grads = [torch.autograd.grad(out, x, given)[0] for out in (found, expected)]
    torch.testing.assert_close(*grads)
