"""An engine follows what its model holds besides modules, at any depth, and what its class defines."""

import functools
from collections import deque
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from tests.extras import NO_PYG

pytest.importorskip("torch_geometric", reason=NO_PYG)
from tests.fullgraph.matrix.case import GCN
from tests.fullgraph.matrix.compare import LOWERED, engine_of, verdict
from tests.fullgraph.matrix.graphs import data_of
from tests.fullgraph.matrix.models import calls

from graphbraid.fullgraph.model.watch import ModelWatch


@dataclass(slots=True)
class Slots:
    """Settings without a ``__dict__``."""

    factor: float = 1.0


class Callable:
    """A function with settings."""

    def __init__(self):
        self.factor = 1.0

    def __call__(self, h):
        return h * self.factor


def holds_itself():
    held = [1.0]
    held.append(held)
    return held


def times(h, settings):
    return h * settings["factor"]


def scaled_by(read):
    """A forward whose result is scaled by ``read(model)``."""
    return lambda self, x, edge_index: self.head(self.first(x, edge_index)) * read(self)


HELD = {
    "a dict of dicts": (
        lambda: {"a": {"b": {"factor": 1.0}}},
        lambda held: held["a"]["b"]["factor"],
        lambda held: held["a"]["b"].update(factor=3.0),
    ),
    "a list of lists": (lambda: [[1.0]], lambda held: held[0][0], lambda held: held[0].insert(0, 3.0)),
    "a tuple of lists": (lambda: ([1.0],), lambda held: held[0][0], lambda held: held[0].insert(0, 3.0)),
    "a set": (lambda: {1.0}, max, lambda held: held.add(3.0)),
    "a queue": (lambda: deque([1.0]), lambda held: held[0], lambda held: held.appendleft(3.0)),
    "settings in settings": (
        lambda: SimpleNamespace(a=SimpleNamespace(factor=1.0)),
        lambda held: held.a.factor,
        lambda held: setattr(held.a, "factor", 3.0),
    ),
    "a tensor": (lambda: torch.ones(2), lambda held: float(held[0]), lambda held: held.fill_(3.0)),
    "a tensor in a list": (
        lambda: [torch.ones(2)],
        lambda held: float(held[0][1]),
        lambda held: held[0].fill_(3.0),
    ),
    "an object with slots": (Slots, lambda held: held.factor, lambda held: setattr(held, "factor", 3.0)),
    "objects in a dict": (
        lambda: {"a": Slots()},
        lambda held: held["a"].factor,
        lambda held: setattr(held["a"], "factor", 3.0),
    ),
    "an object that is called": (
        Callable,
        lambda held: held(1.0),
        lambda held: setattr(held, "factor", 3.0),
    ),
    "a part of a call": (
        lambda: functools.partial(times, settings={"factor": 1.0}),
        lambda held: held(1.0),
        lambda held: held.keywords["settings"].update(factor=3.0),
    ),
    "what holds itself": (
        holds_itself,
        lambda held: held[0],
        lambda held: held.insert(0, 3.0),
    ),
}


def compiled(forward, **parts):
    torch.manual_seed(2)
    data, model = data_of("untidy"), calls(forward)(GCN, **parts)
    engine = engine_of(model, data)
    assert verdict(engine) == LOWERED, engine.explain()
    return model, data, engine


def assert_follows(model, data, engine):
    with torch.no_grad():
        expected = model(data.x, data.edge_index)
        torch.testing.assert_close(engine(), expected[data.train_mask], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(engine.predict(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", HELD)
def test_what_a_model_holds_is_followed_at_any_depth(name):
    make, read, change = HELD[name]
    model, data, engine = compiled(scaled_by(lambda self: read(self.held)), held=make())
    assert_follows(model, data, engine)
    change(model.held)
    assert read(model.held) == 3.0
    assert_follows(model, data, engine)
    model.held = make()
    assert_follows(model, data, engine)


@pytest.mark.parametrize("inherited", [False, True])
def test_a_method_or_an_attribute_replaced_in_the_model_s_class_is_followed(inherited):
    model, data, engine = compiled(scaled_by(lambda self: getattr(self, "factor", 1.0)))
    kind = type(model)
    if inherited:
        model.__class__ = type("Inheriting", (kind,), {})
    assert_follows(model, data, engine)
    kind.factor = 3.0
    assert_follows(model, data, engine)
    kind.forward = lambda self, x, edge_index: self.head(self.first(x, edge_index).relu())
    assert_follows(model, data, engine)


def test_a_model_that_holds_very_much_is_looked_into_as_far_as_a_bound():
    model = calls(scaled_by(lambda self: 1.0))(GCN, held=[[number] for number in range(100_000)])
    watch = ModelWatch(model)
    assert len(watch._lists) < 1000
    seen = watch.now()
    assert watch.is_still(seen)
    model.held[0][0] = -1  # among those looked into
    assert not watch.is_still(seen)
