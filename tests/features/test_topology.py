"""Adjacency lists in tiers: the ids are the file's whatever memory holds; budgets, errors, what it says."""

import os
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.features.tables import flip_a_byte, stored_graph
from tests.kernels import needs_kernels

from graphbraid import Graph, native
from graphbraid.datasets import open_store, save_store
from graphbraid.datasets.store import arrays
from graphbraid.errors import ConfigError, DataError, ResourceError
from graphbraid.features import DiskOptions, TieredTopology
from graphbraid.features.budgets import list_blocks
from graphbraid.features.reference import NeighborLists
from graphbraid.features.rows import reference
from graphbraid.features.rows.disk import DiskRows
from graphbraid.files import mapped
from graphbraid.graph.csc import Csc

SMALL = DiskOptions(depth=2, longest_bytes=4096)
KERNELS = pytest.param("kernels", marks=needs_kernels)


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """Ids of 64 bits, and a list that is longer than a block."""
    generator = torch.Generator().manual_seed(1)
    degrees = torch.tensor([0, 3, 2000, 1, 0, 700] + [2] * 30)
    indptr = torch.zeros(37, dtype=torch.int64)
    indptr[1:] = degrees.cumsum(0)
    indices = torch.randint(36, (int(indptr[-1]),), generator=generator)
    made = Graph(csc=Csc(indptr, indices, 36))
    return open_store(save_store(made, tmp_path_factory.mktemp("w") / "store"))


def reader_of(backend, graph, hot, options=SMALL):
    """The lists of ``hot`` in memory, by the compiled code or its twin."""
    disk = DiskRows.behind(graph.csc.indices, options=options)
    if backend == "kernels":
        return native.kernels().NeighborLists(disk=disk.native, indptr=graph.csc.indptr, hot=hot)
    plain = reference.DiskRows(
        path=str(disk.path),
        first_byte=disk._offset,
        num_rows=graph.num_edges,
        row_bytes=disk.row_bytes,
        sums=disk._sums,
        depth=options.depth,
        longest=options.longest_bytes,
    )
    return NeighborLists(disk=plain, indptr=graph.csc.indptr, hot=hot)


def drawn(csc, seed, num_rows):
    """Rows, repeated or not, and some of their edges, each row's in any order."""
    generator = torch.Generator().manual_seed(seed)
    nodes = torch.randint(csc.num_dst, (num_rows,), generator=generator)
    positions, ends = [], [0]
    for node in nodes.tolist():
        begin, end = int(csc.indptr[node]), int(csc.indptr[node + 1])
        count = int(torch.randint(9, (1,), generator=generator)) if end > begin else 0
        positions.append(begin + torch.randint(max(end - begin, 1), (count,), generator=generator))
        ends.append(ends[-1] + count)
    empty = torch.empty(0, dtype=torch.int64)
    return nodes, torch.tensor(ends), torch.cat([empty, *positions])


@pytest.mark.slow
@pytest.mark.parametrize("backend", [KERNELS, "reference"])
@settings(max_examples=25)
@given(seed=st.integers(0, 999), share=st.sampled_from([0.0, 0.1, 0.6, 1.0]), num_rows=st.integers(0, 60))
def test_drawn_ids_are_those_of_the_file(graph, wide, backend, seed, share, num_rows):
    for of in (graph, wide):
        csc = of.csc
        chance = torch.rand(csc.num_dst, generator=torch.Generator().manual_seed(seed))
        hot = (chance < share).nonzero().flatten()
        lists = reader_of(backend, of, hot)
        nodes, ends, positions = drawn(csc, seed, num_rows)
        out = torch.full(positions.shape, -7)
        lists.read(csc.indptr, nodes, ends, positions, out)
        assert torch.equal(out, csc.indices[positions].long())
        counts = ends.diff()
        is_hot = torch.isin(nodes, hot)
        expected = [int(c.sum()) for kind in (is_hot, ~is_hot) for c in (kind & (counts > 0), counts[kind])]
        assert list(lists.counts()) == expected
        assert lists.hot_edges() == int(csc.degrees()[hot].sum())


@needs_kernels
def test_twins_tell_the_same_memory(graph):
    hot = torch.arange(0, 300, 7)
    both = [reader_of(backend, graph, hot) for backend in ("kernels", "reference")]
    assert both[0].overhead_bytes() == both[1].overhead_bytes()


