"""Graphs that reach a kernel's corners, and ways to run each compiled variant."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from graphbraid import native
from graphbraid.graph.csc import Csc

WIDTHS = (1, 3, 7, 16, 33, 64, 100, 128, 257, 602, 1023, 1024)
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def skewed(num_dst: int = 40, num_src: int = 60, *, seed: int = 0, dtype: torch.dtype = torch.int32) -> Csc:
    """A block with isolated first and last rows, a hub of num_src edges, self-loops and repeated edges."""
    generator = torch.Generator().manual_seed(seed)
    degrees = torch.randint(0, 7, (num_dst,), generator=generator)
    degrees[0] = degrees[-1] = 0
    degrees[num_dst // 2] = num_src
    indptr = torch.zeros(num_dst + 1, dtype=torch.int64)
    indptr[1:] = degrees.cumsum(0)
    indices = torch.randint(0, num_src, (int(indptr[-1]),), generator=generator).to(dtype)
    for v in range(1, min(num_dst, num_src), 5):  # an edge from the node itself, in the middle of its row
        if degrees[v]:
            indices[indptr[v] + degrees[v] // 2] = v
    return Csc(indptr, indices, num_src)


def square(num_nodes: int = 50, *, seed: int = 0) -> Csc:
    """A block like :func:`skewed`'s, with as many sources as destinations."""
    return skewed(num_nodes, num_nodes, seed=seed)


def without_edges(num_dst: int, num_src: int) -> Csc:
    return Csc(torch.zeros(num_dst + 1, dtype=torch.int64), torch.zeros(0, dtype=torch.int32), num_src)


CORNERS = {
    "skewed": skewed,
    "int64 ids": lambda: skewed(dtype=torch.int64),
    "no edges": lambda: without_edges(3, 4),
    "no destinations": lambda: without_edges(0, 4),
    "nothing at all": lambda: without_edges(0, 0),
    "one edge": lambda: Csc(torch.tensor([0, 1]), torch.tensor([1], dtype=torch.int32), 2),
}


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def assert_same_bits_with_any_threads(run: Callable[[], list[Tensor]]) -> list[Tensor]:
    """``run`` gives the same bits with 1, 2 and 3 threads, which are returned."""
    results = []
    for count in (1, 2, 3):
        with threads(count):
            results.append(run())
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            assert torch.equal(a, b)
    return results[0]


def skip_where_torch_multiplies() -> None:
    """Matrix products of the twins are PyTorch's; MKL's bits depend on threads on some processors."""
    if native.kernels() is None:
        pytest.skip("without compiled kernels PyTorch multiplies, whose bits may depend on threads")


def close(actual: Tensor, expected: Tensor, *, terms: float = 64) -> None:
    """Equal up to the rounding of sums of about ``terms`` terms, and of the storage."""
    precision = {torch.float64: 1e-12, torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
    tolerance = precision[actual.dtype]
    torch.testing.assert_close(actual, expected, rtol=tolerance * 4, atol=tolerance * terms**0.5)


def values(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 1, grad: bool = False) -> Tensor:
    generator = torch.Generator().manual_seed(seed + 1000 * sum(shape))
    out = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    return out.requires_grad_(grad)
