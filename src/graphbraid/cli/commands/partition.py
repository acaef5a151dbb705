"""``graphbraid partition``: divides a graph among ranks and writes the parts to a folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from graphbraid.arguments import check_choice
from graphbraid.cli.common import (
    DebugOption,
    JsonOption,
    err_console,
    flag,
    guarded,
    out_console,
    path_given,
    print_json,
    say,
    table,
)
from graphbraid.files.writing import require_absent

if TYPE_CHECKING:
    from rich.table import Table

    from graphbraid.distributed import PartitionReport
    from graphbraid.distributed.parts.rows import Lists
    from graphbraid.graph import Graph

_MOST_LINES = 32
_STRATEGIES = "auto, metis, components, greedy, contiguous, streaming or random"


@guarded
def partition(
    *,
    out: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder to make.", parser=path_given)],
    data: str = flag(..., "--data -d", "A store, an .npz file, an embedded dataset or an OGB folder."),
    parts: int = flag(..., "--parts -n", "Number of parts, one for each rank."),
    strategy: str = flag("auto", "", f"{_STRATEGIES}."),
    balance: str = flag(
        "edges", "", "Load to make equal: edges, nodes or work (edges and four times nodes)."
    ),
    tolerance: float = flag(1.03, "", "Largest load of a part, as a multiple of the smallest possible one."),
    memory: str | None = flag(None, "", "Memory of the strategy streaming, such as 1GiB.", metavar="SIZE"),
    seed: int = flag(0, "", "Of METIS and of random partitions."),
    keep_edges: bool = flag(
        False, "--keep-edges", "Keep each edge's position in the graph, for edge features."
    ),
    rows: str | None = flag(
        None,
        "",
        "Also write features, labels and lists, for mini-batches of the parts: lists with their parts "
        "(parts), or whole for each rank (whole).",
        metavar="LISTS",
    ),
    overwrite: bool = flag(False, "--overwrite", "Replace an existing partition."),
    json_output: JsonOption = False,
    debug: DebugOption = False,  # noqa: ARG001
) -> None:
    """Divide a graph among ranks: few edges between parts, and parts of equal work.

    Writes a folder with a picture; each rank reads its own part of it. Reports what is cut, which rows the
    parts exchange and how even they are. A folder that holds the same partition of the same graph is used
    again. With --rows, ranks also find the features, labels and lists of their nodes there, and read no
    graph.

    Examples:

        graphbraid partition --data stores/papers --parts 8 parts/papers-8

        graphbraid partition --data stores/huge --parts 64 --strategy streaming --memory 2GiB parts/huge-64

        graphbraid partition --data stores/huge --parts 64 --rows parts parts/huge-64
    """  # noqa: D412  (typer shows the blank line between examples)
    from graphbraid import datasets, distributed
    from graphbraid.distributed.parts.saving import require_room

    options: dict[str, Any] = {
        "num_parts": parts,
        "strategy": strategy,
        "balance": balance,
        "tolerance": tolerance,
        "memory": memory,
        "seed": seed,
    }
    distributed.PartitionOptions(**options)  # refuses what is wrong before the graph is read
    if rows is not None:
        check_choice(rows, "--rows", ("parts", "whole"))
    if not overwrite and not distributed.is_partition(out):
        require_absent(out)
    graph = datasets.load(data)
    noted = options | {"keep_edges": keep_edges, "rows": rows}
    report = None if overwrite else _found(out, graph, noted)
    is_reused = report is not None
    if report is None:
        lists = cast("Lists | None", rows)
        require_room(graph, parts, out, keep_edges=keep_edges, rows=lists)  # before work is lost
        if rows is not None:
            graph.validate()  # ranks that open their parts see no more than these
        report = distributed.save_partition(
            graph,
            distributed.partition(graph, **options),
            out,
            options=noted,
            keep_edges=keep_edges,
            rows=lists,
            if_exists="replace" if overwrite else "error",
        )
    if json_output:
        print_json({"folder": str(out), "is_reused": is_reused, "options": noted} | report.to_json())
    else:
        _show(report, out, is_reused)


def _found(out: Path, graph: Graph, noted: dict[str, Any]) -> PartitionReport | None:
    """Return the report of the same partition, if the folder holds it; None where there is no folder."""
    from graphbraid.distributed import SavedPartition, is_partition
    from graphbraid.errors import ConfigError

    if not is_partition(out):
        return None
    saved = SavedPartition(out, graph)
    for name, value in noted.items():
        if saved.options.get(name) != value:
            raise ConfigError(
                f"{out} holds a partition made with {name}={saved.options.get(name)!r}; this call has "
                f"{value!r}. Choose another folder, or replace it (--overwrite)"
            )
    saved.check()
    return saved.report


def _show(report: PartitionReport, out: Path, is_reused: bool) -> None:
    console = out_console()
    for attempt in report.attempts:
        line = "[green]{}[/]  {}" if attempt.is_taken else "[yellow]{}[/]  {}"
        say(console, line, attempt.strategy, attempt.outcome)
    console.print()
    console.print(_table(report))
    if report.num_parts > _MOST_LINES:
        say(console, "... {} more parts; --json shows all", report.num_parts - _MOST_LINES)
    console.print()
    say(
        console,
        "{} of {} edges cut ({}); {} halo rows; heaviest part by the mean: edges {}, nodes {}, work {}",
        f"{report.edge_cut:,}",
        f"{report.num_edges:,}",
        f"{report.edge_cut_share:.2%}",
        f"{report.halo_rows:,}",
        *(f"{report.imbalance(of):.3f}" for of in ("edges", "nodes", "work")),
    )
    said = "the same partition is there already: {}" if is_reused else "stored in {}, with a picture"
    say(err_console(), said, out)


def _table(report: PartitionReport) -> Table:
    names = ("part", "nodes", "in-edges", "of them local", "halo rows", "sent rows")
    rows = []
    for number, part in enumerate(report.parts[:_MOST_LINES]):
        received = sorted(enumerate(report.halo[number]), key=lambda entry: -entry[1])[:3]
        rows.append(
            (
                str(number),
                f"{part.nodes:,}",
                f"{part.edges:,}",
                f"{part.local_edges / part.edges:.1%}" if part.edges else "",
                f"{part.halo_rows:,}",
                f"{part.sent_rows:,}",
                ", ".join(f"{source} ({rows:,})" for source, rows in received if rows),
            )
        )
    return table(dict.fromkeys(names, "right") | {"receives most from": "left"}, rows)
