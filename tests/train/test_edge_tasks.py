"""Labels of edges: losses beside PyG's plain loop, messages without the seeds, splits, resumes, refusals."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from tests.train.labelled_edges import TO, own_model, people
from tests.train.recorded import losses as losses_of
from torch import nn
from torch_geometric.nn import HeteroConv, SAGEConv

from graphbraid import Graph, Trainer, datasets
from graphbraid import nn as gnn
from graphbraid.errors import ConfigError, DataError
from graphbraid.sampling.config import SeedSchedule
from graphbraid.train.run_folder.contract import graph_identity

BUYS, BACK = ("user", "buys", "item"), ("item", "rev_buys", "user")
NUM_USERS, NUM_ITEMS, NUM_EDGES = 30, 12, 200
OPTIONS = {
    "task": "edge",
    "epochs": 2,
    "batch_size": 32,
    "fanouts": (-1, -1),
    "lr": 0.1,
    "optimizer": "sgd",
    "threads": 1,
}


def shop(*, labels="classes", seed=0, **more):
    """Users who buy items, some of them twice; an edge's label depends on both ends and on its feature."""
    drawn = torch.Generator().manual_seed(seed)
    edges = torch.stack([torch.randint(0, n, (NUM_EDGES,), generator=drawn) for n in (NUM_USERS, NUM_ITEMS)])
    x = {name: torch.randn(n, 4, generator=drawn) for name, n in (("user", NUM_USERS), ("item", NUM_ITEMS))}
    attr = torch.randn(NUM_EDGES, 2, generator=drawn)
    score = x["user"][edges[0], 0] + x["item"][edges[1], 1] + attr[:, 0]
    y = (score > 0).long()
    if labels == "targets":
        y = torch.stack([score, -score], 1)
        y[::3, 0] = torch.nan
    split = torch.randperm(NUM_EDGES, generator=drawn)
    splits = {"train": split[:120].sort().values, "val": split[120:150], "test": split[150:190]}
    given = {"edge_y": {BUYS: y}, "edge_splits": {BUYS: splits}} | more
    counts = {"user": NUM_USERS, "item": NUM_ITEMS}
    graph = Graph.from_relations({BUYS: edges}, counts, x=x, edge_attr={BUYS: attr}, **given)
    return graph.with_reverse_relations()


class Encoder(nn.Module):
    """Two layers of PyG over both relations, called with dicts."""

    def __init__(self):
        super().__init__()
        self.first, self.second = (
            HeteroConv({one: SAGEConv((size, size), 8) for one in (BUYS, BACK)}) for size in (4, 8)
        )

    def forward(self, x_dict, edge_index_dict):
        x_dict = {name: x.relu() for name, x in self.first(x_dict, edge_index_dict).items()}
        return self.second(x_dict, edge_index_dict)


def made(out=2, **options):
    torch.manual_seed(0)
    return gnn.EdgeModel(Encoder(), gnn.EdgeDecoder(8, out, edge_channels=2, **options))


def reference(model, graph, positions, *, without_seeds):
    """The outputs for edges in float64, from all neighbours along the edges that carry messages."""
    edges, labels = graph.to_edge_indices()[BUYS], graph.edges_of(BUYS)
    held = torch.cat([labels.splits["val"], labels.splits["test"]])
    pairs = edges[0] * NUM_ITEMS + edges[1]
    carries = torch.ones(NUM_EDGES, dtype=torch.bool)
    carries[held] = False
    back = ~torch.isin(pairs, pairs[held])  # the reverse relation has no splits
    unsplit = torch.ones(NUM_EDGES, dtype=torch.bool)
    for ids in labels.splits.values():
        unsplit[ids] = False
    carries &= ~unsplit | back
    if without_seeds:
        is_seed = torch.isin(pairs, pairs[positions])
        carries, back = carries & ~is_seed, back & ~is_seed
    lists = {BUYS: edges[:, carries], BACK: edges.flip(0)[:, back]}
    rows = model.encoder({one: graph.nodes_of(one).x.double() for one in ("user", "item")}, lists)
    ends = rows["user"][edges[0, positions]], rows["item"][edges[1, positions]]
    return model.decoder(*ends, labels.edge_attr[positions].double())


