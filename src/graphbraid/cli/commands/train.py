"""``graphbraid train``: trains a model and writes a run folder; ``graphbraid estimate``: what that takes."""

from __future__ import annotations

import dataclasses
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast, get_args

import typer

from graphbraid.arguments import check_choice
from graphbraid.cli.common import (
    INTERRUPTED,
    DebugOption,
    JsonOption,
    err_console,
    facts,
    flag,
    guarded,
    marked,
    out_console,
    path_flag,
    print_json,
    say,
    table,
)
from graphbraid.cli.ranks import must_start, resumed_ranks, start, world_size
from graphbraid.cli.run.settings import GivenOptions, ResolvedRun, with_flags
from graphbraid.errors import ConfigError
from graphbraid.files.progress import listening
from graphbraid.train.config import RUN

if TYPE_CHECKING:
    from graphbraid.estimates.records import Estimate
    from graphbraid.graph import Graph
    from graphbraid.train import Callback, Trainer


RanksOption = Annotated[
    int | None,
    flag(
        ...,
        "--ranks",
        "Start this many processes here, which share the work and divide the cores.",
        panel=RUN,
    ),
]
CommOption = Annotated[
    str | None,
    flag(
        ...,
        "--comm",
        "How ranks of a launcher talk: torch (torchrun) or mpi (mpirun); auto finds out.",
        panel=RUN,
    ),
]


@with_flags()
@guarded
def train(
    given: GivenOptions,
    *,
    ranks: RanksOption = None,
    comm: CommOption = None,
    quiet: bool = flag(False, "--quiet -q", "Show nothing but errors."),
    json_output: JsonOption = False,
    debug: DebugOption = False,  # noqa: ARG001
) -> None:
    """Train a model on a graph, evaluate it, and write a folder with its checkpoints and logs.

    An option given here wins over the same option in --config, and that over the default. Ctrl-C saves and
    stops; with --resume the run continues at exactly that step.

    Examples:

        graphbraid train

        graphbraid train --data cora.npz --model gcn --hidden 16 --mode full --epochs 200 --lr 0.01

        graphbraid train --task link --data kg_fb15k237.npz --model embedding --negatives shared

        graphbraid train --task edge --data stores/shop --relation user,rates,item --model rgcn

        graphbraid train --task graph --data stores/molecules --split stratified:0.8,0.1 --model gin

        graphbraid train --config run.yaml --lr 0.005 --set clip=1.0

        graphbraid train --resume --out runs/braid-2m-sage-1

        graphbraid train --ranks 2

        graphbraid train --ranks 2 --mode full --data stores/papers --partition parts/papers-2
    """  # noqa: D412  (typer shows the blank line between examples)
    if ranks is not None and must_start(ranks, comm):
        raise typer.Exit(start(ranks, sys.argv[1:]))
    if ranks is None and world_size() == 1 and comm is None:
        _train_alone(given, quiet=quiet, json_output=json_output)
        return
    # Its C++ part would print a stack trace for each connection that a lost rank closes.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    from graphbraid import distributed
    from graphbraid.cli.run.saved_run import resolve_given
    from graphbraid.distributed.ranks.joining import CommName

    way = "auto" if comm is None else comm
    check_choice(way, "--comm", get_args(CommName))
    with distributed.init(cast("CommName", way)) as joined:
        if joined.rank == 0:
            _train_alone(given, quiet=quiet, json_output=json_output)
        else:  # only the first rank shows results and has a folder
            _train_in(None, resolve_given(given), quiet=True, json_output=False)


def _train_alone(given: GivenOptions, *, quiet: bool, json_output: bool) -> None:
    """Train as the only rank, or as the one that writes the files and shows results."""
    from graphbraid.cli.run.saved_run import in_own_folder, resolve_given

    with in_own_folder(resolve_given(given), Path("runs")) as (run, run_dir):
        _train_in(run_dir, run, quiet=quiet, json_output=json_output)


