"""One contract for every communicator, on real processes."""

import re
import sys

import pytest
from tests.distributed import contract, whole_training
from tests.distributed.ranks import NO_MPI, environment, run, run_mpi
from tests.extras import ran
from tests.suites import few_of

from graphbraid.distributed.ranks import joining
from graphbraid.distributed.ranks.communicator import Communicator

pytestmark = pytest.mark.distributed


def test_a_rank_alone_keeps_the_contract():
    assert contract.every_case(Communicator())["size"] == 1
    assert contract.every_case(Communicator(checks=True))["size"] == 1


@pytest.mark.parametrize(
    ("size", "memory"),
    [
        *((3, memory) for memory in "01"),
        *(pytest.param(*one, marks=pytest.mark.slow) for one in ((1, "0"), (2, "1"), (4, "0"), (4, "1"))),
        *(pytest.param(*one, marks=pytest.mark.long) for one in ((1, "1"), (2, "0"))),
    ],
)
def test_gloo_keeps_the_contract(size, memory):
    name = "gloo+memory" if memory == "1" and size > 1 else "gloo"
    for said in run(size, contract.every_case, GRAPHBRAID_RANK_MEMORY=memory):
        assert said.result == {"size": size, "name": name, "cases": len(contract.CASES)}


@pytest.mark.slow
def test_one_rank_that_does_not_share_its_memory_decides_for_all():
    each = {1: {"GRAPHBRAID_RANK_MEMORY": "0"}}
    assert [said.result["name"] for said in run(3, contract.every_case, each=each)] == ["gloo"] * 3


@pytest.mark.slow
@pytest.mark.parametrize("size", few_of((1, 3), {3}))
def test_checks_change_nothing_where_the_ranks_agree(size):
    for said in run(size, contract.every_case, GRAPHBRAID_RANK_CHECKS="1"):
        assert said.result["cases"] == len(contract.CASES)


@pytest.mark.slow
@pytest.mark.parametrize("size", [3, *(pytest.param(size, marks=pytest.mark.long) for size in (1, 2, 4))])
def test_mpi_keeps_the_contract_and_trains_the_whole_graph(size):
    done = run_mpi(size, whole_training.by_one_after_the_contract)
    assert done.code == 0, done.stderr
    assert done.stdout.count(f'"size": {size}, "name": "mpi", "cases": {len(contract.CASES)}') == size


@pytest.mark.slow
def test_ranks_that_another_mpi_than_that_of_mpi4py_has_started_are_refused():
    """Each of them would train alone, and write into the same folder."""
    pytest.importorskip("mpi4py", reason=NO_MPI)
    command = [sys.executable, "-m", "graphbraid", "train", "--comm", "mpi", "--data", "braid-10k"]
    other = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    done = ran(command, env=environment(**other))
    assert done.returncode == 2
    assert re.search(r"torchrun has started 2 ranks, and mpi4py's library \(.+\) finds 1\. ", done.stderr)


def test_the_only_rank_of_mpirun_does_without_mpi_where_there_is_none(monkeypatch):
    monkeypatch.setenv("PMI_SIZE", "1")
    monkeypatch.setattr(joining, "has_mpi", lambda: False)
    assert joining.join("auto", joining.RankLimits.of({})).name == "none"


@pytest.mark.parametrize(
    ("what", "says"),
    few_of(
        (
            (
                "shape",
                ("the ranks differ: rank 0 calls all_reduce(sum) of torch.float32 [2], rank 1 calls", "[3]"),
            ),
            ("dtype", ("torch.float32 [2]", "torch.float64 [2]")),
            ("call", ("rank 0 calls all_reduce(sum) of torch.float32 [2]", "rank 1 calls barrier")),
            ("op", ("all_reduce(sum)", "all_reduce(max)")),
            ("rows", ("expects 2 rows of rank 0, which sends 1",)),
        ),
        {"shape", "rows"},
    ),
)
def test_with_checks_calls_that_differ_end_the_job_with_both_named(what, says):
    first, second = run(2, contract.differing, what, GRAPHBRAID_RANK_CHECKS="1")
    codes = {first.code, second.code}
    assert codes in ({2}, {2, 8}), (first, second)  # one may hear of it from the other first
    for part in says:
        assert part in first.stderr, (first, second)
