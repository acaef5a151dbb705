"""The executor: every plan gives the same batches in step order; what fails is said or mended."""

import dataclasses
import logging
import os
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

import pytest
import torch
from benchmarks.common.emulated import EmulatedAccelerator
from tests.collective.cases import stage_times
from tests.collective.checker import check_schedule
from tests.collective.emulation import (
    FAST,
    NUM_STEPS,
    contents,
    let_the_planner_finish,
    losses_of,
    make_context,
    make_executor,
    once_memory_ran_out,
)
from tests.extras import PATIENCE, once_undisturbed

from graphbraid.collective.hardware.cpu import NoTransfer
from graphbraid.collective.plan.scheduler import fixed_plan, make_plan
from graphbraid.collective.plan.simulator import CPU, Durations
from graphbraid.collective.plan.times import Profile
from graphbraid.collective.run.operators import Operators
from graphbraid.collective.run.replanner import Drift, Replanning
from graphbraid.collective.run.stages import DeviceMemoryError, find, make_operator, register
from graphbraid.errors import ConfigError, ResourceError

pytestmark = pytest.mark.usefixtures("no_thread_is_left")


def reference():
    prepare = make_operator("batching", "cpu", make_context(torch.device("cpu")))
    return [contents(prepare(0, step)) for step in range(NUM_STEPS)]


@pytest.mark.parametrize("share", [0.0, 0.3, 0.5, 1.0])
def test_every_split_gives_the_same_batches_in_step_order(share):
    executor = make_executor(share=share)
    assert [contents(batch) for batch in executor] == reference()
    assert sum(op.stage == "cpu" for op in executor.ops) == round(share * NUM_STEPS)
    assert executor.device.held_batches == 0


@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_what_ran_keeps_the_rules_of_eq_1_to_4(share):
    plan = dataclasses.replace(fixed_plan(Profile(times=(FAST,)), NUM_STEPS, share), cbs=3, gbs=3)
    executor = make_executor(plan=plan)
    for _ in executor:
        pass
    took = {(op.stage, op.step): op.end - op.start for op in executor.ops}
    durations = Durations(
        **{s: [took.get((s, i), 0.0) for i in range(NUM_STEPS)] for s in ("cpu", "dma", "uva", "model")}
    )
    check_schedule(executor.ops, plan.routes(), durations, cbs=3, gbs=3, workers=2)


def test_losses_are_equal_to_the_bit_for_all_plans():
    cpu, gpu, braided = (losses_of(make_executor(share=share)) for share in (1.0, 0.0, 0.45))
    assert len(cpu) == NUM_STEPS
    assert cpu == gpu == braided


def test_any_range_of_steps_of_any_epoch():
    executor = make_executor(share=0.5, epoch=3, start=7, stop=19)
    prepare = make_operator("batching", "cpu", make_context(torch.device("cpu")))
    assert [contents(b) for b in executor] == [contents(prepare(3, step)) for step in range(7, 19)]
    assert list(make_executor(start=5, stop=5)) == []


@pytest.mark.slow
def test_the_measured_epoch_is_near_the_simulated_one():
    # Long beside the milliseconds by which a busy machine wakes a thread too late.
    times = stage_times(0.064, 0.016, 0.02, 0.032, workers=2)
    plan = make_plan(Profile(times=(times,)), NUM_STEPS)
    assert plan.name == "braided"

    def near():
        executor = make_executor(times, plan=plan)
        for _ in executor:
            pass
        measured = max(op.end for op in executor.ops)
        # Sleeps last as long as asked for or longer.
        assert 0.98 * plan.predicted_seconds <= measured <= 1.5 * plan.predicted_seconds

    once_undisturbed(near)


def test_a_slow_consumer_holds_the_others_back():
    plan = dataclasses.replace(fixed_plan(Profile(times=(FAST,)), NUM_STEPS, 1.0), cbs=2, gbs=1)
    executor = make_executor(plan=plan)
    for batch in executor:
        if batch.step == 3:
            until = time.monotonic() + PATIENCE
            while executor.device.held_batches < 1:
                assert time.monotonic() < until
                time.sleep(0.001)
            time.sleep(0.1)  # in which more would come if there were room
            prepared = {op.step for op in executor.ops if op.stage == "cpu"}
            assert max(prepared) <= 3 + 2
            assert executor.device.held_batches == 1
            break
    executor.close()


