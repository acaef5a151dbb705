"""``graphbraid plan --ranks``: predicts an epoch of training on many ranks, by simulation."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from graphbraid.cli.common import out_console, plain, print_json, say
from graphbraid.cli.steps.scale_text import network_sentences, with_range

if TYPE_CHECKING:
    from graphbraid.cli.run.settings import ResolvedRun
    from graphbraid.fullgraph.scale.cluster import Cluster
    from graphbraid.fullgraph.scale.forecast import Forecast
    from graphbraid.graph import Graph

MOST_RANKS = 1 << 16
_NOT_FOR_RANKS = ("profile", "batches", "out", "save_profile", "device")
_OF_MINI_BATCHES = ("fanouts", "batch_size", "layout")


def parse_ranks(text: str) -> list[int]:
    """Return the numbers of ranks that ``2..1024`` (powers of two), ``2,4,6`` or ``8`` names, and 1.

    Raises:
        ConfigError: the text is none of these, or a number is out of range.
    """
    from graphbraid.errors import ConfigError

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


def plan_ranks(given: dict[str, Any], run: ResolvedRun) -> None:
    """Predict epochs for the numbers of ranks in ``given`` and show them.

    They are of mini-batches if the run's mode is given as ``sampled``, else of the whole graph.

    Args:
        given: the options of the command by name.
        run: the options of the run.

    Raises:
        ConfigError: an option is for mini-batches, or ranks cannot train the model together.
    """
    from graphbraid.errors import ConfigError

    if run.train.task == "link":
        raise ConfigError("--ranks predicts training on labels of nodes; task='link' has none")
    is_sampled = run.train.mode == "sampled" and "mode" in run.sources
    _check_flags(given, is_sampled=is_sampled)
    counts = parse_ranks(given["ranks"])
    cluster, moving, source = _cluster(given["hardware"])
    said: dict[str, Any] = {"cluster": dataclasses.asdict(cluster)}
    if is_sampled:
        from graphbraid.cli.steps.scale_sampled import forecast_of, show_shares

        shares = forecast_of(run, counts, cluster, moving, validates=given["validation"])
        if given["json_output"]:
            print_json(said | {"mode": "sampled", "graphs": [shares.to_json()]})
        else:
            show_shares(shares, cluster, source)
        return
    found = forecasts(run, counts, cluster, moving)
    if given["json_output"]:
        print_json(said | {"mode": "full", "graphs": [f.to_json() for f in found]})
    else:
        _show(found, cluster, source)


def _check_flags(given: dict[str, Any], *, is_sampled: bool) -> None:
    """Refuse what says nothing about the training that is predicted.

    Raises:
        ConfigError: a flag is for another kind of plan, or of training.
    """
    from graphbraid.errors import ConfigError

    what, instead = "training on mini-batches", ""
    others = [name for name in _NOT_FOR_RANKS if given[name] is not None]
    if not is_sampled:
        what = "training on the whole graph"
        of_batches = [name for name in _OF_MINI_BATCHES if given[name] is not None]
        of_batches += ["validation"] * given["validation"]
        instead, others = ", or give --mode sampled" * bool(of_batches), of_batches + others
    if others:
        flag = "--" + others[0].replace("_", "-")
        raise ConfigError(f"--ranks predicts {what}, which {flag} is not for; leave it out{instead}")


def _cluster(file: str | None) -> tuple[Cluster, tuple[float, float] | None, str]:
    """Return the cluster of a file or the default one, the range of its bytes' cost, and where it is from."""
    import torch

    from graphbraid.fullgraph.measured.messages import message_cost
    from graphbraid.fullgraph.measured.moving import byte_cost
    from graphbraid.fullgraph.scale.cluster import Cluster

    cluster, threads = Cluster.load(file) if file else Cluster(), torch.get_num_threads()
    if cluster.message_processor_seconds is None:
        cluster = dataclasses.replace(cluster, message_processor_seconds=message_cost() / threads)
    if cluster.byte_processor_seconds is not None:
        return cluster, None, "as the file says"
    cost = byte_cost()
    moving = cost.low / threads, cost.high / threads
    cores, low, high = f"{threads} core{'s' * (threads > 1)}", *(f"{1e9 * cost:.3g}" for cost in moving)
    source = (
        f"as TCP took here within the machine while its cores computed, divided among {cores}; half of the "
        f"windows lie between {low} and {high} ns, and epochs then between those in brackets"
    )
    return dataclasses.replace(cluster, byte_processor_seconds=cost.seconds / threads), moving, source


