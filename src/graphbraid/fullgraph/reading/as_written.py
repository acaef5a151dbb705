"""Running a model as it is written, on the user's own tensors where there are some."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from graphbraid.errors import DataError
from graphbraid.fullgraph.device import csc_on
from graphbraid.fullgraph.reading.calling import (
    ADJACENCY,
    CSC,
    DATA,
    EDGE_ATTR,
    EDGES,
    N_ID,
    NUM_NODES,
    Calling,
    CallValues,
    X,
    withholding,
)
from graphbraid.fullgraph.reading.relational import fused_layers
from graphbraid.graph import Graph, ScaledFeatures, SparseFeatures
from graphbraid.graph.csc import Csc
from graphbraid.graph.interop.relations import edge_weights_of
from graphbraid.graph.scaled_features import Features
from graphbraid.nn import module_traits


class WholeValues(CallValues):
    """The values that a model is called with on a whole graph, on a device.

    Where the graph has types, values are dicts by node type or relation. Features are of ``dtype``; if
    that is None, in the precision of the parameters. Sparse ones stay sparse on the CPU for models that take
    blocks.
    """

    def __init__(
        self, model: nn.Module, graph: Graph, place: torch.device, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__(self._of_typed_graph if graph.is_typed else self._of_graph)
        self._graph, self.place = graph, place
        self._keeps_sparse = module_traits.takes_blocks(model) and place.type == "cpu"
        dtypes = {dtype} if dtype else {p.dtype for p in model.parameters() if p.is_floating_point()}
        self._dtype = dtypes.pop() if len(dtypes) == 1 else None

    def forget(self) -> None:
        """Forget values that the user may have overwritten; they are made again when they are asked for."""
        for what in (X, EDGE_ATTR, DATA):
            self.pop(what, None)

    def ready(self, x: Features) -> Any:
        """Return features of nodes or edges as the model takes them."""
        if isinstance(x, SparseFeatures) and self._keeps_sparse:
            return x.to(self._dtype or x.dtype)
        if isinstance(x, ScaledFeatures | SparseFeatures):
            x = x.to_dense()
        return x.to(self.place, self._dtype if x.is_floating_point() else None)

    def _of_graph(self, what: str) -> Any:
        csc, graph = self._graph.csc, self._graph
        makers: dict[str, Callable[[], Any]] = {
            X: lambda: self.ready(graph.dense_x() if graph.x is None else graph.x),
            CSC: lambda: csc_on(csc, self.place),
            EDGES: lambda: torch.stack([csc.indices.long(), csc.destinations().long()]).to(self.place),
            ADJACENCY: lambda: _matrix_of(csc).to(self.place),
            N_ID: lambda: torch.arange(graph.num_nodes, device=self.place),
            NUM_NODES: lambda: graph.num_nodes,
        }
        if (attr := graph.edge_attr) is not None:
            makers[EDGE_ATTR] = lambda: self.ready(attr)
        if (weight := csc.weight) is not None:
            makers[graph.weight_name] = lambda: weight.to(self.place)
        if what in makers:
            return makers[what]()
        data = graph.to_pyg().to(self.place)
        if graph.x is not None:
            data.x = self[X]
        return withholding(data, graph) if what == DATA else data[what]

    def _of_typed_graph(self, what: str) -> Any:
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


def _matrix_of(csc: Csc) -> Tensor:
    values = torch.ones(csc.num_edges) if csc.weight is None else csc.weight
    return torch.sparse_csr_tensor(csc.indptr, csc.indices.long(), values, (csc.num_dst, csc.num_src))


class AsWritten:
    """Calls a model as it is written on a whole graph.

    Layers of PyG's ``HGTConv`` run by :func:`.fused_layers`.

    Args:
        model: any module.
        calling: the arguments to call the model with.
        values: their values as the graph has them.
        data: the user's data, whose tensors are used where it has them. If None, only the graph's are.
        node_type: the type whose outputs are wanted; None in a graph without types.
    """

    def __init__(
        self,
        model: nn.Module,
        calling: Calling,
        values: WholeValues,
        data: Any = None,
        node_type: str | None = None,
    ) -> None:
        self._model, self._calling, self._values, self._data = model, calling, values, data
        self._node_type = node_type
        self.differentiates_twice = False
        """Whether gradients may be differentiated again; those of :func:`.fused_layers` cannot be."""

    def __call__(self) -> Any:
        """Call the model and return its output; of a dict by node type, the output of the wanted one.

        Raises:
            DataError: the model returns no outputs of the wanted type.
        """
        self._values.forget()
        node_type = self._node_type
        with nullcontext() if self.differentiates_twice else fused_layers(self._model):
            out = self._calling.run(self._model, CallValues(self.value))
        return out if node_type is None else of_node_type(out, node_type)

    def rows(self, nodes: Tensor) -> Any:
        """Call the model and reduce each returned tensor with one row per node to the rows of ``nodes``."""
        if self._node_type is not None:
            return self().index_select(0, nodes)
        count = self.value(NUM_NODES)
        return map_tensors(self(), lambda t: t.index_select(0, nodes) if t.shape[:1] == (count,) else t)

    def value(self, what: str) -> Any:
        """Return the current value of an argument: the user's own, if their data has it now."""
        data, place = self._data, self._values.place
        if data is None or what == CSC:
            return self._values[what]
        if what == DATA:
            return data.to(place) if place.type != "cpu" else data
        return self._held(what) if self._node_type is None else self._held_by_type(what)

    def _held(self, what: str) -> Any:
        data, place = self._data, self._values.place
        found = getattr(data, NUM_NODES, None) if what == NUM_NODES else data.get(what)
        if what == N_ID and found is None:
            return torch.arange(self._held(NUM_NODES), device=place)  # data may have been given other nodes
        if found is None:
            return self._values[what]
        return found.to(place) if isinstance(found, Tensor) else found

    def _held_by_type(self, what: str) -> Any:
        data, place = self._data, self._values.place
        found = data.collect(what, allow_empty=True)
        if what == N_ID and not found:
            return {one: torch.arange(data[one].num_nodes, device=place) for one in data.node_types}
        if what == X:  # tensors in the precision of the parameters; other values as the graph has them
            own = {one: self._values.ready(x) for one, x in found.items() if isinstance(x, Tensor)}
            return own if len(own) == len(found) else self._values[X] | own
        if not found:
            return self._values[what]
        return {one: held.to(place) if isinstance(held, Tensor) else held for one, held in found.items()}


def of_node_type(returned: Any, node_type: str) -> Any:
    """Return the outputs of a node type, where a model has returned a dict of them by type.

    Raises:
        DataError: there are none of the type.
    """
    if not isinstance(returned, Mapping):
        return returned
    if node_type not in returned:
        raise DataError(
            f"the model must return outputs of the node type {node_type!r}; got those of "
            f"{', '.join(map(str, returned)) or 'none'}. A type gets some if a relation leads into it "
            "(Graph.with_reverse_relations)."
        )
    return returned[node_type]


def map_tensors(returned: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Apply ``change`` to all tensors that a model returned, also in tuples, lists and dicts."""
    if isinstance(returned, Tensor):
        return change(returned)
    if isinstance(returned, dict):
        changed = copy.copy(returned)  # keeps the class and its attributes
        changed.update((key, map_tensors(value, change)) for key, value in returned.items())
        return changed
    if isinstance(returned, tuple) and hasattr(returned, "_fields"):
        return type(returned)(*(map_tensors(value, change) for value in returned))
    if isinstance(returned, list | tuple):
        return type(returned)(map_tensors(value, change) for value in returned)
    return returned
