"""Rows on disk under a plan: announced as by the plain loader, gathered in order, right whoever prepares."""

import dataclasses
import threading
import time
from types import SimpleNamespace

import pytest
import torch
from benchmarks.common.emulated import EmulatedAccelerator
from tests.collective.emulation import FAST
from tests.extras import in_threads
from tests.features.tables import flip_a_byte, same, stored_graph

import graphbraid
from graphbraid import Trainer
from graphbraid.collective.hardware.process import ProcessBatching
from graphbraid.collective.plan.scheduler import fixed_plan
from graphbraid.collective.plan.simulator import CPU, GPU
from graphbraid.collective.plan.times import Profile
from graphbraid.collective.run.dual_buffer import DualBuffer
from graphbraid.collective.run.executor import Executor
from graphbraid.collective.run.operators import Operators, RowsAhead
from graphbraid.collective.run.stages import Context
from graphbraid.errors import DataError
from graphbraid.features import DiskOptions, DiskRows, RowCache, TieredFeatures
from graphbraid.loader import BatchLoader, LoaderSettings
from graphbraid.sampling import SamplerConfig, SeedSchedule
from graphbraid.sampling.source import BatchSource

SMALL = DiskOptions(depth=4, longest_bytes=4096)
KEPT, LOOKAHEAD, BATCH = 90, 5, 7


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return stored_graph(tmp_path_factory.mktemp("g"))


pytestmark = pytest.mark.usefixtures("no_thread_is_left")


def tiers_of(graph, kept=KEPT, lookahead=LOOKAHEAD):
    disk = DiskRows.behind(graph.x, options=SMALL)
    return TieredFeatures(disk, RowCache(disk, kept, policy="belady"), score=None, lookahead=lookahead)


def context_of(graph, tiers, device, workers):
    return Context(
        source=BatchSource(graph=graph, rows=tiers),
        sampler=SamplerConfig(fanouts=(4, 3)),
        schedule=SeedSchedule(seeds=graph.split("train"), batch_size=BATCH, shuffle=True, seed=5),
        device=device,
        workers=workers,
    )


def planned(graph, tiers, *, workers=1, share=1.0, epochs=2, stop=None):
    """The batches of some epochs by an executor on an emulated device."""
    times = dataclasses.replace(FAST, workers=workers)
    context = context_of(graph, tiers, EmulatedAccelerator(times), workers)
    operators, num_steps = Operators.of(context), context.schedule.num_steps
    plan = fixed_plan(Profile(times=(times,)), num_steps, share)
    for epoch in range(epochs):
        yield from Executor(operators, plan, num_steps=num_steps, epoch=epoch, stop=stop)


def plain(graph, tiers):
    options = {"num_neighbors": [4, 3], "batch_size": BATCH, "input_nodes": "train", "shuffle": True}
    settings = LoaderSettings(**options, seed=5, num_workers=1)
    with BatchLoader(BatchSource(graph=graph, rows=tiers), settings) as loader:
        return [batch for epoch in range(2) for batch in loader.batches(epoch)]


@pytest.mark.parametrize("share", [1.0, 0.5, 0.0])
@pytest.mark.parametrize("workers", [1, 3])
def test_planned_batches_have_the_rows_that_the_graph_has(graph, share, workers):
    found = list(planned(graph, tiers_of(graph), workers=workers, share=share))
    expected = plain(graph, None)
    for ours, other in zip(found, expected, strict=True):
        assert torch.equal(ours.n_id, other.n_id)
        assert same(ours.x, graph.x[ours.n_id])


def test_a_plan_reads_no_more_of_the_disk_than_the_plain_loader(graph):
    """Without announcements the least recently read row goes, which costs reads."""
    tiers = {name: tiers_of(graph) for name in ("plain", "planned")}
    plain(graph, tiers["plain"])
    list(planned(graph, tiers["planned"]))
    counts = {name: store.counts.disk_rows for name, store in tiers.items()}
    blind = tiers_of(graph, lookahead=0)
    list(planned(graph, blind))
    assert counts["planned"] == counts["plain"] < blind.counts.disk_rows


def test_an_iteration_that_ends_early_leaves_nothing_announced(graph):
    tiers = tiers_of(graph)
    batches = planned(graph, tiers, workers=2)
    next(batches)
    batches.close()
    for batch in planned(graph, tiers, workers=2, epochs=1):
        assert same(batch.x, graph.x[batch.n_id])


def test_an_error_of_the_disk_reaches_who_iterates(tmp_path):
    graph = stored_graph(tmp_path)
    tiers = tiers_of(graph)
    flip_a_byte(tmp_path / "store" / "x.npy", 4096 + 30 * 148)
    with pytest.raises(DataError, match=r"x\.npy has changed"):
        list(planned(graph, tiers, workers=3))


