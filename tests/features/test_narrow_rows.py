"""Rows of 16 and 8 bits by every route: batches, losses and predictions are those of the rows widened."""

import dataclasses
import pickle

import pytest
import torch
from benchmarks.common.emulated import EmulatedAccelerator
from tests.collective.cases import stage_times
from tests.features.tables import batches_of, flip_a_byte, same, stored_graph

import graphbraid
from graphbraid import ScaledFeatures, Trainer
from graphbraid.datasets import open_store, save_store
from graphbraid.errors import DataError, ResourceError
from graphbraid.features import DiskOptions, HostTiers, TieredFeatures
from graphbraid.loader import NeighborLoader
from graphbraid.sampling.rows.device_cache import DeviceCache
from graphbraid.sampling.source import BatchSource

SMALL = DiskOptions(depth=4, longest_bytes=4096)
DTYPES = ["float16", "bfloat16", "int8"]
INSTANT = stage_times(0.001, 0.001, 0.001, 0.001, workers=2)
WIDTH = 37
ROW = {"float16": 2 * WIDTH, "bfloat16": 2 * WIDTH, "int8": WIDTH + 4}
"""Bytes in which a row of the stored graph is kept."""


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """Stores of the same graph by the dtype of its features."""
    folder = tmp_path_factory.mktemp("stores")
    graph = stored_graph(folder)
    return {dtype: save_store(graph, folder / dtype, features_dtype=dtype) for dtype in DTYPES}


@pytest.fixture(params=DTYPES)
def graph(request, stores):
    return open_store(stores[request.param])


@pytest.fixture
def int8(stores):
    return open_store(stores["int8"])


def widened(graph):
    """The same graph, with its features as float32 in memory."""
    return graph.replace(x=graph.dense_x().float())


@pytest.mark.parametrize("host", [None, 0, 40_000, "all"])
@pytest.mark.parametrize("options", [{}, {"num_workers": 3}, {"gather": False}, {"plan": "cpu"}], ids=str)
def test_batches_have_the_rows_that_the_graph_has(graph, host, options):
    tiers = None if host is None else TieredFeatures.build(graph, host=host, disk=SMALL)
    expected = graph.dense_x()  # of 16 bits as they are, of 8 bits widened
    for batch in batches_of(graph, tiers, **options):
        assert same(batch.x, expected[batch.n_id])


@pytest.mark.parametrize("policy", ["belady", "sieve"])
def test_tiers_are_indexed_as_one_tensor(graph, policy):
    x = graph.dense_x()
    store = TieredFeatures.build(graph, host=60_000, policy=policy, disk=SMALL)
    assert (store.shape, store.dtype, len(store)) == (x.shape, x.dtype, 300)
    ids = torch.tensor([5, 299, 5, 0])
    assert same(store[ids], x[ids])
    assert same(store[-7], x[-7])
    assert same(store[x[:, 0] > 0], x[x[:, 0] > 0])
    assert same(pickle.loads(pickle.dumps(store))[ids], x[ids])
    out = torch.empty(4, WIDTH, dtype=x.dtype)
    assert store.gather(ids, out) is out
    assert same(out, x[ids])
    with pytest.raises(DataError, match=r"ids\[0\] is 300"):
        store[[300]]
    with pytest.raises(DataError, match="out must be"):
        store.gather(ids, torch.empty(3, WIDTH, dtype=x.dtype))


def test_narrow_rows_let_memory_hold_more_of_them(graph, stores):
    """Beside the bookkeeping of all rows, a budget holds as many as its bytes say."""
    dtype = str(graph.x.values.dtype if isinstance(graph.x, ScaledFeatures) else graph.x.dtype)
    name = dtype.removeprefix("torch.")
    kept = ROW[name] - 4 * (name == "int8")
    noted = (8 + 4 * (name == "int8")) * 300
    buffers = TieredFeatures.build(graph, host=0, disk=SMALL).disk.buffer_bytes
    store = TieredFeatures.build(graph, host=buffers + noted + 50 * (kept + 32) + 10, disk=SMALL)
    assert store.cache.num_rows == 50
    assert store.row_bytes == kept
    assert store.host_bytes <= buffers + noted + 50 * (kept + 32) + 10
    assert store.report().tiers[0].nbytes == 50 * kept
    assert ("int8 with a scale each" in store.explain()) == (name == "int8")


def test_features_in_memory_take_a_quarter(int8):
    x = int8.x
    assert widened(int8).x.nbytes == 300 * WIDTH * 4
    assert x.nbytes == 300 * (WIDTH + 4)
    assert TieredFeatures.build(int8, hot="all").row_bytes == WIDTH + 4


