"""Trainer with a plan: measured on copies, kept, followed; learning does not change."""

import copy
import dataclasses
import json

import pytest
import torch
from benchmarks.common.emulated import EmulatedAccelerator
from tests.train.communities import community_graph, new_model

from graphbraid.collective import Profile, fixed_plan
from graphbraid.collective.plan.times import Duration, StageTimes
from graphbraid.errors import ConfigError, DataError
from graphbraid.estimates import plan as planning
from graphbraid.estimates.plan import worker_counts
from graphbraid.train import Trainer

OPTIONS = {"epochs": 2, "batch_size": 64, "fanouts": (5, 5), "lr": 0.02, "threads": 1}
TIMES = StageTimes(
    workers=2, cpu=Duration(seconds=0.01), dma=Duration(seconds=0.0), model=Duration(seconds=0.02)
)


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("GRAPHBRAID_CACHE", str(tmp_path / "cache"))


def train(plan, **options):
    graph = community_graph()
    torch.manual_seed(3)
    trainer = Trainer(new_model(graph), graph, **(OPTIONS | {"plan": plan} | options))
    result = trainer.fit()
    return trainer, [row["train_loss"] for row in result.history]


def test_losses_do_not_depend_on_the_plan(tmp_path):
    fixed_plan(Profile(times=(TIMES,)), 7, 1.0).save(tmp_path / "plan.json")
    _, plain = train(None)
    for plan in ("auto", "cpu", str(tmp_path / "plan.json")):
        trainer, losses = train(plan)
        assert losses == plain
        assert trainer.plan.name == "cpu"
    assert trainer.plan.workers == 2


def test_measuring_changes_neither_model_nor_random_numbers():
    graph = community_graph()
    trainer = Trainer(new_model(graph), graph, **OPTIONS)
    before, random_state = copy.deepcopy(trainer.model.state_dict()), torch.get_rng_state()
    threads = torch.get_num_threads()
    profile = trainer.profile()
    assert profile.times[0].model.seconds > 0
    assert profile.times[0].cpu.seconds > 0
    assert torch.equal(torch.get_rng_state(), random_state)
    assert torch.get_num_threads() == threads
    assert all(torch.equal(value, before[name]) for name, value in trainer.model.state_dict().items())
    assert all(parameter.grad is None for parameter in trainer.model.parameters())


def test_a_ready_optimizer_keeps_its_state(monkeypatch):
    graph = community_graph()
    model = new_model(graph)
    optimizer = torch.optim.Adam(model.parameters(), lr=OPTIONS["lr"])
    options = {name: value for name, value in OPTIONS.items() if name != "lr"}
    Trainer(model, graph, optimizer=optimizer, **options).profile()
    assert optimizer.state == {}


def test_a_second_run_reads_what_the_first_measured(monkeypatch):
    train("auto")
    monkeypatch.setattr(planning, "measure", lambda *_, **__: pytest.fail("measured again"))
    train("auto")


def test_cores_are_split_between_workers_and_training(monkeypatch):
    seen = []
    monkeypatch.setattr(torch, "set_num_threads", seen.append)
    monkeypatch.setattr(planning.Hardware, "planned_cores", 8)
    monkeypatch.setattr(planning, "profile_run", lambda *_, **__: Profile(times=(TIMES,)))
    trainer, _ = train("auto", threads=None, epochs=1)
    assert trainer.plan.workers == 2
    assert seen[0] == 6


@pytest.mark.slow
def test_an_accelerator_is_measured_planned_and_followed():
    times = StageTimes(
        workers=2, **{k: Duration(seconds=s) for k, s in (("cpu", 0.006), ("dma", 0.001), ("model", 0.002))}
    )
    times = dataclasses.replace(times, uva=Duration(seconds=0.003))
    trainer, losses = train("auto", accelerator=EmulatedAccelerator(times))
    assert losses == train(None)[1]
    assert trainer.plan.times.uva.seconds >= 0.003
    assert trainer.plan.cores is None
    with pytest.raises(ConfigError, match="also give plan='auto'"):
        train(None, accelerator=EmulatedAccelerator(times))


def test_numbers_of_workers_leave_a_core_to_training():
    assert worker_counts(1, training_needs_one=True) == [1]
    assert worker_counts(2, training_needs_one=True) == [1]
    assert worker_counts(8, training_needs_one=True) == [1, 2, 4, 7]
    assert worker_counts(8, training_needs_one=False) == [1, 2, 4, 8]


def test_a_trace_shows_the_first_epoch_and_changes_no_loss(tmp_path):
    _, plain = train(None)
    _, losses = train("cpu", trace=tmp_path / "trace.json")
    assert losses == plain
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    trained = [e for e in events if e.get("cat") == "model" and e["pid"] == 1]
    predicted = [e for e in events if e.get("cat") == "model" and e["pid"] == 2]
    assert len(trained) == len(predicted) > 3
    assert "<svg" in (tmp_path / "trace.html").read_text()


def test_a_plan_for_a_device_is_refused_on_the_cpu_and_a_broken_file_named(tmp_path):
    times = StageTimes(workers=1, **{k: Duration(seconds=0.01) for k in ("cpu", "dma", "model", "uva")})
    fixed_plan(Profile(times=(times,)), 7, 0.5).save(tmp_path / "plan.json")
    with pytest.raises(ConfigError, match="lets a device prepare batches"):
        train(str(tmp_path / "plan.json"))
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(DataError, match="not JSON"):
        train(str(tmp_path / "broken.json"))
