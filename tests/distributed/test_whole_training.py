"""The Trainer on ranks that divide the whole graph: losses, scores, checkpoints and what goes wrong."""

import csv
import functools

import pytest
from tests import warm
from tests.distributed import whole_training
from tests.distributed.ranks import run
from tests.distributed.test_launch import data  # noqa: F401 (a fixture)

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
        assert found["losses"] == pytest.approx(alone["losses"], rel=1e-5)
        assert found["weights"] == pytest.approx(alone["weights"], rel=1e-4)
        assert found["outputs"] == pytest.approx(alone["outputs"], rel=1e-3, abs=1e-4)
        for ours, theirs in zip(found["history"], alone["history"], strict=True):
            assert ours[:2] == pytest.approx(theirs[:2], rel=1e-4)
            assert ours[2] == pytest.approx(theirs[2], abs=0.011)  # two of 200 nodes may be near a border
        assert found["test"] == pytest.approx(alone["test"], rel=1e-3, abs=0.011)


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


@pytest.mark.slow
def test_the_command_trains_the_whole_graph_on_several_ranks(data):  # noqa: F811 (the fixture)
    losses = []
    command = ("-m", "graphbraid", "train", "--data", data, "--model", "gcn", "--hidden", 8, "--mode", "full")
    for ranks, out in ((1, "one"), (2, "two")):
        called = (*command, "--epochs", 3, "--ranks", ranks, "--out", out)
        done = warm.run(called, cwd=data.parent)
        assert done.returncode == 0, done.stderr
        with (data.parent / out / "metrics.csv").open() as file:
            losses.append([float(row["train_loss"]) for row in csv.DictReader(file)])
    assert len(losses[0]) == 3
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
