"""Models compiled for mini-batches beside the models themselves, in double precision, on the same batches."""

import copy
import gc
import math
import pickle
import re
import warnings
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.beside_pyg import Batch, Data, pyg
from tests.fullgraph.matrix.cases import CASES
from tests.fullgraph.matrix.cases_messages import MESSAGES, own
from tests.fullgraph.matrix.compare import LOWERED, in_double
from tests.fullgraph.matrix.graphs import CHANNELS, CLASSES, NODES, data_of
from tests.fullgraph.matrix.models import Stack
from tests.modules import module_of
from tests.suites import every
from torch import nn
from torch.utils.checkpoint import checkpoint

import graphbraid
from graphbraid import nn as gnn
from graphbraid.errors import ConfigError, DataError, RunsAsWrittenWarning
from graphbraid.estimates.machine import allocation_of
from graphbraid.fullgraph import Engine
from graphbraid.fullgraph.batches import edges as batch_edges
from graphbraid.fullgraph.batches import operations, segments
from graphbraid.fullgraph.batches.edges import BatchEdges, Levels, RelationEdges
from graphbraid.fullgraph.batches.fusing import BatchProgram
from graphbraid.fullgraph.batches.operations import RUN, BatchRun
from graphbraid.fullgraph.program import (
    AdjacencyMatrix,
    Aggregate,
    Break,
    Exchange,
    Hoisted,
    Learned,
    Operation,
    Program,
)
from graphbraid.fullgraph.program.graph_break import FromInput, WrittenCall
from graphbraid.fullgraph.reading.calling import only_node_type
from graphbraid.loader import (
    ClusterData,
    ClusterLoader,
    LinkNeighborLoader,
    NeighborLoader,
    ShaDowKHopSampler,
)
from graphbraid.ops import linear

CLOSE = {"rtol": 1e-8, "atol": 1e-9}
NOT_YET = {"learned rows of nodes"}
"""Parts of the matrix whose models run as they are written on batches."""
KEEPS = "cached=True"


def sampled(data, *, layout="subgraph", num_neighbors=(3, 2), as_pyg=False, **options):
    """The first batch of a loader."""
    options = {"batch_size": 5, "input_nodes": torch.tensor([7, 0, 23, 3, 11]), "seed": 3} | options
    with NeighborLoader(data, num_neighbors=list(num_neighbors), layout=layout, **options) as loader:
        batch = next(iter(loader))
    return batch.to_data() if as_pyg else batch


def batches(name, case):
    """A batch of a kind, with the data in double precision."""
    data = case.prepare(data_of("untidy"))
    if name == "whole":
        return in_double(data)
    batch = sampled(data, as_pyg=True) if data.get("edge_index") is not None else data
    return in_double(batch)


def run(model, batch, weights=None):
    """Outputs of a model on a batch, with its gradients and buffers after a backward pass."""
    out = model(batch)
    draw = torch.Generator().manual_seed(1)
    weights = torch.randn(out.shape, dtype=torch.float64, generator=draw).to(out.dtype)
    model.zero_grad()
    if out.requires_grad:
        (out * weights).sum().backward()
    grads = {
        n: torch.zeros_like(p) if p.grad is None else p.grad.clone() for n, p in model.named_parameters()
    }
    return out.detach(), grads, {n: b.clone() for n, b in model.named_buffers()}


