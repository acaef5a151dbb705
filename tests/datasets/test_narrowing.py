"""Stores whose features were narrowed to 16 or 8 bits while they were written."""

import dataclasses
import json
import math

import pytest
import torch
from tests.datasets.helpers import small_graph
from tests.extras import NO_PYG
from tests.features.cases import assert_same
from tests.features.tables import flip_a_byte, table_of
from tests.graph.typed_cases import PAPERS, bibliography
from tests.suites import few_of
from tests.train import typed_communities
from tests.train.test_typed_trainer import OPTIONS, losses, rgcn

from graphbraid import ScaledFeatures
from graphbraid.datasets import Narrowing, NodeIds, open_names, open_store, prepare, save_store
from graphbraid.errors import ConfigError, DataError
from graphbraid.graph import SparseFeatures, scaled_features
from graphbraid.loader import NeighborLoader
from graphbraid.train import Trainer

DTYPES = ["float16", "bfloat16", "int8"]


def narrowed(x, dtype):
    """What the features of a store should be."""
    return ScaledFeatures.from_dense(x) if dtype == "int8" else x.to(getattr(torch, dtype))


def assert_features(found, expected):
    assert type(found) is type(expected)
    if isinstance(expected, ScaledFeatures):
        assert torch.equal(found.values, expected.values)
        assert torch.equal(found.scale, expected.scale)
    else:
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected)


@pytest.fixture
def graph():
    return small_graph().replace(x=table_of(5, 6))


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_features_are_rounded_while_they_are_written(graph, tmp_path, dtype, mmap):
    path = save_store(graph, tmp_path / "s", features_dtype=dtype)
    found = open_store(path, mmap=mmap, verify=True)
    assert_features(found.x, narrowed(graph.x, dtype))
    assert_same(found.replace(x=graph.x), graph)
    again = open_store(save_store(found, tmp_path / "again"))
    assert_features(again.x, found.x)


