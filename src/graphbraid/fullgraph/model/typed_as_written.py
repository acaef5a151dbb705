"""Running a model over node types and relations as it is written."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from graphbraid.errors import DataError
from graphbraid.fullgraph.model.fused_layers import fused_layers
from graphbraid.graph import Graph
from graphbraid.graph.csc import Csc
from graphbraid.graph.sparse_features import SparseFeatures
from graphbraid.nn import told


class TypedAsWritten:
    """Calls a model as it is written on a whole graph with types.

    Models of ``graphbraid.nn`` are called with ``(x_dict, relations)``, any other module as in PyTorch
    Geometric with ``(x_dict, edge_index_dict)``; both get ``n_id_dict`` if ``forward`` takes it. They return
    a dict of outputs by node type, or those of the wanted type alone. Layers that fused operators stand for
    run by these (:func:`graphbraid.fullgraph.model.fused_layers.fused_layers`).

    Args:
        model: any module.
        graph: the graph to run on.
        node_type: the type whose outputs are wanted.
        place: device to run on.
        data: the user's ``HeteroData``, whose tensors are used. If None, the graph's are.
    """

    def __init__(
        self, model: nn.Module, graph: Graph, node_type: str, place: torch.device, data: Any = None
    ) -> None:
        self._model, self._graph, self._type, self._place, self._data = model, graph, node_type, place, data
        self._native = told.takes_blocks(model)
        self._edges: dict[Any, Any] | None = None

    def __call__(self) -> Any:
        """Call the model and return the outputs of the wanted type.

        Raises:
            DataError: the model returns none of this type.
        """
        named = {}
        if "n_id_dict" in inspect.signature(self._model.forward).parameters:
            named["n_id_dict"] = {
                name: torch.arange(self._num_nodes(name), device=self._place)
                for name in self._graph.node_types
            }
        with fused_layers(self._model):
            out = self._model(self._features(), self._relations(), **named)
        if not isinstance(out, dict):
            return out
        if self._type not in out:
            raise DataError(
                f"the model returns outputs of {', '.join(map(str, out)) or 'no type'}, and those of "
                f"{self._type!r} are wanted."
            )
        return out[self._type]

    def rows(self, nodes: Tensor) -> Any:
        """Call the model and return the outputs of ``nodes``, ids of the wanted type."""
        return self().index_select(0, nodes)

    def _num_nodes(self, name: str) -> int:
        """Return how many nodes of a type there are now: the user's data may have been given others since."""
        count = None if self._data is None else getattr(self._data[name], "num_nodes", None)
        return count if isinstance(count, int) else self._graph.nodes_of(name).num_nodes

    def _features(self) -> dict[str, Any]:
        found = {}
        for name in self._graph.node_types:
            own = None if self._data is None else self._data[name].get("x")
            x = self._graph.nodes_of(name).x
            if own is not None or x is not None:
                found[name] = self._ready(own if isinstance(own, Tensor) else x)
        return found

    def _ready(self, x: Any) -> Any:
        """Return features on the device, in the precision of the model's parameters."""
        keeps = isinstance(x, SparseFeatures) and self._native and self._place.type == "cpu"
        if not keeps and not isinstance(x, Tensor):
            x = x.to_dense()
        kinds = {p.dtype for p in self._model.parameters() if p.is_floating_point()}
        dtype = kinds.pop() if len(kinds) == 1 else x.dtype
        return x.to(dtype) if keeps else x.to(self._place, dtype)

    def _relations(self) -> dict[Any, Any]:
        graph, place = self._graph, self._place
        if self._data is not None and not self._native:  # as they are now: the user may have changed them
            return {one: ends.to(place) for one, ends in self._data.edge_index_dict.items()}
        if self._edges is None:
            if self._native:
                self._edges = {one: _on(graph.relation(one), place) for one in graph.edge_types}
            else:
                self._edges = {one: ends.to(place) for one, ends in graph.to_edge_indices().items()}
        return self._edges


def _on(csc: Csc, place: torch.device) -> Csc:
    return Csc(csc.indptr.to(place), csc.indices.to(place), csc.num_src, trusted=True)


__all__ = ["TypedAsWritten"]
