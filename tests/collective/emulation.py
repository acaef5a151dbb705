"""A small graph on an emulated accelerator, for tests of the executor."""

import time

import torch
from benchmarks.common.emulated import EmulatedAccelerator
from tests.collective.cases import stage_times
from tests.extras import PATIENCE
from tests.sampling.graphs import power_law_csc

from graphbraid import Graph
from graphbraid.collective.plan.scheduler import fixed_plan
from graphbraid.collective.plan.times import Profile
from graphbraid.collective.run.executor import Executor
from graphbraid.collective.run.operators import Operators
from graphbraid.collective.run.stages import Context
from graphbraid.sampling import SamplerConfig, SeedSchedule
from graphbraid.sampling.minibatch.mini_batch import BatchSource

NUM_STEPS = 40
BATCH_SIZE = 16
FAST = stage_times(0.004, 0.001, 0.001, 0.002, workers=2)


def make_graph():
    csc = power_law_csc(800, 6000)
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(800, 9, generator=draw)
    y = torch.randint(0, 5, (800,), generator=draw)
    return Graph(csc=csc, x=x, y=y, splits={"train": torch.arange(NUM_STEPS * BATCH_SIZE)})


GRAPH = make_graph()


class Batch:
    """The part of a MiniBatch that a RowBuffer touches."""

    def __init__(self, part):
        self.row_part, self.x = part, None

    def send_whole(self):
        self.row_part = None


def make_context(device, workers=2, *, graph=GRAPH, batch_size=BATCH_SIZE, fanouts=(4, 3)):
    return Context(
        source=BatchSource(graph=graph),
        sampler=SamplerConfig(fanouts=fanouts),
        schedule=SeedSchedule(seeds=graph.split("train"), batch_size=batch_size, shuffle=True, seed=5),
        device=device,
        workers=workers,
    )


def make_executor(times=FAST, share=0.5, *, plan=None, device=None, **options):
    """An executor over all steps; its accelerator is ``executor.device``."""
    device = device or EmulatedAccelerator(times)
    plan = plan or fixed_plan(Profile(times=(times,)), NUM_STEPS, share)
    context = make_context(device, plan.workers)
    executor = Executor(Operators.of(context), plan, num_steps=NUM_STEPS, **options)
    executor.device = device
    return executor


def losses_of(executor):
    """The losses of a linear model that is trained on the batches' seeds."""
    torch.manual_seed(0)
    model = optimizer = None
    found = []
    for batch in executor:
        model = model or torch.nn.Linear(batch.x.shape[1], 5)
        optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
        loss = torch.nn.functional.cross_entropy(model(batch.x[: batch.batch_size]), batch.seed_y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(float(loss.detach()))
    return found


def let_the_planner_finish(executor):
    """Wait for a plan under way: on a busy machine the epoch would be over before."""
    until = time.perf_counter() + PATIENCE
    while executor._replanner._is_planning and executor._replanner._found is None:
        assert time.perf_counter() < until
        time.sleep(0.001)


def once_memory_ran_out(executor):
    """The batches. The first is held until the device's memory ran out: a busy one might never be full."""
    until = time.perf_counter() + PATIENCE
    for batch in executor:
        while not executor.events:
            assert time.perf_counter() < until
            time.sleep(0.001)
        yield batch


def contents(batch):
    """What learning sees of a batch."""
    return (
        batch.step,
        batch.n_id.tolist(),
        batch.edge_index.tolist(),
        batch.x.numpy().tobytes(),
        batch.seed_y.tolist(),
    )
