"""distances: compiled variants against twins, gradients, corners, and the same bits with any threads."""

from typing import Any

import pytest
import torch
from tests.ops.graphs import assert_same_bits_with_any_threads, close, values
from torch import Tensor

from graphbraid.errors import ConfigError
from graphbraid.ops import reference
from graphbraid.ops.distances import distances
from graphbraid.ops.reference import DISTANCES

KINDS = pytest.mark.parametrize("kind", DISTANCES)


def both_ways(kernels: Any, kind: int, query: Tensor, rows: Tensor, grad: Tensor) -> list[Tensor]:
    """Distances and both gradients, in memory that held something else."""
    out, of_query, of_rows = (torch.full_like(one, torch.nan) for one in (grad, query, rows))
    kernels.distances(query, rows, kind, out)
    kernels.distances_backward(query, rows, kind, out, grad, of_query, of_rows)
    return [out, of_query, of_rows]


@KINDS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(
    ("num_queries", "num_rows", "width"),
    [(1, 1, 1), (5, 3, 2), (7, 70, 16), (4, 129, 17), (9, 64, 33), (6, 600, 64), (17, 65, 257)],
)
def test_kernels_equal_twins(compiled, num_queries, num_rows, width, dtype, kind):
    code, columns = DISTANCES.index(kind), 2 * width
    query, rows = values(num_queries, columns, dtype=dtype), values(num_rows, columns, dtype=dtype, seed=2)
    rows[0] = query[0]  # a distance of 0
    query[-1, : columns // 2] = rows[-1, : columns // 2]  # parts of which are 0
    grad = values(num_queries, num_rows, dtype=dtype, seed=3)
    found = both_ways(compiled, code, query, rows, grad)
    for own, twin in zip(found, both_ways(reference, code, query, rows, grad), strict=True):
        close(own, twin, terms=16 * max(num_queries, num_rows, width))


@KINDS
def test_rows_may_stand_apart_and_be_none(compiled, kind):
    code = DISTANCES.index(kind)
    wide, other, grad = values(5, 21), values(4, 19), values(5, 4)
    found = both_ways(compiled, code, wide[:, 3:17], other[:, 1:15], grad)
    dense = both_ways(compiled, code, wide[:, 3:17].contiguous(), other[:, 1:15].contiguous(), grad)
    for own, same in zip(found, dense, strict=True):
        assert torch.equal(own, same)
    for counts in ((0, 4, 6), (5, 0, 6), (5, 4, 0), (0, 0, 0)):
        given = values(counts[0], counts[2]), values(counts[1], counts[2]), values(*counts[:2])
        assert not any(one.any() for one in both_ways(compiled, code, *given))


@KINDS
def test_what_is_not_finite_stays_so(compiled, kind):
    query, rows = values(2, 8), values(3, 8)
    query[1, 5] = torch.nan
    out, of_query, _ = both_ways(compiled, DISTANCES.index(kind), query, rows, torch.ones(2, 3))
    assert out[0].isfinite().all()
    assert out[1].isnan().all()
    assert of_query[1, 5].isnan()


@KINDS
def test_gradcheck(kind):
    query, rows = (values(n, 6, dtype=torch.float64, seed=n, grad=True) for n in (3, 4))
    assert torch.autograd.gradcheck(lambda a, b: distances(a, b, kind), (query, rows))


@KINDS
def test_bits_do_not_depend_on_the_number_of_threads(kind):
    query, rows = values(200, 74, grad=True), values(1000, 74, seed=2, grad=True)

    def run() -> list[Tensor]:
        out = distances(query, rows, kind)
        return [out.detach(), *torch.autograd.grad(out.square().sum(), (query, rows))]

    assert_same_bits_with_any_threads(run)


def test_narrow_rows_have_distances_in_float32():
    query, rows = values(3, 6, dtype=torch.bfloat16, grad=True), values(4, 6, dtype=torch.bfloat16)
    out = distances(query, rows, "moduli")
    assert torch.equal(out, distances(query.float(), rows.float(), "moduli"))
    (grad,) = torch.autograd.grad(out.sum(), query)
    assert grad.dtype == torch.bfloat16


def test_arrays_that_the_kernel_cannot_take_are_refused(compiled):
    with pytest.raises(ValueError, match="query must be float32 or float64"):
        compiled.distances(values(2, 4).half(), values(3, 4).half(), 0, torch.empty(2, 3).half())
    with pytest.raises(ValueError, match=r"kind must lie in \[0, 2\]"):
        compiled.distances(values(2, 4), values(3, 4), 3, torch.empty(2, 3))
    with pytest.raises(ValueError, match="as many imaginary as real parts"):
        compiled.distances(values(2, 5), values(3, 5), 2, torch.empty(2, 3))


def test_second_derivatives_are_refused():
    query = values(3, 6, grad=True)
    with pytest.raises(ConfigError, match="no second derivatives"):
        torch.autograd.grad(distances(query, values(2, 6), "moduli").sum(), query, create_graph=True)
