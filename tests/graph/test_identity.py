"""Marks: equal for equal arrays wherever they come from, others after any change."""

import pytest
import torch

from graphbraid import Graph
from graphbraid.datasets import open_store, save_store
from graphbraid.graph import ScaledFeatures, SparseFeatures
from graphbraid.graph.csc import Csc
from graphbraid.graph.identity import _checksum, features_mark, keep_mark, mark, topology_mark
from graphbraid.train.run_folder.contract import graph_identity


def make_graph(x) -> Graph:
    draw = torch.Generator().manual_seed(0)
    edges = torch.randint(0, 40, (2, 200), generator=draw)
    return Graph.from_edge_index(
        edges, 40, x=x, edge_attr=torch.rand(200, 2, generator=draw), edge_weight=torch.rand(200)
    ).replace(y=torch.arange(40) % 3, splits={"train": torch.arange(20), "val": torch.arange(0)})


X = torch.rand(40, 5, generator=torch.Generator().manual_seed(1))
KINDS = {
    "float32": X,
    "bfloat16": X.bfloat16(),
    "int8": ScaledFeatures.from_dense(X),
    "sparse": SparseFeatures.from_dense(X * (X > 0.5)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_graph_read_or_mapped_from_a_store_is_the_one_that_was_written(kind, tmp_path):
    graph = make_graph(KINDS[kind])
    store = save_store(graph, tmp_path / "s")
    for mmap in (True, False):
        again = open_store(store, mmap=mmap)
        assert graph_identity(again) == graph_identity(graph)
        assert features_mark(again.x) == features_mark(graph.x)
        assert topology_mark(again.csc) == topology_mark(graph.csc)


def test_of_a_mapped_array_the_stores_checksum_is_taken_until_it_is_changed_in_place(tmp_path):
    graph = open_store(save_store(make_graph(X), tmp_path / "s"))
    keep_mark(graph.x, "of the store", in_blocks=True)
    assert features_mark(graph.x) == "of the store"
    graph.x[3, 1] += 1
    assert features_mark(graph.x) == features_mark(graph.x.clone())
    assert features_mark(graph.x) != features_mark(X)


def test_an_array_is_read_once_and_again_after_a_change(monkeypatch):
    array, seen = X.clone(), []
    counted = lambda *a, **k: seen.append(a) or _checksum(*a, **k)  # noqa: E731
    monkeypatch.setattr("graphbraid.graph.identity._checksum", counted)
    first = mark(array)
    assert (mark(array), len(seen)) == (first, 1)
    array[39, 4] = 7
    assert mark(array) != first
    assert len(seen) == 2
    with torch.inference_mode():  # whose tensors count no changes
        array = torch.zeros(3)
        first = mark(array)
        array += 1
        assert mark(array) != first


@pytest.mark.parametrize(
    "array",
    [torch.tensor(3.0), torch.zeros(0, 3), torch.zeros(3, 0), torch.ones(2, 1) > 0, torch.arange(6)[::2]],
)
def test_arrays_of_every_shape_have_one_that_strides_do_not_change(array):
    assert mark(array) == mark(array.clone())
    if array.ndim == 2:
        assert mark(array.t().contiguous().t()) == mark(array)


def test_it_tells_shape_dtype_values_order_and_weights(monkeypatch):
    monkeypatch.setattr("graphbraid.graph.identity._AT_A_TIME", 7)  # parts
    others = [X, X * 2, X.flip(0), X.t(), X.reshape(5, 40), X.double(), X[:39]]
    assert len({mark(one.contiguous()) for one in others}) == len(others)
    assert mark(X.flip(0)[::2]) == mark(X.flip(0)[::2].clone())
    csc = make_graph(X).csc
    wide = Csc(csc.indptr, csc.indices.long(), csc.num_src, csc.weight)
    assert topology_mark(wide) == topology_mark(csc)
    assert topology_mark(Csc(csc.indptr, csc.indices, csc.num_src)) != topology_mark(csc)
