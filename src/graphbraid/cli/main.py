"""The ``graphbraid`` command with its subcommands; nothing heavy is imported before one of them runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from graphbraid import __version__
from graphbraid.cli.commands import (
    convert,
    doctor,
    estimate,
    info,
    partition,
    plan,
    predict,
    reorder,
    report,
    synth,
    train,
)
from graphbraid.cli.common import NoOutputError, print_json
from graphbraid.errors import ConfigError

EPILOG = (
    "Exit codes: 0 done, 1 not foreseen, 2 option, 3 data, 4 memory or disk, 5 missing package, 6 kernels, "
    "7 training, 8 a rank lost, 130 stopped by Ctrl-C."
)


class _Commands(TyperGroup):
    """The group of subcommands; with ``--json``, a mistyped command or option is reported as JSON too."""

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
    rich_markup_mode="rich",
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


app.command("train", epilog=EPILOG)(train.train)
app.command("estimate", epilog=EPILOG)(estimate.estimate)
app.command("plan", epilog=EPILOG)(plan.plan)
app.command("predict", epilog=EPILOG)(predict.predict)
app.command("report", epilog=EPILOG)(report.report)
app.command("compare", epilog=EPILOG)(report.compare)
app.command("convert", epilog=EPILOG)(convert.convert)
app.command("info", epilog=EPILOG)(info.info)
app.command("reorder", epilog=EPILOG)(reorder.reorder)
app.command("partition", epilog=EPILOG)(partition.partition)
app.command("synth", epilog=EPILOG)(synth.synth)
app.command("doctor", epilog=EPILOG)(doctor.doctor)
