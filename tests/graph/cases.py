"""Graphs that tests share, strategies for hypothesis, and ways to run the twins or other threads."""

import contextlib
from collections.abc import Iterator
from unittest import mock

import torch
from hypothesis import strategies as st
from tests.graph.edge_cases import EDGE_CASES
from torch import Tensor

from graphbraid import native
from graphbraid.graph import Graph


@contextlib.contextmanager
def reference_kernels() -> Iterator[None]:
    """Within, the reference twins run."""
    with mock.patch.object(native, "kernels", lambda: None):
        yield


def case_graph(name: str, *, weighted: bool = True) -> Graph:
    num_nodes, src, dst = EDGE_CASES[name]
    weight = torch.arange(1.0, len(src) + 1) if weighted else None
    return Graph.from_edge_index(torch.tensor([src, dst], dtype=torch.int64), num_nodes, edge_weight=weight)


@st.composite
def edge_lists(draw: st.DrawFn, max_nodes: int = 12, max_edges: int = 40) -> tuple[int, Tensor]:
    """A number of nodes and a ``(2, num_edges)`` list over them; small, so that collisions are common."""
    num_nodes = draw(st.integers(0, max_nodes))
    ids = st.integers(0, max(0, num_nodes - 1))
    pairs = draw(st.lists(st.tuples(ids, ids), max_size=max_edges if num_nodes else 0))
    return num_nodes, torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).t()


@st.composite
def graphs(draw: st.DrawFn, weighted: bool | None = None, **limits: int) -> Graph:
    """A graph over :func:`edge_lists`, with weights that float32 adds exactly."""
    num_nodes, edges = draw(edge_lists(**limits))
    has_weight = draw(st.booleans()) if weighted is None else weighted
    weight = None
    if has_weight:
        quarters = st.lists(st.integers(1, 40), min_size=edges.shape[1], max_size=edges.shape[1])
        weight = torch.tensor(draw(quarters), dtype=torch.float32) / 4
    return Graph.from_edge_index(edges, num_nodes, edge_weight=weight)


def pairs_of(graph: Graph) -> list[tuple[int, int]]:
    """The edges as sorted (source, destination) pairs: equal lists are equal multisets."""
    src, dst = graph.to_edge_index().tolist()
    return sorted(zip(src, dst, strict=True))


def assert_same_graph(a: Graph, b: Graph) -> None:
    """Topology, weights and ids agree to the bit."""
    assert a.csc.num_src == b.csc.num_src
    assert torch.equal(a.csc.indptr, b.csc.indptr)
    assert a.csc.indices.dtype == b.csc.indices.dtype
    assert torch.equal(a.csc.indices, b.csc.indices)
    for left, right in ((a.csc.weight, b.csc.weight), (a.edge_id, b.edge_id)):
        assert (left is None) == (right is None)
        if left is not None and right is not None:
            assert left.dtype == right.dtype
            assert torch.equal(left, right)