@needs_kernels
def test_what_would_read_outside_is_refused_by_the_compiled_lists(graph):
    csc = graph.csc
    lists = reader_of("kernels", graph, torch.tensor([1, 5]))
    one, out = torch.tensor([3]), torch.empty(1, dtype=torch.int64)
    ends, position = torch.tensor([0, 1]), csc.indptr[3:4]
    for nodes, ends_, at, said in (
        (torch.tensor([300]), ends, position, "nodes must be nodes"),
        (one, ends, csc.indptr[4:5], "positions must be those of in-edges"),
        (one, torch.tensor([0, 0]), position, "ends"),
        (one.int(), ends, position, "nodes must be int64; got int32"),
        (one, ends, position.view(1, 1), "positions must "),
    ):
        with pytest.raises((ValueError, TypeError), match=said):
            lists.read(csc.indptr, nodes, ends_, at, out)
    for indptr, into, said in (
        (csc.indptr[1:], out, "indptr"),
        (csc.indptr, out.new_empty(2), "out must have length 1"),
    ):
        with pytest.raises(ValueError, match=said):
            lists.read(indptr, one, ends, position, into)
    disk = DiskRows.behind(csc.indices, options=SMALL)
    for hot in ([5, 1], [300], [-1]):
        with pytest.raises(ValueError, match="hot must be nodes in rising order"):
            native.kernels().NeighborLists(disk=disk.native, indptr=csc.indptr, hot=torch.tensor(hot))


