"""A cache in front of a file: the table's rows whatever is kept, never more than its size; good choices."""

import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.features.tables import flip_a_byte, rows_of, same, stored_graph, table_of, written
from tests.kernels import needs_kernels
from tests.suites import examples

from graphbraid import native
from graphbraid.errors import ConfigError, DataError
from graphbraid.features import POLICIES, RowCache, TierCounts, TieredFeatures
from graphbraid.features.rows import reference
from graphbraid.features.rows.disk import BroughtRows
from graphbraid.loader import NeighborLoader
from graphbraid.loader.gather_ahead import RowBuffers
from graphbraid.ops.gather import put_rows, take_rows

NUM_ROWS = 40
batches_of_rows = st.lists(st.lists(st.integers(0, NUM_ROWS - 1), max_size=12), max_size=25)
distinct_batches = st.lists(st.lists(st.integers(0, NUM_ROWS - 1), max_size=12, unique=True), max_size=25)


@pytest.fixture(scope="module")
def table():
    return table_of(NUM_ROWS, 300)


@pytest.fixture(scope="module")
def disk(table, tmp_path_factory):
    return rows_of(written(tmp_path_factory.mktemp("t"), table), table)


def ids_of(batch):
    return torch.tensor(batch, dtype=torch.int64)


def run(cache, batches, window=0, table=None):
    """Gather all batches, of which ``window`` are announced before they come; checks the rows."""
    numbers = {}
    for at, batch in enumerate(batches):
        for coming in range(at, min(at + window, len(batches))):
            if coming not in numbers:
                numbers[coming] = cache.announce(ids_of(batches[coming]))
        rows = cache.gather(ids_of(batch), batch=numbers.get(at, -1))
        if table is not None:
            assert same(rows, table[ids_of(batch)])
        assert cache.num_kept <= cache.num_rows
    return cache.counts


@given(
    batches=batches_of_rows,
    num_rows=st.integers(0, NUM_ROWS),
    policy=st.sampled_from(POLICIES),
    window=st.integers(0, 6),
    filled=st.integers(0, NUM_ROWS),
)
def test_rows_are_the_tables_and_never_more_are_kept(table, disk, batches, num_rows, policy, window, filled):
    cache = RowCache(disk, num_rows, policy=policy)
    cache.fill(torch.arange(filled))
    before = disk.counts.disk_rows
    counts = run(cache, batches, window, table)
    assert counts.filled_rows == min(filled, num_rows)
    assert counts.host_rows + counts.disk_rows == counts.reads == sum(map(len, batches))
    repeats = sum(len(batch) - len(set(batch)) for batch in batches)
    assert disk.counts.disk_rows - before <= counts.disk_rows <= disk.counts.disk_rows - before + repeats


@needs_kernels
@settings(max_examples=examples(150))
@given(
    batches=batches_of_rows,
    capacity=st.integers(0, NUM_ROWS),
    policy=st.sampled_from(POLICIES),
    window=st.integers(0, 6),
    ranked=st.booleans(),
    skipped=st.sets(st.integers(0, 24)),
)
def test_the_twin_keeps_the_same_rows(disk, batches, capacity, policy, window, ranked, skipped):
    ranks = torch.arange(NUM_ROWS).flip(0).div(3, rounding_mode="floor").to(torch.uint8) if ranked else None
    compiled = native.kernels().RowCache(disk=disk.native, capacity=capacity, policy=policy, ranks=ranks)
    twin_disk = reference.DiskRows(
        path=str(disk.path), first_byte=128, num_rows=NUM_ROWS, row_bytes=disk.row_bytes, sums=None
    )
    twin = reference.RowCache(disk=twin_disk, capacity=capacity, policy=policy, ranks=ranks)
    numbers = [{}, {}]
    for at, batch in enumerate(batches):
        for cache, its in zip((compiled, twin), numbers, strict=True):
            for coming in range(at, min(at + window, len(batches))):
                if coming not in its:
                    its[coming] = cache.announce(ids_of(batches[coming]))
            if at not in skipped:  # announced, and never gathered
                out = torch.empty(len(batch), disk.row_bytes, dtype=torch.uint8)
                cache.gather(ids_of(batch), out, its.get(at, -1))
        assert compiled.counts() == twin.counts(), at
    compiled.forget()
    twin.forget()
    for cache in (compiled, twin):
        cache.gather(torch.arange(NUM_ROWS), torch.empty(NUM_ROWS, disk.row_bytes, dtype=torch.uint8), -1)
    assert compiled.counts() == twin.counts()


