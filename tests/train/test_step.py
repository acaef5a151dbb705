"""Steps: profiled as they run, fed ahead, taken in turns by threads; what cannot be stepped on is said."""

import itertools
import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.extras import in_threads
from tests.train.communities import Sage, community_graph, new_model

from graphbraid import Trainer, nn
from graphbraid.errors import ConfigError, TrainingError
from graphbraid.estimates.trial import TrialStep
from graphbraid.train import Callback, runtime
from graphbraid.train.config import TrainConfig
from graphbraid.train.run.ranks import RunRanks
from graphbraid.train.run.setup import make_feed
from graphbraid.train.runtime import place_of
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
def test_a_profiled_step_has_the_bits_of_a_trained_one(options):
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


def test_copies_go_on_where_a_run_would_end():
    graph = community_graph()
    trainer = Trainer(new_model(graph), graph, **OPTIONS | {"optimizer": "sgd", "lr": 1e30})
    shadow = TrialStep.on_copy(trainer.runner, trainer.task, trainer.config)
    with make_loader(trainer.runner, trainer.config, train_nodes(trainer)) as loader:
        losses = [shadow(batch).loss for batch in loader.batches(0)]
    assert not all(map(math.isfinite, losses))
    with pytest.raises(TrainingError, match=r"at epoch 0, step \d .*Lower lr"):
        trainer.fit()


def test_profiling_makes_no_scheduler_of_the_users():
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
def test_mini_batches_bring_the_labels_of_their_seeds(layout):
    graph = community_graph()
    model = nn.GraphSAGE(graph.num_features, 8, graph.num_classes, 2)
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


def test_the_whole_graph_is_one_batch_with_labels_taken_once():
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


def test_an_error_of_the_users_model_stays_what_it_is():
    class Fails(Sage):
        def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
            if self.training:
                raise ValueError("mine")
            return super().forward(x, edge_index)

    graph = community_graph()
    with pytest.raises(ValueError, match=r"^mine$"):
        Trainer(Fails(12, 3), graph, **OPTIONS).fit()


# ---- device, precision and random numbers


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


# ---- batches ahead


def numbers(count, error=None):
    yield from range(count)
    if error is not None:
        raise error


def ahead(batches):
    ranks = RunRanks(None, SimpleNamespace(rank=0, size=2), None)
    return ranks, ranks.ahead(batches)


@given(count=st.integers(0, 6), takes=st.lists(st.integers(0, 2), min_size=7, max_size=7))
def test_batches_come_once_and_in_their_order(count, takes):
    found = []
    ranks, batches = ahead(numbers(count))
    for times in takes:
        for _ in range(times):  # a second one changes nothing
            ranks.take()
        found += [next(batches, None)]
    assert found == [*range(count), *[None] * (7 - count)]


def test_what_fails_to_be_taken_fails_where_it_is_asked_for():
    ranks, batches = ahead(numbers(1, OSError("gone")))
    assert next(batches) == 0
    ranks.take()
    with pytest.raises(OSError, match="gone"):
        next(batches)


def test_ctrl_c_is_not_put_off():
    ranks, _ = ahead(numbers(0, KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        ranks.take()


# ---- threads that share a Trainer


GRAPH = community_graph()


def trainer(mode, **options):
    torch.manual_seed(0)
    model = nn.GCN(GRAPH.num_features, 8, GRAPH.num_classes, dropout=0.5)
    return Trainer(model, GRAPH, mode=mode, epochs=2, test_at_end=False, **options)


@pytest.mark.parametrize("mode", ["full", "sampled"])
def test_predictions_from_several_threads_are_right(mode):
    trained = trainer(mode)
    trained.fit()
    expected, score = trained.predict(), trained.evaluate("val")
    for _ in range(10):
        *outputs, scored = in_threads(*[trained.predict] * 3, lambda: trained.evaluate("val"))
        assert all(torch.equal(found, expected) for found in outputs)
        assert scored == score


class Meanwhile(Callback):
    """Predicts within a run, from the run's own thread and from another."""

    def __init__(self):
        self.error, self.shape = None, None

    def on_epoch_end(self, trainer, metrics):
        self.shape = trainer.predict([0, 1]).shape
        in_threads(lambda: self.ask(trainer))

    def ask(self, trainer):
        try:
            trainer.predict([0])
        except ConfigError as error:
            self.error = error


def test_another_thread_does_not_predict_while_one_trains():
    meanwhile = Meanwhile()
    trained = trainer("full", callbacks=[meanwhile])
    trained.fit()
    assert meanwhile.shape == (2, GRAPH.num_classes)
    assert "another thread is in this Trainer's fit()" in str(meanwhile.error)
    assert trained.predict([0]).shape == (1, GRAPH.num_classes)
