"""DeviceCache and tiers with hot rows: which are hot, how batches come together, what is said and refused."""

import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.features.tables import same

from graphbraid.errors import ConfigError, DataError, ResourceError
from graphbraid.features import DiskOptions, TieredFeatures, score
from graphbraid.features.tiers.device_sizing import DeviceMemory, device_budget
from graphbraid.ops.gather import Tier
from graphbraid.sampling import SamplerConfig, SeedSchedule
from graphbraid.sampling.rows import device_cache
from graphbraid.sampling.rows.device_cache import DeviceCache, joined

SMALL = DiskOptions(depth=2, longest_bytes=4096)
ROW, MAP = 148, 4 * 300  # bytes of a row of the stored graph, and of a map of its nodes
CPU, X = torch.device("cpu"), torch.ones(9, 3)


@pytest.fixture(scope="module")
def in_memory(graph):
    return graph.replace(x=graph.x.clone())


class Source:
    """Gives rows, and remembers how many it was asked for."""

    def __init__(self, x):
        self.x, self.asked = x, []

    def __call__(self, ids):
        self.asked.append(len(ids))
        return self.x[ids]


@given(num_hot=st.integers(0, 20), ids=st.lists(st.integers(0, 19), max_size=30), is_prefix=st.booleans())
def test_a_batch_comes_together_from_hot_rows_and_those_that_travel(num_hot, ids, is_prefix):
    x, ids = torch.randn(20, 3), torch.tensor(ids, dtype=torch.int64)
    chosen = torch.arange(20) if is_prefix else torch.randperm(20)
    hot = DeviceCache(chosen[:num_hot], 20, lambda rows: x[rows])
    assert hot.is_prefix or not is_prefix
    missing, slots = hot.split(ids)
    travels = ~torch.isin(ids, chosen[:num_hot])
    assert torch.equal(missing, travels.nonzero().squeeze(1))
    table = hot.table_on(CPU)
    assert torch.equal(joined([Tier((table,))], x[ids[missing]], slots, CPU), x[ids])
    assert torch.equal(hot.assembled(ids, lambda rows: x[rows]), x[ids])
    assert hot.counts == (len(ids), int((~travels).sum()))
    rows = hot.tier_table(table, x)
    assert (rows.positions is None) == hot.is_prefix
    assert torch.equal(rows.tiers[0].parts[0], x[chosen[:num_hot]] if num_hot else x)


def test_hot_rows_are_copied_once_and_again_in_another_process(monkeypatch):
    monkeypatch.setattr(device_cache, "_COPIED_BYTES", 25)  # two rows at a time
    source = Source(torch.randn(20, 3))
    hot = DeviceCache(torch.tensor([7, 3, 11, 0, 9]), 20, source)
    assert torch.equal(hot.table_on(CPU), source.x[hot.ids])
    assert source.asked == [1, 2, 2, 1]
    assert hot.table_on(CPU) is hot.table_on(CPU)
    again = pickle.loads(pickle.dumps(hot))
    assert torch.equal(again.table_on(CPU), source.x[hot.ids])
    assert len(source.asked) == 4


def test_hot_rows_that_cannot_be_are_refused(monkeypatch):
    with pytest.raises(DataError, match=r"in \[0, 5\); ids\[1\] is 5"):
        DeviceCache(torch.tensor([0, 5]), 5, X.__getitem__)
    with pytest.raises(DataError, match="distinct"):
        DeviceCache(torch.tensor([1, 2, 1]), 5, X.__getitem__)
    monkeypatch.setattr(device_cache, "free_bytes", lambda _: 100)
    with pytest.raises(
        ResourceError, match=r"9 hot rows take 108 B on cpu, and 100 B are free.*smaller hot="
    ):
        DeviceCache(torch.arange(9), 9, X.__getitem__).table_on(CPU)


@pytest.mark.parametrize("host", [None, 0, "300 KiB", "all"])
@pytest.mark.parametrize("values", [None, torch.arange(300.0)], ids=["degree", "score"])
def test_rows_are_the_graphs_whatever_is_hot(graph, in_memory, host, values):
    of = in_memory if host is None else graph
    disk = None if host is None else SMALL
    store = TieredFeatures.build(of, host=host, hot=MAP + 40 * ROW, score=values, disk=disk)
    assert store.hot.num_rows == 40
    if values is not None:
        assert store.hot.ids.tolist() == list(range(299, 259, -1))
    ids = torch.randint(0, 300, (500,))
    assert same(store[ids], graph.x[ids])
    assert same(store.hot.assembled(ids, store.gather), graph.x[ids])
    assert (store.in_memory is None) == (host is not None)
    again = pickle.loads(pickle.dumps(store))
    assert torch.equal(again.hot.ids, store.hot.ids)
    assert same(again[ids], graph.x[ids])


def test_the_first_nodes_need_no_map(in_memory):
    store = TieredFeatures.build(in_memory, hot=40 * ROW, score=-torch.arange(300.0))
    assert store.hot.num_rows == 40
    assert store.hot.is_prefix
    assert store.hot.map_bytes == 0


