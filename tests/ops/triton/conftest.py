"""The Triton kernels beside their twins: on a CUDA device, or on the CPU through Triton's interpreter."""

import importlib
import importlib.util
import inspect
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tests.interpreter import INTERPRETED, device, mark, quicker_interpreter
from torch import Tensor

from graphbraid.ops import reference
from graphbraid.ops.library import RowEpilogue

__all__ = ["device", "quicker_interpreter"]
SLOW = (torch.bfloat16, torch.float16, 257, "int64 ids")
"""Parameters of tests that differ in them alone from one that runs anyway: interpreted kernels take long."""


def pytest_collection_modifyitems(items):
    for item in mark(items, Path(__file__).parent):
        if INTERPRETED and _is_slow(item):
            item.add_marker(pytest.mark.slow)


def _is_slow(item):
    given = getattr(item, "callspec", None)
    return given is not None and any(
        value in SLOW for value in given.params.values() if not _is_container(value)
    )


def _is_container(value):
    return isinstance(value, Tensor | list | dict | tuple)


@pytest.fixture
def kernels(device):
    """The Triton kernels, taking and giving tensors of the CPU."""
    launchers = vars(importlib.import_module("graphbraid.ops.triton"))
    found = {name: _from_cpu(one, device) for name, one in launchers.items() if inspect.isfunction(one)}
    return SimpleNamespace(**found)


@pytest.fixture
def both(kernels):
    """``both(name, arguments, outputs)``: pairs of what kernel and twin write over copies of ``outputs``."""

    def run(name, arguments, outputs):
        written = []
        for module in (kernels, reference):
            copies = [None if out is None else out.clone() for out in outputs]
            getattr(module, name)(*arguments, *copies)
            written.append(copies)
        return [pair for pair in zip(*written, strict=True) if pair[0] is not None]

    return run


@pytest.fixture
def short_segments(device, monkeypatch):
    """Cut rows of more than 8 edges into segments, so that small graphs have hubs."""
    monkeypatch.setattr("graphbraid.ops.triton.partition.SEGMENT", 8)


def _from_cpu(function, device):
    def run(*arguments):
        moved = [_moved(device, a) for a in arguments]
        function(*moved)
        for before, after in zip(arguments, moved, strict=True):
            if isinstance(before, Tensor) and after is not before:
                before.copy_(after)

    return run


def _moved(device, argument):
    if isinstance(argument, RowEpilogue):
        return RowEpilogue(*(_moved(device, field) for field in argument))
    return _on(device, argument) if isinstance(argument, Tensor) else argument


def _on(device, tensor):
    """``tensor`` on the device with the strides it has; itself if it is there."""
    if tensor.device.type == device.type:
        return tensor
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device).copy_(tensor)
