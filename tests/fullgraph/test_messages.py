"""Layers of a user's own in an engine, beside what the matrix of models compares."""

import copy
import importlib.util
import sys
import types

import pytest
import torch
import torch.nn.functional as F
from tests.beside_pyg import Data, pyg
from tests.fullgraph.matrix.cases_messages import gated, own
from tests.fullgraph.matrix.compare import LEFT_ALONE, LOWERED, PARTLY, assert_alike, engine_of, verdict
from tests.fullgraph.matrix.graphs import CHANNELS, CLASSES, data_of
from tests.fullgraph.matrix.models import Stack
from tests.modules import module_of
from torch import nn
from torch_geometric.utils import softmax

import graphbraid
from graphbraid.errors import RunsAsWrittenWarning
from graphbraid.ops import messages


def _gate(self, x_i, x_j):
    return torch.sigmoid(x_i + x_j) * x_j * self.att


def _dropped(self, x_j):
    return F.dropout(x_j, 0.5, self.training)


def _dropped_by_module(self, x_j):
    return self.dropout(x_j)


def _noisy(self, x_j):
    return x_j + torch.rand(1)


def _with_dropout():
    model = Stack(own(_dropped_by_module))
    for layer in (model.first, model.second):
        layer.dropout = nn.Dropout(0.5)
    return model


@pytest.mark.parametrize("make", [lambda: Stack(own(_dropped)), _with_dropout], ids=["function", "module"])
def test_a_message_with_dropout_is_lowered_and_rests_in_evaluation(make):
    data, model = data_of("untidy"), make()
    state = torch.get_rng_state()
    assert verdict(engine_of(model, data)) == LOWERED
    assert torch.equal(state, torch.get_rng_state())  # trials draw no numbers of the user's
    model, twin = model.eval(), copy.deepcopy(model)
    engine = engine_of(model, data)
    assert verdict(engine) == LOWERED
    assert_alike(model, twin, data, engine, steps=1)


def test_dropout_in_a_message_keeps_the_mean_and_draws_the_same_from_a_seed():
    """Each step draws other numbers; backward draws those of its forward."""
    data, model = data_of("untidy"), own(_dropped, aggr="sum")(CHANNELS, CLASSES)
    engine = engine_of(model, data)
    assert verdict(engine) == LOWERED
    torch.manual_seed(3)
    first, second = engine().detach(), engine().detach()
    assert not torch.equal(first, second)
    torch.manual_seed(3)
    assert torch.equal(first, engine().detach())
    mean = torch.stack([engine().detach() for _ in range(2000)]).mean(0)
    expected = engine_of(model.eval(), data)().detach()
    torch.testing.assert_close(mean, expected, rtol=0.1, atol=0.25)
    model.train()
    out = engine()
    out.sum().backward()  # the layer is linear, so each row's gradient gives back the row
    rebuilt = sum((p.grad * p).sum() for p in model.parameters() if p.grad is not None)
    torch.testing.assert_close(rebuilt, out.sum(), rtol=1e-3, atol=1e-3)


def test_a_message_that_draws_is_left_alone():
    engine = engine_of(Stack(own(_noisy)), data_of("untidy"))
    assert verdict(engine) == LEFT_ALONE
    assert "random numbers" in engine.explain()


@pytest.mark.parametrize("aggr", ["sum", "mean", "max", "min"])
def test_blocks_of_a_few_edges_give_the_same(monkeypatch, aggr):
    monkeypatch.setattr(messages, "_BLOCK_FLOATS", 1)
    monkeypatch.setattr(messages, "_LEAST_EDGES", 5)
    data, model = data_of("untidy"), Stack(own(_gate, aggr=aggr))
    twin = copy.deepcopy(model)
    assert_alike(model, twin, data, engine_of(model, data), steps=10)


def test_a_median_is_lowered_also_where_blocks_begin_with_nodes_without_edges(monkeypatch):
    """PyG's own fails if the graph's first node has no edges, so only this graph is one for it."""
    monkeypatch.setattr(messages, "_BLOCK_FLOATS", 1)
    monkeypatch.setattr(messages, "_LEAST_EDGES", 3)
    data, model = data_of("untidy"), Stack(own(_gate, aggr="median"))
    twin, engine = copy.deepcopy(model), engine_of(model, data)
    assert verdict(engine) == LOWERED
    assert_alike(model, twin, data, engine, steps=2)


