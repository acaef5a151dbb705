"""What a model takes of a batch beside rows and edges, and what it returns that is no row of a node."""

import copy

import pytest
import torch
import torch.nn.functional as F
from tests.beside_pyg import Batch, Data, pyg
from tests.fullgraph.matrix.compare import in_double
from tests.fullgraph.matrix.graphs import CHANNELS, CLASSES, NODES, data_of
from tests.fullgraph.test_batches import CLOSE, sampled, sizes_of
from torch import Tensor, nn
from torch.utils import _pytree as tree
from torch_geometric.loader import DataLoader
from torch_geometric.nn import global_add_pool, global_max_pool, global_mean_pool

import graphbraid

pytestmark = pytest.mark.filterwarnings("ignore::graphbraid.errors.RunsAsWrittenWarning")


class Model(nn.Module):
    """Two layers, and parts of which each model uses some."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.first, self.second = pyg.SAGEConv(CHANNELS, 8), pyg.SAGEConv(8, 8)
        self.of_rows = pyg.SAGEConv(8, 8)
        self.head, self.lin = nn.Linear(8, CLASSES), nn.Linear(8, 8)
        self.table, self.rows = nn.Embedding(NODES, 8), nn.Parameter(torch.randn(NODES, 8))
        self.attention = pyg.GATConv(8, 8)


def model_of(run):
    return type("Taking", (Model,), {"forward": run})().double()


def rows_alone(self, n_id, edge_index):
    return self.head(self.second(self.of_rows(self.table(n_id), edge_index).relu(), edge_index))


def rows_of_a_parameter(self, n_id, edge_index):
    return self.head(self.second(self.rows[n_id].relu(), edge_index))


def beside_features(self, x, edge_index, n_id):
    h = torch.cat([self.first(x, edge_index), F.embedding(n_id, self.table.weight)], -1)
    return self.head(self.second(h[:, :8] * h[:, 8:], edge_index))


def selected(self, x, edge_index, n_id):
    h = self.first(x, edge_index) + torch.index_select(self.rows, 0, n_id)
    return self.head(self.second(h, edge_index))


def of_data(self, data):
    h = self.first(data.x, data.edge_index) + self.table(data.n_id) * data.pos.sum(-1, keepdim=True)
    return self.head(self.second(h.relu(), data.edge_index))


def as_it_is(self, data):  # PyTorch only hands the attribute over
    h = torch.cat([self.first(data.x, data.edge_index), data.pos], -1)
    return self.head(self.second(h[:, 3:] * h[:, :8], data.edge_index))


def centered(self, x, edge_index, pos):
    h = self.first(x, edge_index) + (pos - pos.mean(0)) @ self.rows[:3]
    return self.head(self.second(h, edge_index))


def counted(self, x, edge_index, num_nodes):
    h = self.first(x, edge_index) / num_nodes
    return self.head(self.second(h.sin(), edge_index))


BY_ROW = [rows_alone, rows_of_a_parameter, beside_features, selected, of_data, as_it_is]
NODE_MODELS = [*BY_ROW, centered, counted]


def batch_of(seed=3, **options):
    data = data_of("untidy")
    data.pos = torch.randn(NODES, 3, generator=torch.Generator().manual_seed(2))
    del data.edge_weight
    return in_double(sampled(data, seed=seed, as_pyg=True, **options))


def called(model, batch):
    """The model as a user calls it."""
    names = type(model).forward.__code__.co_varnames[1 : type(model).forward.__code__.co_argcount]
    return model(**{name: batch if name == "data" else getattr(batch, name) for name in names})


def gradients(model, returned):
    model.zero_grad()
    outs = [one for one in tree.tree_leaves(returned) if isinstance(one, Tensor) and one.requires_grad]
    draw = torch.Generator().manual_seed(1)
    sum((out * torch.randn(out.shape, generator=draw).to(out)).sum() for out in outs).backward()
    return {name: None if one.grad is None else one.grad.clone() for name, one in model.named_parameters()}


def assert_same(model, batch, num_seeds=None):
    engine, twin = graphbraid.compile(model), copy.deepcopy(model)
    for _ in range(2):
        ours, theirs = engine(batch), called(twin, batch)
        assert engine.why is None, engine.explain()
        theirs = tree.tree_map(lambda t: t[:num_seeds] if t.shape[:1] == (batch.num_nodes,) else t, theirs)
        torch.testing.assert_close(ours, theirs, **CLOSE)
        torch.testing.assert_close(gradients(model, ours), gradients(twin, theirs), **CLOSE)
    return engine


@pytest.mark.parametrize("run", NODE_MODELS, ids=lambda run: run.__name__)
def test_rows_by_id_and_other_attributes_reach_the_parts_that_run_as_written(run, monkeypatch):
    seen, model = sizes_of(monkeypatch), model_of(run)
    batch = batch_of(num_neighbors=(2, 2, 1))
    engine = assert_same(model, batch, batch.batch_size)
    assert "between lowered operations" in engine.explain(batch)
    assert (seen[0][0] < batch.num_nodes) == (run in BY_ROW)
    for seed in (4, 5):
        other = batch_of(seed)
        torch.testing.assert_close(engine(other), called(model, other)[: other.batch_size], **CLOSE)


@pytest.mark.parametrize("kind", [dict, {"max_norm": 0.5}, {"sparse": True}, {"padding_idx": 3}], ids=str)
def test_options_of_a_table_of_rows(kind):
    model, batch = model_of(beside_table), batch_of()
    model.table = nn.Embedding(NODES, 8, **({} if kind is dict else kind)).double()
    twin, engine = copy.deepcopy(model), graphbraid.compile(model)
    theirs = called(twin, batch)[: batch.batch_size]
    torch.testing.assert_close(engine(batch), theirs, **CLOSE)
    torch.testing.assert_close(model.table.weight, twin.table.weight, **CLOSE)


def beside_table(self, x, edge_index, n_id):
    return self.head(self.second(self.first(x, edge_index) + self.table(n_id), edge_index))


def by_position(self, x, edge_index, u):
    return self.head(self.second(self.first(x, edge_index) + u.tanh().sum(0), edge_index))


def test_a_value_with_as_many_rows_as_nodes_by_chance():
    model, batch = model_of(by_position), batch_of()
    engine = graphbraid.compile(model)
    for count in (batch.num_nodes, 3, batch.num_nodes, 1):
        batch.u = torch.randn(count, 8).double()
        torch.testing.assert_close(engine(batch), called(model, batch)[: batch.batch_size], **CLOSE)
        assert engine.why is None

    def aligned(self, x, edge_index, u):
        return self.head(self.second(self.first(x, edge_index) + u.tanh(), edge_index))

    model = model_of(aligned)
    engine = graphbraid.compile(model)
    for count in (batch.num_nodes, 1, batch.num_nodes):
        batch.u = torch.randn(count, 8).double()
        torch.testing.assert_close(engine(batch), called(model, batch)[: batch.batch_size], **CLOSE)


def integers_of_edges(self, x, edge_index, edge_attr):
    h = self.first(x, edge_index)
    h = h.index_add(0, edge_index[1], self.table(edge_attr))
    return self.head(self.second(h, edge_index))


def test_features_of_edges_that_are_no_floats():
    batch = batch_of()
    batch.edge_attr = torch.arange(batch.num_edges) % NODES
    assert_same(model_of(integers_of_edges), batch, batch.batch_size)


# ---- graphs of one batch, and results of other forms


def mean_of_graphs(self, x, edge_index, batch):
    h = self.second(self.first(x, edge_index).relu(), edge_index)
    return self.head(global_mean_pool(h, batch).relu())


def several_pools(self, x, edge_index, batch):
    h = self.second(self.first(x, edge_index).relu(), edge_index)
    pooled = global_add_pool(h, batch) + pyg.global_max_pool(h, batch) - global_max_pool(h, batch)
    return self.head(F.dropout(pooled, 0.5, training=False)), h


def of_levels(self, data):
    h = self.first(data.x, data.edge_index).relu()
    z = self.second(h, data.edge_index)
    return [self.head(global_add_pool(one, data.batch)) for one in (h, z)], z


def scattered(self, x, edge_index, batch):
    h = self.second(self.first(x, edge_index).relu(), edge_index)
    sums = torch.zeros(4, 8, dtype=h.dtype).index_add(0, batch, h)
    return self.head(sums)


def to_graphs_and_back(self, x, edge_index, batch):
    h = self.first(x, edge_index).relu()
    h = h + self.lin(global_mean_pool(h, batch))[batch]
    return self.head(self.second(h, edge_index))


def a_loss_beside(self, x, edge_index):
    h = self.second(self.first(x, edge_index).relu(), edge_index)
    return self.head(h), h.pow(2).mean(), self.lin.weight.norm()


def one_column(self, x, edge_index):
    h = self.second(self.first(x, edge_index).relu(), edge_index)
    return self.head(h)[:, 0].sigmoid()


def coefficients(self, x, edge_index):
    h = self.first(x, edge_index).relu()
    h, (edges, alpha) = self.attention(h, edge_index, return_attention_weights=True)
    return self.head(self.second(h, edge_index)), alpha, edges


GRAPHS = [mean_of_graphs, several_pools, of_levels, scattered, to_graphs_and_back]


def graphs(*sizes):
    draw = torch.Generator().manual_seed(sum(sizes))
    made = []
    for count in sizes:
        edges = torch.randint(count, (2, 3 * count), generator=draw)
        made.append(Data(x=torch.randn(count, CHANNELS, generator=draw).double(), edge_index=edges))
    return made


@pytest.mark.parametrize("run", GRAPHS, ids=lambda run: run.__name__)
def test_graphs_of_a_batch_are_pooled_behind_the_layers(run):
    model = model_of(run)
    engine = assert_same(model, Batch.from_data_list(graphs(3, 5, 2, 4)))
    for sizes in ((4, 4, 4, 4), (1, 1, 1, 1), (9, 1, 30, 2)):
        batch = Batch.from_data_list(graphs(*sizes))
        torch.testing.assert_close(engine(batch), called(model, batch), **CLOSE)
        assert engine.why is None
    loader = DataLoader(graphs(*range(1, 13)), batch_size=4)
    for batch in loader:
        torch.testing.assert_close(engine(batch), called(model, batch), **CLOSE)


@pytest.mark.parametrize("run", [a_loss_beside, one_column, coefficients], ids=lambda run: run.__name__)
def test_results_of_other_forms_are_returned(run):
    batch = batch_of()
    assert_same(model_of(run), batch, batch.batch_size)


def by_flags(self, x, edge_index, twice=False, act="relu"):
    h = getattr(F, act)(self.first(x, edge_index))
    h = self.second(h, edge_index) if twice else h
    return self.head(self.of_rows(h, edge_index))


def test_flags_of_a_call_choose_a_program():
    model = model_of(by_flags)
    batch, engine = batch_of(), graphbraid.compile(model)
    given = batch.x, batch.edge_index
    for args, named in (
        ((), {}),
        ((True,), {}),
        ((False,), {"act": "elu"}),
        ((), {"twice": True, "act": "tanh"}),
        ((True,), {}),
    ):
        ours, theirs = engine(*given, *args, **named), model(*given, *args, **named)
        assert engine.why is None
        assert not engine.breaks
        torch.testing.assert_close(ours, theirs, **CLOSE)
        torch.testing.assert_close(gradients(model, ours), gradients(model, theirs), **CLOSE)


def test_a_layer_that_keeps_its_first_batch_alone_runs_as_written():
    def run(self, x, edge_index):
        return self.head(self.second(self.kept(x, edge_index).relu(), edge_index))

    model, batch = model_of(run), batch_of()
    model.kept = pyg.GCNConv(CHANNELS, 8, cached=True).double()
    engine = assert_same(model, batch, batch.batch_size)
    assert "cached=True" in engine.explain(batch)
    torch.testing.assert_close(engine(batch), called(model, batch)[: batch.batch_size], **CLOSE)
    with pytest.raises(graphbraid.errors.ConfigError, match="cached=True"):
        graphbraid.compile(model, strict=True)(batch)


def test_strict_refuses_what_pytorch_computes_behind_the_layers():
    batch = Batch.from_data_list(graphs(3, 5))
    with pytest.raises(graphbraid.errors.ConfigError, match="strict=True"):
        graphbraid.compile(model_of(mean_of_graphs), strict=True)(batch)
