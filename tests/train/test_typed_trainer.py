"""Trainer on graphs with types: models of PyG and of graphbraid learn, resume and predict; refusals."""

from typing import Any

import pytest
import torch
from tests.extras import NO_PYG, to_hetero
from tests.modules import module_of
from tests.train.communities import community_graph, new_model
from tests.train.recorded import StopAt, losses
from tests.train.typed_communities import IN, PAPERS, VENUES, bibliography
from torch import nn

from graphbraid.errors import ConfigError, DataError
from graphbraid.fullgraph.batches.layer_wise import LayerWise
from graphbraid.fullgraph.reading import relational
from graphbraid.graph import Graph
from graphbraid.nn import RGCN
from graphbraid.nn.module_traits import in_mode
from graphbraid.train import Trainer
from graphbraid.train.inference import infer

OPTIONS: dict[str, Any] = {"epochs": 3, "batch_size": 32, "fanouts": (5, 5), "lr": 0.02, "threads": 1}


def rgcn(graph: Graph, seed: int = 0, **options: Any) -> RGCN:
    torch.manual_seed(seed)
    return RGCN.of(graph, 16, **options)


def with_venue_features(graph: Graph) -> Graph:
    """The same graph, in which every type has features, as PyG's models need."""
    x = {name: graph.nodes_of(name).x for name in graph.node_types}
    filled = {name: torch.ones(VENUES, 1) if one is None else one for name, one in x.items()}
    return relabelled(graph, {"paper": graph.nodes_of("paper").y}, filled)


@pytest.mark.parametrize("mode", ["sampled", "full"])
def test_learned_rows_of_a_type_without_features_go_with_bfloat16(mode):
    graph = bibliography()
    options = OPTIONS | {"mode": mode, "epochs": 1, "fanouts": (5, 5)}
    narrow, wide = (
        losses(Trainer(rgcn(graph, dropout=0.0), graph, **options, precision=precision))
        for precision in ("bfloat16", "float32")
    )
    assert narrow == pytest.approx(wide, rel=0.03)
    assert narrow != wide


@pytest.mark.parametrize("kind", ["RGCN", "HeteroConv", "to_hetero", "weighted", "HGT"])
def test_predictions_in_parts_are_those_of_one_pass(kind, monkeypatch):
    """The budget leaves no room for the whole graph: layers are computed one by one, or neighbourhoods."""
    graph = bibliography(weighted=kind == "weighted")
    if kind != "RGCN":
        graph = only_with_features(graph) if kind == "weighted" else with_venue_features(graph)
    model = rgcn(graph) if kind == "RGCN" else pyg_model(graph, kind)
    nodes = torch.tensor([7, 3, 299, 7])
    whole = Trainer(model, graph, **OPTIONS).predict(nodes)
    monkeypatch.setattr(infer, "whole_bytes", lambda _: 1 << 60)
    trainer = Trainer(model, graph, **OPTIONS)
    with in_mode(model, training=False):
        by_level = infer.by_level(trainer.runner, trainer.config)
    assert isinstance(by_level, LayerWise) is (kind != "HGT"), str(by_level)
    torch.testing.assert_close(trainer.predict(nodes), whole, atol=1e-5, rtol=1e-4)


@pytest.mark.slow
def test_a_run_goes_on_in_the_middle_of_an_epoch(tmp_path):
    graph = bibliography()
    whole = losses(Trainer(rgcn(graph), graph, **OPTIONS))
    options = OPTIONS | {"out_dir": tmp_path / "run"}
    begun = losses(Trainer(rgcn(graph), graph, **options, callbacks=[StopAt(5)]))  # of four steps an epoch
    rest = losses(Trainer(rgcn(graph, seed=1), graph, **options, resume=True))
    assert begun + rest == whole
    other = bibliography(seed=1)
    with pytest.raises(DataError, match="another graph"):
        Trainer(rgcn(other), other, **options | {"epochs": 4}, resume=True).fit()


