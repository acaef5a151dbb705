"""Rows of other ranks' nodes: the owners' bits whatever is kept, and what travels is counted and foreseen."""

from functools import partial

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.distributed.test_shards import check_equal, graph_of, parts_at
from tests.distributed.threads import run_threads
from torch import Tensor

from graphbraid.distributed import Communicator, ShardedGraph
from graphbraid.distributed.shards.feature_rows import (
    FeatureRows,
    GroupRows,
    RowTraffic,
    known_ahead,
    lookahead_of,
    table_of,
)
from graphbraid.distributed.shards.pipeline import ShardedPipeline
from graphbraid.errors import ConfigError, RankError
from graphbraid.graph import ScaledFeatures
from graphbraid.graph.identity import features_mark
from graphbraid.sampling import SamplerConfig, SeedSchedule
from graphbraid.sampling.cpu import make_pipeline

NUM_NODES = 40
ROW_BYTES = 5 * 4
SLOT_BYTES = 32
NOTES_BYTES = 8 * NUM_NODES
group_of_batches = st.lists(st.lists(st.integers(0, NUM_NODES - 1), max_size=12), max_size=3)


def reads_of(groups: list[list[Tensor]]) -> Tensor:
    """Return how often each row is asked for by groups, as a score."""
    none = torch.empty(0, dtype=torch.int64)
    distinct = (torch.cat([none, *batches]).unique() for batches in groups)
    return torch.bincount(torch.cat([none, *distinct]), minlength=NUM_NODES)


def gathered(rows: FeatureRows, groups: list[list[Tensor]]) -> list[list[Tensor]]:
    """Return the rows of groups, announced as far ahead as is worth it."""
    found = []
    for _, wanted in known_ahead(groups, partial(GroupRows, rows), lookahead_of({0: rows})):
        wanted.ask()
        wanted.begin()
        found.append(wanted.finish())
    return found


