"""The twins are the table of signatures: compiled entries and Triton's launchers take the same arguments."""

import importlib
import inspect
import typing

import pytest
import torch
from tests.extras import NO_TRITON
from tests.kernels import needs_kernels
from tests.ops.native_signatures import arguments_of, array_arguments

from graphbraid import native
from graphbraid.ops import reference
from graphbraid.ops.reference.rows import Kind

TWINS = [name for name, value in vars(reference).items() if inspect.isfunction(value)]
NOT_COMPILED = {"gather_tiered", "pipelined_sum", "sum_dtype"}
"""Twins of kernels that run on devices alone; and what says in which dtype all of them sum."""


@pytest.mark.parametrize("name", [name for name in TWINS if name not in NOT_COMPILED])
@needs_kernels
def test_a_compiled_entry_takes_what_its_twin_takes(name):
    twin, entry = getattr(reference, name), getattr(native.kernels(), name)
    parameters = inspect.signature(twin).parameters
    defaults = [one.default is not one.empty for one in parameters.values()]
    assert [(argument, " = " in kind) for argument, kind in arguments_of(entry)] == [
        *zip(parameters, defaults, strict=True)
    ]
    kinds = {name: kind_of(hint) for name, hint in typing.get_type_hints(twin, include_extras=True).items()}
    arrays = {argument.name: argument for argument in array_arguments(entry)}
    assert {name for name, kind in kinds.items() if kind} == set(arrays)
    for argument, array in arrays.items():
        dtypes = {getattr(torch, dtype) for dtype in array.dtypes}
        assert (array.dimensions, dtypes) == (kinds[argument].dimensions, {*kinds[argument].dtypes}), argument


def kind_of(hint):
    """The kind in an annotation that is one, or one or None."""
    for one in (hint, *typing.get_args(hint)):
        found = [kind for kind in getattr(one, "__metadata__", ()) if isinstance(kind, Kind)]
        if found:
            return found[0]
    return None


def test_triton_launchers_take_what_their_twins_take():
    pytest.importorskip("triton", reason=NO_TRITON)
    kernels = importlib.import_module("graphbraid.ops.triton")
    launchers = {name for name, value in vars(kernels).items() if inspect.isfunction(value)}
    assert len(launchers) > 25
    assert launchers <= set(TWINS)
    for name in launchers:
        own, twin = (inspect.signature(getattr(module, name)).parameters for module in (kernels, reference))
        assert [(p.name, p.default) for p in own.values()] == [(p.name, p.default) for p in twin.values()]
