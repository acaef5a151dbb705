"""``graphbraid reorder``: renumber the nodes of a store, or of any dataset, into a new store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphbraid.cli.common import DebugOption, JsonOption, flag, guarded, path_flag
from graphbraid.errors import ConfigError
from graphbraid.files.writing import require_absent

if TYPE_CHECKING:
    from collections.abc import Mapping

    from graphbraid.datasets import StoreNames
    from graphbraid.graph import Graph


@guarded
def reorder(
    *,
    data: str = flag(..., "--data -d", "A store, which is read from disk in parts, or any other dataset."),
    by: str = flag(
        ...,
        "--by",
        "Order: degree, rcm (reverse Cuthill-McKee), communities, reverse_pagerank, "
        "weighted_reverse_pagerank, inclusion, presampled, or auto (the best score of a trial).",
    ),
    out: Path = path_flag(..., "--out -o", "Folder of the store to make.", metavar="STORE"),
    fanouts: str | None = flag(
        None, "", "Of inclusion, presampled and auto: neighbours per hop. (default: 15,10)"
    ),
    batch_size: int | None = flag(None, "", "Of the same: seed nodes per batch. (default: 1024)"),
    seed: int | None = flag(None, "", "Of the same: random seed. (default: 0)"),
    overwrite: bool = flag(False, "--overwrite", "Replace an existing store."),
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

        graphbraid reorder --data stores/papers --by inclusion --fanouts 15,10,5 --out stores/papers-hot
    """  # noqa: D412  (typer shows the blank line between examples)
    from graphbraid.cli.steps.storing import make_order, store, tell
    from graphbraid.features.reordering import OF_SAMPLER, check_order_name

    check_order_name(by, "--by", sampled=True)
    if by not in OF_SAMPLER:
        _refuse_unread(by, {"--fanouts": fanouts, "--batch-size": batch_size, "--seed": seed})
    if not overwrite:
        require_absent(out)
    graph, names = _opened(data)
    followed = _sampling(graph, fanouts, batch_size, seed) if by in OF_SAMPLER else {}
    summary = store(graph, out, names=names, order=make_order(graph, by, **followed), overwrite=overwrite)
    tell(graph, out, summary | {"order": by}, as_json=json_output)


def _refuse_unread(by: str, options: Mapping[str, object]) -> None:
    """Refuse options of orders that follow a sampler, where the order does not."""
    for name, value in options.items():
        if value is not None:
            raise ConfigError(
                f"{name} is of orders that follow a sampler, and --by {by} does not; leave it out, or take "
                "inclusion, presampled or auto."
            )


def _sampling(graph: Graph, fanouts: str | None, batch_size: int | None, seed: int | None) -> dict[str, Any]:
    """Make the sampler and the seeds that a score follows: those of a training run."""
    from graphbraid.sampling import SamplerConfig
    from graphbraid.sampling.schedule import SeedSchedule

    train = graph.split("train")
    batch_size, seed = 1024 if batch_size is None else batch_size, 0 if seed is None else seed
    return {
        "sampler": SamplerConfig(fanouts=(15, 10) if fanouts is None else _parsed(fanouts)),
        "schedule": SeedSchedule(seeds=train, batch_size=batch_size, shuffle=True, seed=seed),
    }


def _parsed(fanouts: str) -> tuple[int, ...]:
    from graphbraid.train.config import TrainConfig
    from graphbraid.train.option_values import parsed

    try:
        found: tuple[int, ...] = parsed(TrainConfig, "fanouts", fanouts)
    except ConfigError as error:
        raise ConfigError(f"--fanouts: {error}") from None
    return found


def _opened(data: str) -> tuple[Graph, StoreNames]:
    from graphbraid import datasets

    if datasets.is_store(data):
        return datasets.open_store(data), datasets.open_names(data)
    return datasets.load(data), datasets.StoreNames()
