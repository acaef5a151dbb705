"""Normalisation in the engine: numbers of the PyTorch model over steps, running statistics, memory."""

import copy
import dataclasses

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.extras import NO_KERNELS, NO_PYG
from tests.fullgraph.graphs import CHANNELS, CLASSES, make_graph
from tests.suites import every, examples
from torch import nn
from torch.nn.utils import parametrize
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import graphbraid
from graphbraid import native, ops
from graphbraid import nn as gnn
from graphbraid.errors import DataError
from graphbraid.fullgraph import ALL, Engine, Uncompiled
from graphbraid.fullgraph.lowering.levels import whole_graph
from graphbraid.fullgraph.program import (
    INPUT,
    Add,
    AdjacencyMatrix,
    Aggregate,
    Break,
    DestinationRows,
    Linear,
    Normalise,
    Program,
)
from graphbraid.fullgraph.reading import modes
from graphbraid.fullgraph.reading.calling import only_node_type
from graphbraid.fullgraph.reading.reader import READERS
from graphbraid.fullgraph.step.plan import StepRequest
from graphbraid.fullgraph.step.planned_step import PlannedStep
from graphbraid.graph import Graph
from graphbraid.graph.csc import Csc

pyg = pytest.importorskip("torch_geometric.nn", reason=NO_PYG)
HIDDEN = 16

NORMS = {
    "layer": nn.LayerNorm,
    "layer without bias": lambda width: nn.LayerNorm(width, bias=False, eps=0.1),
    "layer plain": lambda width: nn.LayerNorm(width, elementwise_affine=False),
    "batch": nn.BatchNorm1d,
    "batch plain": lambda width: nn.BatchNorm1d(width, affine=False, momentum=None),
    "batch untracked": lambda width: nn.BatchNorm1d(width, track_running_stats=False, eps=0.01),
    "pyg batch": lambda width: pyg.BatchNorm(width, momentum=0.3),
    "pyg layer": lambda width: pyg.LayerNorm(width, mode="node"),
}


class Net(nn.Module):
    """Two normalisations between three layers, in the way that ``how`` names."""

    def __init__(self, make_norm, how="stack", conv=pyg.GCNConv):
        super().__init__()
        self.how = how
        first = CHANNELS if how == "norm first" else HIDDEN
        self.convs = nn.ModuleList(
            conv(a, b, bias=bias)
            for a, b, bias in ((CHANNELS, HIDDEN, True), (HIDDEN, HIDDEN, False), (HIDDEN, CLASSES, True))
        )
        self.norms = nn.ModuleList((make_norm(first), make_norm(HIDDEN)))
        self.last = make_norm(CLASSES)

    def forward(self, x, edge_index):
        return getattr(self, self.how.replace(" ", "_"))(x, lambda i, x: self.convs[i](x, edge_index))

    def stack(self, x, conv):
        for i in range(2):
            x = F.relu(self.norms[i](conv(i, x)))
        return conv(2, x)

    def norm_first(self, x, conv):  # of the features
        return conv(2, F.elu(self.norms[1](conv(0, self.norms[0](x)))))

    def norm_last(self, x, conv):  # the result is the output; the one before goes straight into a layer
        return self.last(conv(2, self.norms[1](conv(1, F.relu(conv(0, x))))))

    def residual(self, x, conv):  # the norm's input is read by the addition too
        x = conv(0, x)
        x = x + conv(1, F.relu(self.norms[0](x)))
        return conv(2, F.relu(self.norms[1](x)))

    def residual_before(self, x, conv):
        x = conv(0, x)
        x = conv(1, F.relu(self.norms[0](x))) + x
        return conv(2, self.norms[1](x) + x)

    def added(self, x, conv):  # an addition gives one gradient to both
        x = conv(0, x)
        return conv(2, self.norms[0](x) + self.norms[1](conv(1, x)))

    def added_to_a_layer(self, x, conv):
        x = conv(0, x)
        y = conv(1, x)
        x = self.norms[0](x) + y
        return conv(2, x + self.norms[1](x))

    def layer_added_last(self, x, conv):
        x = self.norms[0](conv(0, x))
        return conv(2, self.norms[1](x) + conv(1, x))

    def two_added(self, x, conv):  # both before layers of their own
        x = conv(0, x)
        return conv(2, self.norms[0](conv(1, x)) + self.norms[1](conv(1, x)))

    def one_for_both(self, x, conv):  # its gradients add up, and its running statistics move twice
        for i in range(2):
            x = F.relu(self.norms[0](conv(i, x)))
        return conv(2, x)

    def twice(self, x, conv):
        return conv(2, self.norms[1](self.norms[0](conv(1, F.relu(conv(0, x))))))


