"""The NeighborLoader of graphs with types: PyG's HeteroData in, HeteroData batches out."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from graphbraid.errors import ConfigError
from graphbraid.graph import Graph
from graphbraid.loader.neighbor import NeighborLoader
from graphbraid.loader.presenting import pyg_batch_class, told_ids
from graphbraid.loader.typed.batches import TypedBatchLoader
from graphbraid.loader.typed.inputs import as_typed_config, as_typed_seeds, refuse_one_type_only
from graphbraid.loader.typed.reading import contents_of, is_same, typed_source


class TypedNeighborLoader(NeighborLoader):
    """What :class:`graphbraid.loader.NeighborLoader` makes of a ``HeteroData`` or of a graph with types.

    ``num_neighbors`` is a list for all relations or a dict of lists by relation; ``input_nodes`` names the
    node type of the seeds, or is a pair of it and ids, a mask or the name of a split. Batches are
    ``HeteroData``; in layout ``blocks``, or without PyG, :class:`.typed.minibatch.TypedMiniBatch`.
    """

    _batches: TypedBatchLoader

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.node_sampler = self._batches.typed_config  # type: ignore[assignment]

    def _make_batches(self, given: dict[str, Any]) -> tuple[TypedBatchLoader, int, Tensor | None]:
        refuse_one_type_only(given)
        source = typed_source(given["data"], given["weight_attr"])
        self._contents = contents_of(given["data"])
        graph = source.graph
        input_type, part, seeds = as_typed_seeds(given["input_nodes"], graph)
        config = as_typed_config(
            given["num_neighbors"],
            graph,
            replace=given["replace"],
            layout=given["layout"],
            weighted=given["weight_attr"] is not None,
            return_edge_id=given["return_edge_id"] or graph.csc.weight is not None,
        )
        settings = self._settings(given | {"num_neighbors": config.fanouts[0]}, seeds)
        if not isinstance(settings.batch_device, torch.device):
            raise ConfigError("a loader of a graph with types takes torch devices only")
        input_id = told_ids(part, given["input_id"], seeds)
        return TypedBatchLoader(source, settings, config, input_type), len(seeds), input_id

    def _read_again(self) -> None:
        now = contents_of(self.data)
        if is_same(now, self._contents):
            return
        source, before = typed_source(self.data, self.weight_attr), self.graph
        if _shape_of(source.graph) != _shape_of(before):
            raise ConfigError(
                "loader.data has other types or another number of nodes than when the loader was made; make "
                "another one"
            )
        self._batches.replace_source(source)
        self._contents = now

    def _present(self, batch: Any) -> Any:
        if self._input_id is not None:
            batch.input_id = self._input_id[batch.input_id]
        out = batch
        if batch.layout == "subgraph" and pyg_batch_class() is not None:
            out = batch.to_data()
            if self.device != torch.device("cpu"):
                out = out.to(self.device)
            elif self.pin_memory and torch.accelerator.is_available():
                out = out.pin_memory()
        return out if self.transform is None else self.transform(out)

    def __str__(self) -> str:
        return "NeighborLoader()"


def _shape_of(graph: Graph) -> tuple[Any, ...]:
    counts = {node_type: graph.nodes_of(node_type).num_nodes for node_type in graph.node_types}
    return counts, graph.edge_types
