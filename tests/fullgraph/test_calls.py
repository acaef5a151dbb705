"""State between an engine's forward and backward pass belongs to the call, whatever runs in between."""

import copy

import pytest
import torch
import torch.nn.functional as F
from tests.beside_pyg import pyg
from tests.extras import in_threads
from tests.fullgraph.matrix.case import BASES, GCN, layer
from tests.fullgraph.matrix.graphs import CHANNELS, CLASSES, data_of
from tests.fullgraph.matrix.models import HIDDEN, Stack
from tests.fullgraph.test_following import CLOSE, compiled
from torch import nn
from torch.autograd import forward_ad
from torch.nn.utils import prune
from torch.nn.utils.parametrizations import spectral_norm
from torch.nn.utils.stateless import _reparametrize_module
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import graphbraid
from graphbraid.errors import ConfigError
from graphbraid.train.step.reach import _Shapes

BETWEEN = {
    "batch": lambda: nn.Sequential(nn.BatchNorm1d(HIDDEN), nn.ReLU(), nn.Dropout(0.5)),
    "layer": lambda: nn.Sequential(nn.LayerNorm(HIDDEN), nn.GELU(), nn.Dropout(0.5)),
    "by torch": lambda: pyg.BatchNorm(HIDDEN, allow_single_element=True),
}


def gradients(model, out, **options):
    return [g.clone() for g in torch.autograd.grad(out.square().sum(), list(model.parameters()), **options)]


@pytest.mark.parametrize("base", BASES)
def test_gradients_asked_for_by_several_threads_are_all_right(base):
    model, _, engine = compiled(lambda: Stack(BASES[base], nn.BatchNorm1d(HIDDEN)))
    expected = gradients(model, engine())
    for found in in_threads(*[lambda: [gradients(model, engine()) for _ in range(8)]] * 4):
        torch.testing.assert_close(found, [expected] * 8, **CLOSE)


def another_call(model, engine):
    engine()


def a_whole_step(model, engine):
    engine().sum().backward()


def without_gradients(model, engine):
    with torch.no_grad():
        engine()


def predictions(model, engine):
    engine.predict()


def in_evaluation_mode(model, engine):
    model.eval()
    engine().sum().backward()


def nothing(model, engine):
    pass


@pytest.mark.parametrize("name", BETWEEN)
@pytest.mark.parametrize(
    "between", [another_call, a_whole_step, without_gradients, predictions, in_evaluation_mode, nothing]
)
def test_what_runs_before_a_backward_pass_does_not_change_its_gradients(between, name):
    model, _, engine = compiled(lambda: Stack(GCN, BETWEEN[name]()))
    out = engine()
    expected = gradients(model, out, retain_graph=True)
    state = torch.get_rng_state()
    between(model, engine)
    drawn, statistics = torch.get_rng_state(), [b.clone() for b in model.buffers()]
    modes = [module.training for module in model.modules()]
    found = []
    in_threads(lambda: found.extend(gradients(model, out)))
    torch.testing.assert_close(found, expected, **CLOSE)
    assert torch.equal(torch.get_rng_state(), drawn)
    assert torch.equal(drawn, state) or between is not nothing
    assert [module.training for module in model.modules()] == modes
    assert all(map(torch.equal, model.buffers(), statistics))


def test_the_backward_passes_of_two_calls_may_come_in_any_order():
    model, _, engine = compiled(lambda: Stack(GCN, BETWEEN["layer"]()))
    outs = [engine(), engine()]
    expected = [gradients(model, out, retain_graph=True) for out in outs]
    for first in (0, 1):
        for which in (first, 1 - first):
            found = gradients(model, outs[which], retain_graph=True)
            torch.testing.assert_close(found, expected[which], **CLOSE)
    together = gradients(model, torch.cat(outs))
    torch.testing.assert_close(together, [a + b for a, b in zip(*expected, strict=True)], **CLOSE)


