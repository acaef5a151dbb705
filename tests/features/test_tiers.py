"""TieredFeatures: one tensor to whoever indexes it, whatever lies where; budgets, errors, what it says."""

import json
import os
import pickle
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.features.tables import flip_a_byte, graph_without_features, same, stored_graph
from tests.kernels import needs_kernels
from tests.suites import examples

from graphbraid import Graph, SparseFeatures, Trainer
from graphbraid.arguments import MOST_BYTES, as_budget, as_size
from graphbraid.errors import ConfigError, DataError, ResourceError
from graphbraid.features import DiskOptions, HostTiers, Score, TieredFeatures, TieredTopology
from graphbraid.files.writing import format_bytes
from graphbraid.fullgraph.lowering.options import StreamedFeatures
from graphbraid.nn import GraphSAGE
from graphbraid.train import TrainConfig

BUDGETS = [0, "300 KiB", "all"]  # of 300 rows of 148 bytes: buffers of requests take most of the second
SMALL = DiskOptions(depth=2, longest_bytes=4096)


def some_rows(graph, num_rows):
    """A budget that holds ``num_rows`` rows and no more."""
    lone = TieredFeatures.build(graph, host=0, disk=SMALL)
    return lone.disk.buffer_bytes + 8 * 300 + num_rows * (148 + 32) + 100


@pytest.mark.parametrize("host", BUDGETS)
@pytest.mark.parametrize("policy", ["belady", "sieve"])
def test_it_is_indexed_as_one_tensor(graph, host, policy):
    store = TieredFeatures.build(graph, host=host, policy=policy, disk=SMALL)
    x = graph.x
    assert (store.shape, store.dtype, len(store)) == (x.shape, x.dtype, len(x))
    assert same(store[torch.tensor([5, 299, 5])], x[[5, 299, 5]])
    assert same(store[[1, -1]], x[[1, -1]])
    assert same(store[7], x[7])
    assert same(store[-7], x[-7])
    assert same(store[10:40:7], x[10:40:7])
    assert same(store[x[:, 0] > 0], x[x[:, 0] > 0])
    assert same(store[torch.tensor(7)], x[7])
    assert same(store[[]], x[[]])
    for other in ((3, 4), torch.tensor([1.5]), True, None, ..., torch.tensor([0, 1], dtype=torch.uint8)):
        with pytest.raises(DataError, match="rows are chosen by an id, a slice"):
            store[other]
    with pytest.raises(IndexError):
        store[300]
    with pytest.raises(DataError, match=r"ids\[0\] is 300"):
        store[[300]]
    with pytest.raises(DataError, match=r"a mask must have shape \(300,\)"):
        store[torch.ones(4, dtype=torch.bool)]


@settings(max_examples=examples(30))
@given(
    num_rows=st.integers(1, 300),
    policy=st.sampled_from(["belady", "sieve", "static"]),
    batches=st.lists(st.lists(st.integers(0, 299), max_size=30), max_size=8),
)
def test_a_budget_is_kept_and_rows_are_the_files(graph, num_rows, policy, batches):
    host = some_rows(graph, num_rows) + 300  # ranks take a byte a row
    score = torch.arange(300.0).flip(0)
    store = TieredFeatures.build(graph, host=host, score=score, policy=policy, disk=SMALL)
    assert store.cache.num_rows == num_rows
    assert store.host_bytes <= host or num_rows == 300
    assert store.counts.filled_rows == num_rows
    for batch in batches:
        assert same(store[batch], graph.x[batch])
    counts = store.counts
    assert counts.host_rows + counts.disk_rows == sum(map(len, batches))
    if policy == "static":
        assert counts.host_rows == sum(row < num_rows for batch in batches for row in batch)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_rows_of_sixteen_bits(tmp_path, dtype):
    graph = stored_graph(tmp_path, dtype=dtype)
    store = TieredFeatures.build(graph, host=some_rows(graph, 20), disk=SMALL)
    assert same(store[torch.arange(300)], graph.x)


def test_a_record_of_scores_is_taken_by_its_values(graph):
    class Scores:
        values = torch.arange(300.0)

    store = TieredFeatures.build(graph, host=some_rows(graph, 10) + 300, score=Scores(), disk=SMALL)
    before = store.counts.disk_requests
    assert same(store[torch.arange(290, 300)], graph.x[290:])
    assert store.counts.disk_requests == before


