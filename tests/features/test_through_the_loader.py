"""Batches, losses, predictions and checkpoints are the same to the bit wherever feature rows lie."""

import threading

import pytest
import torch
from tests.features.tables import batches_of, flip_a_byte, losses_of, model_of, same, stored_graph

import graphbraid
from graphbraid import Trainer
from graphbraid.errors import ConfigError, DataError
from graphbraid.features import DiskOptions, DiskRows, RowCache, TieredFeatures
from graphbraid.loader import BatchLoader, LoaderSettings, NeighborLoader
from graphbraid.sampling.source import BatchSource

SMALL = DiskOptions(depth=4, longest_bytes=4096)
BUDGETS = [0, 40_000, "all"]  # none, some 60, and all 300 rows


def tiers_of(graph, host):
    return TieredFeatures.build(graph, host=host, disk=SMALL)


@pytest.mark.parametrize("host", BUDGETS)
@pytest.mark.parametrize("options", [{}, {"num_workers": 3}, {"gather": False}, {"layout": "blocks"}])
def test_batches_have_the_rows_that_the_graph_has(graph, host, options):
    tiers = tiers_of(graph, host)
    for ours, plain in zip(batches_of(graph, tiers, **options), batches_of(graph, **options), strict=True):
        assert torch.equal(ours.n_id, plain.n_id)
        assert same(ours.x, plain.x)
        assert same(ours.x, graph.x[ours.n_id])
        assert torch.equal(ours.seed_y, plain.seed_y)


def test_rows_are_there_before_they_are_asked_for(graph):
    tiers = tiers_of(graph, 0)
    batch, *_ = batches_of(graph, tiers)
    before = tiers.counts.disk_rows
    assert before > 0
    assert batch.x is not None
    assert tiers.counts.disk_rows == before


def test_a_batch_that_a_step_moves_itself_is_counted_as_a_whole(graph):
    """Without a plan the batch goes to the device as the model is called, and its labels as the loss is."""
    tiers = tiers_of(graph, 0)
    model = graphbraid.nn.GraphSAGE(graph.num_features, 8, graph.num_classes, num_layers=2)
    runner = Trainer(model, graph, tiers=tiers, fanouts=(4, 3)).runner
    [batch, *_] = batches_of(graph, tiers)
    assert runner._moved(batch) is not None
    runner.labels_of(batch)
    assert tiers.counts.link_bytes == 0, "both are on the host"
    runner.device = torch.device("meta")
    [fresh, *_] = batches_of(graph, tiers)
    whole = fresh.travelling_bytes
    moved = runner._moved(fresh)
    assert sum(tensor.nbytes for tensor in moved.tensors()) == whole
    labels = runner.labels_of(fresh)
    counts = tiers.counts
    assert (counts.link_row_bytes, counts.link_rows) == (fresh.x.nbytes, fresh.num_nodes)
    assert counts.link_label_bytes == labels.nbytes
    assert counts.link_bytes == whole + labels.nbytes


def test_announced_batches_are_kept_for(graph):
    """With all batches announced, no row that fits is read twice."""
    disk = DiskRows.behind(graph.x, options=SMALL)
    tiers = TieredFeatures(disk, RowCache(disk, 299, policy="belady"), score=None, lookahead=50)
    batches = batches_of(graph, tiers)
    distinct = torch.cat([b.n_id for b in batches]).unique().numel()
    assert tiers.counts.disk_rows <= distinct + 1


def test_iterations_that_end_early_leave_no_thread_and_no_expectation(graph):
    tiers = tiers_of(graph, 40_000)
    before = set(threading.enumerate())
    settings = LoaderSettings(num_neighbors=[4, 3], batch_size=7, input_nodes="train", num_workers=1)
    with BatchLoader(BatchSource(graph=graph, rows=tiers), settings) as loader:
        for _ in range(3):
            batches = loader.batches(0)
            first = next(batches)
            batches.close()
            assert same(first.x, graph.x[first.n_id])
        assert [same(b.x, graph.x[b.n_id]) for b in loader.batches(1)] == [True] * len(loader)
    assert set(threading.enumerate()) <= before


def test_stage_seconds_count_the_rows(graph):
    settings = LoaderSettings(num_neighbors=[4, 3], batch_size=17, input_nodes="train")
    with BatchLoader(BatchSource(graph=graph, rows=tiers_of(graph, 0)), settings) as loader:
        list(loader.batches(0))
        assert loader.stage_seconds["gather"] > 0
        loader.reset_stage_seconds()
        assert loader.stage_seconds["gather"] == 0


@pytest.mark.parametrize("plan", ["cpu"])
def test_a_plan_gathers_from_the_tiers(graph, plan):
    tiers = tiers_of(graph, 40_000)
    for batch in batches_of(graph, tiers, plan=plan, num_workers=2):
        assert same(batch.x, graph.x[batch.n_id])
    assert tiers.counts.disk_rows > 0


def test_batches_of_ids_and_of_a_sampler_have_their_rows(graph):
    tiers = tiers_of(graph, 40_000)
    loader = NeighborLoader(graph, [4], "train", batch_size=8, sampler=range(40), seed=1, tiers=tiers)
    for batch in loader:
        assert same(batch.x, graph.x[batch.n_id])
    called = loader([3, 4])
    assert same(called.x, graph.x[called.n_id])
    assert tiers.counts.disk_rows > 0