def test_a_backward_pass_through_a_graph_that_is_freed_is_refused():
    model, _, engine = compiled(lambda: Stack(GCN, BETWEEN["layer"]()))
    out = engine()
    expected = gradients(model, out, retain_graph=True)
    torch.testing.assert_close(gradients(model, out), expected, **CLOSE)
    engine()
    with pytest.raises(RuntimeError, match="a second time"):
        out.sum().backward()  # PyTorch's sum keeps nothing that could be freed


def test_a_backward_pass_is_refused_if_what_it_needs_was_changed():
    model, data, engine = compiled(lambda: Stack(GCN, nn.BatchNorm1d(HIDDEN)))
    model.eval()
    out = engine()
    model.train()
    engine()
    with pytest.raises(RuntimeError, match="running statistics of a normalisation changed"):
        out.sum().backward()
    out = engine()
    data.x.mul_(2)
    with pytest.raises(RuntimeError, match="features or edges were changed in place"):
        out.sum().backward()


# ---- derivatives of derivatives


def with_penalty(model, out):
    """The gradient of a loss with a gradient penalty."""
    parameters = list(model.parameters())
    penalty = sum(
        g.square().sum() for g in torch.autograd.grad(out.square().sum(), parameters, create_graph=True)
    )
    return torch.autograd.grad(out.sum() + penalty, parameters)


@pytest.mark.parametrize("base", BASES)
def test_gradients_have_gradients(base):
    model, data, engine = compiled(lambda: Stack(BASES[base], nn.BatchNorm1d(HIDDEN)))
    assert engine.why is None
    for _ in range(2):
        before = [b.clone() for b in model.buffers()]
        expected = with_penalty(model, model(data.x, data.edge_index)[data.train_mask])
        once = [b.clone() for b in model.buffers()]
        for buffer, value in zip(model.buffers(), before, strict=True):
            buffer.copy_(value)
        largest = max(
            float(g.abs().max()) for g in expected
        )  # some are 0 up to rounding, as a bias before a norm
        torch.testing.assert_close(with_penalty(model, engine()), expected, rtol=1e-3, atol=1e-5 * largest)
        torch.testing.assert_close(list(model.buffers()), once, **CLOSE)
        assert "create_graph=True" in str(engine.why)  # and the second time as it is written from the start
    assert "create_graph=True" in engine.explain()


