"""Parts of a schedule: shares of each step's seeds, which unite to the whole batch."""

import dataclasses
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.kernels import needs_kernels
from tests.sampling.graphs import power_law_csc

from graphbraid import native
from graphbraid.errors import ConfigError
from graphbraid.features.scores import walks
from graphbraid.features.scores.walks import batch_reads
from graphbraid.graph import Graph
from graphbraid.loader import LoaderSettings
from graphbraid.sampling import SamplerConfig, SeedSchedule
from graphbraid.sampling.batch_seeds import Constraints
from graphbraid.sampling.config import part_of
from graphbraid.sampling.cpu import make_pipeline

CSC = power_law_csc(300, 2000)
SAMPLER = SamplerConfig(fanouts=(4, 3), layout="blocks")


@st.composite
def schedules(draw):
    batch_size = draw(st.integers(1, 40))
    return SeedSchedule(
        seeds=torch.arange(draw(st.integers(0, 150))).flip(0),
        batch_size=batch_size,
        shuffle=draw(st.booleans()),
        seed=draw(st.integers(0, 9)),
        num_parts=draw(st.integers(1, min(batch_size, 5))),
    )


def parts_of(schedule):
    return [dataclasses.replace(schedule, part=part) for part in range(schedule.num_parts)]


@given(schedule=schedules(), epoch=st.integers(0, 3))
def test_parts_unite_to_the_whole_batches(schedule, epoch):
    whole, parts = schedule.whole, parts_of(schedule)
    assert whole.num_parts == 1
    for step in range(whole.num_steps):
        own = [part.positions_of(epoch, step) for part in parts if step < part.num_steps]
        assert torch.cat(own).equal(whole.positions_of(epoch, step))
        lengths = [len(positions) for positions in own]
        assert min(lengths) > 0
        assert max(lengths) - min(lengths) <= 1
        assert max(lengths) <= max(part.most_seeds for part in parts)
    assert sum(part.num_used for part in parts) == whole.num_used == len(schedule.seeds)
    assert {whole.num_steps - part.num_steps for part in parts} <= {0, 1}


def compiled_and_reference(sampler, part, epoch):
    """Batches of a part's epoch by the compiled threads beside those of the reference, and the former."""
    with mock.patch.object(native, "kernels", lambda: None):
        reference = make_pipeline(Graph(csc=CSC), sampler, num_threads=2, depth=3)
    compiled = make_pipeline(Graph(csc=CSC), sampler, num_threads=2, depth=3)
    runs = (pipeline.run(part, epoch, 0, part.num_steps) for pipeline in (compiled, reference))
    for step, (ours, twin) in enumerate(zip(*runs, strict=True)):
        assert ours.step == twin.step == step
        assert ours.input_id.equal(part.positions_of(epoch, step))
        assert ours.input_id.equal(twin.input_id)
        yield ours, twin, compiled


@given(schedule=schedules(), epoch=st.integers(0, 3))
def test_the_compiled_threads_and_the_reference_give_the_same_parts(schedule, epoch):
    for part in filter(lambda part: part.num_steps, parts_of(schedule)):
        for ours, twin, compiled in compiled_and_reference(SAMPLER, part, epoch):
            with mock.patch.object(native, "kernels", lambda: None):
                assert ours.input_id.equal(part.positions_of(epoch, ours.step))
            assert ours.sampled.n_id.equal(twin.sampled.n_id)
            [begun] = compiled.begin(part.seeds_of(epoch, ours.step), part.seed, epoch, ours.step)
            assert ours.sampled.n_id.equal(begun.sampled.n_id)  # the numbers of the whole batch's step


def test_a_part_without_seeds_in_the_last_step_does_not_have_it():
    whole = SeedSchedule(seeds=torch.arange(10), batch_size=8, num_parts=4)
    assert [part.num_steps for part in parts_of(whole)] == [1, 2, 1, 2]
    with pytest.raises(ConfigError, match=r"step must be from 0 to 0|step must"):
        whole.positions_of(0, 1)


