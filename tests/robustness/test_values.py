"""Values of every kind that a caller may hand over: taken as they are or refused, never cut or wrapped."""

import numpy as np
import pytest
import torch

from graphbraid import Graph, SparseFeatures, TrainConfig, nn
from graphbraid.cli.table_files import read_ids
from graphbraid.datasets import random_split
from graphbraid.datasets.ids import NodeIds
from graphbraid.errors import ConfigError, DataError
from graphbraid.loader import NeighborLoader
from graphbraid.ops import rng
from graphbraid.sampling import SamplerConfig, SeedSchedule, sample_batch
from graphbraid.train import Trainer

EDGES = [[0, 1, 2, 3], [1, 2, 3, 0]]
MOST = 2**63


def graph(**fields) -> Graph:
    return Graph.from_edge_index(EDGES, 4, **fields)


@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", ">i4", ">i8"])
def test_edges_and_labels_of_any_integers_are_read_exactly(dtype):
    made = Graph.from_edge_index(np.array(EDGES, dtype), 4, y=np.array([0, 1, 2, 3], dtype))
    assert made.to_edge_index(original_order=True).tolist() == EDGES
    assert made.y.tolist() == [0, 1, 2, 3]
    assert made.y.dtype == torch.int64


@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int8, torch.bool]
)
def test_features_of_integers_keep_their_values(dtype):
    values = torch.tensor([[0, 1], [1, 0], [1, 1], [0, 0]])
    assert torch.equal(graph(x=values.to(dtype)).x, values.float())
    assert torch.equal(graph(x=values.to(dtype).numpy()).x, values.float())


@pytest.mark.parametrize("as_numpy", [False, True])
@pytest.mark.parametrize("field", ["x", "y", "edge_weight"])
def test_unsigned_integers_beyond_int64_are_refused(field, as_numpy):
    values = np.array([1, 2, MOST + 5, 3], np.uint64)
    with pytest.raises(DataError, match=rf"{field} must be below 2\*\*63; number 2 is {MOST + 5}"):
        graph(**{field: values if as_numpy else torch.from_numpy(values)})


@pytest.mark.parametrize("stored", ["reversed", "big endian", "columns first", "long double", "read only"])
def test_features_are_right_however_they_are_stored(stored):
    x = np.arange(8, dtype=np.float32).reshape(4, 2)
    wanted = torch.from_numpy(x.copy())
    given = {
        "reversed": x[::-1].copy()[::-1],
        "big endian": x.astype(">f4"),
        "columns first": np.asfortranarray(x),
        "long double": x.astype(np.longdouble),
        "read only": x.copy(),
    }[stored]
    if stored == "read only":
        given.flags.writeable = False
    assert torch.equal(graph(x=given).x, wanted)


def test_a_negated_view_is_read_as_what_it_shows():
    x = torch.rand(4, 2)
    assert torch.equal(graph(x=torch._neg_view(x)).x, -x)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"x": torch.tensor(1.0)}, "x must have shape (num_nodes, num_features); got ()"),
        ({"x": torch.ones(4, 2, device="meta")}, "x must be a dense tensor that holds values"),
        ({"x": np.array([["a"]] * 4, object)}, "x must hold numbers; got dtype object"),
        ({"y": np.array(["2020-01-01"] * 4, "M8[D]")}, "y must hold numbers"),
        ({"splits": {"train": [0.5]}}, "must hold integer node ids or be a bool mask"),
        ({"splits": {"train": [-1]}}, "position 0 holds -1"),
        ({"splits": {"train": np.array([MOST], np.uint64)}}, "must be below 2**63"),
        ({"splits": {"train": torch.tensor(0)}}, "must be 1-d node ids or a mask; got shape ()"),
        ({"edge_weight": [1, 2, 3, 1e300]}, "edge_weight must be finite; edge_weight[3] is inf"),
    ],
)
def test_values_that_cannot_be_meant_are_refused(fields, message):
    with pytest.raises(DataError) as error:
        graph(**fields)
    assert message in str(error.value)


@pytest.mark.parametrize("num_nodes", [True, -1, 2.0, "4", 2**41, 2**70, np.array([4, 4])])
def test_a_number_of_nodes_that_is_none_is_refused(num_nodes):
    with pytest.raises(DataError, match=r"num_nodes must be a whole number in \[0, "):
        Graph.from_edge_index(EDGES, num_nodes)


