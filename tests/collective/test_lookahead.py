"""Look-ahead: fewer rows travel, and no bit of a batch changes, whatever is dropped, fails or comes late."""

import dataclasses
import functools
import time

import pytest
import torch
from benchmarks.common.emulated import EmulatedAccelerator
from hypothesis import given
from hypothesis import strategies as st
from tests.collective import emulation
from tests.collective.cases import stage_times
from tests.collective.emulation import FAST, Batch, contents, losses_of, once_memory_ran_out
from tests.extras import once_undisturbed
from tests.sampling.graphs import power_law_csc

from graphbraid import Graph
from graphbraid.collective import Limits, Profile, fixed_plan, make_plan
from graphbraid.collective.run import lookahead
from graphbraid.collective.run.executor import Executor
from graphbraid.collective.run.lookahead import Directory, RowBuffer
from graphbraid.collective.run.operators import Operators, can_look_ahead
from graphbraid.collective.run.profiler import measure
from graphbraid.collective.run.replanner import Replanning
from graphbraid.collective.run.stages import make_operator, register
from graphbraid.errors import ResourceError
from graphbraid.graph import SparseFeatures
from graphbraid.loader import NeighborLoader, planned

NUM_STEPS, BATCH_SIZE = 24, 12


def make_graph():
    draw = torch.Generator().manual_seed(0)
    return Graph(
        csc=power_law_csc(300, 5000),
        x=torch.randn(300, 64, generator=draw),
        y=torch.randint(0, 5, (300,), generator=draw),
        splits={"train": torch.arange(NUM_STEPS * BATCH_SIZE)},
    )


GRAPH = make_graph()  # its batches share most of their rows
make_context = functools.partial(emulation.make_context, graph=GRAPH, batch_size=BATCH_SIZE, fanouts=(6, 5))
AHEAD = dataclasses.replace(FAST, lookahead=True)


pytestmark = pytest.mark.usefixtures("no_thread_is_left")


@pytest.fixture(scope="module")
def expected():
    prepare = make_operator("batching", "cpu", make_context(torch.device("cpu")))
    return [contents(prepare(0, step)) for step in range(NUM_STEPS)]


def ahead_executor(operators, plan, **options):
    return Executor(operators, plan, num_steps=NUM_STEPS, **options)


def make_operators(device=None, workers=2):
    context = make_context(device or EmulatedAccelerator(FAST), workers)
    return Operators.of(dataclasses.replace(context, lookahead=True))


def plan_with(share):
    return fixed_plan(Profile(times=(AHEAD,)), NUM_STEPS, share)


id_sets = st.lists(st.integers(0, 29), min_size=1, max_size=12)


@given(
    batches=st.lists(st.tuples(id_sets, st.sampled_from(["copied", "dropped", "late"])), max_size=14),
    kept=st.integers(1, 4),
)
def test_the_ring_gives_every_batch_its_rows(batches, kept):
    x = torch.randn(30, 3)
    buffer, waiting, moved = RowBuffer(x, kept_batches=kept), [], []
    for step, (ids, fate) in enumerate(batches):
        n_id = torch.tensor(ids)
        buffer.claim(0, step)
        with buffer.preparing(0, step):
            found = buffer.look_up(0, step, n_id)
        waiting.append((n_id, Batch(None if found is None else buffer.part_of(found, n_id))))
        if fate == "dropped":
            waiting.pop()
        elif fate == "copied":  # and those that were late
            for n_id, batch in waiting:
                buffer.admit(batch)
                buffer.complete(batch)
                moved.append((n_id, batch))
            waiting.clear()
    for n_id, batch in moved:  # a batch's rows are its own: what came later changed none
        assert batch.x is None or torch.equal(batch.x, x[n_id])


