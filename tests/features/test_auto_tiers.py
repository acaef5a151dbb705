"""``tiers="auto"`` of a loader: told of its epochs it looks ahead, and it sizes rows of its device."""

import dataclasses
import pickle

import pytest
import torch
from benchmarks.common.emulated import EmulatedAccelerator
from hypothesis import given
from hypothesis import strategies as st
from tests.collective.emulation import BATCH_SIZE, FAST, GRAPH, NUM_STEPS
from tests.features.tables import graph_without_features
from torch.utils.data import SequentialSampler

from graphbraid import SparseFeatures
from graphbraid.collective import Profile, fixed_plan
from graphbraid.errors import ConfigError, DataError
from graphbraid.features import TieredFeatures
from graphbraid.features.budgets import Curve, split
from graphbraid.loader import LinkNeighborLoader, NeighborLoader, auto_tiers
from graphbraid.loader.batch_loader import LoaderSettings

INSTANT = dataclasses.replace(FAST, cpu=FAST.dma, model=FAST.dma, uva=FAST.dma)
ROW, MAP = 9 * 4, 4 * 800
OPTIONS = {"batch_size": BATCH_SIZE, "shuffle": True, "seed": 5, "return_edge_id": False, "tiers": "auto"}


@pytest.fixture
def little_memory(monkeypatch):
    """The host holds some rows of the stored graph, not all."""

    def budget(graph, **_):
        return dataclasses.replace(FOUND, host=300_000)

    FOUND = auto_tiers.host_budget(GRAPH, free_bytes=None, needed_bytes=0)
    monkeypatch.setattr(auto_tiers, "host_budget", budget)


def emulated(**options):
    return EmulatedAccelerator(INSTANT, **options)


def loader_of(device="cpu", graph=GRAPH, **options):
    return NeighborLoader(graph, [4, 3], "train", device=device, **(OPTIONS | options))


@pytest.mark.usefixtures("little_memory")
def test_a_loader_that_is_told_its_epochs_looks_ahead(graph, monkeypatch):
    def choice_of(**options):
        return loader_of(graph=graph, **options).tiers.explain()

    assert "how long the run is was not said" in choice_of()
    monkeypatch.setattr(auto_tiers, "sampling_seconds", lambda *_: 1e9)
    assert "2 epochs looked ahead in" in choice_of(epochs=2)
    monkeypatch.setattr(auto_tiers, "sampling_seconds", lambda *_: 1e-9)
    assert "of the run's 2e-09 s; of the others" in choice_of(epochs=2)


@pytest.mark.slow
@pytest.mark.usefixtures("little_memory")
def test_a_run_takes_as_long_as_the_loader_s_threads_sample(graph, monkeypatch):
    asked = []

    def seconds(graph, sampler, schedule, epoch, workers):
        asked.append((sampler.fanouts, schedule.batch_size, epoch, workers))
        return 7.0

    monkeypatch.setattr(auto_tiers, "sampling_seconds", seconds)
    said = loader_of(graph=graph, epochs=1000, num_workers=2).tiers.explain()
    assert asked == [((4, 3), BATCH_SIZE, 0, 2)]
    assert "2% of the run's 7e+03 s allow" in said


@pytest.mark.usefixtures("little_memory")
def test_a_loader_made_anew_keeps_the_tiers_that_were_made(graph):
    loader = loader_of(graph=graph, epochs=3)
    assert loader.tiers_reason
    again = pickle.loads(pickle.dumps(loader))
    assert again.tiers.cache.num_rows == loader.tiers.cache.num_rows > 0
    assert torch.equal(next(iter(again)).x, next(iter(loader)).x)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"epochs": 0}, "epochs must be a whole number"),
        ({"epochs": 1.5}, "epochs must be a whole number"),
        ({"epochs": 3, "tiers": None}, "limits the look-ahead of tiers='auto', and tiers are not used"),
        ({"epochs": 3, "sampler": SequentialSampler(range(640)), "shuffle": False}, "own order"),
        ({"epochs": 3, "disjoint": True}, "plain nodes in the loader's own order"),
    ],
)
def test_epochs_that_mean_nothing_are_refused(options, said):
    with pytest.raises(ConfigError, match=said):
        loader_of(**options)