@pytest.mark.parametrize("num_nodes", [4, np.int8(4), np.uint64(4), torch.tensor(4), np.array(4)])
def test_a_number_of_nodes_may_be_of_any_integer_type(num_nodes):
    assert Graph.from_edge_index(EDGES, num_nodes).num_nodes == 4


def test_values_per_edge_must_be_one_per_edge():
    with pytest.raises(DataError, match=r"values must have one row per edge \(4\); got shape \(3,\)"):
        graph().in_original_order(torch.rand(3))


@pytest.mark.parametrize("width", [0, -1, 2**62, 1.5, True, "8", None])
@pytest.mark.parametrize("layer", [nn.GCNConv, nn.SAGEConv, nn.GATConv, nn.GATv2Conv])
def test_layers_of_no_width_are_refused(layer, width):
    for widths in ((width, 4), (4, width)):
        with pytest.raises(ConfigError, match=r"_channels must be (a whole number in|int; got)"):
            layer(*widths)


def test_a_weight_that_no_memory_holds_is_refused():
    with pytest.raises(ConfigError, match="make a weight of"):
        nn.GCNConv(2**20, 2**20)
    with pytest.raises(ConfigError, match="make a weight of"):
        nn.GATConv(2**20, 2**10, heads=2**10)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: nn.GATConv(4, 4, heads=0), ConfigError, "heads must be a whole number in [1, "),
        (lambda: nn.GATConv(4, 4, dropout=1.0), ConfigError, "dropout must be a number in [0, 1)"),
        (lambda: nn.GATConv(4, 4, negative_slope=float("nan")), ConfigError, "negative_slope must be"),
        (lambda: nn.GCN(4, 8, 2, num_layers=10**9), ConfigError, "num_layers must be a whole number in"),
        (lambda: nn.GCN(4, 8, 2, dropout="0.5"), ConfigError, "dropout must be"),
        (lambda: nn.MLP(4, 8, 2)(torch.rand(3, 4), []), DataError, "needs at least one; got none"),
        (lambda: nn.GIN(4, 8, 2)(torch.rand(4, 4).double(), graph().csc), DataError, "one dtype"),
        (lambda: TrainConfig(threads=2**70), ConfigError, "threads must be"),
        (lambda: TrainConfig(batch_size=2**64), ConfigError, "batch_size must be"),
        (lambda: TrainConfig(fanouts=(2**40,)), ConfigError, "fanouts must be"),
        (lambda: SamplerConfig(fanouts=(2**31,)), ConfigError, "a fanout must be"),
        (lambda: SamplerConfig(fanouts=(True,)), ConfigError, "a fanout must be"),
        (lambda: SamplerConfig(fanouts="12"), ConfigError, "fanouts must be a list"),
        (lambda: SamplerConfig(fanouts=(2,), by_relation=5), ConfigError, "by_relation must be a list"),
        (lambda: SamplerConfig(fanouts=(2,), num_samples="ab"), ConfigError, "num_samples must be a list"),
        (lambda: SamplerConfig(fanouts=(2**21,), replace=True), ConfigError, "at most 1048576 times"),
        (lambda: SamplerConfig(fanouts=(2,), replace="no"), ConfigError, "replace must be True or False"),
        (lambda: schedule(batch_size=2**31), ConfigError, "batch_size must be"),
        (lambda: schedule(seed=2**63), ConfigError, "seed must be"),
        (lambda: schedule(shuffle="yes"), ConfigError, "shuffle must be True or False"),
        (lambda: schedule(seeds=torch.tensor([[1]])), DataError, "seeds must have 1 dimensions"),
        (lambda: schedule(seeds=torch.tensor([1.0])), DataError, "seeds must be int64 node ids"),
        (lambda: schedule(seeds=torch.tensor([1, -1])), DataError, "seeds[1] is -1"),
        (lambda: schedule().seeds_of(0, 2), ConfigError, "step must be a whole number in [0, 1]; got 2"),
        (lambda: sampled(torch.tensor([4])), DataError, "seeds must be node ids in [0, 4)"),
        (lambda: sampled(torch.tensor(1)), DataError, "seeds must be a 1-d"),
        (lambda: sampled(torch.tensor([1]), weighted=True), DataError, "the graph has none"),
        (lambda: odds(-1.0), DataError, "is -1"),
        (lambda: NodeIds(np.arange(3)).originals(torch.tensor([-1])), DataError, "nodes must be node ids"),
        (lambda: NodeIds(np.arange(3)).originals(torch.tensor([True])), DataError, "nodes must be a 1-d"),
        (lambda: random_split(graph(y=[0, 0, 0, 0]), seed=-1), ConfigError, "seed must be"),
        (lambda: SparseFeatures.from_dense(torch.ones(2, 2).int()), DataError, "got torch.int32"),
        (lambda: SparseFeatures.from_dense(torch.ones(2, 2)).to(torch.int8), DataError, "got torch.int8"),
    ],
)
def test_a_value_out_of_bounds_is_refused(make, error, message):
    with pytest.raises(error) as raised:
        make()
    assert message in str(raised.value)


