"""A model compiled beside the model itself: outputs, gradients, buffers, steps of Adam, predictions."""

import copy

import torch
import torch.nn.functional as F

import graphbraid
from graphbraid.fullgraph import Uncompiled
from graphbraid.fullgraph.reading.calling import calling_of
from graphbraid.fullgraph.reading.read import Source

LOWERED, PARTLY, LEFT_ALONE = "lowered", "partly lowered", "left alone"


def engine_of(model, data):
    """The compiled model."""
    return graphbraid.compile(model, data, nodes=data.train_mask)


def verdict(engine):
    """Whether it was lowered, as a whole or with parts that run as they are written."""
    if isinstance(engine, Uncompiled):
        return LEFT_ALONE
    return PARTLY if engine.breaks else LOWERED


class Plain:
    """The model itself, in double precision unless said otherwise: what both must give."""

    def __init__(self, model, data, dtype=torch.float64):
        self.model, self.data = model.to(dtype), in_double(data, dtype)
        graph = graphbraid.Graph.from_pyg(data)
        self._calling = calling_of(model, Source(graph, data).given())

    def __call__(self):
        """Outputs of all nodes."""
        held = {**self.data.to_dict(), "data": self.data}
        held.setdefault("adj_t", held.get("edge_index"))
        held.setdefault("edge_index", held.get("adj_t"))
        return self._calling.run(self.model, held)


def in_double(data, dtype=torch.float64):
    return copy.copy(data).apply(lambda t: t.to(dtype) if t.is_floating_point() else t)


def assert_alike(model, twin, data, engine, *, steps=3, rtol=2e-4, atol=2e-5):
    """Some steps of both, in the mode the model is in, then the predictions.

    ``twin`` is another model with the same numbers.

    The tolerance is what float32 leaves of sums over some dozens of rows; one step of Adam divides by the
    root of squared gradients, so its rate is small enough that a sign near 0 does not matter.
    """
    plain = Plain(twin, data)
    parameters, theirs = list(model.parameters()), list(plain.model.parameters())
    optimizers = [torch.optim.Adam(p, lr=1e-4, eps=1e-4) for p in (parameters, theirs) if p]
    close = {"rtol": rtol, "atol": atol, "check_dtype": False}
    for _ in range(steps):
        ours, expected = engine(), plain()[data.train_mask]
        torch.testing.assert_close(ours, expected, **close)
        for outputs, group in ((ours, parameters), (expected, theirs)):
            for parameter in group:
                parameter.grad = None
            if outputs.requires_grad:
                F.cross_entropy(outputs, data.y[data.train_mask]).backward()
        for (name, a), b in zip(model.named_parameters(), theirs, strict=True):
            zero = torch.zeros_like(a)
            torch.testing.assert_close(
                zero if a.grad is None else a.grad,
                zero if b.grad is None else b.grad,
                msg=lambda m, n=name: f"{n}: {m}",
                **close,
            )
        for (name, a), b in zip(model.named_buffers(), plain.model.buffers(), strict=True):
            torch.testing.assert_close(a, b, msg=lambda m, n=name: f"{n}: {m}", **close)
        for optimizer in optimizers:
            optimizer.step()
    modes = [module.training for module in model.modules()]
    predicted = engine.predict()
    assert [module.training for module in model.modules()] == modes
    plain.model.eval()
    torch.testing.assert_close(predicted, plain().detach(), **close)
