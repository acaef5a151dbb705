"""The operators and their gradients on the Triton kernels; the interpreter is as quick as it is made."""

import importlib
import sys

import pytest
import torch
from tests.ops.graphs import close, skewed, values
from tests.ops.test_attention import gat_inputs

from graphbraid import ops
from graphbraid.graph.csc import Csc
from graphbraid.ops.relations import weighted_columns


def run_operators(device):
    """Every operator once, forward and backward: outputs and gradients, on the CPU."""
    torch.manual_seed(0)
    csc = skewed(10, 13)
    x, weight, bias = values(13, 6), values(csc.num_edges), values(6)
    csc = Csc(csc.indptr.to(device), csc.indices.to(device), csc.num_src)
    x, weight, bias = (t.to(device).requires_grad_() for t in (x, weight, bias))
    wide = torch.cat((x, x), 1)
    of_edges = weight[:, None] * bias
    outputs = [
        ops.spmm(csc, x, "sum", weight=weight),
        ops.spmm(csc, x, "mean"),
        ops.spmm(csc, x, "max", weight=weight),
        weighted_columns(csc, x, torch.stack([weight, 2 * weight], 1), own=True),
        ops.gine(csc, x, of_edges, loop_scale=1.5),
        ops.sddmm(csc, x[:10], x),
        ops.edge_softmax(csc, weight),
        ops.gat_attention(csc, wide, x[:, :2], x[:10, 2:4], dropout=0.3),
        ops.gat_attention(csc, wide, x[:, :2], x[:10, 2:4]),
        ops.gatv2_attention(csc, wide, wide[:10], x[:2], dropout=0.3),
        ops.bias_act_dropout(x, bias, "elu", 0.2),
        ops.layer_norm(x, bias, bias, 0.01),
        ops.batch_norm(x, None, None, bias, bias, training=True, eps=0.01),
    ]
    loss = sum((out.float().cpu() * values(*out.shape, seed=5)).sum() for out in outputs)
    grads = torch.autograd.grad(loss, (x, weight, bias))
    gathered = ops.gather_rows(x.detach(), torch.tensor([3, 1, 3], device=device))
    return [t.detach().cpu() for t in (*outputs, *grads, gathered)]


def test_operators_on_the_triton_kernels_equal_those_on_the_cpu(device, monkeypatch):
    expected = run_operators("cpu")
    if device.type == "cpu":  # interpreted: what a CUDA tensor would get
        found = importlib.import_module("graphbraid.ops.triton")
        modules = [one for name, one in sys.modules.items() if name.startswith("graphbraid.ops.")]
        calling = [module for module in modules if hasattr(module, "backend")]
        assert len(calling) > 5
        for module in calling:
            monkeypatch.setattr(module, "backend", lambda tensor: found)
    for actual, wanted in zip(run_operators(device), expected, strict=True):
        close(actual, wanted, terms=1000)


# ---- the interpreter


def test_a_launch_patches_the_language_once_for_each_way_to_see_it(kernels, device, monkeypatch):
    if device.type == "cuda":
        pytest.skip("needs a machine without a CUDA device, where kernels are interpreted")
    interpreter = importlib.import_module("triton.runtime.interpreter")
    patch, begin, patches, launches = interpreter._patch_lang, interpreter.GridExecutor.__init__, [], []

    def patched(function):
        patches.append(function)
        return patch(function)

    def begun(self, *arguments, **named):
        launches.append(self)
        begin(self, *arguments, **named)

    monkeypatch.setattr(interpreter, "_patch_lang", patched)
    monkeypatch.setattr(interpreter.GridExecutor, "__init__", begun)
    csc = skewed(10, 13)
    inputs, out, lse = gat_inputs(csc, 2, 3, torch.float32), torch.empty(10, 6), torch.empty(10, 2)
    kernels.gat_forward(csc.indptr, csc.indices, *inputs, 0.2, 0, 0.0, 0, out, lse)
    assert launches
    assert len(patches) <= 3 * len(launches)
