"""``graphbraid info``: shows what a store or another dataset holds and, on request, checks all of it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from graphbraid.cli.common import DebugOption, JsonOption, flag, guarded, out_console, print_json, say


@guarded
def info(
    *,
    data: Annotated[
        str, typer.Argument(metavar="DATA", help="A store or OGB folder, an .npz file, or a name.")
    ],
    check: bool = flag(
        False, "--check", "Compare a store's files with their checksums and check every value of the graph."
    ),
    json_output: JsonOption = False,
    debug: DebugOption = False,  # noqa: ARG001
) -> None:
    """Show what a graph holds: nodes, edges, features, labels and splits, by type where there are types.

    Examples:

        graphbraid info stores/mag

        graphbraid info stores/mag --check

        graphbraid info cora.npz --json
    """  # noqa: D412  (typer shows the blank line between examples)
    from graphbraid import datasets
    from graphbraid.cli.graph_facts import graph_facts, graph_values, type_facts

    options: dict[str, Any] = {"verify": True} if check and datasets.is_store(data) else {}
    graph = datasets.load(data, **options)
    if check:
        graph.validate()
        if datasets.is_store(data):
            datasets.open_names(data)
    if json_output:
        values = {"data": data, "name": graph.name, **graph_values(graph)}
        print_json(values | {"bytes": graph.nbytes, "checked": check})
        return
    say(out_console(), "{}", graph_facts(graph))
    for name, facts in type_facts(graph):
        say(out_console(), "  {}: {}", name, facts)
    if check:
        say(out_console(), "[green]no problems found[/]")
