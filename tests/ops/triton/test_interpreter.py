"""Triton's interpreter is as quick as tests/interpreter.py makes it."""

import importlib

import pytest
import torch
from tests.ops.graphs import skewed
from tests.ops.test_attention import gat_inputs


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
