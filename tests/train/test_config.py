"""TrainConfig refuses what cannot be meant, and says what would be right."""

import dataclasses
import itertools

import numpy as np
import pytest
import scipy.sparse
import torch

from graphbraid.errors import ConfigError
from graphbraid.train import TrainConfig

BAD = [
    ({"epochs": np.bool_(True)}, "epochs must be a number; got np.True_"),
    ({"epochs": 1.5}, "epochs must be a valid integer"),
    ({"fanouts": ()}, r"fanouts must be a list of at least 1; got \(\)"),
    ({"fanouts": 5}, "fanouts must be"),
    ({"batch_size": 0}, "batch_size must be"),
    ({"lr": 0.0}, "lr must be greater than 0"),
    ({"weight_decay": -1}, "weight_decay must be"),
    ({"clip": 0}, "clip must be greater than 0"),
    ({"optimizer": 3}, "optimizer must be"),
    ({"precision": "float16"}, "precision must be 'float32' or 'bfloat16'"),
    ({"seed": -1}, "seed must be"),
    ({"workers": 0}, "workers must be"),
    ({"monitor": "accuracy", "eval_every": 0}, "monitor='accuracy' is a validation metric, but eval_every=0"),
    ({"warmup_steps": 5}, "warmup_steps=5 is for scheduler='cosine' and 'linear'.*got scheduler=None"),
    ({"warmup_steps": 5, "scheduler": "onecycle"}, "got scheduler='onecycle'"),
    ({"optimizer": torch.optim.SGD, "lr": 0.5}, "lr=0.5 is for an optimizer that is named"),
    ({"optimizer": torch.optim.SGD, "weight_decay": 0.1}, "weight_decay=0.1 is for an optimizer"),
    ({"memory_budget_bytes": 10}, "memory_budget_bytes must be"),
    ({"metrics": ()}, "metrics must be a list of at least 1"),
    ({"class_weights": (1.0, 0.0)}, "class_weights must be 'balanced', or entry 1"),
    ({"resume": True}, "resume=True needs a folder.*out_dir"),
    ({"tensorboard": True}, "tensorboard=True needs a folder"),
    ({"out_dir": 3}, "out_dir must be"),
    ({"spare": "1GiB"}, "spare=.* is for the lowered program.*set mode='full', or leave spare out"),
    ({"layout": "rows"}, "layout must be 'subgraph' or 'blocks'"),
]


@pytest.mark.parametrize(("options", "message"), BAD, ids=[str(options) for options, _ in BAD])
def test_option_that_cannot_be_meant_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TrainConfig(**options)


def test_an_unknown_option_is_answered_with_those_known() -> None:
    with pytest.raises(ConfigError, match=r"'zzz'.*Known are: mode, epochs"):
        TrainConfig.from_dict({"zzz": 1})


def test_values_as_yaml_reads_them_are_taken() -> None:
    config = TrainConfig.from_dict({"fanouts": [15, 10], "lr": "1e-3", "out_dir": "runs/a", "seed": 7})
    assert config.fanouts == (15, 10)
    assert config.lr == 0.001
    assert str(config.out_dir) == "runs/a"
    assert TrainConfig.from_dict(config.to_json()) == config


def test_updated_checks_again_and_leaves_the_original() -> None:
    config = TrainConfig()
    assert config.updated(epochs=3).epochs == 3
    assert config.epochs == TrainConfig().epochs
    with pytest.raises(ConfigError, match="epochs"):
        config.updated(epochs=-1)


def test_ready_optimizer_is_kept_not_copied() -> None:
    optimizer = torch.optim.SGD([torch.zeros(2, requires_grad=True)], lr=0.1)
    config = TrainConfig(optimizer=optimizer).updated(epochs=2)
    assert config.optimizer is optimizer
    assert config.to_json()["optimizer"] == "torch.optim.sgd.SGD"


def test_every_field_is_frozen_and_documented() -> None:
    import ast
    import inspect

    with pytest.raises(dataclasses.FrozenInstanceError):
        TrainConfig().epochs = 3  # type: ignore[misc]
    body = ast.parse(inspect.getsource(TrainConfig)).body[0].body  # type: ignore[attr-defined]
    for field, text in itertools.pairwise(body):
        if isinstance(field, ast.AnnAssign):
            assert isinstance(text, ast.Expr), ast.unparse(field)
            assert isinstance(text.value, ast.Constant), ast.unparse(field)


@pytest.mark.parametrize("size", [scipy.sparse.eye(3).tocsr(), np.zeros(2), torch.zeros(2), [], "4 cats"])
def test_what_is_no_size_is_refused(size):
    with pytest.raises(ConfigError, match="host must be a number of bytes, a size such as '4GiB', or 'all'"):
        TrainConfig(host=size)


def test_a_run_on_the_whole_graph_keeps_the_options_of_sampled_evaluations():
    """``evaluate(mode="sampled")`` reads them in every mode."""
    config = TrainConfig.from_dict({"mode": "full", "eval_fanouts": (3, 3), "eval_batch_size": 64})
    assert (config.eval_fanouts, config.eval_batch_size) == ((3, 3), 64)
