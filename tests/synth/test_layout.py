"""Statements of programs are laid out as clang-format leaves them."""

import random
import re
import subprocess
from pathlib import Path

import pytest

from graphbraid.synth.emit.layout import WIDTH, CppStatement, Fields, aligned, broken, comment_lines, lines_of


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
def test_clang_format_leaves_any_statement_as_it_is(seed: int, clang_format: Path, tmp_path: Path):
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


def test_long_statements_of_a_program_are_broken_as_clang_format_does(clang_format: Path, tmp_path: Path):
    lines = ["void f() {", *(line for each in LONG for line in broken(f"  {each}".split("\n")))]
    lines = [*(line if line != "}" else "  }" for line in lines), "}"]
    assert len(lines) > 2 * len(LONG) and max(map(len, lines)) <= WIDTH
    assert_formatted(clang_format, [*lines, ""], tmp_path)


@pytest.mark.parametrize("seed", range(3))
def test_a_statement_that_is_broken_stays_the_same(seed: int):
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
