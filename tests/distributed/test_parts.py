"""Local and remote graphs: every edge once, halos that match, the whole graph again; slices; the report."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.graph.cases import case_graph, graphs, reference_kernels
from tests.graph.edge_cases import EDGE_CASES
from tests.kernels import needs_kernels
from tests.ops.graphs import assert_same_bits_with_any_threads, skewed, square

from graphbraid import Graph, ops
from graphbraid.distributed import Division, Partition, partition, report_of, split
from graphbraid.distributed.parts.report import picture_of
from graphbraid.errors import ConfigError, DataError
from graphbraid.graph.csc import Csc
from graphbraid.ops.peers import slices_of


def assigned(part_of, num_parts):
    return Partition(
        part_of=torch.tensor(part_of, dtype=torch.int32),
        num_parts=num_parts,
        strategy="drawn",
        balance="edges",
    )


@st.composite
def divided(draw, **options):
    """A graph with repeated edges and self-loops, and any partition of it, empty parts included."""
    graph = draw(graphs(**options))
    num_parts = draw(st.integers(1, 6))
    owners = st.lists(st.integers(0, num_parts - 1), min_size=graph.num_nodes, max_size=graph.num_nodes)
    return graph, assigned(draw(owners), num_parts)


def rebuilt(parts, graph):
    """The whole graph of its parts: rows and weights put where ``*_edge`` says they were."""
    indices = torch.full_like(graph.csc.indices, -1)
    rows = torch.full((graph.num_edges,), -1)
    weight = torch.full((graph.num_edges,), -1.0)
    times = torch.zeros(graph.num_edges, dtype=torch.int64)
    for part in parts:
        for csc, edge, columns in (
            (part.local, part.local_edge, part.owned),
            (part.remote, part.remote_edge, part.halo),
        ):
            indices[edge] = columns[csc.indices.long()].to(indices.dtype)
            rows[edge] = part.owned[csc.destinations().long()]
            times[edge] += 1
            if csc.weight is not None:
                weight[edge] = csc.weight
    assert times.tolist() == [1] * graph.num_edges
    return rows, indices, weight


@given(case=divided(), twin=st.booleans())
def test_every_edge_is_in_one_part_and_the_parts_make_the_graph(case, twin):
    graph, chosen = case
    parts = split(graph, chosen, keep_edges=True)
    rows, indices, weight = rebuilt(parts, graph)
    assert torch.equal(rows, graph.csc.destinations().long())
    assert torch.equal(indices, graph.csc.indices)
    if graph.csc.weight is not None:
        assert torch.equal(weight, graph.csc.weight)
    if twin:
        with reference_kernels():
            for ours, theirs in zip(split(graph, chosen, keep_edges=True), parts, strict=True):
                for name in ("owned", "halo", "halo_indptr", "send", "local_edge", "remote_edge"):
                    assert torch.equal(getattr(ours, name), getattr(theirs, name)), name
                for a, b in ((ours.local, theirs.local), (ours.remote, theirs.remote)):
                    assert torch.equal(a.indptr, b.indptr)
                    assert torch.equal(a.indices, b.indices)
                    assert a.indices.dtype == b.indices.dtype


@given(case=divided())
def test_what_one_part_sends_is_what_the_other_receives(case):
    graph, chosen = case
    parts = split(graph, chosen)
    for part in parts:
        assert torch.equal(part.owned, chosen.owned(part.part))
        assert torch.equal(
            chosen.part_of[part.halo].diff() >= 0, torch.ones(max(part.num_halo - 1, 0)).bool()
        )
        halo = torch.split(part.halo, part.halo_indptr.diff().tolist())
        assert not torch.split(part.send, part.send_indptr.diff().tolist())[part.part].numel()
        read = part.halo[part.remote.indices.long()]
        assert torch.equal(read.unique(), part.halo.sort().values)  # nothing is received in vain
        for other in parts:
            received = halo[other.part]
            sent = torch.split(other.send, other.send_indptr.diff().tolist())[part.part]
            assert torch.equal(received, other.owned[sent])
            assert (received.diff() > 0).all()
            assert (chosen.part_of[received] == other.part).all()


@given(case=divided())
def test_the_sums_of_both_graphs_are_those_of_the_whole_one(case):
    graph, chosen = case
    x = torch.randint(0, 100, (graph.num_nodes, 3)).float()  # sums without rounding
    expected = ops.spmm(graph.csc, x)
    for part in split(graph, chosen):
        local, halo = x[part.owned], x[part.halo]
        found = ops.spmm(part.local, local) + ops.spmm(part.remote, halo)
        assert torch.equal(found, expected[part.owned])
        joined = part.joined()
        Csc(joined.indptr, joined.indices, joined.num_src, joined.weight)  # scanned
        assert torch.equal(ops.spmm(joined, torch.cat([local, halo])), expected[part.owned])


@pytest.mark.parametrize("name", EDGE_CASES)
@pytest.mark.parametrize("num_parts", [1, 2, 5])
def test_graphs_of_every_shape_are_split(name, num_parts):
    graph = case_graph(name)
    parts = split(graph, partition(graph, num_parts), keep_edges=True)
    assert sum(part.num_owned for part in parts) == graph.num_nodes
    assert sum(part.num_edges for part in parts) == graph.num_edges
    rows, indices, _ = rebuilt(parts, graph)
    assert torch.equal(rows, graph.csc.destinations().long())
    assert torch.equal(indices, graph.csc.indices)


@needs_kernels
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_threads_and_ids_of_either_width_give_the_same(dtype):
    csc = square(5000)
    csc = Csc(csc.indptr, csc.indices.to(dtype), csc.num_src)
    chosen = assigned((torch.arange(5000) * 7 % 3).tolist(), 3)

    def cut():
        parts = split(csc, chosen, keep_edges=True)
        return [
            array
            for part in parts
            for array in (part.halo, part.send, part.local.indices, part.remote.indices, part.remote_edge)
        ]

    assert_same_bits_with_any_threads(cut)
    assert split(csc, chosen)[0].local.indices.dtype == dtype


@given(seed=st.integers(0, 1000), size=st.integers(1, 70))
def test_slices_cover_each_row_in_order_and_hold_no_more_than_their_size(seed, size):
    csc = skewed(seed=seed)
    slices = slices_of(csc, size)
    lengths = slices.indptr.diff()
    assert slices.indptr[-1] == csc.num_edges
    assert ((lengths >= 1) & (lengths <= size)).all()
    assert torch.equal(slices.row.repeat_interleave(lengths), csc.destinations())
    assert torch.equal(slices.first.diff(), (csc.degrees() + size - 1) // size)
    for row in range(csc.num_dst):
        first, last = slices.first[row : row + 2].tolist()
        assert (slices.row[first:last] == row).all()
        assert (lengths[first : max(first, last - 1)] == size).all()


def test_a_graph_without_edges_has_no_slices():
    slices = slices_of(Csc(torch.zeros(4).long(), torch.zeros(0).int(), 3), 4)
    assert (slices.row.numel(), slices.indptr.tolist()) == (0, [0])


# ---- the report

TRIANGLES = Graph.from_edge_index(  # 0, 1, 2 and 3, 4, 5, of which 2 -> 3, 2 -> 4 and 5 -> 0 connect
    torch.tensor([[0, 1, 2, 3, 4, 5, 2, 2, 5], [1, 2, 0, 4, 5, 3, 3, 4, 0]]), 7
)


def test_the_report_counts_what_is_cut_and_exchanged():
    chosen = assigned([0, 0, 0, 1, 1, 1, 2], 3)
    report = report_of(chosen, Division(TRIANGLES, chosen).outlines)
    assert (report.edge_cut, report.halo_rows, report.num_edges) == (3, 2, 9)
    assert report.halo == ((0, 1, 0), (1, 0, 0), (0, 0, 0))
    first = report.parts[0]
    assert (first.nodes, first.edges, first.local_edges, first.work) == (3, 4, 3, 16)
    assert (first.halo_rows, first.sent_rows) == (1, 1)
    assert report.imbalance("nodes") == pytest.approx(9 / 7)
    assert report.imbalance("edges") == pytest.approx(5 / 3)
    assert report.to_json()["edge_cut_share"] == pytest.approx(1 / 3)


def test_the_picture_shows_each_exchange_and_each_part():
    from xml.etree import ElementTree

    chosen = assigned([0, 0, 0, 1, 1, 1, 2], 3)
    picture = picture_of(report_of(chosen, Division(TRIANGLES, chosen).outlines))
    titles = [node.text for node in ElementTree.fromstring(picture).iter("{http://www.w3.org/2000/svg}title")]
    assert "part 1 receives 1 rows from part 0" in titles
    assert "part 2: 0 in-edges" in titles
    assert len(titles) == 1 + 2 + 9
    empty = Graph.from_edge_index(torch.zeros(2, 0).long(), 0)
    one = partition(empty, 1)
    assert "0.00% of the edges cut" in picture_of(report_of(one, Division(empty, one).outlines))


def test_a_partition_of_another_graph_is_refused():
    with pytest.raises(DataError, match="the partition is of 3 nodes; the graph has 7"):
        split(TRIANGLES, assigned([0, 0, 1], 2))
    with pytest.raises(ConfigError, match=r"part must be a whole number in \[0, 1\]; got 2"):
        Division(TRIANGLES, assigned([0] * 7, 2)).part(2)