def test_epochs_beside_given_tiers_or_of_links_are_refused():
    with pytest.raises(ConfigError, match="tiers are given; leave epochs out"):
        loader_of(epochs=3, tiers=TieredFeatures.build(GRAPH, hot="all"))
    with pytest.raises(ConfigError, match="takes no argument 'epochs'"):
        LinkNeighborLoader(GRAPH, [3], torch.tensor([[0], [1]]), tiers="auto", epochs=3)
    loader = LinkNeighborLoader(GRAPH, [3], torch.tensor([[0], [1]]), tiers="auto")
    assert type(loader)(**loader._arguments).tiers is None


def test_rows_stay_on_the_device_in_half_of_its_memory():
    plain = loader_of(tiers=None)
    expected = [(batch.n_id, batch.x) for batch in plain.batches(0)]
    memory = 2 * (MAP + 100 * ROW)
    device = emulated(memory_bytes=memory)
    loader = loader_of(device, plan="cpu")
    assert loader.tiers.hot.num_rows == 100
    assert "for 100 rows" in loader.tiers_reason
    for (n_id, x), batch in zip(expected, loader.batches(0), strict=True):
        assert torch.equal(batch.n_id, n_id)
        assert torch.equal(batch.x, x)
    counts = loader.tiers.counts
    assert counts.hot_rows > 0
    assert counts.link_bytes == device.link_bytes > 0
    loader.close()
    told = loader_of(emulated(memory_bytes=memory), plan="cpu", hot_bytes=MAP + 30 * ROW)
    assert told.tiers.hot.num_rows == 30
    assert loader_of(emulated(), plan="cpu", hot_bytes=MAP + 30 * ROW).tiers.hot.num_rows == 30


@pytest.mark.usefixtures("little_memory")
def test_rows_of_a_store_lie_on_the_device_and_behind_these_on_the_host(graph):
    device = emulated(memory_bytes=2 * (4 * 300 + 50 * 148))
    tiers = loader_of(device, graph, plan="cpu").tiers
    assert tiers.hot.num_rows == 50
    assert 0 < tiers.cache.num_rows < 300
    assert [tier.name for tier in tiers.report().tiers] == ["device", "host", "disk"]


def test_a_device_that_samples_keeps_its_topology_first():
    csc = GRAPH.csc
    sampled = csc.indptr.nbytes + csc.indices.nbytes + GRAPH.y.nbytes + 8 * 800  # and local ids
    room = sampled + MAP + 60 * ROW
    half = fixed_plan(Profile(times=(INSTANT,)), NUM_STEPS, 0.5)
    for plan in ("gpu", "auto", half):
        assert loader_of(emulated(memory_bytes=2 * room), plan=plan).tiers.hot.num_rows == 60
    whole = fixed_plan(Profile(times=(INSTANT,)), NUM_STEPS, 1.0)
    for plan in ("cpu", whole):
        assert loader_of(emulated(memory_bytes=2 * room), plan=plan).tiers.hot.num_rows > 60


@given(memory=st.integers(0, 200_000), samples=st.booleans(), hot_bytes=st.none() | st.integers(0, 100_000))
def test_no_more_is_taken_than_there_is_room(memory, samples, hot_bytes):
    settings = LoaderSettings(
        num_neighbors=[4, 3],
        input_nodes="train",
        batch_size=NUM_STEPS * BATCH_SIZE,
        device=emulated(memory_bytes=memory),
        plan="gpu" if samples else "cpu",
        hot_bytes=hot_bytes,
    )
    made = auto_tiers.tiers_of(GRAPH, settings, "auto")
    room = memory // 2 if hot_bytes is None else min(hot_bytes, memory)
    if made.rows is None:
        assert "no rows on the device" in made.reason
        return
    hot = made.rows.hot
    assert hot.map_bytes + hot.num_rows * ROW + 8 * 800 * samples <= room


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "its free memory is not known"),
        ({"memory": 100}, "there is no memory for them"),
        ({"memory": 1 << 20, "gather": False}, "with gather=False batches bring none"),
        ({"memory": 1 << 20, "graph": GRAPH.replace(x=SparseFeatures.from_dense(GRAPH.x))}, "only dense"),
    ],
)
def test_a_loader_says_why_no_rows_are_on_its_device(options, said):
    options = dict(options)
    device = emulated(memory_bytes=options.pop("memory", None))
    loader = loader_of(device, plan="cpu", **options)
    assert loader.tiers is None
    assert "no rows on the device: " in loader.tiers_reason
    assert said in loader.tiers_reason