class AsWritten(nn.Module):
    """The model called by the user: on all rows of the batch, of which the seeds' are kept."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, batch):
        engine = graphbraid.compile(self.model)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            hook = self.model.register_forward_hook(lambda *_: None)  # a hook makes it run as it is written
            out = engine(batch)
            hook.remove()
        assert engine.why is not None
        return out

    def named_parameters(self, *_, **__):
        return self.model.named_parameters()

    def named_buffers(self, *_, **__):
        return self.model.named_buffers()


def assert_same(model, batch, *, lowered=True):
    """Two calls of the engine, the second after buffers have moved, beside the model as written."""
    twin = AsWritten(copy.deepcopy(model))
    engine = graphbraid.compile(model)
    for _ in range(2):
        ours, theirs = run(engine, batch), run(twin, batch)
        assert (engine.why is None) == lowered, engine.explain()
        torch.testing.assert_close(ours, theirs, **CLOSE)


LOWERED_CASES = [case for case in CASES if case.expected == LOWERED and case.part not in NOT_YET]


# The whole graph as a batch has the rows of the matrix's own test, and the operations of sampled batches.
@pytest.mark.parametrize(
    ("case", "kind"),
    [
        *every(8, [(case, "sampled") for case in LOWERED_CASES]),
        *every(8, [(case, "whole") for case in LOWERED_CASES], some=8),
    ],
    ids=lambda value: getattr(value, "id", value),
)
@pytest.mark.filterwarnings("ignore:.*runs as it is written")
def test_the_models_of_the_matrix_equal_themselves(case, kind):
    torch.manual_seed(5)
    model = case.make().double()
    batch = batches(kind, case)
    lowered = KEEPS not in case.name and batch.get("edge_index") is not None
    engine = graphbraid.compile(model)
    engine(batch)
    if engine.why is not None and not lowered:
        return
    torch.manual_seed(5)
    assert_same(case.make().double(), batch)


OWN_CASES = [case for case in MESSAGES if case.expected == LOWERED]


@pytest.mark.parametrize("kind", ["whole", "sampled"])
@pytest.mark.parametrize("case", OWN_CASES, ids=lambda case: case.name)
def test_messages_of_steps_are_those_of_the_model_in_double_precision(monkeypatch, case, kind):
    """The kernel of steps takes single precision alone, in a compiled segment and by itself."""
    calls, aggregate = [], operations.aggregate_steps
    monkeypatch.setattr(
        operations, "aggregate_steps", lambda *of, **how: calls.append(of) or aggregate(*of, **how)
    )
    torch.manual_seed(5)
    model = case.make()
    twin = AsWritten(copy.deepcopy(model).double())
    data = case.prepare(data_of("untidy"))
    batch = data if kind == "whole" else sampled(data, as_pyg=True, return_edge_id=True)
    theirs = run(twin, in_double(batch.clone()))
    for is_compiled in (True, False):
        if not is_compiled:
            monkeypatch.setattr(operations.NativeSegment, "run", lambda *_: False)
        engine = graphbraid.compile(copy.deepcopy(model))
        ours = run(engine, batch)
        assert engine.why is None, engine.explain()
        for one, other in zip(ours[1].values(), theirs[1].values(), strict=True):
            torch.testing.assert_close(
                one.double(), other, rtol=2e-4, atol=2e-4 * max(1.0, float(other.abs().max()))
            )
        torch.testing.assert_close(ours[0].double(), theirs[0], rtol=2e-4, atol=2e-5)
    assert bool(calls) == ("in one kernel" in engine.explain()), engine.explain()


def test_layout_blocks_runs_messages_of_steps_on_each_layers_own_block():
    def gate(self, x_i, x_j):
        return torch.sigmoid(x_i + x_j) * torch.tanh(x_j)

    batch, model = sampled(data_of("untidy"), layout="blocks"), Stack(own(gate))
    out = graphbraid.compile(model, strict=True)(batch)
    twin, x = copy.deepcopy(model).double(), batch.x.double()
    for layer, block in zip((twin.first, twin.second), batch.blocks, strict=True):
        src, dst = block.indices.long(), block.destinations().long()
        rows = layer.lin(x)
        found = gate(layer, rows[dst], rows[src])
        x = layer.own(x[: block.num_dst]) + rows.new_zeros(block.num_dst, rows.shape[1]).index_add(
            0, dst, found
        )
        x = x.relu() if layer is twin.first else x
    torch.testing.assert_close(out.double(), x, rtol=1e-4, atol=1e-5)


def test_every_operation_has_a_form_on_batches_or_a_reason():
    def below(kind):
        return {kind, *(one for sub in kind.__subclasses__() for one in below(sub))}

    elsewhere = {
        Hoisted: "lowering over a whole graph makes it of values that stay from step to step",
        Exchange: "ranks exchange rows of a whole graph",
        Learned: "rows for each node of one whole graph; on batches such models run as they are written",
    }
    kinds = {kind for kind in below(Operation) if kind.__module__.startswith("graphbraid.")}
    abstract = {kind for kind in kinds if "symbol" not in vars(kind)}
    assert kinds - {Operation} - abstract == set(RUN) | set(elsewhere)
    assert not set(RUN) & set(elsewhere)


@pytest.mark.parametrize("couples", [False, True])
def test_a_break_runs_under_autograd_on_the_rows_it_needs(couples):
    batch = in_double(sampled(data_of("untidy"), as_pyg=True))
    hops = torch.tensor(batch.num_sampled_nodes).cumsum(0).tolist()
    seen, slope = [], nn.Parameter(torch.tensor(0.7, dtype=torch.float64))

    def scaled(x, by):
        seen.append(len(x))
        return x.tanh() * by

    calls = (WrittenCall(target=scaled, args=(FromInput(0), slope), kwargs={}, name="scaled"),)
    done = Break(out="a", inputs=("x",), calls=calls, width_out=CHANNELS, couples_rows=couples)
    mean = Aggregate(out="b", inputs=("a",), adjacency=AdjacencyMatrix(kind="mean"))
    program = BatchProgram(Program(ops=(done, mean), node_types=(only_node_type(CHANNELS),)))
    relation = RelationEdges.of_list(batch.edge_index, batch.num_nodes, batch.num_nodes)
    edges = BatchEdges(relations=[relation], num_nodes=[batch.num_nodes], hops=[hops])
    sizes = edges.sizes(program.num_levels, program.last_coupled)
    out = BatchRun(program, Levels(edges, sizes), {"x": batch.x}, {}, {}).outputs()
    rows = scaled(batch.x, slope)
    expected = pyg.SimpleConv("mean")(rows, batch.edge_index)[: batch.batch_size]
    torch.testing.assert_close(out, expected, **CLOSE)
    grads = [torch.autograd.grad(one.square().sum(), slope)[0] for one in (out, expected)]
    torch.testing.assert_close(*grads, **CLOSE)
    assert seen[0] == (batch.num_nodes if couples else hops[1])


# ---- trimming

MODELS = {
    "GCN": lambda layers, **o: pyg.GCN(CHANNELS, 8, layers, CLASSES, **o),
    "SAGE": lambda layers, **o: pyg.GraphSAGE(CHANNELS, 8, layers, CLASSES, **o),
    "SAGE max": lambda layers, **o: pyg.GraphSAGE(CHANNELS, 8, layers, CLASSES, aggr="max", **o),
    "GIN": lambda layers, **o: pyg.GIN(CHANNELS, 8, layers, CLASSES, **o),
    "GAT": lambda layers, **o: pyg.GAT(CHANNELS, 8, layers, CLASSES, heads=2, **o),
    "GATv2": lambda layers, **o: pyg.GAT(CHANNELS, 8, layers, CLASSES, heads=2, v2=True, **o),
}


def sizes_of(monkeypatch):
    """The rows of each level of the calls that follow."""
    seen = []
    plain = batch_edges.BatchEdges.sizes

    def sizes(self, *args):
        found = plain(self, *args)
        seen.append([count for (count,) in found])
        return found

    monkeypatch.setattr(batch_edges.BatchEdges, "sizes", sizes)
    return seen


@pytest.mark.parametrize("as_pyg", [False, True])
@pytest.mark.parametrize("layers", [1, 2, 3, 4])  # fewer than hops, as many, more
@pytest.mark.parametrize("name", MODELS)
def test_trimmed_rows_are_those_of_the_whole_batch(name, layers, as_pyg, monkeypatch):
    batch = sampled(data_of("untidy"), num_neighbors=(2, 2, 1), as_pyg=as_pyg)
    batch.x, batch.edge_weight = batch.x.double(), batch.edge_weight.double()
    hops = torch.tensor(batch.num_sampled_nodes).cumsum(0).tolist()
    seen = sizes_of(monkeypatch)
    model = MODELS[name](layers).double()
    twin = copy.deepcopy(model)
    ours, theirs = run(graphbraid.compile(model, strict=True), batch), run(AsWritten(twin), batch)
    torch.testing.assert_close(ours, theirs, **CLOSE)
    torch.testing.assert_close(run(graphbraid.compile(model), batch), ours, **CLOSE)  # edge_index was read
    assert seen[0] == [hops[min(3, left)] for left in reversed(range(layers + 1))]


@pytest.mark.parametrize("norm", ["BatchNorm", "LayerNorm"])
@pytest.mark.parametrize("training", [True, False])
def test_what_couples_rows_reads_all_of_them(norm, training, monkeypatch):
    model = pyg.GraphSAGE(CHANNELS, 8, 3, CLASSES, norm=norm).double().train(training)
    batch = in_double(sampled(data_of("untidy"), num_neighbors=(2, 2, 1), as_pyg=True))
    seen = sizes_of(monkeypatch)
    engine = graphbraid.compile(model, strict=True)
    engine(batch)
    assert_same(model, batch)
    hops = torch.tensor(batch.num_sampled_nodes).cumsum(0).tolist()
    coupled = training or norm == "LayerNorm"  # PyG's is of the whole graph
    assert seen[0] == ([batch.num_nodes] * 3 + hops[:1] if coupled else hops[::-1])


def test_counts_that_do_not_fit_the_edges_are_not_used(monkeypatch):
    batch = in_double(sampled(data_of("untidy"), as_pyg=True))
    last = batch.num_nodes - 1
    batch.edge_index = torch.cat([batch.edge_index, torch.tensor([[last], [0]])], 1)  # over two hops
    del batch.edge_weight
    seen = sizes_of(monkeypatch)
    assert_same(MODELS["SAGE"](2).double(), batch)
    assert seen[0] == [batch.num_nodes] * 3


@pytest.mark.filterwarnings("ignore:.*runs? as (it is|they are) written")
@pytest.mark.parametrize("strict", [False, True])
def test_a_layer_without_a_lowered_form_is_named_where_layout_blocks_has_no_list_for_it(strict):
    conv = pyg.GraphConv(CHANNELS, CLASSES, aggr="max")
    model = pyg.Sequential("x, edge_index, edge_weight", [(conv, "x, edge_index, edge_weight -> x")])
    engine, batch = graphbraid.compile(model, strict=strict), sampled(data_of("untidy"), layout="blocks")
    with pytest.raises(ConfigError, match=r"GraphConv.* with aggr='max' on weighted edges"):
        engine(batch)


def test_layout_blocks_runs_each_layer_on_its_own_block():
    batch = sampled(data_of("untidy"), layout="blocks")
    model = pyg.GraphSAGE(CHANNELS, 8, 2, CLASSES)
    out = graphbraid.compile(model, strict=True)(batch)
    x = batch.x
    for conv, block in zip(model.convs, batch.blocks, strict=True):
        edges = torch.stack([block.indices.long(), block.destinations().long()])
        x = conv((x, x[: block.num_dst]), edges)
        x = x.relu() if conv is model.convs[0] else x
    torch.testing.assert_close(out, x)
    weights = sampled(data_of("untidy"), layout="blocks", return_edge_id=True)
    gcn = pyg.GCN(CHANNELS, 8, 2, CLASSES)
    out = graphbraid.compile(gcn, strict=True)(weights)
    x, ends = weights.x, [0, *torch.tensor(weights.num_sampled_edges).cumsum(0).tolist()]
    for hop, (conv, block) in enumerate(zip(gcn.convs, weights.blocks, strict=True)):
        edges = torch.stack([block.indices.long(), block.destinations().long()])
        own = weights.edge_weight[ends[1 - hop] : ends[2 - hop]]
        x = conv(x, edges, own)[: block.num_dst]
        x = x.relu() if hop == 0 else x
    torch.testing.assert_close(out, x)
    with pytest.raises(ConfigError, match="aggregates 3 times"):
        graphbraid.compile(pyg.GraphSAGE(CHANNELS, 8, 3, CLASSES))(batch)


# ---- kinds of batches and calls


@pytest.mark.filterwarnings("ignore:.*runs as it is written")
def test_batches_of_other_loaders_give_all_rows():
    data = data_of("undirected")
    model = MODELS["GCN"](2).double()
    roots = ShaDowKHopSampler(data, depth=2, num_neighbors=3, node_idx=torch.arange(4), batch_size=4)
    links = LinkNeighborLoader(data, num_neighbors=[2], edge_label_index=data.edge_index[:, :4], batch_size=4)
    clusters = ClusterLoader(ClusterData(data, num_parts=4), batch_size=2)
    of_graph = ClusterLoader(ClusterData(graphbraid.Graph.from_pyg(data), num_parts=4), batch_size=2)
    batches = [next(iter(loader)) for loader in (clusters, of_graph, roots, links)]
    for batch in (*batches, *(one.to_data() for one in batches if one is not batches[2])):
        batch.x, batch.edge_weight = batch.x.double(), batch.edge_weight.double()
        out = graphbraid.compile(model, strict=batch is not batches[2])(
            batch
        )  # PyG's models take batch.batch
        torch.testing.assert_close(out, model(batch.x, batch.edge_index, batch.edge_weight), **CLOSE)
    merged = Batch.from_data_list(
        [Data(x=torch.randn(n, CHANNELS), edge_index=torch.zeros(2, n - 1).long()) for n in (1, 3)]
    )
    merged = in_double(merged)
    out = graphbraid.compile(model, strict=True)(merged.x, merged.edge_index)
    torch.testing.assert_close(out, model(merged.x, merged.edge_index))


@pytest.mark.filterwarnings("ignore:.*runs as it is written")
@pytest.mark.parametrize("change", ["fewer rows", "more rows", "more seeds"])
@pytest.mark.parametrize("as_pyg", [False, True])
def test_rows_and_seeds_that_the_user_changes(change, as_pyg):
    data = data_of("untidy")
    batch = sampled(data if as_pyg else graphbraid.Graph.from_pyg(data))
    model, n = MODELS["SAGE"](2), len(batch.x)
    engine = graphbraid.compile(model)
    if change == "fewer rows":
        batch.x = batch.x[: n // 2]
        with pytest.raises((RuntimeError, IndexError, DataError), match=r"bounds|node ids in|larger than"):
            engine(batch)
        return
    if change == "more rows":
        batch.x = torch.cat((batch.x, batch.x[:2]))
    else:
        batch.batch_size = n
    out = engine(batch)
    torch.testing.assert_close(out, model(batch.x, batch.edge_index)[: batch.batch_size])


@pytest.mark.parametrize("name", MODELS)
def test_the_output_may_be_written_over_where_pytorch_allows_it(name):
    batch = sampled(data_of("untidy"), as_pyg=True)
    del batch.edge_weight
    torch.manual_seed(0)
    model = MODELS[name](2)
    models = [model]
    drops = nn.Sequential(nn.ReLU(), nn.Dropout(1e-9))
    for last in (nn.Identity(), nn.Linear(CLASSES, CLASSES), nn.LeakyReLU(), nn.ELU(), drops):
        models.append(pyg.Sequential("x, edge_index", [(copy.deepcopy(model), "x, edge_index -> x"), last]))
    models += [pyg.GATConv(CHANNELS, CLASSES, bias=False), pyg.GATv2Conv(CHANNELS, CLASSES, 2, bias=False)]
    models += [pyg.GATConv(CHANNELS, CLASSES, 2, concat=False, bias=False)]
    models += [pyg.TransformerConv(CHANNELS, CLASSES, root_weight=False)]
    for each in models:
        engine = graphbraid.compile(each, strict=True)
        found = []
        for out in (engine(batch), each(batch.x, batch.edge_index)[: batch.batch_size]):
            each.zero_grad()
            out.mul_(2).add_(out[:1].detach().clone())
            out[0] = 0
            out.square().sum().backward()
            found.append([out, *(p.grad.clone() for p in each.parameters() if p.grad is not None)])
        torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_calls_with_tensors_give_every_row(name):
    model, data = MODELS[name](2).double(), in_double(data_of("untidy"))
    engine = graphbraid.compile(model, strict=True)
    out = engine(data.x, edge_index=data.edge_index)
    torch.testing.assert_close(out, model(data.x, data.edge_index), **CLOSE)
    x = data.x.clone().requires_grad_()
    engine(x, data.edge_index).sum().backward()
    ours, x.grad = x.grad, None
    model(x, data.edge_index).sum().backward()
    torch.testing.assert_close(ours, x.grad, **CLOSE)


def test_a_forward_that_takes_adj_t_gets_the_edge_list():
    model = module_of(lambda self, x, adj_t: self.conv(x, adj_t), conv=pyg.SAGEConv(CHANNELS, CLASSES))
    batch, model = in_double(sampled(data_of("untidy"), as_pyg=True)), model.double()
    engine, expected = graphbraid.compile(model, strict=True), model(batch.x, batch.edge_index)
    torch.testing.assert_close(engine(batch.x, batch.edge_index), expected, **CLOSE)
    torch.testing.assert_close(engine(batch.x, adj_t=batch.edge_index), expected, **CLOSE)
    with pytest.raises(ConfigError, match="takes 'adj_t', and the graph has no such thing"):
        engine(batch)  # a matrix would have the weights
    del batch.edge_weight
    torch.testing.assert_close(engine(batch), expected[: batch.batch_size], **CLOSE)


def test_weights_and_features_of_edges_go_by_the_names_of_the_parameters():
    data = in_double(data_of("untidy"))
    gcn = pyg.GCNConv(CHANNELS, CLASSES).double()
    engine = graphbraid.compile(gcn, strict=True)
    for weight in (data.edge_weight, None):
        out = engine(data.x, data.edge_index, edge_weight=weight)
        torch.testing.assert_close(out, gcn(data.x, data.edge_index, weight), **CLOSE)
    gine = pyg.GINEConv(nn.Linear(CHANNELS, CLASSES), edge_dim=3).double()
    attr = torch.randn(data.num_edges, 3).double()
    out = graphbraid.compile(gine, strict=True)(data.x, data.edge_index, attr)
    torch.testing.assert_close(out, gine(data.x, data.edge_index, attr), **CLOSE)
    weight = data.edge_weight.clone().requires_grad_()
    with pytest.warns(UserWarning, match="requires a gradient"):
        graphbraid.compile(gcn)(data.x, data.edge_index, weight).sum().backward()
    assert weight.grad is not None


@pytest.mark.filterwarnings("ignore:.*runs as it is written")
def test_weights_and_features_that_do_not_fit_the_edges_fail_as_written():
    data, fewer = data_of("untidy"), slice(0, 20)
    gcn, gine = pyg.GCNConv(CHANNELS, CLASSES), pyg.GINEConv(nn.Linear(CHANNELS, CLASSES), edge_dim=3)
    attr = torch.randn(data.num_edges, 3)
    for model, values in ((gcn, data.edge_weight), (gine, attr)):
        engine = graphbraid.compile(model)
        for edges, rows in ((data.edge_index[:, fewer], values), (data.edge_index, values[fewer])):
            with pytest.raises((IndexError, RuntimeError), match=r"shape|size"):
                engine(data.x, edges, rows)
        assert "edges" in str(engine.why)
    weight = data.edge_weight.double()  # PyTorch's result is float64
    out = graphbraid.compile(gcn)(data.x, data.edge_index, weight)
    torch.testing.assert_close(out, gcn(data.x, data.edge_index, weight))


@pytest.mark.parametrize("num_nodes", [0, 1, 4])
@pytest.mark.parametrize("name", MODELS)
def test_no_edges_and_no_nodes(name, num_nodes):
    model = MODELS[name](2).double()
    x = torch.randn(num_nodes, CHANNELS, dtype=torch.float64)
    edges = torch.zeros(2, 0, dtype=torch.long)
    out = graphbraid.compile(model, strict=True)(x, edges)
    torch.testing.assert_close(out, model(x, edges) if num_nodes else out.new_zeros(0, CLASSES), **CLOSE)
    out.sum().backward()


def test_attention_that_sums_before_it_maps_takes_no_nodes():
    model = pyg.GATConv(CHANNELS, 4 * CHANNELS, heads=2).double()
    x, edges = torch.zeros(0, CHANNELS, dtype=torch.float64), torch.zeros(2, 0, dtype=torch.long)
    out = graphbraid.compile(model, strict=True)(x, edges)
    assert out.shape == (0, 8 * CHANNELS)
    out.sum().backward()


class Passing(nn.Module):
    """A wrapper, as DistributedDataParallel is."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, *args, **named):
        return self.module(*args, **named)


