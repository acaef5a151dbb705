"""``graphbraid plan``: plans which device prepares mini-batches, or predicts epochs on many ranks."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

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
from graphbraid.cli.run.settings import GivenOptions, ResolvedRun, flag_of, with_flags
from graphbraid.errors import ConfigError
from graphbraid.files.writing import printable
from graphbraid.train.config import TrainConfig
from graphbraid.train.option_values import names_with

if TYPE_CHECKING:
    from graphbraid.collective import Plan, Profile
    from graphbraid.collective.plan.scheduler import Machine
    from graphbraid.estimates.ranks import Cluster, RankEpoch, RanksForecast
    from graphbraid.graph import Graph
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

        run = resolve_given(given)
        unread = {"--profile": profile, "--batches": batches, "--out": out, "--save-profile": save_profile}
        _refuse_unread(run, given, unread)
        plan_ranks(run, ranks, hardware, json_output=json_output)
        return
    if mode is not None:
        raise ConfigError("--mode is for predictions with --ranks; give --ranks, or leave it out")
    from graphbraid.collective import make_plan
    from graphbraid.collective.plan.scheduler import Machine, alternatives

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


def _refuse_unread(run: ResolvedRun, given: GivenOptions, unread: Mapping[str, object]) -> None:
    """Refuse flags that say nothing about the training on ranks that is predicted."""
    of_batches: dict[str, object] = {}
    if not run.is_sampled:
        of_batches = {flag_of(name): given.values.get(name) for name in names_with("batches", TrainConfig)}
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
    from graphbraid.cli.run.saved_run import resolve_given
    from graphbraid.cli.run.tasks import learning_of
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


# ---- epochs on many ranks

MOST_RANKS = 1 << 16


def parse_ranks(text: str) -> list[int]:
    """Return the numbers of ranks that ``2..1024`` (powers of two), ``2,4,6`` or ``8`` names, and 1.

    Raises:
        ConfigError: the text is none of these, or a number is out of range.
    """
    first, dots, last = text.partition("..")
    try:
        given = [int(part) for part in ([first, last] if dots else text.split(","))]
    except ValueError:
        given = []
    if not given or min(given) < 1 or max(given) > MOST_RANKS or (dots and given[0] > given[1]):
        raise ConfigError(
            f"--ranks takes numbers from 1 to {MOST_RANKS:,}, such as 8, 2,4,6 or 2..1024 (powers of two); "
            f"got {text!r}"
        )
    if dots:
        powers = [1 << i for i in range(MOST_RANKS.bit_length())]
        given += [power for power in powers if given[0] <= power <= given[1]]
    return sorted({1, *given})


def plan_ranks(run: ResolvedRun, ranks: str, hardware: Path | None, *, json_output: bool) -> None:
    """Predict epochs on ranks and show them: of mini-batches if the run asks for these, else of whole graphs.

    ``ranks`` are the numbers as :func:`parse_ranks` takes them, ``hardware`` is the file of the cluster.

    Raises:
        ConfigError: the run learns no labels of nodes, or ranks cannot train the model together.
    """
    if (task := run.train.task) != "node":
        raise ConfigError(
            f"--ranks predicts training on labels of nodes, and this run has task={task!r}; `graphbraid "
            "estimate` counts what one process of it takes"
        )
    counts = parse_ranks(ranks)
    cluster, source = _cluster(hardware)
    if run.is_sampled:
        from graphbraid.cli.run.build import learning
        from graphbraid.estimates.ranks import forecast_sampled

        made = learning(run)
        graph, train = cast("Graph", made.graph), made.run.train
        found = forecast_sampled(made.model, graph, train, counts=counts, cluster=cluster)
    else:
        found = _of_whole_graph(run, counts, cluster)
    if json_output:
        mode = "sampled" if run.is_sampled else "full"
        print_json({"cluster": dataclasses.asdict(cluster), "mode": mode, "graph": found.to_json()})
    else:
        _show_ranks(found, cluster, source)


def _cluster(file: Path | None) -> tuple[Cluster, str]:
    """Return the cluster of a file or the default one, and where its cost of a byte is from."""
    import torch

    from graphbraid.estimates.ranks import TYPICAL_BYTE_SECONDS, TYPICAL_MESSAGE_SECONDS, Cluster

    cluster, threads = Cluster.load(file) if file else Cluster(), torch.get_num_threads()
    if cluster.message_processor_seconds is None:
        cluster = dataclasses.replace(cluster, message_processor_seconds=TYPICAL_MESSAGE_SECONDS / threads)
    if cluster.byte_processor_seconds is not None:
        return cluster, "as the file says"
    cluster = dataclasses.replace(cluster, byte_processor_seconds=TYPICAL_BYTE_SECONDS / threads)
    return cluster, f"as is typical of TCP, divided among {threads} core{'s' * (threads > 1)}"


def _of_whole_graph(run: ResolvedRun, counts: list[int], cluster: Cluster) -> RanksForecast:
    from graphbraid.cli.run.build import build_model, check_trainable, load_graph
    from graphbraid.estimates.full_ranks import forecast_full
    from graphbraid.fullgraph import ALL, Engine, NotLoweredError, Uncompiled, compile  # noqa: A004
    from graphbraid.fullgraph.lowering.costs import constant_bytes

    graph = load_graph(run.settings)
    graph.check_one_type("plan --ranks")
    check_trainable(graph, graph, run.settings)

    model, spare_bytes = build_model(graph, run, graph.num_classes), _spare_bytes(run, cluster)
    # Features are aggregated once if this machine has the memory at all: a rank needs it for its share alone.
    engine = compile(model, graph, spare_bytes=sys.maxsize)
    if isinstance(engine, Uncompiled):
        raise ConfigError(f"ranks train only lowered models together, and {engine.why}")
    engines = [engine]
    if constant_bytes(engine.lowered.program, engine.lowered.costs) > spare_bytes:
        again = compile(model, graph, passes=ALL - {"hoist"})
        assert isinstance(again, Engine), "it was lowered above"
        engines.append(again)
    wire_bytes = 2 if run.train.wire == "bfloat16" else 4
    try:
        return forecast_full(
            graph, engines, counts=counts, cluster=cluster, spare_bytes=spare_bytes, wire_bytes=wire_bytes
        )
    except NotLoweredError as why:
        raise ConfigError(f"several ranks cannot train this model together: {why}") from why


def _spare_bytes(run: ResolvedRun, cluster: Cluster) -> int:
    """Return a rank's memory for values that are computed once: the given one, or else by its free memory."""
    from graphbraid.arguments import as_budget
    from graphbraid.fullgraph.lowering.options import CompileOptions, usual_spare_bytes

    if run.train.spare is not None:
        return as_budget(run.train.spare, "spare")
    if cluster.memory_bytes is not None:
        return usual_spare_bytes(cluster.memory_bytes)
    return CompileOptions().allowed_bytes()


