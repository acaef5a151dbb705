"""An engine follows its model: modes, replaced parts, changed data, repeated backward passes, threads."""

import copy
import gc
import operator
import pickle
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.beside_pyg import pyg
from tests.extras import in_threads
from tests.fullgraph.matrix import cases_forwards
from tests.fullgraph.matrix.case import BASES, GCN, layer
from tests.fullgraph.matrix.compare import LOWERED, engine_of, verdict
from tests.fullgraph.matrix.graphs import CHANNELS, CLASSES, data_of
from tests.fullgraph.matrix.models import HIDDEN, Stack, Weighted, calls
from tests.kernels import needs_kernels
from torch import fx, nn

import graphbraid
from graphbraid import native
from graphbraid.errors import ConfigError, RunsAsWrittenWarning
from graphbraid.fullgraph import Engine
from graphbraid.fullgraph.batches.runner import _first_parameter
from graphbraid.fullgraph.reading import message_trial, watch
from graphbraid.fullgraph.reading.messages import recorded_propagations
from graphbraid.fullgraph.reading.modes import TRACING

CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def compiled(make, graph="untidy"):
    """A model, its data, and its engine, which is lowered."""
    torch.manual_seed(2)
    data, model = data_of(graph), make()
    engine = engine_of(model, data)
    assert verdict(engine) == LOWERED, engine.explain()
    return model, data, engine


def assert_follows(model, data, engine):
    """Outputs and gradients are the model's own."""
    expected, ours = model(data.x, data.edge_index)[data.train_mask], engine()
    torch.testing.assert_close(ours, expected, **CLOSE)
    parameters = [p for p in model.parameters() if p.requires_grad]
    found = []
    for out in (ours, expected):
        grads = torch.autograd.grad(out.square().sum(), parameters, allow_unused=True)
        found.append([torch.zeros(()) if g is None or not g.any() else g for g in grads])
    torch.testing.assert_close(*found, **CLOSE)


def replaced(model):
    model.between = nn.Tanh()


def layer_replaced(model):
    model.second = pyg.SAGEConv(HIDDEN, CLASSES)


def weights_assigned(model):
    state = {name: value + 0.5 for name, value in model.state_dict().items()}
    model.load_state_dict(state, assign=True)


def hooked(model):
    model.first.register_forward_hook(lambda module, args, out: out * 3)


def hooked_everywhere(model):
    model.between.register_forward_pre_hook(lambda module, args: (args[0] - 1,))


def option_changed(model):
    model.first.improved, model.first.add_self_loops = False, False


def forward_replaced(model):
    model.between.forward = lambda x: -x


def class_changed(model):
    model.between.__class__ = nn.Sigmoid


def other_numbers(model):
    model.first.lin.weight.data = torch.randn(HIDDEN, CHANNELS)


def other_width(model):
    model.first.lin.weight = nn.Parameter(torch.randn(11, CHANNELS))
    model.first.bias = nn.Parameter(torch.randn(11))
    model.second = pyg.GCNConv(11, CLASSES)


def in_place(model):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)


def not_contiguous(model):
    model.first.bias.data = torch.stack([model.first.bias.data] * 2, 1)[:, 0]


def frozen(model):
    model.first.requires_grad_(False)


@pytest.mark.parametrize(
    "change",
    [
        replaced,
        layer_replaced,
        weights_assigned,
        hooked,
        hooked_everywhere,
        option_changed,
        forward_replaced,
        class_changed,
        other_numbers,
        other_width,
        in_place,
        not_contiguous,
        frozen,
    ],
)
def test_a_changed_model_is_noticed(change):
    model, data, engine = compiled(lambda: Stack(GCN, nn.ReLU()))
    assert_follows(model, data, engine)
    change(model)
    assert_follows(model, data, engine)
    torch.testing.assert_close(engine.predict(), model(data.x, data.edge_index).detach(), **CLOSE)


