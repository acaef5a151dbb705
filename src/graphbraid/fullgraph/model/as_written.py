"""Running a model as it is written, on the user's own tensors where there are some."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from graphbraid.fullgraph.device.graphs import on_place
from graphbraid.fullgraph.program.calling import ADJACENCY, CSC, DATA, EDGE_ATTR, EDGES, WEIGHTS, Calling, X
from graphbraid.graph import Graph


class AsWritten:
    """Calls a model as it is written on a whole graph.

    Args:
        model: any module.
        graph: the graph to run on.
        calling: the arguments to call the model with.
        place: device to run on.
        data: the user's data, whose tensors are used where it has them. If None, only the graph's are.
    """

    def __init__(
        self, model: nn.Module, graph: Graph, calling: Calling, place: torch.device, data: Any = None
    ) -> None:
        self._model, self._graph, self._calling, self._place, self._data = model, graph, calling, place, data
        self._made: dict[str, Any] = {}

    def __call__(self) -> Any:
        """Call the model and return what it returns."""
        return self._calling.run(self._model, _LazyValues(self._value))

    def rows(self, nodes: Tensor) -> Any:
        """Call the model and reduce each returned tensor with one row per node to the rows of ``nodes``."""
        count = self._num_nodes()
        return _map(self(), lambda t: t.index_select(0, nodes) if t.shape[:1] == (count,) else t)

    def _num_nodes(self) -> int:
        """Return how many nodes there are now: the user's data may have been given others since."""
        count = getattr(self._data, "num_nodes", None)
        return count if isinstance(count, int) else self._graph.num_nodes

    def _value(self, what: str) -> Any:
        if self._data is not None and what != CSC:
            found = self._of_data(what)
            if found is not None:
                return found
        if what == X:
            return self._floats(self._graph.dense_x())
        if what == EDGE_ATTR:
            assert self._graph.edge_attr is not None
            return self._floats(self._graph.edge_attr)
        if what not in self._made:
            self._made[what] = self._make(what)
        return self._made[what]

    def _of_data(self, what: str) -> Any:
        """Return the current value of an argument in the user's own data; None if it has none."""
        if what == DATA:
            return self._data.to(self._place) if self._place.type != "cpu" else self._data
        found = self._data.get(what)
        if found is None and what in (EDGES, ADJACENCY):
            found = self._data.get(ADJACENCY if what == EDGES else EDGES) if what == EDGES else None
        if found is None and what == WEIGHTS:
            found = self._data.get("edge_attr")
        return found.to(self._place) if isinstance(found, Tensor) else found

    def _floats(self, features: Tensor) -> Tensor:
        """Return current features in the precision of the model's parameters."""
        kinds = {p.dtype for p in self._model.parameters() if p.is_floating_point()}
        if features.is_floating_point() and len(kinds) == 1:
            return features.to(self._place, kinds.pop())
        return features.to(self._place)

    def _make(self, what: str) -> Any:
        csc = self._graph.csc
        if what == CSC:
            return on_place(self._graph, self._place).csc
        if what == DATA:
            return self._graph.to_pyg().to(self._place)
        if what == WEIGHTS:
            assert csc.weight is not None
            return csc.weight.to(self._place)
        if what == ADJACENCY:
            values = torch.ones(csc.num_edges) if csc.weight is None else csc.weight
            size = (csc.num_dst, csc.num_src)
            adj = torch.sparse_csr_tensor(csc.indptr, csc.indices.long(), values, size)
            return adj.to(self._place)
        return torch.stack([csc.indices.long(), csc.destinations().long()]).to(self._place)


class _LazyValues(dict[str, Any]):
    """A mapping that makes each value when it is asked for."""

    def __init__(self, make: Callable[[str], Any]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, what: str) -> Any:
        return self._make(what)


def _map(returned: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Apply ``change`` to all tensors that a model returned, also in tuples, lists and dicts."""
    if isinstance(returned, Tensor):
        return change(returned)
    if isinstance(returned, dict):
        return {key: _map(value, change) for key, value in returned.items()}
    if isinstance(returned, tuple) and hasattr(returned, "_fields"):
        return type(returned)(*(_map(value, change) for value in returned))
    if isinstance(returned, list | tuple):
        return type(returned)(_map(value, change) for value in returned)
    return returned


__all__ = ["AsWritten"]
