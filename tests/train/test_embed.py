"""Embeddings are the rows that the last layer reads, under any budget, for every kind of model."""

from typing import Any

import numpy as np
import pytest
import torch
from tests.modules import module_of
from tests.train.linked_communities import one_relation, relations, rows_alone, sage
from tests.train.linked_types import by_type, films
from tests.train.test_infer import SMALL, native_model, uneven_graph
from tests.train.typed_communities import AUTHORS, bibliography
from torch_geometric import nn as pyg_nn

from graphbraid import nn as gnn
from graphbraid.errors import ConfigError, ResourceError
from graphbraid.train import Trainer

CLOSE = {"rtol": 1e-4, "atol": 1e-5}


@pytest.mark.parametrize("name", list(gnn.MODELS))
def test_the_last_layer_makes_the_outputs_of_the_embeddings(name):
    graph = uneven_graph()
    model: Any = native_model(name, graph)
    trainer = Trainer(model, graph, fanouts=(3, 4, 5))
    rows, outputs = trainer.embed(), trainer.predict()
    assert rows.shape == (400, 24)
    assert model.training, "the mode is given back"
    last = model.convs[-1].eval()
    torch.testing.assert_close(last(rows) if name == "mlp" else last(rows, graph.csc), outputs, **CLOSE)
    small = Trainer(model, graph, fanouts=(3, 3, 3), memory_budget_bytes=SMALL)
    torch.testing.assert_close(small.embed([17, 3, 17]), rows[[17, 3, 17]], **CLOSE)
    full = Trainer(model, graph, fanouts=(3, 3, 3), mode="full")
    torch.testing.assert_close(full.embed(), rows, **CLOSE)
    all_neighbors = Trainer(model, graph, fanouts=(-1, -1, -1))
    torch.testing.assert_close(all_neighbors.embed([3, 5], mode="sampled"), rows[[3, 5]], **CLOSE)


def test_normalisation_and_new_weights_are_those_of_the_model():
    """A copy that kept its own statistics or weights would give the rows of the first call again."""
    graph = uneven_graph()
    model = gnn.GraphSAGE(12, 24, 3, 2, norm="batch", dropout=0.5)
    trainer = Trainer(model, graph, fanouts=(3, 3), epochs=1, batch_size=64)
    before = trainer.embed()
    trainer.fit()
    rows = trainer.embed()
    assert not torch.allclose(before, rows)
    torch.testing.assert_close(model.convs[-1](rows, graph.csc), trainer.predict(), **CLOSE)
    model.convs[-1] = gnn.SAGEConv(24, 3)
    assert torch.equal(trainer.embed(), rows)
    model.register_forward_hook(lambda *_: torch.zeros(400, 3))  # it changes the outputs alone
    assert torch.equal(trainer.embed(), rows)


class Headed(torch.nn.Module):
    """A user's model: what follows the head must not touch the rows."""

    def __init__(self, *, twice: bool = False) -> None:
        super().__init__()
        self.gnn, self.head = pyg_nn.GCN(12, 24, 2, 24, dropout=0.5), torch.nn.Linear(24, 24 if twice else 3)
        self.twice = twice

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        hidden = self.head(self.gnn(x, edge_index).relu())
        try:
            return (self.head(hidden) if self.twice else hidden).log_softmax(-1)
        except Exception:
            return hidden


