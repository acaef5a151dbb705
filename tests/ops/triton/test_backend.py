"""Which kernels a tensor gets, that operators work on Triton's, and that all of them compile."""

import ast
import importlib
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tests.ops.graphs import close, skewed, values

import graphbraid
from graphbraid import ops
from graphbraid.errors import KernelError
from graphbraid.ops import aggregation, reference
from graphbraid.topology import Csc

OPERATORS = ("aggregation", "spmm", "sddmm", "edge_softmax", "attention", "epilogue", "gather")
FOLDER = Path(graphbraid.__file__).parent / "ops/triton"
ON_CUDA = {
    dtype: SimpleNamespace(device=torch.device("cuda"), dtype=dtype)
    for dtype in (torch.float32, torch.float64)
}


@pytest.fixture
def choose(monkeypatch):
    """The backend of a CUDA tensor, chosen anew."""
    monkeypatch.setenv("GRAPHBRAID_KERNELS", "")
    aggregation.triton_kernels.cache_clear()
    yield lambda dtype=torch.float32: aggregation.backend(ON_CUDA[dtype])
    aggregation.triton_kernels.cache_clear()


def test_cuda_tensors_get_the_triton_kernels_and_float64_the_twins(device, choose):
    assert choose() is importlib.import_module("graphbraid.ops.triton")
    assert choose(torch.float64) is reference


def test_without_triton_cuda_tensors_get_the_twins(choose, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert choose() is reference


def test_the_environment_can_force_the_twins(choose, monkeypatch):
    monkeypatch.setenv("GRAPHBRAID_KERNELS", "reference")
    assert choose() is reference
    aggregation.triton_kernels.cache_clear()
    monkeypatch.setenv("GRAPHBRAID_KERNELS", "fastest")
    with pytest.raises(KernelError, match="'fastest' names no kernel variant"):
        choose()


def test_operators_on_the_cpu_do_not_import_triton():
    code = """
import sys, torch
from graphbraid import ops
from graphbraid.topology import Csc
csc = Csc(torch.tensor([0, 1]), torch.tensor([0], dtype=torch.int32), 1)
ops.spmm(csc, torch.ones(1, 2, requires_grad=True)).sum().backward()
print("triton" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "False", done.stderr


def test_every_twin_of_a_kernel_has_the_same_arguments(device):
    kernels = importlib.import_module("graphbraid.ops.triton")
    for name in kernels.__all__:
        code, twin = getattr(kernels, name).__code__, getattr(reference, name).__code__
        assert code.co_varnames[: code.co_argcount] == twin.co_varnames[: twin.co_argcount], name


def run_operators(device):
    """Every operator once, forward and backward: outputs and gradients, on the CPU."""
    torch.manual_seed(0)
    csc = skewed(10, 13)
    x, weight, bias = values(13, 6), values(csc.num_edges), values(6)
    csc = Csc(csc.indptr.to(device), csc.indices.to(device), csc.num_src)
    x, weight, bias = (t.to(device).requires_grad_() for t in (x, weight, bias))
    wide = torch.cat((x, x), 1)
    outputs = [
        ops.spmm(csc, x, "sum", weight=weight),
        ops.spmm(csc, x, "mean"),
        ops.spmm(csc, x, "max", weight=weight),
        ops.sddmm(csc, x[:10], x),
        ops.edge_softmax(csc, weight),
        ops.gat_attention(csc, wide, x[:, :2], x[:10, 2:4], dropout=0.3),
        ops.gatv2_attention(csc, wide, wide[:10], x[:2], dropout=0.3),
        ops.bias_act_dropout(x, bias, "elu", 0.2),
    ]
    loss = sum((out.float().cpu() * values(*out.shape, seed=5)).sum() for out in outputs)
    grads = torch.autograd.grad(loss, (x, weight, bias))
    gathered = ops.gather_rows(x.detach(), torch.tensor([3, 1, 3], device=device))
    return [t.detach().cpu() for t in (*outputs, *grads, gathered)]


def test_operators_on_the_triton_kernels_equal_those_on_the_cpu(device, monkeypatch):
    expected = run_operators("cpu")
    if device.type == "cpu":  # interpreted: what a CUDA tensor would get
        found = importlib.import_module("graphbraid.ops.triton")
        for name in OPERATORS:
            module = importlib.import_module(f"graphbraid.ops.{name}")
            monkeypatch.setattr(module, "backend", lambda tensor: found)
    for actual, wanted in zip(run_operators(device), expected, strict=True):
        close(actual, wanted, terms=1000)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", [80])  # the oldest that has bfloat16
def test_every_kernel_compiles(architecture, tmp_path):
    if importlib.util.find_spec("triton") is None:
        pytest.skip("needs triton: pip install 'graphbraid[triton]'")
    script = Path(__file__).with_name("compile_kernels.py")
    done = subprocess.run(
        [sys.executable, script, str(architecture)],
        capture_output=True,
        text=True,
        env=os.environ | {"TRITON_CACHE_DIR": str(tmp_path), "TRITON_INTERPRET": "0"},
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    sizes = json.loads(done.stdout)
    assert min(sizes.values()) > 0
    assert set(sizes) == defined_kernels()


def defined_kernels():
    """Names of the functions that are launched: those called ``*_kernel``."""
    trees = [ast.parse(path.read_text()) for path in FOLDER.glob("*.py")]
    nodes = [node for tree in trees for node in tree.body if isinstance(node, ast.FunctionDef)]
    return {node.name for node in nodes if node.name.endswith("_kernel")}