def some_lists(graph, num_bytes):
    """A budget of ``num_bytes`` beside the bookkeeping of all lists."""
    words = -(-graph.num_nodes // 64) * 16
    buffers = DiskRows.behind(graph.csc.indices, options=SMALL).buffer_bytes
    return graph.csc.indptr.nbytes + words + 8 + buffers + num_bytes


@settings(max_examples=25)
@given(num_bytes=st.integers(0, 9000), seed=st.integers(0, 99))
def test_a_budget_is_kept_and_filled_by_benefit_per_byte(graph, num_bytes, seed):
    score = torch.randint(9, (300,), generator=torch.Generator().manual_seed(seed)).double()
    host = some_lists(graph, num_bytes)
    store = TieredTopology.build(graph, host=host, score=score, disk=SMALL)
    degrees = graph.csc.degrees()
    size = degrees * 4 + 8
    if int(store.num_lists) == 300:
        return  # all of it fits
    assert store.host_bytes <= host
    worth = sorted((v for v in range(300) if degrees[v]), key=lambda v: (-float(score[v] / size[v]), v))
    used, held = 0, []
    for v in worth:
        if used + int(size[v]) > num_bytes:
            break
        used, held = used + int(size[v]), [*held, v]
    assert store._hot.tolist() == sorted(held)


def test_all_of_it_is_in_memory_and_none(graph):
    whole = TieredTopology.build(graph, host="all", disk=SMALL)
    assert whole.native is None
    assert torch.equal(whole.csc.indices, graph.csc.indices)
    assert whole.csc.indices.data_ptr() != graph.csc.indices.data_ptr()
    assert TieredTopology.build(graph, host="1TiB", disk=SMALL).native is None
    none = TieredTopology.build(graph, host=0, disk=SMALL)
    assert none.num_lists == 0
    assert none.csc.indptr.data_ptr() == graph.csc.indptr.data_ptr()
    assert none.host_bytes == none.disk.buffer_bytes + 5 * 16 + 8


def test_budgets_that_cannot_be_meant_are_refused(graph, monkeypatch):
    for host, said in (
        ("4 GoB", "a size such as '4GiB'"),
        (-1, "host must be a whole number"),
        (1.5, "host must be int or str; got 1.5"),
        (some_lists(graph, 0) - 1, "does not hold the bookkeeping of all 300 adjacency lists"),
    ):
        with pytest.raises(ConfigError, match=said):
            TieredTopology.build(graph, host=host, disk=SMALL)
    with pytest.raises(DataError, match="one number for each of the 300"):
        TieredTopology.build(graph, host=some_lists(graph, 50), score=torch.ones(3), disk=SMALL)
    monkeypatch.setattr("graphbraid.features.budgets.free_memory_bytes", lambda: 10_000)
    with pytest.raises(ResourceError, match=r"host='all' takes .* of memory; 9\.8 KiB are free"):
        TieredTopology.build(graph, host="all", disk=SMALL)


def test_lists_that_no_file_holds_are_refused(graph):
    edges = torch.tensor([[0, 1], [1, 0]])
    with pytest.raises(DataError, match="adjacency lists on disk must be a whole array of a store"):
        TieredTopology.build(Graph.from_edge_index(edges, 2), host=0)


def test_a_damaged_block_is_an_error_while_memory_is_filled(tmp_path):
    graph = stored_graph(tmp_path)
    flip_a_byte(tmp_path / "store" / "indices.npy", 4096 + 100)
    with pytest.raises(DataError, match=r"indices\.npy has changed.*block 1 "):
        TieredTopology.build(graph, host="all", disk=SMALL)


@pytest.mark.parametrize("backend", [KERNELS, "reference"])
def test_an_id_that_is_no_node_is_never_given(tmp_path, monkeypatch, backend):
    """Also of a file that has no sums of its blocks."""
    monkeypatch.setattr(arrays, "remember", lambda *of: mapped.remember(*of[:4]))
    graph = stored_graph(tmp_path)
    with (tmp_path / "store" / "indices.npy").open("r+b") as file:
        file.seek(4096 + 4 * int(graph.csc.indptr[7]) + 3)
        file.write(b"\x7f")
    first = graph.csc.indptr[7:8].clone()
    with pytest.raises(ValueError, match=r"source of edge .* which is no node"):
        reader_of(backend, graph, torch.tensor([7]))
    lists = reader_of(backend, graph, torch.tensor([8]))
    with pytest.raises(ValueError, match=rf"the source of edge {int(first)} is 21\d+"):
        out = torch.empty(1, dtype=torch.int64)
        lists.read(graph.csc.indptr, torch.tensor([7]), torch.tensor([0, 1]), first, out)


def test_it_explains_what_lies_where(graph):
    store = TieredTopology.build(graph, host=some_lists(graph, 3000), score=torch.ones(300), disk=SMALL)
    nodes, ends, positions = drawn(graph.csc, 3, 50)
    store.native.read(store.csc.indptr, nodes, ends, positions, torch.empty_like(positions))
    text = store.explain()
    assert "300 adjacency lists of 1,800 edges (torch.int32, 7.0 KiB)" in text
    assert f"host  {store.num_lists} lists" in text
    assert "disk  the others" in text
    assert f"measured: {store.counts.host_share:.1%} of" in text
    assert "memory for lists" in text
    assert "all are" not in TieredTopology.build(graph, host="all").explain()


def test_tiers_travel_to_another_process_with_what_filled_them(graph):
    store = TieredTopology.build(graph, host=some_lists(graph, 3000), disk=SMALL)
    content = pickle.dumps(store)
    again = pickle.loads(content)
    assert graph.csc.indices.numpy().tobytes() not in content  # it is mapped again
    assert torch.equal(again.csc.indices, graph.csc.indices)
    nodes, ends, positions = drawn(graph.csc, 3, 50)
    out = torch.empty_like(positions)
    again.native.read(again.csc.indptr, nodes, ends, positions, out)
    assert torch.equal(out, graph.csc.indices[positions].long())
    assert again.num_lists == store.num_lists


def test_tiers_that_travel_after_their_file_is_gone_are_refused(tmp_path):
    store = TieredTopology.build(stored_graph(tmp_path), host=0, disk=SMALL)
    content, file = pickle.dumps(store), tmp_path / "store" / "indices.npy"
    copy = file.read_bytes()
    file.unlink()
    with pytest.raises((DataError, ResourceError), match=r"indices\.npy cannot be"):
        pickle.loads(content)
    file.with_name("other").write_bytes(b"")  # so that the new file is not the old one's inode
    file.write_bytes(copy)
    with pytest.raises(DataError, match=r"indices\.npy was replaced"):
        pickle.loads(content)


def test_a_forked_process_reads_for_itself(graph):
    store = TieredTopology.build(graph, host=some_lists(graph, 3000), disk=SMALL)
    nodes, ends, positions = drawn(graph.csc, 3, 50)
    store.native.read(store.csc.indptr, nodes, ends, positions, torch.empty_like(positions))
    child = os.fork()
    if not child:
        out = torch.empty_like(positions)
        store.native.read(store.csc.indptr, nodes, ends, positions, out)
        os._exit(0 if torch.equal(out, graph.csc.indices[positions].long()) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@given(degree=st.integers(1, 5000), fanout=st.integers(-1, 40), itemsize=st.sampled_from([4, 8]))
@settings(max_examples=60)
def test_expected_blocks_are_those_that_draws_touch(degree, fanout, itemsize):
    found = float(list_blocks(torch.tensor([degree]), fanout, itemsize)[0])
    most = (degree - 1) * itemsize / 4096 + 1
    assert 0 <= found <= most + 1e-9
    if fanout < 0:
        assert found == pytest.approx(most)
    if fanout >= 1:
        assert found >= 0.99
        assert found <= fanout * 1.7 + 1