def asked_for(rows: FeatureRows, groups: list[list[Tensor]]) -> RowTraffic:
    """Return what is counted where owners are asked for the rows, which do not travel."""
    made = FeatureRows(rows.shards, rows.comm, rows.cache.num_rows)
    for _, wanted in known_ahead(groups, partial(GroupRows, made), lookahead_of({0: made})):
        wanted.ask()
    return made.traffic


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    num_ranks=st.integers(1, 4),
    num_kept=st.sampled_from([0, 1, 5, NUM_NODES]),
    part_of=st.lists(st.integers(0, 3), min_size=NUM_NODES, max_size=NUM_NODES),
    data=st.data(),
)
def test_rows_are_the_owners_and_traffic_is_what_was_foreseen(tmp_path, num_ranks, num_kept, part_of, data):
    graph = graph_of(NUM_NODES, 80, 0)
    assert isinstance(graph.x, Tensor)
    folder = parts_at(tmp_path / "parts", graph, torch.tensor(part_of), 4)
    num_groups = data.draw(st.integers(0, 9))
    groups = [
        data.draw(st.lists(group_of_batches, min_size=num_groups, max_size=num_groups))
        for _ in range(num_ranks)
    ]

    def on_rank(comm: Communicator) -> tuple[RowTraffic, RowTraffic, int]:
        shards = ShardedGraph.open(folder, comm).shards.only
        own = [[torch.tensor(ids, dtype=torch.int64) for ids in group] for group in groups[comm.rank]]
        rows = FeatureRows(shards, comm, num_kept)
        expected = asked_for(rows, own)
        before = comm.sent_bytes
        for found, wanted in zip(gathered(rows, own), own, strict=True):
            for x, ids in zip(found, wanted, strict=True):
                assert torch.equal(x, graph.x[ids])  # type: ignore[index]
        return rows.traffic, expected, comm.sent_bytes - before

    for traffic, expected, sent_bytes in run_threads(num_ranks, on_rank):
        assert traffic == expected
        assert traffic.sent_bytes == sent_bytes == 4 * traffic.sent_ids + ROW_BYTES * traffic.sent_rows
        assert traffic.sent_ids == traffic.asked - traffic.hits
        assert traffic.hits <= traffic.asked <= traffic.remote_reads <= traffic.reads
        assert num_kept or not traffic.hits


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("width", [0, 1, 7])
def test_rows_of_every_dtype_and_width_travel(tmp_path, dtype, width):
    graph = graph_of(NUM_NODES, 80, 0)
    graph = graph.replace(x=(100 * torch.rand(NUM_NODES, width)).to(dtype))
    folder = parts_at(tmp_path / "parts", graph, torch.arange(NUM_NODES) % 3, 3)
    ids = torch.arange(NUM_NODES).flip(0)

    def on_rank(comm: Communicator) -> None:
        shards = ShardedGraph.open(folder, comm).shards
        shards.keep("all" if width else 0)
        for _ in range(2):
            [[found]] = gathered(shards.rows[0], [[ids]])
            assert found.dtype == dtype
            assert torch.equal(found, graph.x[ids])  # type: ignore[index]
        assert shards.traffic.hits == (shards.traffic.asked // 2 if width else 0)

    run_threads(3, on_rank)


def test_rows_of_int8_travel_without_their_scales(tmp_path):
    graph = graph_of(NUM_NODES, 80, 0)
    x = ScaledFeatures.from_dense(torch.randn(NUM_NODES, 5))
    graph = graph.replace(x=x)
    folder = parts_at(tmp_path / "parts", graph, torch.arange(NUM_NODES) % 3, 3)
    ids = torch.arange(NUM_NODES).flip(0)

    def on_rank(comm: Communicator) -> None:
        sharded = ShardedGraph.open(folder, comm)
        assert features_mark(sharded.x) == features_mark(x)
        assert torch.isnan(sharded.dense_x()).all()  # a read past the exchange shows in the loss
        [rows] = sharded.shards.rows.values()
        [[found]] = gathered(rows, [[ids]])
        assert torch.equal(found, x.rows(ids))
        assert rows.traffic.sent_bytes == 4 * rows.traffic.sent_ids + 5 * rows.traffic.sent_rows

    run_threads(3, on_rank)


@pytest.mark.parametrize("lists", ["parts", "whole"])
@pytest.mark.parametrize("num_ranks", [1, 2, 3])
@pytest.mark.parametrize("kept", [0, 12, NUM_NODES])
def test_batches_with_kept_rows_are_those_of_the_whole_graph(tmp_path, lists, num_ranks, kept):
    graph = graph_of(NUM_NODES * 4, 700, 1, hub=True)
    folder = parts_at(tmp_path / "parts", graph, torch.arange(graph.num_nodes) % 4, 4, lists)
    config = SamplerConfig(fanouts=(3, 2))

    def on_rank(comm: Communicator) -> None:
        sharded = ShardedGraph.open(folder, comm)
        sharded.shards.keep(kept and 8 * graph.num_nodes + kept * (ROW_BYTES + SLOT_BYTES))
        pipeline = ShardedPipeline(sharded, config, gathers=True, num_threads=1)
        whole = make_pipeline(graph, config, [graph.x], num_threads=1, depth=2)  # type: ignore[list-item]
        schedule = SeedSchedule(
            seeds=graph.split("train"), batch_size=3, seed=7, part=comm.rank, num_parts=comm.size
        )
        for epoch, stop in ((0, 30), (0, 5), (1, 30)):  # the second is left early
            args = schedule, epoch, 0, schedule.num_steps
            found = pipeline.run(*args)
            for expected in list(whole.run(*args))[:stop]:
                check_equal(next(found), expected)
            found.close()  # type: ignore[attr-defined]

    run_threads(num_ranks, on_rank)


@pytest.mark.parametrize("lists", ["parts", "whole"])
@pytest.mark.parametrize("kept", [0, 12])
def test_an_epoch_sends_what_is_foreseen(tmp_path, lists, kept):
    graph = graph_of(NUM_NODES * 4, 700, 1, hub=True)
    folder = parts_at(tmp_path / "parts", graph, torch.arange(graph.num_nodes) % 4, 4, lists)
    config = SamplerConfig(fanouts=(3, 2))

    def on_rank(comm: Communicator) -> list[int]:
        sharded = ShardedGraph.open(folder, comm)
        sharded.shards.keep(kept and 8 * graph.num_nodes + kept * (ROW_BYTES + SLOT_BYTES))
        schedule = SeedSchedule(  # an odd number of steps, the last of which has seeds for one rank alone
            seeds=graph.split("train")[:73], batch_size=4, part=comm.rank, num_parts=comm.size
        )
        pipeline = ShardedPipeline(sharded, config, gathers=True, num_threads=1)
        expected = pipeline.foreseen(schedule, range(2))
        assert sharded.shards.traffic == RowTraffic()  # nothing travelled for it
        num_batches = len(list(pipeline.run(schedule, 0, 0, schedule.num_steps, then=1)))
        assert num_batches == 2 * schedule.num_steps
        assert sharded.shards.traffic == expected
        assert len(table_of([expected]).splitlines()) == 2
        return [expected.sent_bytes, expected.hits]

    found = run_threads(3, on_rank)
    assert all(sent > 0 and (hits > 0) == (kept > 0) for sent, hits in found)


def test_look_ahead_sends_no_more_rows_than_the_best_choice_that_stays(tmp_path):
    graph = graph_of(NUM_NODES, 80, 0)
    folder = parts_at(tmp_path / "parts", graph, torch.arange(NUM_NODES) % 2, 2)
    draw = torch.Generator().manual_seed(0)
    groups = [[torch.randint(NUM_NODES, (9,), generator=draw)] for _ in range(9)]

    def on_rank(comm: Communicator) -> list[int]:
        shards = ShardedGraph.open(folder, comm).shards.only
        reads = reads_of(groups) * (shards.owners(torch.arange(NUM_NODES)) != comm.rank)
        rows = FeatureRows(shards, comm, 6)
        best = reads.topk(6).values  # each of them would come once, before the first group
        return [asked_for(rows, groups).sent_ids, 6 + int(reads.sum() - best.sum())]

    for sent, by_best in run_threads(2, on_rank):
        assert sent <= by_best


def test_what_cannot_be_kept_is_refused(tmp_path):
    graph = graph_of(NUM_NODES, 80, 0)
    folder = parts_at(tmp_path / "parts", graph, torch.arange(NUM_NODES) % 2, 2)
    for budget, why in ((NOTES_BYTES, "hold no row"), ("a lot", "the memory for rows")):
        with pytest.raises(ConfigError, match=why):
            run_threads(2, lambda comm, kept=budget: ShardedGraph.open(folder, comm).shards.keep(kept))


def test_an_owner_that_fails_while_others_wait_for_its_rows_ends_them(tmp_path):
    graph = graph_of(NUM_NODES, 80, 0)
    folder = parts_at(tmp_path / "parts", graph, torch.arange(NUM_NODES) % 2, 2)
    told = []

    def on_rank(comm: Communicator) -> None:
        shards = ShardedGraph.open(folder, comm).shards
        shards.keep("all")
        if comm.rank == 1:
            raise ValueError("a mistake of rank 1")
        try:
            gathered(shards.rows[0], [[torch.arange(NUM_NODES)]])
        except RankError as error:
            told.append(str(error))
            raise

    with pytest.raises((ValueError, RankError)):
        run_threads(2, on_rank)
    assert told == [] or "another rank has failed" in told[0]