@pytest.mark.parametrize(
    "wrong", [{"num_parts": 0}, {"num_parts": 9}, {"part": 2, "num_parts": 2}, {"part": -1}]
)
def test_parts_that_there_cannot_be_are_refused(wrong):
    with pytest.raises(ConfigError, match="part"):
        SeedSchedule(seeds=torch.arange(10), batch_size=8, **wrong)


def test_reads_of_all_parts_are_counted_and_expected_as_of_smaller_batches():
    graph = Graph(csc=CSC, x=torch.zeros(300, 1))
    whole = SeedSchedule(seeds=torch.arange(200), batch_size=40, shuffle=True, num_parts=4)
    counted = sum(sum(len(ids) for ids in batch_reads(graph, SAMPLER, part)) for part in parts_of(whole))
    expected = sum(walks.inclusion(CSC, SAMPLER, part) for part in parts_of(whole))
    small = dataclasses.replace(whole, num_parts=1, batch_size=10)
    assert torch.allclose(expected, walks.inclusion(CSC, SAMPLER, small))
    assert counted == pytest.approx(sum(len(ids) for ids in batch_reads(graph, SAMPLER, small)), rel=0.1)


@pytest.mark.parametrize("count", [0, 1, 3, 8, 1001])
@pytest.mark.parametrize("num_parts", [1, 2, 3, 7])
def test_parts_are_contiguous_and_differ_by_one(count, num_parts):
    parts = [part_of(count, part, num_parts) for part in range(num_parts)]
    assert torch.cat([torch.arange(*part) for part in parts]).equal(torch.arange(count))
    lengths = [end - begin for begin, end in parts]
    assert max(lengths) - min(lengths) <= 1


# ---- shares of whole steps: layout subgraph


def _random_types(typed):
    if not typed:
        return Graph(csc=CSC)
    generator = torch.Generator().manual_seed(1)
    sizes = {"a": 120, "b": 80, "c": 5}

    def edges(source, destination, count):
        ends = [torch.randint(sizes[one], (count,), generator=generator) for one in (source, destination)]
        return torch.stack(ends)

    ends = [("a", "b", 600), ("b", "a", 500), ("a", "a", 300), ("c", "a", 40), ("b", "c", 0)]
    return Graph.from_relations(
        {(s, f"r{at}", d): edges(s, d, count) for at, (s, d, count) in enumerate(ends)},
        num_nodes=sizes,
    )


def _names(sampled, type_):
    """Ids of a sample's nodes; with the tree, where each seed has one of its own."""
    ids = sampled.n_id_by_type[type_].tolist()
    trees = [0] * len(ids) if sampled.trees_by_type is None else sampled.trees_by_type[type_].tolist()
    return list(zip(ids, trees, strict=True))


def _in_edges(sampled, ends):
    """The sources and places in the graph of each node's drawn edges, in order, by relation."""
    found = {}
    for number, (source, destination) in enumerate(ends):
        [edges] = sampled.edges_by_relation[number]
        at, names = edges.indptr.tolist(), _names(sampled, source)
        for v, name in enumerate(_names(sampled, destination)[: len(at) - 1]):
            part = range(at[v], at[v + 1])
            found[number, v] = name, [(names[int(edges.indices[e])], int(edges.positions[e])) for e in part]
    return found


