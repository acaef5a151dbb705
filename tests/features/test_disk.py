"""Rows on disk: always the table's, however they are read; what is wrong with a file is an error."""

import os
import pickle

import numpy as np
import pytest
import torch
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.features.tables import READERS, flip_a_byte, rows_of, same, stored_graph, table_of, written
from tests.kernels import needs_kernels
from tests.suites import examples

from graphbraid import native
from graphbraid.datasets import open_store, save_store
from graphbraid.errors import ConfigError, DataError, ResourceError
from graphbraid.features import DiskOptions, DiskRows, RowCache, TierCounts
from graphbraid.features.rows import reference
from graphbraid.files.block_sums import BlockSums, of_file


@pytest.mark.parametrize("options", READERS)
@pytest.mark.parametrize("width", [1, 128, 1000, 1024, 5000])  # rows inside a block, of one, and across some
def test_rows_are_the_tables_in_any_order_and_repeated(tmp_path, options, width):
    table = table_of(240, width)
    rows = rows_of(written(tmp_path, table), table, options=options)
    ids = torch.randint(240, (500,), generator=torch.Generator().manual_seed(1))
    assert same(rows.gather(ids), table[ids])
    assert same(rows.gather(torch.arange(240)), table)
    assert same(rows.gather(torch.tensor([239, 0, 239])), table[[239, 0, 239]])
    assert rows.gather(torch.empty(0, dtype=torch.int64)).shape == (0, width)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.bool])
@pytest.mark.parametrize("first_byte", [0, 1, 4095, 4096])
def test_any_dtype_and_any_first_byte(tmp_path, dtype, first_byte):
    table = table_of(50, 13, dtype)
    rows = rows_of(written(tmp_path, table, first_byte), table, first_byte)
    assert same(rows.gather(torch.arange(49, -1, -1)), table.flip(0))


@settings(max_examples=examples(40))
@given(
    ids=st.lists(st.integers(0, 99), max_size=60),
    width=st.sampled_from([3, 700, 1025]),
    gap=st.integers(0, 3),
    longest=st.sampled_from([4096, 8192, 65536]),
    depth=st.integers(1, 9),
)
def test_any_rows_by_any_requests(tmp_path_factory, ids, width, gap, longest, depth):
    table = table_of(100, width)
    options = DiskOptions(depth=depth, longest_bytes=longest, gap_blocks=gap)
    rows = rows_of(written(tmp_path_factory.mktemp("t"), table), table, options=options)
    wanted = torch.tensor(ids, dtype=torch.int64)
    assert same(rows.gather(wanted), table[wanted])
    assert rows.counts.disk_rows == len(set(ids))


@needs_kernels
def test_rows_near_each_other_come_by_one_request_and_repeated_ones_are_read_once(tmp_path):
    table = table_of(4096, 1024)  # a row is a block
    rows = rows_of(written(tmp_path, table, 4096), table, 4096, DiskOptions(gap_blocks=1))
    rows.gather(torch.tensor([7, 8, 9, 7, 8]))
    assert rows.counts == TierCounts(disk_rows=3, disk_requests=1, disk_bytes=3 * 4096)
    rows.gather(torch.tensor([100, 102, 2000]))  # a gap of one block is read along
    assert rows.counts == TierCounts(disk_rows=6, disk_requests=3, disk_bytes=(3 + 3 + 1) * 4096)
    rows.gather(torch.arange(64))  # 64 KiB are the longest request
    assert rows.counts.disk_requests == 3 + 4


def test_the_rows_of_a_mapped_tensor_are_read_from_its_file(tmp_path):
    graph = stored_graph(tmp_path)
    rows = DiskRows.behind(graph.x)
    assert rows.path == tmp_path / "store" / "x.npy"
    assert rows.is_checked
    assert rows.shape == graph.x.shape
    assert same(rows.gather(torch.arange(300)), graph.x)


def test_rows_of_a_store_that_divide_a_block_lie_in_one_each(tmp_path):
    graph = stored_graph(tmp_path, width=128)
    np.testing.assert_array_equal(np.load(tmp_path / "store" / "x.npy"), graph.x.numpy())
    rows = DiskRows.behind(graph.x)
    rows.gather(torch.tensor([7]))  # the last of eight rows of 512 bytes
    assert rows.counts.disk_bytes == 4096


def test_rows_that_are_not_in_a_file_are_refused(tmp_path):
    graph = stored_graph(tmp_path)
    with pytest.raises(DataError, match=r"datasets.open_store.*lies in memory only"):
        DiskRows.behind(graph.x.clone())
    with pytest.raises(DataError, match="not contiguous"):
        DiskRows.behind(graph.x[:, 1:])
    graph.x[0] = 0
    with pytest.raises(DataError, match="was written to since"):
        DiskRows.behind(graph.x)


