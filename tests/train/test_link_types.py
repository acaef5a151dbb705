"""Trainer(task="link") on a graph of several node types: one relation is learned, others carry messages."""

from typing import Any

import pytest
import torch
from tests.train.linked_communities import KNOWS, LIKES, one_relation, relations, sage
from tests.train.linked_types import FILMS, MADE, RATES, STUDIOS, USERS, as_pairs, by_type, films
from tests.train.recorded import losses
from torch import Tensor, nn

import graphbraid
from graphbraid.errors import ConfigError, DataError
from graphbraid.graph import Graph
from graphbraid.nn import RGCN, DistMult, DotProduct, LinkModel
from graphbraid.train import TrainConfig, Trainer
from graphbraid.train.inference import infer
from graphbraid.train.step.links.data import LinkData
from graphbraid.train.step.links.encoder import TypedEncoderRunner
from graphbraid.train.step.step import make_loader

OPTIONS: dict[str, Any] = {
    "task": "link",
    "link_relation": RATES,
    "epochs": 3,
    "batch_size": 128,
    "fanouts": (5, 5),
    "lr": 0.02,
    "threads": 1,
}
BACK = ("film", "rev_rates", "user")


def data_of(graph: Graph, **options: Any) -> LinkData:
    return LinkData.of(graph, TrainConfig(task="link", **{"link_relation": RATES} | options))


def ratings(data: LinkData, split: str) -> set[tuple[int, int]]:
    return as_pairs(data.ends.within(data.links.ends[:, data.links.splits[split]]))


# ---- what is learned


def test_links_are_those_of_one_relation_and_nothing_shows_those_to_predict():
    graph = films()
    data = data_of(graph)
    sets = {name: ratings(data, name) for name in ("train", "val", "test")}
    assert set.union(*sets.values()) == as_pairs(graph.to_edge_indices()[RATES])
    assert sum(map(len, sets.values())) == graph.edges_of(RATES).num_edges
    trainer = Trainer(by_type(graph), graph, **OPTIONS)
    encoder = trainer.runner.encoder_runner()  # type: ignore[attr-defined]
    assert isinstance(encoder, TypedEncoderRunner)
    seen = encoder.graph.to_edge_indices()
    assert as_pairs(seen[RATES]) == as_pairs(seen[BACK].flip(0)) == sets["train"]
    assert as_pairs(seen[MADE]) == as_pairs(graph.to_edge_indices()[MADE])
    for one in encoder.graph.node_types:
        assert encoder.graph.nodes_of(one).num_nodes == graph.nodes_of(one).num_nodes
    encoder.graph.validate()


def test_splits_of_the_relation_are_used_and_say_which_it_is():
    graph = films(splits=True)
    data = data_of(graph, link_relation=None)
    for name, at in graph.edges_of(RATES).splits.items():
        assert ratings(data, name) == as_pairs(graph.to_edge_indices()[RATES][:, at])
    assert data.ends.types == ("user", "film")
    assert data.links.relation is None


def test_one_relation_of_a_graph_of_one_node_type_can_be_chosen():
    graph = relations(splits=False)
    data = data_of(graph, link_relation=KNOWS)
    assert data.links.num_nodes == graph.edges_of(KNOWS).num_edges
    assert data.message_relation is not None
    carried = torch.bincount(data.message_relation, minlength=3)
    assert int(carried[graph.edge_types.index(LIKES)]) > 0
    result = Trainer(sage(graph), graph, **OPTIONS | {"link_relation": KNOWS, "epochs": 1}).fit()
    assert result.test["mrr"] > 0


# ---- batches by type


@pytest.mark.parametrize("layout", ["subgraph", "blocks"])
def test_a_batch_by_type_has_the_same_nodes_and_edges(layout):
    graph = films()
    trainer = Trainer(by_type(graph), graph, **OPTIONS | {"layout": layout})
    runner = trainer.runner
    encoder = runner.encoder_runner()  # type: ignore[attr-defined]
    first = dict(zip(graph.node_types, graph.types.first_ids, strict=False))  # type: ignore[union-attr]
    with make_loader(runner, trainer.config, runner.labels.split("train")) as loader:
        for batch in loader.batches(0):
            parts, places = encoder._typed(batch)
            whole = torch.cat([ids + first[one] for one, ids in parts.n_id_dict.items()])
            assert torch.equal(whole[torch.cat(places).argsort()], batch.n_id)
            blocks = parts.blocks
            for made, block in zip(blocks, batch.blocks, strict=True):
                expected = set()
                for src, dst in zip(block.indices.tolist(), block.destinations().tolist(), strict=True):
                    expected.add((int(batch.n_id[src]), int(batch.n_id[dst])))
                found = set()
                for one, csc in made.items():
                    src = parts.n_id_dict[one[0]][csc.indices.long()] + first[one[0]]
                    dst = parts.n_id_dict[one[2]][csc.destinations().long()] + first[one[2]]
                    found |= as_pairs(torch.stack([src, dst]))
                    known = as_pairs(encoder.graph.to_edge_indices()[one])
                    within = torch.stack([src - first[one[0]], dst - first[one[2]]])
                    assert as_pairs(within) <= known
                assert found == expected
            if layout == "subgraph":
                assert sum(edges.shape[1] for edges in parts.edge_index_dict.values()) == batch.num_edges


