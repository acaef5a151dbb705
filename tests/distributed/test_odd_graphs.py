"""Graphs that leave some ranks with little or nothing to do are learned as by one rank."""

import functools

import pytest
from tests.distributed import odd_graphs
from tests.distributed.ranks import run

pytestmark = [pytest.mark.distributed, pytest.mark.slow]
CASES = [f"{name}, {mode}" for name in odd_graphs.graphs() for mode in odd_graphs.MODES]


@pytest.fixture(scope="module")
def results():
    """What so many ranks have learned, as results(2): one job for each number of them that is asked for."""
    return functools.cache(lambda size: [said.result for said in run(size, odd_graphs.every_graph)])


@pytest.mark.parametrize("size", [4, pytest.param(2, marks=pytest.mark.long)])
@pytest.mark.parametrize("case", CASES)
def test_losses_scores_and_weights_are_those_of_one_rank(case, size, results):
    alone = results(1)[0][case]
    for said in results(size):
        found = said[case]
        assert found["status"] == "finished"
        assert found["losses"] == pytest.approx(alone["losses"], rel=1e-4)
        assert found["weights"] == pytest.approx(alone["weights"], rel=1e-3, abs=1e-5)
        for ours, theirs in zip(found["history"], alone["history"], strict=True):
            assert ours[:2] == pytest.approx(theirs[:2], rel=1e-4)
            assert ours[2] == pytest.approx(theirs[2], abs=0.011)  # two of 200 nodes may be near a border
        assert found["test"] == pytest.approx(alone["test"], rel=1e-3, abs=0.011)
