"""Trainer(task="link", temporal_strategy=...): neighbours are from before each link, and nothing leaks."""

from typing import Any

import pytest
import torch
from tests.kernels import needs_kernels
from tests.train.linked_communities import NODES, rgcn, sage
from tests.train.linked_times import MEETS, NUM_LINKS, WROTE, by_time, ends_and_times, meetings
from tests.train.linked_types import RATES, by_type, films
from torch import Tensor

from graphbraid.errors import ConfigError, DataError
from graphbraid.graph import Graph
from graphbraid.nn import GCN, DotProduct, GraphSAGE, LinkModel
from graphbraid.sampling.links.link_seeds import LinkSeeds
from graphbraid.sampling.links.negatives import NegativeDraws, NegativeSampling
from graphbraid.train import TrainConfig, Trainer
from graphbraid.train.step.links.data import LinkData
from graphbraid.train.step.links.runner import LinkRunner
from graphbraid.train.step.step import make_loader

OPTIONS: dict[str, Any] = {
    "task": "link",
    "epochs": 2,
    "batch_size": 128,
    "fanouts": (4, 3),
    "lr": 0.02,
    "threads": 1,
    "temporal_strategy": "uniform",
}


def data_of(graph: Graph, **options: Any) -> LinkData:
    return LinkData.of(graph, TrainConfig(**{"task": "link", "temporal_strategy": "uniform"} | options))


def model_of(graph: Graph, seed: int = 0) -> LinkModel:
    torch.manual_seed(seed)
    x = graph.nodes_of("node").x
    assert x is not None
    return LinkModel(GraphSAGE(x.shape[1], 16, 16, 2, dropout=0.0), DotProduct())


def trainer_of(graph: Graph, **options: Any) -> Trainer:
    return Trainer(model_of(graph), graph, **OPTIONS | options)


def runner_of(trainer: Trainer) -> LinkRunner:
    assert isinstance(trainer.runner, LinkRunner)
    return trainer.runner


def time_of_links(data: LinkData) -> Tensor:
    assert data.times is not None
    return data.times.links


# ---- splits


def test_splits_are_by_time_and_none_divides_a_time():
    data = data_of(meetings())
    ranks = time_of_links(data)
    of = {name: ranks[at] for name, at in data.links.splits.items()}
    assert int(of["train"].max()) < int(of["val"].min())
    assert int(of["val"].max()) < int(of["test"].min())
    _, times = ends_and_times()
    rising = times.sort().values
    assert of["test"].numel() == int((times >= rising[NUM_LINKS - round(0.1 * NUM_LINKS)]).sum())
    assert of["test"].numel() + of["val"].numel() == int(
        (times >= rising[NUM_LINKS - round(0.1 * NUM_LINKS) - round(0.05 * NUM_LINKS)]).sum()
    )


def test_splits_of_the_user_are_kept_and_must_be_by_time():
    data = data_of(meetings(splits=by_time()))
    assert {name: at.numel() for name, at in data.links.splits.items()} == {
        name: at.numel() for name, at in by_time().items()
    }
    drawn = torch.arange(NUM_LINKS).split([600, 100, 100])
    mixed = dict(zip(("train", "val", "test"), drawn, strict=True))
    with pytest.raises(DataError, match=r"must be later than all to train on.*Split by time"):
        data_of(meetings(splits=mixed))
    assert data_of(meetings(splits=mixed), temporal_strategy=None).times is None


@pytest.mark.parametrize("kind", [torch.int64, torch.float32, torch.float64])
def test_messages_are_the_edges_to_train_on_sorted_by_time(kind):
    _, times = ends_and_times()
    data = data_of(meetings(time=(times - 100).to(kind)))
    assert data.times is not None
    rank, into = data.times.messages.time, data.messages.csc.destinations()
    same = into[1:] == into[:-1]
    assert bool((rank[1:] >= rank[:-1])[same].all())
    train = data.links.splits["train"]
    found = torch.stack([data.messages.csc.indices.long(), into.long(), rank])
    expected = torch.cat([data.links.ends[:, train], data.times.links[train].unsqueeze(0)])
    assert sorted(found.t().tolist()) == sorted(expected.t().tolist())


