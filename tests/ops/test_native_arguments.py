"""Every entry of the compiled module refuses, by name and in constant time, arrays that it cannot take."""

import re
import sys

import pytest
import torch
from tests.kernels import needs_kernels
from tests.ops.native_calls import recorded, resized
from tests.ops.native_signatures import array_arguments, of_another_kind, read_only

from graphbraid import native

pytestmark = needs_kernels

# What an entry cannot know to be wrong, by position. The Python side checks it before it calls.
SOURCES = "how many sources there are is said by no other argument"
ROWS = "how many rows there are is said by no other argument"
FREE = {
    ("bit_product", 2): "any depth of the same number of words, any strides",
    ("block_model_features", 1): "how many classes there are is said by no other argument",
    ("cached_reads", 0): ROWS,
    ("cached_reads", 2): "any rows may be asked for",
    ("column_moments", 0): ROWS,
    ("coo_to_csc", 3): ROWS,
    ("count_cut", 3): "more nodes than rows may be there",
    ("count_ids", 0): "any nodes may be counted",
    ("count_ids", 1): "how many nodes there are is said by no other argument",
    ("add_rows", 2): "ids may name any of its rows",
    ("count_lists", 0): ROWS,
    ("csr_to_dense", 3): "how many columns there are is said by no other argument",
    ("edge_softmax", 0): ROWS,
    ("edge_softmax_backward", 0): ROWS,
    ("fill_rows", 0): ROWS,
    ("first_below", 0): ROWS,
    ("first_fall", 0): ROWS,
    ("first_out_of_range", 0): ROWS,
    ("first_unsorted_row", 0): ROWS,
    ("first_unsound_weight", 0): ROWS,
    ("gather_as_float", 0): SOURCES,
    ("gcn_scale", 0): ROWS,
    ("gcn_scale", 3): SOURCES,
    ("gather_rows", 0): SOURCES,
    ("gatv2_forward", 2): SOURCES,
    ("gine", 2): SOURCES,
    ("gine_backward", 3): ROWS,
    ("gine_edge_backward", 2): SOURCES,
    ("induced_edges", 0): ROWS,
    **{("relabel", place): "any number of ids may be known or found" for place in range(2)},
    ("move_lists", 0): ROWS,
    ("own_places", 0): "a check of the ids says whether there are as many nodes",
    ("place_nodes", 5): "more nodes than rows may be there",
    ("place_nodes", 6): "how many parts there are is said by no other argument",
    **{("reduce_messages", place): SOURCES for place in range(7, 11)},
    **{("reduce_messages", place): "destinations may be a prefix of its rows" for place in range(11, 21)},
    ("reduce_messages", 24): "some of the results may be asked for",
    ("put_rows", 2): "slots may name any of its rows",
    ("rows_to_indptr", 0): "any edges may be asked for",
    ("rows_to_indptr", 1): ROWS,
    ("sddmm", 3): SOURCES,
    ("sddmm", 6): "its columns are the heads",
    ("spmm", 2): SOURCES,
    ("spmm_max", 2): SOURCES,
    ("spread_rows", 0): "rows that no place names may be there",
    ("take_rows", 0): "slots may name any of its rows",
    ("tall_gram", 1): "with ids, any rows may be there",
    ("tall_gram_round", 0): "of its rows a round needs some",
    ("tall_product", 0): "with ids, any rows may be there",
    ("tall_product", 1): "any strides",
    ("transpose_csc", 0): ROWS,
    ("transpose_csc", 2): SOURCES,
}
NOT_ARRAYS = {
    "DiskRows": "tests/features/test_disk.py",
    "BroughtRows": "a number only",
    "NeighborLists": "tests/features/test_topology.py",
    "Pipeline": "tests/sampling/test_threads.py",
    "RowCache": "tests/features/test_caches.py",
    "RowReader": "a base class, which nothing makes",
    "Segment": "tests/fullgraph/test_native_segment.py",
    "SegmentPass": "tests/fullgraph/test_native_segment.py",
    "bound": "binds entries that are called here by their own names",
    "Run": "tests/sampling/test_threads.py",
    "Types": "tests/sampling/test_sampler.py",
    "draws": "numbers only",
    "is_compiled": "a name",
    "is_supported": "a name",
    "explain_bus_errors": "no arguments",
    "let_idle_threads_sleep": "no arguments",
    "begin_pass": "numbers only",
    "end_pass": "no arguments",
    "mix": "numbers only",
    "permuted": "numbers only",
    "items_of": "tests/fullgraph/test_following.py",
    "forms_of": "tests/fullgraph/test_following.py",
    "few_edges": "tests/fullgraph/test_typed_batches.py",
    "count_rows": "a function; tests/ops/test_pool.py",
    "pool_bytes": "no arguments",
    "rows_in_pool": "numbers only",
    "raise_resource_errors_as": "a class",
    "select": "a name",
    "xxh64": "any bytes; tests/features/test_disk.py",
}


