"""Segments in compiled code have the bits of the same operations run one by one, in results and gradients."""

import contextlib
import copy
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.beside_pyg import Data, pyg
from tests.fullgraph.matrix import models
from tests.fullgraph.matrix.graphs import CHANNELS, CLASSES, data_of
from tests.fullgraph.test_batches import STEPS, SharedGradients, Wired, sampled
from tests.fullgraph.test_typed_batches import own, ready
from tests.fullgraph.typed_cases import HETERO, TRANSFORMED, untidy
from tests.kernels import needs_kernels
from torch import nn
from torch_geometric.utils import softmax

import graphbraid
from graphbraid import native
from graphbraid.estimates.machine import allocation_of
from graphbraid.fullgraph.batches import segments
from graphbraid.fullgraph.batches.edges import Levels
from graphbraid.machine.hardware import Rates
from graphbraid.ops import linear
from graphbraid.ops.kernels import watched, without_pool

pytestmark = needs_kernels


class Weighted(nn.Module):
    """Sums with weights of edges before a product and after one, and one beside its own input."""

    def __init__(self):
        super().__init__()
        self.narrow, self.wide = pyg.GCNConv(CHANNELS, 3), pyg.GraphConv(3, 40, aggr="mean")
        self.plain, self.last = pyg.GINConv(nn.Identity()), pyg.SAGEConv(40, CLASSES, normalize=False)

    def forward(self, x, edge_index, edge_weight):
        x = F.elu(self.narrow(x, edge_index, edge_weight))
        x = self.plain(F.leaky_relu(self.wide(x, edge_index, edge_weight)), edge_index)
        return self.last(F.dropout(x, 0.4, self.training), edge_index)


class Transformers(nn.Module):
    """TransformerConv, whose last heads are averaged."""

    def __init__(self):
        super().__init__()
        self.first = pyg.TransformerConv(CHANNELS, 4, heads=2)
        self.last = pyg.TransformerConv(8, CLASSES, heads=3, concat=False)

    def forward(self, x, edge_index):
        return self.last(F.dropout(F.elu(self.first(x, edge_index)), 0.3, self.training), edge_index)


class OwnDots(pyg.MessagePassing):
    """Attention whose queries, keys and values are the same rows; the sources' rows hold more of these."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(CHANNELS, 8)

    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=self.lin(x))

    def message(self, x_i, x_j, index, ptr, size_i):
        return softmax((x_i * x_j).sum(-1), index, ptr, size_i).view(-1, 1) * x_j


class GATs(nn.Module):
    """GAT between GATv2 and a sum that reads the same rows; one vector is frozen."""

    def __init__(self):
        super().__init__()
        self.first, self.last = pyg.GATv2Conv(CHANNELS, 4, heads=2), pyg.GATConv(8, CLASSES, heads=1)
        self.second, self.beside = pyg.GATConv(8, 8, heads=1), pyg.SAGEConv(8, 8)
        self.second.att_dst.requires_grad_(requires_grad=False)

    def forward(self, x, edge_index):
        x = self.first(x, edge_index)
        return self.last(F.elu(self.second(x, edge_index) + self.beside(x, edge_index)), edge_index)


MODELS = {
    "SAGE": lambda: pyg.GraphSAGE(CHANNELS, 8, 3, CLASSES, dropout=0.5),
    "SAGE that widens": lambda: pyg.GraphSAGE(CHANNELS, 64, 2, 70),
    "SAGE that narrows": lambda: pyg.GraphSAGE(CHANNELS, 2, 2, 1),
    "SAGE that projects": lambda: pyg.GraphSAGE(CHANNELS, 8, 2, CLASSES, project=True),
    "GCN": lambda: pyg.GCN(CHANNELS, 8, 3, CLASSES, act="elu", dropout=0.3),
    "GIN with batch normalisation": lambda: pyg.GIN(CHANNELS, 8, 2, CLASSES, norm="batch"),
    "GAT": lambda: pyg.GAT(CHANNELS, 8, 3, CLASSES, heads=4, dropout=0.3),
    "GAT that averages": lambda: pyg.GAT(CHANNELS, 6, 2, 5, heads=3, act="elu", concat=False),
    "GAT without loops": lambda: pyg.GAT(CHANNELS, 8, 2, CLASSES, heads=2, dropout=0.5, add_self_loops=False),
    "GATv2": lambda: pyg.GAT(CHANNELS, 8, 3, CLASSES, heads=4, v2=True, dropout=0.3),
    "GATv2 that averages": lambda: pyg.GAT(CHANNELS, 6, 2, 5, heads=3, v2=True, dropout=0.5, concat=False),
    "GATv2 of one map": lambda: pyg.GAT(CHANNELS, 6, 2, CLASSES, heads=2, v2=True, share_weights=True),
    "GATv2 and GAT": GATs,
    "TransformerConv": Transformers,
    "attention of a user's own": OwnDots,
    "PNA's neighbours": lambda: pyg.GraphSAGE(CHANNELS, 8, 2, CLASSES, aggr="max"),
    "shared gradients": lambda: SharedGradients(2),
}
FEATURES = 3


class OfEdges(nn.Module):
    """Two layers that read features of edges, and dropout."""

    def __init__(self, make, hidden=8):
        super().__init__()
        self.first, self.last = make(CHANNELS, hidden), make(hidden, 6)

    def forward(self, x, edge_index, edge_attr):
        x = F.dropout(F.elu(self.first(x, edge_index, edge_attr)), 0.3, self.training)
        return self.last(x, edge_index, edge_attr)


def attention_of_edges(kind, **options):
    return lambda i, o: kind(i, o // 2, heads=2, edge_dim=FEATURES, **options)


OF_EDGES = {
    "GINE": lambda i, o: pyg.GINEConv(nn.Linear(i, o), edge_dim=FEATURES),
    "GINE that adds its own row": lambda i, o: pyg.GINEConv(nn.Linear(i, o), eps=0.5, edge_dim=FEATURES),
    "GAT": attention_of_edges(pyg.GATConv, dropout=0.3),
    "GAT of given loops": attention_of_edges(pyg.GATConv, fill_value=0.5),
    "GAT without loops": attention_of_edges(pyg.GATConv, add_self_loops=False, dropout=0.3),
    "GATv2": attention_of_edges(pyg.GATv2Conv, dropout=0.3),
    "GATv2 of largest loops": attention_of_edges(pyg.GATv2Conv, fill_value="max"),
    "GATv2 without loops": attention_of_edges(pyg.GATv2Conv, add_self_loops=False),
    "GATv2 that averages": lambda i, o: pyg.GATv2Conv(i, o, heads=3, concat=False, edge_dim=FEATURES),
}
"""These have the bits of their operations, but for gradients of GINE's map, whose sums have another order."""
AGGREGATORS = ["mean", "min", "max", "std", "sum", "var"]
SCALERS = ["identity", "amplification", "attenuation", "linear", "inverse_linear"]
DEGREES = torch.tensor([1, 5, 9, 3])