def test_a_median_of_no_messages_is_0_also_for_the_last_nodes():
    """PyG's own raises an IndexError there; 0 is the fill_value of its aggregation."""
    data = Data(x=torch.randn(9, 4), edge_index=torch.tensor([[0, 1, 2, 3], [4, 4, 5, 5]]))
    data.train_mask = torch.ones(9, dtype=torch.bool)
    layer = pyg.SimpleConv("median")
    with pytest.raises(IndexError):
        layer(data.x, data.edge_index)
    expected = torch.zeros(9, 4)
    expected[4:6] = torch.minimum(data.x[0:3:2], data.x[1:4:2])  # the lower one of two
    out = graphbraid.compile(pyg.Sequential("x, edge_index", [(layer, "x, edge_index -> x")]), data)()
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize("aggr", ["sum", "mean", "max", "min", "median"])
def test_a_layer_without_parameters_is_lowered_by_itself(aggr):
    """Nothing but the output is left of a sum of the features that is made once."""
    data = ends_in_edges(torch.float32)
    layer = pyg.SimpleConv(aggr)
    engine = engine_of(layer, data)
    assert verdict(engine) == LOWERED
    torch.testing.assert_close(engine(), layer(data.x, data.edge_index))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("aggr", ["sum", "max", "median"])
def test_without_parameters_outputs_have_the_dtype_of_the_features(aggr, dtype):
    data, layer = ends_in_edges(dtype), pyg.SimpleConv(aggr)
    with pytest.warns(RunsAsWrittenWarning, match=f"its outputs are {dtype}, as the features are"):
        out = graphbraid.compile(layer, data)()
    expected = layer(data.x, data.edge_index)
    assert out.dtype == expected.dtype == dtype
    assert torch.equal(out, expected)


def ends_in_edges(dtype):
    """Features and edges; PyG's own median needs an edge to the last node."""
    edges = torch.tensor([[0, 1, 2, 3, 7, 8, 0, 1], [4, 4, 5, 5, 8, 0, 1, 2]])
    data = Data(x=torch.randn(9, 4, generator=torch.Generator().manual_seed(0)).mul(9).to(dtype))
    data.edge_index, data.train_mask = edges, torch.ones(9, dtype=torch.bool)
    return data


@pytest.mark.parametrize("make", [pyg.GCNConv, pyg.SAGEConv, pyg.GATConv])
def test_gradients_from_features_that_are_nan_equal_pygs(make):
    """Also those of rows that no loss of a NaN reaches, and of a ReLU's NaN."""
    data = data_of("untidy")
    data.x[5, 2] = torch.nan
    model = pyg.Sequential(
        "x, edge_index",
        [(make(CHANNELS, 8), "x, edge_index -> x"), nn.ReLU(), (make(8, CLASSES), "x, edge_index -> x")],
    )
    twin, engine = copy.deepcopy(model), engine_of(model, data)
    assert verdict(engine) == LOWERED
    for only_numbers in (False, True):
        for one, out in ((model, engine()), (twin, twin(data.x, data.edge_index)[data.train_mask])):
            one.zero_grad()
            rows = out[~out.detach().isnan().any(1)] if only_numbers else out
            rows.square().sum().backward()
        for mine, other in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, other.grad, rtol=1e-3, atol=1e-4, equal_nan=True)


def test_frozen_parameters_of_a_message_get_no_gradient():
    data, model = data_of("untidy"), Stack(own(_gate))
    for layer in (model.first, model.second):
        layer.att.requires_grad_(False)
    twin = copy.deepcopy(model)
    assert_alike(model, twin, data, engine_of(model, data), steps=1)
    assert model.first.att.grad is None


def test_a_frozen_layer_of_messages_may_stand_before_one_that_learns():
    """Its messages keep nothing for backward, which asks whether it reads them."""
    data, layer = data_of("untidy"), pyg.ResGatedGraphConv(CHANNELS, 8).requires_grad_(requires_grad=False)
    parts = [(layer, "x, edge_index -> x"), nn.ReLU(), nn.Linear(8, CLASSES)]
    model, found = pyg.Sequential("x, edge_index", parts), []
    for run in (graphbraid.compile(model, strict=True), model):
        out = run(data.x, data.edge_index)
        found.append(torch.autograd.grad(out.square().sum(), [*model[-1].parameters()]))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def _gate_beside_a_result_that_nothing_reads(self, x_i, x_j):
    gate = torch.sigmoid(x_i + x_j) * self.att
    gate = torch.sigmoid(x_i - x_j)
    return gate * x_j


