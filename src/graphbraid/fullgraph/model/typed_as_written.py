"""Running a model over node types and relations as it is written."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from graphbraid.errors import DataError
from graphbraid.fullgraph.device.graphs import csc_on
from graphbraid.fullgraph.model.as_written import AsWritten, WholeValues
from graphbraid.fullgraph.model.fused_layers import fused_layers
from graphbraid.fullgraph.program.calling import CSC, DATA, EDGE_ATTR, EDGES, N_ID, Calling, X
from graphbraid.graph.interop.relations import edge_weights_of


class TypedWholeValues(WholeValues):
    """The values that a model is called with on a whole graph with types: dicts by node type or relation."""

    def _of_graph(self, what: str) -> Any:
        graph, place = self._graph, self.place
        nodes = {one: graph.nodes_of(one) for one in graph.node_types}
        edges = {one: graph.edges_of(one) for one in graph.edge_types}
        if what == X:
            return {one: self.ready(held.x) for one, held in nodes.items() if held.x is not None}
        if what == CSC:
            return {one: csc_on(graph.relation(one), place) for one in edges}
        if what == EDGES:
            return {one: ends.to(place) for one, ends in graph.to_edge_indices().items()}
        if what == N_ID:
            return {one: torch.arange(held.num_nodes, device=place) for one, held in nodes.items()}
        if what in ("edge_weight", EDGE_ATTR):
            found = {one: w.to(place) for one, w in edge_weights_of(graph).items()}
            found = {one: w for one, w in found.items() if edges[one].weight_name == what}
            attrs = edges if what == EDGE_ATTR else {}
            return found | {
                one: self.ready(held.edge_attr) for one, held in attrs.items() if held.edge_attr is not None
            }
        data = graph.to_pyg().to(place)
        for one, rows in self[X].items():
            data[one].x = rows
        return data if what == DATA else data.collect(what)


class TypedAsWritten(AsWritten):
    """Calls a model as it is written on a whole graph with types.

    It returns a dict of outputs by node type, or those of the wanted type alone. Where a fused operator
    stands for layers, it runs in their place (:func:`graphbraid.fullgraph.model.fused_layers.fused_layers`).

    Args:
        model: any module.
        calling: the arguments to call the model with.
        values: their values as the graph has them.
        node_type: the type whose outputs are wanted.
        data: the user's ``HeteroData``, whose tensors are used. If None, the graph's are.
    """

    def __init__(
        self, model: nn.Module, calling: Calling, values: TypedWholeValues, node_type: str, data: Any = None
    ) -> None:
        super().__init__(model, calling, values, data)
        self._type = node_type

    def __call__(self) -> Any:
        """Call the model and return the outputs of the wanted type.

        Raises:
            DataError: the model returns none of this type.
        """
        with fused_layers(self._model):
            out = super().__call__()
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

    def _now(self, what: str) -> Any:
        place, data = self._values.place, self._data
        if what == DATA:
            return data.to(place) if place.type != "cpu" else data
        found = data.collect(what, allow_empty=True)
        if what == N_ID and not found:
            return {one: torch.arange(data[one].num_nodes, device=place) for one in data.node_types}
        if what == X:  # in the precision of the parameters; what is no tensor, as the graph has it
            own = {one: self._values.ready(x) for one, x in found.items() if isinstance(x, Tensor)}
            return own if len(own) == len(found) else self._values[X] | own
        if not found:
            return self._values[what]
        return {one: held.to(place) if isinstance(held, Tensor) else held for one, held in found.items()}


__all__ = ["TypedAsWritten", "TypedWholeValues"]