def plain_loop(model, graph, loss_of):
    labels = graph.edges_of(BUYS)
    schedule = SeedSchedule(seeds=labels.splits["train"], batch_size=32, shuffle=True, seed=0)
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1), []
    for epoch in range(2):
        for step in range(schedule.num_steps):
            seeds = schedule.seeds_of(epoch, step)
            optimizer.zero_grad()
            loss = loss_of(reference(model, graph, seeds, without_seeds=True), labels.y[seeds])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


def squared_of_known(out, y):
    known = ~y.isnan()
    return F.mse_loss(out[known], y[known].double())


@pytest.mark.parametrize("how", ["concat", "product", "dot"])
@pytest.mark.parametrize("labels", ["classes", "targets"])
def test_losses_and_predictions_are_those_of_pygs_plain_loop(labels, how):
    graph, model = shop(labels=labels), made(how=how)
    trainer = Trainer(model, graph, **OPTIONS, restore_best=False)
    assert trainer.task.name == ("single-label" if labels == "classes" else "regression")
    beside = made(how=how).double()
    loss_of = F.cross_entropy if labels == "classes" else squared_of_known
    assert losses_of(trainer) == pytest.approx(plain_loop(beside, graph, loss_of), rel=1e-4)
    for ours, theirs in zip(model.parameters(), beside.parameters(), strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-3, atol=1e-5)
    test = graph.edges_of(BUYS).splits["test"]
    with torch.no_grad():
        expected = reference(beside, graph, test, without_seeds=False).float()
    for mode in ("exact", "sampled"):
        torch.testing.assert_close(trainer.predict(test, mode=mode), expected, rtol=1e-3, atol=1e-4)
    assert trainer.predict().shape == (NUM_EDGES, 2)
    if labels == "classes":
        accuracy = (expected.argmax(1) == graph.edges_of(BUYS).y[test]).float().mean()
        assert trainer.evaluate("test")["accuracy"] == pytest.approx(float(accuracy), abs=0.03)
        assert "largest" in trainer.baseline
        assert 0 < trainer.best_threshold("val") < 1


SMALL = OPTIONS | {"fanouts": (5, 5), "lr": 0.01, "optimizer": "adam", "batch_size": 64}


@pytest.mark.parametrize("options", [{}, {"layout": "blocks"}, {"temporal_strategy": "last"}])
def test_labels_that_depend_on_both_ends_are_learned(options):
    graph = datasets.split_edges(people(), TO, "time:400,500")
    splits = graph.edges_of(TO).splits
    assert [splits[name].tolist() for name in ("train", "val")] == [[*range(400)], [*range(400, 500)]]
    result = Trainer(own_model(), graph, **SMALL | {"epochs": 20} | options).fit()
    assert result.test["accuracy"] > 0.8


def test_a_run_goes_on_to_the_bit_and_knows_its_labels(tmp_path):
    graph = datasets.split_edges(people(), TO, "stratified:0.6,0.2", seed=3)
    whole = losses_of(Trainer(own_model(), graph, **SMALL | {"epochs": 4}))
    first = losses_of(Trainer(own_model(), graph, **SMALL, out_dir=tmp_path / "run"))
    options = SMALL | {"epochs": 4, "out_dir": tmp_path / "run", "resume": True}
    assert first + losses_of(Trainer(own_model(), graph, **options)) == whole
    edges = graph.edges_of(TO)
    types = dataclasses.replace(graph.types, edges={TO: dataclasses.replace(edges, y=1 - edges.y)})
    with pytest.raises(DataError, match="another graph: its array edge0_y"):
        Trainer(own_model(), graph.replace(types=types), **options | {"epochs": 5}).fit()


