"""Graphs with everything that a reordering moves, and its expected result in plain Python."""

import torch
from hypothesis import strategies as st
from tests.graph.cases import edge_lists
from torch import Tensor

from graphbraid.graph import Graph, SparseFeatures
from graphbraid.graph.csc import Csc

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@st.composite
def full_graphs(draw: st.DrawFn) -> Graph:
    """A graph whose edges stand in any order; weights, ids, features and labels of any kind, or none."""
    num_nodes, (_, dst) = draw(edge_lists(max_nodes=9, max_edges=30))
    seed = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    num_edges, dtype = dst.numel(), draw(st.sampled_from(DTYPES))
    src = torch.randint(0, max(1, num_nodes), (num_edges,), generator=seed)  # not sorted within a list
    indptr = torch.zeros(num_nodes + 1, dtype=torch.int64)
    indptr[1:] = torch.bincount(dst, minlength=num_nodes).cumsum(0)
    indices = src.to(draw(st.sampled_from((torch.int32, torch.int64))))
    x: Tensor | SparseFeatures = torch.randn(num_nodes, 3, generator=seed).to(dtype)
    if draw(st.booleans()):
        x = SparseFeatures.from_dense(x * (x > 0))
    labels = {
        "class": torch.randint(0, 3, (num_nodes,), generator=seed),
        "targets": torch.randn(num_nodes, 2, generator=seed),
    }
    ids = torch.randperm(num_nodes, generator=seed)
    return Graph(
        csc=Csc(
            indptr, indices, num_nodes, torch.rand(num_edges, generator=seed) if draw(st.booleans()) else None
        ),
        edge_id=torch.randperm(num_edges, generator=seed) if draw(st.booleans()) else None,
        edge_attr=torch.randn(num_edges, 2, generator=seed).to(dtype) if draw(st.booleans()) else None,
        x=draw(st.sampled_from((x, None))),
        y=labels[draw(st.sampled_from(("class", "targets")))],
        splits={"train": ids[: num_nodes // 2], "val": ids[num_nodes // 2 :]},
        name="full",
    )


def arrays(graph: Graph) -> dict[str, Tensor]:
    """Every array of a graph, by name."""
    found = {"indptr": graph.csc.indptr, "indices": graph.csc.indices, "weight": graph.csc.weight}
    found |= {"edge_id": graph.edge_id, "edge_attr": graph.edge_attr, "y": graph.y}
    if isinstance(graph.x, SparseFeatures):
        found |= {"x_indptr": graph.x.indptr, "x_indices": graph.x.indices, "x_values": graph.x.values}
    else:
        found["x"] = graph.x
    found |= dict(graph.splits)
    return {name: values for name, values in found.items() if values is not None}


def assert_same(a: Graph, b: Graph) -> None:
    """Equal to the bit, dtypes included."""
    ours, theirs = arrays(a), arrays(b)
    assert (a.name, ours.keys()) == (b.name, theirs.keys())
    for name in ours:
        assert ours[name].dtype == theirs[name].dtype, name
        assert torch.equal(ours[name], theirs[name]), name


def expected(graph: Graph, order: list[int], *, rising: bool = False) -> dict[str, list]:
    """What each array holds once ``graph`` stands in ``order``."""
    before, place = {name: values.tolist() for name, values in arrays(graph).items()}, {}
    place = {node: i for i, node in enumerate(order)}

    def lists(indptr: list[int]) -> list[list[int]]:
        return [list(range(indptr[node], indptr[node + 1])) for node in order]

    edges = lists(before["indptr"])
    if rising:
        edges = [sorted(row, key=lambda e: place[before["indices"][e]]) for row in edges]
    flat = [e for row in edges for e in row]
    after = {"indptr": _added([len(row) for row in edges])}
    after["indices"] = [place[before["indices"][e]] for e in flat]
    for name in ("weight", "edge_id", "edge_attr"):
        if name in before:
            after[name] = [before[name][e] for e in flat]
    for name in ("x", "y"):
        if name in before:
            after[name] = [before[name][node] for node in order]
    if "x_indptr" in before:
        rows = lists(before["x_indptr"])
        after["x_indptr"] = _added([len(row) for row in rows])
        for name in ("x_indices", "x_values"):
            after[name] = [before[name][i] for row in rows for i in row]
    return after | {name: [place[node] for node in before[name]] for name in graph.splits}


def _added(counts: list[int]) -> list[int]:
    ends = [0]
    for count in counts:
        ends.append(ends[-1] + count)
    return ends