@pytest.mark.parametrize("host", [None, 0, "all"])
def test_hot_rows_are_kept_as_narrow_as_they_are_stored(graph, host):
    x, kept = (
        graph.dense_x(),
        next(n for d, n in ROW.items() if d in str(graph.x.dtype))
        if not isinstance(graph.x, ScaledFeatures)
        else ROW["int8"],
    )
    score = torch.arange(300.0)
    store = TieredFeatures.build(
        graph, host=host, hot=4 * 300 + 40 * kept, score=score, disk=None if host is None else SMALL
    )
    assert store.hot.num_rows == 40
    table = store.hot.table_on(torch.device("cpu"))
    assert table.dtype == (torch.int8 if isinstance(graph.x, ScaledFeatures) else graph.x.dtype)
    for ids in (
        torch.arange(300),
        torch.arange(270, 300),
        torch.arange(9),
        torch.tensor([], dtype=torch.int64),
    ):
        assert same(store.hot.assembled(ids, store.gather), x[ids])
        again = pickle.loads(pickle.dumps(store.hot))
        assert same(again.assembled(ids, store.gather), x[ids])


def test_a_table_of_tiers_has_scales_for_hot_rows_and_the_others(int8):
    from graphbraid.ops.gather import gather_tiered

    for ids in (torch.arange(40), torch.randperm(300)[:40]):
        hot = DeviceCache(ids, 300, int8.x.values.__getitem__, int8.x.scale)
        table = hot.tier_table(hot.table_on(torch.device("cpu")), int8.x)
        wanted = torch.randint(0, 300, (80,))
        assert same(gather_tiered(table, wanted), int8.dense_x()[wanted])


OPTIONS = {"epochs": 2, "fanouts": (4, 3), "batch_size": 32, "seed": 1, "lr": 0.01}


def trained(graph, width=16, **options):
    torch.manual_seed(0)
    model = graphbraid.nn.GraphSAGE(graph.num_features, width, graph.num_classes, num_layers=2)
    trainer = Trainer(model, graph, **(OPTIONS | options))
    result = trainer.fit()
    return [epoch["train_loss"] for epoch in result.history], result.test, trainer.predict()


def assert_same_run(found, expected):
    assert found[:2] == expected[:2]
    assert torch.equal(found[2], expected[2])


@pytest.mark.parametrize("host", [None, 0, "345KiB", "all"])
def test_runs_are_those_of_the_rows_widened(graph, host):
    options = {} if host is None else {"host": host}
    assert_same_run(trained(graph, **options), trained(widened(graph)))


@pytest.mark.slow
@pytest.mark.parametrize("plan", ["cpu", "gpu"])
@pytest.mark.parametrize(
    "tiers", [{}, {"hot": "6KB"}, {"hot": 5000, "host": "295KiB"}, {"hot": "all", "host": 0}], ids=str
)
def test_runs_on_a_device_are_those_of_the_rows_widened(graph, plan, tiers):
    device = EmulatedAccelerator(INSTANT)
    assert_same_run(trained(graph, plan=plan, accelerator=device, **tiers), trained(widened(graph)))


def test_look_ahead_leaves_rows_out_and_changes_nothing(int8):
    device = EmulatedAccelerator(INSTANT)
    found = batches_of(int8, TieredFeatures.build(int8, hot=1200 + 20 * 41), device=device, plan="cpu")
    for batch in found:
        assert same(batch.x, int8.dense_x()[batch.n_id])


@pytest.mark.slow
def test_exact_inference_by_chunks_widens_what_it_reads(graph):
    budget = {"memory_budget_bytes": 1 << 16}
    expected = trained(widened(graph), 64, **budget)
    assert_same_run(trained(graph, 64, **budget), expected)
    assert_same_run(trained(graph, 64, host=0, **budget), expected)


def test_the_whole_graph_is_trained_on_rows_widened_once(graph):
    assert_same_run(trained(graph, mode="full"), trained(widened(graph), mode="full"))


def test_tiers_are_divided_and_sized_by_the_bytes_that_rows_take(int8):
    from graphbraid.features.budgets import host_budget

    found = host_budget(int8, free_bytes=1 << 40, needed_bytes=0)
    assert found.host is None
    assert "fit" in found.reason
    divided = HostTiers.build(int8, host="1MiB", row_reads=torch.ones(300))
    ids = torch.randint(0, 300, (50,))
    assert same(divided.features[ids], int8.dense_x()[ids])


