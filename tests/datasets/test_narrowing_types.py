"""Stores of graphs with types whose features were narrowed, and what reads them: the rows widened."""

import dataclasses

import pytest
import torch
from tests.datasets.test_narrowing import DTYPES, assert_features, narrowed
from tests.extras import NO_PYG
from tests.graph.typed_cases import PAPERS, bibliography
from tests.suites import few_of
from tests.train import typed_communities
from tests.train.test_typed_trainer import OPTIONS, losses, rgcn

from graphbraid import ScaledFeatures
from graphbraid.datasets import Narrowing, open_store, save_store
from graphbraid.errors import DataError
from graphbraid.graph import SparseFeatures
from graphbraid.loader import NeighborLoader
from graphbraid.train import Trainer


def with_features(graph, **x):
    """The graph with other features of some types."""
    nodes = dict(graph.types.nodes)
    for node_type, features in x.items():
        nodes[node_type] = dataclasses.replace(nodes[node_type], x=features)
    return graph.replace(types=dataclasses.replace(graph.types, nodes=nodes))


def widened(graph):
    """The graph with all features as they are read of it, in float32."""
    held = {one: graph.nodes_of(one).x for one in graph.node_types}
    return with_features(
        graph,
        **{
            one: x.to_dense() if isinstance(x, ScaledFeatures) else x.float()
            for one, x in held.items()
            if x is not None
        },
    )


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_features_of_every_type_are_rounded(tmp_path, dtype, mmap):
    graph, narrowing = bibliography(), Narrowing(dtype)
    path = save_store(graph, tmp_path / "s", features_dtype=narrowing)
    found = open_store(path, mmap=mmap, verify=True)
    found.validate()
    for one in ("paper", "author"):
        assert_features(found.nodes_of(one).x, narrowed(graph.nodes_of(one).x, dtype))
    assert found.nodes_of("field").x is None
    assert found.nodes_of("paper").y.equal(graph.nodes_of("paper").y)
    again = open_store(save_store(found, tmp_path / "again"))
    assert_features(again.nodes_of("paper").x, found.nodes_of("paper").x)
    assert narrowing.rounding.node_type in ("paper", "author")
    assert f" of {narrowing.rounding.node_type})" in str(narrowing.rounding)
    assert 0 < narrowing.rounding.mean < narrowing.rounding.largest < 0.05


def test_the_rounding_is_that_of_all_types_together(tmp_path):
    exact = torch.full((PAPERS, 5), 127.0)  # a scale of 1
    coarse = torch.full((25, 2), 127.0)
    coarse[7, 1] = 0.4
    narrowing = Narrowing("int8")
    graph = with_features(bibliography(), paper=exact, author=coarse)
    save_store(graph, tmp_path / "s", features_dtype=narrowing)
    found = narrowing.rounding
    assert (found.node_type, found.largest_row) == ("author", 7)
    assert found.mean == pytest.approx(found.largest / (PAPERS + 25), rel=1e-6)
    assert found.to_json()["node_type"] == "author"
    save_store(with_features(graph, author=None), tmp_path / "t", features_dtype=narrowing)
    assert narrowing.rounding.largest == 0.0, "of the last store alone"
    assert narrowing.rounding.node_type == ""


def test_types_with_sparse_features_keep_them(tmp_path):
    sparse = SparseFeatures.from_dense(torch.eye(6))
    graph = with_features(bibliography(), field=sparse)
    found = open_store(save_store(graph, tmp_path / "s", features_dtype="int8"))
    assert isinstance(found.nodes_of("field").x, SparseFeatures)
    assert isinstance(found.nodes_of("paper").x, ScaledFeatures)


