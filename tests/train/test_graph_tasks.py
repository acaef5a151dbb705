"""Labels of whole graphs: batches and losses beside PyG's plain loop, splits, resumes, refusals."""

import pytest
import torch
import torch.nn.functional as F
from tests.train.molecules import SPLITS, molecules
from tests.train.recorded import losses as losses_of
from torch import nn
from torch_geometric.data import Batch, Data, HeteroData, InMemoryDataset
from torch_geometric.loader import DataLoader
from torch_geometric.nn import (
    GIN,
    BatchNorm,
    GATConv,
    GINConv,
    GINEConv,
    global_add_pool,
    global_max_pool,
    global_mean_pool,
)

from graphbraid import Graph, GraphSet, Trainer, datasets
from graphbraid import nn as gnn
from graphbraid.errors import ConfigError, DataError
from graphbraid.sampling.config import SeedSchedule

OPTIONS = {"task": "graph", "epochs": 2, "batch_size": 7, "lr": 0.01, "optimizer": "sgd", "threads": 1}


class ByNames(nn.Module):
    """PyG's usual model of graphs: two layers, batch normalisation, a pool and a linear layer."""

    def __init__(self, out=2):
        super().__init__()
        self.first = GINConv(nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 8)))
        self.norm = BatchNorm(8)
        self.second = GATConv(8, 4, heads=2)
        self.last = nn.Linear(8, out)

    def forward(self, x, edge_index, batch):
        x = self.norm(self.first(x, edge_index)).relu()
        x = self.second(x, edge_index).relu()
        return self.last(global_mean_pool(x, batch))


class ByData(nn.Module):
    """A model called with the data, which reads attributes of nodes, edges and graphs."""

    def __init__(self, out=2):
        super().__init__()
        self.atoms = nn.Embedding(5, 6)
        self.conv = GINEConv(nn.Linear(6, 6), edge_dim=2)
        self.last = nn.Linear(10, out)

    def forward(self, data):
        x = self.conv(self.atoms(data.kind), data.edge_index, data.edge_attr).relu()
        pooled = global_add_pool(x, data.batch, size=data.num_graphs)
        return self.last(torch.cat([pooled, data.charge], 1))


class ByBatch(ByData):
    def forward(self, batch):
        return super().forward(batch)


class Pooled(nn.Module):
    """As :class:`ByNames`, with the readout of the largest entries."""

    def __init__(self, out=2):
        super().__init__()
        self.conv, self.last = GINConv(nn.Linear(3, 8)), nn.Linear(8, out)

    def forward(self, x, edge_index, batch, edge_weight=None):
        return self.last(global_max_pool(self.conv(x, edge_index).relu(), batch))


MODELS = {"by names": ByNames, "by data": ByData, "by batch": ByBatch, "largest": Pooled}


def made(kind, **options):
    torch.manual_seed(0)
    return MODELS[kind](**options).double()


def called(model, batch):
    if isinstance(model, ByData):
        return model(batch)
    return model(batch.x, batch.edge_index, batch.batch)