def test_an_estimate_counts_what_is_kept_and_what_is_read(int8, monkeypatch):
    monkeypatch.setattr("graphbraid.estimates.memory.baseline_bytes", lambda *_: 300 << 20)
    model = graphbraid.nn.GraphSAGE(WIDTH, 16, int8.num_classes, num_layers=2)
    options = {"fanouts": (4, 3), "batch_size": 32, "times": False}
    wide, narrow = (graphbraid.estimate(model, graph, **options) for graph in (widened(int8), int8))
    kept = [found.of("sampled").host.bytes_of("features") for found in (wide, narrow)]
    assert kept == [300 * WIDTH * 4, 300 * (WIDTH + 4)]
    batches = [found.of("sampled").host.bytes_of("batches") for found in (wide, narrow)]
    assert batches[0] == batches[1], "rows of batches are float32"
    whole = [found.of("full").host.bytes_of("evaluation") for found in (wide, narrow)]
    assert whole[1] - whole[0] >= 300 * WIDTH * 4, "the whole graph's rows are widened to a copy"


def test_a_loader_sizes_its_own_tiers(int8, monkeypatch):
    monkeypatch.setattr("graphbraid.loader.auto_tiers.free_memory_bytes", lambda: 256 << 20)
    loader = NeighborLoader(int8, [4, 3], "train", batch_size=32, seed=0, tiers="auto")
    assert loader.tiers is not None
    for batch in loader:
        assert same(batch.x, int8.dense_x()[batch.n_id])


def test_links_and_calls_with_ids_have_their_rows(int8):
    from graphbraid.loader import LinkNeighborLoader

    loader = NeighborLoader(int8, [4], "train", batch_size=8)
    batch = loader([3, 4])
    assert same(batch.x, int8.dense_x()[batch.n_id])
    for batch in LinkNeighborLoader(
        int8, [3], batch_size=300, edge_label_index=int8.to_edge_index()[:, :400]
    ):
        assert same(batch.x, int8.dense_x()[batch.n_id])


def test_a_run_resumes_on_the_same_bits_only(int8, tmp_path):
    trained(int8, out_dir=tmp_path / "run", epochs=1)
    with pytest.raises(DataError, match="another graph"):
        trained(widened(int8), out_dir=tmp_path / "run", resume=True)


def test_damage_is_noticed_by_who_reads_the_row(stores, tmp_path):
    graph = open_store(save_store(open_store(stores["int8"]), tmp_path / "s"))
    store = TieredFeatures.build(graph, host=0, disk=SMALL)
    flip_a_byte(tmp_path / "s" / "x.npy", 4096 + 30 * WIDTH)
    with pytest.raises(DataError, match=r"x\.npy has changed"):
        store[[30]]


def test_tiers_of_other_features_are_refused(int8, stores):
    tiers = TieredFeatures.build(open_store(stores["float16"]), host=0, disk=SMALL)
    with pytest.raises(DataError, match="make the tiers of this very graph"):
        BatchSource(graph=int8, rows=tiers).check_tiers()
    in_memory = open_store(stores["int8"], mmap=False)
    with pytest.raises(DataError, match="lies in memory only"):
        TieredFeatures.build(in_memory, host=0)
    with pytest.raises(DataError, match="none that are dense"):
        BatchSource(graph=int8.replace(x=None), rows=tiers).check_tiers()


def test_pyg_gets_float_rows(int8):
    pytest.importorskip("torch_geometric")
    assert same(int8.to_pyg().x, int8.dense_x())


def test_a_graph_without_labels_or_splits_still_pickles(int8):
    loader = NeighborLoader(dataclasses.replace(int8, y=None), [2], torch.arange(20), batch_size=10)
    batch = pickle.loads(pickle.dumps(next(iter(loader))))
    assert same(batch.x, int8.dense_x()[batch.n_id])


@pytest.mark.parametrize("kind", [graphbraid.nn.GCN, graphbraid.nn.GraphSAGE])
@pytest.mark.parametrize(
    "passes", [frozenset(graphbraid.fullgraph.ALL), frozenset({"fuse"})], ids=["all", "few"]
)
def test_the_copy_of_the_whole_graphs_rows_is_counted_once(graph, kind, passes):
    """Features of float32 are read in place, others as a copy that constants and the first product share."""
    engines = []
    for g in (graph, widened(graph)):
        torch.manual_seed(0)
        engines.append(graphbraid.compile(kind(WIDTH, 4, graph.num_classes, num_layers=2), g, passes=passes))
    narrow, wide = engines
    assert narrow.nbytes - wide.nbytes == 300 * WIDTH * 4
    assert narrow.evaluation_nbytes - wide.evaluation_nbytes == 300 * WIDTH * 4
    assert torch.equal(narrow.predict(), wide.predict())


def test_a_whole_graph_that_does_not_fit_says_what_its_features_take(graph, monkeypatch):
    monkeypatch.setattr("graphbraid.fullgraph.device.free_memory_bytes", lambda: 50_000)
    with pytest.raises(ResourceError, match=r"needs up to .*, 43\.4 KiB of it for all features as float32; "):
        trained(graph, mode="full")
