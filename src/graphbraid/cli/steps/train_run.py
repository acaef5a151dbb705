"""The run behind ``graphbraid train``: options resolved, the Trainer made and shown, alone or as a rank."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import typer

from graphbraid.cli.common import INTERRUPTED, err_console, print_json, say
from graphbraid.errors import ConfigError

if TYPE_CHECKING:
    from graphbraid.cli.run.settings import ResolvedRun
    from graphbraid.distributed.ranks.joining import CommName


def train_as_rank(given: dict[str, Any]) -> None:
    """Train as one of the ranks of a launcher; only the first one shows results and has a folder."""
    from graphbraid import distributed

    with distributed.init(_checked_comm(given["comm"])) as joined:
        if joined.rank == 0:
            train_alone(given)
            return
        _train_in(None, resolved(given), given | {"quiet": True, "json_output": False})


def _checked_comm(name: str | None) -> CommName:
    from graphbraid.distributed.ranks.joining import CommName

    for known in get_args(CommName):
        if name in (None, known):
            found: CommName = known if name else "auto"
            return found
    raise ConfigError(f"--comm must be one of {', '.join(get_args(CommName))}; got {name!r}")


def train_alone(given: dict[str, Any]) -> None:
    """Train as the only rank, or as the one that writes the files and shows results."""
    from graphbraid.cli.run.new_folder import in_own_folder

    with in_own_folder(resolved(given), Path("runs")) as (run, run_dir):
        _train_in(run_dir, run, given)


def _train_in(run_dir: Path | None, run: ResolvedRun, given: dict[str, Any]) -> None:
    from graphbraid.cli.steps import display

    console = err_console()
    console.quiet = bool(given["quiet"])
    trainer = _make_trainer(
        run, lambda facts: display.show_plan(console, run, facts), [display.EpochLines(console)]
    )
    result = trainer.fit()
    if run_dir is not None:
        if given["json_output"]:
            print_json(display.result_json(run, result, run_dir))
        display.show_result(console, result, run_dir)
    if result.status == "interrupted":
        say(console, "go on with: graphbraid train --resume --out {}", run_dir)
        raise typer.Exit(INTERRUPTED)


def resolved(given: dict[str, Any]) -> ResolvedRun:
    """Return all options of the run, checked."""
    from graphbraid.cli.run.saved_run import read_saved
    from graphbraid.cli.run.settings import flag_of, parse_assignments, parse_fanouts, resolve
    from graphbraid.files.yaml_file import read_yaml

    not_options = ("config", "assignments", "ranks", "comm", "quiet", "json_output", "debug")
    command_line = {name: value for name, value in given.items() if name not in not_options}
    command_line["fanouts"] = parse_fanouts(given["fanouts"])
    command_line |= parse_assignments(given["assignments"] or [])
    file = read_yaml(given["config"]) if given["config"] else None
    flags = {name: flag_of(name) for name in given}
    saved = saved_in = None
    if command_line.get("resume"):
        if command_line.get("out_dir") is None and "out_dir" not in (file or {}):
            raise ConfigError("--resume needs --out with the folder of the run to go on with")
        saved_in = command_line.get("out_dir") or (file or {})["out_dir"].value
        if not isinstance(saved_in, str | Path) or not str(saved_in):
            raise ConfigError(f"out_dir must be the folder of the run to go on with; got {saved_in!r}")
        saved_in = Path(saved_in)
        saved, _, _ = read_saved(saved_in)
    return resolve(command_line, file, saved, flags, saved_in=saved_in)


def _make_trainer(run: ResolvedRun, show: Callable[[dict[str, str]], None], callbacks: list[Any]) -> Any:
    from graphbraid import native
    from graphbraid.cli.graph_facts import graph_facts
    from graphbraid.cli.run.build import data_as_path
    from graphbraid.cli.run.learning import learning
    from graphbraid.machine.hardware import Hardware
    from graphbraid.train import Trainer

    learned = learning(run)
    run, graph, model = learned.run, learned.graph, learned.model
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    selection = native.active()
    info = {
        "settings": run.saved() | {"data": data_as_path(run.settings.data)},
        "outputs": dataclasses.asdict(learned.outputs),
    }
    trainer = Trainer(model, graph, config=run.train, callbacks=callbacks, info=info)
    chosen = {"mode": f"{trainer.config.mode}: {trainer.mode_reason}"} if trainer.mode_reason else {}
    show(
        {
            "graph": graph_facts(graph, learned.labels),
            "model": f"{type(model).__name__}, {num_parameters:,} parameters",
            "kernels": f"{selection.variant}: {selection.reason}",
            "machine": f"{Hardware.detect().planned_cores} cores",
            **chosen,
            **({"tiers": trainer.tiers_reason} if trainer.tiers_reason else {}),
            "files in": str(run.train.out_dir),
        }
    )
    return trainer
