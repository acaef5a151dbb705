"""Page-locking in place: chunks, refusals, one lock for each table, unlocked before the memory is freed."""

import gc
import itertools
import mmap

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.features.tables import stored_graph

from graphbraid.sampling.rows import pinning

PAGE = mmap.PAGESIZE


class Pages:
    """Stands in for a driver: it locks so many bytes and refuses more."""

    def __init__(self, most=1 << 40):
        self.locked, self.most, self.unlocked = {}, most, []

    def register(self, address, num_bytes):
        if sum(self.locked.values()) + num_bytes > self.most:
            return "out of memory"
        assert address not in self.locked
        self.locked[address] = num_bytes
        return ""

    def unregister(self, address):
        self.unlocked.append(self.locked.pop(address))


@pytest.fixture
def copies(monkeypatch):
    """What was copied to page-locked memory; there is no driver here that could."""
    copied = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda table: copied.append(table) or table.clone())
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda table: False)
    monkeypatch.setattr(pinning, "WORTH_BYTES", 10 * PAGE)
    monkeypatch.setattr(pinning, "CHUNK_BYTES", 4 * PAGE)
    return copied


@given(address=st.integers(PAGE, 20 * PAGE), num_bytes=st.integers(1, 40 * PAGE), pages=st.integers(1, 9))
def test_chunks_cover_the_memory_once_and_begin_with_pages(address, num_bytes, pages):
    chunks = pinning.chunks_of(address, num_bytes, pages * PAGE)
    assert chunks[0][0] == address
    assert chunks[-1][1] == address + num_bytes
    assert all(one[1] == other[0] for one, other in itertools.pairwise(chunks))
    assert all(begin % PAGE == 0 for begin, _ in chunks[1:])
    assert all(0 < end - begin <= pages * PAGE for begin, end in chunks)


def test_a_large_table_is_locked_where_it_is_until_it_is_gone(copies):
    pages, table = Pages(), torch.zeros(20 * PAGE, dtype=torch.uint8)
    assert pinning.pinned(table, pages) is table
    assert sum(pages.locked.values()) == table.nbytes
    assert len(pages.locked) >= 5
    again = pinning.pinned(table.detach(), pages)  # of the same memory: locked already
    assert not pages.unlocked
    del table
    gc.collect()
    assert not pages.unlocked  # the other one is still read
    del again
    gc.collect()
    assert not pages.locked
    assert not copies


@pytest.mark.parametrize("part", [slice(None), slice(3 * PAGE, 5 * PAGE)])
def test_pages_stay_locked_as_long_as_any_tensor_that_was_given(copies, monkeypatch, part):
    """Two loaders of one graph: the driver says of the second one's tensor that it is page-locked already."""
    pages, table = Pages(), torch.zeros(20 * PAGE, dtype=torch.uint8)
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda _: bool(pages.locked))
    assert pinning.pinned(table, pages) is table
    other = pinning.pinned(table.detach()[part], pages)
    del table
    gc.collect()
    assert not pages.unlocked
    del other
    gc.collect()
    assert not pages.locked
    assert not copies


def test_small_tables_and_files_are_copied(copies, tmp_path, caplog):
    pages, small = Pages(), torch.zeros(9 * PAGE, dtype=torch.uint8)
    assert pinning.pinned(small, pages) is not small
    assert not caplog.text
    x = stored_graph(tmp_path).x
    assert x.nbytes > 10 * PAGE
    assert torch.equal(pinning.pinned(x, pages), x)
    assert "they are mapped from a file" in caplog.text
    assert [table.data_ptr() for table in copies] == [small.data_ptr(), x.data_ptr()]
    assert not pages.locked


def test_a_refusal_is_said_and_leaves_no_page_locked(copies, caplog):
    pages, table = Pages(most=9 * PAGE), torch.zeros(20 * PAGE, dtype=torch.uint8)
    assert pinning.pinned(table, pages) is not table
    assert len(copies) == 1
    assert not pages.locked
    assert pages.unlocked
    assert "cannot be page-locked where they are (out of memory, after" in caplog.text


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, whose driver locks pages")
def test_the_device_reads_a_table_that_was_locked_in_place():
    from graphbraid.sampling.source import read_over_link

    table = torch.randn(1 << 20, 32)  # 128 MiB
    assert pinning.pinned(table) is table
    assert table.is_pinned()
    ids = torch.randint(0, len(table), (5000,))
    assert torch.equal(read_over_link(table, ids.cuda()).cpu(), table[ids])