@pytest.mark.parametrize("dtype", DTYPES)
def test_parts_are_rounded_as_they_come(graph, tmp_path, dtype, monkeypatch):
    monkeypatch.setattr(scaled_features, "_CHUNK", 12)  # two rows
    parts = iter([graph.x[:3], graph.x[3:3], graph.x[3:]])
    path = save_store(graph.replace(x=None), tmp_path / "s", feature_parts=parts, features_dtype=dtype)
    assert_features(open_store(path).x, narrowed(graph.x, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_renumbering_moves_rows_with_their_scales(graph, tmp_path, dtype):
    order = torch.tensor([3, 0, 4, 1, 2])
    there = save_store(graph, tmp_path / "there", order=order, features_dtype=dtype)
    kept = narrowed(graph.x, dtype)
    expected = kept.to_dense() if dtype == "int8" else kept
    assert torch.equal(open_store(there).dense_x(), expected[order])
    back = save_store(open_store(there), tmp_path / "back", order=order.argsort())
    assert_features(open_store(back).x, kept)
    assert torch.equal(open_store(back).csc.indices, graph.csc.indices)
    assert open_names(there).ids.values.tolist() == order.tolist()


def test_the_files_take_a_quarter(tmp_path):
    graph = small_graph().replace(x=table_of(5, 4096))
    sizes = {}
    for dtype in (None, *DTYPES):
        path = save_store(graph, tmp_path / str(dtype), features_dtype=dtype)
        sizes[dtype] = (path / "x.npy").stat().st_size - 4096  # of the header
    assert sizes == {None: 81920, "float16": 40960, "bfloat16": 40960, "int8": 20480}
    assert open_store(tmp_path / "int8").x.nbytes == 20480 + 5 * 4


def test_what_was_rounded_away_is_told(tmp_path):
    graph = small_graph().replace(
        x=torch.tensor([[0.0, 0.0], [127.0, 1.0], [100.0, 0.25], [1.0, 1.0], [0.0, 5.0]])
    )
    found = Narrowing("int8")
    save_store(graph, tmp_path / "s", features_dtype=found)
    rounding = found.rounding
    wide = open_store(tmp_path / "s").dense_x().double()
    errors = (wide - graph.x.double()).norm(dim=1)[1:] / graph.x.double().norm(dim=1)[1:]
    assert (rounding.largest, rounding.largest_row) == (pytest.approx(float(errors[1])), 2)
    assert rounding.mean == pytest.approx(float(errors.mean()))
    assert json.loads(json.dumps(rounding.to_json()))["dtype"] == "int8"
    assert str(rounding).startswith("features as int8: relative error of a row at most 0.0025 (row 2), ")
    exact = Narrowing("float16")
    save_store(graph, tmp_path / "t", features_dtype=exact)
    assert (exact.rounding.largest, exact.rounding.largest_row, exact.rounding.mean) == (0.0, -1, 0.0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_numbers_that_are_none_are_named(graph, tmp_path, dtype, value):
    x = graph.x.clone()
    x[3, 2] = value
    with pytest.raises(DataError, match=rf"x\[3, 2\] is {value}"):
        save_store(graph.replace(x=x), tmp_path / "s", features_dtype=dtype)
    assert not (tmp_path / "s").exists()


def test_numbers_beyond_the_dtype_are_named(graph, tmp_path):
    x = graph.x.clone()
    x[4, 1] = -70000.0
    with pytest.raises(DataError, match=r"x\[4, 1\] is -70000, beyond the largest float16, 65504"):
        save_store(graph.replace(x=x), tmp_path / "s", features_dtype="float16")
    x[4, 1] = torch.finfo(torch.float32).max
    with pytest.raises(DataError, match=r"x\[4, 1\] is 3\.40282e\+38, beyond the largest bfloat16"):
        save_store(graph.replace(x=x), tmp_path / "s", features_dtype="bfloat16")
    assert bool(
        open_store(save_store(graph.replace(x=x), tmp_path / "s", features_dtype="int8"))
        .dense_x()
        .isfinite()
        .all()
    )


def test_what_cannot_be_narrowed_is_refused(graph, tmp_path):
    with pytest.raises(ConfigError, match=r"features_dtype must be one of .*; got 'int4'"):
        save_store(graph, tmp_path / "s", features_dtype="int4")
    with pytest.raises(DataError, match="these are sparse"):
        save_store(small_graph(sparse=True), tmp_path / "s", features_dtype="int8")
    with pytest.raises(DataError, match="the graph has none"):
        save_store(graph.replace(x=None), tmp_path / "s", features_dtype="float16")
    scaled = graph.replace(x=ScaledFeatures.from_dense(graph.x))
    with pytest.raises(DataError, match="these are int8 already"):
        save_store(scaled, tmp_path / "s", features_dtype="float16")
    with pytest.raises(DataError, match="feature_parts must be float32"):
        save_store(
            graph.replace(x=None),
            tmp_path / "s",
            feature_parts=[torch.zeros(5, 2, dtype=torch.int32)],
            features_dtype="int8",
        )
    with pytest.raises(DataError, match="normalise them before they are made int8"):
        prepare(scaled, normalize_features=True)
    assert not (tmp_path / "s").exists()


@pytest.fixture
def store(graph, tmp_path):
    return save_store(graph, tmp_path / "s", features_dtype="int8", ids=NodeIds(graph.y.numpy()))


def test_a_changed_scale_is_noticed(store):
    flip_a_byte(store / "x_scale.npy", 128 + 5)
    with pytest.raises(DataError, match=r"x_scale\.npy has changed since it was written"):
        open_store(store)


def test_a_truncated_or_missing_scale_file_is_noticed(store):
    file = store / "x_scale.npy"
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(DataError, match=r"x_scale\.npy is truncated"):
        open_store(store)
    file.unlink()
    with pytest.raises(DataError, match=r"x_scale\.npy of the store cannot be read"):
        open_store(store)


def edited(store, change):
    """Change the description, as a faulty writer would."""
    manifest = json.loads((store / "graph.json").read_text())
    manifest.pop("checksum", None)
    change(manifest["arrays"])
    (store / "graph.json").write_text(json.dumps(manifest))


def test_descriptions_that_lack_a_part_are_refused(store):
    edited(store, lambda arrays: arrays.pop("x_scale"))
    with pytest.raises(DataError, match="describes no 'x_scale'"):
        open_store(store)


def test_a_scale_without_rows_is_refused(store):
    edited(store, lambda arrays: arrays.pop("x"))
    with pytest.raises(DataError, match="describes no 'x'"):
        open_store(store)


def test_scales_of_another_number_of_rows_are_refused(store, graph, tmp_path):
    other = save_store(graph.replace(x=graph.x[:, :1]), tmp_path / "other", features_dtype="int8")
    edited(store, lambda arrays: arrays.update(x_scale=arrays["indptr"] | {"dtype": "int64"}))
    with pytest.raises(DataError, match=r"scale must be float32.*one for each of 5 rows"):
        open_store(store)
    assert open_store(other).x.shape == (5, 1)


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