@needs_kernels
@settings(max_examples=100)
@given(sizes=st.lists(st.integers(0, 3), max_size=4), change=st.integers(0, 9), place=st.integers(0, 9))
def test_compiled_code_sees_every_replaced_item(sizes, change, place):
    """Also a value that is equal, such as 1 in the place of True; and items that move or get other names."""
    dicts = [dict.fromkeys(range(size), True) for size in sizes]
    before = tuple(tuple(part for item in one.items() for part in item) for one in dicts)
    items = native.kernels().items_of(dicts)
    held = [one for one in dicts if one]
    if held and change < 8:
        one = held[place % len(held)]
        key = place % len(one)
        {
            0: lambda: one.update({key: 1}),
            1: lambda: one.pop(key),
            2: lambda: one.update(more=True),
            3: lambda: one.update(more=one.pop(key)),
            4: lambda: dicts[place % len(dicts)].update(more=one.pop(key)),
        }.get(change, lambda: None)()
    expected = all(
        2 * len(one) == len(items)
        and all(map(operator.is_, (p for item in one.items() for p in item), items))
        for one, items in zip(dicts, before, strict=True)
    )
    assert watch._hold_same_items(dicts, before) == expected
    assert (native.kernels().items_of(dicts) == items) == expected


@needs_kernels
def test_compiled_code_sees_every_change_of_a_parameters_form():
    forms, one = native.kernels().forms_of, nn.Parameter(torch.rand(3, 4))
    before, seen = forms([one, one]), []
    for change in (
        lambda: one.requires_grad_(requires_grad=False),
        lambda: setattr(one, "data", torch.rand(4, 3).t()),
        lambda: setattr(one, "data", torch.rand(4, 3)),
        lambda: setattr(one, "data", torch.rand(2, 2, 3)),
        lambda: setattr(one, "data", one.data.double()),
        lambda: setattr(one, "data", one.data.long()),
    ):
        change()
        seen.append(forms([one, one]))
    assert len({before, *seen}) == len(seen) + 1
    assert forms([torch.rand(1, 5)[:, ::2]]) != forms([torch.rand(1, 3)])
    assert forms([torch.rand(3, 1).t()]) == forms([torch.rand(1, 3)])
    assert forms([torch.nn.Buffer(one.data)]) == forms([one.detach()])
    assert forms([]) is not None
    assert forms([one, torch.eye(2).to_sparse()]) is None
    assert forms([one.detach().as_subclass(type("Own", (torch.Tensor,), {}))]) is None


@pytest.mark.parametrize(
    "model",
    [
        lambda: nn.Linear(2, 2),
        lambda: nn.Sequential(nn.ReLU(), nn.Sequential(nn.Dropout()), nn.BatchNorm1d(2)),
        lambda: nn.Linear(2, 2, bias=False).requires_grad_(False),
        nn.ReLU,
        lambda: nn.BatchNorm1d(3, affine=False),
    ],
)
def test_the_first_parameter_is_the_one_that_pytorch_names_first(model):
    model = model()
    model.register_module("none", None)
    model.register_parameter("missing", None)
    assert _first_parameter(model) is next(model.parameters(), None)


class Named(nn.Module):
    """It asks for a part by its name, and has a buffer, weight norm and a row of parameters."""

    def __init__(self):
        super().__init__()
        self.conv, self.head = pyg.SAGEConv(CHANNELS, HIDDEN), nn.Linear(HIDDEN, CLASSES)
        self.between = nn.ModuleDict({"tanh": nn.utils.weight_norm(nn.Linear(HIDDEN, HIDDEN))})
        self.gate = nn.Parameter(torch.rand(HIDDEN))
        self.register_buffer("scale", torch.rand(HIDDEN))

    def forward(self, x, edge_index):
        h = self.conv(x, edge_index) * self.gate * self.scale
        for name, part in self.between.items():
            h = torch.tanh(part(h)) if name == "tanh" else part(h)
        return self.head(h)


