"""The NeighborLoader of graphs with types: PyG's HeteroData in, HeteroData batches out."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from graphbraid.arguments import as_flag
from graphbraid.loader.neighbor import NeighborLoader
from graphbraid.loader.presenting import told_ids
from graphbraid.loader.times import seed_times
from graphbraid.loader.typed.face import TypedFace, TypedInputs
from graphbraid.loader.typed.inputs import as_typed_seeds
from graphbraid.loader.typed.times import TypedTimes, read_typed_times
from graphbraid.sampling.batch_seeds import TreeSeeds
from graphbraid.sampling.typed.source import TypedBatchSource


class TypedNeighborLoader(TypedFace, NeighborLoader):
    """What :class:`graphbraid.loader.NeighborLoader` makes of a ``HeteroData`` or of a graph with types.

    ``num_neighbors`` is a list for all relations or a dict of lists by relation; ``input_nodes`` names the
    node type of the seeds, or is a pair of it and ids, a mask or the name of a split. Batches are
    ``HeteroData``; in layout ``blocks``, or without PyG, :class:`.typed.minibatch.TypedMiniBatch`. With
    ``disjoint`` or ``time_attr``, nodes of every type have ``batch``; where a type or a relation has no
    ``time_attr`` while others have, its edges are early enough for every seed.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.node_sampler = self._batches.typed_config  # type: ignore[assignment]

    def _typed_inputs(self, source: TypedBatchSource, given: dict[str, Any]) -> TypedInputs:
        input_type, part, nodes = as_typed_seeds(given["input_nodes"], source.graph)
        input_id = told_ids(part, given["input_id"], nodes)
        times = read_typed_times(source, given)
        is_disjoint = as_flag(given["disjoint"], "disjoint") or times is not None
        return TypedInputs(
            source=source if times is None else times.source,
            input_type=input_type,
            number=len(nodes),
            nodes=None if is_disjoint else nodes,
            seeds=_trees(input_type, nodes, source, times, given["input_time"]) if is_disjoint else None,
            input_id=input_id,
        )

    def __str__(self) -> str:
        return "NeighborLoader()"


def _trees(
    input_type: str, nodes: Tensor, source: TypedBatchSource, times: TypedTimes | None, input_time: Any
) -> TreeSeeds:
    types = source.graph.types
    assert types is not None, "a loader of data with types"
    whole = nodes + types.first_ids[list(types.nodes).index(input_type)]
    if times is None:
        return TreeSeeds(whole)
    shown = seed_times(input_time, "input_time", len(nodes))
    return TreeSeeds(
        whole,
        times=times.of_nodes(input_type, nodes) if shown is None else times.ordered(shown, "input_time"),
        edge_times=times.edge_times,
        shown_times=shown,
    )
