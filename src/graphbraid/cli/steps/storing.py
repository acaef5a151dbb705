"""Steps of the commands that make a store: they order the nodes, write the store and report it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphbraid.cli.common import err_console, print_json, say
from graphbraid.files.progress import stage

if TYPE_CHECKING:
    from torch import Tensor

    from graphbraid.datasets import Narrowing, StoreNames
    from graphbraid.graph import Graph
    from graphbraid.sampling import SamplerConfig
    from graphbraid.sampling.schedule import SeedSchedule

ORDER_EDGE_BYTES = {"communities": 24, "rcm": 20}
"""Peak bytes per edge to compute an order with int32 ids, without the graph and maps of its nodes."""


def make_order(
    graph: Graph, name: str, *, sampler: SamplerConfig | None = None, schedule: SeedSchedule | None = None
) -> Tensor:
    """Compute the order of the nodes that a name stands for.

    Raises:
        ConfigError: There is no order of that name, or it needs a sampler.
        DataError: The graph lacks what a score needs, such as training nodes.
        ResourceError: Computing it takes more than the free memory.
    """
    import torch

    from graphbraid.datasets.memory import require_memory
    from graphbraid.features.reordering import named_order

    num_bytes = graph.csc.indices.nbytes * ORDER_EDGE_BYTES.get(name, 0) // torch.int32.itemsize
    require_memory(num_bytes, f"ordering the nodes by {name}")
    with stage(f"ordering the nodes by {name}"):
        return named_order(graph, name, sampler=sampler, schedule=schedule)


def store(
    graph: Graph,
    folder: Path,
    *,
    names: StoreNames,
    order: Tensor | None,
    overwrite: bool,
    narrowing: Narrowing | None = None,
) -> dict[str, Any]:
    """Write a store, verify it, and return its summary for ``--json``. ``narrowing`` rounds its features."""
    from graphbraid import datasets
    from graphbraid.cli.graph_facts import graph_values

    if_exists: Any = "replace" if overwrite else "error"
    datasets.save_store(
        graph,
        folder,
        ids=names.ids,
        class_names=names.class_names,
        names=names.types if graph.is_typed else None,
        order=order,
        features_dtype=narrowing,
        if_exists=if_exists,
    )
    stored = datasets.open_store(folder, verify=True)  # reads back what was written, noted for the first open
    summary: dict[str, Any] = {
        "store": str(folder),
        **graph_values(stored),
        "bytes": sum(path.stat().st_size for path in folder.iterdir()),
    }
    return summary if narrowing is None else summary | {"rounding": narrowing.rounding.to_json()}


def tell(graph: Graph, folder: Path, summary: dict[str, Any], *, as_json: bool) -> None:
    """Report the new store."""
    if as_json:
        print_json(summary)
        return
    from graphbraid.cli.graph_facts import graph_facts, type_facts

    say(err_console(), "{}", graph_facts(graph))
    for name, facts in type_facts(graph):
        say(err_console(), "  {}: {}", name, facts)
    say(err_console(), "stored in {}", folder)