def test_a_batch_holds_none_of_its_links_and_its_negatives_are_of_the_right_types():
    graph = films()
    trainer = Trainer(by_type(graph), graph, **OPTIONS | {"fanouts": (-1, -1)})
    users = range(STUDIOS, STUDIOS + USERS)
    the_films = range(STUDIOS + USERS, STUDIOS + USERS + FILMS)
    drawn = set()
    with make_loader(trainer.runner, trainer.config, trainer.runner.labels.split("train")) as loader:
        for batch in loader.batches(0):
            pairs = as_pairs(batch.n_id[batch.edge_label_index])
            assert all(source in users and destination in the_films for source, destination in pairs)
            drawn |= as_pairs(batch.n_id[batch.edge_label_index[:, batch.batch_size :]])
            links = as_pairs(batch.n_id[batch.edge_label_index[:, : batch.batch_size]])
            edges = as_pairs(batch.n_id[batch.edge_index])
            assert not links & edges
            assert not links & {(destination, source) for source, destination in edges}
    assert len({source for source, _ in drawn}) > USERS // 2
    assert len({destination for _, destination in drawn}) > FILMS // 2


# ---- learning and scores


@pytest.mark.slow
def test_the_mrr_ranks_each_end_among_the_nodes_of_its_type():
    graph = films(splits=True)
    trainer = Trainer(by_type(graph), graph, **OPTIONS)
    found = trainer.evaluate("test")
    ratings = graph.to_edge_indices()[RATES]
    true = as_pairs(ratings)
    every_film, every_user = torch.arange(FILMS), torch.arange(USERS)
    ranks = []
    for s, d in ratings[:, graph.edges_of(RATES).splits["test"]].t().tolist():
        tails = trainer.predict_links(torch.stack([torch.full((FILMS,), s), every_film]))
        heads = trainer.predict_links(torch.stack([every_user, torch.full((USERS,), d)]))
        for scores, own, others in (
            (tails, d, {b for a, b in true if a == s}),
            (heads, s, {a for a, b in true if b == d}),
        ):
            left = [node for node in range(scores.numel()) if node != own and node not in others]
            alike = float((scores[left] == scores[own]).sum())
            ranks.append(1 + float((scores[left] > scores[own]).sum()) + alike / 2)
    expected = float((1 / torch.tensor(ranks, dtype=torch.float64)).mean())
    assert found["mrr"] == pytest.approx(expected, abs=1e-6)
    best = trainer.top_links([7], k=5)
    own = trainer.predict_links(torch.stack([torch.full((FILMS,), 7), every_film]))
    own[ratings[1, ratings[0] == 7]] = -torch.inf
    assert torch.equal(best.nodes[0], own.topk(5).indices)
    assert int(trainer.top_links([7], k=USERS, sources=True, known=True).nodes.max()) == USERS - 1


class OfPyG(nn.Module):
    """HeteroConv over a learned row of each node."""

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        from torch_geometric.nn import HeteroConv, SAGEConv

        counts = {one: graph.nodes_of(one).num_nodes for one in graph.node_types}
        self.rows = nn.ModuleDict({one: nn.Embedding(count, 8) for one, count in counts.items()})
        self.convs = nn.ModuleList(
            HeteroConv({one: SAGEConv((8, 8), 8) for one in graph.edge_types}, aggr="sum") for _ in range(2)
        )

    def forward(self, x_dict: Any, edge_index_dict: Any, n_id_dict: Any) -> dict[str, Tensor]:
        rows = {one: self.rows[one](ids) for one, ids in n_id_dict.items()}
        for conv in self.convs:
            rows = {one: out.relu() for one, out in conv(rows, edge_index_dict).items()}
        return rows


def test_a_model_of_edge_lists_is_refused_blocks_whose_first_layer_alone_it_would_read():
    graph = films()
    with pytest.raises(ConfigError, match="make the loader with layout='subgraph'"):
        Trainer(LinkModel(OfPyG(graph), DotProduct()), graph, **OPTIONS | {"layout": "blocks"}).fit()


