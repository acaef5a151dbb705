"""TrainConfig refuses what cannot be meant; optimizers and schedulers by name, function and instance."""

import dataclasses
import itertools

import numpy as np
import pytest
import scipy.sparse
import torch

from graphbraid.errors import ConfigError
from graphbraid.train import TrainConfig
from graphbraid.train.runtime import LearningRateSchedule, make_optimizer

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
def test_option_that_cannot_be_meant_is_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        TrainConfig(**options)


def test_an_unknown_option_is_answered_with_those_known():
    with pytest.raises(ConfigError, match=r"'zzz'.*Known are: mode, epochs"):
        TrainConfig.from_dict({"zzz": 1})


def test_values_as_yaml_reads_them_are_taken():
    config = TrainConfig.from_dict({"fanouts": [15, 10], "lr": "1e-3", "out_dir": "runs/a", "seed": 7})
    assert config.fanouts == (15, 10)
    assert config.lr == 0.001
    assert str(config.out_dir) == "runs/a"
    assert TrainConfig.from_dict(config.to_json()) == config


def test_updated_checks_again_and_leaves_the_original():
    config = TrainConfig()
    assert config.updated(epochs=3).epochs == 3
    assert config.epochs == TrainConfig().epochs
    with pytest.raises(ConfigError, match="epochs"):
        config.updated(epochs=-1)


def test_ready_optimizer_is_kept_not_copied():
    optimizer = torch.optim.SGD([torch.zeros(2, requires_grad=True)], lr=0.1)
    config = TrainConfig(optimizer=optimizer).updated(epochs=2)
    assert config.optimizer is optimizer
    assert config.to_json()["optimizer"] == "torch.optim.sgd.SGD"


def test_every_field_is_frozen_and_documented():
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


# ---- optimizers and schedulers


def model() -> torch.nn.Module:
    return torch.nn.Linear(3, 2)


@pytest.mark.parametrize("name", ["adamw", "Adam", "sgd", "RMSprop", "adagrad", "nadam", "radam", "rprop"])
def test_optimizer_by_name_gets_rate_and_decay(name):
    decay = 0.0 if name == "rprop" else 0.01
    optimizer = make_optimizer(TrainConfig(optimizer=name, lr=0.5, weight_decay=decay), model())
    assert type(optimizer).__name__.lower() == name.lower()
    assert optimizer.param_groups[0]["lr"] == 0.5
    assert optimizer.param_groups[0].get("weight_decay", 0.0) == decay


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd", "adagrad", "nadam", "rprop"])
def test_updates_are_one_kernel_where_pytorch_has_one(name):
    optimizer = make_optimizer(TrainConfig(optimizer=name), model())
    assert bool(optimizer.param_groups[0].get("fused")) == (name not in ("nadam", "rprop"))


def test_parameters_that_are_no_floats_are_updated_one_by_one():
    net = torch.nn.ParameterList([torch.nn.Parameter(torch.ones(3, dtype=torch.complex64))])
    assert not make_optimizer(TrainConfig(optimizer="adam"), net).param_groups[0]["fused"]


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd", "adagrad"])
def test_the_one_kernel_gives_the_numbers_of_the_many(name):
    nets = [torch.nn.Sequential(torch.nn.Linear(3, 40), torch.nn.Linear(40, 2)) for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    config = TrainConfig(optimizer=name, lr=0.05, weight_decay=0.01)
    fused = make_optimizer(config, nets[0])
    kind = {"adam": "Adam", "adamw": "AdamW", "sgd": "SGD", "adagrad": "Adagrad"}[name]
    plain = getattr(torch.optim, kind)(nets[1].parameters(), lr=0.05, weight_decay=0.01)
    for seed in range(20):
        x = torch.randn(50, 3, generator=torch.Generator().manual_seed(seed))
        for net, optimizer in zip(nets, (fused, plain), strict=True):
            optimizer.zero_grad()
            net(x).square().mean().backward()
            optimizer.step()
    for ours, theirs in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_optimizer_by_function_and_instance():
    net = model()
    made = make_optimizer(TrainConfig(optimizer=lambda p: torch.optim.SGD(p, lr=0.2, momentum=0.9)), net)
    assert made.param_groups[0]["momentum"] == 0.9
    ready = torch.optim.Adam(net.parameters())
    assert make_optimizer(TrainConfig(optimizer=ready), net) is ready


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ("adamz", "optimizer must be one of .*adamw"),
        ("lbfgs", "optimizer must be one of"),
        ("muon", "optimizer='muon' does not take the model's parameters: Muon only supports 2D"),
        (lambda params: None, "must return a torch.optim.Optimizer; got NoneType"),
        (torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1), "none of the model's parameters"),
    ],
)
def test_optimizer_that_does_not_fit_is_refused(choice, message):
    with pytest.raises(ConfigError, match=message):
        make_optimizer(TrainConfig(optimizer=choice), model())  # type: ignore[arg-type]


