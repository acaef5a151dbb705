"""Rows renumbered by way of buckets on disk: the rows that memory would give, and no file left behind."""

import pytest
import torch
from tests.datasets.helpers import small_graph
from tests.features.tables import same, table_of

from graphbraid import Graph
from graphbraid.datasets import open_store, save_store
from graphbraid.datasets.store import changed
from graphbraid.errors import ResourceError
from graphbraid.features.reordering import Renumbering

GIB = 1 << 30


def order_of(num_rows):
    return torch.randperm(num_rows, generator=torch.Generator().manual_seed(num_rows))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("num_rows", "rows_in_part"), [(1, 1), (7, 1), (100, 33), (100, 100), (100, 999)])
def test_parts_are_the_rows_in_the_new_order(tmp_path, monkeypatch, dtype, num_rows, rows_in_part):
    monkeypatch.setattr(changed, "_CHUNK_BYTES", 11 * 5 * dtype.itemsize)  # 11 rows, or more than all
    table, order = table_of(num_rows, 5, dtype), order_of(num_rows)
    parts = list(changed.bucketed_rows(table, Renumbering(order), rows_in_part, tmp_path))
    assert [len(part) for part in parts[:-1]] == [rows_in_part] * (len(parts) - 1)
    assert same(torch.cat(parts), table[order])
    assert not list(tmp_path.iterdir())


@pytest.fixture
def little_memory(monkeypatch):
    """So little memory that features of a few KiB count as large."""
    monkeypatch.setattr(changed, "free_memory_bytes", lambda: 4000)
    monkeypatch.setattr(changed, "part_bytes", lambda: 1000)


def featured(num_nodes=400):
    graph = Graph.from_edge_index(torch.randint(num_nodes, (2, 900)), num_nodes, x=table_of(num_nodes, 6))
    return graph.replace(y=torch.arange(num_nodes) % 7)


def test_a_store_of_features_larger_than_memory_is_renumbered_to_the_same_files(tmp_path, little_memory):
    graph, order = featured(), order_of(400)
    assert changed.bucket_bytes(graph.x) == graph.x.nbytes
    stored = open_store(save_store(graph, tmp_path / "before"))
    save_store(stored, tmp_path / "buckets", order=order)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(changed, "free_memory_bytes", lambda: GIB)
        assert changed.bucket_bytes(graph.x) == 0
        save_store(stored, tmp_path / "parts", order=order)
    names = {path.name for path in (tmp_path / "parts").iterdir()}
    assert names == {path.name for path in (tmp_path / "buckets").iterdir()}
    for name in names:
        assert (tmp_path / "buckets" / name).read_bytes() == (tmp_path / "parts" / name).read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {"before", "buckets", "parts"}


def test_the_source_is_read_once(tmp_path, little_memory, monkeypatch):
    graph, read = featured(), []
    gather = changed.gather_rows

    def noted(rows, ids, **options):
        inside = rows.data_ptr() - graph.x.data_ptr()
        read.append(rows.nbytes if 0 <= inside < graph.x.nbytes else 0)
        return gather(rows, ids, **options)

    monkeypatch.setattr(changed, "gather_rows", noted)
    save_store(graph, tmp_path / "s", order=order_of(400))
    assert sum(read) == graph.x.nbytes


def test_a_disk_without_room_for_the_buckets_is_told_before(tmp_path, little_memory, monkeypatch):
    from graphbraid.datasets.store import on_disk as store

    needed = []
    monkeypatch.setattr(store, "require_free_space", lambda folder, size, what: needed.append(size))
    graph = featured()
    save_store(graph, tmp_path / "with", order=order_of(400))
    monkeypatch.setattr(changed, "free_memory_bytes", lambda: GIB)
    save_store(graph, tmp_path / "without", order=order_of(400))
    assert needed[0] - needed[1] == graph.x.nbytes


def test_a_failing_disk_is_a_clear_error(tmp_path, little_memory, monkeypatch):
    def full(file, data, offset):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(changed.os, "pwrite", full)
    with pytest.raises(ResourceError, match="the disk is full"):
        save_store(featured(), tmp_path / "s", order=order_of(400))
    assert not list(tmp_path.iterdir())


def test_features_that_memory_holds_take_no_buckets():
    assert changed.bucket_bytes(small_graph().x) == 0
    assert changed.bucket_bytes(None) == 0
