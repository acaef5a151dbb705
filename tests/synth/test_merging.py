"""Programs of several ranks become one, or are refused where they differ in more than numbers and arrays."""

import pytest
import torch

from graphbraid.fullgraph import NotLoweredError
from graphbraid.synth.emit.calls import Written
from graphbraid.synth.emit.layout import CppStatement, lines_of
from graphbraid.synth.emit.memory import ArrayFile, digest_of
from graphbraid.synth.emit.mpi import Merging
from graphbraid.synth.emit.writer import PassText, TaskText


def file(name: str, *shape: int) -> ArrayFile:
    return ArrayFile(name, f"{name}.npy", False, torch.ones(shape))


def task(*calls: tuple[str, str], comment: str = "v1: 3 rows") -> PassText:
    written = [Written(kernel, [CppStatement(text)]) for kernel, text in calls]
    return PassText("forward", "The outputs.", [TaskText(comment, written, [])])


def lines_made(merged: PassText) -> list[tuple[str, list[str]]]:
    return [
        (call.condition, [line for statement in call.statements for line in lines_of(statement, 0)])
        for call in merged.tasks[0].calls
    ]


def test_numbers_that_differ_become_sizes_each_once():
    merging = Merging([[], [], []])
    texts = ["f(3, 12, 0.5, 1e-08, k3, 3);", "f(4, 12, 0.5, 1e-08, k3, 4);", "f(3, 12, 0.5, 1e-08, k3, 3);"]
    assert merging.merged(texts) == "f(sizes[0], 12, 0.5, 1e-08, k3, sizes[0]);"
    assert merging.merged([{"count": 7}, {"count": 7}, {"count": 9}]) == {"count": "sizes[1]"}
    assert merging.merged([(True, None), (True, None), (True, None)]) == (True, None)
    assert [merging.numbers(rank).tolist() for rank in range(3)] == [[3, 7], [4, 7], [3, 9]]


def test_arrays_of_one_place_become_one_name_whatever_they_are_called():
    # The second rank reads one array where the first reads two, as of a matrix that is its own transpose.
    merging = Merging([[file("a0", 2, 5), file("b1", 2, 5)], [file("c7", 4, 5)]])
    texts = ["plan.a0.floats(), plan.b1, plan.a0", "plan.c7.floats(), plan.c7, plan.c7"]
    assert merging.merged(texts) == "plan.a0.floats(), plan.b1, plan.a0"
    assert [array.shape for array in merging.arrays] == [("sizes[0]", "5")] * 2
    numbers = merging.numbers(1)
    digests = numbers[len(merging.sizes) :].numpy().view("uint64").tolist()
    assert digests == [digest_of(array.tensors[1]) for array in merging.arrays]


def test_an_array_without_elements_takes_the_shape_of_the_others():
    merging = Merging([[file("a0", 0)], [file("a0", 4, 5)]])
    merging.merged(["plan.a0", "plan.a0"])
    (array,) = merging.arrays
    assert array.shape == ("sizes[0]", "5")
    assert [tuple(tensor.shape) for tensor in array.tensors] == [(0, 5), (4, 5)]


def test_a_call_that_writes_no_rows_is_left_out_where_a_rank_does_not_make_it():
    merging = Merging([[file("x0", 4)], []])
    both = merging.merged([task(("wait", "wait()"), ("spmm", "f(plan.x0, 4)")), task(("wait", "wait()"))])
    assert lines_made(both) == [("", ["wait();"]), ("sizes[1] != 0", ["f(plan.x0, 4);"])]
    assert merging.arrays[0].tensors[1].shape == (0,)
    assert [merging.numbers(rank)[:2].tolist() for rank in range(2)] == [[4, 1], [0, 0]]


def test_a_place_without_an_offset_is_merged_as_one_with_offset_0():
    texts = ["train.v5_and_halo.behind(280)(10, 5)", "train.v5_and_halo(0, 5)"]
    assert Merging([[], []]).merged(texts) == "train.v5_and_halo.behind(sizes[0])(sizes[1], 5)"
    with pytest.raises(NotLoweredError, match=r"ranks differ in the program: 2 entries on one, 1 on another"):
        Merging([[], []]).merged([["a", "b"], ["a"]])


def test_comments_show_n_for_what_differs():
    merged = Merging([[], []]).merged([task(comment="v1: 3 rows"), task(comment="v1: 4 rows")])
    assert merged.tasks[0].comment == "v1: n rows"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (task(("spmm", "f(1);")), task(("spmm", "g(1);"))),
        (task(("spmm", "f(1);")), task(("spmm", "f(1, 2);"))),
        (task(("spmm", "f(0.5);")), task(("spmm", "f(0.25);"))),
        (task(("tall_gram", "f();")), task()),
        (task(("spmm", "f();"), ("spmm", "g();")), task(("spmm", "f();"))),
        (task(("spmm", "f();")), task(("copy_", "f();"))),
        (task(("spmm", "f(plan.a0);")), task(("spmm", "f(plan.b0);"))),
    ],
    ids=["name", "arguments", "fraction", "no call", "one of two calls", "another kernel", "dimensions"],
)
@pytest.mark.whole
def test_other_differences_are_refused_with_their_place(one: PassText, other: PassText):
    for passes in ([one, other], [other, one]):
        with pytest.raises(NotLoweredError, match="ranks differ in the task 'v1: 3 rows'"):
            Merging([[file("a0", 3), file("b0", 3, 2)]] * 2).merged(passes)