def test_decay_for_an_optimizer_without_it_is_refused():
    with pytest.raises(ConfigError, match="'rprop' has no weight_decay"):
        make_optimizer(TrainConfig(optimizer="rprop", weight_decay=0.1), model())


def rates(config: TrainConfig, total: int = 10) -> list[float]:
    optimizer = make_optimizer(config, model())
    schedule = LearningRateSchedule(config, optimizer, total_steps=total, maximize=True)
    found = []
    for _ in range(total):
        found.append(schedule.learning_rate)
        optimizer.step()
        schedule.after_step()
    return found


def test_step_schedules_rise_in_the_warm_up_and_fall_to_zero():
    cosine = rates(TrainConfig(lr=1.0, scheduler="cosine", warmup_steps=4))
    assert cosine[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert cosine[4:] == sorted(cosine[4:], reverse=True)
    linear = rates(TrainConfig(lr=1.0, scheduler="linear"))
    assert linear == pytest.approx([1 - i / 10 for i in range(10)])
    one = rates(TrainConfig(lr=1.0, scheduler="onecycle", optimizer="adam"))
    assert max(one) == pytest.approx(1.0, abs=0.05)
    assert one[0] < 0.1 > one[-1]


def test_plateau_halves_the_rate_when_the_metric_stalls():
    config = TrainConfig(lr=1.0, scheduler="plateau")
    optimizer = make_optimizer(config, model())
    schedule = LearningRateSchedule(config, optimizer, total_steps=10, maximize=True)
    for value in (0.5, *[0.4] * 6):
        schedule.after_epoch(value)
    assert schedule.learning_rate == 0.5
    schedule.after_epoch(None)  # an epoch without evaluation changes nothing
    assert schedule.learning_rate == 0.5


def test_scheduler_by_function_advances_by_epochs():
    config = TrainConfig(
        lr=1.0, scheduler=lambda o: torch.optim.lr_scheduler.StepLR(o, 1, 0.1), optimizer="sgd"
    )
    optimizer = make_optimizer(config, model())
    schedule = LearningRateSchedule(config, optimizer, total_steps=10, maximize=True)
    optimizer.step()
    schedule.after_step()
    assert schedule.learning_rate == 1.0
    schedule.after_epoch(None)
    assert schedule.learning_rate == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scheduler": "cosin"}, "scheduler must be one of cosine, linear, onecycle, plateau"),
        ({"scheduler": lambda o: None}, r"must return a scheduler with step\(\)"),
        ({"scheduler": "plateau", "eval_every": 0}, "never evaluates"),
    ],
)
def test_scheduler_that_does_not_fit_is_refused(options, message):
    config = TrainConfig(**options)
    with pytest.raises(ConfigError, match=message):
        LearningRateSchedule(config, make_optimizer(config, model()), total_steps=3, maximize=True)
