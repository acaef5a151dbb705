"""An engine follows what its model's forward reads besides modules, wherever, and its training nodes."""

import functools
import os
import sys
import threading
from collections import OrderedDict, deque
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import repeat
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from tests.beside_pyg import pyg
from tests.fullgraph.matrix.case import GCN
from tests.fullgraph.matrix.compare import LOWERED, engine_of, verdict
from tests.fullgraph.matrix.graphs import data_of
from tests.fullgraph.matrix.models import HIDDEN, calls
from torch_geometric import data as pyg_data

import graphbraid
from graphbraid.errors import DataError
from graphbraid.fullgraph.reading.watch import ModelWatch


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
    "an object that is called": (Callable, lambda held: held(1.0), lambda held: setattr(held, "factor", 3.0)),
    "a part of a call": (
        lambda: functools.partial(times, settings={"factor": 1.0}),
        lambda held: held(1.0),
        lambda held: held.keywords["settings"].update(factor=3.0),
    ),
    "what holds itself": (holds_itself, lambda held: held[0], lambda held: held.insert(0, 3.0)),
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


OF_PYG = {
    "the powers of MixHop": (
        lambda: pyg.MixHopConv(HIDDEN, HIDDEN // 2, powers=[0, 1]),
        lambda layer: layer.powers.__setitem__(0, 1),
    ),
    "the scalers of PNA": (
        lambda: pyg.PNAConv(HIDDEN, HIDDEN, ["mean"], ["identity", "linear"], torch.tensor([1, 2, 1])),
        lambda layer: layer.aggr_module.scaler.__setitem__(1, "attenuation"),
    ),
}


@pytest.mark.parametrize("name", OF_PYG)
def test_a_list_that_a_layer_of_pyg_holds_is_followed(name):
    make, change = OF_PYG[name]
    model, data, engine = compiled(
        lambda self, x, edge_index: self.head(self.held(self.first(x, edge_index), edge_index)), held=make()
    )
    batches = graphbraid.compile(model)
    for _ in range(2):
        assert_follows(model, data, engine)
        expected = model(data.x, data.edge_index)
        torch.testing.assert_close(batches(data.x, data.edge_index), expected, rtol=1e-4, atol=1e-5)
        change(model.held)


# ---- what a forward reads outside of its model

FACTOR = 1.0
CONFIG = ModuleType("config_of_a_test")
SETTINGS = {"a": SimpleNamespace(factor=1.0)}


class Config:
    """Settings in a class, some of them computed."""

    factor = 1.0
    listed = (1.0,)

    @property
    def of_property(self):
        return FACTOR

    @classmethod
    def of_class(cls):
        return cls.factor

    def of_method(self, name):
        return getattr(self, f"fac{name}")


CONFIGURED = Config()
OTHER_MODEL = torch.nn.Linear(1, 1)
LEARNED = torch.ones(1, requires_grad=True)


def by_default(self, factor=1.0):
    return factor


def by_keyword(self, *, factor=1.0):
    return factor


def by_attribute(self):
    return by_attribute.factor


def decorated(function):
    @functools.wraps(function)
    def call(*arguments):
        return function(*arguments) * FACTOR

    return call


@decorated
def by_decorated(self):
    return 1.0


def by_import(self):
    from config_of_a_test import factor

    return factor


def by_closure():
    factor = 1.0

    def read(self):
        return factor

    def change():
        nonlocal factor
        factor = 3.0

    return read, change


ORDERED = OrderedDict(a=1.0, b=3.0)


def fresh(monkeypatch):
    """Give all that is read its first values for one test."""
    monkeypatch.setattr(CONFIG, "factor", 1.0, raising=False)
    monkeypatch.setitem(sys.modules, "config_of_a_test", CONFIG)
    monkeypatch.setitem(globals(), "FACTOR", 1.0)
    monkeypatch.setitem(SETTINGS, "a", SimpleNamespace(factor=1.0))
    monkeypatch.setattr(Config, "factor", 1.0)
    monkeypatch.setitem(CONFIGURED.__dict__, "factor", 1.0)
    monkeypatch.setattr(by_attribute, "factor", 1.0, raising=False)
    monkeypatch.setattr(by_default, "__defaults__", (1.0,))
    monkeypatch.setattr(by_keyword, "__kwdefaults__", {"factor": 1.0})
    monkeypatch.setattr(OTHER_MODEL, "factor", 1.0, raising=False)
    LEARNED.detach().fill_(1.0)
    monkeypatch.setenv("FACTOR_OF_A_TEST", "1.0")
    ORDERED.move_to_end("b")


OUTSIDE = {
    "a global": (lambda self: FACTOR, lambda: globals().update(FACTOR=3.0)),
    "a global of a function in a function": (
        lambda self: {"a": lambda: by_decorated(self)}["a"](),
        lambda: globals().update(FACTOR=3.0),
    ),
    "a function replaced": (
        lambda self: 1.0 * by_decorated(self),
        lambda: globals().update(by_decorated=lambda self: 3.0),
    ),
    "a default": (lambda self: 1.0 * by_default(self), lambda: setattr(by_default, "__defaults__", (3.0,))),
    "a keyword's default": (
        lambda self: 1.0 * by_keyword(self),
        lambda: by_keyword.__kwdefaults__.update(factor=3.0),
    ),
    "a function's attribute": (by_attribute, lambda: setattr(by_attribute, "factor", 3.0)),
    "a module's attribute": (lambda self: CONFIG.factor, lambda: setattr(CONFIG, "factor", 3.0)),
    "what is imported as it runs": (by_import, lambda: setattr(CONFIG, "factor", 3.0)),
    "settings in a dict": (lambda self: SETTINGS["a"].factor, lambda: setattr(SETTINGS["a"], "factor", 3.0)),
    "an attribute of a class": (lambda self: Config.factor, lambda: setattr(Config, "factor", 3.0)),
    "an attribute of another model": (
        lambda self: OTHER_MODEL.factor,
        lambda: setattr(OTHER_MODEL, "factor", 3.0),
    ),
    "a tensor trained elsewhere": (lambda self: LEARNED.item(), lambda: LEARNED.detach().fill_(3.0)),
    "a class method": (lambda self: Config.of_class(), lambda: setattr(Config, "factor", 3.0)),
    "a property": (lambda self: CONFIGURED.of_property, lambda: globals().update(FACTOR=3.0)),
    "a name made as it runs": (
        lambda self: CONFIGURED.of_method("tor"),
        lambda: setattr(CONFIGURED, "factor", 3.0),
    ),
    "the environment": (
        lambda self: float(os.environ["FACTOR_OF_A_TEST"]),
        lambda: os.environ.update(FACTOR_OF_A_TEST="3.0"),
    ),
    "the environment by a function": (
        lambda self: float(os.getenv("FACTOR_OF_A_TEST")),
        lambda: os.environ.update(FACTOR_OF_A_TEST="3.0"),
    ),
    "the order of a dict": (lambda self: next(iter(ORDERED.values())), lambda: ORDERED.move_to_end("a")),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_what_a_forward_reads_outside_of_its_model_is_followed(name, monkeypatch):
    fresh(monkeypatch)
    read, change = OUTSIDE[name]
    model, data, engine = compiled(scaled_by(read))
    for expected in (1.0, 3.0):
        assert read(model) == expected
        assert_follows(model, data, engine)
        assert engine.why is None
        change()


VARIABLE, LOCAL, BYTES = ContextVar("VARIABLE", default=1.0), threading.local(), bytearray(b"\1")
LOCAL.factor = 1.0
UNSEEN = {
    "a context variable": (lambda self: VARIABLE.get(), lambda: VARIABLE.set(3.0)),
    "a thread's variable": (lambda self: LOCAL.factor, lambda: setattr(LOCAL, "factor", 3.0)),
    "bytes": (lambda self: float(BYTES[0]), lambda: BYTES.__setitem__(0, 3)),
    "the default dtype": (
        lambda self: 3.0 if torch.get_default_dtype() == torch.float64 else 1.0,
        lambda: torch.set_default_dtype(torch.float64),
    ),
    "deterministic algorithms": (
        lambda self: 3.0 if torch.are_deterministic_algorithms_enabled() else 1.0,
        lambda: torch.use_deterministic_algorithms(True),
    ),
    "earlier gradients": (
        lambda self: 1.0 if LEARNED.grad is None else 3.0,
        lambda: setattr(LEARNED, "grad", torch.ones_like(LEARNED)),
    ),
}


@pytest.mark.parametrize("name", UNSEEN)
def test_a_forward_that_reads_what_no_watch_sees_runs_as_it_is_written(name, monkeypatch):
    fresh(monkeypatch)
    read, change = UNSEEN[name]
    data, model = data_of("untidy"), calls(scaled_by(read))(GCN)
    engine = engine_of(model, data)
    try:
        for expected in (1.0, 3.0):
            assert read(model) == expected
            assert_follows(model, data, engine)
            assert "cannot be followed" in str(engine.why)
            change()
    finally:
        torch.set_default_dtype(torch.float32)
        torch.use_deterministic_algorithms(False)
        LEARNED.grad = None


def test_a_variable_of_an_enclosing_function_is_followed():
    read, change = by_closure()
    model, data, engine = compiled(scaled_by(read))
    assert_follows(model, data, engine)
    change()
    assert read(model) == 3.0
    assert_follows(model, data, engine)


def test_a_global_with_the_name_of_an_attribute_is_not_taken_for_it(monkeypatch):
    _, _, engine = compiled(scaled_by(lambda self: self.factor), factor=1.0)
    engine()
    monkeypatch.setitem(globals(), "factor", 2.0)
    before = engine._tracker.now()
    assert engine._tracker.now() is before


# ---- a forward with effects

COUNTED = {"calls": 0, "list": [0], "object": SimpleNamespace(calls=0), "tensor": torch.zeros(1)}
CALLS = 0


def counts_in_a_global(self):
    global CALLS  # noqa: PLW0603 - what is tested
    CALLS += 1
    return 1.0


def counts_in_a_dict(self):
    COUNTED["calls"] += 1
    return 1.0


def counts_in_a_list(self):
    COUNTED["list"].append(0)
    return 1.0


def counts_in_an_object(self):
    COUNTED["object"].calls += 1
    return 1.0


def counts_in_a_tensor(self):
    COUNTED["tensor"].add_(1)
    return 1.0


def counts_in_a_module(self):
    CONFIG.calls += 1
    return 1.0


def draws_from_an_iterator(self):
    return next(self.numbers)


def counts_so_far():
    tensor, listed = int(COUNTED["tensor"]), len(COUNTED["list"])
    return CALLS, COUNTED["calls"], listed, COUNTED["object"].calls, tensor, CONFIG.calls


@pytest.mark.parametrize(
    "counts",
    [
        counts_in_a_global,
        counts_in_a_dict,
        counts_in_a_list,
        counts_in_an_object,
        counts_in_a_tensor,
        counts_in_a_module,
        draws_from_an_iterator,
    ],
)
def test_a_forward_with_effects_runs_as_it_is_written_and_reading_it_has_none(counts, monkeypatch):
    monkeypatch.setattr(CONFIG, "calls", 0, raising=False)
    data, model = data_of("untidy"), calls(scaled_by(counts))(GCN, numbers=iter([1.0, 2.0, 3.0]))
    before = counts_so_far()
    engine = engine_of(model, data)
    assert verdict(engine) != LOWERED
    assert counts_so_far() == before
    engine()
    if counts is draws_from_an_iterator:
        assert next(model.numbers) == 2.0
    else:
        assert sum(counts_so_far()) == sum(before) + 1


# ---- more than can be followed


def test_what_no_forward_reads_is_not_looked_into():
    model = calls(scaled_by(lambda self: 1.0))(GCN, held=[[number] for number in range(100_000)])
    watch = ModelWatch(model)
    assert len(tuple(watch._values())) < 1000
    model.held[0][0] = -1
    assert not watch.has_changed()
    model.held = []
    assert watch.has_changed()


@pytest.mark.parametrize("held", [[[number] for number in range(5000)], np.ones(1000)])
def test_a_model_that_reads_more_than_can_be_followed_runs_as_it_is_written(held):
    data, model = data_of("untidy"), calls(scaled_by(lambda self: float(self.held[0])))(GCN, held=np.ones(1))
    assert verdict(engine_of(model, data)) == LOWERED
    model = calls(scaled_by(lambda self: len(self.held)))(GCN, held=held)
    engine = engine_of(model, data)
    assert "cannot be followed" in engine.explain()
    torch.testing.assert_close(engine(), model(data.x, data.edge_index)[data.train_mask])


def test_a_value_that_changes_in_every_call_runs_as_it_is_written_until_it_stays():
    model, data, engine = compiled(scaled_by(lambda self: self.factor), factor=0.0)
    for step in range(20):
        model.factor = float(step)
        with torch.no_grad():
            expected = model(data.x, data.edge_index)[data.train_mask]
            torch.testing.assert_close(engine(), expected, rtol=1e-4, atol=1e-5)
    model.factor = 0.5
    assert "changed in each of the last" in str(engine.why)
    assert_follows(model, data, engine)
    assert engine.why is None


# ---- nodes


def mask_of(data, start):
    mask = torch.zeros(data.num_nodes, dtype=torch.bool)
    mask[start::3] = True
    return mask


@pytest.mark.parametrize("lowered", [True, False])
@pytest.mark.parametrize("by_name", [True, False])
def test_training_nodes_that_change_are_followed(lowered, by_name):
    torch.manual_seed(2)
    data = data_of("untidy")
    data.train_mask = mask_of(data, 0)
    read = (lambda self: 1.0) if lowered else draws_from_an_iterator
    model = calls(scaled_by(read))(GCN, numbers=repeat(1.0))
    engine = graphbraid.compile(model, data, nodes="train" if by_name else data.train_mask)
    assert (verdict(engine) == LOWERED) is lowered

    def check():
        with torch.no_grad():
            expected = model(data.x, data.edge_index)[data.train_mask]
            torch.testing.assert_close(engine(), expected, rtol=1e-4, atol=1e-5)

    check()
    data.train_mask[:7] = ~data.train_mask[:7]
    check()
    if by_name:
        for start in (1, 2):
            data.train_mask = mask_of(data, start)
            check()
        data.train_mask = data.train_mask[:-1]
        with pytest.raises(DataError, match="train_mask must mark"):
            engine()


def test_training_nodes_of_a_type_that_change_are_followed():
    data, model = typed_data(), typed_model()
    engine = graphbraid.compile(model, data, node_type="a")
    for start in (0, 1):
        data["a"].train_mask = mask_of(data["a"], start)
        with torch.no_grad():
            expected = model(data.x_dict, data.edge_index_dict)["a"][data["a"].train_mask]
            torch.testing.assert_close(engine(), expected, rtol=1e-4, atol=1e-5)


def typed_data():
    data = pyg_data.HeteroData()
    data["a"].x = torch.randn(20, 4)
    data["a"].y = torch.zeros(20, dtype=torch.long)
    data["a"].train_mask = mask_of(data["a"], 2)
    data["a", "to", "a"].edge_index = torch.randint(0, 20, (2, 60))
    return data


def typed_model():
    class Typed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = pyg.HeteroConv({("a", "to", "a"): pyg.SAGEConv(4, 3)})

        def forward(self, x_dict, edge_index_dict):
            return self.layer(x_dict, edge_index_dict)

    return Typed()
