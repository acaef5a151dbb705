"""What a run takes of Lightning Fabric, a device and a precision, and its random numbers."""

import itertools

import pytest
import torch
from lightning_fabric.plugins import environments

from graphbraid.train import runtime
from graphbraid.train.config import TrainConfig
from graphbraid.train.runtime import make_fabric

CLUSTERS = ("TorchElasticEnvironment", "SLURMEnvironment", "LSFEnvironment", "MPIEnvironment")


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_no_cluster_is_looked_for(monkeypatch, precision):
    """Lightning's look for MPI starts MPI, with its threads and its hooks of the memory's allocation."""

    def detect():
        raise AssertionError("a cluster was looked for")

    for name in CLUSTERS:
        monkeypatch.setattr(getattr(environments, name), "detect", staticmethod(detect))
    fabric = make_fabric(TrainConfig(device="cpu", precision=precision))
    assert fabric.world_size == 1
    assert fabric.device == torch.device("cpu")


@pytest.mark.parametrize(("name", "wanted"), [("cuda", [1]), ("auto", [1]), ("cuda:0", [0])])
def test_a_rank_trains_on_its_own_device(monkeypatch, name, wanted):
    """Joining makes it the current one; Fabric's first device would be that of all ranks."""
    asked = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr("lightning_fabric.Fabric", lambda **options: asked.append(options["devices"]))
    make_fabric(TrainConfig(device=name))
    assert asked == [wanted]


def test_a_step_s_numbers_depend_on_seed_epoch_step_and_rank():
    """And are those that ``torch.manual_seed`` gives, which devices get that are not the CPU."""
    drawn = {}
    for key in itertools.product((0, 7), (0, 1), (0, 1), (0, 1)):
        runtime.seed_step(*key, torch.device("cpu"))
        drawn[key] = torch.rand(2).tolist()
        runtime.seed_step(*key, torch.device("meta"))
        assert torch.rand(2).tolist() == drawn[key]
    assert len(set(map(tuple, drawn.values()))) == len(drawn)
