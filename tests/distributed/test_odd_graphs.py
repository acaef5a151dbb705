"""Graphs that leave some ranks with little or nothing to do are learned as by one rank."""

import functools

import pytest
from tests.distributed import odd_graphs
from tests.distributed.ranks import assert_learned_alike, run

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
        assert said[case]["status"] == "finished"
        assert_learned_alike(said[case], alone, rel=1e-4)