@settings(max_examples=examples(150))
@given(batches=distinct_batches, num_rows=st.integers(0, NUM_ROWS))
def test_no_policy_reads_fewer_rows_than_belady_with_every_batch_announced(disk, batches, num_rows):
    read = {}
    for policy in POLICIES:
        cache = RowCache(disk, num_rows, policy=policy)
        if policy == "static":  # the best choice there is, made afterwards
            often = Counter(row for batch in batches for row in batch).most_common(num_rows)
            cache.fill(ids_of([row for row, _ in often]))
        counts = run(cache, batches, window=len(batches) or 1)
        read[policy] = counts.disk_rows + counts.filled_rows
    assert read["belady"] <= min(read.values())


@settings(max_examples=examples(60))
@given(batches=distinct_batches, num_rows=st.integers(1, 12), data=st.data())
def test_belady_from_the_same_start_hits_as_often_as_the_best_choice_that_stays(
    disk, batches, num_rows, data
):
    often = [row for row, _ in Counter(row for batch in batches for row in batch).most_common(num_rows)]
    hits = []
    for policy in ("belady", "static"):
        cache = RowCache(disk, num_rows, policy=policy)
        cache.fill(ids_of(often))
        hits.append(run(cache, batches, window=len(batches) or 1).host_rows)
    assert hits[0] >= hits[1]


@given(
    batches=batches_of_rows,
    num_rows=st.integers(0, NUM_ROWS),
    policy=st.sampled_from(POLICIES),
    window=st.integers(0, 6),
    ranked=st.booleans(),
    behind=st.integers(0, 2),
)
def test_rows_that_the_caller_keeps_by_slot_are_those_of_a_file(
    table, disk, batches, num_rows, policy, window, ranked, behind
):
    """Also where decisions are up to two batches ahead of the rows that are moved."""
    batches, score = [sorted(batch) for batch in batches], torch.arange(NUM_ROWS) % 7 if ranked else None
    cache = RowCache(BroughtRows(NUM_ROWS, 1200), num_rows, policy=policy, score=score)
    of_file = RowCache(disk, num_rows, policy=policy, score=score)
    kept, decided = torch.full((num_rows, table.shape[1]), torch.nan), []
    numbers = {}

    def move(batch, slots, fills):
        rows = torch.full((len(batch), table.shape[1]), torch.nan)
        take_rows(kept, slots, rows)
        missing = slots < 0
        assert not fills[~missing].ge(0).any()
        rows[missing] = table[ids_of(batch)[missing]]
        assert same(rows, table[ids_of(batch)])
        put_rows(rows, fills, kept)

    for at, batch in enumerate(batches):
        for coming in range(at, min(at + window, len(batches))):
            if coming not in numbers:
                numbers[coming] = cache.announce(ids_of(batches[coming]))
                assert of_file.announce(ids_of(batches[coming])) == numbers[coming]
        decided.append((batch, *cache.decide(ids_of(batch), batch=numbers.get(at, -1))))
        of_file.gather(ids_of(batch), batch=numbers.get(at, -1))
        assert cache.counts == of_file.counts
        if len(decided) > behind:
            move(*decided.pop(0))
    for one in decided:
        move(*one)


@needs_kernels
@settings(max_examples=examples(100))
@given(
    batches=batches_of_rows,
    capacity=st.integers(0, NUM_ROWS),
    policy=st.sampled_from(POLICIES),
    window=st.integers(0, 6),
)
def test_the_twin_decides_the_same(batches, capacity, policy, window):
    caches = [
        kernels.RowCache(disk=kernels.BroughtRows(NUM_ROWS), capacity=capacity, policy=policy, ranks=None)
        for kernels in (native.kernels(), reference)
    ]
    numbers = [{}, {}]
    for at, batch in enumerate(batches):
        brought = []
        for cache, its in zip(caches, numbers, strict=True):
            for coming in range(at, min(at + window, len(batches))):
                if coming not in its:
                    its[coming] = cache.announce(ids_of(batches[coming]))
            slots, fills = torch.empty(2, len(batch), dtype=torch.int32)
            cache.decide(ids_of(batch), its.get(at, -1), slots, fills)
            brought.append([(slots < 0).tolist(), (fills >= 0).tolist()])
        assert brought[0] == brought[1]
        assert caches[0].counts() == caches[1].counts(), at


def test_rows_that_the_caller_brings_are_not_read():
    cache = RowCache(BroughtRows(NUM_ROWS, 8), 3)
    with pytest.raises(DataError, match="are not read"):
        cache.fill(ids_of([1, 2]))
    with pytest.raises(DataError, match="ids must be rows"):
        cache.decide(ids_of([NUM_ROWS]))


def test_belady_by_hand(disk):
    cache = RowCache(disk, 2, policy="belady")
    counts = run(cache, [[1, 2, 3], [1], [2], [3], [1, 2]], window=9)
    # 1 and 2 are kept for the next two batches; 3, read last, is not.
    assert (counts.host_rows, counts.reads) == (1 + 1 + 0 + 2, 8)


def test_sieve_keeps_what_was_read_again(disk):
    cache = RowCache(disk, 2, policy="sieve")
    assert run(cache, [[1], [2], [1], [3], [1], [3]]).host_rows == 3


