"""The ``graphbraid`` command. A subcommand is imported when it is named, so that ``--help`` shows at once."""

import functools
import importlib
import pkgutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from graphbraid import __version__
from graphbraid.errors import ConfigError

COMMANDS = {
    "train": "train",
    "estimate": "train",
    "plan": "plan",
    "predict": "predict",
    "report": "report",
    "compare": "report",
    "convert": "convert",
    "info": "info",
    "reorder": "convert",
    "partition": "partition",
    "synth": "synth",
    "doctor": "doctor",
}
"""Module in ``graphbraid.cli.commands`` of each subcommand, in the order of the help."""

EPILOG = (
    "Exit codes: 0 done, 1 not foreseen, 2 option, 3 data, 4 memory or disk, 5 missing package, 6 kernels, "
    "7 training, 8 a rank lost, 130 stopped by Ctrl-C."
)


def _summary(name: str) -> str:
    # It is cut from the text of the module: importing all of them would take most of the time of --help.
    try:
        source = pkgutil.get_data(__package__, f"commands/{COMMANDS[name]}.py") or b""
    except OSError:  # only compiled modules are installed
        return str(_parser(name).help).partition("\n")[0]
    return source.decode().partition(f"\ndef {name}(")[2].split('"""')[1].partition("\n")[0]


class _Subcommands(Mapping[str, Any]):
    """The parser of each subcommand, made when it is asked for."""

    def __getitem__(self, name: str) -> Any:
        return _parser(name)

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


@functools.cache
def _parser(name: str) -> Any:
    module = importlib.import_module(f"graphbraid.cli.commands.{COMMANDS[name]}")
    alone = typer.Typer(add_completion=False, rich_markup_mode=None)
    alone.command(name, cls=_Command, epilog=EPILOG)(getattr(module, name))
    return typer.main.get_command(alone)


class _Command(TyperCommand):
    """A subcommand, whose help has a heading for each group of options."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            heading = getattr(parameter, "rich_help_panel", None)
            usual = "Arguments" if parameter.param_type_name == "argument" else "Options"
            if record := parameter.get_help_record(ctx):
                panels.setdefault(heading or usual, []).append(record)
        for heading, records in panels.items():
            with formatter.section(heading):
                formatter.write_dl(records)


class _Commands(TyperGroup):
    """The group of subcommands; with ``--json``, a mistyped command or option is reported as JSON too."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = _Subcommands()  # type: ignore[assignment]

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, _summary(name)) for name in COMMANDS])

    def main(self, args: Sequence[str] | None = None, **options: Any) -> Any:  # type: ignore[override]
        given = list(sys.argv[1:] if args is None else args)
        if "--json" not in given:
            return super().main(given, **options)
        try:
            code = super().main(given, **options | {"standalone_mode": False})
        except Exception as error:
            if not hasattr(error, "format_message"):  # not an error of the parser
                raise
            code = int(getattr(error, "exit_code", ConfigError.exit_code))
            message = str(error.format_message())
            from graphbraid.cli.common import NoOutputError, print_json

            try:
                print_json({"error": {"type": "ConfigError", "message": message, "exit_code": code}})
            except NoOutputError:
                sys.stderr.write(f"error: {message}\n")
        sys.exit(code if isinstance(code, int) else 0)


app = typer.Typer(
    name="graphbraid",
    cls=_Commands,
    help="Train graph neural networks faster on the hardware you have.",
    epilog=EPILOG,
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode=None,  # help in plain text: rich's takes 0.15 s to import
    pretty_exceptions_enable=False,
)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"graphbraid {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Train graph neural networks faster on the hardware you have."""
