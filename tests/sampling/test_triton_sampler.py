"""Every kernel of the sampler compiles; the way to them without a device. ./triton tests the results."""

import json
import sys
from pathlib import Path

import pytest
import torch
from tests.extras import NO_TRITON
from tests.interpreter import defined_kernels, run
from tests.sampling.graphs import power_law_csc

import graphbraid
from graphbraid.errors import ConfigError, MissingPackageError
from graphbraid.sampling import SamplerConfig, gpu

SOURCES = Path(graphbraid.__file__).parent / "sampling/triton"
TESTS = Path(__file__).parent / "triton"


@pytest.mark.slow
def test_every_kernel_compiles_and_none_fuses_multiply_and_add_in_float64(tmp_path):
    pytest.importorskip("triton", reason=NO_TRITON)
    command = [sys.executable, TESTS / "compile_kernels.py", "90"]
    done = run(command, TRITON_INTERPRET="0", TRITON_CACHE_DIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    compiled = json.loads(done.stdout)
    assert min(compiled["sizes"].values()) > 0
    assert set(compiled["sizes"]) == defined_kernels(SOURCES)
    assert compiled["fused"] == []  # a fused multiply-add rounds once: other bits than the CPU's


@pytest.mark.slow
def test_importing_the_sampler_does_not_import_triton():
    code = "import sys, graphbraid.loader; print('triton' in sys.modules)"
    assert run([sys.executable, "-c", code]).stdout.strip() == "False"


# ---- the way to the sampler on a device, where there is none


def make(device="cuda"):
    return gpu.make_gpu_pipeline(power_law_csc(5, 9), SamplerConfig(fanouts=(2,)), None, device=device)


def test_another_device_is_refused():
    with pytest.raises(ConfigError, match="runs on CUDA devices; got device 'cpu'"):
        make("cpu")


def test_a_machine_without_a_device_is_told(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="torch finds none here"):
        make()


def test_missing_triton_is_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match=r"pip install 'graphbraid\[triton\]'"):
        make()