def _train_in(run_dir: Path | None, run: ResolvedRun, *, quiet: bool, json_output: bool) -> None:
    from graphbraid.train.progress import ProgressDisplay

    console = err_console()
    console.quiet = quiet
    trainer, about = _make_trainer(run, [ProgressDisplay(console, quiet=quiet)])
    console.print(table({"option": "cyan", "value": "left", "from": "dim"}, run.rows(), "options"))
    console.print(facts(about.items()))
    console.print()
    with listening(None):  # the run has a bar of its own
        result = trainer.fit()
    if run_dir is not None:
        held = (path for path in run_dir.rglob("*") if path.is_file() and not path.name.startswith("."))
        files = sorted(str(path.relative_to(run_dir)) for path in held)
        if json_output:
            shown = {"run_dir": str(run_dir), "files": files, "options": run.saved()}
            print_json(shown | {"result": result.to_json()})
        console.print()
        say(console, "files: {}", ", ".join(files))
    if result.status == "interrupted":
        again = ["graphbraid", "train", "--resume", *resumed_ranks(), "--out", str(run_dir)]
        say(console, "go on with: {}", shlex.join(again))
        raise typer.Exit(INTERRUPTED)


def _make_trainer(run: ResolvedRun, callbacks: list[Callback]) -> tuple[Trainer, dict[str, str]]:
    """Return the trainer of a run, and facts about its data, model and machine."""
    from graphbraid import native
    from graphbraid.cli.commands.info import graph_facts
    from graphbraid.cli.run.build import data_as_path
    from graphbraid.cli.run.tasks import learning_of
    from graphbraid.machine.hardware import Hardware
    from graphbraid.train import Trainer

    learned = learning_of(run)
    run, graph, model = learned.run, learned.graph, learned.model
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    selection = native.active()
    info = {
        "settings": run.saved() | {"data": data_as_path(run.settings.data)},
        "outputs": dataclasses.asdict(learned.outputs),
    }
    if learned.source is not None:
        info["source"] = learned.source.model_dump()
    trainer = Trainer(model, graph, config=run.train, callbacks=callbacks, info=info)
    chosen = {"mode": f"{trainer.config.mode}: {trainer.mode_reason}"} if trainer.mode_reason else {}
    return trainer, {
        "graph": graph_facts(graph, learned.labels),
        "model": f"{type(model).__name__}, {num_parameters:,} parameters",
        "kernels": f"{selection.variant}: {selection.reason}",
        "machine": f"{Hardware.detect().planned_cores} cores",
        **chosen,
        **({"tiers": trainer.tiers_reason} if trainer.tiers_reason else {}),
        "files in": str(run.train.out_dir),
    }


# ---- estimate

_PANEL = "Estimate"
_NOT_ESTIMATED = ("resume", "overwrite", "trust_checkpoint", "trace")
"""Options of ``train`` that do not change the needs of a run."""


@with_flags(but=_NOT_ESTIMATED)
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

    Takes the options and files of `graphbraid train`, for a run in one process. Also shows the mode and the
    tiers of features that the run would choose, with the reasons. Steps are tried on copies of the model.
    A checkpoint is written to time it, and removed.

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
    from graphbraid.estimates.machine import this_machine

    machine = this_machine()
    machine.save(path)
    if json_output:
        print_json(dataclasses.asdict(machine))
    else:
        say(out_console(), "wrote [bold]{}[/]; use it with: graphbraid estimate --hardware {}", path, path)


def _estimated(given: GivenOptions, hardware: Path | None, *, times: bool) -> Estimate:
    from graphbraid.cli.run.saved_run import resolve_given
    from graphbraid.cli.run.tasks import learning_of
    from graphbraid.estimates.estimate import estimate as estimate_run
    from graphbraid.estimates.machine import HardwareFile

    machine = None if hardware is None else HardwareFile.load(hardware)
    learned = learning_of(resolve_given(given))
    if learned.run.train.task == "node":
        cast("Graph", learned.graph).check_one_type("graphbraid estimate")
    return estimate_run(learned.model, learned.graph, config=learned.run.train, hardware=machine, times=times)


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