@pytest.mark.slow
def test_a_plan_changes_no_loss(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    graph = bibliography()
    planned = Trainer(rgcn(graph), graph, **OPTIONS, plan="auto")
    assert losses(planned) == losses(Trainer(rgcn(graph), graph, **OPTIONS))
    assert planned.plan is not None
    assert planned.profile().times[0].cpu.seconds > 0


def test_a_model_that_takes_ids_gets_those_of_the_rows():
    graph = bibliography()
    model = module_of(
        lambda self, x_dict, edge_index_dict, n_id_dict: {"paper": self.rows(n_id_dict["paper"])},
        rows=nn.Embedding(PAPERS, 3),  # nothing of its neighbours
    )
    trainer = Trainer(model, graph, **OPTIONS)
    nodes = torch.tensor([5, 250, 5])
    for mode in ("exact", "sampled"):
        torch.testing.assert_close(trainer.predict(nodes, mode=mode), model.rows.weight.detach()[nodes])


def pyg_model(graph: Graph, kind: str) -> nn.Module:
    pytest.importorskip("torch_geometric", reason=NO_PYG)
    from torch_geometric.nn import GraphConv, HeteroConv, HGTConv, SAGEConv

    class Hetero(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            conv, width = (GraphConv, 16) if kind == "weighted" else (SAGEConv, 16)
            self.layers = nn.ModuleList(
                HeteroConv({one: conv((-1, -1), out) for one in graph.edge_types}) for out in (width, 3)
            )

        def forward(self, x_dict: Any, edge_index_dict: Any) -> Any:
            first, second = self.layers
            x_dict = {name: x.relu() for name, x in first(x_dict, edge_index_dict).items()}
            return second(x_dict, edge_index_dict)

    class Transformer(Hetero):
        def __init__(self) -> None:
            super().__init__()
            metadata = (list(graph.node_types), list(graph.edge_types))
            self.layers = nn.ModuleList(
                HGTConv(wide, out, metadata, heads) for wide, out, heads in ((-1, 16, 2), (16, 3, 1))
            )

    class Weighted(Hetero):
        def forward(self, x_dict: Any, edge_index_dict: Any, edge_weight_dict: Any) -> Any:  # type: ignore[override]
            first, second = self.layers
            given = {"edge_weight_dict": edge_weight_dict}
            x_dict = {name: x.relu() for name, x in first(x_dict, edge_index_dict, **given).items()}
            return second(x_dict, edge_index_dict, **given)

    torch.manual_seed(0)
    if kind == "to_hetero":
        sage = module_of(
            lambda self, x, edge_index: self.second(self.first(x, edge_index).relu(), edge_index),
            first=SAGEConv((-1, -1), 16),
            second=SAGEConv((-1, -1), 3),
        )
        return to_hetero(sage, (list(graph.node_types), list(graph.edge_types)))
    return {"weighted": Weighted, "HGT": Transformer}.get(kind, Hetero)()


@pytest.mark.parametrize("kind", ["HeteroConv", "to_hetero", "weighted", "HGT"])
def test_models_of_pyg_train_unchanged(kind, monkeypatch):
    graph = bibliography(weighted=kind == "weighted")
    graph = only_with_features(graph) if kind == "weighted" else with_venue_features(graph)
    trainer = Trainer(pyg_model(graph, kind), graph, **OPTIONS | {"epochs": 6})
    result = trainer.fit()
    assert result.test["accuracy"] > (0.5 if kind == "HGT" else 0.7)  # a third by chance
    nodes = torch.arange(0, PAPERS, 50)
    whole = trainer.predict(nodes)
    monkeypatch.setattr(infer, "whole_bytes", lambda _: 1 << 60)
    assert infer.depth(trainer.model, trainer.config) == 2  # layers, not relations
    torch.testing.assert_close(trainer.predict(nodes), whole, atol=1e-4, rtol=1e-3)
    data = graph.to_pyg()
    with torch.no_grad():
        named = {"edge_weight_dict": data.edge_weight_dict} if kind == "weighted" else {}
        theirs = trainer.model.eval()(data.x_dict, data.edge_index_dict, **named)["paper"][nodes]
    torch.testing.assert_close(whole, theirs, atol=1e-5, rtol=1e-4)


def test_rows_of_an_embedding_are_not_counted_as_columns_of_a_layer():
    graph = with_venue_features(bibliography())
    small = Trainer(pyg_model(graph, "HeteroConv"), graph, **OPTIONS)
    model = pyg_model(graph, "HeteroConv")
    model.add_module("rows", nn.Embedding(33_401, 4))
    trainer = Trainer(model, graph, **OPTIONS, memory_budget_bytes=1 << 20)
    assert trainer.runner.widest == small.runner.widest < 100
    assert trainer.predict().shape == (PAPERS, 3)


@pytest.mark.parametrize("mode", ["sampled", "full"])
def test_layers_of_hgt_run_fused(mode, monkeypatch):
    graph, calls = with_venue_features(bibliography()), []
    model = pyg_model(graph, "HGT")
    own = relational.dot_attention
    monkeypatch.setattr(relational, "dot_attention", lambda *given: calls.append(given[-1]) or own(*given))
    Trainer(model, graph, **OPTIONS | {"epochs": 1, "mode": mode}).fit()
    assert set(calls) == {1, 2}  # the heads of its two layers


def only_with_features(graph: Graph) -> Graph:
    """The papers and authors of a weighted graph, all of whose relations have weights."""
    edges = {one: pairs for one, pairs in graph.to_edge_indices().items() if "venue" not in one}
    papers, authors = graph.nodes_of("paper"), graph.nodes_of("author")
    draw = torch.Generator().manual_seed(0)
    return Graph.from_relations(
        edges,
        {"author": authors.num_nodes, "paper": papers.num_nodes},
        x={"paper": papers.x, "author": authors.x},
        y={"paper": papers.y},
        splits={"paper": papers.splits},
        edge_weight={one: torch.rand(pairs.shape[1], generator=draw) for one, pairs in edges.items()},
    )


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"host": "1MiB"}, "host=1048576 does not go with a graph with types so far: tiers hold"),
        ({"hot": "1MiB"}, "hot=1048576 does not go with"),
        ({"tiers": "auto"}, "tiers='auto' does not go with"),
        ({"plan": "auto", "trace": "trace.json"}, "trace=trace.json does not go with"),
        ({"node_type": "papers"}, "node_type='papers' is no node type; .* Did you mean 'paper'"),
    ],
)
def test_what_types_do_not_go_with_is_refused_by_name(options, says):
    graph = bibliography()
    with pytest.raises(ConfigError, match=says):
        Trainer(rgcn(graph), graph, **OPTIONS | options).fit()


