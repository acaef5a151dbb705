"""Many graphs of PyG: read attribute by attribute, and joined to PyG's ``Batch`` again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from graphbraid.errors import DataError
from graphbraid.graph.interop.convert import is_plain
from graphbraid.graph.interop.pyg import data_class

_MADE = ("batch", "ptr")
"""Attributes that every batch gets."""
_NUMBERS = (int, float, Tensor)


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class JoinedAttribute:
    """One attribute of all graphs, joined along one dimension."""

    values: Tensor
    """The attribute of all graphs, one after the other."""
    starts: Tensor
    """``(num_graphs + 1,)`` int64: where that of each graph begins along :attr:`dim`."""
    dim: int = 0
    """Dimension that graphs are joined along."""
    steps: Tensor | None = None
    """``(num_graphs,)`` int64: by how much the attribute's ids rise from one graph to the next, as those of
    ``edge_index`` by the number of nodes. None for an attribute without ids."""

    def counts(self, ids: Tensor) -> Tensor:
        """Return how many entries the graphs ``ids`` have along :attr:`dim`, ``(len(ids),)`` int64."""
        return self.starts[ids + 1] - self.starts[ids]

    def of(self, ids: Tensor) -> Tensor:
        """Return the attribute of the graphs ``ids``, joined in this order; ids count from the first one."""
        counts = self.counts(ids)
        before = counts.cumsum(0) - counts
        places = torch.repeat_interleave(self.starts[ids] - before, counts)
        found = self.values.index_select(self.dim, places + torch.arange(places.numel()))
        if self.steps is None:
            return found
        steps = self.steps[ids]
        rises = torch.repeat_interleave(steps.cumsum(0) - steps, counts).to(found.dtype)
        return found + rises.reshape([-1 if at == self.dim else 1 for at in range(found.ndim)])


def listed(graphs: Any) -> list[Any]:
    """Return the graphs of a list, a dataset, a ``Batch`` or a ``DataLoader``.

    Raises:
        DataError: it is none of these, there are no graphs, or one is no graph of one type.
    """
    if isinstance(graphs, torch.utils.data.DataLoader):
        graphs = graphs.dataset
    if hasattr(graphs, "to_data_list"):
        graphs = graphs.to_data_list()
    if hasattr(graphs, "keys") or not (hasattr(graphs, "__len__") and hasattr(graphs, "__getitem__")):
        raise DataError(
            "many graphs are a list of PyG's Data, a dataset, a Batch or a DataLoader; got "
            f"{type(graphs).__name__}"
        )
    found = [graphs[at] for at in range(len(graphs))]
    if not found:
        raise DataError("many graphs are needed; got none")
    for at, one in enumerate(found):
        if hasattr(one, "node_types"):
            raise DataError(f"graph {at} has types, and many graphs are of one type each")
        if not hasattr(one, "keys") or getattr(one, "edge_index", None) is None:
            raise DataError(f"graph {at} must be PyG's Data with an edge_index; got {type(one).__name__}")
        if one.num_nodes is None:
            raise DataError(f"graph {at} has no number of nodes; set num_nodes")
    return found


def stacked(graphs: Sequence[Any]) -> tuple[dict[str, JoinedAttribute], Tensor]:
    """Return the attributes of all graphs by name, and their numbers of nodes.

    Raises:
        DataError: a graph lacks an attribute or has another one; or attributes do not fit each other.
    """
    names = set(graphs[0].keys()) - {"num_nodes"}
    for at, one in enumerate(graphs):
        if (others := names ^ (set(one.keys()) - {"num_nodes"})) or names & {*_MADE}:
            name = min(others or names & {*_MADE})
            raise DataError(
                f"all graphs must have the same attributes, none of them called batch or ptr; {name!r} of "
                f"graph {at} is not in all, or called so"
            )
    arrays = {}
    for name in sorted(names):
        values = [one[name] for one in graphs]
        dim = graphs[0].__cat_dim__(name, values[0])
        steps = [one.__inc__(name, value) for one, value in zip(graphs, values, strict=True)]
        if (found := _joined(name, values, dim, steps)) is not None:
            arrays[name] = found
    return arrays, torch.tensor([int(one.num_nodes) for one in graphs], dtype=torch.int64)


def _joined(
    name: str, values: Iterable[Any], dim: int | None, steps: Iterable[Any]
) -> JoinedAttribute | None:
    """Return an attribute of all graphs; None if it is no tensor or number in any of them.

    Args:
        name: its name, for messages.
        values: the attribute of each graph.
        dim: dimension to join along. If None, a new first one.
        steps: by how much its ids rise after each graph.

    Raises:
        DataError: it is a tensor in some graphs alone, of another shape or kind, or its ids rise by more than
            one number; names the graph.
    """
    found = [torch.as_tensor(one) if isinstance(one, _NUMBERS) else None for one in values]
    if all(one is None for one in found):
        return None
    rows: list[Tensor] = []
    for at, one in enumerate(found):
        if one is None or not is_plain(one):
            raise DataError(
                f"{name} of graph {at} is no dense tensor of numbers without a gradient; give edges as "
                "edge_index, and leave out attributes that some graphs alone have as tensors"
            )
        rows.append(one.cpu().unsqueeze(0) if dim is None or one.ndim == 0 else one.cpu())
        where = 0 if dim is None or rows[0].ndim == 1 else dim % rows[0].ndim
        kinds = [(one.dtype, one.shape[:where], one.shape[where + 1 :]) for one in (rows[0], rows[at])]
        if kinds[0] != kinds[1]:
            raise DataError(
                f"{name} of graph {at} is {rows[at].dtype} of shape {tuple(rows[at].shape)}, and that of "
                f"graph 0 {rows[0].dtype} of shape {tuple(rows[0].shape)}; all must be alike"
            )
    rises = [one if isinstance(one, int) else torch.as_tensor(one) for one in steps]
    if any(isinstance(one, Tensor) and one.numel() != 1 for one in rises):
        raise DataError(f"the ids in {name} rise by more than one number from graph to graph (__inc__)")
    numbers = torch.tensor([int(one) for one in rises])
    return JoinedAttribute(
        values=torch.cat(rows, where),
        starts=torch.tensor([0, *(one.shape[where] for one in rows)]).cumsum(0),
        dim=where,
        steps=numbers if bool(numbers.any()) else None,
    )


def batch_of(
    values: Mapping[str, Tensor],
    parts: Mapping[str, tuple[Tensor, Tensor]],
    num_nodes: Tensor,
    kind: type | None,
) -> Any:
    """Return PyG's ``Batch`` of joined attributes, as its ``DataLoader`` makes it.

    Args:
        values: attributes by name.
        parts: by name, how many entries each graph has, and by how much ids rise after it.
        num_nodes: number of nodes of each graph.
        kind: class of each graph's data. If None, ``Data``.

    Raises:
        MissingPackageError: PyG is not installed.
    """
    made = data_class("Batch")(_base_cls=data_class() if kind is None else kind)
    for name, value in values.items():
        made[name] = value
    if "x" not in values:
        made.num_nodes = int(num_nodes.sum())
    made._num_graphs = num_nodes.numel()
    zero = torch.zeros(1, dtype=torch.int64)
    made._slice_dict = {name: torch.cat([zero, counts.cumsum(0)]) for name, (counts, _) in parts.items()}
    made._inc_dict = {name: steps.cumsum(0) - steps for name, (_, steps) in parts.items()}
    return made