@needs_kernels
def test_all_in_memory_is_read_once_and_in_order(graph):
    store = TieredFeatures.build(graph, host="1TiB")
    before = store.counts
    assert before.disk_bytes == -(-graph.x.nbytes // 4096) * 4096
    store[torch.randperm(300)]
    assert store.counts.host_share == 1.0
    assert store.counts.disk_bytes == before.disk_bytes


def test_it_explains_what_lies_where_and_what_memory_would_buy(graph):
    score = torch.zeros(300)
    score[:30] = 1.0
    store = TieredFeatures.build(graph, host=some_rows(graph, 15) + 300, score=score, disk=SMALL)
    store[torch.arange(0, 30)]
    report = store.report()
    host, disk = report.tiers
    assert (host.name, host.rows, host.nbytes) == ("host", 15, 15 * 148)
    assert (host.expected_share, host.measured_share) == (0.5, 0.5)
    assert host.notes_bytes == store.cache.overhead_bytes
    assert (disk.name, disk.rows, disk.expected_share, disk.measured_share) == ("disk", 285, 0.5, 0.5)
    assert (report.counts.reads, host.epoch_bytes) == (30, None), (
        "the score does not say that it counts reads"
    )
    assert [(p.rows, p.nbytes, p.share) for p in report.curve[:2]] == [(15, 2220, 0.5), (30, 4440, 1.0)]
    text = store.explain()
    assert "300 rows of 148 B (torch.float32, 43.4 KiB)" in text
    assert re.search(r"host +15 +5\.0% +2\.2 KiB +[\d.]+ KiB +50\.0% +50\.0%$", text, re.MULTILINE)
    assert re.search(r"disk +285 +95\.0% +41\.2 KiB +50\.0% +50\.0%$", text, re.MULTILINE)
    assert re.search(r"^30 reads so far; .* from disk by \d+ requests$", text, re.MULTILINE)
    assert re.search(r"5% +2\.2 KiB +50\.0%$", text, re.MULTILINE)
    assert re.search(r"10% +4\.3 KiB +100\.0%$", text, re.MULTILINE)


def test_an_epoch_that_was_read_says_what_another_will(graph):
    """Also where the score only orders the rows."""
    score = torch.zeros(300)
    score[:30] = 1.0
    store = TieredFeatures.build(graph, host=some_rows(graph, 15) + 300, score=score, disk=SMALL)
    store[torch.arange(20)]
    before = store.counts
    store[torch.arange(40)]
    store.note_epoch(before)
    report = store.report()
    host, disk = report.tiers
    assert (report.counts.reads, report.epoch.reads, report.epoch.filled_rows) == (60, 40, 0)
    assert host.measured_bytes + disk.measured_bytes == 40 * 148
    assert disk.epoch_bytes == pytest.approx(0.5 * 40 * 148)
    assert report.curve[0].epoch_bytes == disk.epoch_bytes
    assert report.epoch.disk_bytes == store.counts.disk_bytes - before.disk_bytes
    assert f"40 reads in the last epoch; {format_bytes(report.epoch.disk_bytes)} from disk" in str(report)


def test_a_score_that_counts_reads_says_what_an_epoch_brings(graph):
    reads = torch.zeros(300, dtype=torch.float64)
    reads[:10], reads[10:40] = 6.0, 1.0
    counted = Score(values=reads, kind="inclusion", seconds=0.0)
    store = TieredFeatures.build(graph, host=some_rows(graph, 10) + 300, score=counted, disk=SMALL)
    host, disk = store.report().tiers
    assert (host.epoch_bytes, disk.epoch_bytes) == pytest.approx((60 * 148, 30 * 148))
    assert [point.epoch_bytes for point in store.report().curve[-2:]] == [0.0, 0.0]
    again = pickle.loads(pickle.dumps(store))
    assert again.report().tiers[1].epoch_bytes == disk.epoch_bytes
    assert json.loads(json.dumps(store.report().to_json()))["tiers"][0]["rows"] == 10


def test_a_small_budget_is_not_spent_on_requests(graph):
    store = TieredFeatures.build(graph, host="330 KiB")
    assert store.cache.num_rows > 100
    assert store.host_bytes <= 330 * 1024
    assert same(store[torch.arange(300)], graph.x)


def test_budgets_that_cannot_be_meant_are_refused(graph, monkeypatch):
    for host, said in (
        ("4 GoB", "a size such as '4GiB'"),
        (-1, "host must be a whole number"),
        (1.5, "host must be int or str or None; got 1.5"),
        (True, "host must be int or str or None; got True"),
        (5000, "host=5000 holds no row: the bookkeeping of all 300 rows takes"),
    ):
        with pytest.raises(ConfigError, match=said):
            TieredFeatures.build(graph, host=host, disk=SMALL)
    with pytest.raises(ConfigError, match="give score="):
        TieredFeatures.build(graph, host=some_rows(graph, 9), policy="static", disk=SMALL)
    with pytest.raises(ConfigError, match="Did you mean 'sieve'"):
        TieredFeatures.build(graph, host=0, policy="seive")
    monkeypatch.setattr("graphbraid.features.budgets.free_memory_bytes", lambda: 20_000)
    with pytest.raises(ResourceError, match=r"host='all' takes .* of memory; 19\.5 KiB are free"):
        TieredFeatures.build(graph, host="all", disk=SMALL)


@pytest.mark.parametrize("x", [torch.randn(37, 300).t(), torch.randn(300, 74)[:, ::2]], ids=["t", "strided"])
def test_features_that_are_not_contiguous_are_read_as_they_are_or_refused(graph, x):
    """In memory they are as good as others; in a file, they would be parts of its rows."""
    ids = torch.tensor([299, 0, 7])
    store = TieredFeatures.build(graph.replace(x=x), hot=4 * 300 + 20 * 148, score="degree")
    assert same(store[ids], x[ids])
    assert same(store.hot.table_on(ids.device), x[store.hot.ids])
    with pytest.raises(DataError, match="which is not contiguous"):
        TieredFeatures.build(graph.replace(x=graph.x[:, ::2]), host=0)
    with pytest.raises(DataError, match=r"must be a whole array of a store.*not contiguous"):
        TieredFeatures.build(graph.replace(x=graph.x[:, :20]), host="all", hot=4096)


def test_a_trainer_refuses_more_memory_than_is_free(graph, monkeypatch):
    model = GraphSAGE(graph.num_features, 8, graph.num_classes, num_layers=2)
    monkeypatch.setattr("graphbraid.features.budgets.free_memory_bytes", lambda: 20_000)
    with pytest.raises(ResourceError, match=r"takes .* of memory; 19\.5 KiB are free"):
        Trainer(model, graph, host="all", fanouts=(2, 2))


def test_features_that_no_file_holds_are_refused(graph):
    with pytest.raises(DataError, match="lies in memory only"):
        TieredFeatures.build(graph.replace(x=graph.x.clone()), host=0)
    with pytest.raises(DataError, match="has none"):
        TieredFeatures.build(graph_without_features(), host=0)
    sparse = Graph.from_edge_index([[0], [1]], 2, x=SparseFeatures.from_dense(torch.eye(2)))
    with pytest.raises(DataError, match="sparse ones"):
        TieredFeatures.build(sparse, host=0)


def test_a_score_that_does_not_fit_is_refused(graph):
    with pytest.raises(DataError, match="one number for each of the 300 rows"):
        TieredFeatures.build(graph, host=0, score=torch.ones(7))
    with pytest.raises(DataError, match=r"score\[1\] is inf"):
        TieredFeatures.build(graph, host=0, score=torch.tensor([0.0, float("inf")] + [1.0] * 298))


def test_a_damaged_block_is_an_error_while_memory_is_filled(tmp_path):
    graph = stored_graph(tmp_path)
    flip_a_byte(tmp_path / "store" / "x.npy", 9000)
    with pytest.raises(DataError, match=r"x\.npy has changed.*block 2 "):
        TieredFeatures.build(graph, host="all")


def test_tiers_travel_to_another_process_with_what_filled_them(graph):
    score = torch.arange(300.0)
    store = TieredFeatures.build(graph, host=some_rows(graph, 10), score=score, policy="static", disk=SMALL)
    again = pickle.loads(pickle.dumps(store))
    assert same(again[torch.arange(295, 300)], graph.x[295:])
    assert again.counts.host_share == 1.0


def test_a_forked_process_has_tiers_of_its_own(graph):
    store = TieredFeatures.build(graph, host="all")
    child = os.fork()
    if not child:
        right = same(store[torch.arange(300)], graph.x) and store.counts.host_share == 1.0
        os._exit(0 if right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [("4GiB", 4 << 30), ("1.5 kb", 1500), (" 7 ", 7), ("2 MIB", 2 << 20), (12, 12), ("0", 0), ("3B", 3)],
)
def test_sizes_are_read(text, num_bytes):
    assert as_size(text, "host") == num_bytes


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1e3", "4 gibi", "1,5 GB", None, 2.5, "9" * 30, "0.4 B"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ConfigError, match="host must be"):
        as_size(text, "host")


@given(size=st.integers(0, MOST_BYTES))
def test_a_size_written_out_is_read_to_the_byte(size):
    assert as_budget(str(size), "host") == as_budget(f"{size} B", "host") == as_budget(size, "host") == size


NOTHING = [0, "0", "0GiB", "0 B", "0.0 MB"]


@pytest.mark.parametrize("nothing", NOTHING)
def test_memory_of_nothing_is_one_thing_however_it_is_written(graph, nothing):
    """As ``host`` it reads all from the files; as ``hot`` it keeps no row, and alone it is refused."""
    in_memory = graph.replace(x=graph.x.clone())
    for build in (TieredFeatures.build, HostTiers.build):
        with pytest.raises(ConfigError, match=r"need host= or hot=.* got host=None and hot="):
            build(in_memory, host=None, hot=nothing)
    rows = TieredFeatures.build(graph, host=nothing, hot=nothing, disk=SMALL)
    assert (rows.cache.num_rows, rows.hot) == (0, None)
    tiers = HostTiers.build(graph, host=nothing, hot=nothing)
    assert (tiers.features.cache.num_rows, tiers.features.hot, tiers.topology.num_lists) == (0, None, 0)
    assert tiers.reason == "memory holds nothing"
    assert TieredTopology.build(graph, host=nothing, disk=SMALL).num_lists == 0
    config = TrainConfig(host=nothing, hot=nothing)
    assert (config.host, config.hot) == (0, 0)
    model = GraphSAGE(graph.num_features, 8, graph.num_classes, num_layers=2)
    assert Trainer(model, in_memory, hot=nothing, fanouts=(2, 2)).tiers is None
    assert StreamedFeatures.of(graph, None, nothing).host_bytes == 0
