"""Contract: what a model expects of a graph's columns, classes and types, and a graph made to meet it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any
from weakref import WeakKeyDictionary

import torch
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from torch import Tensor, nn

from graphbraid.datasets.memory import require_memory
from graphbraid.datasets.store.manifest import ColumnsEntry, described_columns
from graphbraid.errors import DataError
from graphbraid.files.schema import checked
from graphbraid.graph import Columns, Graph, ScaledFeatures, SparseFeatures
from graphbraid.graph.interop.relations import with_types_in_order
from graphbraid.graph.scaled_features import Features, stored_rows
from graphbraid.graph.schema import NodesOrEdges, Schema, features_by_type
from graphbraid.graph.types import ONLY_EDGE_TYPE, ONLY_NODE_TYPE

_log = logging.getLogger(__name__)
_DROP = "or let columns go by their position: graph.replace(schema=Schema())"


class Contract(BaseModel):
    """What a model was trained on, as a run keeps it."""

    model_config = ConfigDict(extra="forbid", strict=True)

    node_types: list[str]
    """Node types, in the graph's order."""
    edge_types: list[Annotated[list[str], Field(min_length=3, max_length=3)]]
    """Relations, in the graph's order."""
    columns: list[ColumnsEntry]
    """Columns of the features, as far as they are known."""
    dtypes: dict[str, str]
    """Dtype of the features of each node type and relation that has some."""
    class_names: dict[str, list[str]]
    """Names of the classes by node type, as far as they are known."""

    @classmethod
    def of(cls, graph: Graph) -> Contract:
        """Return what a model that is trained on ``graph`` expects."""
        return cls(
            node_types=list(graph.node_types),
            edge_types=[list(one) for one in graph.edge_types],
            columns=described_columns(graph.schema),
            dtypes=_dtypes_of(graph),
            class_names={name: list(classes) for name, classes in graph.schema.class_names.items()},
        )

    def matched(self, graph: Graph, *, labels: bool = True) -> Graph:
        """Return ``graph`` with types, columns and classes as they were when the model was trained.

        They are matched by name where both sides have names. Columns that the model does not know are left
        out. The graph itself is returned if all is in order.

        Args:
            graph: the graph to predict.
            labels: whether labels are kept, with the numbers that the model knows their classes by.

        Raises:
            DataError: a column, class, node type or relation is missing or unknown, or features were filled
                or normalised in another way; names it.
            ResourceError: the columns in their order do not fit in memory.
        """
        graph = self._in_order(graph)
        if self.dtypes != (now := _dtypes_of(graph)):
            _log.warning("the model was trained on features of %s; this graph's are %s", self.dtypes, now)
        columns = dict(graph.schema.columns)
        features = features_by_type(graph)
        found: dict[NodesOrEdges, Features] = {}
        for one in self.columns:
            if one.key in features:
                of = one.key
                found[of] = _selected(of, features[of], columns.get(of, Columns()), one)
                if found[of] is not features[of]:
                    columns[of] = replace(columns[of], names=tuple(one.names or ()))
        classes = graph.schema.class_names
        y = {name: graph.nodes_of(name).y for name in graph.node_types}
        known = {name: tuple(self.class_names.get(name, classes.get(name, ()))) for name in y}
        numbered = {
            name: _numbered(name, values, classes[name], known[name])
            if values is not None and labels and name in classes
            else (values if labels else None)
            for name, values in y.items()
        }
        if all(found[of] is features[of] for of in found) and all(numbered[name] is y[name] for name in y):
            return graph
        schema = Schema(columns=columns, class_names={n: known[n] for n in classes} if labels else {})
        return _remade(graph, features | found, numbered, schema)

    def _in_order(self, graph: Graph) -> Graph:
        """Return the graph with the types and relations in the model's order."""
        relations = [(one[0], one[1], one[2]) for one in self.edge_types]
        if (list(graph.node_types), list(graph.edge_types)) == (self.node_types, relations):
            return graph
        nodes, edges = (graph.node_types, self.node_types), (graph.edge_types, relations)
        for kind, (own, learned) in (("node types", nodes), ("relations", edges)):
            missing = [_text(one) for one in learned if one not in own]
            unknown = [_text(one) for one in own if one not in learned]
            if missing or unknown:
                raise DataError(
                    f"the graph must have the {kind} that the model was trained on; "
                    f"missing: {_listed(missing)}; not known to the model: {_listed(unknown)}"
                )
        return with_types_in_order(graph, self.node_types, relations)


