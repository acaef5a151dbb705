"""Trainer(task="link"): links of one relation and of several are learned, ranked, resumed and predicted."""

from typing import Any

import pytest
import torch
from tests.suites import few_of
from tests.train.linked_communities import (
    KNOWS,
    LIKES,
    NODES,
    one_relation,
    relations,
    rgcn,
    rows_alone,
    sage,
)
from tests.train.recorded import StopAt, losses
from torch import Tensor, nn

from graphbraid.errors import ConfigError, DataError, ResourceError
from graphbraid.graph import Graph
from graphbraid.nn import DistMult, DotProduct, GraphSAGE, LinkModel, MLPPredictor, NodeEmbedding
from graphbraid.train import TrainConfig, Trainer
from graphbraid.train.inference import infer
from graphbraid.train.step.links.data import LinkData

OPTIONS: dict[str, Any] = {
    "task": "link",
    "epochs": 3,
    "batch_size": 128,
    "fanouts": (5, 5),
    "lr": 0.02,
    "threads": 1,
}
OF_RELATIONS = OPTIONS | {"fanouts": (8,), "negatives": "shared"}


def data_of(graph: Graph, **options: Any) -> LinkData:
    return LinkData.of(graph, TrainConfig(task="link", **options))


def unordered(ends: Tensor) -> set[tuple[int, int]]:
    return {(min(pair), max(pair)) for pair in ends.t().tolist()}


def triples(ends: Tensor, relation: Tensor | None) -> set[tuple[int, int, int]]:
    assert relation is not None
    return {(s, d, r) for (s, d), r in zip(ends.t().tolist(), relation.tolist(), strict=True)}


# ---- links and messages


def test_drawn_splits_share_no_pair_of_nodes_and_messages_are_those_to_train_on():
    graph = one_relation()
    data = data_of(graph)
    of = {name: data.links.ends[:, at] for name, at in data.links.splits.items()}
    sets = {name: unordered(ends) for name, ends in of.items()}
    assert not sets["train"] & (sets["val"] | sets["test"])
    assert not sets["val"] & sets["test"]
    assert unordered(data.messages.to_edge_index()) == sets["train"]
    assert data.messages.num_edges == of["train"].shape[1]  # both directions
    num_pairs = len(set.union(*sets.values()))
    assert (len(sets["val"]), len(sets["test"])) == (round(0.05 * num_pairs), round(0.1 * num_pairs))
    again, other = data_of(graph), data_of(graph, link_split_seed=1)
    assert torch.equal(again.links.splits["val"], data.links.splits["val"])
    assert not torch.equal(other.links.splits["val"], data.links.splits["val"])


def test_given_splits_are_those_of_each_relations_list():
    graph = relations()
    data = data_of(graph)
    lists = graph.to_edge_indices()
    for name, at in data.links.splits.items():
        expected = set()
        for number, one in enumerate(graph.edge_types):
            positions = graph.edges_of(one).splits.get(name, torch.zeros(0, dtype=torch.int64))
            expected |= {(s, d, number) for s, d in lists[one][:, positions].t().tolist()}
        assert triples(data.links.ends[:, at], data.links.relations_at(at)) == expected
    train = data.links.splits["train"]
    assert triples(data.messages.to_edge_index(), data.message_relation) == triples(
        data.links.ends[:, train], data.links.relations_at(train)
    )


def test_reverse_relations_carry_messages_but_none_of_what_is_to_be_predicted():
    graph = relations().with_reverse_relations()
    data = data_of(graph)
    assert data.links.relation is not None
    assert int(data.links.relation.max()) == 2  # reverses are not learned
    predicted = torch.cat([data.links.splits["val"], data.links.splits["test"]])
    hidden = unordered(data.links.ends[:, predicted])
    assert data.message_relation is not None
    is_reverse = data.message_relation > 2
    carried = unordered(data.messages.to_edge_index()[:, is_reverse])
    assert carried
    assert not carried & hidden


def test_the_links_of_a_batch_are_not_among_its_edges():
    graph = one_relation()
    trainer = Trainer(sage(graph), graph, **OPTIONS | {"fanouts": (-1, -1)})
    from graphbraid.train.step.step import make_loader

    with make_loader(trainer.runner, trainer.config, trainer.runner.labels.split("train")) as loader:
        for batch in loader.batches(0):
            links = batch.edge_label_index[:, : batch.batch_size]
            assert not unordered(batch.n_id[links]) & unordered(batch.n_id[batch.edge_index])
            assert batch.edge_label.sum() == batch.batch_size


# ---- learning