WAYS = (
    "stack",
    "norm first",
    "norm last",
    "residual",
    "residual before",
    "added",
    "added to a layer",
    "layer added last",
    "two added",
    "one for both",
    "twice",
)
OWN = {
    "gcn": lambda norm: gnn.GCN(CHANNELS, HIDDEN, CLASSES, 3, norm=norm, dropout=0.0),
    "sage": lambda norm: gnn.GraphSAGE(CHANNELS, HIDDEN, CLASSES, 3, norm=norm, dropout=0.0, act="elu"),
    "gat": lambda norm: gnn.GAT(CHANNELS, HIDDEN, CLASSES, 2, heads=4, norm=norm, dropout=0.0),
    "gin": lambda norm: gnn.GIN(CHANNELS, HIDDEN, CLASSES, 2, norm=norm, dropout=0.0),
    "mlp": lambda norm: gnn.MLP(CHANNELS, HIDDEN, CLASSES, 3, norm=norm, dropout=0.0, act="none"),
}


def own_inputs(model, graph):
    if isinstance(model, gnn.GraphModel):
        return graph.x, graph.csc
    return graph.x, torch.stack([graph.csc.indices.long(), graph.csc.destinations().long()])


def assert_trains_alike(model, graph, *, steps=3, passes=ALL):
    """Loss, gradients, running statistics and predictions of some steps are those of a copy in PyTorch."""
    plain = copy.deepcopy(model)
    engine = graphbraid.compile(model, graph, passes=passes)
    assert isinstance(engine, Engine), engine.explain()
    train = graph.split("train")
    optimizers = [torch.optim.SGD(m.parameters(), 0.1) for m in (model, plain)]
    for _ in range(steps):
        losses = []
        for net, outputs, optimizer in zip(
            (model, plain),
            (engine, lambda: plain(*own_inputs(plain, graph))[train]),
            optimizers,
            strict=True,
        ):
            net.train()
            optimizer.zero_grad()
            losses.append(F.cross_entropy(outputs(), graph.y[train]))
            losses[-1].backward()
        torch.testing.assert_close(*losses, rtol=1e-5, atol=1e-5)
        for (name, ours), theirs in zip(model.named_parameters(), plain.parameters(), strict=True):
            close(ours.grad, theirs.grad, f"gradient of {name}")
        for (name, ours), theirs in zip(model.named_buffers(), plain.buffers(), strict=True):
            close(ours, theirs, name)
        for optimizer in optimizers:
            optimizer.step()
    plain.eval()
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    close(engine.predict(), plain(*own_inputs(plain, graph)).detach(), "predictions")
    assert all(torch.equal(before[name], buffer) for name, buffer in model.named_buffers())
    return engine


def close(actual, expected, name):
    if actual is None or expected is None:
        assert actual is expected, name
    else:
        torch.testing.assert_close(actual, expected, rtol=2e-4, atol=5e-5, msg=lambda text: f"{name}: {text}")


def seeded(make, *arguments):
    torch.manual_seed(2)
    model = make(*arguments)
    with torch.no_grad():  # a weight of one and a bias of zero would hide mistakes
        for module in model.modules():
            if isinstance(module, nn.BatchNorm1d | nn.LayerNorm | pyg.LayerNorm):
                for parameter in module.parameters():
                    parameter.add_(torch.randn_like(parameter), alpha=0.5)
    return model


@pytest.mark.parametrize("how", every(3, WAYS))
@pytest.mark.parametrize("norm", NORMS)
def test_trains_as_the_model_does(norm, how):
    engine = assert_trains_alike(seeded(Net, NORMS[norm], how), make_graph(symmetric=True))
    kinds = [type(op) for op in engine.program.ops]
    assert Normalise in kinds
    assert Break not in kinds