def schedule(**fields) -> SeedSchedule:
    return SeedSchedule(**{"seeds": torch.tensor([1, 2, 3]), "batch_size": 2, **fields})


def sampled(seeds: torch.Tensor, *, weighted: bool = False):
    config = SamplerConfig(fanouts=(2,), weighted=weighted)
    return sample_batch(graph().csc, config, seeds, rng.batch_key(0, 0, 0))


def odds(weight: float):
    from graphbraid.loader import NeighborLoader

    weighted = graph(edge_weight=[1.0, weight, 1.0, 1.0])
    return next(iter(NeighborLoader(weighted, [2], weight_attr="edge_weight", seed=0)))


def test_numbers_of_numpy_are_taken_as_pythons():
    config = SamplerConfig(fanouts=np.array([3, -1]))
    assert config.fanouts == (3, -1)
    assert all(type(fanout) is int for fanout in config.fanouts)
    made = schedule(batch_size=np.uint8(2), seed=np.int64(7), shuffle=np.True_)
    assert (made.batch_size, made.seed, made.shuffle) == (2, 7, True)
    per_class = {"train_per_class": 1, "val_per_class": 1}
    drawn = [random_split(graph(y=[0] * 4), seed=seed, **per_class).splits for seed in (np.int64(3), 3)]
    assert drawn[0]["train"].tolist() == drawn[1]["train"].tolist()


def test_ids_and_epochs_beyond_int64_are_refused_by_their_names():
    made = graph(x=torch.ones(4, 2))
    with pytest.raises(ConfigError, match=r"input_nodes must be ids in \[0, 4\); .* is 9223372036854775807"):
        NeighborLoader(made, [3], batch_size=3, input_nodes=torch.tensor([2**63 - 1]))
    loader = NeighborLoader(made, [3], batch_size=3)
    with pytest.raises(ConfigError, match=r"epoch must be a whole number .* got 18446744073709551616"):
        next(iter(loader.batches(2**64)))


def test_the_wrong_name_of_a_metric_is_refused_before_a_folder_is_made(tmp_path):
    made = graph(x=torch.ones(4, 2), y=[0, 1, 2, 0], splits={"train": [0, 1, 2]})
    with pytest.raises(ConfigError, match=r"got 'acuracy'\. Did you mean 'accuracy'"):
        Trainer(nn.GCN(2, 4, 3, 2), made, fanouts=(3, 3), metrics=("acuracy",), out_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.float32])
def test_predictions_take_a_mask_of_bools_alone(dtype):
    made = graph(x=torch.ones(4, 2), y=[0, 1, 2, 0], splits={"train": [0, 1, 2]})
    trainer = Trainer(nn.GCN(2, 4, 3, 2), made, fanouts=(3, 3))
    mask = torch.tensor([1, 0, 1, 0])
    assert torch.equal(trainer.predict(mask.bool()), trainer.predict([0, 2]))
    with pytest.raises((ConfigError, DataError), match=r"mask"):
        trainer.predict(mask.to(dtype))


@pytest.mark.parametrize("separator", ["\n", "\r\n", "\r", " \n\n"])
def test_files_of_ids_have_lines_alone_and_keep_the_rarer_separators(tmp_path, separator):
    (tmp_path / "ids.txt").write_text(separator.join(["6", "a\x0bb", "c\u2028d"]), newline="")
    assert read_ids(tmp_path / "ids.txt") == ["6", "a\x0bb", "c\u2028d"]
