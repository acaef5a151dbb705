"""Cores without a device: arrangements are tried on copies and followed; learning does not change."""

import time

import pytest
import torch
from tests.extras import PATIENCE
from tests.kernels import needs_kernels
from tests.train.communities import community_graph, new_model

from graphbraid.collective import Profile, make_plan
from graphbraid.collective.plan.times import Arrangement, Duration, StageTimes, TimedArrangement
from graphbraid.estimates import plan as planning
from graphbraid.loader.planned import CoreSharing
from graphbraid.nn import GraphSAGE
from graphbraid.train import Trainer
from graphbraid.train.step.step import make_loader

OPTIONS = {"epochs": 2, "batch_size": 16, "fanouts": (5, 5), "lr": 0.02, "layout": "blocks"}
TIMES = StageTimes(
    workers=1, cpu=Duration(seconds=0.01), dma=Duration(seconds=0.0), model=Duration(seconds=0.02)
)


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("GRAPHBRAID_CACHE", str(tmp_path / "cache"))


@pytest.fixture(autouse=True)
def two_cores(monkeypatch):
    monkeypatch.setattr(planning.Hardware, "planned_cores", 2)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def make_trainer(kernels=True, **options):
    graph = community_graph()
    torch.manual_seed(3)
    model = GraphSAGE(graph.num_features, 8, graph.num_classes, 2) if kernels else new_model(graph)
    return Trainer(model, graph, **(OPTIONS | options))


def losses(trainer):
    return [row["train_loss"] for row in trainer.fit().history]


@needs_kernels
def test_threads_that_take_turns_rest_between_the_marks():
    trainer = make_trainer()
    loader = make_loader(trainer.runner, trainer.config, trainer.graph.split("train"))
    CoreSharing(loader, Arrangement(workers=2, threads=2, turns=True), ahead=4)
    plain = [
        batch.n_id.tolist()
        for batch in make_loader(trainer.runner, trainer.config, trainer.graph.split("train")).batches(0)
    ]
    batches, found, done = loader.batches(0), [], []
    for batch in batches:
        found.append(batch.n_id.tolist())
        wait_until(lambda: loader.busy_threads == 0)
        done.append(int(loader.stage_seconds["batches"]))
        del batch
    assert found == plain
    # Four ahead; when one is left, three more: nothing in between. The first may be taken before the fourth.
    ahead = [count - taken for taken, count in enumerate(done, start=1)]
    full = ahead.index(4)
    assert full <= 2
    assert ahead[full : full + 6] == [4, 3, 2, 4, 3, 2]
    loader.close()


def wait_until(holds):
    deadline = time.perf_counter() + PATIENCE
    while not holds():
        assert time.perf_counter() < deadline
        time.sleep(0.001)


@needs_kernels
def test_training_gets_the_cores_of_resting_threads_and_only_those(monkeypatch):
    trainer = make_trainer()
    loader = make_loader(trainer.runner, trainer.config, trainer.graph.split("train"))
    sharing = CoreSharing(loader, Arrangement(workers=1, threads=2, turns=True), ahead=4)
    for busy, threads in ((0, 2), (1, 1), (0, 2)):
        monkeypatch.setattr(type(loader), "busy_threads", busy)
        sharing.before_batch()
        assert torch.get_num_threads() == threads
    static = CoreSharing(loader, Arrangement(workers=1, threads=2), ahead=2)
    monkeypatch.setattr(type(loader), "busy_threads", 1)
    static.before_batch()
    assert torch.get_num_threads() == 2


@pytest.mark.slow
def test_arrangements_are_tried_and_the_fastest_is_followed():
    trainer = make_trainer(plan="auto")
    found = losses(trainer)
    assert trainer.plan.cores is not None
    assert found == losses(make_trainer())
    profile = trainer.profile()
    assert {trial.cores.turns for trial in profile.trials} == {True, False}
    assert all(trial.seconds > 0 for trial in profile.trials)
    assert trainer.plan.predicted_seconds == pytest.approx(
        trainer.plan.num_batches * min(trial.seconds for trial in profile.trials)
    )


@pytest.mark.parametrize("turns", [True, False])
def test_a_saved_plan_with_its_cores_changes_no_loss(turns, tmp_path):
    trial = TimedArrangement(cores=Arrangement(workers=2, threads=2, turns=turns), seconds=0.01)
    make_plan(Profile(times=(TIMES,), trials=(trial,)), 13).save(tmp_path / "plan.json")
    trainer = make_trainer(plan=str(tmp_path / "plan.json"))
    assert losses(trainer) == losses(make_trainer())
    assert trainer.plan.cores == trial.cores


@pytest.mark.slow
def test_a_model_of_the_users_keeps_its_threads():
    profile = make_trainer(kernels=False, layout="subgraph").profile()
    assert profile.trials
    assert not any(trial.cores.turns for trial in profile.trials)


def test_threads_that_the_user_chose_stay():
    assert make_trainer(threads=1).profile().trials == ()


@pytest.mark.slow
def test_bits_that_depend_on_threads_forbid_turns(monkeypatch):
    clip = torch.nn.utils.clip_grad_norm_
    monkeypatch.setattr(
        torch.nn.utils, "clip_grad_norm_", lambda *a, **k: clip(*a, **k) + torch.get_num_threads()
    )
    assert not any(trial.cores.turns for trial in make_trainer().profile().trials)