@pytest.mark.parametrize("norm", ["layer", "batch"])
@pytest.mark.parametrize("name", OWN)
def test_graphbraid_s_models_train_as_they_do_uncompiled(name, norm):
    assert_trains_alike(seeded(OWN[name], norm), make_graph())


def test_own_rows_are_normalised_without_touching_those_they_are_the_start_of():
    graph = make_graph(train=60)
    linear, norm = nn.Linear(CHANNELS, HIDDEN, bias=False), seeded(nn.LayerNorm, HIDDEN)
    sum_of = AdjacencyMatrix(kind="sum")
    program = (
        Linear(out="rows", inputs=(INPUT,), weight=linear.weight),
        DestinationRows(out="own", inputs=("rows",)),
        Normalise(out="normal", inputs=("own",), kind="layer", module=norm, channels=HIDDEN),
        Aggregate(out="sums", inputs=("rows",), adjacency=sum_of),
        Add(out="all", inputs=("normal", "sums")),
    )
    grad = torch.randn(graph.num_nodes, HIDDEN)
    rows = linear(graph.x)
    expected = norm(rows) + ops.spmm(graph.csc, rows, "sum")
    for training in (True, False):
        whole, blocks = (
            Program(ops=program, node_types=(only_node_type(CHANNELS),)),
            whole_graph(graph.csc, 1),
        )
        step = PlannedStep(StepRequest(program=whole, graph=graph, blocks=blocks, training=training))
        step.allocate()
        torch.testing.assert_close(step.forward(), expected, rtol=1e-5, atol=1e-5)
        if training:
            found = step.backward(grad)
            for parameter in (linear.weight, *norm.parameters()):
                (wanted,) = torch.autograd.grad(expected, parameter, grad, retain_graph=True)
                close(found[id(parameter)], wanted, "gradient")


@pytest.mark.slow
@settings(max_examples=examples(50))
@given(
    norm=st.sampled_from(sorted(NORMS)),
    how=st.sampled_from(WAYS),
    conv=st.sampled_from([pyg.GCNConv, pyg.SAGEConv]),
    passes=st.sets(st.sampled_from(sorted(ALL))),
    symmetric=st.booleans(),
    seed=st.integers(0, 5),
)
def test_any_choice_of_passes_gives_the_same_numbers(norm, how, conv, passes, symmetric, seed):
    graph = make_graph(symmetric=symmetric, seed=seed)
    assert_trains_alike(seeded(Net, NORMS[norm], how, conv), graph, steps=1, passes=passes)


@pytest.mark.parametrize("norm", ["layer", "batch"])
def test_parts_that_do_not_learn_get_no_gradient(norm):
    model = seeded(Net, NORMS[norm], "stack")
    model.norms[0].weight.requires_grad_(False)
    model.norms[1].bias.requires_grad_(False)
    assert_trains_alike(model, make_graph())


def test_a_frozen_batch_normalisation_takes_and_keeps_its_running_statistics():
    graph, model = make_graph(), seeded(Net, nn.BatchNorm1d, "stack")
    for norm in model.norms:
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2.0)
    before = copy.deepcopy(model.state_dict())
    engine = graphbraid.compile(model, graph)
    train = graph.split("train")
    model.train()
    model.norms.eval()
    grads = []
    for outputs in (engine(), model(*own_inputs(model, graph))[train]):
        loss = F.cross_entropy(outputs, graph.y[train])
        grads.append(torch.autograd.grad(loss, tuple(model.convs.parameters())))
    for ours, theirs in zip(*grads, strict=True):
        close(ours, theirs, "gradient")
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


class NewTensors(TorchDispatchMode):
    """Shapes of results that are no view of an argument, nor written over one."""

    def __init__(self):
        super().__init__()
        self.shapes = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        known = {
            t.untyped_storage().data_ptr()
            for t in tree_leaves((args, kwargs or {}))
            if isinstance(t, torch.Tensor)
        }
        self.shapes += [
            tuple(t.shape)
            for t in tree_leaves(result)
            if isinstance(t, torch.Tensor) and t.untyped_storage().data_ptr() not in known
        ]
        return result


