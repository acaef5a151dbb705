"""State between an engine's forward and backward pass belongs to the call, whatever runs in between."""

import threading

import pytest
import torch
from tests.extras import NO_PYG

pytest.importorskip("torch_geometric", reason=NO_PYG)
import torch_geometric.nn as pyg
from tests.fullgraph.matrix.case import BASES, GCN
from tests.fullgraph.matrix.models import HIDDEN, Stack
from tests.fullgraph.test_following import CLOSE, compiled
from torch import nn

BETWEEN = {
    "batch": lambda: nn.Sequential(nn.BatchNorm1d(HIDDEN), nn.ReLU(), nn.Dropout(0.5)),
    "layer": lambda: nn.Sequential(nn.LayerNorm(HIDDEN), nn.GELU(), nn.Dropout(0.5)),
    "by torch": lambda: pyg.BatchNorm(HIDDEN, allow_single_element=True),
}


def gradients(model, out, **options):
    return [g.clone() for g in torch.autograd.grad(out.square().sum(), list(model.parameters()), **options)]


def in_threads(work, count):
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("base", BASES)
def test_gradients_asked_for_by_several_threads_are_all_right(base):
    model, _, engine = compiled(lambda: Stack(BASES[base], nn.BatchNorm1d(HIDDEN)))
    expected, found = gradients(model, engine()), []
    in_threads(lambda: found.extend(gradients(model, engine()) for _ in range(8)), 4)
    assert len(found) == 32
    for ours in found:
        torch.testing.assert_close(ours, expected, **CLOSE)


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
    in_threads(lambda: found.extend(gradients(model, out)), 1)
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


def test_a_backward_pass_is_refused_if_what_it_needs_was_changed():
    model, _, engine = compiled(lambda: Stack(GCN, nn.BatchNorm1d(HIDDEN)))
    model.eval()
    out = engine()
    model.train()
    engine()
    with pytest.raises(RuntimeError, match="running statistics of a normalisation changed"):
        out.sum().backward()
