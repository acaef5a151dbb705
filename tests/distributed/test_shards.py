"""Mini-batches drawn from parts have the bits of those of the whole graph, for any parts and ranks."""

import itertools
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.distributed.threads import run_threads
from tests.kernels import needs_kernels

from graphbraid import Graph, datasets, native
from graphbraid.distributed import Communicator, Partition, partition, save_partition
from graphbraid.distributed.shards import sharded_graph
from graphbraid.distributed.shards.pipeline import AHEAD, GROUP, ShardedPipeline
from graphbraid.distributed.shards.sharded_graph import ShardedGraph
from graphbraid.errors import ConfigError, DataError
from graphbraid.graph.csc import Csc, degrees_and_loops
from graphbraid.graph.schema import Columns, Schema
from graphbraid.sampling import SamplerConfig, SeedSchedule
from graphbraid.sampling.cpu import make_pipeline
from graphbraid.sampling.links.negatives import NegativeDraws, NegativeSampling
from graphbraid.sampling.minibatch.mini_batch import MiniBatch
from graphbraid.sampling.reference import relabel
from graphbraid.sampling.sample import PreparedBatch
from graphbraid.sampling.source import BatchSource
from graphbraid.train import TrainConfig
from graphbraid.train.step.links.data import LinkData


def graph_of(num_nodes: int, num_edges: int, seed: int, *, hub: bool = False) -> Graph:
    """Return a random graph with features and weights of its edges, features, labels and splits.

    With a hub, node 0 has most edges.
    """
    draw = np.random.default_rng(seed)
    into = draw.integers(0, num_nodes, num_edges)
    if hub:
        into[: num_edges // 2] = 0
    edges = torch.from_numpy(np.stack([draw.integers(0, num_nodes, num_edges), into]))
    made = Graph.from_edge_index(
        edges,
        num_nodes=num_nodes,
        x=torch.from_numpy(draw.standard_normal((num_nodes, 5), dtype=np.float32)),
        y=torch.from_numpy(draw.integers(0, 3, num_nodes)),
        splits={"train": torch.from_numpy(draw.permutation(num_nodes)[: max(1, num_nodes // 2)].copy())},
    )
    weight = torch.from_numpy(draw.random(num_edges, dtype=np.float32))
    csc = Csc(made.csc.indptr, made.csc.indices, num_nodes, weight)
    attr = torch.from_numpy(draw.standard_normal((num_edges, 3), dtype=np.float32)).half()
    return made.replace(csc=csc, edge_id=None, edge_attr=attr)


def parts_at(folder: Path, graph: Graph, part_of: torch.Tensor, num_parts: int, lists: Any = "parts") -> Path:
    """Save a partition with rows, and return its folder."""
    made = Partition(
        part_of=part_of.to(torch.int32), num_parts=num_parts, strategy="random", balance="nodes", attempts=()
    )
    save_partition(graph, made, folder, rows=lists, if_exists="replace")
    return folder


def check_equal(found: PreparedBatch, whole: PreparedBatch) -> None:
    """Check that two batches have the same bits."""
    assert found.step == whole.step
    assert torch.equal(found.input_id, whole.input_id)
    here, there = found.sampled, whole.sampled
    for ids, ids_whole in zip_longest(here.n_id_by_type, there.n_id_by_type):
        assert torch.equal(ids, ids_whole)
    assert here.nodes_by_type == there.nodes_by_type
    assert here.counts_by_relation == there.counts_by_relation
    of_relations = zip_longest(here.edges_by_relation, there.edges_by_relation)
    for mine, theirs in itertools.chain(*(zip_longest(*edges) for edges in of_relations)):
        assert torch.equal(mine.indptr, theirs.indptr)
        assert torch.equal(mine.indices, theirs.indices)
        assert (mine.positions is None) == (theirs.positions is None)
        assert mine.positions is None or torch.equal(mine.positions, theirs.positions)
    for x, x_whole in zip_longest(found.x, whole.x):
        assert (x is None) == (x_whole is None)
        assert x is None or torch.equal(x, x_whole)


def check_edge_rows(found: PreparedBatch, graph: Graph, source: BatchSource, layout: str) -> None:
    """Check what a batch has of its edges, and the weights of its blocks."""
    positions = found.sampled.positions()
    if positions is None or graph.edge_attr is None:
        return
    assert graph.csc.weight is not None
    batch = MiniBatch(source, found, layout=layout, epoch=0)
    assert torch.equal(batch.edge_attr, graph.edge_attr[positions])
    assert torch.equal(batch.edge_weight, graph.csc.weight[positions])
    assert torch.equal(batch.e_id, positions)
    whole = MiniBatch(BatchSource(graph=graph), found._replace(edge_rows=None), layout=layout, epoch=0)
    for mine, theirs in zip_longest(batch.blocks, whole.blocks):
        assert torch.equal(mine.weight, theirs.weight)


def check_edges_by_relation(found: PreparedBatch, graph: Graph, source: BatchSource, layout: str) -> None:
    """Check what a batch of a graph with types has of its edges, and the weights of its blocks."""
    if found.edge_rows is None:
        source = BatchSource(graph=source.graph)
    batch = MiniBatch(source, found, layout=layout, epoch=0, input_type="b")
    whole = MiniBatch(
        BatchSource(graph=graph), found._replace(edge_rows=None), layout=layout, epoch=0, input_type="b"
    )
    for name in ("edge_attr_dict", "edge_weight_dict"):
        mine, theirs = getattr(batch, name, {}), getattr(whole, name, {})
        assert list(mine) == list(theirs)
        assert all(torch.equal(mine[one], theirs[one]) for one in mine)
    for of_layer, of_whole in zip_longest(batch.blocks, whole.blocks):
        for one, block in of_layer.items():
            weight = of_whole[one].weight
            assert block.weight is weight is None or torch.equal(block.weight, weight)


def check_ranks(
    folder: Path,
    graph: Graph,
    config: SamplerConfig,
    num_ranks: int,
    batch_size: int,
    *,
    epochs: int = 1,
    reach: int | None = None,
    seed_type: str | None = None,
) -> None:
    """Check all batches of all ranks against those of the whole graph."""
    seeds = graph.nodes_of(seed_type or "node").split("train")

    def on_rank(comm: Communicator) -> None:
        sharded = ShardedGraph.open(folder, comm)
        of_edges = ("edge_weight", "edge_attr", "blocks" if graph.is_typed else "e_id")
        of_edges = of_edges if config.return_edge_id else ()
        pipeline = ShardedPipeline(
            sharded, config, gathers=True, num_threads=1, of_edges=of_edges, seed_type=seed_type
        )
        source = BatchSource(graph=sharded, pipeline=lambda: pipeline)
        x: Any = [graph.nodes_of(one).x for one in graph.node_types]
        whole = make_pipeline(graph, config, x, num_threads=1, depth=2, seed_type=seed_type)
        schedule = SeedSchedule(
            seeds=seeds,
            batch_size=batch_size,
            shuffle=True,
            seed=7,
            part=comm.rank,
            num_parts=comm.size,
            reach=reach,
        )
        num_steps = schedule.num_steps
        # Where each rank has a share of some batch, epochs may follow each other in one iteration.
        joins = min(batch_size, seeds.numel()) >= num_ranks
        runs = [(0, epochs - 1)] if joins else [(epoch, 0) for epoch in range(epochs)]
        drawn = (batch for epoch, then in runs for batch in pipeline.run(schedule, epoch, 0, num_steps, then))
        wanted = (batch for epoch in range(epochs) for batch in whole.run(schedule, epoch, 0, num_steps))
        for found, expected in zip_longest(drawn, wanted):
            check_equal(found, expected)
            if not graph.is_typed:
                check_edge_rows(found, graph, source, config.layout)
            elif config.return_edge_id:
                check_edges_by_relation(found, graph, source, config.layout)

    run_threads(num_ranks, on_rank)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    num_nodes=st.integers(4, 60),
    degree=st.integers(0, 8),
    num_parts=st.integers(1, 4),
    data=st.data(),
    blocks=st.booleans(),
    replace=st.booleans(),
    weighted=st.booleans(),
    keeps=st.booleans(),
    whole_lists=st.booleans(),
    reach=st.none() | st.integers(1, 4),
)
def test_batches_have_the_bits_of_one_rank_without_parts(
    tmp_path, num_nodes, degree, num_parts, data, blocks, replace, weighted, keeps, whole_lists, reach
):
    graph = graph_of(num_nodes, num_nodes * degree, num_nodes, hub=True)
    part_of = torch.tensor(
        data.draw(st.lists(st.integers(0, num_parts - 1), min_size=num_nodes, max_size=num_nodes))
    )
    least = 0 if replace else -1
    fanouts = data.draw(st.lists(st.integers(least, 5), min_size=1, max_size=3))
    num_ranks = data.draw(st.integers(1, num_parts))
    config = SamplerConfig(
        fanouts=tuple(fanouts),
        layout="blocks" if blocks else "subgraph",
        replace=replace,
        weighted=weighted,
        return_edge_id=keeps,
    )
    folder = parts_at(tmp_path / "parts", graph, part_of, num_parts, "whole" if whole_lists else "parts")
    reach = None if blocks else reach  # of whole batches, of which a rank keeps its share
    check_ranks(folder, graph, config, num_ranks, max(num_ranks, num_nodes // 5), reach=reach)


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4])
def test_many_steps_of_several_epochs_are_those_of_the_whole_graph(tmp_path, num_ranks):
    graph = datasets.load("braid-10k")
    folder = tmp_path / "parts"
    save_partition(graph, partition(graph, 4), folder, rows="parts")
    steps = graph.split("train").numel() // 8
    assert steps > GROUP * AHEAD + 1  # otherwise nothing waits for its turn
    check_ranks(folder, graph, SamplerConfig(fanouts=(4, 3)), num_ranks, 8, epochs=2)


def test_an_empty_part_and_a_part_without_seeds_answer_the_others(tmp_path):
    graph = graph_of(40, 200, 3)
    part_of = torch.full((40,), 2)  # parts 0 and 3 own nothing
    rest = torch.tensor(sorted(set(range(40)) - set(graph.split("train").tolist())))
    part_of[rest] = 1  # part 2 has all seeds, part 1 has none
    folder = parts_at(tmp_path / "parts", graph, part_of, 4)
    check_ranks(folder, graph, SamplerConfig(fanouts=(3, 2), layout="blocks"), 4, 4)


def test_a_hub_larger_than_a_block_of_the_file_is_written_and_drawn(tmp_path, monkeypatch):
    from graphbraid.distributed.parts import rows

    monkeypatch.setattr(rows, "_BLOCK_BYTES", 64)  # four edges, or three rows
    graph = graph_of(30, 400, 5, hub=True)
    folder = parts_at(tmp_path / "parts", graph, torch.arange(30) % 3, 3)
    check_ranks(folder, graph, SamplerConfig(fanouts=(-1, 4), return_edge_id=True), 3, 6)


def test_ranks_whose_last_step_is_empty_go_on_answering(tmp_path):
    graph = graph_of(42, 200, 1)  # 21 seeds: one is left for the last step
    folder = parts_at(tmp_path / "parts", graph, torch.arange(42) % 4, 4)
    check_ranks(folder, graph, SamplerConfig(fanouts=(3,)), 4, 4, epochs=2)


def test_an_iteration_that_all_ranks_leave_early_does_not_disturb_the_next(tmp_path):
    graph = graph_of(60, 300, 2)
    folder = parts_at(tmp_path / "parts", graph, torch.arange(60) % 2, 2)
    config = SamplerConfig(fanouts=(3, 3))

    def on_rank(comm: Communicator) -> None:
        pipeline = ShardedPipeline(ShardedGraph.open(folder, comm), config, gathers=True, num_threads=1)
        schedule = SeedSchedule(seeds=graph.split("train"), batch_size=2, part=comm.rank, num_parts=2)
        whole = make_pipeline(graph, config, [graph.x], num_threads=1, depth=2)  # type: ignore[list-item]
        for stop in (1, 5, 8):
            left = pipeline.run(schedule, 0, 0, schedule.num_steps)
            for expected in list(whole.run(schedule, 0, 0, schedule.num_steps))[:stop]:
                check_equal(next(left), expected)
            left.close()  # type: ignore[attr-defined]

    run_threads(2, on_rank)


def _depth(generator: Any) -> int:
    inner = generator.gi_yieldfrom
    return 0 if inner is None else 1 + _depth(inner)


@pytest.mark.parametrize("num_kept", [0, 9])
@pytest.mark.parametrize(
    ("num_nodes", "batch_size", "after", "meets"),
    [
        *((44, 3, after, False) for after in (3, 6, 7)),  # within an epoch, before and after its last step
        *((50, 3, 1, True), (50, 2, 0, True)),
    ],
)
def test_another_pipeline_may_run_between_the_batches_of_epochs_that_follow_each_other(
    tmp_path, num_kept, num_nodes, batch_size, after, meets
):
    """As an evaluation does, which a callback asks for.

    If ranks meet in each step, as in training, one without a share of the last batch waits for the others.
    """
    graph = graph_of(num_nodes, 300, 2)
    seeds = graph.split("train")
    num_batches = -(-seeds.numel() // batch_size)
    assert seeds.numel() % batch_size == 1  # a last batch of one, which the first rank does not share
    folder = parts_at(tmp_path / "parts", graph, torch.arange(num_nodes) % 2, 2)
    config = SamplerConfig(fanouts=(3, 3))

    def on_rank(comm: Communicator) -> None:
        sharded = ShardedGraph.open(folder, comm)
        if num_kept:
            sharded.shards.keep(8 * num_nodes + num_kept * (5 * 4 + 32))
        training, other = (ShardedPipeline(sharded, config, gathers=True, num_threads=1) for _ in range(2))
        schedule = SeedSchedule(seeds=seeds, batch_size=batch_size, part=comm.rank, num_parts=2)
        whole = make_pipeline(graph, config, [graph.x], num_threads=1, depth=2)  # type: ignore[list-item]
        assert schedule.num_steps == num_batches - 1 + comm.rank
        drawn = training.run(schedule, 0, 0, schedule.num_steps, then=2)
        depths = set()
        for epoch in range(3):
            expected = whole.run(schedule, epoch, 0, schedule.num_steps)
            for step in range(num_batches):
                if step == after:
                    check_equal(next(other.run(schedule, 9, 0, 1)), next(whole.run(schedule, 9, 0, 1)))
                if step < schedule.num_steps:
                    check_equal(next(drawn), next(expected))
                if meets:
                    comm.barrier()
            depths.add(_depth(drawn))
        assert next(drawn, None) is None
        assert len(depths) == 1, "generators are nested deeper with each turn"

    run_threads(2, on_rank)


@pytest.mark.parametrize("lists", ["parts", "whole"])
def test_rows_that_exceed_the_memory_are_read_from_disk(tmp_path, lists, monkeypatch):
    """Mapped, their pages would be evicted all the time; the batches are the same."""
    graph = graph_of(60, 300, 4)
    folder = parts_at(tmp_path / "parts", graph, torch.arange(60) % 3, 4, lists)  # part 3 is empty
    free = 4 * 60 * 5 * 4 // 3  # of which all rows take three quarters
    for left, reads in ((free, False), (free - 2, True), (None, False)):
        monkeypatch.setattr(sharded_graph, "free_memory_bytes", lambda left=left: left)
        found = run_threads(2, lambda comm: ShardedGraph.open(folder, comm).shards.only.table.on_disk)
        assert [any(disk is not None for disk in disks) for disks in found] == [reads, reads]
        check_ranks(folder, graph, SamplerConfig(fanouts=(3, 2)), 2, 6)


def test_an_error_in_one_ranks_thread_reaches_its_caller(tmp_path):
    graph = graph_of(20, 60, 2)
    folder = parts_at(tmp_path / "parts", graph, torch.arange(20) % 2, 2)
    pipeline = ShardedPipeline(
        ShardedGraph.open(folder), SamplerConfig(fanouts=(3,)), gathers=True, num_threads=1
    )
    schedule = SeedSchedule(seeds=torch.tensor([3, 99]), batch_size=2)
    with pytest.raises(IndexError):
        next(pipeline.run(schedule, 0, 0, 1))


@pytest.mark.parametrize("lists", ["parts", "whole"])
def test_the_graph_of_a_rank_says_what_the_whole_graph_is(tmp_path, lists):
    from graphbraid.train.run_folder.contract import graph_identity

    columns = {"node": Columns(names=tuple("abcde")), ("node", "to", "node"): Columns(names=("f", "g", "h"))}
    graph = graph_of(40, 200, 3).replace(schema=Schema(columns=columns))
    folder = parts_at(tmp_path / "parts", graph, torch.arange(40) % 3, 3, lists)
    sharded = ShardedGraph.open(folder)
    assert sharded.schema == graph.schema
    assert graph_identity(sharded) == graph_identity(graph)
    assert (sharded.num_nodes, sharded.num_edges, sharded.num_features) == (40, 200, 5)
    assert torch.isnan(sharded.dense_x()).all()  # a read past the exchange shows in the loss
    assert sharded.edge_attr is not None
    assert sharded.edge_attr.shape == (200, 3)
    assert torch.isnan(sharded.edge_attr).all() == (lists == "parts")


def test_more_ranks_than_parts_are_refused(tmp_path):
    folder = parts_at(tmp_path / "parts", graph_of(10, 30, 0), torch.zeros(10), 1)
    with pytest.raises(ConfigError, match="has 1 parts, and there are 2 ranks"):
        run_threads(2, lambda comm: ShardedGraph.open(folder, comm))


@pytest.mark.parametrize("name", ["x.npy", "indices.npy", "first_edge.npy", "weight.npy", "edge_attr.npy"])
@pytest.mark.parametrize("harm", ["flipped", "truncated", "missing"])
def test_a_damaged_file_of_a_part_is_named(tmp_path, name, harm):
    folder = parts_at(tmp_path / "parts", graph_of(30, 90, 0), torch.arange(30) % 2, 2)
    file = folder / "part-00001" / name
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    if harm == "missing":
        file.unlink()
    else:
        file.write_bytes(data[:-1] if harm == "truncated" else data)
    with pytest.raises(DataError, match=name):
        ShardedGraph.open(folder)


@pytest.mark.parametrize("lists", ["parts", "whole"])
@pytest.mark.parametrize("changed", ["x", "edge_attr", "edges"])
def test_rows_of_another_graph_that_was_divided_alike_are_refused(tmp_path, changed, lists):
    graph, part_of = graph_of(30, 90, 0), torch.arange(30) % 2
    assert isinstance(graph.x, torch.Tensor)
    assert graph.edge_attr is not None
    others = {
        "x": graph.replace(x=graph.x + 1),
        "edge_attr": graph.replace(edge_attr=graph.edge_attr + 1),
        "edges": graph_of(30, 90, 1),
    }
    folder = parts_at(tmp_path / "parts", graph, part_of, 2, lists)
    other = parts_at(tmp_path / "other", others[changed], part_of, 2, lists)
    for file in (other / "part-00001").iterdir():
        (folder / "part-00001" / file.name).write_bytes(file.read_bytes())
    with pytest.raises(DataError, match="part-00001 has the rows of another graph that was divided alike"):
        ShardedGraph.open(folder)


def test_rows_of_another_partition_are_refused(tmp_path):
    graph = graph_of(30, 90, 0)
    folder = parts_at(tmp_path / "parts", graph, torch.arange(30) % 2, 2)
    other = parts_at(tmp_path / "other", graph, torch.arange(30) // 15, 2)
    for file in (other / "part-00001").iterdir():
        (folder / "part-00001" / file.name).write_bytes(file.read_bytes())
    with pytest.raises(DataError, match="of another partition"):
        ShardedGraph.open(folder)
    (folder / "shared.json").write_bytes((other / "shared.json").read_bytes())
    with pytest.raises(DataError, match=r"shared\.json is of another partition"):
        ShardedGraph.open(folder)


@pytest.mark.parametrize("differ", ["partition", "lists"])
def test_ranks_that_open_parts_of_different_partitions_are_told_so(tmp_path, differ):
    """Else each would ask the wrong owners, who have another row, or none, for the node."""
    graph, halves = graph_of(30, 90, 0), torch.arange(30) // 15
    parts_at(tmp_path / "0", graph, torch.arange(30) % 2, 2)
    if differ == "partition":
        parts_at(tmp_path / "1", graph, halves, 2)
    else:
        parts_at(tmp_path / "1", graph, torch.arange(30) % 2, 2, "whole")
    with pytest.raises(ConfigError, match=f"rank 0 has {differ} .*open the same parts on all ranks"):
        run_threads(2, lambda comm: ShardedGraph.open(tmp_path / str(comm.rank), comm))


def test_a_partition_without_rows_says_how_to_make_some(tmp_path):
    graph = graph_of(30, 90, 0)
    save_partition(graph, partition(graph, 2), tmp_path / "parts")
    with pytest.raises(DataError, match="--rows parts"):
        ShardedGraph.open(tmp_path / "parts")


def test_graphs_whose_batches_cannot_be_drawn_from_parts_are_refused(tmp_path):
    graph = graph_of(30, 90, 0)
    made = partition(graph, 2)
    for unfit, why in ((graph.replace(x=None), "dense features"), (graph.csc, "needs the Graph")):
        with pytest.raises(DataError, match=why):
            save_partition(unfit, made, tmp_path / "parts", rows="parts")
    assert not (tmp_path / "parts").exists()


@given(known=st.lists(st.integers(0, 20)), found=st.lists(st.integers(0, 40)), first=st.integers(0, 1 << 60))
def test_the_kernel_numbers_nodes_as_its_twin_does(known, found, first):
    kernels = native.kernels()
    if kernels is None:
        return  # the twin alone runs
    ids, others = (torch.tensor([*one, first], dtype=torch.int64) for one in (known, found))
    expected = relabel(ids.numpy(), others.numpy())
    for mine, theirs in zip(kernels.relabel(ids, others), expected, strict=True):
        assert mine.tolist() == theirs.tolist()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    part_of=st.lists(st.integers(0, 2), min_size=1, max_size=200), num_ranks=st.integers(1, 3), data=st.data()
)
def test_places_among_own_nodes_are_found_and_others_nodes_have_none(tmp_path, part_of, num_ranks, data):
    """Also the twin's; a rank may own no node, and the last word of bits may be full or nearly empty."""
    graph = graph_of(len(part_of), 3, 0)
    folder = parts_at(tmp_path / "parts", graph, torch.tensor(part_of), 3)
    ids = torch.tensor(data.draw(st.lists(st.integers(0, len(part_of) - 1))), dtype=torch.int64)

    of_ranks = run_threads(num_ranks, lambda comm: ShardedGraph.open(folder, comm).shards.only)
    for with_kernels in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            if not with_kernels:
                patch.setattr(sharded_graph.native, "kernels", lambda: None)
            for shards in of_ranks:
                known = {node: place for place, node in enumerate(shards.owned.tolist())}
                assert shards.own_places(ids).tolist() == [known.get(node, -1) for node in ids.tolist()]


@needs_kernels
def test_a_node_that_is_none_has_no_place():
    for node in (-1, 64):
        with pytest.raises(ValueError, match="ids must be nodes"):
            native.kernels().own_places(*torch.tensor([[1], [0], [node], [0]]))  # type: ignore[union-attr]


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    num_nodes=st.integers(3, 40),
    num_edges=st.integers(6, 150),
    size=st.integers(1, 4),
    seed=st.integers(0, 1000),
    weighted=st.booleans(),
)
def test_links_on_parts_have_the_numbers_splits_negatives_and_degrees_of_the_whole_graph(
    num_nodes, num_edges, size, seed, weighted
):
    graph = graph_of(num_nodes, num_edges, seed)
    if not weighted:
        graph = graph.replace(csc=Csc(graph.csc.indptr, graph.csc.indices, num_nodes), edge_attr=None)
    config = TrainConfig(task="link", link_splits=(0.2, 0.2))
    whole = LinkData.of(graph, config)
    ends, known = whole.links.ends, {*zip(*whole.links.ends.tolist(), strict=True)}
    rejecting = NegativeSampling("binary", 1, reject_edges=True)
    heads = torch.arange(20) % num_nodes
    try:
        expected: Any = NegativeDraws(rejecting, whole.whole, ends).draw(3, heads.numpy(), None)
    except ConfigError as error:
        expected = str(error)
    degree, loop = degrees_and_loops(whole.messages.csc)

    def on_rank(comm: Communicator) -> None:
        data = LinkData.of(ShardedGraph.open(folder, comm), config)
        links, messages = data.links, data.messages
        assert isinstance(messages, ShardedGraph)
        assert torch.equal(messages.degrees["src_degree"], degree)
        assert ("src_loop" in messages.degrees) == (loop is not None)
        if loop is not None:
            torch.testing.assert_close(messages.degrees["src_loop"], loop, rtol=0, atol=0, equal_nan=True)
        assert (messages.edge_id is not None) == weighted
        if weighted:
            assert torch.equal(messages.csc.weight, graph.csc.weight[messages.edge_id])
            assert torch.equal(messages.csc.indices, graph.csc.indices[messages.edge_id])
        assert links.num_nodes == num_edges
        assert links.splits.keys() == whole.links.splits.keys()
        assert all(torch.equal(links.splits[name], at) for name, at in whole.links.splits.items())
        asked = torch.arange(comm.rank, num_edges, 3 + comm.rank)
        assert torch.equal(links.at(asked), ends[:, asked])
        near = {*zip(*links.beside(ends[:, asked]).tolist(), strict=True)}
        src, dst = (set(ends[row, asked].tolist()) for row in (0, 1))
        assert {pair for pair in known if pair[0] in src or pair[1] in dst} <= near <= known
        assert links.parts is not None
        try:
            draws = NegativeDraws(rejecting, data.whole, links.ends, summed=links.parts.summed)
            found: Any = draws.draw(3, heads.numpy(), None)
        except ConfigError as error:
            found = str(error)
        if isinstance(expected, str):
            assert found == expected
        else:
            assert all((mine == theirs).all() for mine, theirs in zip(found, expected, strict=True))

    with TemporaryDirectory() as at:
        folder = Path(at, "parts")
        save_partition(graph, partition(graph, size, strategy="random", seed=seed), folder, rows="parts")
        run_threads(size, on_rank)