def renamed(model):
    model.between["plain"] = model.between.pop("tanh")


def hooked_beside_weight_norm(model):
    model.head.register_forward_hook(lambda module, args, out: out * 3)


def hooked_in_weight_norm(model):
    model.between["tanh"].register_forward_pre_hook(lambda module, args: (args[0] * 3,))


def hooked_gradient(model):
    model.gate.register_hook(lambda grad: grad * 3)


def hooked_gradient_in_a_break(model):
    model.between["tanh"].bias.register_hook(lambda grad: grad * 3)


def learning_buffer(model):
    model.scale.requires_grad_()


NAMED = (
    renamed,
    hooked_beside_weight_norm,
    hooked_in_weight_norm,
    hooked_gradient,
    hooked_gradient_in_a_break,
)


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("change", [*NAMED, learning_buffer])
def test_names_hooks_and_buffers_are_followed(change, whole):
    torch.manual_seed(2)
    data, model = data_of("untidy"), Named()
    batches = graphbraid.compile(model)
    engine = engine_of(model, data) if whole else lambda: batches(data.x, data.edge_index)[data.train_mask]
    assert_follows(model, data, engine)
    change(model)
    assert_follows(model, data, engine)
    if change is learning_buffer:
        grads = []
        for out in (engine(), model(data.x, data.edge_index)[data.train_mask]):
            grads += torch.autograd.grad(out.square().sum(), model.scale)
        torch.testing.assert_close(*grads, **CLOSE)


def without_root(model):
    model.first.root_weight = False


def without_projection(model):
    model.first.project = False


def one_map(model):
    model.first.share_weights = True


def one_stack(model):
    model.first.num_stacks = 1


def other_epsilons(model):
    """In place, and without a trace in the tensor's version."""
    yield model.first.eps.fill_(0.9)
    yield model.first.eps.data.fill_(0.4)


def frozen_for_a_while(model):
    yield model.first.requires_grad_(False)
    yield model.first.requires_grad_(True)


@pytest.mark.parametrize(
    ("make", "change"),
    [
        (lambda: pyg.SAGEConv(CHANNELS, HIDDEN), without_root),
        (lambda: pyg.SAGEConv(CHANNELS, HIDDEN, project=True), without_projection),
        (lambda: pyg.GATv2Conv(CHANNELS, HIDDEN), one_map),
        (lambda: pyg.ARMAConv(CHANNELS, HIDDEN, num_stacks=2, num_layers=2), one_stack),
        (lambda: pyg.GINConv(nn.Linear(CHANNELS, HIDDEN), eps=0.1), other_epsilons),
        (lambda: GCN(CHANNELS, HIDDEN), frozen_for_a_while),
    ],
)
def test_options_and_values_changed_after_a_layer_was_made_count(make, change):
    """Parts that the layer no longer uses, such as its map of own rows, stay in it."""
    model, data, engine = compiled(lambda: Stack(lambda i, o: make() if i == CHANNELS else GCN(i, o)))
    assert_follows(model, data, engine)
    for _ in change(model) or [None]:
        assert_follows(model, data, engine)


