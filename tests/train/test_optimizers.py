"""Optimizers and schedulers by name, function and instance."""

import pytest
import torch

from graphbraid.errors import ConfigError
from graphbraid.train import TrainConfig
from graphbraid.train.runtime import LearningRateSchedule, make_optimizer


def model() -> torch.nn.Module:
    return torch.nn.Linear(3, 2)


@pytest.mark.parametrize("name", ["adamw", "Adam", "sgd", "RMSprop", "adagrad", "nadam", "radam", "rprop"])
def test_optimizer_by_name_gets_rate_and_decay(name: str) -> None:
    decay = 0.0 if name == "rprop" else 0.01
    optimizer = make_optimizer(TrainConfig(optimizer=name, lr=0.5, weight_decay=decay), model())
    assert type(optimizer).__name__.lower() == name.lower()
    assert optimizer.param_groups[0]["lr"] == 0.5
    assert optimizer.param_groups[0].get("weight_decay", 0.0) == decay


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd", "adagrad", "nadam", "rprop"])
def test_updates_are_one_kernel_where_pytorch_has_one(name: str) -> None:
    optimizer = make_optimizer(TrainConfig(optimizer=name), model())
    assert bool(optimizer.param_groups[0].get("fused")) == (name not in ("nadam", "rprop"))


def test_parameters_that_are_no_floats_are_updated_one_by_one() -> None:
    net = torch.nn.ParameterList([torch.nn.Parameter(torch.ones(3, dtype=torch.complex64))])
    assert not make_optimizer(TrainConfig(optimizer="adam"), net).param_groups[0]["fused"]


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd", "adagrad"])
def test_the_one_kernel_gives_the_numbers_of_the_many(name: str) -> None:
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


def test_optimizer_by_function_and_instance() -> None:
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
        (lambda params: None, "must return a torch.optim.Optimizer; got NoneType"),
        (torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1), "none of the model's parameters"),
    ],
)
def test_optimizer_that_does_not_fit_is_refused(choice: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_optimizer(TrainConfig(optimizer=choice), model())  # type: ignore[arg-type]


def test_decay_for_an_optimizer_without_it_is_refused() -> None:
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


def test_step_schedules_rise_in_the_warm_up_and_fall_to_zero() -> None:
    cosine = rates(TrainConfig(lr=1.0, scheduler="cosine", warmup_steps=4))
    assert cosine[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert cosine[4:] == sorted(cosine[4:], reverse=True)
    linear = rates(TrainConfig(lr=1.0, scheduler="linear"))
    assert linear == pytest.approx([1 - i / 10 for i in range(10)])
    one = rates(TrainConfig(lr=1.0, scheduler="onecycle", optimizer="adam"))
    assert max(one) == pytest.approx(1.0, abs=0.05)
    assert one[0] < 0.1 > one[-1]


def test_plateau_halves_the_rate_when_the_metric_stalls() -> None:
    config = TrainConfig(lr=1.0, scheduler="plateau")
    optimizer = make_optimizer(config, model())
    schedule = LearningRateSchedule(config, optimizer, total_steps=10, maximize=True)
    for value in (0.5, *[0.4] * 6):
        schedule.after_epoch(value)
    assert schedule.learning_rate == 0.5
    schedule.after_epoch(None)  # an epoch without evaluation changes nothing
    assert schedule.learning_rate == 0.5


def test_scheduler_by_function_advances_by_epochs() -> None:
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
def test_scheduler_that_does_not_fit_is_refused(options: dict[str, object], message: str) -> None:
    config = TrainConfig(**options)
    with pytest.raises(ConfigError, match=message):
        LearningRateSchedule(config, make_optimizer(config, model()), total_steps=3, maximize=True)
