"""A rank that is lost ends training on the whole graph on every rank, with a reason.

tests/distributed/test_faults.py has ranks that are stopped, stuck or raise errors, and
tests/distributed/test_training.py those that differ.
"""

import signal

import pytest
from tests.distributed import whole_faults
from tests.distributed.ranks import run
from tests.extras import PATIENCE

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