def new_matrices_of_a_step(model, graph, monkeypatch):
    """Shapes of new matrices with a row per node, in the third step."""
    monkeypatch.setattr(modes, "_mode_now", lambda _: None)  # the model would run as written
    train = graph.split("train")
    engine = graphbraid.compile(model, graph, passes=ALL - {"prune"})
    for _ in range(3):
        forward, backward = NewTensors(), NewTensors()
        with forward:
            out = engine()
        loss = F.cross_entropy(out, graph.y[train])
        with backward:
            loss.backward()
    return [shape for shape in forward.shapes + backward.shapes if shape[:1] == (graph.num_nodes,)]


@pytest.mark.parametrize("how", ["stack", "residual", "added"])
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.skipif(native.active().variant == "reference", reason=NO_KERNELS)
def test_a_step_makes_no_matrix_with_a_row_per_node(norm, how, monkeypatch):
    assert new_matrices_of_a_step(seeded(Net, NORMS[norm], how), make_graph(), monkeypatch) == []


def normalise_by_pytorch(monkeypatch):
    """Models are read as if nothing but PyTorch's own modules could normalise."""

    def read(call):
        width = next(call.layer.parameters()).numel()
        couples = isinstance(call.layer, nn.BatchNorm1d)
        return call.writer.module(call.x, call.layer, width=width, couples_rows=couples)

    for home, name in (("batchnorm", "BatchNorm1d"), ("normalization", "LayerNorm")):
        key = (f"torch.nn.modules.{home}", name)
        monkeypatch.setitem(READERS, key, dataclasses.replace(READERS[key], read=read))


def test_the_same_count_sees_what_pytorch_makes(monkeypatch):
    normalise_by_pytorch(monkeypatch)
    model = seeded(Net, nn.LayerNorm, "stack")
    assert new_matrices_of_a_step(model, make_graph(), monkeypatch).count((80, HIDDEN)) >= 4


@pytest.mark.parametrize("norm", ["layer", "batch"])
@pytest.mark.parametrize("how", every(3, WAYS))
def test_no_more_of_the_arena_than_with_pytorch_s_and_the_same_numbers(how, norm, monkeypatch):
    graph, model = make_graph(), seeded(Net, NORMS[norm], how)
    ours = graphbraid.compile(model, graph)
    normalise_by_pytorch(monkeypatch)
    plain = graphbraid.compile(model, graph)
    assert any(isinstance(op, Break) for op in plain.program.ops)
    torch.testing.assert_close(ours(), plain(), rtol=1e-4, atol=1e-5)
    statistics = 2 * 2 * (4 * graph.num_nodes + 64)  # mean and rstd of two layer normalisations
    ours, plain = (engine.runner.training_step.arena.least_bytes for engine in (ours, plain))
    assert ours <= plain + statistics * (norm == "layer")


def test_backward_in_the_usual_stack_takes_one_matrix_per_normalisation():
    """Beside what a stack without normalisation keeps: its input, and two numbers per row."""
    graph, nbytes = make_graph(symmetric=True), []
    for make in (nn.LayerNorm, nn.BatchNorm1d, lambda _: nn.Identity()):
        engine = graphbraid.compile(seeded(Net, make, "stack"), graph, passes=ALL - {"prune"})
        nbytes.append(engine.nbytes)
    matrix = 4 * graph.num_nodes * HIDDEN
    assert nbytes[0] - nbytes[2] <= 2 * (matrix + 2 * 4 * graph.num_nodes) + 256
    assert nbytes[1] - nbytes[2] <= 2 * matrix


@pytest.mark.parametrize(
    "make_norm",
    [
        lambda width: pyg.LayerNorm(width, mode="graph"),
        lambda width: pyg.BatchNorm(width, allow_single_element=True),
    ],
    ids=["of the whole graph", "of one row"],
)
def test_what_is_more_than_normalisation_stays_a_module(make_norm):
    torch.manual_seed(0)
    model = Net(nn.LayerNorm, "stack")
    model.norms = nn.ModuleList(make_norm(HIDDEN) for _ in range(2))
    engine = assert_trains_alike(model, make_graph())
    modules = [op for op in engine.program.ops if isinstance(op, Break)]
    assert [op.couples_rows for op in modules] == [True] * 2


