"""Mini-batches of a graph with types that are drawn from parts have the bits of those of the whole graph."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.distributed.test_shards import check_ranks, parts_at
from tests.distributed.threads import run_threads

from graphbraid import Graph
from graphbraid.distributed import Communicator, ShardedGraph
from graphbraid.distributed.shards.feature_rows import num_kept
from graphbraid.distributed.shards.pipeline import ShardedPipeline
from graphbraid.errors import ConfigError, DataError
from graphbraid.graph import EdgeType, SparseFeatures
from graphbraid.graph.schema import Columns, Schema
from graphbraid.sampling import SamplerConfig, SeedSchedule
from graphbraid.train.run_folder.contract import graph_identity

RELATIONS: list[EdgeType] = [
    ("a", "to", "b"),
    ("b", "likes", "b"),
    ("b", "back", "a"),
    ("c", "of", "b"),
    ("a", "also", "b"),
    ("a", "near", "a"),
]


def typed_graph(counts: list[int], degrees: list[int], seed: int = 0, **more: Any) -> Graph:
    """Return a graph of the types a, b and c: b is learned, c has no features and no relation into it."""
    draw = np.random.default_rng(seed)
    numbers = dict(zip("abc", counts, strict=True))
    edges = {}
    for relation, degree in zip(RELATIONS, degrees, strict=True):
        ends = [draw.integers(0, numbers[relation[at]], numbers[relation[2]] * degree) for at in (0, 2)]
        ends[1][: len(ends[1]) // 3] = 0  # a hub
        edges[relation] = torch.from_numpy(np.stack(ends))
    train = torch.from_numpy(draw.permutation(counts[1])[: max(1, counts[1] // 2)].copy())
    return Graph.from_relations(
        edges,
        numbers,
        x={
            "a": torch.from_numpy(draw.standard_normal((counts[0], 3), dtype=np.float32)),
            "b": torch.from_numpy(draw.standard_normal((counts[1], 7), dtype=np.float32)),
        },
        y={"b": torch.from_numpy(draw.integers(0, 3, counts[1]))},
        splits={"b": {"train": train}},
        **more,
    )


def of_edges(graph: Graph) -> dict[str, Any]:
    """Return weights of two relations and features of two, of which one has both."""
    draw = torch.Generator().manual_seed(1)
    counts = {one: graph.edges_of(one).num_edges for one in graph.edge_types}
    weighted, attributed = (RELATIONS[1], RELATIONS[5]), (RELATIONS[0], RELATIONS[5])
    return {
        "edge_weight": {one: torch.rand(counts[one], generator=draw) for one in weighted},
        "edge_attr": {one: torch.rand(counts[one], 2, generator=draw).half() for one in attributed},
    }


@pytest.mark.slow
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    counts=st.lists(st.integers(1, 30), min_size=3, max_size=3),
    degrees=st.lists(st.integers(0, 4), min_size=len(RELATIONS), max_size=len(RELATIONS)),
    num_parts=st.integers(1, 4),
    data=st.data(),
    blocks=st.booleans(),
    replace=st.booleans(),
    keeps=st.booleans(),
    weighted=st.booleans(),
    lists=st.sampled_from(["parts", "whole"]),
    reach=st.none() | st.integers(1, 3),
)
def test_batches_by_relation_have_the_bits_of_one_rank_without_parts(
    tmp_path, counts, degrees, num_parts, data, blocks, replace, keeps, weighted, lists, reach
):
    graph = typed_graph(counts, degrees, sum(counts))
    if keeps or weighted:
        graph = typed_graph(counts, degrees, sum(counts), **of_edges(graph))
    of_nodes = st.lists(st.integers(0, num_parts - 1), min_size=graph.num_nodes, max_size=graph.num_nodes)
    part_of = torch.tensor(data.draw(of_nodes))
    hops = data.draw(st.integers(1, 3))
    fanouts = st.lists(st.integers(0 if replace else -1, 4), min_size=hops, max_size=hops)
    num_ranks = data.draw(st.integers(1, num_parts))
    config = SamplerConfig.for_relations(
        graph.edge_types,
        {relation: data.draw(fanouts) for relation in graph.edge_types},
        layout="blocks" if blocks else "subgraph",
        replace=replace,
        weighted=weighted,
        return_edge_id=keeps,
    )
    folder = parts_at(tmp_path / "parts", graph, part_of, num_parts, lists)
    reach = None if blocks else reach  # of whole batches, of which a rank keeps its share
    size = max(num_ranks, counts[1] // 5)
    check_ranks(folder, graph, config, num_ranks, size, reach=reach, seed_type="b")


def opened(tmp_path: Path, graph: Graph, lists: Any = "parts", num_parts: int = 3) -> Path:
    """Return the folder of parts of a graph, node by node."""
    return parts_at(tmp_path / "parts", graph, torch.arange(graph.num_nodes) % num_parts, num_parts, lists)


@pytest.mark.slow
def test_several_epochs_with_kept_rows_send_what_is_foreseen(tmp_path):
    graph = typed_graph([40, 90, 20], [3, 2, 3, 2, 1, 2])
    folder = opened(tmp_path, graph)
    config = SamplerConfig.for_relations(graph.edge_types, (3, 2))
    budget = 2 * 8 * 130 + 20 * (3 * 4 + 32) + 20 * (7 * 4 + 32)

    def on_rank(comm: Communicator) -> tuple[int, int]:
        sharded = ShardedGraph.open(folder, comm)
        sharded.shards.keep(budget)
        seeds = graph.nodes_of("b").split("train")
        schedule = SeedSchedule(seeds=seeds, batch_size=3, part=comm.rank, num_parts=comm.size)
        pipeline = ShardedPipeline(sharded, config, gathers=True, num_threads=1, seed_type="b")
        expected = pipeline.foreseen(schedule, range(2))
        num_batches = len(list(pipeline.run(schedule, 0, 0, schedule.num_steps, then=1)))
        assert num_batches == 2 * schedule.num_steps
        assert sharded.shards.traffic == expected
        return expected.sent_bytes, expected.hits

    assert all(sent > 0 and hits > 0 for sent, hits in run_threads(3, on_rank))


def test_a_budget_goes_to_the_types_whose_rows_it_holds(tmp_path):
    graph = typed_graph([10, 60, 9], [1, 1, 1, 1, 1, 1])
    folder = opened(tmp_path, graph)
    [shards, *_] = run_threads(3, lambda comm: ShardedGraph.open(folder, comm).shards)
    others = [one.num_nodes - one.owned.numel() for one in shards.by_type]
    assert num_kept("all", shards.by_type) == [*others[:2], 0]  # the last type has no rows
    few, some = (num_kept(size, shards.by_type) for size in (800, 2000))
    assert few == [0, (800 - 8 * 60) // (7 * 4 + 32), 0]  # a share would hold no row of the first type
    assert some[0] > 0 < some[1]
    assert 2 * 8 * 35 + some[0] * (3 * 4 + 32) + some[1] * (7 * 4 + 32) in range(2000 - 44 - 60, 2001)
    with pytest.raises(ConfigError, match="hold no row"):
        shards.keep(100)


def test_the_graph_of_a_rank_says_what_the_whole_graph_is(tmp_path):
    graph = typed_graph([8, 20, 5], [2, 2, 2, 2, 2, 2])
    sharded = ShardedGraph.open(opened(tmp_path, graph, "whole"))
    assert graph_identity(sharded) == graph_identity(graph)
    assert (sharded.num_nodes, sharded.num_edges) == (graph.num_nodes, graph.num_edges)
    assert (sharded.node_types, sharded.edge_types) == (graph.node_types, graph.edge_types)
    a, b, c = (sharded.nodes_of(one).x for one in "abc")
    assert c is None
    for x in (a, b):  # a read past the exchange shows in the loss
        assert isinstance(x, torch.Tensor)
        assert torch.isnan(x).all()
    sharded = ShardedGraph.open(opened(tmp_path, graph))
    assert sharded.num_edges == graph.num_edges
    assert sharded.csc.num_edges == graph.num_edges  # all parts are here


def test_features_of_edges_are_nan_until_their_owners_send_them(tmp_path):
    graph = typed_graph([8, 20, 5], [2, 2, 2, 2, 2, 2])
    graph = typed_graph([8, 20, 5], [2, 2, 2, 2, 2, 2], **of_edges(graph))
    sharded = ShardedGraph.open(opened(tmp_path, graph))
    assert graph_identity(sharded) == {
        name: value for name, value in graph_identity(graph).items() if name != "array edge_id"
    }
    attr = sharded.edges_of(RELATIONS[0]).edge_attr
    assert attr is not None
    assert attr.shape == (40, 2)
    assert torch.isnan(attr).all()


def test_features_of_edges_that_are_too_few_are_refused(tmp_path):
    graph = typed_graph([8, 20, 5], [2, 2, 2, 2, 2, 2])
    folder = opened(tmp_path, typed_graph([8, 20, 5], [2, 2, 2, 2, 2, 2], **of_edges(graph)))
    manifest = folder / "part-00001" / "rows.json"
    text = manifest.read_text()
    manifest.write_text(text.replace('"edge5_attr":', '"edge4_attr":'))
    with pytest.raises(DataError, match=r"edge5_attr is missing, and must have \d+ rows|checksum"):
        ShardedGraph.open(folder)


def test_features_that_are_not_dense_are_refused_by_type(tmp_path):
    graph = typed_graph([8, 20, 5], [2, 2, 2, 2, 2, 2])
    assert graph.types is not None
    sparse = SparseFeatures.from_dense(torch.eye(8))
    nodes = graph.types.nodes | {"a": replace(graph.types.nodes["a"], x=sparse)}
    with pytest.raises(DataError, match="those of 'a' are SparseFeatures"):
        opened(tmp_path, graph.replace(types=replace(graph.types, nodes=nodes)))


def test_seeds_of_no_type_are_refused(tmp_path):
    graph = typed_graph([8, 20, 5], [2, 2, 2, 2, 2, 2])
    sharded = ShardedGraph.open(opened(tmp_path, graph))
    config = SamplerConfig.for_relations(graph.edge_types, (2,))
    with pytest.raises(ConfigError, match="say of which node type seeds are: a, b, c"):
        ShardedPipeline(sharded, config, gathers=True, num_threads=1)


def test_nodes_that_are_no_sources_are_drawn_for(tmp_path):
    """A type may have relations into it alone."""
    ends = torch.randint(12, (2, 40), generator=torch.Generator().manual_seed(0))
    graph = Graph.from_relations(
        {("a", "to", "b"): ends},
        {"a": 12, "b": 12},
        x={"a": torch.rand(12, 3), "b": torch.rand(12, 2)},
        splits={"b": {"train": torch.arange(9)}},
    )
    folder = opened(tmp_path, graph)
    config = SamplerConfig.for_relations(graph.edge_types, (3, 2))
    check_ranks(folder, graph, config, 2, 4, seed_type="b")


@pytest.mark.parametrize("lists", ["parts", "whole"])
def test_features_weights_and_splits_may_be_called_like_types_and_types_like_arrays(tmp_path, lists):
    """Files of parts have the types' numbers in their names, so that no name hides another."""
    draw = torch.Generator().manual_seed(0)
    to, back = ("x", "edge_attr", "indices"), ("indices", "x", "x")
    graph = Graph.from_relations(
        {one: torch.randint(12, (2, 40), generator=draw) for one in (to, back)},
        {"x": 12, "indices": 12},
        x={"x": torch.rand(12, 3, generator=draw), "indices": torch.rand(12, 2, generator=draw)},
        splits={"indices": {"train": torch.arange(9), "x": torch.arange(9, 12)}},
        edge_weight={to: torch.rand(40, generator=draw)},
        edge_attr={back: torch.rand(40, 2, generator=draw)},
        weight_name={to: "edge_attr"},
    )
    columns = {"x": Columns(names=("indices", "x", "edge_attr"))}
    graph = graph.replace(schema=Schema(columns=columns))
    folder = opened(tmp_path, graph, lists)
    config = SamplerConfig.for_relations(graph.edge_types, (3, 2), return_edge_id=True)
    check_ranks(folder, graph, config, 2, 4, seed_type="indices")
    sharded = ShardedGraph.open(folder)
    assert sharded.schema == graph.schema
    assert sharded.edges_of(to).weight_name == "edge_attr"
    assert torch.equal(sharded.nodes_of("indices").split("x"), torch.arange(9, 12))