def test_a_store_that_was_replaced_or_removed_is_refused(tmp_path):
    graph = stored_graph(tmp_path)
    save_store(graph.replace(x=graph.x * 2), tmp_path / "store", if_exists="replace")
    with pytest.raises(DataError, match="was replaced since"):
        DiskRows.behind(graph.x)
    (tmp_path / "store" / "x.npy").unlink()
    with pytest.raises(DataError, match="cannot be read any more"):
        DiskRows.behind(graph.x)


def test_a_part_of_a_mapped_table_is_read_at_its_place(tmp_path):
    graph = stored_graph(tmp_path)
    part = graph.x[100:]
    rows = DiskRows(
        tmp_path / "store" / "x.npy",
        offset=4096 + 100 * graph.x[0].nbytes,
        num_rows=200,
        row_shape=(37,),
        dtype=torch.float32,
    )
    assert same(rows.gather(torch.arange(200)), part)


@pytest.mark.parametrize("options", READERS)
@pytest.mark.parametrize("row", [0, 150, 299])
def test_a_flipped_bit_is_an_error_that_names_file_block_and_row(tmp_path, options, row):
    graph = stored_graph(tmp_path)
    path = tmp_path / "store" / "x.npy"
    at = 4096 + row * graph.x[0].nbytes + 5
    flip_a_byte(path, at)
    rows = DiskRows.behind(graph.x, options=options)
    with pytest.raises(DataError, match=rf"x\.npy has changed.*block {at // 4096} .*row {row}\)"):
        rows.gather(torch.tensor([row]))
    far = 299 - row if row != 150 else 0  # rows of other blocks are still given
    assert same(rows.gather(torch.tensor([far])), graph.x[[far]])


def test_every_bit_of_a_block_counts(tmp_path):
    table = table_of(5, 100)
    path = written(tmp_path, table, 0)
    rows = rows_of(path, table, 0)
    for at in range(0, 2000, 13):
        flip_a_byte(path, at)
        with pytest.raises(DataError, match="has changed"):
            rows.gather(torch.tensor([2]))
        flip_a_byte(path, at)
    assert same(rows.gather(torch.tensor([2])), table[[2]])


@pytest.mark.parametrize("options", READERS)
def test_a_file_cut_off_while_it_is_open_is_an_error(tmp_path, options):
    table = table_of(400, 1000)
    path = written(tmp_path, table)
    rows = rows_of(path, table, options=options, checked=False)
    os.truncate(path, 100_000)
    with pytest.raises(DataError, match=r"table\.bin was truncated while it was open.*row 399"):
        rows.gather(torch.tensor([399]))
    assert same(rows.gather(torch.tensor([3])), table[[3]])
    with pytest.raises(DataError, match="truncated: it has 100000 bytes"):
        rows_of(path, table, options=options, checked=False)


@pytest.mark.parametrize("options", READERS)
def test_one_bad_row_among_many_is_an_error_and_the_reader_goes_on(tmp_path, options):
    table = table_of(2000, 1024)
    path = written(tmp_path, table)
    rows = rows_of(path, table, options=options)
    at = 128 + 1234 * 4096 + 77
    flip_a_byte(path, at)
    with pytest.raises(DataError, match="has changed"):
        rows.gather(torch.randperm(2000))
    flip_a_byte(path, at)
    assert same(rows.gather(torch.arange(2000)), table)


def test_a_file_that_is_not_there_or_not_to_be_read(tmp_path):
    table = table_of(3, 4)
    with pytest.raises(ResourceError, match=r"nothing\.bin cannot be opened: No such file"):
        rows_of(tmp_path / "nothing.bin", table, checked=False)


@pytest.mark.parametrize("options", [DiskOptions(direct=False), DiskOptions(reader="threads")])
def test_a_read_that_the_system_fails_is_an_error(tmp_path, options):
    rows = DiskRows(  # of a folder, which opens and does not read
        tmp_path, offset=4096, num_rows=9, row_shape=(1024,), dtype=torch.float32, options=options
    )
    where = r"byte (16384 \(row 3\)|32768 \(row 7\))"  # whichever is tried first
    with pytest.raises(ResourceError, match=rf"cannot be read at {where}: Is a directory"):
        rows.gather(torch.tensor([7, 3]))