class Several(pyg.MessagePassing):
    """All reductions with all scalers of degrees."""

    def __init__(self, i, o):
        super().__init__(aggr=pyg.DegreeScalerAggregation(AGGREGATORS, SCALERS, DEGREES))
        self.lin, self.edge = nn.Linear(i, o), nn.Linear(FEATURES, o)
        self.out = nn.Linear(len(AGGREGATORS) * len(SCALERS) * o, o)

    def forward(self, x, edge_index, edge_attr):
        return self.out(self.propagate(edge_index, x=self.lin(x), edge_attr=edge_attr))

    def message(self, x_i, x_j, edge_attr):
        return torch.tanh(x_j + self.edge(edge_attr)) - x_i


OF_STEPS = {
    "several reductions": Several,
    "PNAConv": lambda i, o: pyg.PNAConv(i, o, AGGREGATORS, SCALERS, DEGREES, edge_dim=FEATURES, towers=2),
    "TransformerConv": lambda i, o: pyg.TransformerConv(i, o // 2, heads=2, edge_dim=FEATURES),
    "ResGatedGraphConv": lambda i, o: pyg.ResGatedGraphConv(i, o, edge_dim=FEATURES),
    "GeneralConv": lambda i, o: pyg.GeneralConv(i, o, in_edge_channels=FEATURES),
    "GENConv": lambda i, o: pyg.GENConv(i, o, edge_dim=FEATURES, norm=None),
    "GENConv that learns": lambda i, o: pyg.GENConv(i, o, edge_dim=FEATURES, learn_t=True, norm=None),
    "GENConv that adds": lambda i, o: pyg.GENConv(i, o, aggr="add", edge_dim=FEATURES, norm=None),
}
"""Messages, whose bits differ by the order in which PyTorch adds columns."""


def with_features(graph="untidy", num_features=FEATURES):
    data = data_of(graph)
    data.edge_attr = torch.randn(data.num_edges, num_features, generator=torch.Generator().manual_seed(7))
    return data


@pytest.mark.parametrize("graph", ["untidy", "directed", "without edges"])
@pytest.mark.parametrize("name", OF_EDGES)
def test_layers_that_read_features_of_edges_have_the_bits_of_their_operations(name, graph, monkeypatch):
    torch.manual_seed(0)
    data = with_features("untidy" if graph == "without edges" else graph)
    kept = data.num_edges if graph != "without edges" else 0
    call = data.x.float(), data.edge_index[:, :kept], data.edge_attr[:kept]
    rounds = "GINE" in name
    assert assert_same_bits(OfEdges(OF_EDGES[name]), call, monkeypatch, rounds=rounds, twice=True)


@pytest.mark.parametrize("name", OF_EDGES | OF_STEPS)
def test_without_nodes_gradients_are_zero(name):
    """A step before leaves numbers in the memory that gradients take."""
    model, data = OfEdges((OF_EDGES | OF_STEPS)[name]), with_features()
    engine = graphbraid.compile(model, strict=True)
    for nodes, edges in ((data.num_nodes, data.num_edges), (0, 0)):
        model.zero_grad()
        out = engine(1e3 * data.x[:nodes].float(), data.edge_index[:, :edges], data.edge_attr[:edges])
        out.sum().backward()
    assert out.shape == (0, 6)
    assert all(p.grad is None or not p.grad.any() for p in model.parameters())


def test_gine_reads_rows_of_edges_as_they_are(monkeypatch):
    torch.manual_seed(0)
    model, data = pyg.GINEConv(nn.Linear(CHANNELS, 8)), with_features(num_features=CHANNELS)
    assert assert_same_bits(model, (data.x.float(), data.edge_index, data.edge_attr), monkeypatch)


@pytest.mark.parametrize("frozen", [(), ("lin.weight",), ("lin.weight", "lin.bias")])
@pytest.mark.parametrize(("features", "width"), [(16, 70), (17, 70), (3, 5)])
def test_gine_maps_few_features_where_it_reads_edges(features, width, frozen, monkeypatch):
    torch.manual_seed(0)
    data = with_features("directed", features)
    model = pyg.GINEConv(nn.Linear(width, 8), edge_dim=features)
    for one in frozen:
        model.get_parameter(one).requires_grad_(requires_grad=False)
    call = torch.randn(data.num_nodes, width), data.edge_index, data.edge_attr
    rounds = features != 17 and len(frozen) < 2
    assert assert_same_bits(model, call, monkeypatch, rounds=rounds)


PNA = {"aggregators": ["mean", "min", "max", "std"], "scalers": SCALERS[:3], "deg": DEGREES}
LARGE_STEPS = {
    "GINE": lambda: OfEdges(lambda i, o: pyg.GINEConv(pyg.MLP([i, 64, o], norm=None), edge_dim=FEATURES), 64),
    "TransformerConv": lambda: OfEdges(
        lambda i, o: pyg.TransformerConv(i, -(-o // 4), heads=4, edge_dim=FEATURES), 128
    ),
    "PNA": lambda: OfEdges(partial(pyg.PNAConv, **PNA, edge_dim=FEATURES), 64),
}


@pytest.mark.parametrize("name", LARGE_STEPS)
def test_a_step_along_edges_takes_a_third_of_pygs_memory(name):
    torch.manual_seed(0)
    model = LARGE_STEPS[name]()
    data = Data(torch.rand(9000, CHANNELS), torch.randint(9000, (2, 36000)))
    data.edge_attr = torch.rand(36000, FEATURES)
    batch = sampled(data, num_neighbors=(15, 10), input_nodes=torch.arange(400), batch_size=400)
    call = batch.x, batch.edge_index, batch.edge_attr

    def peak(run):
        def step():
            run()[:400].square().sum().backward()

        step()
        return allocation_of(step, batch.x.device).peak

    engine = graphbraid.compile(copy.deepcopy(model), strict=True)
    assert 3 * peak(lambda: engine(batch)) < peak(lambda: model(*call))


@pytest.mark.parametrize("name", LARGE_STEPS)
def test_gradients_of_mapped_edges_and_of_rows_made_for_a_product_do_not_depend_on_the_number_of_threads(
    name,
):
    torch.manual_seed(0)
    model, edge_index, results = LARGE_STEPS[name]().eval(), torch.randint(2_500, (2, 20_000)), []
    call = torch.randn(2_500, CHANNELS), edge_index, torch.randn(20_000, FEATURES)
    before = torch.get_num_threads()
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            results.append(found(model, call, twice=True)[0])
    finally:
        torch.set_num_threads(before)
    assert all(map(torch.equal, *results))


def steps_of(run, model, y):
    """Ten steps; their last loss and the parameters."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.5)
    for _ in range(10):
        optimizer.zero_grad()
        loss = F.cross_entropy(run(), y)
        loss.backward()
        optimizer.step()
    return [loss.detach().double(), *(p.detach().double() for p in model.parameters())]


@pytest.mark.parametrize("layout", ["subgraph", "blocks"])
@pytest.mark.parametrize("name", OF_EDGES | OF_STEPS)
def test_a_batch_with_features_of_edges_learns_as_in_pyg(name, layout, monkeypatch):
    """Ten steps beside PyG in float64; on blocks, beside the operations by themselves."""
    torch.manual_seed(0)
    model, y = OfEdges((OF_EDGES | OF_STEPS)[name]).eval(), torch.randint(6, (5,))
    batch, twin = sampled(with_features(), layout=layout, num_neighbors=(3, 2)), copy.deepcopy(model)
    engine = graphbraid.compile(model, strict=True)
    assert compiled_segments(engine(batch)) == 1 or name == "PNAConv"
    found = [steps_of(partial(engine, batch), model, y)]
    if layout == "subgraph":
        call = batch.x.double(), batch.edge_index, batch.edge_attr.double()
        twin = twin.double()
        found.append(steps_of(lambda: twin(*call)[:5], twin, y))
    else:
        by_operation(monkeypatch)
        found.append(steps_of(partial(graphbraid.compile(twin, strict=True), batch), twin, y))
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-4)


ATTENTIONS = [name for name in MODELS if "GAT" in name or "Transformer" in name or "attention" in name]


def functions_behind(out):
    """Names of the autograd functions behind outputs."""
    waiting, seen = [out.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [one for one, _ in node.next_functions]
    return [type(one).__name__ for one in seen]


def compiled_segments(out):
    """How many segments behind the outputs ran as compiled code."""
    return sum("NativePass" in name for name in functions_behind(out))


def runs_compiled(out):
    """Whether any segment behind the outputs ran as compiled code."""
    return compiled_segments(out) > 0


def by_operation(monkeypatch):
    """Let no segment run as compiled code."""
    monkeypatch.setattr(segments.NativeSegment, "run", lambda *_: False)


def multiply_first(monkeypatch):
    """Let GAT multiply before it sums, as its operations do: at these rates nothing takes time."""
    free = Rates(**dict.fromkeys(("multiply_flops", "row_bytes", "stream_bytes"), float("inf")))
    monkeypatch.setattr(segments, "Rates", lambda: free)
    monkeypatch.setattr(linear, "_RATES", free)


def found(model, call, *, twice=False):
    """Outputs and gradients of a compiled model in float32, and whether its last segment ran compiled."""
    engine, x = graphbraid.compile(copy.deepcopy(model), strict=True), call[0].clone().requires_grad_()
    torch.manual_seed(5)
    results = []
    for _ in range(2):
        out = engine(x, *call[1:])
        is_native = runs_compiled(out)
        wanted = [x, *(p for p in engine.parameters() if p.requires_grad)]
        for keeps in (True, False) if twice else (False,):
            grads = torch.autograd.grad(out.square().sum(), wanted, retain_graph=keeps, allow_unused=True)
            results += [out.detach().clone(), *grads]
    return results, is_native


def assert_same_bits(model, call, monkeypatch, *, rounds=False, **options):
    """Compare a model's segments with its operations; with ``rounds``, up to rounding."""
    if any(isinstance(one, pyg.GATConv) for one in model.modules()):
        multiply_first(monkeypatch)
    ours, is_native = found(model, call, **options)
    by_operation(monkeypatch)
    theirs, is_other = found(model, call, **options)
    assert not is_other
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert (one is None) == (other is None)
        if one is not None and rounds:
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-4)
        assert one is None or rounds or torch.equal(one, other)
    return is_native


@pytest.mark.parametrize("graph", ["untidy", "directed"])
@pytest.mark.parametrize("name", MODELS)
def test_segments_have_the_bits_of_their_operations(name, graph, monkeypatch):
    torch.manual_seed(0)
    data = data_of(graph)
    call = data.x.float(), data.edge_index
    assert assert_same_bits(MODELS[name](), call, monkeypatch, twice=True)


class Stacks(nn.Module):
    """Layers whose parameters are stacks of matrices. One layer is applied twice."""

    def __init__(self):
        super().__init__()
        self.first, self.last = pyg.RGCNConv(CHANNELS, 8, 3), pyg.RGCNConv(8, CLASSES, 3)
        self.twice = pyg.RGCNConv(8, 8, 3, root_weight=False)

    def forward(self, x, edge_index, edge_type):
        x = F.elu(self.first(x, edge_index, edge_type))
        for _ in range(2):
            x = self.twice(x, edge_index, edge_type)
        return self.last(x, edge_index, edge_type)


def test_matrices_of_a_stack_have_one_gradient(monkeypatch):
    torch.manual_seed(0)
    data = data_of("untidy")
    call = data.x.float(), data.edge_index, torch.arange(data.num_edges) % 3
    assert assert_same_bits(Stacks(), call, monkeypatch, twice=True)


def test_weights_of_edges_are_transposed_with_their_edges(monkeypatch):
    torch.manual_seed(0)
    data = data_of("untidy")
    call = data.x.float(), data.edge_index, torch.rand(data.num_edges)
    assert assert_same_bits(Weighted(), call, monkeypatch)


@pytest.mark.parametrize("layout", ["subgraph", "blocks"])
@pytest.mark.parametrize(
    "name",
    ["SAGE", "GCN", "SAGE that widens", "SAGE that narrows", "GAT", "GATv2", "TransformerConv"],
)
def test_levels_of_a_batch_have_the_bits_of_their_operations(name, layout, monkeypatch):
    if name == "GAT":
        multiply_first(monkeypatch)
    torch.manual_seed(0)
    model, data = MODELS[name](), data_of("untidy")
    hops = 2 if "that" in name or name == "TransformerConv" else 3
    batch = sampled(data, layout=layout, num_neighbors=(3, 2, 2)[:hops])
    results = []
    for is_native in (True, False):
        if not is_native:
            by_operation(monkeypatch)
        engine = graphbraid.compile(copy.deepcopy(model), strict=True)
        torch.manual_seed(3)
        out = engine(batch)
        assert runs_compiled(out) == is_native
        results.append([out.detach(), *torch.autograd.grad(out.square().sum(), [*engine.parameters()])])
        with torch.no_grad():
            results[-1].append(engine(batch))
    assert all(map(torch.equal, *results))


@pytest.mark.parametrize("name", ATTENTIONS)
def test_a_model_with_attention_is_one_segment(name):
    out = graphbraid.compile(MODELS[name](), strict=True)(sampled(data_of("untidy")))
    assert compiled_segments(out) == 1


def test_pna_is_one_segment_and_equals_its_operations(monkeypatch):
    """Several reductions are made, beside a node's own row, where the product behind them reads some rows."""
    torch.manual_seed(0)
    how = {"aggregators": ["mean", "min", "max", "std"], "scalers": ["identity", "amplification"]}
    model = pyg.PNA(CHANNELS, 8, 2, CLASSES, deg=torch.ones(16, dtype=torch.long), **how)
    batch, results = sampled(data_of("untidy")), []
    for number in (1, 0):
        if not number:
            by_operation(monkeypatch)
        engine = graphbraid.compile(copy.deepcopy(model), strict=True)
        batch.x = batch.x.detach().requires_grad_()
        out = engine(batch)
        assert compiled_segments(out) == number
        grads = torch.autograd.grad(out.square().sum(), [batch.x, *engine.parameters()])
        results.append([out.detach(), *grads])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["SAGE", "GCN", "GAT"])
def test_drawn_edges_are_read_as_they_were_drawn(name, monkeypatch):
    """Edges of each level, which take longer than a tiny step's kernels, are made for other operations."""
    batch = sampled(data_of("untidy"), num_neighbors=(3, 2, 2))
    engine = graphbraid.compile(MODELS[name](), strict=True)
    monkeypatch.setattr(Levels, "edges", None)
    out = engine(batch)
    assert compiled_segments(out)
    out.sum().backward()


@settings(max_examples=20)
@given(steps=st.lists(STEPS, min_size=1, max_size=7), seed=st.integers(0, 99))
def test_values_that_several_operations_read_have_their_bits(steps, seed):
    torch.manual_seed(seed)
    data = data_of("untidy")
    with pytest.MonkeyPatch.context() as monkeypatch:
        assert_same_bits(Wired(steps), (data.x.float(), data.edge_index), monkeypatch)


def test_frozen_parts_have_no_gradients(monkeypatch):
    torch.manual_seed(0)
    data, model = data_of("untidy"), MODELS["SAGE"]()
    model.convs[1].lin_l.weight.requires_grad_(requires_grad=False)
    model.convs[2].lin_r.requires_grad_(requires_grad=False)
    assert assert_same_bits(model, (data.x.float(), data.edge_index), monkeypatch)


@pytest.mark.parametrize("change", ["parameter", "result", "nothing"])
def test_what_backward_reads_may_not_be_written_over(change):
    data, model = data_of("untidy"), nn.Sequential(nn.Linear(CHANNELS, 8), nn.ReLU())
    engine = graphbraid.compile(pyg.Sequential("x, edge_index", [(model, "x -> x")]), strict=True)
    x = data.x.float().requires_grad_()
    out = engine(x, data.edge_index)
    assert runs_compiled(out)
    with torch.no_grad():
        {"parameter": model[0].weight, "result": out, "nothing": model[0].bias}[change].mul_(2)
    if change == "nothing":
        out.sum().backward()
        with pytest.raises(RuntimeError, match="second time"):
            out.sum().backward()
        return
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


@pytest.mark.parametrize("name", ["SAGE that widens", "GATv2 and GAT", "GIN with batch normalisation"])
@pytest.mark.parametrize("is_native", [True, False])
@pytest.mark.parametrize("change", ["data", "double"])
def test_backward_reads_what_forward_read_after_the_data_of_parameters_is_replaced(
    change, is_native, name, monkeypatch
):
    """A parameter's old memory is free then: other tensors lie in it."""
    if not is_native:
        by_operation(monkeypatch)
    torch.manual_seed(0)
    data, model = data_of("untidy"), MODELS[name]().requires_grad_()
    engine, wanted = graphbraid.compile(model, strict=True), [*model.parameters()]
    expected = torch.autograd.grad(model(data.x.float(), data.edge_index).sum(), wanted)
    out = engine(data.x.float(), data.edge_index)
    assert runs_compiled(out) == is_native
    for one in wanted:
        one.data = one.data.double() if change == "double" else torch.zeros_like(one)
    others = [torch.full_like(one, 7.0, dtype=torch.float32) for one in wanted for _ in range(20)]
    out.sum().backward()
    assert len(others) == 20 * len(wanted)
    for one, grad in zip(wanted, expected, strict=True):
        torch.testing.assert_close(one.grad.float(), grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("change", ["memory", "view", "in place"])
def test_a_call_reads_what_its_parameters_hold_then(change):
    """An operand is looked at in each call: a transposed square matrix has the same address and shape."""
    torch.manual_seed(0)
    data, model = data_of("untidy"), pyg.GraphSAGE(CHANNELS, CHANNELS, 2, CLASSES)
    engine, call = graphbraid.compile(model, strict=True), (data.x.float(), data.edge_index)
    before, weight = engine(*call), model.convs[0].lin_l.weight
    if change == "in place":
        with torch.no_grad():
            weight.mul_(2)
    else:
        weight.data = weight.data.t() if change == "view" else 2 * weight.data
    out = engine(*call)
    assert runs_compiled(out)
    assert not torch.allclose(out, before)
    torch.testing.assert_close(out, model(*call), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["SAGE that widens", "GAT"])
@pytest.mark.parametrize("how", ["shared", "resized"])
def test_parameters_whose_memory_is_moved_are_read_where_they_are(how, name):
    """Model.share_memory() and storages that are freed for a while leave the tensors as they are."""
    torch.manual_seed(0)
    data, model = data_of("untidy"), MODELS[name]().eval()
    engine, call = graphbraid.compile(model, strict=True), (data.x.float(), data.edge_index)
    before = engine(*call)
    assert runs_compiled(before)
    if how == "shared":
        model.share_memory()
    for one in model.parameters() if how == "resized" else ():
        kept, storage = one.detach().clone(), one.untyped_storage()
        size = storage.nbytes()
        storage.resize_(0)
        others = [torch.full((2 * size,), 7, dtype=torch.uint8) for _ in range(20)]
        storage.resize_(3 * size)
        one.data.copy_(kept)
        assert len(others) == 20
    with torch.no_grad():
        for one in model.parameters():
            one.mul_(0.5)
    torch.testing.assert_close(engine(*call), model(*call), rtol=1e-4, atol=1e-5)
    with pytest.raises((RuntimeError, ValueError), match=r"inplace operation|memory was moved"):
        before.sum().backward()


def step_of(model, data):
    """Outputs and gradients of a step, whose graph has ended."""
    out = graphbraid.compile(model, strict=True)(data.x.float(), data.edge_index)
    assert runs_compiled(out)
    out.square().sum().backward()
    return [out.detach(), *(p.grad for p in model.parameters())]


@pytest.mark.parametrize("name", ["SAGE", "GAT that averages"])
def test_results_and_gradients_are_tensors_like_any(name):
    """Compiled code makes their memory, which is theirs alone. Autograd keeps gradients without a copy."""
    torch.manual_seed(0)
    data, model = data_of("untidy"), MODELS[name]().eval()
    kept = step_of(model, data)
    before = [one.clone() for one in kept]
    for _ in range(3):
        model.zero_grad()
        step_of(model, data)
    assert all(map(torch.equal, kept, before))
    assert len({one.data_ptr() for one in kept}) == len(kept)
    assert not any(p.grad.untyped_storage().resizable() for p in model.parameters())
    for one in kept:
        assert one.is_contiguous()
        assert one.untyped_storage().nbytes() == 4 * one.numel()
        assert torch.equal(pickle.loads(pickle.dumps(one)), copy.deepcopy(one))
        assert torch.equal(one.share_memory_(), one.clone())


WITHOUT_TABLE = """
import torch
torch.Tensor.__dlpack_c_exchange_api__ = None
from tests.fullgraph.test_native_segment import MODELS, data_of, step_of
torch.manual_seed(0)
torch.save(step_of(MODELS["GAT"]().eval(), data_of("untidy")), {!r})
"""


def test_tensors_cross_where_pytorch_has_no_table_of_functions(tmp_path):
    """Before 2.10 it had none."""
    path = tmp_path / "found.pt"
    subprocess.run([sys.executable, "-c", WITHOUT_TABLE.format(str(path))], check=True)
    torch.manual_seed(0)
    assert all(map(torch.equal, torch.load(path), step_of(MODELS["GAT"]().eval(), data_of("untidy"))))


@pytest.mark.parametrize("layout", ["subgraph", "blocks"])
@pytest.mark.parametrize("change", ["in place", "data", "moved"])
def test_backward_reads_the_weights_of_edges_that_forward_read(change, layout):
    torch.manual_seed(0)
    summed = models.Weighted(pyg.GraphConv)
    engine, batch = graphbraid.compile(summed, strict=True), sampled(data_of("untidy"), layout=layout)
    weight, wanted = batch.edge_weight, [*engine.parameters()]
    expected, out = torch.autograd.grad(engine(batch).sum(), wanted), engine(batch)
    assert runs_compiled(out)
    if change == "in place":
        weight.mul_(2)
    elif change == "data":
        weight.data = 2 * weight
    else:
        weight.share_memory_()
    others = [torch.full_like(weight, 7) for _ in range(20)]
    if change == "data":
        for one, other in zip(torch.autograd.grad(out.sum(), wanted), expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    else:
        with pytest.raises((RuntimeError, ValueError), match=r"inplace operation|memory .* was moved"):
            out.sum().backward()
    assert len(others) == 20


@pytest.mark.parametrize("name", ["SAGE that widens", "GAT", "GATv2", "TransformerConv"])
@pytest.mark.parametrize("moved", ["x", "out", "nothing"])
def test_rows_that_backward_reads_may_not_be_moved(moved, name):
    torch.manual_seed(0)
    data = data_of("untidy")
    model = pyg.Sequential("x, edge_index", [(MODELS[name](), "x, edge_index -> x"), nn.ReLU()])
    x = data.x.float().clone()
    out = graphbraid.compile(model.eval(), strict=True)(x, data.edge_index)
    assert runs_compiled(out)
    if moved != "nothing":
        {"x": x, "out": out.detach()}[moved].share_memory_()
        with pytest.raises(ValueError, match=r"memory .* was moved"):
            out.sum().backward()
    else:
        out.sum().backward()


@pytest.mark.parametrize("name", ["SAGE", "GCN", *ATTENTIONS])
def test_a_batch_without_rows_has_gradients_of_zero(name):
    """As the model has: an optimizer passes over parameters without any."""
    model, edges = MODELS[name](), torch.empty(2, 0, dtype=torch.int64)
    x = torch.empty(0, CHANNELS, requires_grad=True)
    out = graphbraid.compile(model, strict=True)(x, edges)
    assert runs_compiled(out)
    out.square().sum().backward()
    assert x.grad.shape == x.shape
    assert not any(p.grad.any() for p in model.parameters() if p.requires_grad)


def test_threads_pass_back_through_one_graph_at_a_time():
    torch.manual_seed(0)
    batch = sampled(data_of("untidy"), num_neighbors=(3, 2))
    engine = graphbraid.compile(MODELS["SAGE that widens"](), strict=True)
    wanted, found = [*engine.parameters()], []
    for _ in range(20):
        out = engine(batch)
        assert runs_compiled(out)
        with ThreadPoolExecutor(3) as pool:
            grads = partial(torch.autograd.grad, out.sum(), wanted, retain_graph=True)
            found += [one.result() for one in [pool.submit(grads) for _ in range(3)]]
    assert all(all(map(torch.equal, found[0], other)) for other in found)


@pytest.mark.parametrize("name", [*ATTENTIONS, "GIN with batch normalisation", "SAGE"])
def test_rows_of_some_megabytes_lie_in_the_pool_and_have_the_bits_of_their_operations(name, monkeypatch):
    """Each value's memory is another's as soon as nothing reads it; threads stay awake for each pass."""
    monkeypatch.setattr(native, "look_microseconds", lambda: native.LOOK_MICROSECONDS)
    torch.manual_seed(0)
    num_nodes, edges = 50_000, torch.randint(50_000, (2, 120_000))
    x = torch.rand(num_nodes, CHANNELS)
    model = MODELS[name]()
    assert assert_same_bits(model, (x, edges), monkeypatch, twice=True)


@pytest.mark.parametrize("changed", ["weight", "edges"])
def test_edges_and_weights_whose_data_is_replaced_are_sorted_anew(changed):
    torch.manual_seed(0)
    data, model = data_of("untidy"), Weighted().eval()
    order = data.edge_index[1].argsort(stable=True)
    edges, weight = data.edge_index[:, order].contiguous(), torch.rand(data.num_edges)
    engine, x = graphbraid.compile(model, strict=True), data.x.float().requires_grad_()
    (expected,) = torch.autograd.grad(model(x, edges, weight).sum(), x)
    out = engine(x, edges, weight)
    if changed == "weight":
        weight.data = 3 * weight
    else:
        edges.data = edges.flip(0).contiguous()
    (grad,) = torch.autograd.grad(out.sum(), x)
    torch.testing.assert_close(grad, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(engine(x, edges, weight), model(x, edges, weight), rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore:.*runs? as (it is|they are) written")
def test_a_layer_on_edges_of_its_own_refuses_weights_whose_gradients_it_lacks():
    class OtherName(Weighted):
        def forward(self, x, edge_index, w):
            return super().forward(x, edge_index, w)

    data, weight = data_of("untidy"), torch.rand(data_of("untidy").num_edges)
    engine, x = graphbraid.compile(OtherName()), data.x.float()
    engine(x, data.edge_index, weight)
    with pytest.raises(graphbraid.errors.ConfigError, match="values of edges that require a gradient"):
        engine(x, data.edge_index, weight.clone().requires_grad_())
    with torch.no_grad():
        engine(x, data.edge_index, weight.clone().requires_grad_())


def test_other_layouts_and_records_of_calls_run_operation_by_operation():
    torch.manual_seed(0)
    engine, edge_index = graphbraid.compile(MODELS["SAGE"]()), torch.randint(40, (2, 90))

    def fits(x):
        return runs_compiled(engine(x, edge_index))

    x = torch.rand(40, CHANNELS)
    assert fits(x)
    assert fits(x.t().contiguous().t().contiguous())
    assert fits(torch.rand(40_000, CHANNELS))
    assert not fits(torch.rand(CHANNELS, 40).t())  # rows that are not contiguous
    with watched() as calls:
        assert not fits(x)
    assert calls
    with without_pool():
        assert fits(x)


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("SAGE", "edges"),
        ("SAGE", "narrow edges"),
        ("GATv2 and GAT", "edges"),
        ("GATv2 and GAT", "narrow edges"),
        ("GIN with batch normalisation", "statistics"),
    ],
)
def test_backward_refuses_edges_and_statistics_that_were_written_over(name, changed):
    """Narrow ids in order are read where they lie. Wide ones were copied, so that gradients stay right."""
    torch.manual_seed(0)
    data, model = data_of("untidy"), MODELS[name]().eval().requires_grad_()
    edges = data.edge_index[:, data.edge_index[1].argsort(stable=True)].contiguous()
    edges = edges.int() if changed == "narrow edges" else edges
    engine, wanted = graphbraid.compile(model, strict=True), [*model.parameters()]
    expected = torch.autograd.grad(engine(data.x.float(), edges).sum(), wanted)
    out = engine(data.x.float(), edges)
    assert runs_compiled(out)
    (model.norms[0].module.running_mean if changed == "statistics" else edges).add_(1)
    if changed == "edges":
        assert all(map(torch.equal, torch.autograd.grad(out.sum(), wanted), expected))
        return
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_gradients_may_have_any_strides():
    """A sum's is one number for all rows; a transposed product's goes by columns; complex rows negate it."""
    torch.manual_seed(0)
    engine, edge_index = graphbraid.compile(MODELS["SAGE"]().eval()), torch.randint(40, (2, 90))
    x, wanted = torch.rand(40, CHANNELS, requires_grad=True), [*engine.parameters()]
    drawn = torch.rand(2 * CLASSES, 80)
    negated = torch.complex(x[:, :CLASSES], x[:, :CLASSES]).detach().conj().imag
    assert negated.is_neg()
    for grad in (
        negated,
        torch._efficientzerotensor((40, CLASSES)),
        torch._neg_view(drawn.t()[:40, :CLASSES].contiguous()),
        torch.tensor(0.5).expand(40, CLASSES),
        drawn.t()[::2, 1::2],
        drawn.t()[:1, :CLASSES].expand(40, -1),
    ):
        found, by_row = (
            torch.autograd.grad(engine(x, edge_index), [x, *wanted], one) for one in (grad, grad.clone())
        )
        assert all(map(torch.equal, found, by_row))
    assert runs_compiled(engine(x, edge_index))


def test_a_segment_refuses_numbers_of_what_there_is_not():
    segment, one = native.kernels().Segment, torch.rand(3, 4)
    for sound, change in ((True, {}), *((False, {place: 70}) for place in (0, 1, 2, 3, 4, 5, 6, 7, 9, 10))):
        # a product of value 0, with a bias and ReLU
        fields = [2, 0, -1, -1, 1, 0, -1, 1, -1, 1, 0.0, 0.2, 1, False, False]
        for place, number in change.items():
            fields[place] = number
        arguments = [tuple(fields)], 1, 2, [1], (1.0, 1.0, 1.0), 0.01, -1
        if sound:
            made = segment(*arguments)
            assert made.begin([one], [torch.rand(5, 4), torch.rand(5)], [], []) is not None
            assert made.begin([one], [None, torch.rand(5)], [], []) is None
            assert made.begin([one], [torch.rand(5), torch.rand(5)], [], []) is None
            assert made.begin([one], [torch.rand(5, 3), torch.rand(5)], [], []) is None
            assert made.begin([one], [torch.rand(5, 4), torch.rand(4)], [], []) is None
        else:
            with pytest.raises(ValueError, match="must lie in"):
                segment(*arguments)


ATTENDED = {"x": (5, 4), "own": (3, 4), "key": (5, 4), "vector": (1, 2, 2)}


@pytest.mark.parametrize(("kind", "number"), [("GATv2", 9), ("dot products", 10)])
def test_an_attention_refuses_what_does_not_fit(kind, number):
    reads = ["x", "own", "key"][: 2 if kind == "GATv2" else 3]
    edges = torch.tensor([0, 2, 2, 3]), torch.tensor([4, 0, 1], dtype=torch.int32)
    key, vector = (-1, 0) if kind == "GATv2" else (2, -1)

    def of_edges(heads):
        """What dot products read of edges: nothing."""
        return [] if kind == "GATv2" else [([0, 2], [1], [], heads, 2 * heads, [0], False, False, None, None)]

    def begun(heads=2, **given):
        rows = {name: torch.rand(shape) for name, shape in ATTENDED.items()} | given
        fields = number, 0, 1, key, len(reads), vector, -1, -1, 0, 0, 0.0, 0.2, heads, False, False
        how = (1.0, 1.0, 1.0), 0.01, -1, of_edges(heads)
        made = native.kernels().Segment([fields], len(reads), 1, [len(reads)], *how)
        operands = [rows["vector"] if kind == "GATv2" else None]
        maps = [((*edges, False, False, 0.0, None, None, None, None), 5, 3)]
        return made.begin([rows[name] for name in reads], operands, maps, [], [(None, None)])

    assert begun() is not None
    wrong = {"x": (4, 4), "own": (2, 4), "key": (3, 4), "vector": (1, 4, 1)}
    for name in (*reads, *(["vector"] if kind == "GATv2" else [])):
        assert begun(**{name: torch.rand(wrong[name])}) is None, name
    assert begun(own=torch.rand(3, 2)) is None
    assert begun(x=torch.rand(5, 8)[:, :4]) is None
    assert begun(heads=3) is None
    for missing in (1, 2) if key >= 0 else (1,):
        fields = [number, 0, 1, key, len(reads), vector, -1, -1, 0, 0, 0.0, 0.2, 2, False, False]
        fields[1 + missing] = -1
        with pytest.raises(ValueError, match="must lie in"):
            native.kernels().Segment([tuple(fields)], len(reads), 1, [len(reads)], (1.0, 1.0, 1.0), 0.01, -1)


@pytest.mark.parametrize("has_bias", [False, True])
def test_dot_products_refuse_features_of_edges_that_do_not_fit(has_bias):
    edges = torch.tensor([0, 2, 2, 3]), torch.tensor([4, 0, 1], dtype=torch.int32)
    columns = [(0, 1), (0, 2)] + [(1, 0)] * has_bias
    of_edges = [0, 2], [1], columns, 2, 4, [0], False, False, None, None
    fields = 10, 0, 1, 2, 3, -1, -1, -1, 0, 0, 0.0, 0.2, 2, has_bias, False
    made = native.kernels().Segment([fields], 3, 2, [3], (1.0, 1.0, 1.0), 0.01, -1, [of_edges])
    rows = [torch.rand(ATTENDED[name]) for name in ("x", "own", "key")]
    maps = [((*edges, False, False, 0.0, None, None, None, None), 5, 3)]

    def begun(*, weight=(4, 2), bias=(4,), features=(3, 2)):
        given = None if features is None else torch.rand(features)
        return made.begin(rows, [torch.rand(weight), torch.rand(bias)], maps, [], [(given, None)])

    assert begun() is not None
    for wrong in ({"weight": (5, 2)}, {"weight": (4, 1)}, {"features": (2, 2)}, {"features": None}):
        assert begun(**wrong) is None, wrong
    assert begun(features=(3, 1)) is begun(features=(3, 3)) is None
    assert not has_bias or begun(bias=(5,)) is None


@pytest.mark.filterwarnings("ignore:There exist node types")
@pytest.mark.parametrize("name", [name for name in TRANSFORMED | HETERO if "HGT" not in name])
def test_levels_with_types_have_the_bits_of_their_operations(name, monkeypatch):
    graph = untidy(only_sources=name in HETERO)
    model, batch = ready((TRANSFORMED | HETERO)[name], graph).float(), own(graph)
    batch.x_dict = {one: x.float() for one, x in batch.x_dict.items()}
    results, wanted = [], [p for p in model.parameters() if p.requires_grad]
    if "GATConv" in name:
        multiply_first(monkeypatch)
    for is_native in (True, False):
        if not is_native:
            by_operation(monkeypatch)
        torch.manual_seed(3)
        out = graphbraid.compile(model, strict=True)(batch)
        assert runs_compiled(out) == is_native
        grads = torch.autograd.grad(out.square().sum(), wanted, allow_unused=True)
        results.append([out.detach(), *grads])
    for one, other in zip(*results, strict=True):
        assert (one is None) == (other is None)
        assert one is None or torch.equal(one, other)


@pytest.mark.parametrize("why", ["rows", "torch.float64", "not one dense matrix"])
def test_rows_that_do_not_fit_are_seen_after_batches_that_ran(why):
    model = MODELS["GCN"]()
    engine, batch = graphbraid.compile(model), sampled(data_of("untidy"), num_neighbors=(3, 2, 2))
    assert runs_compiled(engine(batch))
    batch.x = {"rows": batch.x[:-1], "torch.float64": batch.x.double()}.get(why, batch.x.to_sparse())
    refused = contextlib.suppress(RuntimeError, IndexError)  # PyG's own layers take the sparse one alone
    with pytest.warns(graphbraid.errors.RunsAsWrittenWarning), refused:
        engine(batch)
    assert why in str(engine.why)
