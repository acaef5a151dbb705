"""``graphbraid plan``: measures a run's stages and plans which device prepares its mini-batches."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphbraid.cli.common import (
    DebugOption,
    JsonOption,
    facts,
    flag,
    guarded,
    out_console,
    path_flag,
    print_json,
    say,
    table,
)
from graphbraid.cli.run.flags import with_flags
from graphbraid.cli.run.settings import GivenOptions, ResolvedRun, flag_of
from graphbraid.errors import ConfigError
from graphbraid.train.config import TrainConfig
from graphbraid.train.option_values import names_with

if TYPE_CHECKING:
    from graphbraid.collective import Plan, Profile
    from graphbraid.collective.plan.whatif import Machine
    from graphbraid.train import Trainer

_OPTIONS = (
    *("data", "model", "hidden_channels", "num_layers", "fanouts", "batch_size", "layout", "device", "spare"),
)
"""Options of the run that is measured and planned."""


@with_flags(only=_OPTIONS, in_panels=False)
@guarded
def plan(
    given: GivenOptions,
    *,
    profile: Path | None = path_flag(
        None, "--profile", "Plan from this file of --save-profile instead of measuring.", metavar="FILE"
    ),
    batches: int | None = flag(None, "", "Mini-batches per epoch, with --profile. (default: 500)"),
    ranks: str | None = flag(None, "", "Predict training on so many ranks: 8, 2,4,6 or 2..1024."),
    mode: str | None = flag(
        None, "", "With --ranks: sampled, batches that ranks share, or full. (default: full)"
    ),
    validation: bool = flag(
        False, "--validation", "With --ranks --mode sampled: epochs with their validation."
    ),
    hardware: Path | None = path_flag(
        None, "--hardware", "Plan for the machine, or with --ranks the cluster, of this file.", metavar="FILE"
    ),
    out: Path | None = path_flag(None, "--out -o", "Write the plan, for train --plan.", metavar="FILE"),
    save_profile: Path | None = path_flag(
        None, "--save-profile", "Write the measured times.", metavar="FILE"
    ),
    json_output: JsonOption = False,
    debug: DebugOption = False,  # noqa: ARG001
) -> None:
    """Measure a run's stages, plan which device prepares its mini-batches, and show what limits it.

    Shows the predicted time of an epoch beside a bound that no schedule can beat, the runners-up, and plans
    for other numbers of cores, links and devices. With --ranks, predicts instead how long an epoch on the
    whole graph, or on mini-batches, would take on many ranks.

    Examples:

        graphbraid plan --data cora.npz --model gcn --out plan.json

        graphbraid plan --profile measured.json --hardware machine.json

        graphbraid plan --data cora.npz --model gcn --ranks 2..1024 --hardware cluster.json

        graphbraid plan --data cora.npz --ranks 2..64 --mode sampled --batch-size 1024
    """  # noqa: D412  (typer shows the blank line between examples)
    of_ranks = {} if ranks is None or "spare" not in given.values else {"mode": "full"}
    chosen = of_ranks if mode is None else {"mode": mode}
    given = replace(given, values={**given.values, **chosen})
    if ranks is not None:
        from graphbraid.cli.run.saved_run import resolve_given
        from graphbraid.cli.steps.forecast import plan_ranks

        run = resolve_given(given)
        unread = {"--profile": profile, "--batches": batches, "--out": out, "--save-profile": save_profile}
        _refuse_unread(run, given, unread, validation=validation)
        plan_ranks(run, ranks, hardware, validates=validation, json_output=json_output)
        return
    for name, is_given in (("mode", mode is not None), ("validation", validation)):
        if is_given:
            raise ConfigError(f"--{name} is for predictions with --ranks; give --ranks, or leave it out")
    from graphbraid.collective import make_plan
    from graphbraid.collective.plan.whatif import Machine, alternatives

    measured, num_batches = _profile(given, profile, batches)
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


def _refuse_unread(
    run: ResolvedRun, given: GivenOptions, unread: Mapping[str, object], *, validation: bool
) -> None:
    """Refuse flags that say nothing about the training on ranks that is predicted."""
    of_batches: dict[str, object] = {}
    if not run.is_sampled:
        of_batches = {flag_of(name): given.values.get(name) for name in names_with("batches", TrainConfig)}
        of_batches["--validation"] = validation or None
    for flag_given, value in {**of_batches, **unread, "--device": given.values.get("device")}.items():
        if value is not None:
            what = "training on mini-batches" if run.is_sampled else "training on the whole graph"
            instead = ", or give --mode sampled" if flag_given in of_batches else ""
            raise ConfigError(
                f"--ranks predicts {what}, which {flag_given} is not for; leave it out{instead}"
            )


def _profile(given: GivenOptions, file: Path | None, batches: int | None) -> tuple[Profile, int]:
    """Return the profile to plan from and the number of mini-batches per epoch."""
    from graphbraid.collective import Profile

    if batches is not None and batches < 1:
        raise ConfigError(f"--batches must be at least 1; got {batches}")
    if file is None:
        trainer = _trainer(given)
        num_nodes = int(trainer.runner.labels.split("train").numel())
        return trainer.profile(), batches or -(-num_nodes // trainer.config.batch_size)
    flags = [flag_of(name) for name in _OPTIONS if name in given.values]
    flags += ["--config"] * (given.config is not None) + ["--set"] * bool(given.assignments)
    if flags:
        raise ConfigError(
            f"{flags[0]} says what to measure, but --profile gives a finished measurement; give one of them"
        )
    return Profile.load(file), batches or 500


def _trainer(given: GivenOptions) -> Trainer:
    from graphbraid.cli.run.learning import learning_of
    from graphbraid.cli.run.saved_run import resolve_given
    from graphbraid.train import Trainer

    made = learning_of(resolve_given(given))
    return Trainer(made.model, made.graph, config=made.run.train.updated(out_dir=None, mode="sampled"))


def _show(found: Plan, others: list[tuple[str, Plan]], out: Path | None) -> None:
    from graphbraid.collective.plan.times import format_seconds

    console = out_console()
    console.print(facts(found.rows()))
    rows = []
    for name, other in others:
        speedup = found.predicted_seconds / other.predicted_seconds
        seconds, split = format_seconds(other.predicted_seconds), f"{100 * other.split:.0f} %"
        rows.append((name, other.name, split, seconds, f"{speedup:.2f}", f"the {other.limit}"))
    columns = ("hardware", "plan", "split", "predicted", "speedup", "limited by")
    console.print()
    console.print(table(dict.fromkeys(columns, "left"), rows, "what if"))
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
