"""Kernels: an operator on random sound inputs, by a compiled variant and by its twin in plain PyTorch.

The tolerances are those of the tests in ``tests/ops``; whole numbers, topologies and batches must be equal.
"""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tests.fuzz.case import Planned, Verdict, shorten
from tests.fuzz.kernel_calls import CALLS
from tests.fuzz.kernel_inputs import Inputs
from tests.ops.graphs import close
from torch import Tensor

from graphbraid import native

Results = dict[str, Tensor | None]


def prepare(folder: Path) -> None:
    """Nothing is shared between cases.

    Raises:
        RuntimeError: there are no compiled kernels here to compare.
    """
    if native.kernels() is None:
        raise RuntimeError(f"no compiled kernels run here: {native.active().reason}")


def plan(numbers: random.Random, number: int, folder: Path) -> Planned:
    name = sorted(CALLS)[number % len(CALLS)]
    runs = [variant for variant in native.COMPILED_VARIANTS if native.unsupported_reason(variant) is None]
    variant, threads, seed = numbers.choice(runs), numbers.choice((1, 2, 3)), numbers.random()
    said = Inputs(random.Random(seed))
    CALLS[name](said)  # draws what it will be called with, and calls nothing
    text = f"{name} by {variant} with {threads} threads: {', '.join(said.said)}"
    return Planned(text, lambda: _compared(name, variant, threads, seed))


def _compared(name: str, variant: str, threads: int, seed: float) -> Verdict:
    kernels = native.kernels()
    assert kernels is not None
    kernels.select(variant)
    torch.set_num_threads(threads)
    found, _ = _results(name, seed)
    native.kernels = _without_kernels
    expected, inputs = _results(name, seed)
    for part, wanted in expected.items():
        if text := _unequal(found[part], wanted, inputs):
            return Verdict("differs", cause=f"{name}: {part} differs from the twin's", detail=text)
    return Verdict("ok")


def _without_kernels() -> Any | None:
    return None


def _results(name: str, seed: float) -> tuple[Results, Inputs]:
    """What the call gives, with its inputs made anew."""
    inputs = Inputs(random.Random(seed))
    call: Callable[[], Results] = CALLS[name](inputs)
    torch.manual_seed(int(seed * 1e6))  # of dropout
    return call(), inputs


def _unequal(found: Tensor | None, wanted: Tensor | None, inputs: Inputs) -> str:
    if found is None or wanted is None:
        return "" if found is wanted else f"{found!r} in place of {wanted!r}"
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return f"{found.dtype} {tuple(found.shape)} in place of {wanted.dtype} {tuple(wanted.shape)}"
    if not wanted.is_floating_point():
        return "" if torch.equal(found, wanted) else f"{int((found != wanted).sum())} numbers differ"
    found, wanted = (
        _as_fine_as(inputs.coarsest, found.detach()),
        _as_fine_as(inputs.coarsest, wanted.detach()),
    )
    largest = float(wanted.double().abs().nan_to_num(0, 0).max()) if wanted.numel() else 0.0
    try:
        close(found, wanted, terms=inputs.terms * max(1.0, largest) ** 2)
    except AssertionError as error:
        return shorten(error, 300)
    return ""


def _as_fine_as(dtype: torch.dtype | None, values: Tensor) -> Tensor:
    is_finer = dtype is not None and torch.finfo(values.dtype).eps < torch.finfo(dtype).eps
    return values.to(dtype) if is_finer else values
