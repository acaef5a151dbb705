"""A rank that is lost or misled ends training on the whole graph on every rank, with a reason.

tests/distributed/test_faults.py has the ranks that are stopped, stuck or out of memory.
"""

import signal

import pytest
from tests.distributed import whole_faults
from tests.distributed.ranks import run
from tests.extras import PATIENCE
from tests.suites import few_of

pytestmark = pytest.mark.distributed
SOON = PATIENCE
"""Seconds from the fault until every other rank has said what it was."""


def ended(said, folder, rank):
    """What a rank said that ended because of another."""
    assert said.code == 8, said
    assert float((folder / f"took-{rank}").read_text()) < SOON
    return said.stderr


@pytest.mark.slow
@pytest.mark.parametrize("what", ["killed", "killed while rows travel"])
def test_a_killed_rank_is_named_and_a_restart_goes_on(what, tmp_path):
    *others, last = run(3, whole_faults.faulty, what, tmp_path)
    assert last.code == -signal.SIGKILL
    for rank, said in enumerate(others):
        assert "rank 2 is lost: its process" in ended(said, tmp_path, rank)
    assert not [path for path in tmp_path.rglob("*") if "tmp" in path.name]
    for said in run(2, whole_faults.resumed, tmp_path):
        assert said.result == 6


@pytest.mark.slow
def test_what_a_rank_raises_is_told_by_all(tmp_path):
    first, second = run(2, whole_faults.faulty, "raises", tmp_path)
    assert "rank 1 failed: a user's own mistake" in ended(first, tmp_path, 0)
    assert second.code == 1


@pytest.mark.parametrize(
    ("what", "says"),
    few_of(
        (
            ("mode", "rank 0 has mode 'full', rank 1 has 'sampled'"),
            ("graph", "load the same graph on all ranks."),
            ("model", "build the same model on all ranks."),
        ),
        {"graph"},
    ),
)
def test_ranks_that_differ_are_told_before_the_first_step(what, says):
    for said in run(2, whole_faults.misled, what):
        assert said.code == 2, said
        assert says in said.stderr
