"""TypedFace: what the loaders of graphs with types share, whatever their batches start from."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from graphbraid.errors import ConfigError
from graphbraid.graph import EdgeType, Graph
from graphbraid.loader.face import LoaderFace
from graphbraid.loader.presenting import pyg_batch_class
from graphbraid.loader.typed.batches import TypedBatchLoader
from graphbraid.loader.typed.inputs import as_typed_config, refuse_one_type_only
from graphbraid.loader.typed.reading import contents_of, is_same, typed_source
from graphbraid.sampling.batch_seeds import SeedSource
from graphbraid.sampling.typed.source import TypedBatchSource


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class TypedInputs:
    """What the batches of a loader start from."""

    source: TypedBatchSource
    """Graph and attributes that batches are read from."""
    input_type: str | EdgeType
    """Node type of the inputs, or the relation of links."""
    number: int
    """Number of inputs."""
    nodes: Tensor | None = None
    """``(number,)`` ids within the type, where plain nodes are the seeds."""
    seeds: SeedSource | None = None
    """What makes seeds of inputs where they are more than nodes, as ids in the whole graph."""
    input_id: Tensor | None = None
    """``(number,)`` values that batches have as ``input_id``. If None, positions."""


class TypedFace(LoaderFace):
    """Base class of the loaders of graphs with types."""

    _batches: TypedBatchLoader

    @abstractmethod
    def _typed_inputs(self, source: TypedBatchSource, given: dict[str, Any]) -> TypedInputs:
        """Return what batches start from, made of the loader's arguments."""

    def _make_batches(self, given: dict[str, Any]) -> tuple[TypedBatchLoader, int, Tensor | None]:
        refuse_one_type_only(given)
        source = typed_source(given["data"], given["weight_attr"])
        self._contents = contents_of(given["data"])
        inputs = self._typed_inputs(source, given)
        graph = inputs.source.graph
        config = as_typed_config(
            given["num_neighbors"],
            graph,
            replace=given["replace"],
            layout=given["layout"],
            weighted=given["weight_attr"] is not None,
            return_edge_id=given["return_edge_id"] or graph.csc.weight is not None,
        )
        settings = self._settings(given | {"num_neighbors": config.fanouts[0]}, inputs.nodes)
        if not isinstance(settings.batch_device, torch.device):
            raise ConfigError("a loader of a graph with types takes torch devices only")
        batches = TypedBatchLoader(inputs.source, settings, config, inputs.input_type, inputs.seeds)
        return batches, inputs.number, inputs.input_id

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
        seeds = None
        if self._batches.starts_from_inputs:
            inputs = self._typed_inputs(source, self._arguments)
            if inputs.number != len(self.schedule.seeds):
                raise ConfigError(
                    f"{self.inputs_name} has {inputs.number} entries now, and had {len(self.schedule.seeds)} "
                    "when the loader was made; make another one"
                )
            source, seeds = inputs.source, inputs.seeds
        self._batches.replace_source(source, seeds)
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


def _shape_of(graph: Graph) -> tuple[Any, ...]:
    counts = {node_type: graph.nodes_of(node_type).num_nodes for node_type in graph.node_types}
    return counts, graph.edge_types