@pytest.mark.parametrize("conv", [pyg.GATConv, pyg.GATv2Conv])
def test_heads_that_do_not_fit_the_parameters_fail_as_they_are_written(conv):
    data, model = data_of("untidy"), conv(CHANNELS, HIDDEN // 2, heads=2)
    model.heads, model.out_channels = 1, HIDDEN
    engine = graphbraid.compile(model)
    with pytest.raises(RuntimeError), pytest.warns(RunsAsWrittenWarning, match="than its parameters"):
        engine(data.x, data.edge_index)


def test_a_model_made_double_runs_as_it_is_written():
    model, data, engine = compiled(lambda: Stack(GCN))
    model.double()
    data.x = data.x.double()
    out = engine()
    assert out.dtype == torch.float64
    torch.testing.assert_close(out, model(data.x, data.edge_index)[data.train_mask])
    assert "float64" in engine.explain()


def by_flag(self, x, edge_index):
    h = self.first(x, edge_index)
    return self.head(self.second(h.relu(), edge_index) if self.flag else h)


def by_settings(self, x, edge_index):
    h = F.dropout(self.first(x, edge_index), self.settings.p, training=self.training)
    return self.head(h.relu() if self.listed[0] else h)


class Settings:
    """Settings by attribute, like an argparse.Namespace."""

    p = 0.0

    def __init__(self):
        self.p = 0.0


def test_flags_lists_and_settings_of_a_model_may_change():
    model, data, engine = compiled(lambda: calls(by_flag)(GCN))
    model.flag = True
    assert_follows(model, data, engine)
    model, data, engine = compiled(lambda: calls(by_settings)(GCN, settings=Settings(), listed=[True]))
    assert_follows(model, data, engine)
    model.listed[0] = False
    assert_follows(model, data, engine)
    model.settings.p = 0.5
    assert not torch.equal(engine(), engine())


# ---- modes


def dropping(self, x, edge_index):
    return self.head(F.dropout(self.first(x, edge_index), 0.5))


def test_dropout_without_a_switch_is_on_in_predictions():
    _, _, engine = compiled(lambda: calls(dropping)(GCN))
    assert not torch.equal(engine.predict(), engine.predict())


@pytest.mark.parametrize("base", BASES)
def test_modes_are_followed_back_and_forth_and_restored(base):
    between = nn.Sequential(nn.BatchNorm1d(HIDDEN), nn.ReLU(), nn.Dropout(0.5))
    model, data, engine = compiled(lambda: Stack(BASES[base], between))
    model.train()
    between[0].eval()
    for _ in range(2):
        modes = [module.training for module in model.modules()]
        assert not torch.equal(engine(), engine())
        engine.predict()
        assert [module.training for module in model.modules()] == modes
        model.eval()
        assert_follows(model, data, engine)
        for module, mode in zip(model.modules(), modes, strict=True):
            module.training = mode


def test_compiling_draws_nothing_and_moves_no_statistics():
    data = data_of("untidy")
    model = Stack(GCN, nn.BatchNorm1d(HIDDEN))
    before, state = {k: v.clone() for k, v in model.state_dict().items()}, torch.get_rng_state()
    engine = engine_of(model, data)
    engine.predict()
    engine.explain()
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


# ---- backward


@pytest.mark.parametrize("base", [*BASES, "max"])
def test_a_second_backward_pass_is_that_of_the_same_forward_pass(base):
    make = BASES.get(base, layer(pyg.SAGEConv, aggr="max"))
    between = nn.Sequential(nn.LayerNorm(HIDDEN), nn.GELU(), nn.Dropout(0.5))
    model, _, engine = compiled(lambda: Stack(make, between))
    out = engine()
    parameters = list(model.parameters())
    first = [g.clone() for g in torch.autograd.grad(out.sum(), parameters, retain_graph=True)]
    torch.autograd.grad(out.square().sum(), parameters, retain_graph=True)
    for a, b in zip(first, torch.autograd.grad(out.sum(), parameters), strict=True):
        torch.testing.assert_close(a, b, **CLOSE)


def test_two_losses_of_one_forward_pass():
    model, data, engine = compiled(lambda: Stack(BASES["GATConv"]))
    out, plain = engine(), model(data.x, data.edge_index)[data.train_mask]
    found = []
    for outputs in (out, plain):
        model.zero_grad()
        outputs.sum().backward(retain_graph=True)
        outputs.square().sum().backward()
        found.append([p.grad.clone() for p in model.parameters()])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, **CLOSE)


@pytest.mark.parametrize("change", ["in place", "data"])
def test_parameters_changed_before_the_backward_pass_are_refused(change):
    model, _, engine = compiled(lambda: Stack(GCN))
    out, weight = engine(), model.second.lin.weight
    with torch.no_grad():
        if change == "data":
            weight.data = 2 * weight
        else:
            weight.mul_(2)
    with pytest.raises(RuntimeError, match="changed in place between"):
        out.sum().backward()