@pytest.mark.parametrize("stage", ["cpu", "dma", "uva"])
def test_an_error_of_any_stage_surfaces_at_the_next_step_with_its_trace(stage):
    executor = make_executor(share=0.5)
    routes = executor.plan.routes()
    step = next(s for s in range(10, NUM_STEPS) if (routes[s] == CPU) == (stage != "uva"))
    executor.device.fail(stage, step, lambda: RuntimeError("the sampler broke"))
    seen = []
    with pytest.raises(RuntimeError, match="the sampler broke") as caught:
        for batch in executor:
            seen.append(batch.step)
    assert seen == list(range(len(seen)))
    assert len(seen) <= step
    trace = "".join(traceback.format_tb(caught.value.__traceback__))
    assert "emulated.py" in trace  # where it was raised, not only where it was met
    assert executor.device.held_batches == 0


def test_device_memory_that_runs_out_means_fewer_buffers_and_no_lost_step(caplog):
    device = EmulatedAccelerator(FAST, memory_batches=2)
    plan = dataclasses.replace(fixed_plan(Profile(times=(FAST,)), NUM_STEPS, 0.5), gbs=6)
    executor = make_executor(plan=plan, device=device)
    with caplog.at_level(logging.WARNING, logger="graphbraid"):
        assert [contents(batch) for batch in once_memory_ran_out(executor)] == reference()
    assert "device memory ran out at step" in caplog.text
    assert "no step is lost" in executor.events[0]


@pytest.mark.parametrize("stage", ["dma", "uva"])
@pytest.mark.parametrize("error", [DeviceMemoryError, torch.OutOfMemoryError])
def test_memory_that_runs_out_once_in_the_middle_is_survived_on_both_routes(stage, error):
    executor = make_executor(share=0.5)
    routes = executor.plan.routes()
    step = next(s for s in range(12, NUM_STEPS) if (routes[s] == CPU) == (stage == "dma"))
    executor.device.fail(stage, step, lambda: error("full"))
    assert [contents(batch) for batch in executor] == reference()
    assert f"ran out at step {step}" in executor.events[0]


def test_a_device_without_room_for_one_batch_is_a_resource_error():
    device = EmulatedAccelerator(FAST, memory_batches=0)
    with pytest.raises(ResourceError, match=r"no memory for a single mini-batch \(step 0\)"):
        list(make_executor(device=device))


def test_leaving_early_stops_the_threads_and_frees_the_device():
    executor = make_executor()
    for batch in executor:
        if batch.step == 4:
            break
    executor.close()
    assert executor.device.held_batches == 0
    executor.close()  # a second time does no harm
    assert not executor.device.compute.locked()


def test_the_callers_own_error_leaves_no_thread():
    with pytest.raises(KeyError), make_executor() as executor:
        for _ in executor:
            raise KeyError("the training step broke")