def test_only_what_is_missing_is_looked_up_and_what_is_overwritten_is_missing_again():
    directory = Directory(10, capacity=5)
    missing, slots = directory.look_up(torch.tensor([7, 2, 7]))  # a seed that stands twice
    assert missing.tolist() == [0, 1, 2]
    assert slots.tolist() == [0, 1, 2]
    missing, slots = directory.look_up(torch.tensor([2, 3, 7]))
    assert missing.tolist() == [1]
    assert slots.tolist() == [1, 3, 2]
    directory.look_up(torch.tensor([4, 5, 6]))  # over the slots of 7 and 2, not of 7's second copy
    missing, slots = directory.look_up(torch.tensor([2, 6]))
    assert missing.tolist() == [0]
    assert slots.tolist() == [7 % 5, 6 % 5]
    missing, _ = directory.look_up(torch.tensor([3, 6]))  # 3 would go to make room for itself
    assert missing.tolist() == [0]


@pytest.mark.parametrize("share", [1.0, 0.6, 0.3])
def test_batches_are_the_same_with_look_ahead(share, expected):
    operators = make_operators()
    executor = ahead_executor(operators, plan_with(share))
    assert [contents(batch) for batch in executor] == expected
    assert operators.row_buffer.capacity > 0
    later = ahead_executor(operators, plan_with(share), start=7)
    assert [contents(batch) for batch in later] == expected[7:]


class CountingAccelerator(EmulatedAccelerator):
    """Remembers how long each copy was to take."""

    def copy_seconds(self, batch):
        self.copies = [*getattr(self, "copies", []), super().copy_seconds(batch)]
        return self.copies[-1]


def test_fewer_bytes_travel_and_the_copies_take_so_much_less(expected):
    def copies(lookahead):
        device = CountingAccelerator(FAST, link_bytes_per_second=4e7, emulate_cpu=False)
        operators = Operators.of(dataclasses.replace(make_context(device), lookahead=lookahead))
        executor = ahead_executor(operators, plan_with(1.0))
        assert [contents(batch) for batch in executor] == expected
        took = [op.end - op.start for op in executor.ops if op.stage == "dma"]
        assert all(seconds >= least for seconds, least in zip(took, device.copies, strict=True))
        return device.copies

    plain, ahead = copies(False), copies(True)
    assert sum(ahead) < 0.7 * sum(plain)
    assert ahead[0] >= plain[0]  # the ring is empty then, and slots travel, too


def test_what_a_step_does_to_its_features_reaches_no_later_batch(expected):
    operators = make_operators()
    found = []
    for batch in ahead_executor(operators, plan_with(1.0)):
        found.append(contents(batch))
        batch.x.zero_()
    assert found == expected


def test_an_epoch_left_early_does_not_spoil_the_next(expected):
    operators = make_operators()
    plan = dataclasses.replace(plan_with(1.0), cbs=6, gbs=3)
    for _ in range(3):
        with ahead_executor(operators, plan) as executor:
            for batch in executor:
                if batch.step == 5:
                    break
    assert [contents(batch) for batch in ahead_executor(operators, plan)] == expected
    assert operators.row_buffer._generation > 0  # the ring began anew
    before = operators.row_buffer._next
    assert [contents(batch) for batch in ahead_executor(operators, plan)] == expected
    assert operators.row_buffer._next > before  # and is used again


@pytest.mark.parametrize("stage", ["cpu", "dma"])
def test_an_error_surfaces_and_holds_up_no_worker(stage):
    device = EmulatedAccelerator(FAST)
    device.fail(stage, 12, lambda: RuntimeError("broke"))
    operators = make_operators(device, workers=3)
    with pytest.raises(RuntimeError, match="broke"):
        list(ahead_executor(operators, plan_with(1.0)))
    assert not operators.row_buffer._claims


def test_a_copy_tried_again_for_want_of_memory_is_the_same(expected):
    device = EmulatedAccelerator(FAST, memory_batches=2)
    plan = dataclasses.replace(plan_with(0.5), gbs=6)
    operators = make_operators(device)
    executor = ahead_executor(operators, plan)
    assert [contents(batch) for batch in once_memory_ran_out(executor)] == expected
    assert "no step is lost" in executor.events[0]