@pytest.mark.parametrize("on_batch", [False, True])
def test_parameters_of_results_that_nothing_reads_get_no_gradient(on_batch):
    """As in PyG. With zeros for a gradient, an optimizer's weight decay would change them."""
    data, model = data_of("untidy"), Stack(own(_gate_beside_a_result_that_nothing_reads))
    twin = copy.deepcopy(model)
    engine = graphbraid.compile(model, strict=True) if on_batch else engine_of(model, data)
    out = engine(data.x, data.edge_index) if on_batch else engine()
    assert "in one kernel" in engine.explain()
    unread = []
    for one, result in ((model, out), (twin, twin(data.x, data.edge_index))):
        result.sum().backward()
        unread.append({name for name, parameter in one.named_parameters() if parameter.grad is None})
    assert unread[0] == unread[1] > {"first.att", "second.att"}


SOFTMAX = pyg.aggr.SoftmaxAggregation
SOFTENED = {
    "GENConv": lambda: pyg.GENConv(CHANNELS, 8, norm=None),
    "t": lambda: pyg.GENConv(CHANNELS, 8, norm=None, t=0.5),
    "learn": lambda: pyg.GENConv(CHANNELS, 8, norm=None, learn_t=True),
    "channels": lambda: pyg.GENConv(CHANNELS, 8, norm=None, aggr=SOFTMAX(learn=True, channels=8)),
    "semi_grad": lambda: pyg.GENConv(CHANNELS, 8, norm=None, aggr=SOFTMAX(semi_grad=True)),
}


@pytest.mark.parametrize("name", SOFTENED)
def test_a_softmax_aggregation_is_a_factor_of_the_message(name):
    torch.manual_seed(7)
    data, layer = data_of("untidy"), SOFTENED[name]()
    model = pyg.Sequential("x, edge_index", [(layer, "x, edge_index -> x"), nn.ReLU(), nn.Linear(8, CLASSES)])
    twin, engine = copy.deepcopy(model), engine_of(model, data)
    assert ("in one kernel" in engine.explain()) is (name != "semi_grad")
    assert_alike(model, twin, data, engine, steps=3)
    for one in (model, twin):
        if isinstance(one[0].aggr_module.t, float):
            one[0].aggr_module.t = 2.0
    assert_alike(model, twin, data, engine, steps=2)


def test_a_message_that_is_changed_is_read_again():
    data, model = data_of("untidy"), Stack(own(_gate))
    engine = engine_of(model, data)
    before = engine.predict().clone()
    model.first.att.data.mul_(0.0)
    assert not torch.equal(before, engine.predict())
    kind = type(model.first)

    def message(self, x_i, x_j):
        return x_i - x_j

    kind.message = message
    twin = copy.deepcopy(model)
    assert_alike(model, twin, data, engine, steps=1)
    assert "message(x_i, x_j)" in engine.explain()


def test_steps_hold_no_row_per_edge():
    """Ten times the edges take the same arena."""
    sizes = []
    for times in (1, 10):
        data = data_of("untidy")
        data.edge_index, data.edge_weight = data.edge_index.repeat(1, times), None
        engine = engine_of(Stack(own(_gate)), data)
        engine()
        sizes.append(engine.explain().split("Arena")[1].splitlines()[1])
    assert sizes[0] == sizes[1]


# ---- messages that run in one kernel, and others that look like them


def _attends(self, x_i, x_j, index, ptr, size_i):
    return x_j * softmax((x_i * x_j).sum(-1), index, ptr, size_i).view(-1, 1)


def _attends_by_column(self, x_j, index):
    return softmax(x_j.tanh() * self.att, index) * F.relu(x_j)


def _attends_twice(self, x_i, x_j, index):
    return softmax(x_j, index) * softmax(x_i + x_j, index) * x_j


