"""Lent memory: used again when nobody reads it any more, and never before."""

import gc

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.fullgraph.graphs import CLASSES, make_graph
from tests.fullgraph.test_engine import MODELS, loss_of

import graphbraid
from graphbraid.fullgraph.step.tasks import BufferPool

KEEPERS = {
    "itself": lambda t: t,
    "a view": lambda t: t[0, 1:2],
    "detached": lambda t: t.detach(),
    "an array": lambda t: t.numpy()[:1],
    "a storage": lambda t: t.untyped_storage(),
    "what autograd saved": lambda t: (t * torch.ones(2, 3, requires_grad=True)).sum(),
}


@pytest.mark.parametrize("keeper", KEEPERS)
def test_memory_that_something_reads_is_not_lent_again(keeper):
    lender = BufferPool((2, 3))
    tensor = lender.lend()
    address = tensor.data_ptr()
    kept = KEEPERS[keeper](tensor)
    del tensor
    assert lender.lend().data_ptr() != address
    del kept
    gc.collect()
    assert lender.lend().data_ptr() == address


@given(st.lists(st.integers(0, 5), max_size=40))
def test_no_two_tensors_that_live_share_a_byte(moves):
    lender, alive = BufferPool((3,)), {}
    for number, slot in enumerate(moves):
        alive[slot] = lender.lend().fill_(number), number
        for tensor, expected in alive.values():
            assert tensor.tolist() == [expected] * 3


def test_memory_of_many_kept_tensors_is_given_back():
    lender = BufferPool((4,))
    kept = [lender.lend() for _ in range(50)]
    assert len({t.data_ptr() for t in kept}) == 50
    assert len(lender._memories) < 5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_lent_tensor_is_like_any_other(dtype):
    lent = BufferPool((2, 5), dtype).lend()
    assert (lent.shape, lent.dtype, lent.is_contiguous()) == ((2, 5), dtype, True)
    assert BufferPool((0, 5), dtype).lend().shape == (0, 5)
    torch.testing.assert_close(lent.fill_(2.0).mul_(3.0), torch.full((2, 5), 6.0, dtype=dtype))


# How a caller may treat p.grad between two steps.
HABITS = {
    "to none": lambda parameters, _: [setattr(p, "grad", None) for p in parameters],
    "to zero": lambda parameters, _: [p.grad.zero_() for p in parameters if p.grad is not None],
    "added up": lambda parameters, _: None,
    "kept": lambda parameters, kept: (
        kept.extend((p.grad, p.grad.clone()) for p in parameters if p.grad is not None),
        [setattr(p, "grad", None) for p in parameters],
    ),
}


@pytest.mark.parametrize("habit", HABITS)
@pytest.mark.parametrize("name", ["gcn", "gat", "batch norm, gelu", "layer norm, elu"])
def test_gradients_are_the_model_s_whatever_is_done_with_them(name, habit):
    graph = make_graph(sparse=name == "gcn", density=0.3)
    torch.manual_seed(1)
    model = MODELS[name](dropout=0.0)
    engine, parameters = graphbraid.compile(model, graph), list(model.parameters())
    train = graph.split("train")

    def grads(outputs):
        kept, seen = [], []
        for parameter in parameters:
            parameter.grad = None
        for _ in range(4):
            HABITS[habit](parameters, kept)
            loss_of(outputs(), graph).backward()
            seen += [torch.zeros(()) if p.grad is None else p.grad.clone() for p in parameters]
        for gradient, copy in kept:
            assert torch.equal(gradient, copy), "a gradient that was kept has changed"
        return seen

    ours, theirs = grads(engine), grads(lambda: model(graph.x, graph.csc)[train])
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=5e-5)


def test_a_gradient_becomes_the_parameter_s_without_a_copy(monkeypatch):
    lent = []
    lend = BufferPool.lend
    monkeypatch.setattr(BufferPool, "lend", lambda self: [lent.append((t := lend(self)).data_ptr()), t][1])
    graph, model = make_graph(), MODELS["sage"](dropout=0.0)
    loss_of(graphbraid.compile(model, graph)(), graph).backward()
    assert {p.grad.data_ptr() for p in model.parameters()} <= set(lent)


def test_outputs_that_are_kept_stay_as_they_are():
    graph, model = make_graph(), MODELS["gcn"](dropout=0.0)
    engine = graphbraid.compile(model, graph)
    kept = []
    for step in range(5):
        with torch.no_grad():
            next(model.parameters()).add_(0.1 * step)
        kept += [(t, t.detach().clone()) for t in (engine(), engine.predict())]
    assert kept[0][0].shape == (len(graph.split("train")), CLASSES)
    for output, copy in kept:
        assert torch.equal(output, copy)
    assert not torch.equal(kept[0][0], kept[-2][0])
