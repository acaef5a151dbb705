"""The order of work: every partition once, local and remote ones in turns."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphbraid.errors import ConfigError
from graphbraid.ops.peers import NOTHING, interleaved

counts = st.integers(0, 60)
distances = st.integers(1, 16)


def listed(work):
    """Partitions in the order of the warps."""
    return [p for p in work.flatten().tolist() if p != NOTHING]


@given(num_local=counts, num_remote=counts, dist=distances)
def test_every_partition_is_the_work_of_one_warp(num_local, num_remote, dist):
    work = interleaved(num_local, num_remote, dist)
    assert (work.dtype, work.shape[1]) == (torch.int32, 2 * dist)
    assert sorted(listed(work)) == list(range(num_local + num_remote))


@given(num_local=counts, num_remote=counts, dist=distances)
def test_dist_local_partitions_and_dist_remote_ones_take_turns_until_one_kind_is_used_up(
    num_local, num_remote, dist
):
    local, remote = list(range(num_local)), list(range(num_local, num_local + num_remote))
    expected = []
    while local or remote:
        expected += local[:dist] + remote[:dist]
        local, remote = local[dist:], remote[dist:]
    assert listed(interleaved(num_local, num_remote, dist)) == expected


@given(num_local=counts, num_remote=counts, dist=distances)
def test_there_are_as_many_warps_as_the_papers_second_equation_says(num_local, num_remote, dist):
    num_warps = len(interleaved(num_local, num_remote, dist))
    assert (num_warps - 1) * dist < max(num_local, num_remote, 1) <= max(num_warps, 1) * dist


def test_the_papers_example_of_four_local_and_six_remote_partitions():
    nothing = NOTHING
    assert interleaved(4, 6, 1).tolist() == [[0, 4], [1, 5], [2, 6], [3, 7], [nothing, 8], [nothing, 9]]
    assert interleaved(4, 6, 2).tolist() == [[0, 1, 4, 5], [2, 3, 6, 7], [nothing, nothing, 8, 9]]


def test_impossible_counts_are_refused():
    with pytest.raises(ConfigError, match="dist must be"):
        interleaved(1, 1, 0)
    with pytest.raises(ConfigError, match="num_remote must be"):
        interleaved(1, -1, 1)
