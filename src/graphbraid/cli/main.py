"""The ``graphbraid`` command: gathers the commands; nothing heavy is imported before one of them runs."""

from __future__ import annotations

from typing import Annotated

import typer

from graphbraid import __version__
from graphbraid.cli import convert, doctor, predict, train

EPILOG = (
    "Exit codes: 0 done, 1 not foreseen, 2 option, 3 data, 4 memory or disk, 5 missing package, 6 kernels, "
    "7 training, 130 stopped by Ctrl-C."
)

app = typer.Typer(
    name="graphbraid",
    help="Train graph neural networks faster on the hardware you have.",
    epilog=EPILOG,
    no_args_is_help=True,
    add_completion=False,
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
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Train graph neural networks faster on the hardware you have."""


app.command("train", epilog=EPILOG)(train.train)
app.command("predict", epilog=EPILOG)(predict.predict)
app.command("convert", epilog=EPILOG)(convert.convert)
app.command("doctor", epilog=EPILOG)(doctor.doctor)


def run() -> None:
    """Entry point of the ``graphbraid`` script."""
    app(prog_name="graphbraid")