@pytest.mark.filterwarnings("ignore::graphbraid.errors.RunsAsWrittenWarning")  # a replaced forward
@pytest.mark.parametrize("as_pyg", [True, False])
@pytest.mark.parametrize("wraps", [True, False])
def test_a_forward_whose_arguments_changed_is_called_by_the_new_ones(wraps, as_pyg):
    data, model = in_double(data_of("untidy")), Stack(pyg.GCNConv).double()
    batch, outer = sampled(data, as_pyg=as_pyg), Passing(model)
    engine = graphbraid.compile(outer if wraps else model)
    expected = engine(batch)
    if wraps:
        outer.module = module_of(lambda self, edge_index, x: self.inner(x, edge_index), inner=model)
    else:
        model.forward = lambda edge_index, x: type(model).forward(model, x, edge_index)
    torch.testing.assert_close(engine(batch), expected, **CLOSE)


OWN = {
    "GCN": lambda **o: gnn.GCN(CHANNELS, 8, 5, **o),
    "SAGE": lambda **o: gnn.GraphSAGE(CHANNELS, 8, 5, norm="batch", **o),
    "SAGE max": lambda **o: gnn.GraphSAGE(CHANNELS, 8, 5, aggr="max", act="gelu", **o),
    "GIN": lambda **o: gnn.GIN(CHANNELS, 8, 5, 3, **o),
    "GAT": lambda **o: gnn.GAT(CHANNELS, 8, 5, heads=2, **o),
    "GATv2": lambda **o: gnn.GATv2(CHANNELS, 8, 5, **o),
    "MLP": lambda **o: gnn.MLP(CHANNELS, 8, 5, **o),
}


