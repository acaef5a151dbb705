"""What a device moves over the link when it reads the host's memory itself: whole sectors, and weights."""

import pytest
import torch
from benchmarks.common.emulated import weight_bytes_read
from hypothesis import given
from hypothesis import strategies as st
from tests.sampling.graphs import power_law_csc

from graphbraid import ScaledFeatures
from graphbraid.sampling import SamplerConfig, sample_batch
from graphbraid.sampling.rows.by_id import (
    AT_ONCE,
    SECTOR_BYTES,
    TransferCounter,
    row_sectors,
    weight_bytes,
)


def at_offset(offset: int, num_rows: int, row_bytes: int) -> torch.Tensor:
    """A table of bytes that begins so far behind a multiple of 64."""
    memory = torch.zeros(64 + 64 + num_rows * row_bytes, dtype=torch.uint8)
    begin = -memory.data_ptr() % 64 + offset
    return memory[begin : begin + num_rows * row_bytes].view(num_rows, row_bytes)


@given(offset=st.integers(0, 63), num_rows=st.integers(1, 9), row_bytes=st.integers(0, 130))
def test_a_row_moves_the_sectors_that_have_a_byte_of_it(offset, num_rows, row_bytes):
    table = at_offset(offset, num_rows, row_bytes)
    found = row_sectors(table, torch.arange(num_rows)).tolist()
    for row in range(num_rows):
        begin = table.data_ptr() + row * row_bytes
        assert found[row] == len({byte // SECTOR_BYTES for byte in range(begin, begin + row_bytes)})


@pytest.mark.parametrize(("offset", "moved"), [(0, 4), (28, 4), (29, 5), (63, 5)])
def test_a_row_of_100_bytes_moves_by_where_it_begins(offset, moved):
    assert row_sectors(at_offset(offset, 1, 100), torch.tensor([0])).tolist() == [moved]


def test_rows_of_int8_move_a_sector_for_their_scale():
    x = ScaledFeatures.from_dense(torch.randn(7, 64))
    found = row_sectors(x, torch.arange(7))
    assert found.tolist() == [64 // SECTOR_BYTES + 1] * 7
    link = TransferCounter()
    link.add_direct(x, torch.tensor([3, 3]))
    assert (link.counts.link_rows, link.counts.link_row_bytes) == (2, 2 * 68)
    assert link.counts.link_sector_bytes == 6 * SECTOR_BYTES


def race_reads(degree: int, drawable: int, fanout: int) -> int:
    """Weights that ``race_kernel`` loads for a list."""
    if fanout < 0 or drawable <= fanout:
        return sum(min(AT_ONCE, degree - c) for c in range(0, degree, AT_ONCE))
    behind = sum(min(AT_ONCE, degree - c) for c in range(AT_ONCE, degree, AT_ONCE))
    return min(degree, AT_ONCE) + fanout * behind


def bisection_reads(degree: int, found: int) -> int:
    """Sums that ``invert_kernel`` loads until it has the edge ``found``."""
    low, high, reads = 0, degree, 0
    while low < high:
        middle, reads = (low + high) // 2, reads + 1
        low, high = (middle + 1, high) if middle < found else (low, middle)
    assert low == found
    return reads


@given(degree=st.integers(0, 700), drawable=st.integers(0, 700), fanout=st.integers(-1, 20).filter(bool))
def test_weights_are_counted_as_the_kernels_read_them(degree, drawable, fanout):
    drawable = min(degree, drawable)
    lists = torch.tensor([degree]), torch.tensor([drawable], dtype=torch.int32)
    assert weight_bytes(*lists, fanout, replace=False).tolist() == [4 * race_reads(degree, drawable, fanout)]
    if fanout > 0:
        [read] = weight_bytes(*lists, fanout, replace=True).tolist()
        most = max((bisection_reads(degree, found) for found in range(degree)), default=0)
        assert read == (8 * (1 + fanout * most) if drawable else 0)


@pytest.mark.parametrize("layout", ["subgraph", "blocks"])
def test_weights_of_a_batch_are_those_of_the_lists_that_each_hop_draws_from(layout):
    csc = power_law_csc(90, 700, weighted=True)
    sampler = SamplerConfig(fanouts=(3, 2), layout=layout, weighted=True)
    seeds = torch.arange(8)
    sampled = sample_batch(csc, sampler, seeds, 5)
    assert weight_bytes_read(sampled, SamplerConfig(fanouts=(3, 2)), csc) == 0
    total, counts = 0, sampled.nodes_per_hop
    for hop, fanout in enumerate(sampler.fanouts):
        first = 0 if layout == "blocks" else sum(counts[:hop])
        for node in sampled.n_id[first : sum(counts[: hop + 1])].tolist():
            weights = csc.weight[csc.indptr[node] : csc.indptr[node + 1]]
            total += 4 * race_reads(len(weights), int((weights > 0).sum()), fanout)
    assert weight_bytes_read(sampled, sampler, csc) == total > 0
