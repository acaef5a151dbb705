"""Memory of batches' rows: used again for later batches, and never while somebody reads it."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.features.tables import stored_graph

from graphbraid.features import TieredFeatures
from graphbraid.loader import NeighborLoader
from graphbraid.loader.gather_ahead import RowBuffers

ROW = torch.Size((3,))


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 40)), max_size=40))
def test_no_two_tensors_that_live_share_a_byte(moves):
    buffers, alive = RowBuffers(3), {}
    for number, (slot, rows) in enumerate(moves):
        alive[slot] = buffers.lend(rows, ROW, torch.float32).fill_(number), number, rows
        for tensor, expected, count in alive.values():
            assert tensor.shape == (count, 3)
            assert (tensor == expected).all()
        assert len(buffers._kept) <= 3


def test_a_larger_batch_takes_the_place_of_a_buffer_that_is_too_small():
    buffers = RowBuffers(2)
    for rows in (8, 9, 100, 20, 100):
        assert buffers.lend(rows, ROW, torch.float32).shape == (rows, 3)
    assert [memory.nbytes for memory in buffers._kept] == [100 * 12 + 100 * 12 // 8]


def test_rows_of_any_dtype_and_none_at_all():
    buffers = RowBuffers(1)
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        lent = buffers.lend(5, ROW, dtype)
        assert (lent.shape, lent.dtype, lent.is_contiguous()) == ((5, 3), dtype, True)
        del lent
    assert buffers.lend(0, ROW, torch.float32).shape == (0, 3)


def test_batches_of_a_loader_use_memory_again_once_they_are_let_go(tmp_path):
    graph = stored_graph(tmp_path)
    tiers = TieredFeatures.build(graph, host=0)
    loader = NeighborLoader(graph, [4, 3], "train", batch_size=5, seed=0, tiers=tiers)
    places = [batch.x.untyped_storage().data_ptr() for batch in loader.batches(0)]
    assert len(places) > 12
    assert len(set(places)) < len(places) // 2
    kept = list(loader.batches(1))
    assert all(torch.equal(batch.x, graph.x[batch.n_id]) for batch in kept)