def test_rows_of_a_higher_score_stay_where_nothing_is_announced(disk):
    cache = RowCache(disk, 2, policy="belady", score=torch.arange(NUM_ROWS).flip(0))
    run(cache, [[0, 1], [20, 21, 22], [39]])
    assert run(cache, [[0, 1]]).host_rows == 2


def test_a_full_cache_reads_the_file_once(table, tmp_path):
    disk = rows_of(written(tmp_path, table), table)
    cache = RowCache(disk, NUM_ROWS, policy="static")
    cache.fill(torch.arange(NUM_ROWS))
    counts = run(cache, [list(range(NUM_ROWS))] * 3, table=table)
    assert counts.host_rows == counts.reads
    assert disk.counts.disk_rows == NUM_ROWS


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("order", ["the file's", "another"])
def test_rows_that_stay_are_the_tables_for_several_threads(table, disk, policy, order):
    """A comparison says where rows 0 to 24 are if they are in that order; in another order a map does."""
    batches = [torch.randint(NUM_ROWS, (2_000,)) for _ in range(4)]  # more than are copied at once
    for num_rows in (25, NUM_ROWS):
        cache = RowCache(disk, num_rows, policy=policy)
        rows = torch.arange(num_rows)
        for part in (rows,) if order == "the file's" else reversed(rows.chunk(2)):
            cache.fill(part)
        with ThreadPoolExecutor(2) as threads:
            found = list(threads.map(cache.gather, batches))
        assert all(same(rows, table[ids]) for rows, ids in zip(found, batches, strict=True))
        if policy == "static" or num_rows == NUM_ROWS:
            assert cache.counts.host_rows == sum(int((ids < num_rows).sum()) for ids in batches)


def test_nothing_is_announced_to_a_cache_of_all_rows(table, disk):
    """Batches announced while it filled are forgotten: it reads nothing any more, in any order."""
    cache = RowCache(disk, NUM_ROWS, policy="belady")
    every = torch.arange(NUM_ROWS)
    first, second = cache.announce(every), cache.announce(every.flip(0))
    assert (first, second) == (0, 1)
    cache.gather(every, batch=first)
    assert cache.announce(every) == -1
    for ids, batch in ((every.flip(0), second), (every[:7], -1)):
        assert same(cache.gather(ids, batch=batch), table[ids])
    assert cache.counts.disk_rows == NUM_ROWS


def test_a_read_that_fails_leaves_a_cache_that_works(table, tmp_path):
    path = written(tmp_path, table)
    cache = RowCache(rows_of(path, table), 5, policy="belady")
    first = cache.announce(ids_of([3, 4]))
    flip_a_byte(path, 128 + 4 * 1200)
    with pytest.raises(DataError, match="has changed"):
        cache.gather(ids_of([3, 4]), batch=first)
    flip_a_byte(path, 128 + 4 * 1200)
    assert same(cache.gather(ids_of([3, 4]), batch=first), table[[3, 4]])
    assert same(cache.gather(ids_of([4, 3])), table[[4, 3]])
    assert (cache.counts, cache.num_kept) == (TierCounts(host_rows=2, disk_rows=2), 2)


def test_a_forked_process_has_a_cache_of_its_own(table, disk):
    cache = RowCache(disk, 8)
    cache.gather(ids_of([1, 2]))
    child = os.fork()
    if not child:
        right = same(cache.gather(ids_of([2, 5])), table[[2, 5]]) and cache.counts.host_rows == 0
        os._exit(0 if right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert cache.counts.reads == 2


def test_what_cannot_be_meant_is_refused(disk):
    with pytest.raises(ConfigError, match="Did you mean 'belady'"):
        RowCache(disk, 3, policy="beladi")
    with pytest.raises(ConfigError, match=r"num_rows must be a whole number in \[0, 40\]"):
        RowCache(disk, 41)
    with pytest.raises(DataError, match="one number for each of the 40 rows"):
        RowCache(disk, 3, score=torch.ones(39))
    with pytest.raises(DataError, match=r"score\[2\] is nan"):
        RowCache(disk, 3, score=torch.tensor([0.0, 1, float("nan"), *[2.0] * 37]))
    cache = RowCache(disk, 3)
    for call in (cache.gather, cache.announce, cache.fill):
        with pytest.raises(DataError, match=r"ids\[1\] is 40"):
            call(ids_of([0, 40]))
        with pytest.raises(DataError, match="must be int64"):
            call(torch.tensor([0.5]))


@pytest.mark.parametrize("policy", POLICIES)
def test_a_cache_says_what_memory_it_takes(disk, policy):
    cache = RowCache(disk, 10, policy=policy)
    assert cache.nbytes == 10 * disk.row_bytes
    assert 0 < cache.overhead_bytes < 10_000 + disk.buffer_bytes


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
