"""Reordering: every array where it belongs, whatever the order, backend and threads; and back again."""

import sys
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.extras import NO_PEAK
from tests.features.cases import arrays, assert_same, expected, full_graphs
from tests.graph.cases import reference_kernels
from tests.graph.edge_cases import EDGE_CASES
from tests.kernels import needs_kernels
from tests.ops.graphs import assert_same_bits_with_any_threads, skewed
from tests.peaks import least_peak, printed
from tests.suites import examples

import graphbraid
from graphbraid import Csc, Graph, features
from graphbraid.errors import ConfigError, DataError
from graphbraid.features import reorder
from graphbraid.features.reordering import OF_GRAPH, OF_SAMPLER, Renumbering, named_order
from graphbraid.sampling import SamplerConfig
from graphbraid.sampling.config import SeedSchedule


@settings(max_examples=examples(40))
@given(graph=full_graphs(), data=st.data(), rising=st.booleans(), twin=st.booleans())
def test_every_array_moves_to_where_its_node_stands(graph, data, rising, twin):
    order = data.draw(st.permutations(range(graph.num_nodes)))
    given_as = data.draw(st.sampled_from((torch.int32, torch.int64)))
    ids = torch.tensor(order, dtype=given_as)
    if twin:
        with reference_kernels():
            moved = reorder(graph, ids, sort_neighbors=rising)
    else:
        moved = reorder(graph, ids, sort_neighbors=rising)
    found = {name: values.tolist() for name, values in arrays(moved.graph).items()}
    assert found == expected(graph, order, rising=rising)
    assert {n: v.dtype for n, v in arrays(moved.graph).items()} == {
        n: v.dtype for n, v in arrays(graph).items()
    }
    moved.graph.replace(splits=dict(moved.graph.splits))  # scanned again: all ids are sound
    assert moved.originals(torch.arange(graph.num_nodes)).tolist() == order
    assert torch.equal(moved.nodes_of(ids), torch.arange(graph.num_nodes))


@settings(max_examples=examples(40))
@given(graph=full_graphs(), data=st.data(), twin=st.booleans())
def test_there_and_back_gives_every_bit(graph, data, twin):
    order = torch.tensor(data.draw(st.permutations(range(graph.num_nodes))), dtype=torch.int64)

    def there_and_back():
        moved = reorder(graph, order)
        back = reorder(moved.graph, moved.inverse)
        assert_same(back.graph, graph)
        assert torch.equal(back.inverse, moved.order.int())

    if twin:
        with reference_kernels():
            there_and_back()
    else:
        there_and_back()


@settings(max_examples=examples(40))
@given(graph=full_graphs(), data=st.data(), size=st.integers(1, 4), twin=st.booleans())
def test_parts_read_in_ascending_order_are_those_of_the_whole(graph, data, size, twin):
    order = torch.tensor(data.draw(st.permutations(range(graph.num_nodes))), dtype=torch.int64)
    whole = reorder(graph, order).graph
    ends = [*range(0, graph.num_nodes, size), graph.num_nodes]

    def check():
        parts = Renumbering(order, ascending=True)
        indptr = parts.indptr(graph.csc.indptr)
        for begin, end in pairwise(ends):
            low, high = int(indptr[begin]), int(indptr[end])
            assert torch.equal(parts.sources(graph.csc, indptr, begin, end), whole.csc.indices[low:high])
            if graph.edge_attr is not None:
                made = parts.lists(graph.edge_attr, graph.csc.indptr, indptr, begin, end)
                assert torch.equal(made, whole.edge_attr[low:high])
            assert torch.equal(parts.rows(graph.y, begin, end), whole.y[begin:end])

    if twin:
        with reference_kernels():
            check()
    else:
        check()


@pytest.mark.parametrize("name", EDGE_CASES)
@pytest.mark.parametrize("by", features.ORDERS)
def test_named_orders_of_graphs_at_the_edge(name, by):
    num_nodes, src, dst = EDGE_CASES[name]
    graph = Graph.from_edge_index(torch.tensor([src, dst], dtype=torch.int64), num_nodes)
    moved = reorder(graph, by)
    edges = moved.order[moved.graph.to_edge_index()]
    assert sorted(map(tuple, edges.t().tolist())) == sorted(zip(src, dst, strict=True))
    back = reorder(moved.graph, moved.inverse, sort_neighbors=True).graph  # equal ids are interchangeable
    assert torch.equal(back.csc.indices, graph.csc.indices)


@pytest.mark.slow
def test_hubs_shared_by_threads_give_the_same_bits():
    csc = skewed(3000, 3000)
    hub = torch.randint(0, 3000, (300_000,), dtype=torch.int32)  # a list longer than a thread's share
    indptr = torch.cat((csc.indptr[:1500], csc.indptr[1500:] + hub.numel()))
    at = int(csc.indptr[1500])
    indices = torch.cat((csc.indices[:at], hub, csc.indices[at:]))
    csc = Csc(indptr, indices, 3000, torch.rand(indices.numel()))
    graph = Graph(csc=csc, edge_attr=torch.randn(indices.numel(), 3), x=torch.randn(3000, 5))
    order = torch.randperm(3000, generator=torch.Generator().manual_seed(0))
    for rising in (False, True):

        def run(rising=rising):
            return list(arrays(reorder(graph, order, sort_neighbors=rising).graph).values())

        found = assert_same_bits_with_any_threads(run)
        with reference_kernels():
            twin = run()
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(found, twin, strict=True))