def _show_ranks(found: RanksForecast, cluster: Cluster, source: str) -> None:
    from graphbraid.estimates.full_ranks import FULL_ASSUMPTIONS
    from graphbraid.estimates.ranks import SAMPLED_ASSUMPTIONS

    console, is_sampled = out_console(), found.epoch is not None
    title = f"{printable(found.name)}: {found.num_nodes:,} nodes, {found.num_edges:,} edges"
    if found.epoch is not None:
        seeds, size = found.epoch["num_seeds"], found.epoch["batch_size"]
        title += f", {seeds:,} training nodes in batches of {size:,}"
    rows = [_cells(found, epoch, cluster) for epoch in found.epochs]
    columns = dict.fromkeys(rows[0], "right")
    console.print(table(columns, [list(row.values()) for row in rows], title))
    for sentence in found.assumptions:
        say(console, "  {}", sentence)
    console.print()
    message, byte = cluster.message_processor_seconds or 0.0, cluster.byte_processor_seconds or 0.0
    for sentence in (
        "Times, bytes and memory are those of the busiest rank, which waits for the link or for a batch.",
        f"A message takes {1e6 * cluster.latency_seconds:.3g} us and its bytes at "
        f"{cluster.bandwidth_bytes / 1e9:.3g} GB/s.",
        f"Each message that a rank sends and one that it receives keep its cores from computing for "
        f"{1e6 * message:.3g} us.",
        f"Each byte that a rank sends and one that it receives keep its cores from computing for "
        f"{1e9 * byte:.3g} ns, {source}.",
        *(SAMPLED_ASSUMPTIONS if is_sampled else FULL_ASSUMPTIONS),
    ):
        say(console, "{}", sentence)


def _cells(forecast: RanksForecast, epoch: RankEpoch, cluster: Cluster) -> dict[str, str]:
    from graphbraid.collective.plan.times import format_seconds
    from graphbraid.files.writing import format_bytes

    is_too_large = cluster.memory_bytes is not None and epoch.memory_bytes > cluster.memory_bytes
    cells = {
        "ranks": str(epoch.num_ranks),
        "an epoch": format_seconds(epoch.seconds)
        + ("" if epoch.most_seconds is None else f" to {format_seconds(epoch.most_seconds)}"),
        "computing": format_seconds(epoch.compute_seconds),
        "moving bytes": format_seconds(epoch.moving_seconds),
        "on the link": format_seconds(epoch.link_seconds),
        "waiting": format_seconds(epoch.waiting_seconds),
        "speedup": f"{forecast.speedup(epoch):.2f}",
    }
    if forecast.epoch is None:
        cells["rows sent"] = format_bytes(round(epoch.sent_bytes))
    else:
        cells |= {
            "nodes of a share": f"{epoch.details['nodes']:,.0f}",
            "read by": f"{epoch.details['read_by']:.2f}",
            "sums sent": format_bytes(round(epoch.sent_bytes)),
        }
    return cells | {"memory": format_bytes(round(epoch.memory_bytes)) + " (too much)" * is_too_large}
