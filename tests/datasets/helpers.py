"""Small graphs and comparisons for the dataset tests."""

import numpy as np
import torch

from graphbraid.graph import Graph, SparseFeatures
from graphbraid.graph.csc import Csc


def small_graph(
    x_dtype=torch.float32, *, sparse=False, weight=True, index_dtype=torch.int32, y="class"
) -> Graph:
    """5 nodes, node 2 isolated, a loop at 4."""
    indptr = torch.tensor([0, 2, 3, 3, 4, 6])
    indices = torch.tensor([1, 3, 0, 0, 1, 4], dtype=index_dtype)
    dense = torch.tensor([[1.0, 0, 0], [0, 2, 0], [0, 0, 0], [0, 0, 3], [4, 0, 5]]).to(x_dtype)
    labels = {
        "class": torch.tensor([0, 1, -1, 1, 0]),
        "multi": torch.tensor([[0.0, 1], [1, 0], [1, 1], [0, 0], [1, 0]]),
        "target": torch.tensor([0.5, 1.5, 2.5, 3.5, 4.5]),
        None: None,
    }
    return Graph(
        csc=Csc(indptr, indices, 5, torch.arange(6.0) if weight else None),
        edge_id=torch.tensor([5, 4, 3, 2, 1, 0]),
        x=SparseFeatures.from_dense(dense) if sparse else dense,
        y=labels[y],
        splits={"train": torch.tensor([0, 1]), "val": torch.tensor([3]), "test": torch.tensor([4])},
        name="small",
    )


def assert_same_graph(a: Graph, b: Graph) -> None:
    """Equal to the bit, dtypes included."""
    assert a.num_nodes == b.num_nodes
    assert a.name == b.name
    assert list(a.splits) == list(b.splits)
    assert type(a.x) is type(b.x)
    for first, second in zip(tensors(a), tensors(b), strict=True):
        assert (first is None) == (second is None)
        if first is not None:
            assert first.dtype == second.dtype
            assert torch.equal(first, second)


def tensors(graph: Graph) -> list[torch.Tensor | None]:
    x = graph.x
    features = [x.indptr, x.indices, x.values] if isinstance(x, SparseFeatures) else [x]
    csc = graph.csc
    return [csc.indptr, csc.indices, csc.weight, graph.edge_id, graph.y, *features, *graph.splits.values()]


EDGES = np.array([[0, 1, 2, 2], [1, 2, 0, 1]], np.int32)


def write(path, **arrays):
    """A file of four nodes and these arrays."""
    np.savez_compressed(path, **{"edge_index": EDGES, "num_nodes": np.int64(4), **arrays})
    return path


def csr(**change):
    """The arrays of sparse features of the file's nodes."""
    parts = {
        "x_data": np.ones(2, np.float32),
        "x_indices": np.array([0, 2], np.int32),
        "x_indptr": np.array([0, 1, 1, 2, 2]),
        "x_shape": np.array([4, 3]),
    }
    return {**parts, **change}
