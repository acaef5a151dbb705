"""A batching process that is killed in the middle of an epoch: said clearly, survived where it can be."""

import dataclasses
import logging
import os
import signal
import time
from pathlib import Path

import pytest
import torch
from benchmarks.common.emulated import EmulatedAccelerator
from tests.collective.cases import stage_times
from tests.collective.emulation import BATCH_SIZE, FAST, GRAPH, NUM_STEPS, contents, make_context
from tests.extras import PATIENCE

from graphbraid.collective.hardware.cpu import CpuBatching
from graphbraid.collective.hardware.process import ProcessBatching
from graphbraid.collective.plan.scheduler import fixed_plan
from graphbraid.collective.plan.simulator import CPU, GPU
from graphbraid.collective.plan.times import Profile
from graphbraid.collective.run import stages
from graphbraid.collective.run.dual_buffer import DualBuffer
from graphbraid.collective.run.executor import Executor
from graphbraid.collective.run.operators import Operators
from graphbraid.collective.run.replanner import Replanning
from graphbraid.collective.run.stages import WorkerDiedError, make_operator, register
from graphbraid.errors import ResourceError
from graphbraid.loader import NeighborLoader


@pytest.fixture(autouse=True)
def nothing_is_left(no_thread_is_left):
    kept = dict(stages._factories)
    yield
    stages._factories.clear()
    stages._factories.update(kept)


class Machine:
    """An emulated device whose batching, and a host whose batching, may run in processes."""

    def __init__(self, *, on_cpu, on_device, times=FAST):
        self.device = EmulatedAccelerator(times, emulate_cpu=False)
        self.device.hardware, self.device.host = "test-device", "test-host"
        self.made = {}
        for hardware, in_process, plain in (
            ("test-host", on_cpu, "cpu"),
            ("test-device", on_device, "emulated"),
        ):
            if in_process is not None:
                register("batching", hardware)(self._maker(hardware, in_process, plain))
        for stage in ("transfer", "model"):
            register(stage, "test-device")(stages.find(stage, "emulated"))

    def _maker(self, hardware, in_process, plain):
        def make(context):
            if not in_process:
                return stages.find("batching", plain)(context)
            self.made[hardware] = ProcessBatching(context, start_method="fork")
            return self.made[hardware]

        return make

    def executor(self, share, **options):
        plan = fixed_plan(Profile(times=(self.device.times,)), NUM_STEPS, share)
        self.operators = Operators.of(make_context(self.device, plan.workers))
        return Executor(self.operators, plan, num_steps=NUM_STEPS, **options)

    def kill(self, hardware, which=0):
        os.kill(self.made[hardware].pids[which], signal.SIGKILL)

    def close(self):
        for operator in self.made.values():
            operator.close()


@pytest.fixture
def machine(request):
    made = []

    def make(**options):
        made.append(Machine(**options))
        return made[0]

    yield make
    for one in made:
        one.close()


def reference():
    prepare = make_operator("batching", "cpu", make_context(torch.device("cpu")))
    return [contents(prepare(0, step)) for step in range(NUM_STEPS)]


def test_a_process_prepares_the_same_batches(machine):
    one = machine(on_cpu=True, on_device=None)
    assert [contents(batch) for batch in one.executor(1.0)] == reference()
    assert len(one.made["test-host"].pids) == 2
    assert os.getpid() not in one.made["test-host"].pids


def test_where_there_is_no_other_route_the_error_says_what_happened_and_the_epoch_goes_on_anew(machine):
    one = machine(on_cpu=True, on_device=None)
    found = []
    with pytest.raises(WorkerDiedError) as caught:
        for batch in one.executor(1.0):
            found.append(contents(batch))
            if batch.step == 11:
                killed = time.perf_counter()
                one.kill("test-host", 0)
    assert time.perf_counter() - killed < PATIENCE
    assert isinstance(caught.value, ResourceError)
    text = str(caught.value)
    for part in (
        "stage 'batching' on 'test-device'",
        f"pid {one.made['test-host'].pids[0]}",
        "was killed by SIGKILL",
        "at epoch 0, step ",
        f"batches(0, {text.split('step ')[1].split('.', maxsplit=1)[0]})",
    ):
        assert part in text
    assert one.device.held_batches == 0
    one.close()
    rest = one.executor(1.0, start=len(found))
    assert found + [contents(batch) for batch in rest] == reference()