@pytest.mark.parametrize("compiled", [True, False])
def test_any_model_is_run_up_to_its_last_layer(compiled):
    graph = uneven_graph()
    model = Headed().eval()
    wanted = model.gnn(graph.x, graph.to_edge_index()).relu().detach()
    for made in (model, module_of(lambda self, x, edge_index: self.inner(x, edge_index), inner=model)):
        trainer = Trainer(made, graph, fanouts=(3, 3), compiled=compiled)
        torch.testing.assert_close(trainer.embed(), wanted, **CLOSE)
        small = Trainer(made, graph, fanouts=(3, 3), compiled=compiled, memory_budget_bytes=2 * SMALL)
        if compiled:
            torch.testing.assert_close(small.embed(), wanted, **CLOSE)
        else:  # as written, it needs the neighbourhoods of whole nodes
            with pytest.raises(ResourceError, match="as it is written"):
                small.embed()
    named = Trainer(model, graph, fanouts=(3, 3), compiled=compiled)
    first = model.gnn.convs[0](graph.x, graph.to_edge_index()).relu().detach()
    torch.testing.assert_close(named.embed(layer="gnn.convs.1"), first, **CLOSE)


@pytest.mark.parametrize(
    ("model", "options", "why"),
    [
        (gnn.GCN(12, 24, 3, 1), {}, "GCN has one layer"),
        (gnn.GCN(12, 24, 3, 2), {"layer": "convs.1"}, "layer='convs.1' is for other modules"),
        (pyg_nn.GIN(12, 24, 1, 3), {}, "no module with parameters behind another"),
        (Headed(twice=True), {}, "its module 'head' 2 times"),
        (Headed(), {"layer": "gnn.conv"}, "no module 'gnn.conv'.*gnn.convs"),
        (Headed(), {"layer": "gnn.convs.1.bias"}, "no module"),
        (Headed(), {"node_type": "paper"}, "the graph has no types"),
        (Headed(), {"nodes": [400]}, r"ids in \[0, 400\)"),
    ],
)
def test_what_has_no_embeddings_is_refused(model, options, why):
    with pytest.raises(ConfigError, match=why):
        Trainer(model, uneven_graph(), fanouts=(3,) * 2).embed(**options)


def test_a_layer_over_other_rows_than_nodes_is_refused():
    class Pooled(Headed):
        def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
            return self.head(self.gnn(x, edge_index).mean(0, keepdim=True)).expand(len(x), -1)

    with pytest.raises(ConfigError, match="no matrix with a row for each"):
        Trainer(Pooled(), uneven_graph(), fanouts=(3, 3)).embed()


def test_every_type_of_a_typed_graph_has_embeddings():
    graph = bibliography()
    torch.manual_seed(0)
    model = gnn.RGCN.of(graph, 16, num_layers=3, act="gelu")
    trainer = Trainer(model, graph, fanouts=(3, 3, 3))
    rows = {one: trainer.embed(node_type=one) for one in graph.node_types}
    assert torch.equal(trainer.embed(), rows["paper"])
    model.eval()
    with torch.no_grad():
        outputs = model._layer(
            2, list(rows.values()), model._checked(graph.to_edge_indices(), list(rows.values()))
        )
    torch.testing.assert_close(outputs[1], trainer.predict(), **CLOSE)
    small = Trainer(model, graph, fanouts=(3, 3, 3), memory_budget_bytes=SMALL)
    for one, held in rows.items():
        torch.testing.assert_close(small.embed(node_type=one), held, **CLOSE)
    assert trainer.embed([5], node_type="author", mode="sampled").shape == (1, 16)
    with pytest.raises(ConfigError, match="node_type must be one of"):
        trainer.embed(node_type="papers")
    with pytest.raises(ConfigError, match=rf"ids in \[0, {AUTHORS}\)"):
        trainer.embed([AUTHORS], node_type="author")


class Typed(torch.nn.Module):
    """PyG's typed layers, with the head on one type's rows, or a last layer over all of them."""

    def __init__(self, graph: Any, *, head: bool) -> None:
        super().__init__()
        kinds = [one for one in graph.edge_types if "venue" not in one]
        self.first, self.second = (
            pyg_nn.HeteroConv({one: pyg_nn.SAGEConv((-1, -1), width) for one in kinds}) for width in (16, 3)
        )
        self.head = torch.nn.Linear(16, 3) if head else None

    def forward(self, x_dict: Any, edge_index_dict: Any) -> Any:
        hidden = {one: rows.relu() for one, rows in self.first(x_dict, edge_index_dict).items()}
        if self.head is not None:
            return self.head(hidden["paper"])
        return self.second(hidden, edge_index_dict)