def test_running_statistics_changed_before_the_backward_pass_are_refused():
    model, _, engine = compiled(lambda: Stack(GCN, nn.BatchNorm1d(HIDDEN)).eval())
    out = engine()
    model.between.running_var.mul_(2)
    with pytest.raises(RuntimeError, match="running statistics were changed in place between"):
        out.sum().backward()


def test_a_gradient_of_zeros_may_have_no_memory():
    model, _, engine = compiled(lambda: Stack(GCN, nn.Linear(HIDDEN, HIDDEN)))
    out = engine()
    out.backward(torch._efficientzerotensor(out.shape))
    assert not any(p.grad is None or p.grad.any() for p in model.parameters())


def test_outputs_may_be_written_over():
    model, data, engine = compiled(lambda: Stack(GCN))
    expected, out = model(data.x, data.edge_index)[data.train_mask], engine()
    found = [
        torch.autograd.grad(one.relu_().square().sum(), [*model.parameters()]) for one in (out, expected)
    ]
    torch.testing.assert_close(*found, **CLOSE)


@pytest.mark.filterwarnings("ignore:.*parts of the model run as they are written")
def test_parameters_of_a_graph_break_may_be_frozen_before_the_backward_pass():
    torch.manual_seed(0)
    data, model = data_of("untidy"), Stack(GCN, nn.GroupNorm(2, HIDDEN))
    engine, frozen, found = engine_of(model, data), model.between, []
    for run in (engine, lambda: model(data.x, data.edge_index)[data.train_mask]):
        model.zero_grad()
        out = run()
        frozen.requires_grad_(requires_grad=False)
        out.square().sum().backward()
        frozen.requires_grad_()
        assert all(p.grad is None for p in frozen.parameters())
        found.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    torch.testing.assert_close(*found, **CLOSE)


@pytest.mark.filterwarnings("ignore:.*parts of the model run as they are written")
def test_parameters_of_a_graph_break_may_be_replaced():
    torch.manual_seed(0)
    data, model = data_of("untidy"), Stack(GCN, nn.GroupNorm(2, HIDDEN))
    engine = engine_of(model, data)
    assert_follows(model, data, engine)
    model.between.bias = nn.Parameter(model.between.bias.detach() + 1)
    assert_follows(model, data, engine)  # the new one gets its gradient, too


@pytest.mark.filterwarnings("ignore:.*parts of the model run as they are written")
def test_a_model_that_is_read_again_holds_nothing_of_earlier_readings():
    data, model = data_of("untidy"), Stack(GCN, nn.GRUCell(HIDDEN, HIDDEN))
    engine, counts = engine_of(model, data), []
    for _ in range(10):  # more than the snapshots that an engine keeps
        model.between.bias_hh = nn.Parameter(torch.zeros(3 * HIDDEN))
        engine().sum().backward()
        gc.collect()
        counts.append(sum(isinstance(one, torch.Tensor) for one in gc.get_objects()))
    assert counts[-1] == counts[-3]


# ---- what it is called in


@pytest.mark.filterwarnings("ignore:.*parts of the model run as they are written")
def test_features_of_inference_mode_reach_a_graph_break():
    torch.manual_seed(0)
    data, model = data_of("untidy"), Stack(GCN)
    nn.utils.parametrizations.weight_norm(model.first.lin)
    engine = engine_of(model, data)
    with torch.inference_mode():
        data.x = 2 * data.x
    with torch.no_grad():
        torch.testing.assert_close(engine(), model(data.x, data.edge_index)[data.train_mask], **CLOSE)
    assert engine.why is None


def test_inference_mode_first():
    model, data, engine = compiled(lambda: Stack(GCN, nn.BatchNorm1d(HIDDEN)))
    with torch.inference_mode():
        predicted = engine.predict()
        assert not engine().requires_grad
    assert_follows(model, data, engine)
    torch.testing.assert_close(predicted.shape, torch.Size([data.num_nodes, CLASSES]))