@pytest.mark.parametrize(
    ("make_norm", "reason"),
    [
        (
            type(
                "Halves",
                (nn.LayerNorm,),
                {"forward": lambda self, x: F.linear(x, self.weight.diag() / 2, self.bias)},
            ),
            "diag: no operation stands for this call",
        ),
        (
            lambda width: parametrize.register_parametrization(nn.LayerNorm(width), "weight", nn.ReLU()),
            "norms.0: no operation stands for",
        ),
    ],
    ids=["of a subclass", "with a computed weight"],
)
def test_what_is_no_normalisation_of_pytorch_s_own_is_left_alone(make_norm, reason):
    model = Net(nn.LayerNorm, "stack")
    model.norms = nn.ModuleList(make_norm(HIDDEN) for _ in range(2))
    engine = graphbraid.compile(model, make_graph())
    assert engine.breaks
    assert reason in engine.explain()


class ByGraphs(Net):
    def forward(self, x, edge_index):
        return self.convs[2](self.norms[0](self.convs[0](x, edge_index), edge_index), edge_index)


def test_normalisation_by_graphs_is_not_lowered():
    engine = graphbraid.compile(ByGraphs(NORMS["pyg layer"]), make_graph())
    assert len(engine.breaks) == 1
    assert "norms.0: it takes 'batch' too" in engine.explain()


def test_a_width_that_does_not_fit_is_named():
    engine = graphbraid.compile(Net(lambda width: nn.LayerNorm(width + 1)), make_graph())
    assert isinstance(engine, Uncompiled)
    assert "normalises 16 columns with a module for 17" in engine.explain()


def test_looking_for_what_is_not_finite_moves_no_running_statistics():
    graph = make_graph(train=60)
    model = seeded(Net, nn.BatchNorm1d, "stack")
    engine = graphbraid.compile(model, graph)
    with torch.no_grad():
        model.norms[1].weight[3] = torch.inf
    assert not torch.isfinite(engine()).all()
    before = copy.deepcopy(model.state_dict())
    assert engine.first_not_finite().startswith("layer 2 (normalise) is the first to go wrong, at node")
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    engine()
    assert int(model.norms[0].num_batches_tracked) == 2


def test_batch_normalisation_keeps_every_node_and_layer_normalisation_does_not():
    graph = make_graph()
    texts = {
        norm: graphbraid.compile(Net(NORMS[norm], "stack"), graph).explain() for norm in ("layer", "batch")
    }
    assert "- prune: batch normalisation needs every node's row" in texts["batch"]
    assert "+ prune" in texts["layer"]
    assert "normalise(" in texts["layer"]
    assert "layer, eps 1e-05" in texts["layer"]


@pytest.mark.parametrize("norm", ["layer", "batch"])
def test_features_may_stand_column_by_column(norm):
    graph = make_graph()
    graph = graph.replace(x=graph.x.t().contiguous().t())
    assert_trains_alike(seeded(Net, NORMS[norm], "norm first"), graph)


def test_one_node_has_no_variance():
    csc = Csc(torch.tensor([0, 0]), torch.zeros(0, dtype=torch.int32), 1)
    graph = Graph(csc=csc, x=torch.ones(1, CHANNELS), y=torch.zeros(1, dtype=torch.int64))
    engine = graphbraid.compile(OWN["gcn"]("batch"), graph, nodes=torch.tensor([0]))
    with pytest.raises(DataError, match="more than one row"):
        engine()


@pytest.mark.parametrize("norm", ["layer", "batch"])
def test_bits_do_not_depend_on_threads(norm):
    from tests.ops.graphs import assert_same_bits_with_any_threads, skip_where_torch_multiplies

    skip_where_torch_multiplies()
    graph, model = make_graph(symmetric=True), seeded(OWN["sage"], norm)
    engine = graphbraid.compile(model, graph)

    def run():
        out = engine()
        grads = torch.autograd.grad(out.square().sum(), tuple(model.parameters()))
        return [out.detach(), *grads]

    assert_same_bits_with_any_threads(run)