@pytest.mark.parametrize("kind", ["graphbraid", "pyg"])
def test_scores_are_the_same_exactly_and_on_all_neighbours(kind, monkeypatch):
    graph = films()
    torch.manual_seed(0)
    if kind == "pyg":
        pytest.importorskip("torch_geometric")
        model = LinkModel(OfPyG(graph), DotProduct())
    else:
        model = by_type(graph)
    trainer = Trainer(model, graph, **OPTIONS | {"fanouts": (-1, -1), "epochs": 1})
    if kind == "pyg":
        assert trainer.runner.widest == 8  # columns, not the rows of its embeddings
    links = torch.tensor([[3, 40, 3, 88], [4, 50, 59, 0]])
    whole = trainer.predict_links(links)
    torch.testing.assert_close(trainer.predict_links(links, mode="sampled"), whole)
    monkeypatch.setattr(infer, "whole_bytes", lambda _: 1 << 60)
    torch.testing.assert_close(trainer.predict_links(links), whole)
    monkeypatch.undo()
    result = trainer.fit()
    assert result.test["mrr"] > 0
    assert not torch.equal(trainer.predict_links(links), whole)


@pytest.mark.slow
def test_a_run_on_types_goes_on_and_is_estimated(tmp_path, monkeypatch):
    monkeypatch.setattr("graphbraid.estimates.memory.baseline_bytes", lambda *_: 300 << 20)
    graph = films()
    whole = losses(Trainer(by_type(graph), graph, **OPTIONS))
    options = OPTIONS | {"out_dir": tmp_path / "run"}
    begun = losses(Trainer(by_type(graph), graph, **options | {"epochs": 1}))
    rest = losses(Trainer(by_type(graph, seed=1), graph, **options, resume=True))
    assert begun + rest == whole
    with pytest.raises(ConfigError, match="link_relation"):
        Trainer(by_type(graph), graph, **options | {"link_relation": MADE}, resume=True).fit()
    found = graphbraid.estimate(by_type(graph), graph, times=False, **OPTIONS).of("sampled")
    assert found.host is not None
    assert found.host.bytes_of("batches") > 0


# ---- what is refused


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"link_relation": None},
            r"learns one relation of a graph of several node types; say which.*user,rates,film",
        ),
        ({"link_relation": "user,rate,film"}, r"link_relation='user,rate,film' is no relation.*Did you mean"),
        ({"link_relation": ("user", "film")}, "link_relation must be"),
        ({"link_relation": "user"}, "link_relation must be"),
        ({"task": "node"}, "link_relation=.* is for links"),
        ({"fanouts": (3,)}, r"one entry per layer of the model \(2\)"),
    ],
)
def test_options_that_do_not_fit_are_named(change, message):
    graph = films()
    with pytest.raises(ConfigError, match=message):
        Trainer(by_type(graph), graph, **OPTIONS | change).fit()


def test_models_and_graphs_that_do_not_fit_are_named():
    graph = films()
    with pytest.raises(ConfigError, match="the links to learn are of one kind"):
        Trainer(LinkModel(by_type(graph).encoder, DistMult(4, 16)), graph, **OPTIONS)
    plain = one_relation()
    with pytest.raises(ConfigError, match="link_relation='user,rates,film' chooses among relations"):
        Trainer(sage(plain), plain, **OPTIONS)
    one_way = Graph.from_relations({RATES: [[0, 1, 2], [1, 0, 1]]}, {"user": 3, "film": 2})

    class Rated(nn.Module):
        def forward(self, x_dict: Any, edge_index_dict: Any, n_id_dict: Any) -> dict[str, Tensor]:
            return {"film": torch.ones(n_id_dict["film"].numel(), 4)}

    options = OPTIONS | {"link_splits": (0.0, 0.3)}
    with pytest.raises(DataError, match=r"rows by node type, with those of 'user' and 'film'; got film"):
        Trainer(LinkModel(Rated(), DotProduct()), one_way, **options).fit()
    bare = RGCN({"user": 4, "film": 4}, 8, 8, [RATES])
    with pytest.raises(DataError, match=r"need features|no node type has any"):
        Trainer(LinkModel(bare, DotProduct()), one_way, **options).fit()
    trainer = Trainer(by_type(graph), graph, **OPTIONS)
    with pytest.raises(ConfigError, match=r"must be ids of nodes of type 'film', in \[0, 60\)"):
        trainer.predict_links([[0], [FILMS]])
