"""``graphbraid reorder``: renumber the nodes of a store, or of any dataset, into a new store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from graphbraid.cli.common import DebugOption, JsonOption, guarded, path_given

if TYPE_CHECKING:
    from graphbraid.datasets import StoreNames
    from graphbraid.graph import Graph


@guarded
def reorder(
    *,
    data: Annotated[
        str,
        typer.Option("--data", "-d", help="A store, which is read from disk in parts, or any other dataset."),
    ],
    by: Annotated[
        str,
        typer.Option(
            "--by",
            help="Order: degree (read most often first), rcm (reverse Cuthill-McKee) or communities.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path,
        typer.Option("--out", "-o", help="Folder of the store to make.", metavar="STORE", parser=path_given),
    ],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing store.")] = False,
    json_output: JsonOption = False,
    debug: DebugOption = False,  # noqa: ARG001
) -> None:
    """Renumber the nodes of a store, from disk to disk.

    Topology, features, labels and splits are written in parts, so the graph may be larger than memory
    (communities and rcm need memory for the edges to compute the order). The new store keeps the original
    node ids, which predict writes to its output. It is written atomically and verified.

    Examples:

        graphbraid reorder --data stores/papers --by degree --out stores/papers-by-degree

        graphbraid reorder --data stores/web --by communities --out stores/web --overwrite
    """  # noqa: D412  (typer shows the blank line between examples)
    from graphbraid.cli.storing import make_order, store, tell
    from graphbraid.features.reorder import check_order_name

    check_order_name(by, "--by")
    graph, names = _opened(data)
    summary = store(
        graph,
        out,
        ids=names.ids,
        class_names=names.class_names,
        order=make_order(graph, by),
        overwrite=overwrite,
    )
    tell(graph, out, summary | {"order": by}, as_json=json_output)


def _opened(data: str) -> tuple[Graph, StoreNames]:
    from graphbraid import datasets

    if datasets.is_store(data):
        return datasets.open_store(data), datasets.open_names(data)
    return datasets.load(data), datasets.StoreNames()