def test_hooks_of_parameters_see_each_gradient_once():
    model, data, engine = compiled(lambda: Stack(BASES["SAGEConv"]))
    model.first.lin_l.weight.register_hook(lambda grad: 3 * grad)
    parameters, found = list(model.parameters()), list[list[torch.Tensor]]()
    for run in (lambda: model(data.x, data.edge_index)[data.train_mask], engine):
        out = run()
        several = torch.autograd.grad(
            out, parameters, torch.stack([out, out + 1]).detach(), is_grads_batched=True
        )
        found.append([*several, *with_penalty(model, run())])
    torch.testing.assert_close(found[1], found[0], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("inplace", [False, True])
def test_second_derivatives_are_those_of_the_masks_of_the_call(inplace):
    model, _, engine = compiled(lambda: Stack(GCN, nn.Dropout(0.5, inplace)))
    out, parameters = engine(), list(model.parameters())
    engine()
    expected = gradients(model, out, retain_graph=True)
    found = torch.autograd.grad(out.square().sum(), parameters, create_graph=True)
    torch.testing.assert_close(found, tuple(expected), **CLOSE)
    assert all(g.requires_grad for g in found)


def test_a_call_that_cannot_be_differentiated_twice_says_so_and_the_next_can():
    model, _, engine = compiled(lambda: Stack(layer(pyg.GATConv, dropout=0.5)))
    with pytest.raises(RuntimeError, match="drops attention coefficients"):
        with_penalty(model, engine())
    assert all(g.isfinite().all() for g in with_penalty(model, engine()))


def test_layers_of_graphbraid_refuse_second_derivatives():
    graph = graphbraid.Graph.from_pyg(data_of("undirected"))
    model = graphbraid.nn.GCN(CHANNELS, HIDDEN, CLASSES)
    engine = graphbraid.compile(model, graph, nodes=[1, 2])
    with pytest.raises(ConfigError, match="GCN has no second derivatives"):
        with_penalty(model, engine())
    engine().sum().backward()
    assert engine.why is None


def hessian_vector(loss, parameters):
    along = tuple(map(torch.ones_like, parameters))
    return torch.func.jvp(
        torch.func.grad(lambda *p: loss(p), tuple(range(len(parameters)))), parameters, along
    )[1]


def by_vmap(loss, parameters):
    return torch.func.vmap(lambda *p: loss(p))(*(torch.stack([p, 2 * p]) for p in parameters))


def forward_mode(loss, parameters):
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(loss([forward_ad.make_dual(p, torch.ones_like(p)) for p in parameters]))


def by_functional(loss, parameters):
    along = tuple(map(torch.ones_like, parameters))
    return torch.autograd.functional.hvp(lambda *p: loss(p), parameters, along)


@pytest.mark.parametrize("transform", [hessian_vector, by_vmap, forward_mode, by_functional])
def test_transforms_of_a_function_of_the_parameters_are_those_of_the_model(transform):
    model, data, engine = compiled(lambda: Stack(GCN, nn.Tanh()))
    names, values = zip(*((name, p.detach()) for name, p in model.named_parameters()), strict=True)

    def of(run):
        def loss(parameters):
            with _reparametrize_module(model, dict(zip(names, parameters, strict=True))):
                return run().square().sum()

        return transform(loss, values)

    for _ in range(2):
        torch.testing.assert_close(
            of(engine), of(lambda: model(data.x, data.edge_index)[data.train_mask]), **CLOSE
        )
        assert engine.why is None
        data.edge_index = data.edge_index.flip(1)  # the next call inside of a transform finds it


class Doubles(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        return 2 * out if func is F.linear else out


@pytest.mark.filterwarnings("ignore:.*runs as it is written")
@pytest.mark.parametrize(
    "mode", [Doubles, lambda: FlopCounterMode(display=False), lambda: torch.device("meta")]
)
def test_modes_see_the_operations_of_the_model(mode):
    model, data, engine = compiled(lambda: Stack(GCN, nn.Tanh()))
    by_batch = graphbraid.compile(model)
    by_batch(data.x, data.edge_index)
    assert by_batch.why is None
    nodes, counts = data.train_mask.nonzero().view(-1), []
    for run in (engine, lambda: by_batch(data.x, data.edge_index)[nodes]):
        with mode() as seen:
            out = run()
        counts.append(seen.get_total_flops() if isinstance(seen, FlopCounterMode) else 0)
        with mode() as seen:
            torch.testing.assert_close(out, model(data.x, data.edge_index)[nodes], **CLOSE)
        counts.append(seen.get_total_flops() if isinstance(seen, FlopCounterMode) else 0)
    assert len({*counts}) == 1
    for known in (torch.device("cpu"), _Shapes()):  # the second is graphbraid's own
        with known:
            assert engine.why is None
            by_batch(data.x, data.edge_index)
            assert by_batch.why is None


@pytest.mark.filterwarnings("ignore:.*weight_norm", "ignore:.*as (they are|it is) written")
@pytest.mark.parametrize("kind", ["whole graph", "batches"])
@pytest.mark.parametrize(
    "change", [nn.utils.weight_norm, lambda part: prune.l1_unstructured(part, "weight", 1)]
)
def test_a_weight_that_a_transform_left_behind_is_no_obstacle(change, kind):
    torch.manual_seed(0)
    data, model = data_of("untidy"), Stack(GCN, nn.Linear(HIDDEN, HIDDEN))
    whole = kind == "whole graph"
    engine = graphbraid.compile(model, data) if whole else graphbraid.compile(model)
    change(model.between)
    names, values = zip(*((name, p.detach()) for name, p in model.named_parameters()), strict=True)

    def run():
        return engine() if whole else engine(data.x, data.edge_index)[data.train_mask]

    def loss(*parameters):
        with _reparametrize_module(model, dict(zip(names, parameters, strict=True))):
            return model(data.x, data.edge_index).square().sum()

    torch.func.grad(loss)(*values)
    torch.testing.assert_close(run(), model(data.x, data.edge_index)[data.train_mask], **CLOSE)


@pytest.mark.filterwarnings("ignore:.*parts of the model run as they are written")
@pytest.mark.parametrize("batched", [False, True])
def test_each_call_of_a_spectral_norm_keeps_its_own_vectors(batched):
    torch.manual_seed(0)
    data, model = data_of("untidy"), Stack(GCN)
    spectral_norm(model.first.lin)
    copied, found = copy.deepcopy(model), []
    engine = graphbraid.compile(model, data)
    for one, run in (
        (model, engine),
        (copied, lambda: copied(data.x, data.edge_index)[data.train_mask]),
    ):
        one.first.lin.parametrizations.weight[0]._u.copy_(torch.eye(HIDDEN)[0])
        out, parameters = run(), [*one.parameters()]
        if batched:
            grads = torch.autograd.grad(out[0], parameters, torch.eye(CLASSES), is_grads_batched=True)
        else:
            run()
            grads = torch.autograd.grad(out.square().sum(), parameters)
        found.append([*grads, *one.buffers()])
    torch.testing.assert_close(*found, **CLOSE)


@pytest.mark.filterwarnings("ignore:.*weight_norm", "ignore:.*as (they are|it is) written")
@pytest.mark.parametrize("change", [nn.utils.weight_norm, nn.utils.spectral_norm])
def test_a_weight_that_inference_mode_left_behind_is_no_obstacle(change):
    torch.manual_seed(0)
    data, model = data_of("untidy"), Stack(GCN, change(nn.Linear(HIDDEN, HIDDEN))).eval()
    engine = graphbraid.compile(model)
    with torch.inference_mode():
        engine(data.x, data.edge_index)
    model.between.bias.requires_grad_(False)
    torch.testing.assert_close(engine(data.x, data.edge_index), model(data.x, data.edge_index), **CLOSE)
    assert (engine.why is None) == (change is nn.utils.weight_norm)


@pytest.mark.filterwarnings("ignore")  # PyTorch's own, of numbers in the trace
def test_a_trace_of_an_engine_for_batches_records_the_model_as_it_is_written():
    data, model = data_of("untidy"), Stack(BASES["SAGEConv"])
    engine = graphbraid.compile(model)
    engine(data.x, data.edge_index)
    traced = torch.jit.trace(engine, (data.x, data.edge_index), check_trace=False)
    wanted = model(2 * data.x, data.edge_index)
    torch.testing.assert_close(traced(2 * data.x, data.edge_index), wanted)
    torch.testing.assert_close(engine(2 * data.x, data.edge_index), wanted)
    assert engine.why is None


def test_many_gradients_at_once_and_checkpoints_are_right():
    model, _, engine = compiled(lambda: Stack(GCN, nn.Dropout(0.5)))
    parameters, state = list(model.parameters()), torch.get_rng_state()
    expected = gradients(model, engine())
    torch.set_rng_state(state)
    again = checkpoint(lambda: engine().square(), use_reentrant=False).sum()
    torch.testing.assert_close(list(torch.autograd.grad(again, parameters)), expected, **CLOSE)
    out = engine()
    rows = torch.eye(CLASSES)
    one_by_one = [torch.autograd.grad(out.sum(0), parameters, row, retain_graph=True) for row in rows]
    together = torch.autograd.grad(out.sum(0), parameters, rows, is_grads_batched=True)
    torch.testing.assert_close(together, tuple(map(torch.stack, zip(*one_by_one, strict=True))), **CLOSE)


def test_a_checkpoint_may_be_the_first_to_see_a_change():
    model, data, engine = compiled(lambda: Stack(BASES["SAGEConv"]))
    torch.nn.utils.parametrizations.weight_norm(
        model.first.lin_l
    )  # reading makes the weight, which saves tensors
    expected = gradients(model, model(data.x, data.edge_index)[data.train_mask])
    again = checkpoint(lambda: engine().square(), use_reentrant=False).sum()
    torch.testing.assert_close(list(torch.autograd.grad(again, list(model.parameters()))), expected, **CLOSE)
