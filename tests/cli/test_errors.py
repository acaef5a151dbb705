"""Errors of commands: one clear message, the right exit code; what a user names is printed as it is."""

import ast
import errno
import importlib
import json
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import typer
from rich.console import Console
from tests.extras import PATIENCE
from typer.testing import CliRunner

import graphbraid
from graphbraid.cli.common import err_console, guarded, marked, out_console, print_json, say
from graphbraid.cli.main import COMMANDS, app
from graphbraid.errors import (
    ConfigError,
    DataError,
    KernelError,
    MissingPackageError,
    ResourceError,
    TrainingError,
)
from graphbraid.files.writing import printable

CASES = [
    (ConfigError("epochs must be 1"), 2, "epochs must be 1"),
    (DataError("edge 3"), 3, "edge 3"),
    (ResourceError("no room"), 4, "no room"),
    (MissingPackageError("pip install x"), 5, "pip install x"),
    (KernelError("no avx512"), 6, "no avx512"),
    (TrainingError("epoch 2"), 7, "epoch 2"),
    (KeyboardInterrupt(), 130, "interrupted"),
    (MemoryError(), 4, "out of memory; try a smaller batch"),
    (
        OSError(errno.ENOSPC, "No space left on device", "/data/x"),
        4,
        "/data/x: No space left on device; free some",
    ),
    (PermissionError(errno.EACCES, "Permission denied", "out"), 4, "out: Permission denied; choose a place"),
    (ZeroDivisionError("division by zero"), 1, "ZeroDivisionError: division by zero (not foreseen"),
    (DataError("a [bold]tag[/] and [0, 5)"), 3, "a [bold]tag[/] and [0, 5)"),
]


def call(error, **options):
    @guarded
    def command(*, json_output=False, debug=False):
        raise error

    with pytest.raises(typer.Exit) as exit_:
        command(**options)
    return exit_.value.exit_code


@pytest.mark.parametrize(("error", "code", "message"), CASES, ids=lambda value: type(value).__name__)
def test_a_person_gets_the_message_and_the_shell_the_code(error, code, message, capsys):
    assert call(error) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert message in printed.err
    assert "Traceback" not in printed.err


@pytest.mark.parametrize(("error", "code", "message"), CASES, ids=lambda value: type(value).__name__)
def test_a_program_gets_one_json_object(error, code, message, capsys):
    assert call(error, json_output=True) == code
    report = json.loads(capsys.readouterr().out)["error"]
    assert report["exit_code"] == code
    assert report["type"] == type(error).__name__
    assert message in report["message"]


def test_numbers_that_json_lacks_are_null(capsys):
    print_json({"auroc": float("nan"), "others": [float("inf"), 0.5, Path("x")]})
    assert json.loads(capsys.readouterr().out) == {"auroc": None, "others": [None, 0.5, "x"]}


def test_debug_shows_the_traceback(capsys):
    assert call(DataError("edge 3"), debug=True) == 3
    printed = capsys.readouterr().err
    assert "Traceback" in printed
    assert "DataError: edge 3" in printed


@pytest.mark.slow
def test_a_reader_that_goes_away_is_no_error():
    import subprocess
    import sys

    script = f"{sys.executable} -m graphbraid doctor --json | head -c 1"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=PATIENCE)
    assert done.stdout == "{"
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["train", "predict", "convert", "doctor"])
def test_every_command_has_help_with_examples(graphbraid, command):
    done = graphbraid(command, "--help")
    assert "Examples:" in done.stdout
    assert done.stdout.count(f"graphbraid {command}") >= 3
    assert "--json" in done.stdout
    assert "Exit codes" in done.stdout


@pytest.mark.parametrize("error", [None, FileNotFoundError])  # there may be compiled modules alone
def test_the_list_of_commands_says_what_each_says_of_itself(graphbraid, monkeypatch, error):
    if error is not None:
        monkeypatch.setattr(pkgutil, "get_data", Mock(side_effect=error))
    shown = "".join(graphbraid("--help").stdout.split())
    for name, module in COMMANDS.items():
        command = getattr(importlib.import_module(f"graphbraid.cli.commands.{module}"), name)
        line = command.__doc__.partition("\n")[0]
        assert "".join((name, *line.split())) in shown


def test_version_and_python_m(graphbraid_process):
    import graphbraid as package

    done = graphbraid_process("--version")
    assert (done.exit_code, done.stdout) == (0, f"graphbraid {package.__version__}\n")


# ---- what users name


