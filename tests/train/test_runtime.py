"""What a run takes of Lightning Fabric: a device and a precision, and nothing else."""

import pytest
import torch
from lightning_fabric.plugins import environments

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