def test_memory_is_filled_with_the_rows_behind_the_hot_ones(graph):
    lone = TieredFeatures.build(graph, host=0, disk=SMALL)
    host = lone.disk.buffer_bytes + 9 * 300 + 10 * (ROW + 32) + 100
    store = TieredFeatures.build(graph, host=host, hot=MAP + 5 * ROW, score=torch.arange(300.0), disk=SMALL)
    assert (store.hot.num_rows, store.cache.num_rows) == (5, 10)
    before = store.counts.disk_rows
    store[torch.arange(285, 295)]
    assert store.counts.disk_rows == before
    report = store.report()
    assert [tier.name for tier in report.tiers] == ["device", "host", "disk"]
    assert [tier.rows for tier in report.tiers] == [5, 10, 285]
    assert sum(tier.expected_share for tier in report.tiers) == pytest.approx(1)
    assert "found by a map" in store.explain()


def test_shares_are_of_all_reads_and_memory_without_a_budget_is_the_graphs(in_memory):
    store = TieredFeatures.build(in_memory, hot=MAP + 30 * ROW, score=torch.arange(300.0))
    store.hot.assembled(torch.arange(300), store.gather)
    assert (store.counts.hot_rows, store.counts.host_rows, store.counts.reads) == (30, 270, 300)
    device, host = store.report().tiers
    assert (device.measured_share, host.measured_share) == (0.1, 0.9)
    assert (device.rows, host.rows, host.detail) == (30, 270, "as the graph has them")


def test_scores_are_taken_by_name(in_memory):
    sampler = SamplerConfig(fanouts=(3, 2))
    schedule = SeedSchedule(seeds=in_memory.split("train"), batch_size=9, shuffle=True, seed=1)
    for name, made_by in (("degree", "degree"), ("auto", "weighted_reverse_pagerank")):
        store = TieredFeatures.build(in_memory, hot=MAP + 30 * ROW, score=name)
        order = score(in_memory, made_by).values.argsort(descending=True, stable=True)
        assert torch.equal(store.hot.ids, order[:30])
        assert store.filled_by.startswith(made_by)
    assert "no sampler was given" in store.explain()
    store = TieredFeatures.build(
        in_memory, hot=MAP + 30 * ROW, score="lookahead", sampler=sampler, schedule=schedule
    )
    order = score(in_memory, "lookahead", sampler=sampler, schedule=schedule).values
    assert torch.equal(store.hot.ids, order.argsort(descending=True, stable=True)[:30])
    assert store.report().tiers[0].epoch_bytes > 0
    assert store.filled_by == "lookahead"
    following = {"sampler": sampler, "schedule": schedule, "epochs": 2}
    long = TieredFeatures.build(in_memory, hot=MAP + 30 * ROW, score="auto", run_seconds=1e9, **following)
    two = score(in_memory, "lookahead", **following).values
    assert torch.equal(long.hot.ids, two.argsort(descending=True, stable=True)[:30])
    assert "filled by the score lookahead: 2 epochs looked ahead in" in long.explain()
    assert pickle.loads(pickle.dumps(long)).filled_by == long.filled_by
    unknown = TieredFeatures.build(in_memory, hot=MAP + 30 * ROW, score="auto", **following)
    assert "how long the run is was not said; of the others" in unknown.explain()
    with pytest.raises(ConfigError, match="sampler"):
        TieredFeatures.build(in_memory, hot="1MB", score="inclusion")
    with pytest.raises(ConfigError, match="Did you mean 'degree'"):
        TieredFeatures.build(in_memory, hot="1MB", score="degre")


def test_options_that_nothing_reads_are_refused(in_memory):
    """They would have been swallowed."""
    for option, said in (
        ({"sampler": SamplerConfig(fanouts=(3, 2))}, "sampler= is for scores by name"),
        ({"run_seconds": 9.0, "score": torch.arange(300.0)}, "run_seconds= is for scores by name"),
        ({"policy": "sieve"}, "policy= needs host=: without host memory"),
        ({"disk": SMALL}, "disk= needs host=: without host memory"),
    ):
        with pytest.raises(ConfigError, match=said):
            TieredFeatures.build(in_memory, hot="1MB", **option)


def test_rows_without_columns_and_scores_that_are_no_numbers_are_refused(graph, in_memory):
    narrow = in_memory.replace(x=torch.ones(300, 0))
    for budget in ({"hot": "1MB"}, {"host": "1MB"}):
        with pytest.raises(DataError, match="have no columns"):
            TieredFeatures.build(narrow, **budget)
    memory = DeviceMemory(free_bytes=1 << 40, link_bytes_per_second=None)
    found = device_budget(narrow, torch.ones(300), memory, needed_bytes=0, epoch_seconds=None)
    assert (found.hot, found.reason) == (None, "no rows on the device: the features have no columns")
    with pytest.raises(DataError, match="score must be real numbers"):
        TieredFeatures.build(graph, hot="1MB", score=torch.ones(300, dtype=torch.complex64))


def test_budgets_that_cannot_be_meant_are_refused(in_memory):
    for hot, said in (
        ("4 GoB", "a size such as '4GiB'"),
        (-1, "hot must be a whole number"),
        (True, "hot must be int or str; got True"),
        (MAP + ROW - 1, r"hot=1347 holds no row: the map of all 300 rows takes 1\.2 KiB, a row 148 B"),
    ):
        with pytest.raises(ConfigError, match=said):
            TieredFeatures.build(in_memory, hot=hot)
    with pytest.raises(ConfigError, match="tiers need host= or hot="):
        TieredFeatures.build(in_memory)
    assert TieredFeatures.build(in_memory, hot="1 TB").hot.num_rows == 300
    assert TieredFeatures.build(in_memory, hot="all").hot.num_rows == 300
    with pytest.raises(DataError, match="lies in memory only"):
        TieredFeatures.build(in_memory, hot="all", host="1MB")