PACKAGE = Path(graphbraid.__file__).parent
ODD = ["[red]a[/]", "[/]", "[bold", ":smile:", "a\\", "[link=x]y[/link]", "{}", "{0.__class__}", "%s", "ü 漢"]


@pytest.mark.parametrize("text", ODD)
def test_values_are_printed_as_they_are(text, capsys):
    assert marked("[bold]{}[/] {}", text, text).plain == f"{text} {text}"
    say(err_console(), "in {}", text)
    out_console().print(text)
    seen = capsys.readouterr()
    assert seen.err == f"in {text}\n"
    assert seen.out == f"{text}\n"


def test_control_characters_are_spelled_out():
    assert printable("a\x1b[31mb\rc\nd\udcffe") == "a\\x1b[31mb\\rc\nd\\udcffe"


@pytest.mark.parametrize("name", ["[red]a", "[/]", "a[/bold]b", ":smile:", "a\\"])
def test_folders_and_files_of_any_name(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = Path(name)
    folder.parent.mkdir(exist_ok=True)
    np.savez(tmp_path / "g.npz", edge_index=[[0, 1], [1, 0]], x=np.eye(2, dtype=np.float32))
    done = CliRunner().invoke(app, ["convert", "g.npz", str(folder)])
    assert done.exit_code == 0, done.stderr
    assert f"stored in {folder}" in done.stderr
    done = CliRunner().invoke(app, ["convert", "g.npz", str(folder)])
    assert done.exit_code == 4
    assert f"cannot write {folder}: it exists already" in done.stderr
    done = CliRunner().invoke(app, ["train", "--data", str(folder / "x"), "--out", str(folder)])
    assert done.exit_code == 3
    assert repr(str(folder / "x")) in done.stderr or str(folder / "x") in done.stderr


PRINTING = ("Console", "TextColumn", "from_markup", "marked", "say", "add_row")


def calls() -> Iterator[tuple[Path, ast.Call, str]]:
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if not any(f"{name}(" in text for name in PRINTING):
            continue  # to parse all modules takes seconds
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call):
                name = (
                    node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                )
                yield path, node, name


def test_no_console_reads_markup_out_of_what_it_prints():
    """One place makes markup, of constant templates: user text cannot get to it unescaped."""
    seen = set()
    for path, call, name in calls():
        where = f"{path.relative_to(PACKAGE)}:{call.lineno}"
        given = {k.arg: k.value for k in call.keywords}
        if name in ("Console", "TextColumn"):
            seen.add(name)
            markup = given.get("markup")
            assert isinstance(markup, ast.Constant), where
            assert markup.value is False, where
        elif name == "from_markup":
            assert path.name == "common.py", where
            seen.add(name)
        elif name == "add_row":  # whose cells would show markup as it is written
            seen.add(name)
            cells = [cell for cell in call.args if not isinstance(cell, ast.Call)]
            parts = [part for cell in cells for part in ast.walk(cell) if isinstance(part, ast.Constant)]
            assert not [part.value for part in parts if "[/" in str(part.value)], where
        elif name in ("marked", "say") and isinstance(call.func, ast.Name):  # no method of another class
            seen.add(name)
            template = call.args[1 if name == "say" else 0]
            inner = [part for part in ast.walk(template) if isinstance(part, ast.FormattedValue)]
            assert path.name == "common.py" or not inner, where
    assert set(PRINTING) - {"marked"} <= seen


def test_a_console_of_the_libraries_reads_markup():
    """The tests above can fail: rich does read markup unless told otherwise."""
    console = Console(width=80)
    with console.capture() as captured:
        console.print("[red]a[/]")
    assert captured.get() == "a\n"


@pytest.mark.parametrize("ending", [">/dev/full", ">&-"])
def test_a_result_that_cannot_be_written_is_an_error(ending):
    """Python would report a full disk as it exits, with a code of its own, and a closed output never."""
    for words, code, says in (
        ("--version", 4, "cannot write"),
        ("train --ranks 0 --json", 2, "--ranks must"),
        ("train --rank 2 --json", 2, "No such option: --rank"),
    ):
        line = f"{sys.executable} -m graphbraid {words} {ending}"
        done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr
        assert done.stderr.startswith(f"error: {says}")
        assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("ending", ["2>/dev/full", "2>&-"])
def test_what_standard_error_does_not_take_changes_no_exit_code(ending):
    line = f"{sys.executable} -m graphbraid train --ranks 0 {ending}"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "")
