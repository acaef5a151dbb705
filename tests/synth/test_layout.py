"""Programs are laid out as clang-format leaves them; those of several ranks become one, or are refused."""

import random
import re
import subprocess
from pathlib import Path

import pytest
import torch

from graphbraid.fullgraph import NotLoweredError
from graphbraid.synth.emit.calls import Written
from graphbraid.synth.emit.layout import WIDTH, CppStatement, Fields, aligned, broken, comment_lines, lines_of
from graphbraid.synth.emit.memory import ArrayFile, digest_of
from graphbraid.synth.emit.mpi import Merging
from graphbraid.synth.emit.writer import PassText, TaskText


def test_a_call_of_two_fields_takes_one_line_if_it_fits():
    fields: Fields = {"x": "train.v5(60, 16)", "out": "train.v7(60, 16)"}
    assert lines_of(CppStatement("add(", fields), 2) == [
        "  add({.x = train.v5(60, 16), .out = train.v7(60, 16)});"
    ]
    assert lines_of(CppStatement("exchange0.wait()"), 4) == ["    exchange0.wait();"]
    assert lines_of(CppStatement("add(", fields | {"more": "true"}), 0)[0] == "add({"
    assert len(lines_of(CppStatement("a_long_name_" * 6 + "(", fields), 0)) == 4


def test_comments_of_declarations_begin_at_one_column():
    assert aligned([("int a;", "1"), ("int long_one;", "2")]) == [
        "int a;         // 1",
        "int long_one;  // 2",
    ]
    assert aligned([]) == []


def test_a_long_comment_is_broken_between_words():
    lines = comment_lines("  - " + "word " * 60, 2)
    assert all(len(line) <= WIDTH and line.startswith("  //   ") for line in lines)
    assert comment_lines("") == ["//"]


@pytest.mark.parametrize("seed", range(3))
def test_clang_format_leaves_any_statement_as_it_is(seed, clang_format, tmp_path):
    draw = random.Random(seed)

    def word(most: int) -> str:
        return "q" + "".join(draw.choice("abcdefghij") for _ in range(draw.randint(1, most)))

    def value() -> str:
        rows = draw.randint(1, 10 ** draw.randint(1, 7))
        kinds = (
            f"train.{word(20)}({rows}, 16)",
            f"plan.{word(15)}.int64s()",
            "true",
            "seeds[0]",
            str(rows / 7),
        )
        return draw.choice(kinds)

    def structure(depth: int) -> Fields:
        names = [word(12) for _ in range(draw.randint(1, 7))]
        return {name: structure(depth - 1) if depth and draw.random() < 0.4 else value() for name in names}

    lines = ["void f() {"]
    for _ in range(200):
        lines += comment_lines(" ".join(word(12) for _ in range(draw.randint(1, 30))), 2)
        lines += lines_of(CppStatement(f"{word(12)}(", structure(1)), 2)
    assert_formatted(clang_format, [*lines, "}", ""], tmp_path)


def assert_formatted(command: Path, lines: list[str], folder: Path) -> None:
    """clang-format leaves lines as they are."""
    file = folder / "statements.cpp"
    file.write_text("\n".join(lines), encoding="utf-8")
    style = f"--style=file:{Path(__file__).parents[2] / '.clang-format'}"
    done = subprocess.run([command, style, "--dry-run", "-Werror", file], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


EVALUATED = 'gnn.evaluate("val", &Program::split_val, 12)'
LONG = [
    f"say({', '.join(map(str, range(60)))});",
    f'say("{"a word " * 40}", epoch, "{"and more " * 12}");',
    f'say("epoch", {EVALUATED} / best, quotient({EVALUATED}, best + gnn.loss(12) - 0.5, 12), waited);',
    f"double x = {' + '.join(f'a_value_with_a_number_{i} * 2.5' for i in range(9))};",
    f"const bool b = {' || '.join(f'a_value_with_a_number_{i} == {i}' for i in range(9))};",
    f"x = script::one_of({', '.join(f'a_value_with_a_number_{i}' for i in range(9))});",
    f"gnn.optimizer({' - '.join(f'a_value_with_a_number_{i}' for i in range(9))}, 14);",
    f"return {' * '.join(f'a_value_with_a_number_{i}' for i in range(9))};",
    *(
        f"{head} ({' && '.join(f'a_value_with_a_number_{i} + {i} < best' for i in range(n))}) {{\n}}"
        for head in ("if", "while")
        for n in (4, 7)
    ),
]


def test_long_statements_of_a_program_are_broken_as_clang_format_does(clang_format, tmp_path):
    lines = ["void f() {", *(line for each in LONG for line in broken(f"  {each}".split("\n")))]
    lines = [*(line if line != "}" else "  }" for line in lines), "}"]
    assert len(lines) > 2 * len(LONG) and max(map(len, lines)) <= WIDTH
    assert_formatted(clang_format, [*lines, ""], tmp_path)


@pytest.mark.parametrize("seed", range(3))
def test_a_statement_that_is_broken_stays_the_same(seed):
    draw = random.Random(seed)

    def value(depth: int) -> str:
        if depth == 0 or draw.random() < 0.2:
            return draw.choice(
                ["x", "a_long_name_of_a_value", "f(x, 3)", '"a text, (and) \\" - more"', "-0.25"]
            )
        parts = [value(depth - 1) for _ in range(draw.randint(1, 5))]
        return draw.choice([f"g({', '.join(parts)})", " + ".join(parts), " || ".join(parts), f"({parts[0]})"])

    for _ in range(100):
        line = f"{draw.choice(['x = ', 'return ', 'say('])}{value(4)};"
        found = broken([line], 2)
        assert re.sub(r"\s+", "", "".join(found).replace('""', "")) == re.sub(r"\s+", "", line)
        assert all(len(part) <= WIDTH - 2 or " " not in part.strip() for part in found)


# ---- programs of several ranks


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
def test_other_differences_are_refused_with_their_place(one, other):
    for passes in ([one, other], [other, one]):
        with pytest.raises(NotLoweredError, match="ranks differ in the task 'v1: 3 rows'"):
            Merging([[file("a0", 3), file("b0", 3, 2)]] * 2).merged(passes)
