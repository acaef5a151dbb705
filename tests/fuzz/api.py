"""API calls: one of the public callables, called as it should be but for an argument or two."""

import importlib
import inspect
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tests.fuzz import values
from tests.fuzz.case import Planned, Verdict, shorten
from tests.fuzz.targets import TARGETS, UNTOUCHED, Call
from tests.fuzz.values import Value
from tests.fuzz.verdict import judge
from tests.fuzz.world import World, numbers_of, unequal

import graphbraid
from graphbraid.graph import Graph, ScaledFeatures, SparseFeatures
from graphbraid.graph.csc import Csc

for _room in ("graph", "ops", "train", "data", "features", "distributed", "synth", "typed"):
    importlib.import_module(f"tests.fuzz.targets_{_room}")

MODULES = (
    *("ops", "nn", "sampling", "datasets", "collective", "fullgraph", "train"),
    *("features", "distributed", "synth"),
)
_MISSING = inspect.Parameter.empty


def prepare(folder: Path) -> None:
    """Nothing is shared between cases."""


def untouched() -> list[str]:
    """Public callables that no target calls; a test holds this empty."""
    named = {name.split(" ")[0].split(".")[-1] for name in TARGETS}
    found = []
    for module in (graphbraid, *(importlib.import_module(f"graphbraid.{name}") for name in MODULES)):
        for name in module.__all__:
            if callable(getattr(module, name)) and name not in named and name not in UNTOUCHED:
                found.append(f"{module.__name__}.{name}")
    return found


def plan(numbers: random.Random, number: int, folder: Path) -> Planned:
    world = World()
    name = sorted(TARGETS)[number % len(TARGETS)]
    call = TARGETS[name](world)
    if numbers.random() < 0.25 and (chosen := _same(call, numbers)):
        argument, value = chosen
        return Planned(f"{name}({argument}: {value.label})", lambda: _compared(name, call, argument, value))
    replaced = _wrong(call, numbers)
    text = ", ".join(f"{argument}: {value.label}" for argument, value in replaced.items())
    return Planned(f"{name}({text})", lambda: _called(call, replaced))


def _wrong(call: Call, numbers: random.Random) -> dict[str, Value]:
    """One argument, now and then two, and what stands there instead."""
    places = _places(call)
    count = min(len(places), 2 if numbers.random() < 0.2 else 1)
    chosen = numbers.sample(sorted(places), count) if places else []
    return {argument: _instead_of(places[argument], numbers) for argument in chosen}


def _places(call: Call) -> dict[str, Any]:
    """The arguments that may be replaced: those given, and the options left out, with their defaults."""
    places = dict(call.arguments)
    try:
        parameters: Mapping[str, inspect.Parameter] = inspect.signature(call.function).parameters
    except (TypeError, ValueError):
        parameters = {}
    for name, parameter in parameters.items():
        positional = parameter.kind in (
            parameter.VAR_KEYWORD,
            parameter.VAR_POSITIONAL,
            parameter.POSITIONAL_ONLY,
        )
        if not positional and name not in places and not name.startswith("_") and "0" not in places:
            places[name] = None if parameter.default is _MISSING else parameter.default
    for name in call.options:
        places.setdefault(name, None)
    return {name: value for name, value in places.items() if name not in call.fixed}


def _instead_of(value: Any, numbers: random.Random) -> Value:
    broken = _broken_inside(value, numbers) if numbers.random() < 0.85 else None
    return broken or values.of(value, numbers)


def _broken_inside(value: Any, numbers: random.Random) -> Value | None:
    """A graph, an adjacency, sparse features or a mapping with one part of it replaced."""
    if isinstance(value, Csc):
        return _field(value, ("indptr", "indices", "num_src", "weight"), numbers, Csc)
    if isinstance(value, ScaledFeatures):
        return _field(value, ("values", "scale"), numbers, ScaledFeatures)
    if isinstance(value, SparseFeatures):
        return _field(value, ("indptr", "indices", "values", "num_cols"), numbers, SparseFeatures)
    if isinstance(value, Graph):
        part = numbers.choice(("csc", "x", "y", "splits", "edge_id", "in place"))
        if part == "in place":
            return _in_place(value, numbers)
        inner = _instead_of(getattr(value, part), numbers)
        return Value(f"with {part} {inner.label}", lambda: value.replace(**{part: inner.make()}))
    if isinstance(value, Mapping) and value:
        key = numbers.choice(sorted(value, key=str))
        inner = _instead_of(value[key], numbers)
        return Value(f"with {key} {inner.label}", lambda: {**value, key: inner.make()})
    if isinstance(value, list | tuple) and value and isinstance(value[0], Csc | torch.Tensor):
        place = numbers.randrange(len(value))
        inner = _instead_of(value[place], numbers)
        return Value(
            f"with [{place}] {inner.label}", lambda: [*value[:place], inner.make(), *value[place + 1 :]]
        )
    return None


def _field(value: Any, fields: tuple[str, ...], numbers: random.Random, kind: Callable[..., Any]) -> Value:
    name = numbers.choice(fields)
    inner = values.of(getattr(value, name), numbers)
    given = {field: getattr(value, field) for field in fields}
    return Value(f"with {name} {inner.label}", lambda: kind(**(given | {name: inner.make()})))


def _in_place(graph: Graph, numbers: random.Random) -> Value:
    """A graph whose labels or features were changed in place after it was checked."""
    name = numbers.choice(("y", "x"))
    tensor = getattr(graph, name)
    place, spot = numbers.randrange(tensor.numel()), numbers.choice((-1, 2, 100, 2**20))

    def changed() -> Graph:
        copy = graph.replace(**{name: tensor.clone()})
        getattr(copy, name).view(-1)[place] = spot
        return copy

    return Value(f"whose {name}[{place}] became {spot} in place", changed)


def _called(call: Call, replaced: Mapping[str, Value]) -> Verdict:
    try:
        _result(call, replaced)
    except Exception as error:
        return judge(error)
    return Verdict("ok")


def _result(call: Call, replaced: Mapping[str, Value]) -> Any:
    given = dict(call.arguments)
    for argument, value in replaced.items():
        try:
            given[argument] = value.make()
        except (RuntimeError, TypeError, ValueError, NotImplementedError, OverflowError) as error:
            if isinstance(error, graphbraid.GraphbraidError):
                raise
            given[argument] = None  # torch cannot make this form of it
    positions = [given.pop(str(i)) for i in range(10) if str(i) in given]
    return call.use(call.function(*positions, **given))


def _same(call: Call, numbers: random.Random) -> tuple[str, Value] | None:
    """An argument in another form that says the very same."""
    forms = {name: values.same(value) for name, value in call.arguments.items() if name not in call.fixed}
    forms = {name: found for name, found in forms.items() if found}
    if not forms or not call.exact:
        return None
    argument = numbers.choice(sorted(forms))
    return argument, numbers.choice(list(forms[argument]))


def _compared(name: str, call: Call, argument: str, value: Value) -> Verdict:
    wanted = numbers_of(_result(call, {}))
    fresh = TARGETS[name](World())
    fresh = replace(fresh, arguments={key: fresh.arguments[key] for key in fresh.arguments})
    try:
        got = numbers_of(_result(fresh, {argument: value}))
    except Exception as error:
        return judge(error)
    if text := unequal(wanted, got):
        form = value.label.split(", ")[-1]
        return Verdict(
            "differs", cause=f"{name}: {argument} as {form} gives other numbers", detail=shorten(text)
        )
    return Verdict("ok")
