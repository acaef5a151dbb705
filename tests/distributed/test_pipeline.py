"""Rows that travel in parts: the same bits as whole, in however many, and sums that begin early."""

import copy
import itertools

import pytest
import torch
from tests.distributed.test_row_split import blocks
from tests.distributed.threads import noted_calls, run_threads
from tests.distributed.whole import as_processes, assert_as_one_rank, owners, trained
from tests.fullgraph.graphs import CHANNELS, CLASSES
from tests.fullgraph.test_engine import MODELS
from tests.suites import few_of

from graphbraid.errors import ConfigError
from graphbraid.fullgraph import Pipeline, Ranks
from graphbraid.fullgraph.lowering.route import Chunks, Route, arrivals, places_of
from graphbraid.fullgraph.step.calls.travel import Travel
from graphbraid.fullgraph.step.planned.exchanges.chunk_maps import MOST_IN_PARTS
from graphbraid.graph import Graph
from graphbraid.graph.csc import coo_to_csc

NODES = 90


@pytest.fixture(autouse=True)
def threads(monkeypatch):
    """Threads do as processes do."""
    as_processes(monkeypatch)


def graph_of(size, *, weighted=False, hub=False, kinds=3):
    """A graph that a mixed partition cuts nearly everywhere, perhaps with a row of very many halo edges."""
    draw = torch.Generator().manual_seed(4)
    src, dst = torch.randint(NODES, (2, 900), generator=draw)
    if hub:
        more = torch.randint(NODES, (2 * MOST_IN_PARTS,), generator=draw)
        src, dst = torch.cat((src, more)), torch.cat((dst, torch.full_like(more, 5)))
    csc, _ = coo_to_csc(src, dst, NODES, NODES)
    if weighted:
        csc.weight = torch.rand(csc.num_edges, generator=draw)
    graph = Graph(
        csc=csc,
        x=torch.randn(NODES, CHANNELS, generator=draw),
        y=torch.randint(CLASSES, (NODES,), generator=draw),
        splits={"train": torch.arange(0, NODES, 2)},
    )
    return graph, owners(torch.arange(NODES) * 7 % 11 % min(kinds, size), size)


def learned(name, graph, partition, pipeline, *, wire="float32", epochs=2, **options):
    torch.manual_seed(3)
    model = MODELS[name](dropout=0.3)

    def run(comm):
        ranks = Ranks(comm=comm, partition=partition, wire=wire, pipeline=pipeline)
        return trained(model, graph, ranks, epochs=epochs, **options)

    return run_threads(partition.num_parts, run)


def assert_same_bits(found, expected):
    for rank, other in zip(found, expected, strict=True):
        assert rank["losses"] == other["losses"]
        for name, value in rank["state"].items():
            assert torch.equal(value, other["state"][name]), name


COUNTS = (1, 2, 3, 7, 64)


