"""Statements of programs are laid out as clang-format leaves them."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from graphbraid.synth.emit.layout import WIDTH, CppStatement, Fields, aligned, comment_lines, lines_of


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
def test_clang_format_leaves_any_statement_as_it_is(seed: int, tmp_path: Path):
    command = Path(sys.executable).with_name("clang-format")
    if not command.is_file():
        pytest.skip("there is no clang-format")
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
    file = tmp_path / "statements.cpp"
    file.write_text("\n".join([*lines, "}", ""]), encoding="utf-8")
    style = f"--style=file:{Path(__file__).parents[2] / '.clang-format'}"
    done = subprocess.run([command, style, "--dry-run", "-Werror", file], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
