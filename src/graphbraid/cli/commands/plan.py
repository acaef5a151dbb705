"""``graphbraid plan``: measures a run's stages and plans which device prepares its mini-batches."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from graphbraid.cli.common import (
    DebugOption,
    JsonOption,
    guarded,
    out_console,
    path_given,
    plain,
    print_json,
    say,
)

if TYPE_CHECKING:
    from graphbraid.cli.run.settings import ResolvedRun
    from graphbraid.collective import Plan, Profile
    from graphbraid.collective.plan.whatif import Machine

_OPTIONS = ("data", "model", "hidden_channels", "num_layers", "batch_size", "layout", "device")
"""Options of the run that is measured and planned."""


def _option(flags: str, text: str, metavar: str | None = None) -> Any:
    return typer.Option(*flags.split(), help=text, metavar=metavar, show_default=False)


def _path(flags: str, text: str, metavar: str) -> Any:
    return typer.Option(*flags.split(), help=text, metavar=metavar, show_default=False, parser=path_given)


@guarded
def plan(
    *,
    config: Annotated[Path | None, _path("--config -c", "Read options from this YAML file.", "FILE")] = None,
    data: Annotated[
        str | None, _option("--data -d", "An embedded dataset's name, an .npz file, a store or OGB folder.")
    ] = None,
    model: Annotated[
        str | None, _option("--model -m", "gcn, sage, gin, gat, gatv2 or mlp. (default: sage)")
    ] = None,
    hidden_channels: Annotated[int | None, _option("--hidden", "Width of hidden layers.")] = None,
    num_layers: Annotated[int | None, _option("--layers", "Number of layers.")] = None,
    fanouts: Annotated[str | None, _option("--fanouts", "Neighbours per hop, such as 15,10.")] = None,
    batch_size: Annotated[int | None, _option("--batch-size", "Seed nodes per batch.")] = None,
    layout: Annotated[str | None, _option("--layout", "subgraph or blocks.")] = None,
    device: Annotated[str | None, _option("--device", "cpu, cuda, cuda:N or auto. (default: cpu)")] = None,
    assignments: Annotated[
        list[str] | None, _option("--set", "Any other option of run.yaml.", "OPTION=VALUE")
    ] = None,
    profile: Annotated[
        Path | None,
        _path("--profile", "Plan from this file of --save-profile instead of measuring.", "FILE"),
    ] = None,
    batches: Annotated[
        int | None, _option("--batches", "Mini-batches per epoch, with --profile. (default: 500)")
    ] = None,
    ranks: Annotated[
        str | None,
        _option("--ranks", "Predict training on so many ranks: 8, 2,4,6 or 2..1024."),
    ] = None,
    mode: Annotated[
        str | None,
        _option("--mode", "With --ranks: sampled, batches that ranks share, or full. (default: full)"),
    ] = None,
    validation: Annotated[
        bool, _option("--validation", "With --ranks --mode sampled: epochs with their validation.")
    ] = False,
    hardware: Annotated[
        Path | None,
        _path("--hardware", "Plan for the machine, or with --ranks the cluster, of this file.", "FILE"),
    ] = None,
    out: Annotated[Path | None, _path("--out -o", "Write the plan, for train --plan.", "FILE")] = None,
    save_profile: Annotated[Path | None, _path("--save-profile", "Write the measured times.", "FILE")] = None,
    json_output: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Measure a run's stages, plan which device prepares its mini-batches, and show what limits it.

    Shows the predicted time of an epoch beside a bound that no schedule can beat, the runners-up, and plans
    for other numbers of cores, links and devices. With --ranks, predicts instead how long an epoch on the
    whole graph, or on mini-batches, would take on many ranks, by simulation.

    Examples:

        graphbraid plan --data cora.npz --model gcn --out plan.json

        graphbraid plan --profile measured.json --hardware machine.json

        graphbraid plan --data cora.npz --model gcn --ranks 2..1024 --hardware cluster.json

        graphbraid plan --data cora.npz --ranks 2..64 --mode sampled --batch-size 1024
    """  # noqa: D412  (typer shows the blank line between examples)
    given = dict(locals())
    if ranks is not None:
        from graphbraid.cli.steps.scale import plan_ranks

        plan_ranks(given, _run(given))
        return
    _check_no_ranks(given)
    from graphbraid.collective import make_plan
    from graphbraid.collective.plan.whatif import Machine, alternatives

    measured, num_batches = _profile(given)
    machine = Machine.load(hardware) if hardware else Machine()
    found = make_plan(machine.apply(measured), num_batches, machine.limits)
    others = alternatives(measured, num_batches, machine)
    if out:
        found.save(out)
    if save_profile:
        measured.save(save_profile)
    if json_output:
        print_json(_as_json(found, others, machine))
    else:
        _show(found, others, out)