@pytest.mark.parametrize("name", few_of(("gcn", "sage", "gin", "batch norm, gelu"), {"gcn"}))
@pytest.mark.parametrize("size", few_of((2, 3), {2}))
def test_every_number_of_parts_gives_the_same_bits(name, size):
    graph, partition = graph_of(size)
    whole = learned(name, graph, partition, None)
    for chunks in (1, 3, 64):
        pipeline = Pipeline(chunks=chunks, back_chunks=64 // chunks)
        assert_same_bits(learned(name, graph, partition, pipeline), whole)


@pytest.mark.slow
@pytest.mark.parametrize("made", [{"weighted": True}, {"hub": True}, {"kinds": 2}])
def test_so_it_is_with_weights_hubs_and_a_rank_without_nodes(made):
    graph, partition = graph_of(3, **made)
    whole = learned("gcn", graph, partition, None)
    assert_same_bits(learned("gcn", graph, partition, Pipeline(chunks=4, back_chunks=2)), whole)


def test_so_it_is_with_rows_rounded_on_the_wire():
    graph, partition = graph_of(2)
    whole = learned("gcn", graph, partition, None, wire="bfloat16")
    assert_same_bits(learned("gcn", graph, partition, Pipeline(chunks=3), wire="bfloat16"), whole)


def test_so_it_is_in_whatever_order_a_rows_edges_are_stored():
    graph, partition = graph_of(3)
    csc = graph.csc
    turned = torch.cat([torch.arange(b - 1, a - 1, -1) for a, b in itertools.pairwise(csc.indptr.tolist())])
    csc.indices = csc.indices[turned].contiguous()
    whole = learned("gcn", graph, partition, None)
    assert_same_bits(learned("gcn", graph, partition, Pipeline(chunks=5)), whole)


def test_losses_are_those_of_one_rank():
    graph, partition = graph_of(3)
    torch.manual_seed(3)
    model = MODELS["gcn"](dropout=0.3)

    def part_of(comm):
        return Ranks(comm=comm, partition=partition, pipeline=Pipeline(chunks=4, back_chunks=3)), graph

    assert_as_one_rank(model, graph, partition, epochs=3, part_of=part_of)


def test_the_number_of_parts_may_change_from_step_to_step():
    graph, partition = graph_of(2)
    torch.manual_seed(3)
    model, settings = MODELS["gcn"](dropout=0.3), [Pipeline(chunks=k, threads=1) for k in (8, 1, 5)]

    def run(comm, *, changes):
        ranks = Ranks(comm=comm, partition=partition, pipeline=settings[0] if changes else None)
        left = iter(settings)

        def change(engine):
            if changes:
                engine.runner._train.pipeline = next(left)

        return trained(model, graph, ranks, epochs=len(settings), before=change)

    expected = run_threads(2, lambda comm: run(comm, changes=False))
    assert_same_bits(run_threads(2, lambda comm: run(comm, changes=True)), expected)


def test_every_part_departs_first_and_each_is_summed_as_it_has_come(monkeypatch):
    seen, note = noted_calls(monkeypatch)
    note(Travel, "begin_packed", "depart")
    note(Travel, "wait", "wait")
    graph, partition = blocks(2)
    found = learned("gcn", graph, partition, Pipeline(chunks=3, back_chunks=1), epochs=1)
    texts = [" ".join(events) for events in seen.values() if "depart" in events]
    assert len(texts) == len(found)
    assert all("depart depart depart wait wait wait" in text for text in texts)


@pytest.mark.slow
def test_bytes_are_those_of_rows_that_travel_whole():
    graph, partition = graph_of(3)

    def sent(pipeline):
        return [rank["engine"].ranks.comm.sent_bytes for rank in learned("sage", graph, partition, pipeline)]

    assert sent(Pipeline(chunks=4, back_chunks=5)) == sent(None)


@pytest.mark.slow
def test_memory_of_the_parts_is_counted():
    graph, partition = graph_of(2)

    def nbytes(pipeline):
        return learned("gcn", graph, partition, pipeline, epochs=1)[0]["engine"].nbytes

    few, many = nbytes(Pipeline(chunks=2)), nbytes(Pipeline(chunks=8))
    assert nbytes(None) < few < many


@pytest.mark.parametrize("count", COUNTS)
def test_parts_of_both_sides_fit(count):
    draw = torch.Generator().manual_seed(0)
    rows = torch.randint(40, (3, 3), generator=draw).fill_diagonal_(0)
    rows[2, 1] = 0
    parts = []
    for rank in range(3):
        send = torch.arange(int(rows[rank].sum()))
        route = Route(
            send=send, send_rows=tuple(rows[rank].tolist()), receive_rows=tuple(rows[:, rank].tolist())
        )
        parts.append(Chunks(route, count))
        assert parts[-1].sent_order.sort().values.equal(send)
        assert torch.cat([one.send for one in parts[-1].routes]).equal(send[parts[-1].sent_order])
    for rank, other in itertools.product(range(3), repeat=2):
        for mine, theirs in zip(parts[rank].routes, parts[other].routes, strict=True):
            assert mine.send_rows[other] == theirs.receive_rows[rank]


@pytest.mark.parametrize("count", COUNTS)
def test_rows_of_a_part_arrive_before_those_of_the_next(count):
    route = Route(send=torch.arange(0), send_rows=(0, 0, 0), receive_rows=(17, 0, 100))
    in_order = places_of(arrivals(route.receive_rows))
    parts = Chunks(route, count).part_of_received()[in_order]
    assert (parts.diff() >= 0).all()
    assert set(parts.tolist()) <= set(range(count))


def test_numbers_out_of_bounds_and_ranks_that_differ_are_refused():
    for wrong in ({"chunks": 0}, {"back_chunks": 65}, {"threads": 0}):
        with pytest.raises(ConfigError, match=f"{next(iter(wrong))} must be a whole number"):
            Pipeline(**wrong)
    graph, partition = graph_of(2)
    model = MODELS["gcn"]()

    def run(comm):
        ranks = Ranks(comm=comm, partition=partition, pipeline=Pipeline(chunks=1 + comm.rank))
        return trained(copy.deepcopy(model), graph, ranks, epochs=1)

    with pytest.raises(ConfigError, match="rank 0 has pipeline"):
        run_threads(2, run)