def plain_loop(model, data, options, loss_of=F.cross_entropy):
    """The losses of PyG's own loop on the batches that the Trainer's schedule names."""
    schedule = SeedSchedule(seeds=SPLITS["train"], batch_size=options["batch_size"], shuffle=True, seed=0)
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=options["lr"]), []
    model.train()
    for epoch in range(options["epochs"]):
        for step in range(schedule.num_steps):
            batch = Batch.from_data_list([data[i] for i in schedule.seeds_of(epoch, step).tolist()])
            optimizer.zero_grad()
            loss = loss_of(called(model, batch), batch.y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("kind", list(MODELS))
def test_losses_and_weights_are_those_of_pygs_plain_loop(kind, compiled):
    data, model, beside = molecules(), made(kind), made(kind)
    graphs = GraphSet.from_pyg(data, splits=SPLITS)
    options = OPTIONS | {"compiled": compiled, "restore_best": False}
    trainer = Trainer(model, graphs, **options)
    assert losses_of(trainer) == pytest.approx(
        plain_loop(beside, data, OPTIONS), rel=1e-6
    )  # the loss itself is in float32
    for (name, ours), theirs in zip(model.state_dict().items(), beside.state_dict().values(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-9, msg=name)
    outputs = trainer.predict()
    with torch.no_grad():
        batch = Batch.from_data_list(data)
        beside.eval()
        whole = (
            beside(batch) if isinstance(beside, ByData) else beside(batch.x, batch.edge_index, batch.batch)
        )
    torch.testing.assert_close(outputs, whole.float(), rtol=1e-5, atol=1e-6)


class Angles(Data):
    """Data with ids of its own: of edges, and of graphs' parts, joined along the last dimension."""

    def __inc__(self, key, value, *args, **kwargs):
        return self.edge_index.shape[1] if key == "pair_index" else super().__inc__(key, value)

    def __cat_dim__(self, key, value, *args, **kwargs):
        return 1 if key == "pair_index" else super().__cat_dim__(key, value)


@pytest.mark.parametrize("kind", [Data, Angles])
def test_batches_are_those_of_pygs_loader_to_the_bit(kind):
    data = []
    for one in molecules(12, least=0):
        held = one.to_dict() | {"mass": 1.5, "center_index": torch.tensor([0])}
        if kind is Angles:
            held["pair_index"] = torch.randint(0, max(one.num_edges, 1), (2, one.num_edges))
        data.append(kind.from_dict(held))
    graphs = GraphSet.from_pyg(data)
    for ids in ([3, 0, 7], [5], [11, 11, 2], list(range(12))):
        ours, theirs = graphs.batch(torch.tensor(ids)).to_data(), Batch.from_data_list([data[i] for i in ids])
        assert set(theirs.keys()) - set(ours.keys()) == {"smiles"}  # a text, which is left out
        assert type(ours) is type(theirs)
        for name in ours.keys():  # noqa: SIM118 - of PyG
            assert torch.equal(ours[name], theirs[name]), name
        assert (ours.num_graphs, ours.num_nodes) == (len(ids), theirs.num_nodes)
        last, expected = ours.get_example(len(ids) - 1), theirs.get_example(len(ids) - 1)
        assert all(torch.equal(last[name], expected[name]) for name in ("x", "edge_index", "y", "charge"))


def test_all_of_pygs_forms_give_the_same_graphs():
    data = molecules(9)
    forms = [
        data,
        Batch.from_data_list(data),
        DataLoader(data, batch_size=4),
        InMemory(data),
        InMemory(data)[:],
    ]
    made_of = [GraphSet.from_pyg(one) for one in forms]
    for graphs in made_of[1:]:
        for (name, ours), (other, theirs) in zip(graphs.arrays(), made_of[0].arrays(), strict=True):
            assert name == other
            assert torch.equal(ours, theirs)


class InMemory(InMemoryDataset):
    def __init__(self, data):
        super().__init__(None)
        self.data, self.slices = self.collate(data)


@pytest.mark.parametrize("readout", ["sum", "mean", "max"])
def test_readouts_are_pygs(readout):
    pools = {"sum": global_add_pool, "mean": global_mean_pool, "max": global_max_pool}
    batch = GraphSet.from_pyg(molecules(12, least=0)).batch(torch.tensor([1, 5, 0, 9, 11]))
    rows = [batch.x.clone().requires_grad_() for _ in range(2)]
    model = gnn.PooledModel(First(), readout=readout)
    ours = model(rows[0], batch.edge_index, batch.batch, ptr=batch.ptr)
    theirs = pools[readout](rows[1], batch.batch, size=5)
    slope = torch.randn_like(theirs)
    (ours * slope).sum().backward()
    (theirs * slope).sum().backward()
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(rows[0].grad, rows[1].grad)
    torch.testing.assert_close(
        model(rows[0], None, batch.batch)[: len(ours)], ours[: int(batch.batch.max()) + 1]
    )


class First(nn.Module):
    def forward(self, x, edge_index):
        return x


@pytest.mark.parametrize("encoder", ["own", "of PyG"])
def test_a_pooled_model_tells_rings_from_paths(encoder):
    torch.manual_seed(0)
    data = molecules(300, dtype=torch.float32, least=4)
    for one in data:
        one.x = torch.ones(one.num_nodes, 1)
    graphs = datasets.split_graphs(GraphSet.from_pyg(data), "stratified:0.6,0.2")
    assert graphs.labels.y[graphs.labels.splits["train"]].float().mean() == pytest.approx(0.5, abs=0.01)
    model = gnn.GIN(1, 16, 16, num_layers=2, dropout=0.0) if encoder == "own" else GIN(1, 16, 2)
    pooled = gnn.PooledModel(model, nn.Linear(16, 2), readout="sum")
    options = {"task": "graph", "epochs": 30, "batch_size": 32, "lr": 0.01}
    result = Trainer(pooled, graphs, **options).fit()
    assert result.test["accuracy"] > 0.95


@pytest.mark.parametrize("kind", ["by names", "by data"])
def test_a_run_goes_on_to_the_bit(kind, tmp_path):
    graphs = GraphSet.from_pyg(molecules(dtype=torch.float32), splits=SPLITS)

    def run(epochs, **options):
        torch.manual_seed(0)
        model = Dropping(MODELS[kind]())
        trainer = Trainer(model, graphs, **OPTIONS | {"epochs": epochs, "optimizer": "adam"}, **options)
        return losses_of(trainer), [p.detach().clone() for p in model.parameters()]

    losses, weights = run(4)
    first, _ = run(2, out_dir=tmp_path / "run")
    rest, again = run(4, out_dir=tmp_path / "run", resume=True)
    assert first + rest == losses
    assert all(torch.equal(*pair) for pair in zip(weights, again, strict=True))
    changed = molecules(dtype=torch.float32)
    changed[3].kind = changed[3].kind + 1  # an attribute that the graph's own arrays do not have
    other = GraphSet.from_pyg(changed, splits=SPLITS)
    with pytest.raises(DataError, match="another graph: its array kind"):
        options = OPTIONS | {"epochs": 5, "optimizer": "adam", "out_dir": tmp_path / "run", "resume": True}
        Trainer(Dropping(MODELS[kind]()), other, **options).fit()


class Dropping(nn.Module):
    """A model behind dropout of its outputs, which draws random numbers."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, data):
        return F.dropout(called(self.model, data), 0.3, self.training)


def squared_of_known(out, y):
    known = ~y.isnan()
    return F.mse_loss(out[known].float(), y[known].float())


def test_targets_that_are_partly_missing_are_those_of_pygs_plain_loop():
    data = molecules()
    drawn = torch.Generator().manual_seed(3)
    for number, one in enumerate(data):
        one.y = torch.randn(1, 3, generator=drawn)
        one.y[0, number % 3] = torch.nan
    model, beside = made("by names", out=3), made("by names", out=3)
    trainer = Trainer(model, GraphSet.from_pyg(data, splits=SPLITS), **OPTIONS)
    assert (trainer.task.name, trainer.task.misses_cells) == ("regression", True)
    assert losses_of(trainer) == pytest.approx(plain_loop(beside, data, OPTIONS, squared_of_known), rel=1e-5)


def test_graphs_are_predicted_in_any_order_and_scored_by_split():
    graphs = GraphSet.from_pyg(molecules(), splits=SPLITS)
    trainer = Trainer(made("by data"), graphs, **OPTIONS, class_weights="balanced", threshold="f1")
    result = trainer.fit()
    every = trainer.predict()
    assert every.shape == (40, 2)
    for mode in ("exact", "sampled"):
        torch.testing.assert_close(trainer.predict([7, 3, 7], mode=mode), every[[7, 3, 7]])
    wanted = graphs.labels.y[33:]
    accuracy = (every[33:].argmax(1) == wanted).float().mean()
    assert result.test["accuracy"] == trainer.evaluate("test")["accuracy"] == pytest.approx(float(accuracy))
    assert "class 0" in trainer.baseline
    assert 0 < result.threshold < 1


def test_batches_of_single_nodes_and_weights_that_change_between_calls_are_right():
    data = molecules(30)
    for one in data[20:]:
        one.x, one.kind = one.x[:1], one.kind[:1]
        one.edge_index, one.edge_attr = one.edge_index[:, :0], one.edge_attr[:0]
    graphs = GraphSet.from_pyg(data, splits={"train": torch.arange(20)})
    model = made("by names")
    trainer = Trainer(model, graphs, **OPTIONS, eval_batch_size=4)
    for _ in range(2):
        for few in (data[20:], data[:5], data[20:22]):
            ids = [data.index(one) for one in few]
            model.eval()
            with torch.no_grad():
                expected = called(model, Batch.from_data_list(few)).float()
            torch.testing.assert_close(trainer.predict(ids), expected, rtol=1e-5, atol=1e-6)
        trainer.fit()


REFUSED = {
    "mode": ({"mode": "full"}, "mode='full' does not go with task='graph'"),
    "fanouts": (
        {"fanouts": (3, 3)},
        r"fanouts=\(3, 3\) does not go with task='graph' so far: batches are of",
    ),
    "layout": ({"layout": "blocks"}, "layout='blocks' does not go with task='graph'"),
    "plan": ({"plan": "cpu"}, "plan='cpu' does not go with task='graph'"),
    "host": ({"host": "1GiB"}, "host=.* does not go with task='graph'"),
    "node_type": ({"node_type": "node"}, "node_type='node' does not go with task='graph'"),
    "negatives": ({"negatives": "triplet"}, "negatives='triplet' is for links, and task='graph' has none"),
    "task": ({"task": "node"}, "a GraphSet has labels of graphs, and task='node' learns others"),
}


@pytest.mark.parametrize("case", list(REFUSED))
def test_options_that_do_not_go_with_graphs_are_refused(case):
    options, says = REFUSED[case]
    graphs = GraphSet.from_pyg(molecules(), splits=SPLITS)
    with pytest.raises(ConfigError, match=says):
        Trainer(made("by names"), graphs, **OPTIONS | options)


def test_a_graph_a_model_of_nodes_and_unknown_attributes_are_refused():
    data = molecules(dtype=torch.float32)
    one = Graph.from_pyg(Data(x=data[0].x, edge_index=data[0].edge_index))
    with pytest.raises(ConfigError, match="task='graph' learns labels of many graphs; give a GraphSet"):
        Trainer(ByNames(), one, **OPTIONS)
    with pytest.raises(ConfigError, match=r"graph must be a graphbraid.Graph; got list.*or set task='graph'"):
        Trainer(ByNames(), data)
    graphs = GraphSet.from_pyg(data, splits=SPLITS)
    with pytest.raises(DataError, match=r"must return a row for each of the 2 graphs.*nn.PooledModel"):
        Trainer(gnn.GCN(3, 8, 2), graphs, **OPTIONS).fit()
    with pytest.raises(
        ConfigError, match="forward takes 'pos', and the graph has no such thing, but batch, "
    ):
        Trainer(NeedsPos(), graphs, **OPTIONS)
    with pytest.raises(ConfigError, match=r"one output per class \(2\); it has 3"):
        Trainer(ByNames(out=3), graphs, **OPTIONS).fit()
    with pytest.raises(DataError, match="no split 'train'"):
        Trainer(ByNames(), data, **OPTIONS).fit()
    with pytest.raises(ConfigError, match="stages are measured for nodes and links"):
        Trainer(ByNames(), graphs, **OPTIONS).profile()
    with pytest.raises(ConfigError, match="this one returns rows of graphs"):
        Trainer(ByNames(), graphs, **OPTIONS).embed()


class NeedsPos(nn.Module):
    def forward(self, x, edge_index, batch, pos):
        return x


def changed(**values):
    data = molecules(4)
    for name, value in values.items():
        data[2][name] = value
    return data


WRONG = {
    "nothing": ([], "many graphs are needed; got none"),
    "one Data": (molecules(1)[0], "a list of PyG's Data, a dataset, a Batch or a DataLoader; got Data"),
    "types": ([HeteroData()], "graph 0 has types"),
    "numbers": ([1, 2], "graph 0 must be PyG's Data with an edge_index; got int"),
    "another attribute": (changed(extra=torch.ones(1)), "must have the same attributes.*'extra' of graph 2"),
    "an edge that leaves": (
        changed(edge_index=torch.tensor([[0], [99]])),
        r"an edge of graph 2 is \[0, 99\]",
    ),
    "labels of nodes": (
        [Data(x=torch.ones(3, 1), edge_index=torch.zeros(2, 0).long(), y=torch.arange(3))] * 2,
        r"y of a graph must have one row.*graph 0 has 3. Labels of nodes are learned with task='node'",
    ),
    "another width": (
        changed(x=torch.ones(2, 5).double()),
        r"x of graph 2 is torch.float64 of shape \(2, 5\)",
    ),
    "another dtype": (changed(charge=torch.ones(1, 4)), "charge of graph 2 is torch.float32"),
    "a gradient": (changed(charge=torch.ones(1, 4).double().requires_grad_()), "without a gradient"),
    "a batched one": ([Batch.from_data_list(molecules(2))] * 2, "none of them called batch or ptr"),
}


@pytest.mark.parametrize("case", list(WRONG))
def test_wrong_graphs_are_refused_by_their_number(case):
    graphs, says = WRONG[case]
    with pytest.raises(DataError, match=says):
        GraphSet.from_pyg(graphs)
