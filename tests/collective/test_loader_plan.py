"""NeighborLoader with a plan: the same batches as without, whoever prepares them."""

import pytest
import torch
from benchmarks.common.emulated import EmulatedAccelerator
from tests.collective.cases import stage_times
from tests.collective.conftest import threads_of_ours
from tests.collective.emulation import BATCH_SIZE, FAST, GRAPH, NUM_STEPS, contents, let_the_planner_finish
from tests.extras import once_undisturbed

from graphbraid.collective import Plan, Profile, fixed_plan
from graphbraid.collective.run.replanner import Replanning
from graphbraid.errors import ConfigError
from graphbraid.loader import NeighborLoader, planned

pytestmark = pytest.mark.usefixtures("no_thread_is_left")


def make_loader(**options):
    return NeighborLoader(
        GRAPH, [4, 3], "train", batch_size=BATCH_SIZE, shuffle=True, seed=5, num_workers=2, **options
    )


def plain():
    return [contents(batch) for batch in make_loader()]


@pytest.mark.parametrize("plan", ["auto", "cpu", "gpu", None])
def test_an_accelerators_batches_are_those_of_the_plain_loader(plan):
    loader = make_loader(device=EmulatedAccelerator(FAST), plan=plan)
    assert [contents(batch) for batch in loader] == plain()
    assert loader.plan.name == {"cpu": "cpu", "gpu": "gpu"}.get(plan, loader.plan.name)
    assert loader.stage_seconds["batches"] >= NUM_STEPS if plan == "cpu" else True
    again = [contents(batch) for batch in loader.batches(0, 10, 20)]
    assert again == plain()[10:20]
    loader.close()


def test_a_saved_plan_and_a_plan_itself_are_followed(tmp_path, monkeypatch):
    # On a busy machine durations drift; here the plan shall stay.
    monkeypatch.setattr(planned, "Replanning", lambda: Replanning(threshold=1e9))
    plan = fixed_plan(Profile(times=(FAST,)), NUM_STEPS, 0.25)
    plan.save(tmp_path / "plan.json")
    for given in (plan, tmp_path / "plan.json", str(tmp_path / "plan.json")):
        loader = make_loader(device=EmulatedAccelerator(FAST), plan=given)
        iterator = iter(loader)
        for _ in range(12):
            next(iterator)
        assert loader.executor.plan == plan
        assert {op.stage for op in loader.executor.ops} == {"cpu", "dma", "uva", "model"}
        loader.close()


def test_on_the_cpu_a_plan_prepares_on_its_threads():
    loader = make_loader(plan="auto")
    assert [contents(batch) for batch in loader] == plain()
    assert loader.plan.name == "cpu"
    assert loader.stage_seconds["batches"] >= NUM_STEPS


def test_closing_a_loader_in_the_middle_ends_its_executor():
    before = threads_of_ours()
    loader = make_loader(device=EmulatedAccelerator(FAST), plan="auto")
    iterator = iter(loader)
    next(iterator)
    loader.close()
    assert threads_of_ours() <= before
    with pytest.raises(StopIteration):
        next(iterator)


def test_a_transform_sees_planned_batches():
    loader = make_loader(plan="cpu", transform=lambda data: data.num_nodes)
    assert list(loader) == [len(ids) for _, ids, *_ in plain()]


def test_drift_found_in_one_epoch_plans_the_next():
    expected, epochs = plain(), []

    def planned_anew():
        device = EmulatedAccelerator(stage_times(0.004, 0.001, 0.001, 0.003, workers=2))
        loader = make_loader(device=device, plan=fixed_plan(Profile(times=(device.times,)), NUM_STEPS, 0.8))
        device.slow_down("cpu", 6.0)
        for _ in loader:
            let_the_planner_finish(loader.executor)
        events, split = loader.executor.events, loader.plan.split
        epochs.append([contents(b) for b in loader.batches(0)])
        loader.close()
        assert any("new plan" in event for event in events)
        assert split < 0.8

    try:
        once_undisturbed(planned_anew)
    finally:
        assert all(found == expected for found in epochs)


def test_a_plan_for_a_device_that_prepares_no_batches_is_refused():
    counts = {"num_batches": 2, "num_cpu": 1, "cbs": 1, "gbs": 1, "predicted_seconds": 1, "bound_seconds": 1}
    plan = Plan(**counts, times=FAST, limit="cpu")
    with pytest.raises(ConfigError, match="no operator is registered for batching"):
        next(iter(make_loader(plan=plan)))


def test_batches_can_be_moved_without_a_plan():
    batch = next(iter(make_loader(device="cpu")))
    assert batch.x.device == torch.device("cpu")