def _check_no_ranks(given: dict[str, Any]) -> None:
    """Refuse what only a prediction for ranks reads."""
    from graphbraid.errors import ConfigError

    for name, is_given in (("mode", given["mode"] is not None), ("validation", given["validation"])):
        if is_given:
            raise ConfigError(f"--{name} is for predictions with --ranks; give --ranks, or leave it out")


def _profile(given: dict[str, Any]) -> tuple[Profile, int]:
    """Return the profile to plan from and the number of mini-batches per epoch."""
    from graphbraid.cli.run.settings import flag_of
    from graphbraid.collective import Profile
    from graphbraid.errors import ConfigError

    if given["batches"] is not None and given["batches"] < 1:
        raise ConfigError(f"--batches must be at least 1; got {given['batches']}")
    if given["profile"] is not None:
        for name in (*_OPTIONS, "config", "fanouts", "assignments"):
            if given[name] is not None:
                raise ConfigError(
                    f"{flag_of(name)} says what to measure, but --profile gives a finished measurement; give "
                    "one of them"
                )
        return Profile.load(given["profile"]), given["batches"] or 500
    trainer = _trainer(given)
    batch_size = trainer.config.batch_size
    num_nodes = int(trainer.runner.labels.split("train").numel())
    return trainer.profile(), given["batches"] or -(-num_nodes // batch_size)


def _trainer(given: dict[str, Any]) -> Any:
    from graphbraid.cli.run.learning import learning
    from graphbraid.train import Trainer

    made = learning(_run(given))
    return Trainer(made.model, made.graph, config=made.run.train.updated(out_dir=None, mode="sampled"))


def _run(given: dict[str, Any]) -> ResolvedRun:
    """Return the options of the run that is planned."""
    from graphbraid.cli.run.settings import flag_of, parse_assignments, parse_fanouts, resolve
    from graphbraid.files.yaml_file import read_yaml

    command_line = {name: given[name] for name in (*_OPTIONS, "mode")}
    command_line["fanouts"] = parse_fanouts(given["fanouts"])
    command_line |= parse_assignments(given["assignments"] or [])
    file = read_yaml(given["config"]) if given["config"] else None
    return resolve(command_line, file, None, {name: flag_of(name) for name in given})


def _show(found: Plan, others: list[tuple[str, Plan]], out: Path | None) -> None:
    from rich.table import Table

    from graphbraid.collective.plan.times import format_seconds

    console = out_console()
    console.print(found.table())
    table = Table(title="what if", title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0))
    for column in ("hardware", "plan", "split", "predicted", "speedup", "limited by"):
        table.add_column(column)
    for name, other in others:
        speedup = found.predicted_seconds / other.predicted_seconds
        predicted = format_seconds(other.predicted_seconds)
        split = f"{100 * other.split:.0f} %"
        table.add_row(plain(name), other.name, split, predicted, f"{speedup:.2f}", f"the {other.limit}")
    console.print()
    console.print(table)
    if out:
        say(console, "\nuse it with: graphbraid train --plan {}", out)


def _as_json(found: Plan, others: list[tuple[str, Plan]], machine: Machine) -> dict[str, Any]:
    return {
        "machine": dataclasses.asdict(machine),
        "plan": dataclasses.asdict(found) | {"name": found.name, "split": found.split},
        "what_if": {
            name: {
                "plan": other.name,
                "split": other.split,
                "predicted_seconds": other.predicted_seconds,
                "limit": other.limit,
            }
            for name, other in others
        },
    }