def test_an_error_of_the_disk_reaches_who_iterates(tmp_path):
    graph = stored_graph(tmp_path)
    tiers = tiers_of(graph, 0)
    flip_a_byte(tmp_path / "store" / "x.npy", 4096 + 30 * 148)
    settings = LoaderSettings(num_neighbors=[-1, -1], batch_size=50, input_nodes="train")
    with (
        BatchLoader(BatchSource(graph=graph, rows=tiers), settings) as loader,
        pytest.raises(DataError, match=r"x\.npy has changed"),
    ):
        list(loader.batches(0))


def test_tiers_of_another_graph_are_refused(graph, tmp_path):
    other = stored_graph(tmp_path, num_nodes=299)
    with pytest.raises(DataError, match="make the tiers of this very graph"):
        BatchSource(graph=graph, rows=tiers_of(other, 0)).check_tiers()
    with pytest.raises(DataError, match="make the tiers of this very graph"):
        NeighborLoader(graph.replace(x=None), [2], tiers=tiers_of(graph, 0))


OPTIONS = {"epochs": 3, "fanouts": (4, 3), "batch_size": 32, "seed": 1, "lr": 0.01}


@pytest.fixture(scope="module")
def plain(graph):
    trainer = Trainer(model_of(graph), graph, **OPTIONS)
    return (*losses_of(trainer), trainer.predict(), trainer.predict(mode="sampled"))


@pytest.mark.parametrize("host", ["0", "345KiB", "all"])
def test_losses_scores_and_predictions_do_not_depend_on_the_tiers(graph, plain, host):
    trainer = Trainer(model_of(graph), graph, host=host, **OPTIONS)
    losses, scores = losses_of(trainer)
    assert (losses, scores) == plain[:2]
    assert trainer.tiers.counts.host_rows + trainer.tiers.counts.disk_rows > 0
    if host == "345KiB":  # filled with the rows that training reads most
        assert 100 < trainer.tiers.counts.filled_rows < 300
        assert trainer.tiers.counts.host_share > 0.5
    assert torch.equal(trainer.predict(), plain[2])
    assert torch.equal(trainer.predict(mode="sampled"), plain[3])


def test_a_trainer_explains_its_rows_and_lists_by_the_last_epoch(graph):
    trainer = Trainer(model_of(graph), graph, host="345KiB", **(OPTIONS | {"epochs": 2}))
    assert "in the last epoch" not in trainer.explain()
    trainer.fit()
    said, tiers = trainer.explain(), trainer.tiers.report()
    assert said.startswith(trainer.host_reason)
    assert trainer.topology.explain() in said
    assert "the last epoch: " in trainer.topology.explain()
    assert 0 < tiers.epoch.reads < tiers.counts.reads / 2, "evaluations are no part of an epoch"
    assert f"{tiers.epoch.reads:,} reads in the last epoch" in said
    assert said.index("adjacency lists") < said.index("filled by the score")


def test_exact_inference_by_chunks_reads_the_tiers(graph):
    outputs = []
    for tiers in (None, tiers_of(graph, 0)):
        trainer = Trainer(model_of(graph, 64), graph, tiers=tiers, memory_budget_bytes=1 << 16, **OPTIONS)
        outputs.append(trainer.predict())
    assert torch.equal(*outputs)
    assert tiers.counts.disk_rows >= 300


def test_exact_inference_reads_the_tiers_where_all_rows_exceed_the_budget(graph):
    """One pass would bring all rows into memory: the budget must hold them, too."""
    outputs, budget = [], 3 * 300 * 64 * 4 + 20_000  # of the layers' rows, and half the features
    for tiers in (None, tiers_of(graph, 0)):
        trainer = Trainer(model_of(graph, 64), graph, tiers=tiers, memory_budget_bytes=budget, **OPTIONS)
        outputs.append(trainer.predict())
    torch.testing.assert_close(*outputs)
    assert tiers.counts.disk_rows >= 300


def test_a_run_resumes_with_another_tier_size(graph, plain, tmp_path):
    folder = tmp_path / "run"
    first = Trainer(model_of(graph), graph, host=0, out_dir=folder, **(OPTIONS | {"epochs": 1}))
    first.fit()
    again = Trainer(model_of(graph), graph, host="all", out_dir=folder, resume=True, **OPTIONS)
    losses, scores = losses_of(again)
    assert scores == plain[1]
    assert losses[-2:] == plain[0][-2:]


def test_a_whole_graph_mapped_from_a_store_learns_as_one_in_memory(graph):
    """Mode ``full`` reads all rows in every step, of wherever they are mapped, and takes no tiers."""
    found = []
    for one in (graph, graph.replace(x=graph.x.clone())):
        trainer = Trainer(model_of(one), one, mode="full", epochs=4, seed=1, lr=0.01)
        found.append((losses_of(trainer), trainer.predict()))
    assert found[0][0] == found[1][0]
    assert torch.equal(found[0][1], found[1][1])


def test_what_excludes_tiers_is_refused(graph):
    for options, said in (
        ({"host": "4 pounds"}, "a size such as '4GiB'"),
        ({"host": -4}, "a number of bytes"),
        ({"host": 0, "tiers": tiers_of(graph, 0)}, "makes tiers, and tiers are given"),
    ):
        with pytest.raises(ConfigError, match=said):
            Trainer(model_of(graph), graph, **options)
    with pytest.raises(DataError, match="lies in memory only"):
        Trainer(model_of(graph), graph.replace(x=graph.x.clone()), host=0)


def test_mode_auto_samples_where_features_are_in_tiers(graph):
    trainer = Trainer(model_of(graph), graph, host=0, mode="auto")
    assert trainer.config.mode == "sampled"
    assert "tiers" in trainer.mode_reason