def test_ids_and_results_that_do_not_fit_are_refused(tmp_path):
    table = table_of(10, 4)
    rows = rows_of(written(tmp_path, table), table)
    for ids, said in (
        (torch.tensor([3, 10]), r"ids\[1\] is 10"),
        (torch.tensor([-1]), r"ids\[0\] is -1"),
        (torch.tensor([1], dtype=torch.int32), "must be int64"),
        (torch.tensor([[1]]), "1 dimensions"),
        (torch.float32, "must be a torch.Tensor"),
    ):
        for source in (rows, RowCache(rows, 2)):
            with pytest.raises(DataError, match=said):
                source.gather(ids)
    for out in (torch.empty(1, 4), torch.empty(2, 4, dtype=torch.float64), torch.empty(4, 2).T):
        with pytest.raises(DataError, match="out must be contiguous"):
            rows.gather(torch.tensor([1, 2]), out)


def test_options_that_cannot_be_meant_are_refused():
    for wrong, said in (
        ({"reader": "io_urnig"}, "Did you mean 'io_uring'"),
        ({"depth": 0}, "depth must be a whole number"),
        ({"longest_bytes": 100}, "longest_bytes must be"),
        ({"gap_blocks": -1}, "gap_blocks must be"),
        ({"direct": "yes"}, "direct must be True or False"),
    ):
        with pytest.raises(ConfigError, match=said):
            DiskOptions(**wrong)


def test_rows_travel_to_another_process_by_the_name_of_their_file(tmp_path):
    table = table_of(10, 4)
    rows = rows_of(written(tmp_path, table), table)
    again = pickle.loads(pickle.dumps(rows))
    assert same(again.gather(torch.arange(10)), table)


def test_a_forked_process_reads_with_a_queue_of_its_own(tmp_path):
    table = table_of(100, 40)
    rows = rows_of(written(tmp_path, table), table)
    rows.gather(torch.arange(10))
    child = os.fork()
    if not child:
        os._exit(0 if same(rows.gather(torch.arange(99, -1, -1)), table.flip(0)) else 1)
    assert same(rows.gather(torch.arange(100)), table)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@needs_kernels
def test_the_twin_gives_the_same_rows_and_errors(tmp_path):
    table = table_of(200, 333)
    path = written(tmp_path, table)
    given = {
        "path": str(path),
        "first_byte": 128,
        "num_rows": 200,
        "row_bytes": 333 * 4,
        "sums": torch.from_numpy(of_file(path)),
        "uring": True,
        "direct": True,
        "depth": 8,
        "longest": 65536,
        "gap": 1,
    }
    both = [native.kernels().DiskRows(**given), reference.DiskRows(**given)]
    ids = torch.randint(200, (300,))
    outs = [torch.empty(300, 333 * 4, dtype=torch.uint8) for _ in both]
    for rows, out in zip(both, outs, strict=True):
        rows.read(ids, out)
    assert torch.equal(*outs)
    assert both[0].counts()[0] == both[1].counts()[0] == ids.unique().numel()
    flip_a_byte(path, 100_000)
    said = []
    for rows, out in zip(both, outs, strict=True):
        with pytest.raises(ValueError, match="has changed") as error:
            rows.read(torch.tensor([(100_000 - 128) // 1332]), out[:1])
        said.append(str(error.value))
    assert said[0] == said[1]


@needs_kernels
@given(content=st.binary(max_size=300))
def test_the_sum_is_xxh64(content):
    block = (
        torch.frombuffer(bytearray(content), dtype=torch.uint8)
        if content
        else torch.empty(0, dtype=torch.uint8)
    )
    assert native.kernels().xxh64(block) % (1 << 64) == xxhash.xxh64_intdigest(content)


@given(parts=st.lists(st.integers(0, 9000), max_size=6))
def test_sums_do_not_depend_on_how_bytes_are_given(parts):
    content = bytes(i * 7 % 251 for i in range(sum(parts)))
    sums, whole, at = BlockSums(), BlockSums(), 0
    for size in parts:
        sums.add(content[at : at + size])
        at += size
    whole.add(content)
    assert sums.all().tolist() == whole.all().tolist()
    assert len(whole.all()) == -(-len(content) // 4096)


def test_a_store_without_sums_is_refused(tmp_path):
    import json

    from graphbraid.files.checksums import sealed, unsealed

    stored_graph(tmp_path)
    manifest = tmp_path / "store" / "graph.json"
    content = unsealed(json.loads(manifest.read_text()), manifest)
    del content["arrays"]["x_sums"]
    manifest.write_text(json.dumps(sealed(content)))
    (tmp_path / "store" / "x_sums.npy").unlink()
    with pytest.raises(DataError, match=r"lacks x_sums, .* store the graph again"):
        open_store(tmp_path / "store")


def test_sums_that_were_changed_are_an_error(tmp_path):
    graph = stored_graph(tmp_path)
    flip_a_byte(tmp_path / "store" / "x_sums.npy", 200)
    with pytest.raises(DataError, match=r"x_sums\.npy has changed"):
        DiskRows.behind(graph.x)
