"""``graphbraid estimate``: what a run needs in memory, disk and time before it starts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

from graphbraid.cli.commands.train import CommOption, RanksOption
from graphbraid.cli.common import (
    DebugOption,
    JsonOption,
    flag,
    guarded,
    marked,
    out_console,
    path_flag,
    print_json,
    say,
    table,
)
from graphbraid.cli.run.flags import with_flags
from graphbraid.cli.run.settings import GivenOptions
from graphbraid.errors import ConfigError

if TYPE_CHECKING:
    from graphbraid.estimates.records import Estimate
    from graphbraid.graph import Graph

_PANEL = "Estimate"
_OTHERS = ("resume", "overwrite", "trust_checkpoint", "trace")
"""Options of ``train`` that do not change the needs of a run."""


@with_flags(but=_OTHERS)
@guarded
def estimate(
    given: GivenOptions,
    *,
    hardware: Path | None = path_flag(
        None, "--hardware", "Estimate for the machine that this file describes.", metavar="FILE", panel=_PANEL
    ),
    save_hardware: Path | None = path_flag(
        None,
        "--save-hardware",
        "Write this machine to a file for --hardware, and end.",
        metavar="FILE",
        panel=_PANEL,
    ),
    times: bool = flag(True, "--times/--no-times", "Try some steps for the times.", panel=_PANEL),
    ranks: RanksOption = None,
    comm: CommOption = None,
    json_output: JsonOption = False,
    debug: DebugOption = False,  # noqa: ARG001
) -> None:
    """Show what a run needs in memory, disk and time, in each mode, before it starts.

    Takes the options and files of `graphbraid train`, for a run in one process. Shows also which mode and
    which tiers of features would be chosen, and why. Steps are tried on copies; what is written, to time a
    checkpoint, is removed.

    Examples:

        graphbraid estimate --data stores/papers --model sage --fanouts 15,10,5

        graphbraid estimate --save-hardware big.json

        graphbraid estimate --config run.yaml --hardware big.json
    """  # noqa: D412  (typer shows the blank line between examples)
    if comm is not None or ranks not in (None, 1):
        flag = "--comm" if ranks in (None, 1) else "--ranks"
        raise ConfigError(
            f"an estimate is of a run in one process, which {flag} is not for; leave it out. "
            "`graphbraid plan --ranks N` predicts epochs on N ranks"
        )
    if save_hardware is not None:
        _save(save_hardware, json_output=json_output)
        return
    found = _estimated(given, hardware, times=times)
    if json_output:
        print_json(found.to_json())
    else:
        _show(found)


def _save(path: Path, *, json_output: bool) -> None:
    import dataclasses

    from graphbraid.estimates.machine import this_machine

    machine = this_machine()
    machine.save(path)
    if json_output:
        print_json(dataclasses.asdict(machine))
    else:
        say(out_console(), "wrote [bold]{}[/]; use it with: graphbraid estimate --hardware {}", path, path)


def _estimated(given: GivenOptions, hardware: Path | None, *, times: bool) -> Estimate:
    from graphbraid.cli.run.learning import learning_of
    from graphbraid.cli.run.saved_run import resolve_given
    from graphbraid.estimates.estimate import estimate as estimate_run
    from graphbraid.estimates.machine import HardwareFile

    machine = None if hardware is None else HardwareFile.load(hardware)
    learned = learning_of(resolve_given(given))
    if learned.run.train.task == "node":
        cast("Graph", learned.graph).check_one_type("graphbraid estimate")
    return estimate_run(learned.model, learned.graph, config=learned.run.train, hardware=machine, times=times)


# ---- the tables


def _show(found: Estimate) -> None:
    console = out_console()
    for part in found.modes:
        say(console, "[green]{}[/]" if part.fits else "[bold red]{}[/]", part.heading)
        rows = [
            (name if name.startswith(" ") else marked("[bold]{}[/]", name), amount, why)
            for name, amount, why in part.rows()
        ]
        console.print(table({"part": "left", "amount": "right", "": "left"}, rows))
        console.print()
    for sentence in found.choices():
        say(console, "{}", sentence)