def test_no_grad_gives_the_numbers_alone():
    model, data, engine = compiled(lambda: Stack(GCN))
    with torch.no_grad():
        assert not engine().requires_grad
    assert_follows(model, data, engine)


def asks_for_gradients(self, x, edge_index):
    h = self.first(x, edge_index)
    return self.head(h if torch.is_grad_enabled() else h.relu())


def test_a_forward_that_is_another_without_gradients_runs_as_it_is_written():
    data, model = data_of("untidy"), calls(asks_for_gradients)(GCN)
    engine = engine_of(model, data)
    assert "its forward is another without gradients" in engine.explain()
    assert_follows(model, data, engine)
    with torch.no_grad():
        expected = model(data.x, data.edge_index)
        torch.testing.assert_close(engine(), expected[data.train_mask])
    torch.testing.assert_close(engine.predict(), expected)


def test_a_trace_leaves_the_names_that_a_forward_finds_as_they_were():
    before = {name: id(value) for name, value in vars(cases_forwards).items()}
    compiled(lambda: calls(cases_forwards.asks_for_types)(GCN))
    assert {name: id(value) for name, value in vars(cases_forwards).items()} == before
    assert isinstance(torch.zeros(1), torch.Tensor) and not isinstance(torch.zeros(1), nn.Parameter)


def test_autocast_runs_the_model_as_it_is_written():
    model, data, engine = compiled(lambda: Stack(GCN))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours, expected = engine(), model(data.x, data.edge_index)[data.train_mask]
    torch.testing.assert_close(ours, expected)
    assert_follows(model, data, engine)


@pytest.mark.parametrize("make", [copy.copy, copy.deepcopy, pickle.dumps])
def test_an_engine_is_not_copied_and_its_model_is(make):
    _model, data, engine = compiled(lambda: Stack(GCN))
    with pytest.raises(ConfigError, match="an engine cannot be copied or saved; copy or save its model"):
        make(engine)
    twin = copy.deepcopy(engine.model)
    assert_follows(twin, data, engine_of(twin, data))


def test_threads_wait_for_each_other():
    between = nn.Sequential(nn.BatchNorm1d(HIDDEN), nn.ReLU(), nn.Dropout(0.5))
    model, _, engine = compiled(lambda: Stack(BASES["GATConv"], between))
    other = graphbraid.compile(model, data_of("untidy"), nodes=[1, 2, 3])
    expected = engine.predict()

    def ask(asked):
        return all(torch.equal(asked.predict(), expected) for _ in range(30))

    assert all(in_threads(*(partial(ask, one) for one in (engine, engine, other))))
    assert model.training


def test_outputs_asked_for_by_several_threads_are_all_right():
    model, data, engine = compiled(lambda: Stack(GCN))
    expected = model(data.x, data.edge_index)[data.train_mask]

    def ask():
        return all(torch.allclose(engine(), expected, **CLOSE) for _ in range(40))

    assert all(in_threads(*[ask] * 4))


def test_models_run_in_other_threads_while_a_message_is_traced():
    linear, found = nn.Linear(2, 2), []

    class Meanwhile(nn.Module):
        def message(self, x_j):
            with ThreadPoolExecutor(1) as pool:
                found.append(pool.submit(linear, torch.ones(1, 2)).result())
                found.append(pool.submit(TRACING.acquire, blocking=False).result())
            return x_j * 2

    message_trial.traced_message("", Meanwhile(), {"x_j": None}, frozenset({"x_j"}), fx.Proxy)
    rows, is_free = found
    torch.testing.assert_close(rows, linear(torch.ones(1, 2)))
    assert not is_free, "two traces at once would leave torch.nn.Module patched"