@pytest.mark.slow
@pytest.mark.parametrize("negatives", few_of(["binary", "triplet", "shared"], {"binary"}))
@pytest.mark.parametrize("features", [True, False])
def test_links_of_one_relation_are_learned(negatives, features):
    graph = one_relation(features=features)
    trainer = Trainer(sage(graph), graph, **OPTIONS | {"epochs": 12, "negatives": negatives})
    before = trainer.evaluate("test")
    result = trainer.fit()
    assert set(result.test) == {"loss", "mrr", "auc", "hits@1", "hits@10"}
    assert result.monitor == "mrr"
    assert result.test["auc"] > 0.8
    assert result.test["mrr"] > before["mrr"]
    assert result.history[-1]["train_loss"] < result.history[0]["train_loss"]
    assert trainer.evaluate("test") == result.test


@pytest.mark.parametrize("make", [rows_alone, pytest.param(rgcn, marks=pytest.mark.slow)])
def test_links_of_relations_are_learned(make):
    graph = relations()
    options = OF_RELATIONS | {"epochs": 20, "num_negatives": 2, "metrics": ("mrr", "hits@3", "auc")}
    trainer = Trainer(make(graph), graph, **options)
    result = trainer.fit()
    assert result.test["mrr"] > 0.08  # 0.045 by chance
    assert result.test["auc"] > 0.7


def rank_by_definition(scores: Tensor, own: int, others: set[int]) -> float:
    left = [node for node in range(scores.numel()) if node != own and node not in others]
    above, alike = scores[left] > scores[own], scores[left] == scores[own]
    return 1 + float(above.sum()) + float(alike.sum()) / 2


def test_the_mrr_is_that_of_the_definition_over_both_ends_and_by_relation():
    graph = relations()
    trainer = Trainer(rows_alone(graph), graph, **OF_RELATIONS)
    found = trainer.evaluate("test")
    lists = graph.to_edge_indices()
    everyone = torch.arange(NODES)
    ranks = []
    for number, one in enumerate(graph.edge_types):
        true = set(map(tuple, lists[one].t().tolist()))
        for s, d in lists[one][:, graph.edges_of(one).splits.get("test", [])].t().tolist():
            kind = torch.full((NODES,), number)
            tails = trainer.predict_links(torch.stack([torch.full((NODES,), s), everyone]), kind)
            heads = trainer.predict_links(torch.stack([everyone, torch.full((NODES,), d)]), kind)
            ranks.append(rank_by_definition(tails, d, {b for a, b in true if a == s}))
            ranks.append(rank_by_definition(heads, s, {a for a, b in true if b == d}))
    expected = torch.tensor(ranks, dtype=torch.float64)
    assert found["mrr"] == pytest.approx(float((1 / expected).mean()), abs=1e-6)
    assert found["hits@10"] == pytest.approx(float((expected <= 10).double().mean()), abs=1e-6)


@pytest.mark.slow
def test_losses_do_not_depend_on_the_number_of_threads():
    graph = one_relation()
    first = losses(Trainer(sage(graph), graph, **OPTIONS))
    assert first == losses(Trainer(sage(graph), graph, **OPTIONS, workers=3))
    assert first == losses(Trainer(sage(graph), graph, **OPTIONS, accumulate=1, eval_mode="exact"))
    assert first != losses(Trainer(sage(graph), graph, **OPTIONS, seed=1))


