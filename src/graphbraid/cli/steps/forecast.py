"""``graphbraid plan --ranks``: predicts an epoch of training on many ranks."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, cast

from graphbraid.cli.common import out_console, print_json, say, table
from graphbraid.errors import ConfigError
from graphbraid.files.writing import printable

if TYPE_CHECKING:
    from graphbraid.cli.run.settings import ResolvedRun
    from graphbraid.estimates.cluster import Cluster, RankEpoch, RanksForecast
    from graphbraid.graph import Graph

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


def plan_ranks(
    run: ResolvedRun, ranks: str, hardware: Path | None, *, validates: bool, json_output: bool
) -> None:
    """Predict epochs on ranks and show them: of mini-batches if the run asks for these, else of whole graphs.

    Args:
        run: the options of the run.
        ranks: the numbers of ranks, as :func:`parse_ranks` takes them.
        hardware: file of the cluster. If None, the default one.
        validates: whether epochs on mini-batches include their validation.
        json_output: whether to print JSON.

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
        found = _of_mini_batches(run, counts, cluster, validates=validates)
    else:
        found = _of_whole_graph(run, counts, cluster)
    if json_output:
        mode = "sampled" if run.is_sampled else "full"
        print_json({"cluster": dataclasses.asdict(cluster), "mode": mode, "graph": found.to_json()})
    else:
        _show(found, cluster, source)


def _cluster(file: Path | None) -> tuple[Cluster, str]:
    """Return the cluster of a file or the default one, and where its cost of a byte is from."""
    import torch

    from graphbraid.estimates.cluster import TYPICAL_BYTE_SECONDS, TYPICAL_MESSAGE_SECONDS, Cluster

    cluster, threads = Cluster.load(file) if file else Cluster(), torch.get_num_threads()
    if cluster.message_processor_seconds is None:
        cluster = dataclasses.replace(cluster, message_processor_seconds=TYPICAL_MESSAGE_SECONDS / threads)
    if cluster.byte_processor_seconds is not None:
        return cluster, "as the file says"
    cluster = dataclasses.replace(cluster, byte_processor_seconds=TYPICAL_BYTE_SECONDS / threads)
    return cluster, f"as is typical of TCP, divided among {threads} core{'s' * (threads > 1)}"


def _of_mini_batches(
    run: ResolvedRun, counts: list[int], cluster: Cluster, *, validates: bool
) -> RanksForecast:
    from graphbraid.cli.run.build import learning
    from graphbraid.estimates.sampled_ranks import forecast_sampled

    made = learning(run)
    return forecast_sampled(
        made.model,
        cast("Graph", made.graph),
        made.run.train,
        counts=counts,
        cluster=cluster,
        validates=validates,
    )


def _of_whole_graph(run: ResolvedRun, counts: list[int], cluster: Cluster) -> RanksForecast:
    from graphbraid.cli.run.build import build_model, check_trainable, load_graph
    from graphbraid.estimates.full_ranks import forecast_full
    from graphbraid.fullgraph import ALL, Engine, NotLoweredError, Uncompiled, compile  # noqa: A004
    from graphbraid.fullgraph.lowering.hoisting import constant_bytes

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
            graph,
            engines,
            counts=counts,
            cluster=cluster,
            spare_bytes=spare_bytes,
            wire_bytes=wire_bytes,
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


def _show(found: RanksForecast, cluster: Cluster, source: str) -> None:
    from graphbraid.estimates.full_ranks import FULL_ASSUMPTIONS
    from graphbraid.estimates.sampled_ranks import SAMPLED_ASSUMPTIONS

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
    """Return the cells of a row by the names of their columns."""
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
            "validation": format_seconds(epoch.details["validation_seconds"]),
            "nodes of a share": f"{epoch.details['nodes']:,.0f}",
            "read by": f"{epoch.details['read_by']:.2f}",
            "sums sent": format_bytes(round(epoch.sent_bytes)),
        }
    return cells | {"memory": format_bytes(round(epoch.memory_bytes)) + " (too much)" * is_too_large}