def test_layers_pass_messages_in_other_threads_while_their_model_is_traced():
    class Doubled(pyg.MessagePassing):
        def forward(self, x, edge_index):
            return self.propagate(edge_index, x=x)

        def message(self, x_j):
            return x_j * 2

    layer, data = Doubled(), data_of("untidy")
    expected = layer(data.x, data.edge_index)
    with recorded_propagations(layer, ()), ThreadPoolExecutor(1) as pool:
        found = pool.submit(layer, data.x, data.edge_index).result()
    torch.testing.assert_close(found, expected)


# ---- data


def test_features_changed_in_place_or_replaced_are_noticed():
    model, data, engine = compiled(lambda: Stack(GCN))
    assert_follows(model, data, engine)
    data.x.mul_(2)
    assert_follows(model, data, engine)
    data.x = torch.randn(data.num_nodes, CHANNELS)
    assert_follows(model, data, engine)
    data.edge_index = data.edge_index[:, ::2]  # its weights, which the model does not take, stay as many
    assert_follows(model, data, engine)
    del data.edge_weight
    assert_follows(model, data, engine)
    data.edge_index[0, :5] = 1
    assert_follows(model, data, engine)


def test_features_of_a_graph_changed_in_place_are_noticed():
    data, model = data_of("undirected"), Stack(GCN)
    graph = graphbraid.Graph.from_pyg(data)
    engine = graphbraid.compile(model, graph, nodes=data.train_mask)
    engine()
    graph.x.add_(1)
    torch.testing.assert_close(engine(), model(graph.x, data.edge_index)[data.train_mask], **CLOSE)


def test_gradients_reach_features_and_weights_that_ask_for_them():
    data, model = data_of("untidy"), Weighted(GCN)
    data.x.requires_grad_()
    data.edge_weight.requires_grad_()
    engine = engine_of(model, data)
    assert "require gradients" in engine.explain()
    engine().sum().backward()
    found = data.x.grad.clone(), data.edge_weight.grad.clone()
    data.x.grad = data.edge_weight.grad = None
    model(data.x, data.edge_index, data.edge_weight)[data.train_mask].sum().backward()
    torch.testing.assert_close(found, (data.x.grad, data.edge_weight.grad))


def test_gradients_asked_for_later_are_noticed():
    _model, data, engine = compiled(lambda: Stack(GCN))
    data.x.requires_grad_()
    engine().sum().backward()
    assert data.x.grad is not None


def test_ids_in_any_form_a_range_a_split_s_name_and_a_list_of_truths_name_nodes():
    data, model = data_of("untidy"), Stack(GCN)
    expected = model(data.x, data.edge_index)
    for nodes, rows in (
        (range(4), [0, 1, 2, 3]),
        ("train", data.train_mask),
        (data.train_mask.tolist(), data.train_mask),
        (data.train_mask.numpy(), data.train_mask),
        *((form([2, 5, 9]), [2, 5, 9]) for form in (torch.tensor, list, tuple, np.array)),
    ):
        torch.testing.assert_close(graphbraid.compile(model, data, nodes=nodes)(), expected[rows], **CLOSE)


def test_only_the_exact_class_of_a_model_of_graphbraid_is_one():
    class Louder(graphbraid.nn.GCN):
        def forward(self, x, adjs):
            return 2 * super().forward(x, adjs)

    graph = graphbraid.Graph.from_pyg(data_of("undirected"))
    model = Louder(CHANNELS, HIDDEN, CLASSES, dropout=0.0)
    engine = graphbraid.compile(model, graph, nodes=[1, 2])
    torch.testing.assert_close(engine(), model(graph.x, graph.csc)[[1, 2]], **CLOSE)
    exact = graphbraid.nn.GCN(CHANNELS, HIDDEN, CLASSES)
    assert isinstance(graphbraid.compile(exact, graph, nodes=[1]), Engine)
    exact.convs[0].lin.register_forward_hook(lambda module, args, out: out)
    assert not isinstance(graphbraid.compile(exact, graph, nodes=[1]), Engine)
