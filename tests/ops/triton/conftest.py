"""The Triton kernels beside their twins: on a CUDA device, or on the CPU through Triton's interpreter.

A process either compiles or interprets: that is decided as triton and the kernels are imported. Without a
CUDA device they are imported here, before any test can do so, and to be interpreted; the variable that says
so is set for that and during these tests only, since other tests start processes of their own.
TRITON_INTERPRET=1 asks for the interpreter where there is a device.
"""

import importlib
import importlib.util
import os
import sys
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from graphbraid.ops import reference

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1" or not torch.cuda.is_available()
MISSING = importlib.util.find_spec("triton") is None
TOO_LATE = INTERPRETED and "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1"

if INTERPRETED and not MISSING and not TOO_LATE:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        importlib.import_module("graphbraid.ops.triton")


@pytest.fixture(params=["interpreter", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request, monkeypatch):
    """Where the kernels of this test run."""
    if MISSING:
        pytest.skip("needs triton: pip install 'graphbraid[triton]'")
    if request.param == "cuda" and INTERPRETED:
        pytest.skip("needs a CUDA device, and TRITON_INTERPRET not set")
    if request.param == "interpreter" and not INTERPRETED:
        pytest.skip("the kernels run on the CUDA device; TRITON_INTERPRET=1 interprets them instead")
    assert not TOO_LATE, "triton was imported before tests/ops/triton, so it cannot be made to interpret"
    if INTERPRETED:
        monkeypatch.setenv("TRITON_INTERPRET", "1")
    return torch.device("cpu" if INTERPRETED else "cuda")


@pytest.fixture
def kernels(device):
    """The Triton kernels, taking and giving tensors of the CPU."""
    module = importlib.import_module("graphbraid.ops.triton")
    return SimpleNamespace(**{name: _from_cpu(getattr(module, name), device) for name in module.__all__})


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
        moved = [_on(device, a) if isinstance(a, Tensor) else a for a in arguments]
        function(*moved)
        for before, after in zip(arguments, moved, strict=True):
            if isinstance(before, Tensor) and after is not before:
                before.copy_(after)

    return run


def _on(device, tensor):
    """``tensor`` on the device with the strides it has; itself if it is there."""
    if tensor.device.type == device.type:
        return tensor
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device).copy_(tensor)
