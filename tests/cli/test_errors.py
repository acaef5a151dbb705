"""Errors of commands: one clear message, the right exit code, no traceback unless asked for."""

import errno
import importlib
import json
import pkgutil
from unittest.mock import Mock

import pytest
import typer
from tests.extras import PATIENCE

from graphbraid.cli.common import guarded
from graphbraid.cli.main import COMMANDS
from graphbraid.errors import (
    ConfigError,
    DataError,
    KernelError,
    MissingPackageError,
    ResourceError,
    TrainingError,
)

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
