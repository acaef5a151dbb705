"""The Trainer on ranks that divide the whole graph or read saved parts: losses, checkpoints, faults."""

import csv
import functools
import signal

import pytest
from tests import warm
from tests.distributed import whole_training
from tests.distributed.ranks import assert_learned_alike, run
from tests.distributed.training import graph_of
from tests.extras import PATIENCE
from tests.features.tables import flip_a_byte

from graphbraid import Trainer, datasets, nn
from graphbraid.distributed import partition, save_partition
from graphbraid.errors import ConfigError

pytestmark = pytest.mark.distributed
EQUAL = [*whole_training.CASES, "missing cells", "one training node"]


@pytest.fixture(scope="module")
def results():
    """What ranks have learned, for a number of them: one job each, run when it is first asked for."""
    return functools.cache(lambda size: run(size, whole_training.every_case))


@pytest.mark.slow
@pytest.mark.parametrize("case", EQUAL)
@pytest.mark.parametrize("size", [pytest.param(2, marks=pytest.mark.long), 3])
def test_losses_and_scores_are_those_of_one_rank(size, case, results):
    alone = results(1)[0].result[case]
    assert alone["reason"] == ""
    for said in results(size):
        found = said.result[case]
        assert_learned_alike(found, alone)
        assert found["outputs"] == pytest.approx(alone["outputs"], rel=1e-3, abs=1e-4)


@pytest.mark.slow
def test_all_ranks_hold_the_same_weights_to_the_bit(results):
    first, *others = (said.result for said in results(3))
    assert all(other[case]["weights"] == first[case]["weights"] for other in others for case in EQUAL)


@pytest.mark.slow
def test_a_run_goes_on_with_another_number_of_ranks(tmp_path):
    whole = run(1, whole_training.with_checkpoints, tmp_path / "whole", 4, "new")[0].result
    run(2, whole_training.with_checkpoints, tmp_path / "parts", 2, "new")
    again = [s.result for s in run(3, whole_training.with_checkpoints, tmp_path / "parts", 4, "resume")]
    assert again[0]["losses"] == pytest.approx(whole["losses"][2:], rel=1e-5)  # the masks are the same
    assert again[0]["weights"] == again[2]["weights"] == pytest.approx(whole["weights"], rel=1e-3)
    one = run(1, whole_training.with_checkpoints, tmp_path / "parts", 5, "resume")[0].result
    assert len(one["losses"]) == 1
    assert len(one["history"]) == 5


@pytest.mark.slow
def test_a_loss_that_is_not_finite_ends_all_ranks_with_the_first_node_named():
    for said in run(2, whole_training.overflowing):
        assert said.code != 0
        assert "the loss is" in said.stderr, said.stderr
        assert "is the first to go wrong, at node" in said.stderr, said.stderr


@pytest.mark.slow
def test_one_rank_evaluates_and_predicts_by_itself():
    alone = run(1, whole_training.by_one)[0].result
    first, second = run(2, whole_training.by_one)
    assert first.result == pytest.approx(alone, rel=1e-4)
    assert second.result == []


# ---- the Trainer on ranks that read their own parts by a saved partition: losses, the command, refusals


@pytest.fixture
def folder(tmp_path):
    """A store, and its partitions into two and three parts."""
    graph = graph_of()
    datasets.save_store(graph, tmp_path / "store")
    for size in (2, 3):
        save_partition(graph, partition(graph, size, strategy="streaming"), tmp_path / str(size))
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("size", [3, pytest.param(2, marks=pytest.mark.long)])
def test_losses_and_scores_of_saved_parts_are_those_of_one_rank(size, folder):
    called = (whole_training.by_parts, folder, folder / "store")
    alone = run(1, *called)[0].result
    for said in run(size, *called):
        for kind, found in said.result.items():
            assert found["losses"] == pytest.approx(alone[kind]["losses"], rel=1e-5)
            assert found["weights"] == pytest.approx(alone[kind]["weights"], rel=1e-4, abs=1e-6)
            assert found["outputs"] == pytest.approx(alone[kind]["outputs"], rel=1e-3, abs=1e-4)
            assert found["test"] == pytest.approx(alone[kind]["test"], rel=1e-3, abs=0.011)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "says"),
    [("damaged", "owned.npy"), ("none", "rank 0 has partition 'given', rank 1 has 'not given'")],
)
def test_partitions_that_do_not_fit_are_refused_on_every_rank(what, says, folder):
    """Those of other graphs and of other numbers of parts are in tests/distributed/test_rank_part.py."""
    save_partition(graph_of(), partition(graph_of(), 2, strategy="streaming"), folder / "odd")
    if what == "damaged":
        flip_a_byte(folder / "odd" / "part-00001" / "owned.npy", -1)
    for said in run(2, whole_training.misled_parts, folder, what):
        assert said.code in (2, 3, 8), said.stderr
        assert says in said.stderr, said.stderr


def test_partition_is_for_several_ranks_and_the_whole_graph(folder):
    graph = graph_of()
    model = nn.GCN(graph.num_features, 8, graph.num_classes)
    with pytest.raises(ConfigError, match=r"divides the graph among several ranks, and there is one"):
        Trainer(model, graph, mode="full", partition=folder / "2")
    with pytest.raises(ConfigError, match=r"mode='sampled' does not train on it; set mode='full'"):
        Trainer(model, graph, partition=folder / "2")


@pytest.mark.slow
def test_the_command_trains_on_several_ranks_and_from_a_partition(folder):
    losses, ranks = [], ("--ranks", "2")
    runs = {"one": (), "two": ranks, "parts": (*ranks, "--partition", folder / "2")}
    for out, more in runs.items():
        command = ("train", "--data", folder / "store", "--model", "gcn", "--hidden", 8, "--mode", "full")
        called = ["-m", "graphbraid", *map(str, (*command, "--epochs", 3, *more, "--out", out))]
        done = warm.run(called, cwd=folder)
        assert done.returncode == 0, done.stderr
        with (folder / out / "metrics.csv").open() as file:
            losses.append([float(row["train_loss"]) for row in csv.DictReader(file)])
    assert len(losses[0]) == 3
    for found in losses[1:]:
        assert found == pytest.approx(losses[0], rel=1e-4)


# ---- a rank that is lost ends training on the whole graph on every rank, with a reason


def ended(said, folder, rank):
    """What a rank said that ended because of another."""
    assert said.code == 8, said
    assert float((folder / f"took-{rank}").read_text()) < PATIENCE
    return said.stderr


@pytest.mark.slow
@pytest.mark.parametrize("what", ["killed", "killed while rows travel"])
def test_a_killed_rank_is_named_and_a_restart_goes_on(what, tmp_path):
    *others, last = run(3, whole_training.faulty, what, tmp_path)
    assert last.code == -signal.SIGKILL
    for rank, said in enumerate(others):
        assert "rank 2 is lost: its process" in ended(said, tmp_path, rank)
    assert not [path for path in tmp_path.rglob("*") if "tmp" in path.name]
    for said in run(2, whole_training.resumed, tmp_path):
        assert said.result == 6
