"""Device, precision and random numbers of a run."""

import itertools

import pytest
import torch

from graphbraid.train import runtime
from graphbraid.train.config import TrainConfig
from graphbraid.train.runtime import place_of


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_model_computes_in_the_precision_of_its_run(precision):
    place = place_of(TrainConfig(device="cpu", precision=precision))
    assert place.device == torch.device("cpu")
    with place.autocast():
        assert torch.nn.functional.linear(torch.ones(2, 2), torch.ones(2, 2)).dtype == getattr(
            torch, precision
        )


@pytest.mark.parametrize(("name", "wanted"), [("cuda", 1), ("auto", 1), ("cuda:0", 0)])
def test_a_rank_trains_on_its_own_device(monkeypatch, name, wanted):
    """Joining makes it the current one."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert place_of(TrainConfig(device=name)).device == torch.device("cuda", wanted)


def test_a_step_s_numbers_depend_on_seed_epoch_step_and_rank():
    """And are those that ``torch.manual_seed`` gives, which devices get that are not the CPU."""
    drawn = {}
    for key in itertools.product((0, 7), (0, 1), (0, 1), (0, 1)):
        runtime.seed_step(*key, torch.device("cpu"))
        drawn[key] = torch.rand(2).tolist()
        runtime.seed_step(*key, torch.device("meta"))
        assert torch.rand(2).tolist() == drawn[key]
    assert len(set(map(tuple, drawn.values()))) == len(drawn)