def test_what_no_plan_is_made_for_keeps_no_rows_there():
    for is_plain, options in ((False, {}), (True, {"subgraph_type": "induced"})):
        device = emulated(memory_bytes=1 << 20)
        settings = LoaderSettings(num_neighbors=[2], device=device, plan="cpu", **options)
        made = auto_tiers.tiers_of(GRAPH, settings, "auto", is_plain=is_plain)
        assert made.rows is None
        assert "plans are made for the drawn edges of plain nodes" in made.reason
    empty = LoaderSettings(num_neighbors=[2], device=emulated(memory_bytes=1 << 20))
    assert "only dense features" in auto_tiers.tiers_of(graph_without_features(), empty, "auto").reason


ITEMS = st.lists(st.tuples(st.integers(0, 9), st.integers(1, 7)), max_size=12)


def curve_of(items):
    saved = torch.tensor([s for s, _ in items], dtype=torch.float64)
    return Curve.of(saved, torch.tensor([b for _, b in items], dtype=torch.int64))


def taken_one_by_one(budget, curves):
    """The best next item of the curves that still fit, again and again."""
    counts, left, is_open = [0] * len(curves), budget, [True] * len(curves)
    while True:
        best = None
        for k, curve in enumerate(curves):
            if is_open[k] and counts[k] < len(curve):
                density = float(curve.saved[counts[k]] / curve.size[counts[k]])
                if best is None or density > best[0]:
                    best = density, k
        if best is None:
            return counts
        k = best[1]
        size = int(curves[k].size[counts[k]])
        if size > left:
            is_open[k] = False
        else:
            counts[k], left = counts[k] + 1, left - size


@given(st.lists(ITEMS, min_size=1, max_size=3), st.integers(-1, 60))
def test_memory_goes_to_what_saves_most_per_byte(kinds, budget):
    curves = [curve_of(items) for items in kinds]
    counts = split(budget, curves)
    assert counts == taken_one_by_one(budget, curves)
    used = sum(curve.num_bytes(count) for curve, count in zip(curves, counts, strict=True))
    assert used <= max(budget, 0)
    for curve, count in zip(curves, counts, strict=True):  # exact to the last item that fits
        assert count == len(curve) or used + int(curve.size[count]) > budget


@given(ITEMS)
def test_a_curve_is_in_the_order_of_benefit_per_byte(items):
    curve = curve_of(items)
    ratio = [s / b for s, b in items]
    assert curve.order.tolist() == sorted(range(len(items)), key=lambda i: (-ratio[i], i))
    assert curve.num_bytes(len(curve)) == sum(b for _, b in items)
    if sum(s for s, _ in items):
        assert curve.share(len(curve)) == 1.0
    assert curve.share(0) == 0.0


def test_items_of_one_size_and_those_that_save_nothing():
    curve = Curve.of(torch.tensor([1.0, -3.0, 5.0]), 10)
    assert curve.order.tolist() == [2, 0, 1]
    assert curve.saved.tolist() == [5.0, 1.0, 0.0]
    assert split(29, [curve]) == [2]
    assert split(30, [curve]) == [3]


def test_what_is_no_curve_is_refused():
    for saved, size, said in (
        (torch.ones(2), torch.ones(3, dtype=torch.int64), "one for each of 2 items"),
        (torch.ones(2), torch.ones(2), "size must be int64"),
        (torch.ones(2), torch.tensor([1, 0]), "size at least 1"),
        (torch.tensor([1.0, float("nan")]), 1, "saved must be finite"),
    ):
        with pytest.raises(DataError, match=said):
            Curve.of(saved, size)