def test_worker_processes_sample_and_this_process_reads(graph):
    tiers = tiers_of(graph)
    context = context_of(graph, tiers, torch.device("cpu"), 2)
    batching = ProcessBatching(dataclasses.replace(context, gather=False), start_method="fork")
    ahead = RowsAhead(tiers, batching)
    try:
        for step in range(6):
            ahead.claim(0, step, range(step + 1, 6))
            batch = ahead.prepare(0, step)
            assert same(batch.x, graph.x[batch.n_id])
    finally:
        batching.close()
    assert tiers.counts.host_rows + tiers.counts.disk_rows > 0


@pytest.mark.slow
def test_a_run_that_follows_a_plan_looks_ahead_and_learns_the_same(graph, tmp_path):
    def losses(**options):
        torch.manual_seed(0)
        model = graphbraid.nn.GraphSAGE(graph.num_features, 8, graph.num_classes, num_layers=2)
        trainer = Trainer(model, graph, epochs=2, fanouts=(4, 3), batch_size=BATCH, seed=1, **options)
        result = trainer.fit()
        return [epoch["train_loss"] for epoch in result.history], trainer

    expected, _ = losses()
    found, trainer = losses(tiers=tiers_of(graph), plan="cpu", trace=tmp_path / "trace.json")
    assert found == expected
    assert trainer.tiers.counts.disk_rows > 0


# ---- the order of announcements and gathers alone


class Noted:
    """Rows that note what is asked of them."""

    lookahead = 3
    shape, dtype = torch.Size((100, 1)), torch.float32

    def __init__(self):
        self.done, self.announced, self.forgotten = [], 0, 0

    def announce(self, ids):
        self.done.append(("announce", int(ids)))
        self.announced += 1
        return self.announced - 1

    def gather(self, ids, out=None, *, batch=-1):
        self.done.append(("gather", int(ids), batch))
        return ids.float()[:, None]

    def forget(self):
        self.forgotten += 1


def sampled(epoch, step):
    time.sleep(0.003 * (step % 3))  # later steps are done before earlier ones
    return SimpleNamespace(n_id=torch.tensor([step]), x=None)


def test_workers_announce_and_gather_in_order_with_the_window_announced_before():
    rows = Noted()
    ahead = RowsAhead(rows, sampled)
    steps, claiming = iter(range(20)), threading.Lock()

    def work():
        while True:
            with claiming:
                step = next(steps, None)
                if step is None:
                    return
                ahead.claim(0, step, range(step + 1, min(step + 4, 20)))
            assert ahead.prepare(0, step).x == step

    in_threads(*[work] * 4)
    assert [done[1] for done in rows.done if done[0] == "announce"] == list(range(20))
    gathers = [done[1:] for done in rows.done if done[0] == "gather"]
    assert gathers == [(step, step) for step in range(20)]  # announced as what they are
    for step in range(20):
        before = rows.done[: rows.done.index(("gather", step, step))]
        assert ("announce", min(step + 3, 19)) in before


def test_steps_that_take_the_other_route_or_come_back_late_are_right():
    rows = Noted()
    ahead = RowsAhead(rows, sampled)
    ahead.claim(0, 2, [3, 4])
    assert ahead.prepare(0, 2).x == 2
    ahead.claim(0, 4, [5])  # 3 went to the device
    assert ahead.prepare(0, 4).x == 4
    ahead.claim(0, 3, [5])  # and came back
    assert ahead.prepare(0, 3).x == 3
    assert ahead.prepare(0, 9).x == 9  # which nobody claimed
    assert rows.done[-2:] == [("gather", 3, -1), ("gather", 9, -1)]
    assert ("gather", 4, 2) in rows.done
    ahead.forget()
    assert rows.forgotten == 1
    ahead.claim(0, 0, [])
    assert ahead.prepare(0, 0).x == 0
    assert rows.done[-1] == ("gather", 0, 4)


def test_a_step_that_cannot_be_sampled_fails_where_it_is_prepared():
    def failing(epoch, step):
        if step == 2:
            raise DataError("no such step")
        return sampled(epoch, step)

    ahead = RowsAhead(Noted(), failing)
    ahead.claim(0, 1, [2, 3])
    ahead.claim(0, 2, [3])
    ahead.claim(0, 3, [])
    with pytest.raises(DataError, match="no such step"):  # of the step that it sampled ahead
        ahead.prepare(0, 1)
    with pytest.raises(DataError, match="no such step"):
        ahead.prepare(0, 2)
    assert ahead.prepare(0, 3).x == 3


def test_the_next_steps_to_prepare_are_those_of_the_route_that_nobody_claimed():
    steps = DualBuffer(bytes([CPU, GPU, CPU, CPU, GPU, CPU]), cbs=4, gbs=2, most_cbs=4, most_gbs=2)
    assert steps.next_to_prepare(9) == [0, 2, 3, 5]
    assert steps.claim_preparation() == 0
    assert steps.next_to_prepare(2) == [2, 3]
    steps.follow(bytes([CPU, GPU, GPU, GPU, CPU]), cbs=4, gbs=2)
    assert steps.next_to_prepare(9) == [1, 5]