def test_without_memory_for_the_ring_batches_travel_whole(expected, monkeypatch, caplog):
    operators = make_operators()

    def full(*_):
        raise torch.OutOfMemoryError("full")

    monkeypatch.setattr(lookahead, "_make_ring", full)
    found = [contents(batch) for batch in ahead_executor(operators, plan_with(1.0))]
    assert found == expected
    assert "the look-ahead's" in caplog.text


def test_the_caller_s_own_batching_operator_goes_unclaimed(expected):
    register("batching", "plain")(lambda context: make_operator("batching", "cpu", context))
    device = EmulatedAccelerator(FAST)
    device.host = "plain"
    operators = make_operators(device)
    assert [contents(b) for b in ahead_executor(operators, plan_with(1.0))] == expected
    assert operators.cpu_batching(0, 3).row_part is None  # asked for by nobody's claim


def test_it_takes_dense_features_and_an_operator_that_completes_rows():
    context = make_context(EmulatedAccelerator(FAST))
    assert can_look_ahead(context)
    assert not can_look_ahead(make_context(torch.device("cpu")))
    assert not can_look_ahead(dataclasses.replace(context, gather=False))
    sparse = GRAPH.replace(x=SparseFeatures.from_dense(GRAPH.x))
    source = dataclasses.replace(context.source, graph=sparse)
    context = dataclasses.replace(context, source=source, lookahead=True)
    assert not can_look_ahead(context)
    assert Operators.of(context).row_buffer is None


@pytest.mark.slow
def test_the_profiler_takes_it_where_it_pays_and_the_plan_knows():
    slow_link = EmulatedAccelerator(stage_times(0.001, 0.0, 0.001, 0.1), link_bytes_per_second=1e6)

    def taken():
        profile = measure(make_context(slow_link), [2], train=lambda batch: None)
        [times] = profile.times
        assert times.lookahead
        assert profile.lookahead_bytes > 0
        assert ("look-ahead", "on: T_cpu and T_dma are with it") in make_plan(profile, NUM_STEPS).rows()

    once_undisturbed(taken)
    plain = measure(dataclasses.replace(make_context(slow_link), gather=False), [2], train=lambda batch: None)
    assert not plain.times[0].lookahead


def test_the_profiler_leaves_it_where_copies_hide_behind_training():
    hidden = EmulatedAccelerator(FAST)  # fewer bytes gain nothing

    def left():
        [times] = measure(make_context(hidden), [2], train=lambda batch: time.sleep(0.03)).times
        assert not times.lookahead

    once_undisturbed(left)


def test_the_ring_counts_against_the_device_s_memory():
    profile = Profile(times=(AHEAD,), device_batch_bytes=100, lookahead_bytes=350)
    assert Limits(device_bytes=1000).caps(profile)[1] == 6
    assert Limits(device_bytes=1000).caps(dataclasses.replace(profile, times=(FAST,)))[1] == 10
    with pytest.raises(ResourceError, match="device memory"):
        Limits(device_bytes=400).caps(profile)


def test_a_loader_follows_a_plan_with_look_ahead(expected, monkeypatch):
    monkeypatch.setattr(planned, "Replanning", lambda: Replanning(threshold=1e9))
    loader = NeighborLoader(
        GRAPH,
        [6, 5],
        "train",
        batch_size=BATCH_SIZE,
        shuffle=True,
        seed=5,
        device=EmulatedAccelerator(FAST),
        plan=plan_with(0.7),
        return_edge_id=False,
    )
    assert [contents(batch) for batch in loader.batches(0)] == expected
    assert loader._batches._planned.operators.row_buffer.capacity > 0
    assert loader.stage_seconds["gather"] > 0
    loader.close()


def test_losses_are_equal_to_the_bit_with_and_without():
    plain = Operators.of(make_context(EmulatedAccelerator(FAST)))
    ahead, alone = (ahead_executor(one, plan_with(0.6)) for one in (make_operators(), plain))
    assert losses_of(ahead) == losses_of(alone)