def test_splits_are_drawn_of_labelled_edges_and_the_others_carry_messages():
    y = people().edges_of(TO).y.clone()
    y[::4] = -1
    graph = with_edges(people(), y=y)
    trainer = Trainer(own_model(), graph, **SMALL, link_splits=(0.1, 0.2))
    splits = trainer.runner.labels.splits
    found = torch.cat([*splits.values()])
    assert sorted(found.tolist()) == (y >= 0).nonzero().flatten().tolist()
    num_messages = trainer.runner.data.messages.num_edges
    assert num_messages > splits["train"].numel()
    own = with_edges(people(), splits={"train": torch.arange(300), "later": torch.arange(500, 600)})
    own_splits = Trainer(own_model(), own, **SMALL)
    assert own_splits.runner.data.messages.num_edges == 500  # those of a split of another name carry none
    assert own_splits.evaluate("later")["loss"] > 0
    trainer.fit()
    assert trainer.predict([3, 0, 3]).shape == (3, 2)


def with_edges(graph, **fields):
    edges = dataclasses.replace(graph.edges_of(TO), **fields)
    return graph.replace(types=dataclasses.replace(graph.types, edges={TO: edges}))


def test_a_graph_without_labels_is_predicted_as_it_was_with_them(tmp_path):
    graph = datasets.split_edges(people(), TO, "0.6,0.2")
    trainer = Trainer(own_model(), graph, **SMALL, out_dir=tmp_path / "run")
    trainer.fit()
    bare = with_edges(graph, y=None)
    again = Trainer(own_model(), bare, **SMALL, link_relation=TO)
    again.load_weights(tmp_path / "run" / "checkpoints" / "best.pt")
    torch.testing.assert_close(again.predict([5, 9]), trainer.predict([5, 9]))
    with pytest.raises(DataError, match="training needs labels"):
        again.fit()


def test_stores_keep_labels_of_edges(tmp_path):
    graph = shop(labels="targets")
    datasets.save_store(graph, tmp_path / "store")
    again = datasets.open_store(tmp_path / "store")
    torch.testing.assert_close(again.edges_of(BUYS).y, graph.edges_of(BUYS).y, equal_nan=True)
    assert again.edges_of(BACK).y is None
    assert graph_identity(again) == graph_identity(graph)


REFUSED = {
    "mode": ({"mode": "full"}, "mode='full' does not go with task='edge'"),
    "negatives": ({"negatives": "triplet"}, "negatives='triplet' is for links, and task='edge' has none"),
    "host": ({"host": "1GiB"}, "host=.* does not go with task='edge'"),
    "node_type": ({"node_type": "user"}, "node_type='user' does not go with task='edge'"),
    "relation": ({"link_relation": "user,likes,item"}, "link_relation='user,likes,item' is no relation"),
    "task": ({"task": "node"}, "an EdgeModel learns labels of edges"),
}


@pytest.mark.parametrize("case", list(REFUSED))
def test_options_that_do_not_go_with_edges_are_refused(case):
    options, says = REFUSED[case]
    with pytest.raises(ConfigError, match=says):
        Trainer(made(), shop(), **OPTIONS | options)


def test_wrong_models_labels_and_features_are_refused():
    with pytest.raises(ConfigError, match="task='edge' trains an encoder and a decoder"):
        Trainer(Encoder(), shop(), **OPTIONS)
    with pytest.raises(ConfigError, match="labels of the edges of one relation"):
        Trainer(made(), shop(edge_y={}), **OPTIONS)
    with pytest.raises(DataError, match="y has 3 rows, but there are 200 edges"):
        shop(edge_y={BUYS: torch.zeros(3).long()})
    with pytest.raises(ConfigError, match=r"one output per class \(2\); it has 5"):
        Trainer(made(out=5), shop(), **OPTIONS).fit()
    with pytest.raises(DataError, match="edges have 2 features, and the decoder takes 3"):
        model = gnn.EdgeModel(Encoder(), gnn.EdgeDecoder(8, 2, edge_channels=3))
        Trainer(model, shop(), **OPTIONS).fit()