def test_edges_beside_the_links_carry_messages_until_the_first_that_is_predicted():
    graph = meetings(splits=by_time()).with_reverse_relations()
    data = data_of(graph)
    assert data.times is not None
    assert int(data.times.messages.time.max()) < min(
        int(time_of_links(data)[data.links.splits[name]].min()) for name in ("val", "test")
    )
    assert data.message_relation is not None
    assert set(data.message_relation.tolist()) == {0, 1}
    # A pair that met before may meet again: what came before is no leak.
    forward = data.messages.to_edge_index()
    pairs = set(map(tuple, forward.t().tolist()))
    assert pairs & set(map(tuple, data.links.ends[:, data.links.splits["test"]].t().tolist()))


# ---- batches


def trees_of(batch: Any) -> Tensor:
    """Return the link of each node of a batch, by its tree."""
    return batch.batch  # type: ignore[no-any-return]


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["subgraph", "blocks"])
@pytest.mark.parametrize("strategy", ["uniform", "last"])
@pytest.mark.parametrize("negatives", ["binary", "triplet"])
def test_each_tree_has_edges_from_before_its_link_alone(strategy, negatives, layout):
    options = {"temporal_strategy": strategy, "negatives": negatives, "layout": layout, "num_negatives": 2}
    trainer = trainer_of(meetings(), **options)
    runner = runner_of(trainer)
    times = runner.data.times
    assert times is not None
    train = runner.labels.split("train")
    csc, num_edges = runner.data.messages.csc, 0
    options_of_loader = trainer.config.updated(batch_size=64)
    with make_loader(runner, options_of_loader, train) as loader:
        for batch in loader.batches(0, 0, 2):
            links = train[batch.input_id]
            bound, owner = time_of_links(runner.data)[links], trees_of(batch)
            for block in batch.blocks:
                src, dst = block.indices.long(), block.destinations().long()
                assert torch.equal(owner[src], owner[dst])  # no edge joins two trees
                for s, d in zip(src.tolist(), dst.tolist(), strict=True):
                    node = int(batch.n_id[d])
                    row = slice(int(csc.indptr[node]), int(csc.indptr[node + 1]))
                    at = times.messages.time[row][csc.indices[row] == int(batch.n_id[s])]
                    assert int(at.min()) < int(bound[owner[d]])
                    num_edges += 1
            count = batch.num_sampled_nodes[0]
            ends = torch.cat([runner.labels.ends[0, links], runner.labels.ends[1, links]])
            assert torch.isin(ends, batch.n_id[:count]).all()
            amount = count // links.numel()
            assert amount == {"binary": 6, "triplet": 4}[negatives]  # a tree for each end of each pair
            assert torch.equal(owner[:count].bincount(), torch.full((links.numel(),), amount))
    assert num_edges


@pytest.mark.parametrize("strategy", ["uniform", "last"])
def test_every_edge_that_is_drawn_is_one_of_an_earlier_time(strategy):
    # The model takes relations, so that batches have the positions of their edges.
    graph = meetings()
    trainer = Trainer(rgcn(graph), graph, **OPTIONS | {"fanouts": (5,), "temporal_strategy": strategy})
    runner = runner_of(trainer)
    times, csc, train = runner.data.times, runner.data.messages.csc, runner.labels.split("train")
    assert times is not None
    with make_loader(runner, trainer.config, train) as loader:
        for batch in loader.batches(0, 0, 2):
            bound = time_of_links(runner.data)[train[batch.input_id]][trees_of(batch)]
            edges = batch.sampled.edges[0]
            for row in range(edges.indptr.numel() - 1):
                drawn = edges.positions[edges.indptr[row] : edges.indptr[row + 1]]
                node = int(batch.n_id[row])
                stored = torch.arange(int(csc.indptr[node]), int(csc.indptr[node + 1]))
                allowed = stored[times.messages.time[stored] < bound[row]]
                if row < batch.num_sampled_nodes[0]:
                    assert drawn.numel() == min(5, allowed.numel())
                assert torch.isin(drawn, allowed).all()
                if strategy == "last" and drawn.numel():
                    assert torch.equal(drawn.sort().values, allowed[-5:])