@pytest.mark.parametrize(("lost", "share"), [(CPU, 0.5), (GPU, 0.5), (CPU, 1.0), (GPU, 0.0)])
def test_the_other_route_takes_the_steps_of_a_killed_process(lost, share, machine, caplog):
    one = machine(on_cpu=lost == CPU, on_device=lost == GPU)
    never = Replanning(threshold=1e6)  # a busy machine's drift would take the route's steps before it is lost
    executor, found = one.executor(share, replanning=never), []
    with caplog.at_level(logging.WARNING, logger="graphbraid"):
        for batch in executor:
            found.append(contents(batch))
            if batch.step == 9:
                for which in range(len(next(iter(one.made.values())).pids)):
                    one.kill("test-host" if lost == CPU else "test-device", which)
    assert found == reference()
    assert sum("batching was lost at step" in event for event in executor.events) == 1
    assert "was killed by SIGKILL" in caplog.text
    assert "no step is lost" in caplog.text
    assert executor.plan.name == ("gpu" if lost == CPU else "cpu")  # and the next epoch's
    late = {op.stage for op in executor.ops if op.step >= 30}
    assert late == ({"uva", "model"} if lost == CPU else {"cpu", "dma", "model"})
    assert one.device.held_batches == 0
    assert executor._steps.held == 0


@pytest.mark.parametrize("lookahead", [False, True])
def test_buffers_full_of_later_batches_do_not_hold_up_the_steps_of_a_lost_route(lookahead):
    """All host buffers wait behind a step of the device's when its process dies."""
    times = stage_times(0.002, 0.001, 0.001, 0.002, workers=2)
    device = EmulatedAccelerator(times)
    plan = fixed_plan(Profile(times=(times,)), NUM_STEPS, 0.5)
    context = dataclasses.replace(make_context(device, 2), lookahead=lookahead)
    executor = Executor(Operators.of(context), plan, num_steps=NUM_STEPS)
    executor._steps = steps = DualBuffer(bytes([GPU] * 8 + [CPU] * 32), cbs=2, gbs=4, most_cbs=2, most_gbs=4)

    def died():
        deadline = time.perf_counter() + PATIENCE
        while steps.held < 2 and time.perf_counter() < deadline:
            time.sleep(0.001)
        return WorkerDiedError("killed")

    device.fail("uva", 3, died)
    assert [contents(batch) for batch in executor] == reference()
    assert "the device's batching was lost at step 3: 5 steps" in executor.events[0]


def test_both_routes_lost_is_an_error_at_the_next_step(machine):
    one = machine(on_cpu=True, on_device=True)
    executor = one.executor(0.5)
    with pytest.raises(WorkerDiedError, match="SIGKILL"):
        for batch in executor:
            if batch.step == 9:
                for hardware in ("test-host", "test-device"):
                    for which in range(2):
                        one.kill(hardware, which)
    assert any("batching was lost" in event for event in executor.events)
    assert one.device.held_batches == 0


def test_later_epochs_of_a_loader_keep_to_the_surviving_route(machine):
    one = machine(on_cpu=False, on_device=True)
    plan = fixed_plan(Profile(times=(FAST,)), NUM_STEPS, 0.5)
    loader = NeighborLoader(
        GRAPH,
        [4, 3],
        "train",
        batch_size=BATCH_SIZE,
        shuffle=True,
        seed=5,
        num_workers=2,
        device=one.device,
        plan=plan,
    )
    found = []
    for batch in loader:
        found.append(contents(batch))
        if batch.step == 5:
            one.kill("test-device", 0)
            one.kill("test-device", 1)
    assert found == reference()
    assert loader.plan.name == "cpu"
    for _ in loader:
        pass
    assert not any("lost" in event for event in loader.executor.events)
    loader.close()


class Broken(CpuBatching):
    def __call__(self, epoch, step):
        raise KeyError(f"no such row at step {step}")


def test_an_error_inside_the_process_keeps_its_kind_and_its_trace():
    operator = ProcessBatching(make_context(torch.device("cpu"), 1), prepare=Broken, start_method="fork")
    with pytest.raises(KeyError, match="no such row at step 3") as caught:
        operator(0, 3)
    assert "test_faults.py" in "".join(caught.value.__notes__)
    operator.close()


@pytest.mark.slow
def test_a_process_that_is_started_afresh_by_the_default_method():
    operator = ProcessBatching(make_context(torch.device("cpu"), 1))
    assert contents(operator(0, 7)) == reference()[7]
    operator.close()
    with pytest.raises(WorkerDiedError):
        operator(0, 8)


def test_processes_end_with_the_one_that_started_them(machine):
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        operator = ProcessBatching(make_context(torch.device("cpu"), 1), start_method="fork")
        operator(0, 0)
        os.write(write, str(operator.pids[0]).encode())
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    pid = int(os.read(read, 20))
    stat, deadline = Path(f"/proc/{pid}/stat"), time.perf_counter() + PATIENCE
    while time.perf_counter() < deadline:
        try:
            if stat.read_text().split(")")[1].split()[0] == "Z":
                break
        except (FileNotFoundError, ProcessLookupError):
            break
        time.sleep(0.05)
    else:
        pytest.fail("the process outlived its parent")