def forecasts(
    run: ResolvedRun, counts: list[int], cluster: Cluster, moving: tuple[float, float] | None = None
) -> list[Forecast]:
    """Return predictions for the run's graph, from kernels measured on it, and for the published sizes.

    Args:
        run: the options of the run.
        counts: numbers of ranks, ascending, the first of them 1.
        cluster: the ranks and their network.
        moving: processor seconds between which moving a byte was measured, if it was.

    Raises:
        ConfigError: ranks cannot train the model together.
    """
    from graphbraid.cli.run.build import build_model, check_trainable, load_graph
    from graphbraid.errors import ConfigError
    from graphbraid.fullgraph import NotLoweredError, Uncompiled, compile, lower  # noqa: A004
    from graphbraid.fullgraph.measured.rates import machine_rates
    from graphbraid.fullgraph.scale.forecast import forecast_at_hand, forecast_by_size, measured_law
    from graphbraid.fullgraph.scale.published import PUBLISHED

    graph: Graph = load_graph(run.settings)
    graph.check_one_type("plan --ranks")
    check_trainable(graph, run.settings)
    settings, seed, wire_bytes = run.settings, run.train.seed, 2 if run.train.wire == "bfloat16" else 4
    engine = compile(build_model(settings, graph.num_features, graph.num_classes, seed), graph)
    if isinstance(engine, Uncompiled):
        raise ConfigError(f"ranks train only lowered models together, and {engine.why}")
    floor = engine.floor(measure=True)
    division = measured_law(graph, counts)
    try:
        at_hand = forecast_at_hand(
            graph,
            engine.lowered,
            floor,
            counts=counts,
            cluster=cluster,
            division=division,
            moving=moving,
            wire_bytes=wire_bytes,
        )
    except NotLoweredError as why:
        raise ConfigError(f"several ranks cannot train this model together: {why}") from why
    by_size = [
        forecast_by_size(
            size,
            lambda features, classes: build_model(settings, features, classes, seed),
            lambda model, small, options: lower(model, small, "train", options),
            rates=cluster.rates or machine_rates(),
            counts=counts,
            cluster=cluster,
            law=division[0],
            slowness=max(1.0, floor.ratio or 1.0),
            moving=moving,
            wire_bytes=wire_bytes,
        )
        for size in PUBLISHED
    ]
    return [at_hand, *by_size]


def _show(found: list[Forecast], cluster: Cluster, moving: str) -> None:
    from rich.table import Table

    from graphbraid.collective.plan.times import format_seconds
    from graphbraid.files.writing import format_bytes
    from graphbraid.fullgraph.scale.forecast import NETWORK_ASSUMPTIONS

    console = out_console()
    for forecast in found:
        title = f"{plain(forecast.name)}: {forecast.num_nodes:,} nodes, {forecast.num_edges:,} edges"
        table = Table(title=title, title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0))
        for column in (
            "ranks",
            "an epoch",
            "computing",
            "moving bytes",
            "on the link",
            "waiting",
            "speedup",
            "rows sent",
            "memory",
        ):
            table.add_column(column, justify="right")
        for p, seconds in zip(forecast.predictions, forecast.ranges, strict=True):
            is_too_large = cluster.memory_bytes is not None and p.memory_bytes > cluster.memory_bytes
            table.add_row(
                str(p.num_ranks),
                with_range(p.seconds, seconds),
                *map(format_seconds, (p.compute_seconds, p.moving_seconds)),
                *map(format_seconds, (p.link_seconds, p.waiting_seconds)),
                f"{forecast.speedup(p):.2f}",
                format_bytes(round(p.sent_bytes)),
                format_bytes(round(p.memory_bytes)) + " (too much)" * is_too_large,
            )
        console.print(table)
        for sentence in forecast.assumptions:
            say(console, "  {}", sentence)
        console.print()
    rows = "Rows sent and memory are the busiest rank's."
    for sentence in (*network_sentences(cluster, moving), rows, *NETWORK_ASSUMPTIONS):
        say(console, "{}", sentence)


__all__ = ["forecasts", "parse_ranks", "plan_ranks"]