def _of_its_own_softmax(self, x_j, index):
    factor = softmax(x_j, index)
    return factor * factor


def _beside_a_softmax(self, x_j, index):
    return softmax(x_j, index) * x_j + x_j


class _ByHead(pyg.MessagePassing):
    """GAT as courses write it: heads in a dimension of their own."""

    def __init__(self, i, o, heads=2):
        super().__init__(aggr="add", node_dim=0)
        self.heads, self.channels, self.lin = heads, o // heads, nn.Linear(i, o)
        self.left, self.right = nn.Linear(o, heads), nn.Linear(o, heads)
        self.row, self.scale = (
            nn.Parameter(torch.randn(1, heads, o // heads)),
            nn.Parameter(torch.rand(heads)),
        )

    def forward(self, x, edge_index):
        x = self.lin(x)
        a, b = self.left(x), self.right(x)
        return self.propagate(edge_index, x=x.view(-1, self.heads, self.channels), a=a, b=b).flatten(1)

    def message(self, x_j, a_j, b_i, index, size_i):
        alpha = softmax(F.leaky_relu(a_j + b_i, 0.2) * self.scale, index, num_nodes=size_i)
        return alpha.unsqueeze(-1) * x_j


class _PerHead(_ByHead):
    """The same with parameters of heads and of channels, and a sigmoid in place of the softmax."""

    def message(self, x_j, a_j, b_i):
        return torch.sigmoid(a_j + b_i * self.scale).view(-1, self.heads, 1) * (x_j - self.row)


class _AcrossHeads(_ByHead):
    """The second head's numbers for both."""

    def message(self, x_j, a_j):
        return x_j * a_j[:, 1:].unsqueeze(-1)


@pytest.mark.parametrize("kind", ["untidy", "real"])
@pytest.mark.parametrize(
    ("make", "in_one_kernel"),
    [
        (own(_attends), True),
        (own(_attends_by_column), True),
        (own(_attends_twice), False),
        (own(_of_its_own_softmax), False),
        (own(_beside_a_softmax), False),
        (own(_attends, aggr="max"), False),
        (own(_attends, aggr="mean"), False),
        (_ByHead, True),
        (lambda i, o: _ByHead(i, o, heads=1), True),
        (_PerHead, True),
        (lambda i, o: _PerHead(i, o, heads=o), True),
        (_AcrossHeads, False),
        (pyg.TransformerConv, True),
        (lambda i, o: pyg.TransformerConv(i, o // 2, heads=2, beta=True), True),
        (lambda i, o: pyg.TransformerConv(i, o, heads=2, concat=False, dropout=0.5).eval(), True),
    ],
)
def test_attention_of_known_operations_runs_in_one_kernel(kind, make, in_one_kernel):
    torch.manual_seed(3)
    data = data_of(kind)
    ours = module_of(
        lambda self, x, edge_index: self.last(self.stack(self.first(x), edge_index)),
        first=nn.Linear(CHANNELS, 8),
        stack=Stack(lambda i, o: make(8 if i == CHANNELS else i, 8), hidden=8),
        last=nn.Linear(8, CLASSES),
    )
    ours.train(all(module.training for module in ours.modules()))
    twin, engine = copy.deepcopy(ours), engine_of(ours, data)
    assert verdict(engine) == LOWERED, engine.explain()
    assert ("in one kernel" in engine.explain()) == in_one_kernel, engine.explain()
    assert_alike(ours, twin, data, engine, rtol=1e-3, atol=1e-4)


class Rounded(pyg.MessagePassing):
    """Messages in float32 of rows in float64."""

    def __init__(self):
        super().__init__(aggr="sum")
        self.lin = torch.nn.Linear(4, 4)

    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=self.lin(x))

    def message(self, x_j):
        return x_j.float()


def test_a_message_in_another_dtype_runs_as_it_is_written():
    model = Rounded().double()
    x, edges = torch.rand(5, 4, dtype=torch.float64), torch.randint(5, (2, 9))
    engine = graphbraid.compile(model)
    with pytest.warns(graphbraid.errors.RunsAsWrittenWarning):
        out = engine(x, edges)
    assert out.dtype is torch.float32
    assert torch.equal(out, model(x, edges))
    assert "its message turns rows of torch.float64 into torch.float32" in str(engine.explain())


# ---- aggregates that call torch-scatter, as layers did before PyG had a scatter of its own


def _scatter_sum(src, index, dim=-1, out=None, dim_size=None):
    shape = [*src.shape]
    shape[dim] = dim_size
    index = index.view(-1, *[1] * (src.ndim - 1)).expand_as(src)
    return (src.new_zeros(shape) if out is None else out).scatter_add(dim, index, src)


def _scatter_mean(src, index, dim=-1, out=None, dim_size=None):
    counts = index.bincount(minlength=dim_size).clamp(min=1).view(-1, *[1] * (src.ndim - 1))
    return _scatter_sum(src, index, dim, out, dim_size) / counts


def _scatter(src, index, dim=-1, out=None, dim_size=None, reduce="sum"):
    return (_scatter_mean if reduce == "mean" else _scatter_sum)(src, index, dim, out, dim_size)


def scatter_max(src, index, dim=-1, out=None, dim_size=None):
    index = index.view(-1, *[1] * (src.ndim - 1)).expand_as(src)
    zeros = src.new_zeros(dim_size, *src.shape[1:])
    return zeros.scatter_reduce(dim, index, src, "amax", include_self=False), None


def segment_csr(src, indptr, out=None, reduce="sum"):
    return torch.segment_reduce(src, reduce, offsets=indptr)


torch_scatter = None


@pytest.fixture
def _with_torch_scatter(monkeypatch):
    """The package, which has no wheel on PyPI; where it is missing, its signatures on PyTorch's functions."""
    if importlib.util.find_spec("torch_scatter") is None:
        module = types.ModuleType("torch_scatter")
        vars(module).update(scatter=_scatter, scatter_sum=_scatter_sum, scatter_mean=_scatter_mean)
        vars(module).update(scatter_max=scatter_max, segment_csr=segment_csr)
        module.scatter_add = lambda src, index, dim=-1, out=None, dim_size=None: _scatter_sum(
            src, index, dim, out, dim_size
        )
        monkeypatch.setitem(sys.modules, "torch_scatter", module)
    monkeypatch.setitem(globals(), "torch_scatter", importlib.import_module("torch_scatter"))


def _aggregating(name, **options):
    def aggregate(self, inputs, index, dim_size=None):
        given = {"dim": self.node_dim, "dim_size": dim_size} | options
        return getattr(torch_scatter, name)(inputs, index, **given)

    return gated(aggregate=aggregate)


@pytest.mark.usefixtures("_with_torch_scatter")
@pytest.mark.parametrize("name", ["scatter", "scatter_sum", "scatter_add", "scatter_mean"])
def test_an_aggregate_that_calls_torch_scatter_is_lowered(name):
    for options in ({}, {"reduce": "mean"}, {"reduce": "add", "dim": 0}) if name == "scatter" else ({},):
        data, model = data_of("untidy"), Stack(_aggregating(name, **options))
        twin, engine = copy.deepcopy(model), engine_of(model, data)
        assert verdict(engine) == LOWERED
        assert_alike(model, twin, data, engine)


@pytest.mark.usefixtures("_with_torch_scatter")
@pytest.mark.parametrize("options", [{"reduce": "max"}, {"out": torch.ones(24, 8)}, {"dim": 1}])
def test_other_calls_of_torch_scatter_are_left_alone(options):
    model = Stack(_aggregating("scatter", **options))
    with pytest.warns(RunsAsWrittenWarning, match="aggregate of its own"):
        engine = engine_of(model, data_of("untidy"))
    assert verdict(engine) == LEFT_ALONE


class Segments(nn.Module):
    """Sums of torch-scatter over edges that a plain forward has sorted, beside its maximum."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(CHANNELS, 8), nn.Linear(8, CLASSES)

    def forward(self, x, edge_index):
        dst, order = edge_index[1].sort(stable=True)
        starts = F.pad(torch.bincount(dst, minlength=x.size(0)).cumsum(0), (1, 0))
        messages = self.first(x)[edge_index[0][order]]
        top, _ = torch_scatter.scatter_max(messages, dst, dim=0, dim_size=x.size(0))
        return self.last(torch_scatter.segment_csr(messages, starts) + top)


@pytest.mark.usefixtures("_with_torch_scatter")
def test_a_plain_forward_s_segments_of_torch_scatter_are_lowered_and_its_maximum_says_why_not():
    data, model = data_of("untidy"), Segments()
    twin, engine = copy.deepcopy(model), engine_of(model, data)
    assert verdict(engine) == PARTLY
    assert "scatter_max: its gradient goes to the first of equal messages" in engine.explain()
    assert "segment_csr" not in engine.explain()
    assert_alike(model, twin, data, engine)


@pytest.mark.parametrize("layer", ["attention", "network"])
def test_parameters_may_be_frozen_before_the_backward_pass_of_a_batch(layer):
    """As where two models learn from each other in turns: only features get gradients."""
    torch.manual_seed(0)
    data, network = data_of("untidy"), nn.Sequential(nn.Linear(2 * CHANNELS, 8), nn.ReLU(), nn.Linear(8, 8))
    convs = {"attention": pyg.TransformerConv(CHANNELS, 8, beta=True), "network": pyg.EdgeConv(network)}
    model = pyg.Sequential("x, edge_index", [(convs[layer], "x, edge_index -> x"), nn.Linear(8, CLASSES)])
    engine, found = graphbraid.compile(model, strict=True), []
    for run in (engine, model):
        x = data.x.clone().requires_grad_()
        out = run(x, data.edge_index)
        model.requires_grad_(requires_grad=False)
        out.square().sum().backward()
        assert all(p.grad is None and not p.requires_grad for p in model.parameters())
        model.requires_grad_()
        found.append(x.grad)
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layer", ["steps", "network"])
@pytest.mark.parametrize("change", ["data", "double", "shared"])
def test_messages_refuse_other_data_of_their_parameters_before_the_backward_pass(change, layer):
    """Backward computes the messages once more. It may read parameters that only moved."""
    network = [nn.Linear(2 * CHANNELS, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, CHANNELS)]
    conv = pyg.AGNNConv() if layer == "steps" else pyg.EdgeConv(nn.Sequential(*network))
    model = pyg.Sequential("x, edge_index", [(conv, "x, edge_index -> x"), nn.Linear(CHANNELS, CLASSES)])
    data, engine = data_of("untidy"), graphbraid.compile(model, strict=True)
    expected = torch.autograd.grad(engine(data.x.float(), data.edge_index).sum(), [*model.parameters()])
    out = engine(data.x.float(), data.edge_index)
    for one in conv.parameters():
        if change == "shared":
            one.share_memory_()
        else:
            one.data = one.data.double() if change == "double" else one.data.clone()
    if change == "shared":
        torch.testing.assert_close(torch.autograd.grad(out.sum(), [*model.parameters()]), expected)
    else:
        with pytest.raises(RuntimeError, match="a parameter was given other data"):
            out.sum().backward()


def test_messages_with_a_softmax_have_gradients_on_a_batch_without_rows():
    model = pyg.Sequential(
        "x, edge_index", [(pyg.AGNNConv(), "x, edge_index -> x"), nn.Linear(CHANNELS, CLASSES)]
    )
    engine = graphbraid.compile(model, strict=True)
    engine(torch.empty(0, CHANNELS), torch.empty(2, 0, dtype=torch.int64)).sum().backward()
    assert not any(p.grad is None or p.grad.any() for p in model.parameters())


@pytest.mark.filterwarnings("ignore:.*runs? as (it is|they are) written")
def test_parameters_that_a_call_is_given_get_its_gradients():
    """torch.func.functional_call puts plain tensors in the places of parameters."""
    torch.manual_seed(0)
    data = data_of("untidy")
    model = pyg.Sequential(
        "x, edge_index",
        [
            (pyg.PNAConv(CHANNELS, 8, ["mean"], ["identity"], torch.tensor([1, 2])), "x, edge_index -> x"),
            nn.Linear(8, CLASSES),
        ],
    )
    given, found = {name: (2 * p).detach() for name, p in model.named_parameters()}, []
    for run in (graphbraid.compile(model), model):
        parameters = {name: p.clone().requires_grad_() for name, p in given.items()}
        out = torch.func.functional_call(run, parameters, (data.x, data.edge_index))
        found.append(torch.autograd.grad(out.square().sum(), [*parameters.values()]))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)