class Around(nn.Module):
    """A user's model around one of graphbraid's."""

    def __init__(self, make):
        super().__init__()
        self.inner, self.head, self.skip = make(dropout=0.0), nn.Linear(5, CLASSES), nn.Linear(CHANNELS, 5)
        self.conv = pyg.SAGEConv(5, 5)

    def forward(self, x, edge_index, edge_weight=None):
        if isinstance(self.inner, gnn.MLP):
            h = self.conv(self.inner(x), edge_index)
        elif edge_weight is None:
            h = self.inner(x, edge_index)
        else:
            h = self.inner(x, edge_index, edge_weight)
        return self.head((h + self.skip(x)).relu())


@pytest.mark.parametrize("name", OWN)
def test_a_model_of_graphbraids_inside_a_users_is_read(name):
    torch.manual_seed(0)
    model, batch = Around(OWN[name]).double(), in_double(sampled(data_of("untidy"), as_pyg=True))
    if name != "GCN":
        del batch.edge_weight
    graphbraid.compile(model, strict=True)(batch)
    assert_same(model, batch)
    assert_same(model.eval(), batch)
    weighted = in_double(sampled(data_of("untidy"), as_pyg=True))
    if name in ("SAGE", "GAT"):
        with (
            pytest.raises(ConfigError, match="takes no edge weights"),
            pytest.warns(RunsAsWrittenWarning, match="edges without weights"),
        ):
            graphbraid.compile(model)(weighted.x, weighted.edge_index, weighted.edge_weight)


def test_seeds_without_edges():
    batch = sampled(data_of("untidy"), input_nodes=torch.tensor([NODES - 1, NODES - 2]))
    assert batch.num_edges == 0
    for make in MODELS.values():
        model = make(2)
        out = graphbraid.compile(model, strict=True)(batch)
        torch.testing.assert_close(out, model(batch.x, batch.edge_index)[:2])


