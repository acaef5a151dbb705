"""Which kernels CUDA tensors get; every kernel compiles. What they compute is tested in tests/ops/triton."""

import importlib
import importlib.util
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tests.extras import NO_TRITON
from tests.interpreter import defined_kernels, run

import graphbraid
from graphbraid.errors import KernelError
from graphbraid.ops import kernels as chosen
from graphbraid.ops import reference

SOURCES = Path(graphbraid.__file__).parent / "ops/triton"
TESTS = Path(__file__).parent / "triton"
ON_CUDA = {
    dtype: SimpleNamespace(device=torch.device("cuda"), dtype=dtype, is_cpu=False, is_cuda=True)
    for dtype in (torch.float32, torch.float64)
}


@pytest.fixture
def choose(monkeypatch):
    """The backend of a CUDA tensor, chosen anew."""
    monkeypatch.setenv("GRAPHBRAID_KERNELS", "")
    chosen.triton_kernels.cache_clear()
    yield lambda dtype=torch.float32: chosen.backend(ON_CUDA[dtype])
    chosen.triton_kernels.cache_clear()


def test_cuda_tensors_get_the_triton_kernels_and_float64_the_twins(choose):
    pytest.importorskip("triton", reason=NO_TRITON)
    assert choose() is importlib.import_module("graphbraid.ops.triton")
    assert choose(torch.float64) is reference


def test_without_triton_cuda_tensors_get_the_twins(choose, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert choose() is reference


def test_the_environment_can_force_the_twins(choose, monkeypatch):
    monkeypatch.setenv("GRAPHBRAID_KERNELS", "reference")
    assert choose() is reference
    chosen.triton_kernels.cache_clear()
    monkeypatch.setenv("GRAPHBRAID_KERNELS", "fastest")
    with pytest.raises(KernelError, match="'fastest' names no kernel variant"):
        choose()


@pytest.mark.slow
def test_operators_on_the_cpu_do_not_import_triton():
    code = """
import sys, torch
from graphbraid import ops
from graphbraid.graph.csc import Csc
csc = Csc(torch.tensor([0, 1]), torch.tensor([0], dtype=torch.int32), 1)
ops.spmm(csc, torch.ones(1, 2, requires_grad=True)).sum().backward()
print("triton" in sys.modules)
"""
    done = run([sys.executable, "-c", code])
    assert done.stdout.strip() == "False", done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("capability", "others_until"),
    [
        ("80", "ttir"),  # the oldest with bfloat16
        pytest.param("80", "cubin", marks=pytest.mark.long),
        pytest.param("90", "cubin", marks=pytest.mark.long),
    ],
)
def test_every_kernel_compiles(tmp_path, capability, others_until):
    pytest.importorskip("triton", reason=NO_TRITON)
    command = [sys.executable, TESTS / "compile_kernels.py", capability, others_until]
    done = run(command, TRITON_INTERPRET="0", TRITON_CACHE_DIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    sizes = json.loads(done.stdout)
    assert min(sizes.values()) > 0
    assert set(sizes) == defined_kernels(SOURCES)
