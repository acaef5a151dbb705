"""A step is profiled as it runs; batches bring their seeds' labels; what cannot be stepped on is said."""

import math

import pytest
import torch
from tests.train.communities import Sage, community_graph, new_model

from graphbraid import nn as gnn
from graphbraid.errors import TrainingError
from graphbraid.estimates.trial import TrialStep
from graphbraid.train import Callback, Trainer, runtime
from graphbraid.train.run.setup import make_feed
from graphbraid.train.step.runner import WholeGraph
from graphbraid.train.step.step import make_loader

OPTIONS = {"epochs": 2, "batch_size": 32, "fanouts": (5, 3), "lr": 0.02, "threads": 1, "eval_every": 0}
NUM_TRAIN, STEPS = 200, 7  # the last step has 8 seeds


class Record(Callback):
    def __init__(self) -> None:
        self.steps: list[tuple[float, float, int]] = []

    def on_step_end(self, trainer: Trainer, record: object) -> None:
        self.steps.append((record.loss, record.grad_norm, record.num_seeds))  # type: ignore[attr-defined]


def train_nodes(trainer: Trainer) -> torch.Tensor:
    return trainer.graph.split("train")


@pytest.mark.parametrize("options", [{}, {"clip": 0.3}, {"precision": "bfloat16"}, {"optimizer": "sgd"}])
def test_a_profiled_step_has_the_bits_of_a_trained_one(options: dict[str, object]) -> None:
    graph, record = community_graph(), Record()
    trainer = Trainer(new_model(graph), graph, **OPTIONS | options, callbacks=[record])
    shadow = TrialStep.on_copy(trainer.runner, trainer.task, trainer.config)
    before = [p.detach().clone() for p in trainer.model.parameters()]
    loader = make_loader(trainer.runner, trainer.config, train_nodes(trainer))
    with loader, runtime.torch_settings(trainer.config):
        runtime.seed_everything(trainer.config.seed)
        profiled = [shadow(batch) for batch in loader.batches(0)]
    assert all(torch.equal(a, b) for a, b in zip(before, trainer.model.parameters(), strict=True))
    trainer.fit()
    assert len(profiled) == STEPS
    assert record.steps[:STEPS] == [(step.loss, step.grad_norm, step.num_seeds) for step in profiled]


def test_copies_go_on_where_a_run_would_end() -> None:
    graph = community_graph()
    trainer = Trainer(new_model(graph), graph, **OPTIONS | {"optimizer": "sgd", "lr": 1e30})
    shadow = TrialStep.on_copy(trainer.runner, trainer.task, trainer.config)
    with make_loader(trainer.runner, trainer.config, train_nodes(trainer)) as loader:
        losses = [shadow(batch).loss for batch in loader.batches(0)]
    assert not all(map(math.isfinite, losses))
    with pytest.raises(TrainingError, match=r"at epoch 0, step \d .*Lower lr"):
        trainer.fit()


def test_profiling_makes_no_scheduler_of_the_users() -> None:
    made = []

    def scheduler(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
        made.append(optimizer)
        return torch.optim.lr_scheduler.StepLR(optimizer, 1)

    graph = community_graph()
    trainer = Trainer(new_model(graph), graph, **OPTIONS, scheduler=scheduler)
    TrialStep.on_copy(trainer.runner, trainer.task, trainer.config)
    assert made == []
    trainer.fit()
    assert len(made) == 1


@pytest.mark.parametrize("layout", ["subgraph", "blocks"])
def test_mini_batches_bring_the_labels_of_their_seeds(layout: str) -> None:
    graph = community_graph()
    model = gnn.GraphSAGE(graph.num_features, 8, graph.num_classes, 2)
    trainer = Trainer(model, graph, **OPTIONS, layout=layout)
    feed = make_feed(trainer.runner, trainer.config, trainer.task, train_nodes(trainer))
    seen = []
    for step, share in enumerate(feed.batches(1, 0)):
        batch = share.batch
        seeds = batch.n_id[: batch.batch_size]
        assert torch.equal(batch.seed_y, graph.y[seeds])
        assert feed.num_seeds(step, 1) == batch.batch_size == trainer.runner.outputs_of(batch).shape[0]
        seen.append(seeds)
    feed.close()
    assert torch.equal(torch.cat(seen).sort().values, train_nodes(trainer).sort().values)
    assert feed.num_seeds(0, STEPS) == NUM_TRAIN
    assert feed.num_seeds(5, 3) == NUM_TRAIN - 5 * 32


def test_the_whole_graph_is_one_batch_with_labels_taken_once() -> None:
    graph = community_graph()
    trainer = Trainer(new_model(graph), graph, **OPTIONS, mode="full")
    feed = make_feed(trainer.runner, trainer.config, trainer.task, train_nodes(trainer))
    (one,), (other,) = feed.batches(0, 0), feed.batches(1, 0)
    first, second = one.batch, other.batch
    assert isinstance(first, WholeGraph)
    assert first.seed_y is second.seed_y
    assert torch.equal(first.seed_y, graph.y[train_nodes(trainer)])
    trainer.model.eval()
    whole = trainer.runner.on_graph()[train_nodes(trainer)]
    assert torch.equal(trainer.runner.outputs_of(first), whole)
    assert feed.num_seeds(0, 1) == NUM_TRAIN
    assert list(feed.batches(0, 1)) == []


def test_an_error_of_the_users_model_stays_what_it_is() -> None:
    class Fails(Sage):
        def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
            if self.training:
                raise ValueError("mine")
            return super().forward(x, edge_index)

    graph = community_graph()
    with pytest.raises(ValueError, match=r"^mine$"):
        Trainer(Fails(12, 3), graph, **OPTIONS).fit()
