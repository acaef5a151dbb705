"""The way to the sampler on a device, where there is none."""

import pytest
import torch
from tests.sampling.graphs import power_law_csc

from graphbraid.errors import ConfigError, MissingPackageError
from graphbraid.sampling import SamplerConfig, gpu


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