@pytest.mark.parametrize("as_pyg", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_an_edge_list_that_was_read_gives_the_same_bits(name, as_pyg):
    """Its edges once stood by destination and source, and sums added in another order."""
    generator = torch.Generator().manual_seed(0)
    edges = torch.randint(0, 400, (2, 6000), generator=generator)
    data = Data(x=torch.randn(400, CHANNELS, generator=generator), edge_index=edges)
    engine = graphbraid.compile(MODELS[name](2), strict=True)
    unread, read = (sampled(data, num_neighbors=(12, 9), as_pyg=as_pyg) for _ in range(2))
    assert (read.edge_index[0].diff()[read.edge_index[1].diff() == 0] < 0).any()
    assert torch.equal(engine(unread), engine(read))


def test_an_edge_list_that_is_written_to_is_sorted_again():
    data = data_of("untidy")
    model = MODELS["SAGE"](1)
    engine = graphbraid.compile(model, strict=True)
    engine(data.x, data.edge_index)
    data.edge_index[0] = data.edge_index[0].flip(0)
    torch.testing.assert_close(engine(data.x, data.edge_index), model(data.x, data.edge_index))


# ---- a module like the model


class Uncommon(nn.Module):
    """A model without a lowered form, with submodules under names that engines use."""

    def __init__(self):
        super().__init__()
        self.runner, self.why, self.model = pyg.GCNConv(CHANNELS, CLASSES), nn.Dropout(0.5), nn.Identity()

    def forward(self, x, edge_index):
        out = self.runner(x, edge_index)
        return self.why(self.model(out if float(out.detach().sum()) < math.inf else x))


@pytest.mark.parametrize("kind", ["batches", "whole graph", "as written"])
def test_an_engine_has_the_models_parameters_and_state(kind):
    data, model = data_of("untidy"), MODELS["GIN"](2, norm="BatchNorm")
    engine = graphbraid.compile(model)
    if kind == "whole graph":
        engine = graphbraid.compile(model, data, strict=True)
    elif kind == "as written":
        model = Uncommon()
        with pytest.warns(RunsAsWrittenWarning):
            engine = graphbraid.compile(model, data)
    assert engine.model is model
    assert list(engine.state_dict()) == list(model.state_dict())
    assert all(a is b for a, b in zip(engine.parameters(), model.parameters(), strict=True))
    assert nn.Sequential(engine).load_state_dict({f"0.{k}": v for k, v in model.state_dict().items()})
    assert not engine.eval().training
    assert not any(module.training for module in model.modules())
    assert engine.train().training
    assert all(module.training for module in model.modules())
    assert model.eval().training is engine.training is False
    if kind != "batches":
        wanted = model.eval()(data.x, data.edge_index)[data.train_mask]
        torch.testing.assert_close(engine.eval()(), wanted)
        torch.testing.assert_close(engine.predict()[data.train_mask], wanted)
        assert "_tracker" not in vars(model), "the engine's own attributes stay its own"
    again = graphbraid.compile(engine, data)  # an engine stands for its model
    trainer = graphbraid.Trainer(engine, graphbraid.Graph.from_pyg(data), epochs=1)
    assert again.model is graphbraid.compile(engine).model is trainer.model is model
    torch.testing.assert_close(again.eval()(), model(data.x, data.edge_index)[data.train_mask])
    engine.double()
    assert {p.dtype for p in model.parameters()} == {torch.float64}


class Holds(nn.Module):
    """A model with a buffer that is not saved, and a state beside its tensors."""

    def __init__(self):
        super().__init__()
        self.conv = pyg.GCNConv(CHANNELS, CLASSES)
        self.register_buffer("scratch", torch.ones(1), persistent=False)
        self.extra = 0

    def forward(self, x, edge_index):
        return self.conv(x, edge_index)

    def get_extra_state(self):
        return self.extra

    def set_extra_state(self, state):
        self.extra = state


def test_states_pass_between_engine_and_model():
    model = Holds()
    engine = graphbraid.compile(model)
    assert list(engine.state_dict()) == list(model.state_dict())
    for one, other in (
        (engine, Holds()),
        (Holds(), engine),
        (nn.ModuleList([engine]), nn.ModuleList([Holds()])),
    ):
        model.extra += 1
        state = one.state_dict()
        other.load_state_dict(state)
        assert str(other.state_dict()) == str(state)


class Times(Holds):
    """A model whose result is multiplied by two attributes, one of them private."""

    _private = 1

    def forward(self, x, edge_index):
        return self.extra * self._private * super().forward(x, edge_index)

    def doubled(self):
        return 2 * self.extra


@pytest.mark.parametrize("whole", [False, True])
def test_attributes_that_an_engine_lacks_are_its_models(whole):
    data, model = data_of("untidy"), Times()
    engine = graphbraid.compile(model, data) if whole else graphbraid.compile(model)
    for factor in (2, 3):
        engine.extra = engine._private = factor
        assert engine.extra == model.extra == model._private == factor
        if factor == 3:
            engine.conv = pyg.GCNConv(CHANNELS, CLASSES)
            assert engine.conv is model.conv
        wanted = model(data.x, data.edge_index)
        found = engine() if whole else engine(data.x, data.edge_index)
        torch.testing.assert_close(found, wanted[data.train_mask] if whole else wanted)
    assert engine.doubled() == 6
    with pytest.raises(AttributeError, match="'Times' object has no attribute 'unknown'"):
        engine.unknown  # noqa: B018
    del engine.conv, engine.extra, engine._private
    assert not {"extra", "_private"} & vars(model).keys()
    assert model._private == engine._private == 1
    assert not list(model.parameters())
    for change in (lambda: setattr(engine, "model", Times()), lambda: delattr(engine, "model")):
        with pytest.raises(ConfigError, match="keeps its model"):
            change()


def test_threads_may_share_an_engine_from_its_first_call():
    data, model = data_of("untidy"), MODELS["SAGE"](3)

    def step(run):
        out = run(data.x, data.edge_index)
        return [out, *torch.autograd.grad(out.square().sum(), [*model.parameters()])]

    expected = step(model)
    for _ in range(4):
        engine = graphbraid.compile(model, strict=True)
        with ThreadPoolExecutor(8) as pool:
            for found in pool.map(step, [engine] * 16):
                torch.testing.assert_close(found, expected)


def test_copies_and_pickles_hold_a_copy_of_the_model_and_no_programs():
    batch, model = sampled(data_of("untidy")), MODELS["GCN"](2)
    engine = graphbraid.compile(model, strict=True)
    out = engine(batch)
    for made in (copy.deepcopy(engine), pickle.loads(pickle.dumps(engine))):
        assert made.model is not model
        assert "Nothing has run" in made.explain()
        torch.testing.assert_close(made(batch), out)


def test_a_submodule_may_have_any_name():
    parts = {"model": pyg.GCNConv(CHANNELS, CLASSES), "why": nn.Identity(), "training_": 1}
    model = module_of(lambda self, x, edge_index: self.model(x, edge_index), **parts)
    batch = sampled(data_of("untidy"))
    out = graphbraid.compile(model, strict=True)(batch)
    torch.testing.assert_close(out, model(batch.x, batch.edge_index)[: batch.batch_size])


# ---- changes, modes, and what runs as it is written


def test_changes_of_the_model_are_followed():
    batch, model = sampled(data_of("untidy")), MODELS["SAGE"](2, dropout=0.5)
    engine = graphbraid.compile(model.eval(), strict=True)
    expected = model(batch.x, batch.edge_index)[: batch.batch_size]
    torch.testing.assert_close(engine(batch), expected)
    torch.manual_seed(0)
    first = engine.train()(batch)
    torch.manual_seed(0)
    torch.testing.assert_close(engine(batch), first, rtol=0, atol=0)
    assert not torch.equal(engine(batch), first)  # another mask
    model.convs[1] = pyg.SAGEConv(8, CLASSES, aggr="max")
    expected = model.eval()(batch.x, batch.edge_index)[: batch.batch_size]
    torch.testing.assert_close(engine(batch), expected)


def test_hooks_are_run():
    batch, model, seen = sampled(data_of("untidy")), MODELS["SAGE"](2), []
    engine = graphbraid.compile(model)
    engine(batch)
    hook = model.convs[0].register_forward_hook(lambda *_: seen.append(1))
    with pytest.warns(UserWarning, match="runs as it is written.*hook"):
        engine(batch)
    engine(batch)  # warns once
    hook.remove()
    engine(batch)
    assert seen == [1, 1]
    assert engine.why is None


class Written(nn.Module):
    """A model without a lowered form."""

    def __init__(self):
        super().__init__()
        self.conv = pyg.GCNConv(CHANNELS, CLASSES)

    def forward(self, x, edge_index):
        return torch.linalg.qr(self.conv(x, edge_index))[0]


def test_strict_refuses_what_would_run_as_written():
    batch = sampled(data_of("untidy"))
    with pytest.raises(ConfigError, match=r"strict=True.*test_batches.py:\d+.*qr"):
        graphbraid.compile(Written(), strict=True)(batch)
    with pytest.raises(ConfigError, match="strict=True"):
        graphbraid.compile(Written(), data_of("untidy"), strict=True)
    with pytest.warns(UserWarning, match=r"test_batches.py:\d+.*qr") as found:
        out = graphbraid.compile(Written())(batch)
    assert found[0].filename == __file__
    assert out.shape == (batch.batch_size, CLASSES)


def test_options_about_a_graph_need_one():
    with pytest.raises(ConfigError, match="nodes is about a whole graph"):
        graphbraid.compile(Written(), nodes="val")


@pytest.mark.filterwarnings("ignore:.*runs as it is written")
def test_other_dtypes_run_as_written():
    batch = sampled(data_of("untidy"))
    engine = graphbraid.compile(MODELS["SAGE"](2))
    with pytest.raises(RuntimeError, match="dtype"):
        engine(batch.x.double(), batch.edge_index)
    batch.x = batch.x.to("meta")
    with pytest.raises((RuntimeError, NotImplementedError)):
        engine(batch)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_evaluation_without_gradients(mode):
    batch, model = sampled(data_of("untidy")), MODELS["GAT"](2).eval()
    engine = graphbraid.compile(model, strict=True)
    with mode():
        out = engine(batch)
        expected = model(batch.x, batch.edge_index)[: batch.batch_size]
    torch.testing.assert_close(out, expected)
    assert not out.requires_grad
    engine(batch).sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def by_transform(read):
    torch.func.grad(lambda one: (one * read()).sum())(torch.ones(()))


def in_inference_mode(read):
    with torch.inference_mode():
        read()


@pytest.mark.parametrize("reads", [by_transform, in_inference_mode])
def test_a_batch_may_first_be_read_where_tensors_are_of_another_kind(reads):
    batch, model = sampled(data_of("untidy")), MODELS["GAT"](2)
    engine = graphbraid.compile(model, strict=True)
    reads(lambda: model(batch.x, batch.edge_index).sum() + batch.y.sum())
    outs = engine(batch), model(batch.x, batch.edge_index)[: batch.batch_size]
    found, expected = (torch.autograd.grad(out.square().sum(), [*model.parameters()]) for out in outs)
    torch.testing.assert_close(found, expected)


def test_features_of_inference_mode_train_where_pyg_keeps_none_of_them():
    with torch.inference_mode():
        x = torch.randn(6, 5)
    edge_index = torch.randint(6, (2, 20))
    model = pyg.Sequential(
        "x, edge_index",
        [(pyg.SAGEConv(5, 1, root_weight=False, bias=False), "x, edge_index -> x"), torch.nn.Linear(1, 3)],
    )
    outs = [one(x, edge_index) for one in (model, graphbraid.compile(model, strict=True))]
    expected, found = (torch.autograd.grad(out.square().sum(), [*model.parameters()]) for out in outs)
    torch.testing.assert_close(outs[1], outs[0])
    torch.testing.assert_close(found, expected)


def test_second_derivatives_are_refused():
    batch, model = sampled(data_of("untidy")), MODELS["SAGE"](2)
    out = graphbraid.compile(model, strict=True)(batch)
    with pytest.raises(ConfigError, match="second derivatives"):
        torch.autograd.grad(out.sum(), list(model.parameters()), create_graph=True)


def test_several_gradients_at_once_are_refused():
    for name in ("SAGE", "GAT"):
        batch, model = sampled(data_of("untidy")), MODELS[name](2)
        out = graphbraid.compile(model, strict=True)(batch)
        with pytest.raises(ConfigError, match="one gradient at a time"):
            torch.autograd.grad(out, [*model.parameters()], torch.stack([out] * 2), is_grads_batched=True)


class Branches(nn.Module):
    """Values that several operations read, in and between what runs as one autograd function."""

    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList(pyg.SAGEConv(CHANNELS if i == 0 else 8, 8) for i in range(3))
        self.norm, self.last = nn.LayerNorm(8), pyg.GCNConv(8, CLASSES)

    def forward(self, x, edge_index):
        x = h = self.convs[0](x, edge_index).relu()
        for conv in self.convs[1:]:
            h = h + self.norm(conv(h, edge_index)).relu()
        return self.last(h + x, edge_index)


def engine_and_model():
    torch.manual_seed(0)
    model = Branches().double()
    return graphbraid.compile(copy.deepcopy(model), strict=True), model


class SharedGradients(nn.Module):
    """Sums whose sides take one gradient, and activations that write theirs over it where they may."""

    def __init__(self, layers):
        super().__init__()
        self.convs = nn.ModuleList(pyg.SAGEConv(8 if i else CHANNELS, 8) for i in range(layers))
        self.sides = nn.ModuleList(nn.Linear(8, 8) for _ in range(2 * layers))
        self.last = nn.Linear(8, CLASSES)

    def forward(self, x, edge_index):
        for number, conv in enumerate(self.convs):
            x = conv(x, edge_index)
            one, other = (self.sides[2 * number + side](x).relu() for side in range(2))
            x = one + other + x.relu()
        return self.last(F.elu(x) + x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_that_several_operations_take_are_not_written_over(dtype):
    torch.manual_seed(0)
    model, batch = SharedGradients(2).double(), in_double(sampled(data_of("untidy")))
    engine = graphbraid.compile(copy.deepcopy(model).to(dtype), strict=True)
    theirs = run(AsWritten(model), batch)
    batch.x = batch.x.to(dtype)
    for _ in range(2):
        out, grads, _ = run(engine, batch)
        torch.testing.assert_close(out.double(), theirs[0], rtol=1e-4, atol=1e-5)
        for name, grad in grads.items():
            torch.testing.assert_close(grad.double(), theirs[1][name], rtol=1e-4, atol=1e-4)


def test_the_gradient_that_a_caller_gives_is_not_written_over():
    batch = sampled(data_of("untidy"))
    out = graphbraid.compile(MODELS["SAGE"](2, act="relu"), strict=True)(batch)
    grad = torch.ones_like(out)
    out.backward(grad)
    assert bool((grad == 1).all())


def test_a_graph_that_is_retained_gives_its_gradients_again_and_one_that_is_freed_none():
    engine, model = engine_and_model()
    data = in_double(data_of("untidy"))
    out, wanted = engine(data.x, data.edge_index), model(data.x, data.edge_index)
    for _ in range(2):
        out.sum().backward(retain_graph=True)
        wanted.sum().backward(retain_graph=True)
    out.sum().backward()
    wanted.sum().backward()
    for one, theirs in zip(engine.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(one.grad, theirs.grad, **CLOSE)
    with pytest.raises(RuntimeError, match="second time"):
        out.sum().backward()


@pytest.mark.parametrize("change", ["parameter", "features"])
def test_what_backward_reads_may_not_be_written_over(change):
    engine, _ = engine_and_model()
    data = in_double(data_of("untidy"))
    out = engine(data.x, data.edge_index)
    with torch.no_grad():
        (engine.convs[1].lin_l.weight if change == "parameter" else data.x).mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


@pytest.mark.parametrize("edge_dim", [1, 6])
@pytest.mark.parametrize("change", ["features of edges", "their map"])
@pytest.mark.parametrize("kind", [pyg.GATv2Conv, pyg.GATConv, pyg.TransformerConv])
def test_what_attention_reads_of_edges_gives_its_own_gradients_or_none(kind, change, edge_dim):
    options = {} if kind is pyg.TransformerConv else {"add_self_loops": False}
    model = module_of(
        lambda self, x, edge_index, edge_attr: self.conv(x, edge_index, edge_attr),
        conv=kind(CHANNELS, CLASSES, edge_dim=edge_dim, **options),
    )
    data = data_of("directed")
    data.edge_attr = torch.randn(data.num_edges, edge_dim)
    batch, engine = sampled(data, num_neighbors=[3]), graphbraid.compile(model, strict=True)

    def gradients(change):
        out = engine(batch)
        with torch.no_grad():
            change.mul_(3)
        try:
            found = torch.autograd.grad(out.square().sum(), [*engine.parameters()])
        except RuntimeError as error:
            assert "modified by an inplace operation" in str(error)
            found = wanted
        with torch.no_grad():
            change.div_(3)
        return found

    wanted = None
    wanted = gradients(torch.ones(1))
    changed = batch.edge_attr if change == "features of edges" else engine.conv.lin_edge.weight
    torch.testing.assert_close(gradients(changed), wanted)


@pytest.mark.parametrize("frozen", ["nothing", "matrices"])
@pytest.mark.parametrize("layer", [pyg.GCNConv, pyg.SAGEConv, pyg.TransformerConv])
def test_what_backward_does_not_read_may_be_written_over(frozen, layer):
    torch.manual_seed(0)
    data, found = in_double(data_of("untidy")), []
    for width in (3, 20):  # rows are summed before the product, and after it
        model = layer(CHANNELS, width).double()
        for run in (graphbraid.compile(model, strict=True), model):
            matrices = [p for p in model.parameters() if p.ndim == 2]
            x = data.x.clone()
            if frozen == "matrices":
                for one in matrices:
                    one.requires_grad_(requires_grad=False)
                x = x.requires_grad_() * 1
                x.retain_grad()
            out = run(x, data.edge_index)
            with torch.no_grad():
                for one in [x] if frozen == "matrices" else matrices:
                    one.mul_(2)
            model.zero_grad()
            out.sum().backward()
            found.append([p.grad for p in (*model.parameters(), x) if p.requires_grad])
            with torch.no_grad():
                for one in [] if frozen == "matrices" else matrices:
                    one.div_(2)
        torch.testing.assert_close(*found[-2:], **CLOSE)


class Checkpointed(nn.Module):
    """A matrix made of parameters, attention, an activation that PyTorch runs, and a part of rows."""

    def __init__(self):
        super().__init__()
        self.first, self.second = pyg.GATConv(CHANNELS, 8), pyg.SAGEConv(8, CLASSES)
        self.between = nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))
        self.rows = nn.Parameter(torch.randn(2, 8))

    def forward(self, x, edge_index):
        x = nn.functional.mish(self.first(x, edge_index))
        return self.second(self.between(x) * self.rows[1], edge_index)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_a_checkpoint_around_an_engine_reads_the_model_or_runs_it_again(use_reentrant):
    torch.manual_seed(0)
    model, data = Checkpointed().double(), in_double(data_of("untidy"))
    engine = graphbraid.compile(copy.deepcopy(model))
    x = data.x.requires_grad_()
    wanted = torch.autograd.grad(model(x, data.edge_index).square().sum(), [x, *model.parameters()])
    for _ in range(2):  # the first call reads the model
        x.grad = None
        engine.zero_grad()
        checkpoint(engine, x, data.edge_index, use_reentrant=use_reentrant).square().sum().backward()
        torch.testing.assert_close([x.grad, *(p.grad for p in engine.parameters())], [*wanted], **CLOSE)


def test_a_checkpoint_runs_a_model_with_messages_on_blocks_twice_as_any_other():
    torch.manual_seed(0)
    layers = partial(pyg.SAGEConv, aggr="median")
    model, data = Stack(layers, nn.BatchNorm1d(8)).double(), data_of("untidy")
    engine = graphbraid.compile(copy.deepcopy(model), strict=True)
    for run in (model, engine):
        checkpoint(run, in_double(data).x, data.edge_index, use_reentrant=False).square().sum().backward()
    assert model.between.num_batches_tracked == engine.between.num_batches_tracked == 2
    torch.testing.assert_close([*engine.buffers()], [*model.buffers()], **CLOSE)
    torch.testing.assert_close(
        [p.grad for p in engine.parameters()], [p.grad for p in model.parameters()], **CLOSE
    )


def test_gradients_of_some_inputs_alone():
    engine, model = engine_and_model()
    data = in_double(data_of("untidy"))
    x = data.x.requires_grad_()
    found, wanted = engine(x, data.edge_index), model(x, data.edge_index)
    for of in (lambda one: [x], lambda one: [one.norm.weight], lambda one: [one.convs[0].lin_r.weight, x]):
        ours = torch.autograd.grad(found.sum(), of(engine), retain_graph=True)
        theirs = torch.autograd.grad(wanted.sum(), of(model), retain_graph=True)
        torch.testing.assert_close(ours, theirs, **CLOSE)
    for one in (engine, model):
        one.convs.requires_grad_(requires_grad=False)
    found, wanted = engine(data.x.detach(), data.edge_index), model(data.x.detach(), data.edge_index)
    weights = [one.last.lin.weight for one in (engine, model)]
    for out, weight in zip((found, wanted), weights, strict=True):
        out.sum().backward(inputs=[weight])
    torch.testing.assert_close(weights[0].grad, weights[1].grad, **CLOSE)


def kept_rows(out):
    """References to the matrices that the last segment keeps for backward, besides parameters."""
    kept = [one for step in out.grad_fn.steps for one in step.context.saved_tensors]
    kept = [one for one in kept if isinstance(one, torch.Tensor) and not one.requires_grad]
    assert kept
    return [weakref.ref(one) for one in kept]


def test_backward_gives_memory_back_and_nothing_refers_to_itself():
    engine, _ = engine_and_model()
    data = in_double(data_of("untidy"))
    out = engine(data.x, data.edge_index)
    rows = kept_rows(out)
    gc.disable()
    try:
        out.sum().backward()
        assert all(one() is None for one in rows)
        out = engine(data.x, data.edge_index)
        rows = kept_rows(out)
        del out
        assert all(one() is None for one in rows)
    finally:
        gc.enable()


class TurnsByValue(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = pyg.GCNConv(CHANNELS, CLASSES)

    def forward(self, x, edge_index):
        return self.conv(x if x.sum() > 0 else -x, edge_index)


@pytest.mark.filterwarnings("ignore:.*runs as it is written")
def test_a_model_that_runs_as_written_holds_no_batch():
    engine, data = graphbraid.compile(TurnsByValue()), data_of("untidy")
    x = data.x.clone()
    engine(x, data.edge_index).sum().backward()
    assert engine.why is not None
    rows = weakref.ref(x)
    del x
    gc.collect()  # frames that a reading failed in
    assert rows() is None


@pytest.mark.filterwarnings("ignore:.*runs as it is written")
def test_a_model_that_is_not_lowered_holds_its_graph_alone():
    engine = graphbraid.compile(TurnsByValue(), data_of("untidy"))
    gc.collect()
    assert not [one for one in gc.get_objects() if isinstance(one, Engine) and one.model is engine.model]


def test_a_backward_pass_holds_less_if_the_graph_is_not_retained(monkeypatch):
    monkeypatch.setattr(linear, "_LEAST_SHARE", 2000)  # products beside their gradients hold more in both
    torch.manual_seed(0)
    engine = graphbraid.compile(pyg.GraphSAGE(64, 64, 4, 64), strict=True)
    x, edge_index = torch.rand(2000, 64), torch.randint(2000, (2, 16000))  # too many to sum again

    def peak(**options):
        def step():
            return torch.autograd.grad(engine(x, edge_index).sum(), [*engine.parameters()], **options)

        step()
        return allocation_of(step, x.device).peak / (x.numel() * 4)  # in matrices of the layers' rows

    assert peak() + 0.9 < peak(retain_graph=True)


SMALL_STEPS = {
    "GCN": lambda: pyg.GCN(96, 64, 3, 64),
    "SAGE": lambda: pyg.GraphSAGE(96, 64, 3, 64),
    "SAGE with dropout": lambda: pyg.GraphSAGE(96, 64, 3, 64, dropout=0.5),
    "GIN": lambda: pyg.GIN(96, 64, 3, 64),
}


@pytest.mark.parametrize("name", SMALL_STEPS)
def test_a_step_with_few_edges_takes_a_third_of_pygs_memory_and_gives_the_same_bits(name, monkeypatch):
    torch.manual_seed(0)
    model = SMALL_STEPS[name]()
    data = Data(torch.rand(9000, 96), torch.randint(9000, (2, 36000)))
    batch = sampled(data, num_neighbors=(15, 10, 5), input_nodes=torch.arange(400), batch_size=400)

    def measured(run):
        def step():
            torch.manual_seed(1)  # dropout's masks
            run().square().sum().backward()

        step()
        return allocation_of(step, batch.x.device).peak

    def compiled():
        engine = graphbraid.compile(copy.deepcopy(model), strict=True)
        return measured(lambda: engine(batch)), [parameter.grad for parameter in engine.parameters()]

    in_segments, grads = compiled()
    monkeypatch.setattr(segments.NativeSegment, "run", lambda *_: False)
    by_operation, same = compiled()
    assert all(map(torch.equal, grads, same))
    monkeypatch.setattr(linear, "_MOST_EDGES_AGAIN", 0)
    monkeypatch.setattr(linear, "_LEAST_SHARE", len(batch.x))
    kept, same = compiled()
    assert all(map(torch.equal, grads, same))
    peak = max(in_segments, by_operation)
    assert 1.2 * peak < kept
    assert 3 * peak < measured(lambda: model(batch.x, batch.edge_index)[: batch.batch_size])


def test_explain_gives_the_rate_of_the_dense_products():
    engine = graphbraid.compile(pyg.GraphSAGE(CHANNELS, 8, 2, CLASSES), strict=True)
    said = engine.explain(sampled(data_of("untidy")))
    assert re.search(
        r"in 10 dense products: \S+ GFLOP at \S+ GFLOP/s\n    floor \S+ ms at the \S+ GFLOP/s", said
    )
    assert "dense products" not in graphbraid.compile(copy.deepcopy(engine.model).double()).explain(
        in_double(data_of("untidy"))
    )


def test_hooks_of_parameters_run_once():
    engine, model = engine_and_model()
    data = in_double(data_of("untidy"))
    for one in (engine, model):
        one.convs[1].lin_l.weight.register_hook(lambda grad: 3 * grad)
        one(data.x, data.edge_index).sum().backward()
    for one, theirs in zip(engine.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(one.grad, theirs.grad, **CLOSE)


def test_a_single_row_has_no_variance():
    conv, norm = pyg.SAGEConv(CHANNELS, 8), nn.BatchNorm1d(8)
    model = module_of(lambda self, x, edge_index: self.norm(self.conv(x, edge_index)), conv=conv, norm=norm)
    engine = graphbraid.compile(model, strict=True)
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        engine(torch.randn(1, CHANNELS), torch.zeros(2, 0).long())


class Wired(nn.Module):
    """Values of 8 columns, each made of earlier ones as ``steps`` says: a step is a kind and two numbers."""

    def __init__(self, steps):
        super().__init__()
        self.steps = steps
        self.first = nn.Linear(CHANNELS, 8)
        made = {"sage": pyg.SAGEConv, "transformer": partial(pyg.TransformerConv, heads=2, concat=False)}
        made |= {
            "linear": nn.Linear,
            "norm": lambda *_: nn.BatchNorm1d(8),
            "gin": lambda *_: pyg.GINConv(nn.Linear(8, 8)),
        }
        self.parts = nn.ModuleList(made[kind](8, 8) if kind in made else nn.Identity() for kind, *_ in steps)

    def forward(self, x, edge_index):
        values, unread = [self.first(x)], {0}
        for part, (kind, one, other) in zip(self.parts, self.steps, strict=True):
            a, b = values[one % len(values)], values[other % len(values)]
            unread -= {one % len(values), *([other % len(values)] if kind in ("add", "product") else [])}
            unread.add(len(values))
            if kind in ("linear", "norm"):
                values.append(part(a).relu())
            elif kind == "add":
                values.append(a + 0.5 * b)
            elif kind == "product":
                values.append(torch.sigmoid(a) * b)
            else:
                values.append(part(a, edge_index))
        return torch.cat([values[place] for place in sorted(unread)], 1)


KINDS = ("sage", "transformer", "gin", "linear", "norm", "add", "product")
STEPS = st.tuples(st.sampled_from(KINDS), st.integers(0, 9), st.integers(0, 9))


@settings(max_examples=25)
@given(steps=st.lists(STEPS, min_size=1, max_size=7), seed=st.integers(0, 99))
def test_values_read_on_several_levels_are_those_of_the_model(steps, seed):
    torch.manual_seed(seed)
    hops = sum(kind in ("sage", "transformer", "gin") for kind, *_ in steps)
    batch = in_double(sampled(data_of("untidy"), num_neighbors=(2,) * max(hops, 1), as_pyg=True, seed=seed))
    assert_same(Wired(steps).double(), batch)


def test_maps_of_own_rows_alone_run_on_these():
    engine = graphbraid.compile(Stack(pyg.TransformerConv))
    engine(sampled(data_of("untidy"), as_pyg=True))
    maps = [line for line in engine.explain().splitlines() if "= linear(" in line]
    assert sum("own)" in line for line in maps) == 4  # query and skip of two layers; key and value read all
    assert len(maps) == 8