@pytest.fixture(scope="module")
def calls():
    with pytest.MonkeyPatch.context() as patch:
        return recorded(patch)


def test_every_entry_is_called(calls):
    entries = {name for name in dir(native.kernels()) if not name.startswith("_")}
    assert entries == {*calls, *NOT_ARRAYS}


def test_arrays_of_another_kind_are_refused_by_name(calls):
    wrong, tried = [], 0
    for name, call in calls.items():
        for argument, sound in arrays_given(name, call):
            for way, value in of_another_kind(argument, sound):
                tried += 1
                said = refusal(name, spoiled(call, argument.position, value))
                if said is None or not re.search(rf"\b{argument.name} must (be|have)\b", said):
                    wrong.append(f"{name}, {argument.name} {way}: {said}")
    assert not wrong
    assert tried > 2000


def test_arrays_that_are_only_read_may_be_read_only(calls):
    for name, call in calls.items():
        for argument, sound in arrays_given(name, call):
            if not argument.is_written:
                assert refusal(name, spoiled(call, argument.position, read_only(sound))) is None, argument


def test_arrays_that_do_not_fit_each_other_are_refused(calls):
    taken, tried = [], 0
    for name, call in calls.items():
        for position, way, value in resized(call):
            if (name, position) in FREE:
                continue
            tried += 1
            if refusal(name, spoiled(call, position, value)) is None:
                taken.append(f"{name}, argument {position} {way}")
    assert not taken
    assert tried > 250


def arrays_given(name, call):
    """The entry's arguments that are arrays, and what the call gives for them; not those left out."""
    arguments = array_arguments(getattr(native.kernels(), name))
    given = dict(enumerate(call))
    return [(a, given[a.position]) for a in arguments if given.get(a.position) is not None]


def spoiled(call, position, value):
    """A sound call with other numbers in one place; what it writes is its own."""
    arguments = [a.clone() if isinstance(a, torch.Tensor) else a for a in call]
    arguments[position] = value
    return arguments


def refusal(name, arguments):
    """What the entry says of such arguments; None where it takes them."""
    try:
        getattr(native.kernels(), name)(*arguments)
    except (TypeError, ValueError) as error:
        return str(error)
    return None


def test_a_message_names_the_argument_what_came_and_what_is_right(calls):
    indptr, indices, x, *rest = calls["spmm"]
    with pytest.raises(ValueError, match="indptr must run from 0 to 6; it runs from 1 to 6"):
        native.kernels().spmm(indptr + (indptr == 0), indices, x, *rest)
    rest[9] = rest[9][:-1].clone()
    with pytest.raises(ValueError, match=r"out must have shape \(5, 4\); got \(4, 4\)"):
        native.kernels().spmm(indptr, indices, x, *rest)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("draws", (0, 0, 0, 0, 0, -1), "count must lie in"),
        ("draws", (0, 0, 0, 0, 0, 1 << 62), "count must lie in"),
        ("rows_in_pool", (0, 4, 2, 32), "num_rows must lie in"),
        ("rows_in_pool", (1 << 40, 1 << 40, 2, 32), "num_columns must lie in"),
        ("rows_in_pool", (4, 4, 2, 128), "dtype_bits must lie in"),
        ("permuted", (4, 0, 0, 5), r"end must lie in \[0, 4\]; got 5"),
        ("permuted", (-1, 0, 0, 0), "n must lie in"),
        ("permuted", (4, 0, 3, 2), r"begin must lie in \[0, 2\]; got 3"),
    ],
)
def test_counts_have_bounds(name, arguments, message):
    with pytest.raises(ValueError, match=message):
        getattr(native.kernels(), name)(*arguments)


def test_rows_that_share_memory_are_not_written(calls):
    arguments = list(calls["spmm"])
    arguments[12] = torch.zeros(1, 4).expand(5, 4)
    with pytest.raises(ValueError, match="out must have rows that do not overlap"):
        native.kernels().spmm(*arguments)


def test_tensors_cross_without_references_left_and_only_where_their_memory_is_what_they_show(calls):
    indptr, indices, x, *rest = calls["spmm"]
    kernels, storage = native.kernels(), x.untyped_storage()
    held = sys.getrefcount(x), torch._C._storage_Use_Count(storage._cdata)
    freed = x.clone()
    freed.untyped_storage().resize_(0)
    for _ in range(20):
        kernels.spmm(indptr, indices, x, *rest)
        for given in (x.to_sparse(), x.to("meta"), x.to(torch.complex64).conj(), freed):
            with pytest.raises(TypeError, match="x must be"):
                kernels.spmm(indptr, indices, given, *rest)
    assert held == (sys.getrefcount(x), torch._C._storage_Use_Count(storage._cdata))