@pytest.mark.parametrize("negatives", ["binary", "triplet"])
def test_trees_of_a_part_are_numbered_by_the_links_of_the_part(negatives):
    data = data_of(meetings())
    assert data.times is not None
    train = data.links.splits["train"]
    links, names = data.links.ends[:, train], {"link": torch.arange(train.numel())}
    draws = NegativeDraws(NegativeSampling(negatives, 2), data.messages.csc, links)
    how: dict[str, Any] = {"times": data.times.before(train), "edge_times": data.times.messages}
    seeds = LinkSeeds(links, seed=0, negatives=draws, disjoint=True, attributes=names, **how)
    step = torch.tensor([5, 2, 7, 0, 3])
    whole, parts = seeds.seeds_of(step, 0, 0), [(0, 2), (2, 4), (4, 5)]
    assert whole.inputs is not None
    for part in (seeds.seeds_of(step, 0, 0, bounds) for bounds in parts):
        assert part.inputs is not None
        owners = part.attributes["link"][part.inputs]
        assert torch.equal(owners, whole.attributes["link"][whole.inputs][part.own])


# ---- runs


@needs_kernels
@pytest.mark.parametrize("strategy", ["uniform", "last"])
def test_links_with_times_are_learned_and_evaluated(strategy):
    trainer = trainer_of(meetings(), epochs=8, temporal_strategy=strategy)
    result = trainer.fit()
    assert result.test["auc"] > 0.8
    assert result.history[-1]["train_loss"] < result.history[0]["train_loss"]
    assert trainer.evaluate("test") == result.test
    sampled = trainer.evaluate("test", mode="sampled")
    assert sampled == trainer.evaluate("test", mode="sampled")
    assert sampled["auc"] > 0.75
    assert trainer.predict_links([[0, 1], [4, 6]]).shape == (2,)
    assert trainer.top_links([0], k=3).nodes.shape == (1, 3)
    with pytest.raises(ConfigError, match="their future would be seen"):
        trainer.evaluate("train")


def test_last_of_enough_neighbours_is_exact():
    trainer = trainer_of(meetings(), temporal_strategy="last", eval_fanouts=(200, 200))
    sampled, exact = (trainer.evaluate("test", mode=mode) for mode in ("sampled", "exact"))
    assert sampled == pytest.approx(exact, rel=1e-4)


@pytest.mark.slow
@needs_kernels
def test_links_between_two_node_types_have_times():
    graph = films()
    draw = torch.Generator().manual_seed(1)
    lists = {one: edges for one, edges in graph.to_edge_indices().items() if not one[1].startswith("rev")}
    graph = Graph.from_relations(
        lists,
        {one: graph.nodes_of(one).num_nodes for one in graph.node_types},
        x={"film": graph.nodes_of("film").x},
        edge_time={
            one: torch.rand(edges.shape[1], generator=draw) if one == RATES else torch.zeros(edges.shape[1])
            for one, edges in lists.items()
        },
    ).with_reverse_relations()
    trainer = Trainer(by_type(graph), graph, **OPTIONS | {"epochs": 6, "link_relation": RATES})
    assert runner_of(trainer).data.times is not None
    assert trainer.fit().test["auc"] > 0.6


# ---- what cannot be right


def test_what_does_not_go_with_times_is_refused():
    graph, (ends, times) = meetings(), ends_and_times()
    with pytest.raises(ConfigError, match="temporal_strategy='last' is for links"):
        TrainConfig(temporal_strategy="last")
    gcn = LinkModel(GCN(8, 16, 16, 2), DotProduct())
    with pytest.raises(ConfigError, match=r"tell of the future.*GraphSAGE"):
        Trainer(gcn, graph, **OPTIONS)
    plain = Graph.from_edge_index(ends, NODES, x=torch.zeros(NODES, 8))
    with pytest.raises(ConfigError, match=r"edges of this graph have none.*as edge_time in an"):
        Trainer(sage(plain), plain, **OPTIONS)
    some = Graph.from_relations({MEETS: ends, WROTE: ends}, {"node": NODES}, edge_time={MEETS: times})
    with pytest.raises(ConfigError, match="those of node,wrote,node"):
        data_of(some)
