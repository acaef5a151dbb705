"""PyG's HANConv: the attention of each relation is lowered, and that among relations runs as PyG has it."""

import copy

import pytest
import torch
from tests.fullgraph.test_typed_batches import CLOSE, sizes_of, trained
from tests.fullgraph.test_typed_edge_values import KINDS, SINGLE, arguments, data_of, sampled
from torch import nn
from torch_geometric.nn import HANConv

import graphbraid

pytestmark = pytest.mark.filterwarnings("ignore:There exist node types")


class Han(nn.Module):
    """After pytorch_geometric/examples/hetero/han_imdb.py, with one layer or more."""

    def __init__(self, metadata, layers=1, kind=HANConv, **options):
        super().__init__()
        self.layers = nn.ModuleList(kind(-1, 8, metadata, **options) for _ in range(layers))
        self.lin = nn.Linear(8, 3)

    def forward(self, x_dict, edge_index_dict):
        for layer in self.layers:
            x_dict = layer(x_dict, edge_index_dict)
            x_dict = {one: x for one, x in x_dict.items() if x is not None}
        return self.lin(x_dict["a"])


def ready(data, **options):
    torch.manual_seed(0)
    model = Han(data.metadata(), **options).to(data["a"].x.dtype)
    with torch.no_grad():
        model(*arguments(model, data))
    return model


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [{"heads": 2}, {"layers": 2, "negative_slope": 0.1}])
def test_models_equal_themselves(kind, options):
    data = data_of(names=[])
    model, batch = ready(data, **options), KINDS[kind](data_of())
    twin, engine = copy.deepcopy(model), graphbraid.compile(model, strict=True)
    plain = trained(twin, lambda: twin(*arguments(twin, batch))[:3])
    torch.testing.assert_close(trained(model, lambda: engine(batch)), plain, **CLOSE)


def test_all_rows_are_weighed(monkeypatch):
    data, seen = data_of(names=[]), sizes_of(monkeypatch)
    model, batch = ready(data), sampled(data)
    graphbraid.compile(model, strict=True)(batch)
    assert seen[0] == [tuple(store.num_nodes for store in batch.node_stores)] * 2


@pytest.mark.parametrize("layers", [1, 2])
def test_the_whole_graph_equals_pyg(layers):
    data = data_of(torch.float32, names=[])
    model, rows = ready(data, layers=layers, heads=2), data["a"].train_mask
    twin, engine = copy.deepcopy(model), graphbraid.compile(model, data, node_type="a", strict=True)
    plain = trained(twin, lambda: twin(*arguments(twin, data))[rows], 1)[0]
    torch.testing.assert_close(trained(model, engine, 1)[0], plain, **SINGLE)


def weights_too(self, x_dict, edge_index_dict):
    out, weights = self.layer(x_dict, edge_index_dict, return_semantic_attention_weights=True)
    return out["a"] * weights["a"].sum()


class OwnHan(HANConv):
    """A subclass, which may do anything."""


@pytest.mark.filterwarnings("ignore:.*runs as it is written")
def test_weights_that_are_read_and_subclasses_run_as_written():
    data = data_of(names=[])
    batch = sampled(data)
    model = ready(data, kind=OwnHan)
    engine = graphbraid.compile(model)
    torch.testing.assert_close(engine(batch), model(*arguments(model, batch))[:3], **CLOSE)
    assert engine.why is not None
    held = ready(data)
    model = type("Read", (nn.Module,), {"forward": weights_too})()
    model.layer = held.layers[0]
    engine = graphbraid.compile(model)
    torch.testing.assert_close(engine(batch), model(*arguments(model, batch))[:3], **CLOSE)
    assert engine.why is not None


def test_dropout_draws_in_training_and_rests_in_evaluation():
    data = data_of(names=[])
    model, batch = ready(data, dropout=0.5), sampled(data)
    engine = graphbraid.compile(model, strict=True)
    assert not torch.equal(engine(batch), engine(batch))
    model.eval()
    torch.testing.assert_close(engine(batch), model(*arguments(model, batch))[:3], **CLOSE)