@pytest.mark.slow
def test_ctrl_c_ends_a_run_that_waits_for_a_batch():
    code = """
from tests.collective.emulation import make_executor, stage_times
executor = make_executor(stage_times(60.0, 0.001, 0.001, workers=1), share=1.0)
executor._operators.cpu_batching._accelerator.check = lambda *_: (print("asleep", flush=True), 1 / 0.0001)
print("started", flush=True)
import benchmarks.common.emulated as emulated
from graphbraid.collective.run import executor as home
home.JOIN_SECONDS = 0.2
for _ in executor:
    pass
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(["src", ".", os.environ.get("PYTHONPATH", "")])},
    )
    assert process.stdout.readline() == "started\n"
    assert process.stdout.readline() == "asleep\n"
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE)
    assert "KeyboardInterrupt" in err
    assert process.returncode != 0


def test_drift_plans_anew_without_touching_the_batches():
    times = stage_times(0.004, 0.001, 0.001, 0.004, workers=2)
    expected, epochs = reference(), []

    def planned_anew():
        executor = make_executor(
            times, share=0.7, replanning=Replanning(threshold=0.4, samples=4, patience=4)
        )
        epochs.append([])
        for batch in executor:
            if batch.step == 6:
                executor.device.slow_down("cpu", 8.0)
            let_the_planner_finish(executor)
            epochs[-1].append(contents(batch))
        assert any("planning anew" in event for event in executor.events)
        assert any("new plan from step" in event for event in executor.events)
        assert executor.plan.split < 0.5  # the slow CPU gets fewer than it was planned to have
        assert sum(op.stage == "cpu" for op in executor.ops) < 0.7 * NUM_STEPS

    try:
        once_undisturbed(planned_anew)
    finally:
        assert all(found == expected for found in epochs)  # however the machine disturbed the durations


def test_a_drift_that_no_other_plan_would_make_up_for_keeps_the_plan():
    times = stage_times(0.006, 0.003, 0.008, 0.01, workers=2)  # bound by training

    def kept():
        executor = make_executor(
            times, share=1.0, replanning=Replanning(threshold=1.5, samples=5, patience=4)
        )
        plan = executor.plan
        for batch in executor:
            if batch.step == 6:
                executor.device.slow_down("model", 3.0)
        assert executor.plan is plan
        assert executor.events == []
        known = executor._replanner.drift.times  # later durations are compared with these
        assert known.model.seconds >= 0.023

    once_undisturbed(kept)


def test_steady_durations_keep_the_plan():
    def kept():
        executor = make_executor(
            stage_times(0.006, 0.003, 0.004, 0.006, workers=2),
            replanning=Replanning(threshold=3.0, samples=4, patience=4),
        )
        plan = executor.plan
        for _ in executor:
            pass
        assert executor.plan is plan
        assert executor.events == []

    once_undisturbed(kept)


def test_drift_compares_only_full_windows_and_drops_what_sticks_out():
    drift = Drift(FAST, Replanning(samples=4, threshold=0.25))
    for seconds in (0.008, 0.008, 0.008):
        drift.note("cpu", seconds)
    assert drift.changed() == {}
    drift.note("cpu", 0.5)  # one that the system held up
    assert drift.changed() == {"cpu": pytest.approx(2.0)}
    assert drift.current().cpu.seconds == pytest.approx(0.008)
    assert drift.current().uva == FAST.uva
    drift.reset(drift.current())
    assert drift.changed() == {}


def test_drift_takes_the_new_speed_and_no_mean_of_old_and_new():
    drift = Drift(FAST, Replanning(samples=5))
    for seconds in (0.004, 0.004, 0.008, 0.008):
        drift.note("cpu", seconds)
    drift.note("cpu", 0.008)
    assert drift.changed() == {"cpu": pytest.approx(2.0)}
    assert drift.current().cpu.seconds == pytest.approx(0.008)


def test_drift_within_a_stages_spread_is_noise():
    drift = Drift(FAST, Replanning(samples=5))
    for seconds in (0.002, 0.002, 0.0055, 0.007, 0.007):
        drift.note("cpu", seconds)
    assert drift.changed() == {}
    for _ in range(5):
        drift.note("cpu", 0.0055)
    assert drift.changed() == {"cpu": pytest.approx(1.375)}


def test_a_third_partys_accelerator_needs_only_registered_operators():
    class Npu:
        hardware, host = "npu", "cpu"

    moved = []

    with pytest.raises(ConfigError, match=r"no operator is registered for stage 'transfer' on 'npu'"):
        Operators.of(make_context(Npu()))

    @register("transfer", "npu")
    class NpuTransfer(NoTransfer):
        def __call__(self, batch):
            moved.append(batch.step)
            return batch

    register("model", "npu")(find("model", "cpu"))
    plan = fixed_plan(Profile(times=(stage_times(0.001, 0.0, 0.001, workers=2),)), NUM_STEPS, 1.0)
    assert [contents(b) for b in make_executor(plan=plan, device=Npu())] == reference()
    assert moved == list(range(NUM_STEPS))
    with pytest.raises(ConfigError, match="Did you mean 'transfer'"):
        register("transfers", "npu")


def test_the_documented_accelerator_runs():
    text = (Path(__file__).parents[2] / "docs" / "collective.md").read_text()
    [example] = [part.split("```")[0] for part in text.split("```python")[1:] if "class Npu" in part]
    found = {}
    exec(compile(example, "collective.md", "exec"), found)
    assert found["steps"] == list(range(len(found["loader"])))
    found["loader"].close()
