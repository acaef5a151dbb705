"""The Trainer on ranks that read their own parts by a saved partition: losses, the command, refusals."""

import csv

import pytest
from tests import warm
from tests.distributed import whole_training
from tests.distributed.ranks import run
from tests.distributed.training import graph_of
from tests.features.tables import flip_a_byte

from graphbraid import Trainer, datasets, nn
from graphbraid.distributed import partition, save_partition
from graphbraid.errors import ConfigError

pytestmark = pytest.mark.distributed


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
def test_losses_and_scores_are_those_of_one_rank(size, folder):
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
def test_the_command_trains_from_a_partition(folder):
    losses = []
    for out, more in (("one", ()), ("two", ("--ranks", "2", "--partition", folder / "2"))):
        command = ("train", "--data", folder / "store", "--model", "gcn", "--hidden", 8, "--mode", "full")
        called = ["-m", "graphbraid", *map(str, (*command, "--epochs", 3, *more, "--out", out))]
        done = warm.run(called, cwd=folder)
        assert done.returncode == 0, done.stderr
        with (folder / out / "metrics.csv").open() as file:
            losses.append([float(row["train_loss"]) for row in csv.DictReader(file)])
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