def test_what_cannot_be_narrowed_is_refused_with_its_type(tmp_path):
    graph = bibliography()
    x = graph.nodes_of("author").x.clone()
    x[3, 1] = float("nan")
    with pytest.raises(DataError, match=r"nodes of type 'author': .*3, 1"):
        save_store(with_features(graph, author=x), tmp_path / "s", features_dtype="int8")
    large = torch.full((PAPERS, 2), 1e6)
    with pytest.raises(
        DataError, match=r"nodes of type 'paper': x\[0, 0\] is 1e\+06, beyond the largest float16"
    ):
        save_store(with_features(graph, paper=large), tmp_path / "s", features_dtype="float16")
    int8 = with_features(graph, paper=ScaledFeatures.from_dense(graph.nodes_of("paper").x))
    with pytest.raises(DataError, match="these are int8 already"):
        save_store(int8, tmp_path / "s", features_dtype="float16")
    with pytest.raises(DataError, match="the graph has none"):
        save_store(with_features(graph, paper=None, author=None), tmp_path / "s", features_dtype="int8")
    sparse = SparseFeatures.from_dense(torch.eye(6))
    with pytest.raises(DataError, match="these are sparse"):
        save_store(
            with_features(graph, paper=None, author=None, field=sparse), tmp_path / "s", features_dtype="int8"
        )
    assert not (tmp_path / "s").exists()


def test_scales_that_do_not_fit_their_type_are_refused():
    graph = bibliography()
    x = ScaledFeatures.from_dense(graph.nodes_of("paper").x)
    few = ScaledFeatures(values=x.values[:-1], scale=x.scale[:-1])
    with pytest.raises(DataError, match="nodes of type 'paper'"):
        with_features(graph, paper=few)
    wrong = ScaledFeatures(values=x.values, scale=x.scale.clone())
    wrong.scale[4] = float("inf")
    with pytest.raises(DataError, match=r"nodes of type 'paper'.*scale\[4\] is inf"):
        with_features(graph, paper=wrong).validate()


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"layout": "blocks"}], ids=str)
def test_batches_have_the_rows_widened(tmp_path, options):
    graph = open_store(save_store(bibliography(), tmp_path / "s", features_dtype="int8"))
    given = {
        "num_neighbors": [3, 2],
        "input_nodes": ("paper", "train"),
        "batch_size": 7,
        "seed": 3,
        **options,
    }
    for ours, plain in zip(
        NeighborLoader(graph, **given), NeighborLoader(widened(graph), **given), strict=True
    ):
        for one in ("paper", "author"):
            mine, its = (batch.x_dict[one] for batch in (ours, plain))
            assert mine.dtype == torch.float32
            assert torch.equal(mine, its)


@pytest.mark.parametrize("dtype", few_of(DTYPES, {"int8"}))
def test_runs_are_those_of_the_rows_widened(tmp_path, dtype):
    graph = open_store(save_store(typed_communities.bibliography(), tmp_path / "s", features_dtype=dtype))
    found = []
    for one in (graph, widened(graph)):
        trainer = Trainer(rgcn(one), one, **OPTIONS)
        found.append((losses(trainer), trainer.predict(), trainer.predict(mode="sampled")))
    assert found[0][0] == found[1][0]
    assert all(torch.equal(mine, its) for mine, its in zip(found[0][1:], found[1][1:], strict=True))
    bytes_of_copies = 4 * sum(x.shape[0] * x.shape[1] for x in _features(graph))
    assert Trainer(rgcn(graph), graph, **OPTIONS).runner.widened_bytes == bytes_of_copies
    assert Trainer(rgcn(graph), widened(graph), **OPTIONS).runner.widened_bytes == 0


def _features(graph):
    return [x for one in graph.node_types if (x := graph.nodes_of(one).x) is not None]


def test_pyg_gets_float_rows(tmp_path):
    pytest.importorskip("torch_geometric", reason=NO_PYG)
    graph = open_store(save_store(bibliography(), tmp_path / "s", features_dtype="int8"))
    data = graph.to_pyg()
    for one in ("paper", "author"):
        assert torch.equal(data[one].x, graph.nodes_of(one).x.to_dense())