@pytest.mark.parametrize("head", [True, False])
def test_typed_models_of_pyg_are_run_up_to_their_last_layer(head):
    graph = bibliography()
    model = Typed(graph, head=head)
    trainer = Trainer(model, graph, fanouts=(3, 3))
    trainer.predict([0])  # makes the lazy layers
    x = {one: graph.nodes_of(one).x for one in ("paper", "author")}
    hidden = model.first(x, graph.to_edge_indices())
    torch.testing.assert_close(trainer.embed(), hidden["paper"].relu().detach(), **CLOSE)
    if head:
        with pytest.raises(ConfigError, match="type 'paper' alone"):
            trainer.embed(node_type="author")
    else:
        authors = trainer.embed(node_type="author")
        torch.testing.assert_close(authors, hidden["author"].relu().detach(), **CLOSE)


def test_links_are_embedded_by_their_encoder():
    graph = one_relation()
    model = sage(graph)
    trainer = Trainer(model, graph, task="link", fanouts=(3, 3))
    rows = trainer.embed()
    pairs = torch.tensor([[0, 5, 7], [3, 2, 7]])
    torch.testing.assert_close(
        (rows[pairs[0]] * rows[pairs[1]]).sum(1), trainer.predict_links(pairs), **CLOSE
    )
    kept = relations()
    alone = rows_alone(kept)
    assert torch.equal(Trainer(alone, kept, task="link", fanouts=(0,)).embed([4]), alone.encoder.rows[[4]])


def test_links_of_two_types_are_embedded_by_type():
    graph = films(splits=True)
    trainer = Trainer(by_type(graph), graph, task="link", fanouts=(3, 3))
    with pytest.raises(ConfigError, match="user and film; say whose rows"):
        trainer.embed()
    with pytest.raises(ConfigError, match="must be one of 'user', 'film'"):
        trainer.embed(node_type="studio")
    users, some = trainer.embed(node_type="user"), trainer.embed([7, 3], node_type="film")
    pairs = torch.tensor([[0, 5], [7, 3]])
    torch.testing.assert_close((users[[0, 5]] * some).sum(1), trainer.predict_links(pairs), **CLOSE)


@pytest.mark.parametrize("suffix", ["npy", "parquet"])
def test_embeddings_are_written_in_chunks(suffix, tmp_path):
    graph, path = uneven_graph(), tmp_path / f"rows.{suffix}"
    trainer = Trainer(native_model("sage", graph), graph, fanouts=(3, 3, 3), memory_budget_bytes=SMALL)
    nodes = torch.arange(399, -1, -1)
    names = np.array([f"n{node}" for node in nodes.tolist()])
    trainer.write_embeddings(path, nodes, columns={"id": names})
    wanted = trainer.embed(nodes).numpy()
    if suffix == "npy":
        np.testing.assert_array_equal(np.load(path), wanted)
    else:
        import pyarrow.parquet

        file = pyarrow.parquet.ParquetFile(path)
        assert file.num_row_groups > 1
        table = file.read()
        np.testing.assert_array_equal(np.stack(table["embedding"].to_pylist()).astype(np.float32), wanted)
        assert table["id"].to_pylist() == names.tolist()
    for nodes, columns, why in (
        ([1, 1], None, "an id is repeated"),
        ([1, 2], {"id": ["a"]}, "'id' has 1 entries for 2 nodes"),
    ):
        with pytest.raises(ConfigError, match=why):
            trainer.write_embeddings(path, nodes, columns=columns)
    with pytest.raises(ConfigError, match=r"written to \.npy or \.parquet"):
        trainer.write_embeddings(tmp_path / "rows.csv")
    assert [one.name for one in tmp_path.iterdir()] == [path.name]