def test_features_that_are_no_plain_rows_move_too():
    graph = Graph.from_edge_index([[0, 1, 2], [1, 2, 0]], 3, x=torch.arange(12.0).reshape(4, 3).t())
    wide = graph.replace(edge_attr=torch.arange(6.0).reshape(2, 3).t(), x=torch.zeros(3, 0))
    order = torch.tensor([2, 0, 1])
    assert torch.equal(reorder(graph, order).graph.x, graph.x[order])
    assert reorder(wide, order).graph.x.shape == (3, 0)
    assert torch.equal(reorder(wide, order).graph.edge_attr.sort(0).values, wide.edge_attr.sort(0).values)


def test_an_order_of_scores_is_an_order():
    graph = Graph.from_edge_index([[0, 1, 1], [1, 2, 0]], 3)
    moved = reorder(graph, graphbraid.features.order_by(torch.tensor([0.5, 0.1, 0.9])))
    assert moved.order.tolist() == [2, 0, 1]


@pytest.mark.parametrize(
    ("order", "error", "says"),
    [
        ([2, 0, 1], DataError, "order must be Tensor or str"),
        (
            "degrees",
            ConfigError,
            "order must be one of degree, rcm, .*; got 'degrees'. Did you mean 'degree'",
        ),
        ("inclusion", ConfigError, "follows a sampler: pass order_by"),
    ],
)
def test_what_is_no_order_is_refused(order, error, says):
    graph = Graph.from_edge_index([[0, 1, 1], [1, 2, 0]], 3)
    with pytest.raises(error, match=says):
        reorder(graph, order)


@pytest.mark.parametrize("name", [*OF_GRAPH, *OF_SAMPLER])
def test_every_name_is_an_order(name):
    draw = torch.Generator().manual_seed(0)
    edges = torch.randint(0, 60, (2, 500), generator=draw)
    graph = Graph.from_edge_index(edges, 60, splits={"train": torch.arange(0, 60, 3)})
    sampler = SamplerConfig(fanouts=(3, 2))
    schedule = SeedSchedule(seeds=graph.split("train"), batch_size=4, shuffle=True)
    order = named_order(graph, name, sampler=sampler, schedule=schedule)
    assert torch.equal(order.sort().values, torch.arange(60))
    if name in ("degree", "inclusion", "reverse_pagerank"):
        values = features.score(graph, name, sampler=sampler, schedule=schedule).values
        assert bool((values[order].diff() <= 0).all())
    if name in OF_GRAPH:
        assert torch.equal(reorder(graph, name).order, order)


def test_reads_of_epochs_to_come_are_no_order():
    graph = Graph.from_edge_index([[0, 1, 1], [1, 2, 0]], 3)
    with pytest.raises(ConfigError, match=r"draw other neighbours, .* choose presampled"):
        named_order(graph, "lookahead")


def test_ids_that_do_not_exist_have_no_way_back():
    moved = reorder(Graph.from_edge_index([[0, 1, 1], [1, 2, 0]], 3), torch.tensor([2, 0, 1]))
    with pytest.raises(DataError, match=r"nodes must be node ids in \[0, 3\); position 1 holds 3"):
        moved.originals(torch.tensor([0, 3]))
    with pytest.raises(DataError, match="original ids must be node ids"):
        moved.nodes_of(torch.tensor([-1]))


# Prints the peak of resident memory over what the process held before it made the graph, as a multiple of the
# topology's bytes.
MEASURE = """
import sys
from itertools import pairwise
from pathlib import Path
import torch
from graphbraid import Csc, Graph, features
from tests.peaks import held

def graph_of(num_nodes, degree):
    indptr = torch.arange(num_nodes + 1) * degree
    indices = torch.empty(num_nodes * degree, dtype=torch.int32).random_(num_nodes)
    return Graph(csc=Csc(indptr, indices, num_nodes))

features.reorder(graph_of(1000, 9), torch.randperm(1000))  # loads the kernels
before = held("VmRSS")
graph = graph_of(int(sys.argv[1]), int(sys.argv[2]))
order = torch.arange(graph.num_nodes).flip(0)
Path("/proc/self/clear_refs").write_text("5")  # the peak starts from here
moved = features.reorder(graph, order)
print((held("VmHWM") - before) / graph.csc.nbytes)
"""


@pytest.mark.skipif(sys.platform != "linux", reason=NO_PEAK)
@pytest.mark.slow
@needs_kernels
def test_peak_memory_is_the_topology_twice_and_the_nodes_maps():
    assert least_peak(lambda: printed(MEASURE, 800_000, 24), 2.2) <= 2.2