@pytest.mark.parametrize("typed", [False, True])
@pytest.mark.parametrize("reach", [1, 2, 3, 9])
@pytest.mark.parametrize("constrained", ["free", "disjoint", "excluded"])
def test_a_share_has_the_edges_that_the_whole_batch_drew(typed, reach, constrained):
    graph = _random_types(typed)
    fanouts = {"num_neighbors": [3, 2, 2]}
    config = LoaderSettings(**fanouts, return_edge_id=True).sampler_config(graph)
    seeds = torch.cat((torch.randperm(graph.num_nodes)[:40], torch.tensor([7, 7])))
    own = torch.tensor([0, 3, 4, 17, 40, 41])
    limits = {
        "free": None,
        "disjoint": Constraints(disjoint=True),
        "excluded": Constraints(excluded=torch.arange(0, graph.num_edges, 3)),
    }[constrained]
    compiled = make_pipeline(graph, config, num_threads=2, depth=2)
    with mock.patch.object(native, "kernels", lambda: None):
        twin = make_pipeline(graph, config, num_threads=1, depth=1)
    ends = [(one.source, one.destination) for one in graph.all_types.relations()]
    [whole] = twin.begin(seeds, 3, 1, 4, limits)
    shares = [next(p.begin(seeds, 3, 1, 4, limits, share=(own, reach))) for p in (compiled, twin)]
    for ours in shares:
        assert ours.input_id.equal(own)
        _equal(ours.sampled, shares[1].sampled)
    share = shares[0].sampled
    drawn = _first_of(_in_edges(whole.sampled, ends))
    renumbered = {int(tree): int(at) for at, tree in enumerate(own)} if constrained == "disjoint" else {0: 0}
    last = [sum(counts[:-1]) for counts in share.nodes_by_type]  # nodes of the last hop have no in-edges
    for (number, v), (name, found) in _in_edges(share, ends).items():
        back = {at: tree for tree, at in renumbered.items()}
        expected = drawn.get((number, (name[0], back[name[1]])), [])
        expected = [((source, renumbered[tree]), place) for (source, tree), place in expected]
        assert found == (expected if v < last[ends[number][1]] else [])


def _first_of(edges):
    """In-edges by relation and node: each copy of a repeated seed has the same."""
    return {(number, name): found for (number, _), (name, found) in edges.items()}


def _equal(ours, twin):
    assert ours.nodes_by_type == twin.nodes_by_type
    assert ours.counts_by_relation == twin.counts_by_relation
    for one, other in zip(ours.n_id_by_type, twin.n_id_by_type, strict=True):
        assert one.equal(other)
    for [one], [other] in zip(ours.edges_by_relation, twin.edges_by_relation, strict=True):
        assert one.indptr.equal(other.indptr)
        assert one.indices.equal(other.indices)
        assert one.positions is None or one.positions.equal(other.positions)
    assert (ours.trees_by_type is None) == (twin.trees_by_type is None)
    for one, other in zip(ours.trees_by_type or (), twin.trees_by_type or (), strict=True):
        assert one.equal(other)


@given(schedule=schedules(), epoch=st.integers(0, 3), reach=st.integers(1, 4))
def test_the_compiled_threads_and_the_reference_keep_the_same_shares(schedule, epoch, reach):
    for part in filter(lambda part: part.num_steps, parts_of(dataclasses.replace(schedule, reach=reach))):
        for ours, twin, _ in compiled_and_reference(SamplerConfig(fanouts=(4, 3)), part, epoch):
            _equal(ours.sampled, twin.sampled)
            assert len(ours.sampled.nodes_per_hop) == reach + 1


@needs_kernels
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"num_parts": 9, "batch_size": 8}, r"num_parts must lie in \[1, 8\]"),
        ({"part": 4, "num_parts": 4}, r"part must lie in \[0, 3\]"),
        ({"num_parts": 4, "batch_size": 8, "last_step": 2}, r"last_step must lie in \[0, 1\]"),
        ({"reach": 0}, r"reach must lie in \[1, 1024\]"),
        ({"own": torch.tensor([1])}, "own seeds need a reach"),
        ({"reach": 1, "own": torch.tensor([2, 1])}, "own must be positions of seeds, rising"),
        ({"reach": 1, "own": torch.tensor([10])}, "own must be positions of seeds, rising"),
    ],
)
def test_the_kernels_refuse_parts_and_shares_that_there_cannot_be(wrong, message):
    pipeline = make_pipeline(Graph(csc=CSC), SamplerConfig(fanouts=(4, 3)), num_threads=1, depth=1)
    run = {"batch_size": 10, "shuffle": False, "seed": 0, "epoch": 0, "first_step": 0, "last_step": 1}
    with pytest.raises(ValueError, match=message):
        native.kernels().Run(pipeline=pipeline._own_pipeline(), seeds=torch.arange(10), **run | wrong)