@pytest.mark.slow
def test_a_run_goes_on_in_the_middle_of_an_epoch(tmp_path):
    graph = relations()
    whole = losses(Trainer(rgcn(graph), graph, **OF_RELATIONS))
    options = OF_RELATIONS | {"out_dir": tmp_path / "run"}
    begun = losses(Trainer(rgcn(graph), graph, **options, callbacks=[StopAt(7)]))  # of six steps an epoch
    assert len(begun) % (len(whole) // 3) > 0
    rest = losses(Trainer(rgcn(graph, seed=1), graph, **options, resume=True))
    assert begun + rest == whole
    with pytest.raises(ConfigError, match=r"num_negatives=1\.0"):
        Trainer(rgcn(graph), graph, **options | {"num_negatives": 3}, resume=True).fit()
    moved = Graph.from_relations(
        graph.to_edge_indices(),
        {"node": NODES},
        edge_splits={LIKES: {"train": torch.arange(300)}, KNOWS: {"train": torch.arange(9)}},
    )
    with pytest.raises(DataError, match="another graph"):
        Trainer(rgcn(moved), moved, **options, resume=True).fit()


@pytest.mark.slow
def test_a_plan_changes_no_loss(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    graph = one_relation()
    planned = Trainer(sage(graph), graph, **OPTIONS, plan="auto")
    assert losses(planned) == losses(Trainer(sage(graph), graph, **OPTIONS))
    assert planned.plan is not None
    assert planned.profile().times[0].cpu.seconds > 0


# ---- prediction


@pytest.mark.parametrize("make", [rgcn, rows_alone])
def test_scores_are_the_same_exactly_and_on_all_neighbours(make, monkeypatch):
    graph = relations()
    trainer = Trainer(make(graph), graph, **OF_RELATIONS | {"fanouts": (-1,)})
    links, kind = torch.tensor([[3, 4, 3, 90], [4, 3, 90, 3]]), [0, 1, 2, 0]
    whole = trainer.predict_links(links, kind)
    torch.testing.assert_close(trainer.predict_links(links, kind, mode="sampled"), whole)
    monkeypatch.setattr(infer, "whole_bytes", lambda _: 1 << 60)
    torch.testing.assert_close(trainer.predict_links(links, kind), whole)
    probabilities = trainer.predict_links(links.tolist(), torch.tensor(kind), probabilities=True)
    torch.testing.assert_close(probabilities, whole.sigmoid())


def test_an_encoder_of_pyg_gets_the_relations_of_its_edges():
    pytest.importorskip("torch_geometric")
    from torch_geometric.nn import RGCNConv

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rows = nn.Embedding(NODES, 8)
            self.conv = RGCNConv(8, 8, 3)

        def forward(self, x: Any, edge_index: Tensor, edge_type: Tensor, n_id: Tensor) -> Tensor:
            assert x is None
            return self.conv(self.rows(n_id), edge_index, edge_type)

    graph = relations()
    trainer = Trainer(LinkModel(Encoder(), DistMult(3, 8)), graph, **OF_RELATIONS | {"fanouts": (-1,)})
    links, kind = torch.tensor([[3, 4], [4, 3]]), [0, 1]
    whole = trainer.predict_links(links, kind)
    torch.testing.assert_close(trainer.predict_links(links, kind, mode="sampled"), whole)
    assert trainer.fit().history[-1]["train_loss"] > 0


def test_dropout_of_the_predictor_is_off_in_evaluations():
    graph = one_relation()
    torch.manual_seed(0)
    model = LinkModel(GraphSAGE(8, 16, 16, 2), MLPPredictor(16, 16, dropout=0.5))
    trainer = Trainer(model, graph, **OPTIONS)
    assert torch.equal(trainer.predict_links([[1, 2], [3, 4]]), trainer.predict_links([[1, 2], [3, 4]]))
    assert trainer.evaluate("val") == trainer.evaluate("val")
    assert model.training


@pytest.mark.parametrize("sources", [False, True])
def test_the_likeliest_links_are_those_of_all_scores(sources):
    graph = relations()
    trainer = Trainer(rows_alone(graph), graph, **OF_RELATIONS)
    given, kind = [3, 90, 3], [0, 1, 1]
    found = trainer.top_links(given, kind, k=4, sources=sources)
    everyone, lists = torch.arange(NODES), graph.to_edge_indices()
    for row, (node, number) in enumerate(zip(given, kind, strict=True)):
        pairs = torch.stack([torch.full((NODES,), node), everyone])
        scores = trainer.predict_links(pairs.flip(0) if sources else pairs, torch.full((NODES,), number))
        of_node = lists[graph.edge_types[number]]
        own, other = of_node.flip(0) if sources else of_node
        scores[other[own == node]] = -torch.inf
        scores[node] = -torch.inf
        best = scores.topk(4)
        assert torch.equal(found.nodes[row], best.indices)
        torch.testing.assert_close(found.scores[row], best.values)


def test_where_few_nodes_are_left_the_others_are_marked():
    graph = relations()
    trainer = Trainer(rows_alone(graph), graph, **OF_RELATIONS)
    degree = int((graph.to_edge_indices()[LIKES][0] == 3).sum())
    found = trainer.top_links([3], [graph.edge_types.index(LIKES)], k=NODES + 5)
    assert int((found.nodes[0] < 0).sum()) == 5 + 1 + degree
    assert torch.equal(found.nodes[0] < 0, found.scores[0] == -torch.inf)
    everyone = trainer.top_links([3], [0], k=NODES, known=True)
    assert sorted(everyone.nodes[0].tolist()) == list(range(NODES))
    with pytest.raises(ConfigError, match=r"nodes must be ids of nodes of type 'node', in \[0, 120\)"):
        trainer.top_links([NODES], [0])
    with pytest.raises(ConfigError, match="k must be"):
        trainer.top_links([0], [0], k=0)
    with pytest.raises(ConfigError, match="nodes must be a list of node ids, not empty"):
        trainer.top_links(torch.tensor([[0]]), [0])


# ---- what is refused


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"host": "1GiB"}, r"host=1073741824 does not go with task='link' so far: batches of links read"),
        ({"tiers": "auto"}, "tiers='auto' does not go with task='link'"),
        ({"class_weights": "balanced"}, "class_weights='balanced' does not go"),
        ({"node_type": "node"}, "node_type='node' does not go"),
        ({"metrics": ("accuracy",)}, "task='link' has mrr, auc and hits@K"),
        ({"monitor": "hits@3"}, "monitor must be one of mrr, auc"),
        ({"num_negatives": 1.5, "negatives": "triplet"}, "num_negatives must be a whole number"),
        ({"num_negatives": 0}, "num_negatives must be"),
        ({"link_splits": (0.5, 0.5)}, "link_splits must leave links to train on"),
        ({"link_splits": (0.5, -0.5)}, "link_splits must be"),
        ({"task": "node"}, "a LinkModel learns links"),
    ],
)
def test_what_links_do_not_go_with_is_named(change, message):
    graph = one_relation()
    with pytest.raises(ConfigError, match=message):
        Trainer(sage(graph), graph, **OPTIONS | change).fit()


