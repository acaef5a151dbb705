"""pipelined_sum: the ranks' sums together are the whole graph's; what does not fit is refused."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.ops.graphs import close, square, values
from tests.ops.peers import COEFFICIENTS, divided_maps, owned_by, share_of, tables, with_coefficients

from graphbraid.errors import ConfigError, DataError
from graphbraid.graph.csc import Csc
from graphbraid.ops import Aggregation
from graphbraid.ops.peers import (
    NOTHING,
    PeerEdges,
    PeerTable,
    PipelineConfig,
    PipelinePlan,
    interleaved,
    pipelined_sum,
)

PART_OF = torch.arange(50) % 3


def summed(how, part_of, num_ranks, x, config):
    """What the ranks compute, put together."""
    found = x.new_full((how.csc.num_dst, x.shape[1]), torch.nan)
    for rank, table in enumerate(tables(x, part_of, num_ranks)):
        edges, _ = share_of(how, part_of, rank, num_ranks)
        plan = PipelinePlan.of(edges, config)
        found[owned_by(part_of, num_ranks)[rank]] = pipelined_sum(plan, table)
    return found


@given(case=divided_maps(), ps=st.integers(1, 40), width=st.integers(1, 4))
def test_the_ranks_sums_are_the_whole_graphs(case, ps, width):
    how, part_of, num_ranks = case
    x = values(how.csc.num_src, width, dtype=torch.float64)
    found = summed(how, part_of, num_ranks, x, PipelineConfig(ps=ps))
    torch.testing.assert_close(found, how.forward(x), rtol=1e-5, atol=1e-5)  # factors are float32


@pytest.mark.parametrize("wanted", COEFFICIENTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_sums_of_every_dtype_and_coefficient_are_the_whole_graphs(wanted, dtype):
    how = with_coefficients(square(), wanted)
    x = values(50, 5, dtype=dtype)
    close(summed(how, PART_OF, 3, x, PipelineConfig(ps=4)), how.forward(x))


@given(case=divided_maps(), ps=st.integers(1, 9), dist=st.integers(1, 5))
def test_a_plan_holds_every_edge_once_and_says_where_each_sum_goes(case, ps, dist):
    how, part_of, num_ranks = case
    for rank in range(num_ranks):
        edges, _ = share_of(how, part_of, rank, num_ranks)
        plan = PipelinePlan.of(edges, PipelineConfig(ps=ps, dist=dist))
        sizes = plan.indptr.diff()
        assert int(plan.indptr[-1]) == edges.num_edges == plan.indices.numel()
        assert sizes.tolist() == [size for size in sizes.tolist() if 1 <= size <= ps]
        degrees = torch.cat([edges.local.degrees(), edges.remote.degrees()])
        assert sizes.numel() == int(((degrees + ps - 1) // ps).sum())
        finished = plan.target[plan.target >= 0].tolist() + plan.rest.tolist()
        assert sorted(finished) == list(range(edges.num_rows))
        places = (-1 - plan.target[plan.target < 0]).tolist()
        assert sorted(places) == list(range(plan.num_partials)) == list(range(int(plan.rest_first[-1])))


def test_partial_sums_of_a_row_stand_together_local_ones_first():
    csc = Csc(torch.tensor([0, 0, 7]), torch.tensor([0, 2, 2, 1, 2, 0, 3], dtype=torch.int32), 4)
    how = Aggregation(csc=csc)
    edges = PeerEdges.of(how, 2, torch.tensor([1, 1]), torch.tensor([5, 6]), rank=0, num_ranks=2)
    plan = PipelinePlan.of(edges, PipelineConfig(ps=2))
    assert plan.indices.tolist() == [0, 1, 0, 5, 5, 5, 6]
    assert plan.indptr.tolist() == [0, 2, 3, 5, 7]
    assert (-1 - plan.target).tolist() == [0, 1, 2, 3]
    assert (plan.rest.tolist(), plan.rest_first.tolist()) == ([0, 1], [0, 0, 4])
    assert edges.rows_read == (2, 7)


def test_a_skipped_self_loop_may_hold_anything():
    how = with_coefficients(square(), "loops")
    loops = how.csc.indices == how.csc.destinations()
    how = replace(how, weight=torch.ones(how.csc.num_edges).masked_fill(loops, torch.nan))
    assert loops.any()
    found = summed(how, PART_OF, 3, values(50, 3), PipelineConfig())
    close(found, how.forward(values(50, 3)))
    assert found.isfinite().all()


def test_the_addend_is_added_to_the_first_rows_and_the_result_may_be_wider():
    how = with_coefficients(square(), "scales")
    edges, mapped = share_of(how, PART_OF, 1, 3)
    x = values(50, 4, dtype=torch.bfloat16)
    table, plan = tables(x, PART_OF, 3)[1], PipelinePlan.of(edges, PipelineConfig(ps=3))
    out, addend = torch.full((edges.num_rows, 9), torch.nan)[:, 3:7], values(5, 4)
    expected = how.forward(x, out=torch.empty(50, 4))[PART_OF == 1]
    expected[:5] += addend
    assert pipelined_sum(plan, table, addend=addend, out=out) is out
    close(out, expected)
    assert mapped.csc.num_dst == edges.num_rows


def test_rows_that_no_rank_owns_or_reads_are_no_obstacle():
    nobody = torch.zeros(50, dtype=torch.int64)
    how = with_coefficients(square(), "mean")
    close(summed(how, nobody, 3, values(50, 3), PipelineConfig()), how.forward(values(50, 3)))
    edges, _ = share_of(how, nobody, 2, 3)
    assert (edges.num_rows, edges.rows_read) == (0, (0, 0, 0))


def given_edges(**options):
    edges, _ = share_of(with_coefficients(square(), "all"), PART_OF, 1, 3)
    return replace(edges, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"owner": torch.zeros(1, dtype=torch.int32)}, r"owner must be \(\d+,\) torch.int32; got \(1,\)"),
        ({"local_factor": torch.ones(2)}, "local_factor must be"),
        ({"dst_scale": torch.ones(17).double()}, "dst_scale must be .* torch.float32; got .* torch.float64"),
        ({"remote": Csc(torch.zeros(3).long(), torch.zeros(0).int(), 3)}, "must end in the same rows"),
    ],
)
def test_edges_that_do_not_fit_are_refused(options, message):
    with pytest.raises(DataError, match=message):
        given_edges(**options)


def test_owners_that_are_no_ranks_are_refused():
    edges = given_edges()
    with pytest.raises(DataError, match=r"ranks in \[0, 3\); owner\[0\] is 3"):
        replace(edges, owner=torch.full_like(edges.owner, 3))
    with pytest.raises(ConfigError, match="rank must be"):
        replace(edges, rank=3)


def test_a_halo_that_does_not_fit_its_map_is_refused():
    how = with_coefficients(square(), "plain")
    one = torch.zeros(1, dtype=torch.int64)
    with pytest.raises(DataError, match="owner must have one value for each of the 0 rows"):
        PeerEdges.of(how, 50, one, one, rank=0, num_ranks=1)
    with pytest.raises(DataError, match="the 50 destinations must be a prefix of the 49 own rows"):
        PeerEdges.of(how, 49, one, one, rank=0, num_ranks=1)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"ps": 0}, "ps must be"),
        ({"dist": 0}, "dist must be"),
        ({"wpb": 32}, "wpb must be"),
        ({"wpb": 3}, "wpb must be a power of two"),
    ],
)
def test_impossible_configurations_are_refused(config, message):
    with pytest.raises(ConfigError, match=message):
        PipelineConfig(**config)


X = values(4, 2)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([], "one part per rank"),
        ([X, X[0]], "the part of rank 1 must have 2 dimensions"),
        ([X, X.double()], "rank 1 must be torch.float32 of 2 columns, as this rank's is; got torch.float64"),
        ([X, X[:, :1].contiguous()], "got torch.float32 of 1"),
        ([X, values(4, 4)[:, :2]], "rank 1 must be contiguous"),
        ([X.long(), X.long()], "must be floating point"),
    ],
)
def test_parts_that_no_kernel_reads_by_their_address_are_refused(parts, message):
    with pytest.raises(DataError, match=message):
        PeerTable(parts, 0)


def test_a_part_on_another_kind_of_device_is_refused(monkeypatch):
    # It refuses "meta".
    monkeypatch.setattr("graphbraid.ops.peers.check_tensor", lambda *_, **__: None)
    with pytest.raises(DataError, match="rank 1 must be on a cpu device, which reads it; it is on meta"):
        PeerTable([X, X.to("meta")], 0)


def test_a_table_names_the_addresses_of_all_ranks_and_whether_rows_are_read_in_vectors():
    parts = [values(3, 4), values(0, 4), values(5, 4)]
    table = PeerTable(parts, 2)
    assert table.bases.tolist() == [part.data_ptr() for part in parts]
    assert (table.num_rows, table.width, table.rows.data_ptr()) == ((3, 0, 5), 4, parts[2].data_ptr())
    assert table.in_vectors
    assert not PeerTable([X, X], 0).in_vectors
    with pytest.raises(ConfigError, match="rank must be"):
        PeerTable(parts, 3)


def test_what_does_not_fit_the_plan_is_refused():
    edges = given_edges()
    plan, table = PipelinePlan.of(edges, PipelineConfig()), tables(values(50, 4), PART_OF, 3)[1]
    other = PeerTable(table.parts, 2)
    with pytest.raises(DataError, match="plan is of rank 1 of 3, and the table of rank 2 of 3"):
        pipelined_sum(plan, other)
    with pytest.raises(DataError, match=r"reads row 16 of rank 0, which has 3 rows"):
        pipelined_sum(plan, PeerTable([table.parts[0][:3], *table.parts[1:]], 1))
    with pytest.raises(DataError, match=r"out must be torch.float32 or torch.float32 of shape \(17, 4\)"):
        pipelined_sum(plan, table, out=torch.empty(17, 3))
    with pytest.raises(DataError, match="out must have contiguous rows"):
        pipelined_sum(plan, table, out=torch.empty(4, 17).t())
    with pytest.raises(DataError, match=r"addend must be torch.float32 of shape \(at most 17, 4\)"):
        pipelined_sum(plan, table, addend=torch.empty(18, 4))
    with pytest.raises(DataError, match=r"it is on meta: plan.to\(table.device\)"):
        pipelined_sum(plan.to(torch.device("meta")), table)


# ---- the order of work: every partition once, local and remote ones in turns


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