def test_mode_auto_is_sampled_and_says_why():
    graph = bibliography()
    trainer = Trainer(rgcn(graph), graph, **OPTIONS | {"mode": "auto", "epochs": 1})
    assert trainer.config.mode == "sampled"
    assert "unless mode='full' is given" in trainer.mode_reason
    assert trainer.fit().status == "finished"


def test_a_graph_of_one_type_takes_no_node_type():
    graph = community_graph()
    with pytest.raises(
        ConfigError, match="node_type='paper' chooses among node types, and the graph has one"
    ):
        Trainer(new_model(graph), graph, node_type="paper")


def test_the_type_to_learn_is_the_labelled_one_or_must_be_named():
    graph = bibliography()
    both = relabelled(graph, {"paper": graph.nodes_of("paper").y, "venue": torch.arange(VENUES)})
    with pytest.raises(ConfigError, match=r"several node types have labels .paper, venue.; say which"):
        Trainer(rgcn(graph), both, **OPTIONS)
    assert Trainer(rgcn(graph), both, **OPTIONS, node_type="paper").task.width == 3
    none = relabelled(graph, {})
    with pytest.raises(DataError, match="no node type has any"):
        Trainer(rgcn(graph), none, **OPTIONS)
    predicting = Trainer(rgcn(graph), none, **OPTIONS, node_type="paper")
    assert predicting.predict([1, 2]).shape == (2, 3)
    with pytest.raises(DataError, match="the node type has none"):
        predicting.fit()


def relabelled(graph: Graph, y: dict[str, Any], x: dict[str, Any] | None = None) -> Graph:
    nodes = {name: graph.nodes_of(name) for name in graph.node_types}
    return Graph.from_relations(
        graph.to_edge_indices(),
        {name: one.num_nodes for name, one in nodes.items()},
        x=x or {name: one.x for name, one in nodes.items()},
        y=y,
        splits={name: nodes[name].splits for name in y},
    )


def test_a_split_or_outputs_that_are_missing_are_named():
    graph = bibliography()
    with pytest.raises(DataError, match="no split 'dev'"):
        Trainer(rgcn(graph), graph, **OPTIONS).evaluate("dev")
    with pytest.raises(ConfigError, match=r"nodes\[1\] is 300"):
        Trainer(rgcn(graph), graph, **OPTIONS).predict([0, 300])

    class OfVenues(nn.Module):
        def forward(self, x_dict: Any, edge_index_dict: Any) -> Any:
            return {"venue": torch.zeros(VENUES, 3, requires_grad=True)}

    with pytest.raises(DataError, match=r"outputs of the node type 'paper'; got those of venue"):
        Trainer(OfVenues(), graph, **OPTIONS).fit()
    widths = r"features per node by type: 'author': 7, 'paper': 12, 'venue': none"
    needs_more = RGCN({"author": 8, "paper": 12, "venue": 0}, 16, 3, graph.edge_types, num_nodes={"venue": 5})
    with pytest.raises(DataError, match=r"'author' need features of shape \(num_rows, 8\)"):
        Trainer(needs_more, graph, **OPTIONS).fit()

    class Fails(nn.Module):
        def forward(self, x_dict: Any, edge_index_dict: Any) -> Any:
            return x_dict["paper"] @ torch.zeros(3, 3)

    with pytest.raises(ConfigError, match=widths):
        Trainer(Fails(), graph, **OPTIONS).fit()


def test_labels_are_read_for_the_seeds_alone():
    graph = bibliography()
    from graphbraid.loader import NeighborLoader

    assert IN in graph.edge_types
    batch = next(
        iter(NeighborLoader(graph, [2], input_nodes=("paper", [4, 9]), batch_size=2, layout="blocks"))
    )
    y = graph.nodes_of("paper").y
    assert y is not None
    assert batch.seed_y.tolist() == y[[4, 9]].tolist()
    other = next(iter(NeighborLoader(graph, [2], input_nodes=("venue", [1]), layout="blocks")))
    assert other.seed_y is None