def contract_in(values: Any, path: object) -> Contract:
    """Return the contract that a run keeps.

    Raises:
        DataError: it is damaged.
    """
    return checked(_ADAPTER, values, lambda text: DataError(f"{path}: contract.{text}"))


_ADAPTER = TypeAdapter(Contract)
learned_by: WeakKeyDictionary[nn.Module, Contract] = WeakKeyDictionary()
"""What each model that was trained or loaded in this process expects."""


def _dtypes_of(graph: Graph) -> dict[str, str]:
    stored = {of: (stored_rows(rows), rows.dtype) for of, rows in features_by_type(graph).items()}
    return {
        _text(of): str(dtype if rows is None else rows.dtype).removeprefix("torch.")
        for of, (rows, dtype) in stored.items()
    }


def _text(of: str | Sequence[str]) -> str:
    return of if isinstance(of, str) else "__".join(of)


def _listed(names: Sequence[str | Sequence[str]]) -> str:
    shown = [_text(one) for one in names[:5]]
    return (", ".join(shown) or "none") + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _selected(of: NodesOrEdges, rows: Features, own: Columns, learned: ColumnsEntry) -> Features:
    """Return features with the columns that the model knows, in its order."""
    what = f"the features of {_text(of)!r}"
    if own.normalized != learned.normalized:
        was, now = ("were", "are not") if learned.normalized else ("were not", "are")
        raise DataError(
            f"{what} {was} normalised when the model was trained (normalize_features), and {now} in this "
            "graph; make them alike"
        )
    fills = own.fill_missing, learned.fill_missing
    if None not in fills and fills[0] != fills[1]:
        raise DataError(
            f"empty fields of {what} were filled with {fills[1]:g} when the model was trained, and with "
            f"{fills[0]:g} in this graph; fill them with {fills[1]:g}"
        )
    names = learned.names
    if own.names is None or names is None or list(own.names) == names:
        return rows
    unknown = [name for name in own.names if name not in names]
    if missing := [name for name in names if name not in own.names]:
        raise DataError(
            f"{what} lack columns that the model was trained on: {_listed(missing)}; columns that it does "
            f"not know: {_listed(unknown)}. Name the columns as they were, {_DROP}"
        )
    if learned.normalized and unknown:
        raise DataError(
            f"{what} were normalised together with columns that the model does not know: {_listed(unknown)}; "
            "leave these out before you normalise"
        )
    at = torch.tensor([own.names.index(name) for name in names])
    require_memory(rows.nbytes, f"bringing the columns of {what} into the model's order")
    if isinstance(rows, SparseFeatures):
        return SparseFeatures.from_scipy(rows.to_scipy()[:, at.numpy()]).to(rows.dtype)
    if isinstance(rows, ScaledFeatures):
        return ScaledFeatures(values=rows.values[:, at].contiguous(), scale=rows.scale, trusted=True)
    return rows.index_select(1, at.to(rows.device))


def _numbered(of: str, y: Tensor, own: Sequence[str], learned: Sequence[str]) -> Tensor:
    """Return labels whose classes have the model's numbers."""
    if tuple(own) == tuple(learned):
        return y
    unknown = [name for name in own if name not in learned]
    missing = [name for name in learned if name not in own] if y.is_floating_point() else []
    if unknown or missing or len(set(own)) < len(own) or (y.ndim == 1 and bool((y >= len(own)).any())):
        raise DataError(
            f"the classes of {of!r} must be those that the model was trained on; unknown: "
            f"{_listed(unknown)}; missing: {_listed(missing)}; all: {_listed(learned)}. To predict without "
            "labels, leave them out"
        )
    if y.is_floating_point():
        return y[:, [list(own).index(name) for name in learned]]
    number = torch.tensor([list(learned).index(name) for name in own])
    return torch.where(y >= 0, number[y.clamp(min=0)], y)


def _remade(
    graph: Graph,
    features: Mapping[NodesOrEdges, Features],
    y: Mapping[str, Tensor | None],
    schema: Schema,
) -> Graph:
    if graph.types is None:
        return graph.replace(
            x=features.get(ONLY_NODE_TYPE),
            edge_attr=features.get(ONLY_EDGE_TYPE),
            y=y[ONLY_NODE_TYPE],
            schema=schema,
        )
    nodes = {name: replace(one, x=features.get(name), y=y[name]) for name, one in graph.types.nodes.items()}
    edges = {name: replace(one, edge_attr=features.get(name)) for name, one in graph.types.edges.items()}  # type: ignore[arg-type]
    return graph.replace(types=replace(graph.types, nodes=nodes, edges=edges), schema=schema)