def test_models_and_graphs_that_do_not_fit_are_named():
    graph, many = one_relation(features=False), relations()
    with pytest.raises(ConfigError, match=r"give nn.LinkModel\(encoder, nn.DotProduct\(\)\).*got GraphSAGE"):
        Trainer(GraphSAGE(8, 8, 8), graph, **OPTIONS)
    with pytest.raises(DataError, match=r"the encoder needs node features.*nn\.NodeEmbedding"):
        Trainer(LinkModel(GraphSAGE(8, 8, 8), DotProduct()), graph, **OPTIONS)
    with pytest.raises(ConfigError, match="DistMult scores links of several relations"):
        Trainer(LinkModel(NodeEmbedding(NODES, 8), DistMult(2, 8)), graph, **OPTIONS)
    with pytest.raises(DataError, match=r"DistMult knows 2 relations, and the graph's links are of 3"):
        Trainer(LinkModel(NodeEmbedding(NODES, 8), DistMult(2, 8)), many, **OPTIONS)
    with pytest.raises(ConfigError, match="takes the relation of each edge"):
        Trainer(LinkModel(rgcn(many).encoder, DotProduct()), graph, **OPTIONS)
    two = Graph.from_relations({("a", "to", "b"): [[0, 1], [1, 0]], ("b", "of", "a"): [[0], [1]]})
    with pytest.raises(
        ConfigError, match=r"several node types; say which with link_relation: a,to,b; b,of,a"
    ):
        Trainer(sage(graph), two, **OPTIONS)
    none = Graph.from_edge_index(torch.zeros(2, 0, dtype=torch.int64), 4)
    with pytest.raises(DataError, match="learns the graph's edges, and there are none"):
        Trainer(LinkModel(NodeEmbedding(4, 8), DotProduct()), none, **OPTIONS)
    narrow = LinkModel(NodeEmbedding(NODES, 7), MLPPredictor(8, 8))
    with pytest.raises(DataError, match=r"src must have 8 columns"):
        Trainer(narrow, graph, **OPTIONS).fit()


@pytest.mark.parametrize(
    ("links", "relation", "message"),
    [
        ([[0], [NODES]], [0], r"destinations of links must be ids of nodes of type 'node', in \[0, 120\)"),
        (torch.tensor([0, 1]), [0], r"links must be of shape \(2, num_links\)"),
        (torch.zeros(2, 0, dtype=torch.int64), [], "not empty"),
        (torch.zeros(2, 1), [0], "links must be a .* list of node ids; got torch.float32"),
        ([[0], [1]], None, "relation must say, for each link, which of 3"),
        ([[0], [1]], [3], r"relation must have 1 entries in \[0, 3\).*with 3"),
        ([[0], [1]], [0, 1], r"relation must have 1 entries.*got \(2,\)"),
    ],
)
def test_pairs_that_cannot_be_scored_are_named(links, relation, message):
    graph = relations()
    trainer = Trainer(rows_alone(graph), graph, **OF_RELATIONS)
    with pytest.raises(ConfigError, match=message):
        trainer.predict_links(links, relation)


def test_predictions_of_the_other_task_are_refused():
    graph = one_relation()
    trainer = Trainer(sage(graph), graph, **OPTIONS)
    with pytest.raises(ConfigError, match="predict_links scores pairs"):
        trainer.predict()
    with pytest.raises(ConfigError, match="knows no relations; leave relation out"):
        trainer.predict_links([[0], [1]], [0])
    small = Trainer(sage(graph), graph, **OPTIONS | {"memory_budget_bytes": 1 << 16})
    assert small.predict_links([[0], [1]]).shape == (1,)
    wide = LinkModel(NodeEmbedding(NODES, 256), DotProduct())
    with pytest.raises(ResourceError, match="rows of all 120 nodes"):
        Trainer(wide, graph, **OPTIONS | {"memory_budget_bytes": 1 << 16}).evaluate("val", mode="sampled")
