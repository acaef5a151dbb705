"""Contract between a checkpoint and a graph: columns, classes, types, arrays, model and config must agree."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any
from weakref import WeakKeyDictionary

import torch
from pydantic import Field, TypeAdapter
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from graphbraid.datasets.npy import require_memory
from graphbraid.datasets.store.manifest import ColumnsEntry, described_columns
from graphbraid.datasets.store.on_disk import sums_of, tensors_of
from graphbraid.errors import ConfigError, DataError
from graphbraid.files.schema import FileModel, checked
from graphbraid.graph import Columns, Graph, ScaledFeatures, SparseFeatures, Types
from graphbraid.graph.identity import mark
from graphbraid.graph.interop.relations import with_types_in_order
from graphbraid.graph.scaled_features import Features, stored_rows
from graphbraid.graph.schema import Encoder, NodesOrEdges, Schema
from graphbraid.graph.types import ONLY_EDGE_TYPE, ONLY_NODE_TYPE, features_by_type
from graphbraid.nn import LinkModel
from graphbraid.train.config import TrainConfig
from graphbraid.train.option_values import names_with
from graphbraid.train.runtime import PER_STEP

_log = logging.getLogger(__name__)
_DROP = "or let columns go by their position: graph.replace(schema=Schema())"


class Contract(FileModel):
    """The facts of the training graph that a run saves with its model."""

    node_types: list[str]
    """Node types, in the graph's order."""
    edge_types: list[Annotated[list[str], Field(min_length=3, max_length=3)]]
    """Relations, in the graph's order."""
    columns: list[ColumnsEntry]
    """Columns of the features, as far as they are known."""
    dtypes: dict[str, str]
    """Dtype of the features of each node type and relation that has some."""
    class_names: dict[str, list[str]]
    """Names of the classes by node type and relation, as far as they are known."""

    @classmethod
    def of(cls, graph: Graph) -> Contract:
        """Return the contract of a model that is trained on ``graph``."""
        return cls(
            node_types=list(graph.node_types),
            edge_types=[list(one) for one in graph.edge_types],
            columns=described_columns(graph.schema),
            dtypes=_dtypes_of(graph),
            class_names={_text(of): list(classes) for of, classes in graph.schema.class_names.items()},
        )

    def matched(self, graph: Graph, *, labels: bool = True) -> Graph:
        """Return ``graph`` with types, columns and classes as they were when the model was trained.

        They are matched by name where both sides have names. Columns that the model does not know are left
        out. The graph itself is returned if all is in order. With ``labels`` these are kept, with the numbers
        that the model knows their classes by.
        """
        graph = self._in_order(graph)
        now = _dtypes_of(graph)  # a type whose table is empty has no features yet
        if any(now.get(of, kind) != kind for of, kind in self.dtypes.items()):
            _log.warning("the model was trained on features of %s; this graph's are %s", self.dtypes, now)
        columns = dict(graph.schema.columns)
        features = features_by_type(graph)
        found: dict[NodesOrEdges, Features] = {}
        for one in self.columns:
            if one.encoders is not None and not isinstance(one.key, tuple):
                found |= _encoded(graph, one, columns)
            elif one.key in features:
                of = one.key
                found[of] = _selected(of, features[of], columns.get(of, Columns()), one)
                if found[of] is not features[of]:
                    columns[of] = replace(columns[of], names=tuple(one.names or ()))
        classes = graph.schema.class_names
        y: dict[NodesOrEdges, Tensor | None] = {name: graph.nodes_of(name).y for name in graph.node_types}
        if graph.is_typed:
            y |= {one: graph.edges_of(one).y for one in graph.edge_types}
        known = {of: tuple(self.class_names.get(_text(of), classes.get(of, ()))) for of in y}
        numbered = {
            name: _numbered(name, values, classes[name], known[name])
            if values is not None and labels and name in classes
            else (values if labels else None)
            for name, values in y.items()
        }
        if all(found[of] is features.get(of) for of in found) and all(
            numbered[name] is y[name] for name in y
        ):
            return graph
        schema = Schema(columns=columns, class_names={n: known[n] for n in classes} if labels else {})
        return _remade(graph, features | found, numbered, schema)

    def _in_order(self, graph: Graph) -> Graph:
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
    """Return the contract that a run keeps; DataError if it is damaged or missing."""
    said = f"{path} is damaged or of another version: contract."
    return checked(_ADAPTER, values, lambda text: DataError(said + text))


_ADAPTER = TypeAdapter(Contract)
learned_by: WeakKeyDictionary[nn.Module, Contract] = WeakKeyDictionary()
"""The contract of each model that was trained or loaded in this process."""


def matched_to(model: nn.Module, graph: Graph, learned: Contract, *, has_tiers: bool) -> Graph:
    """Return a graph with types, columns and classes in the order that the model learned.

    The graph itself is returned if all is in order. ``has_tiers`` says that feature rows or adjacency lists
    were stored elsewhere, in the graph's own order.
    """
    found = learned.matched(graph)
    if has_tiers and found is not graph:
        raise DataError(
            "the graph's columns, classes or types are not in the order that the model was trained on, and "
            "its tiers or topology were made in their own order; make these from a graph in the model's order"
        )
    if isinstance(model, LinkModel) and found.edge_types != graph.edge_types:
        raise DataError(
            "relations of links are given by their place in graph.edge_types, and the model was trained with "
            f"them in the order {', '.join(one[1] for one in found.edge_types)}; make the graph in this order"
        )
    return found


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


def _encoded(
    graph: Graph, learned: ColumnsEntry, columns: dict[NodesOrEdges, Columns]
) -> dict[NodesOrEdges, Features]:
    """Return the features of a node type by the encoders that the model was trained with."""
    name, encoders = learned.of[0], tuple(learned.encoders or ())
    own, nodes = columns.get(name, Columns()), graph.nodes_of(name)
    if own.encoders != encoders or list(own.names or ()) != (learned.names or []):
        if own.table is None:
            raise DataError(
                f"the features of {name!r} are encoded columns of its table, which this graph does not keep; "
                f"convert the table with its columns {_listed([one.column for one in encoders])}"
            )
        _check_sentences(name, own.encoders or (), encoders)
        columns[name] = replace(own, names=tuple(learned.names or ()), encoders=encoders)
        from graphbraid.datasets.tables.encoded import encoded_nodes  # here: few graphs are of tables

        nodes = encoded_nodes(nodes, columns[name], name)
    return {} if nodes.x is None else {name: nodes.x}


def _check_sentences(name: str, own: Sequence[Encoder], learned: Sequence[Encoder]) -> None:
    models = {one.column: one.entries for one in own if one.how == "sentences"}
    for one in learned:
        if one.how == "sentences" and models.get(one.column) != one.entries:
            raise DataError(
                f"the texts {one.column!r} of {name!r} were encoded by the model {one.entries[0]!r} when the "
                f"model was trained; name it in this graph's description too (encoder: sentences)"
            )


def _selected(of: NodesOrEdges, rows: Features, own: Columns, learned: ColumnsEntry) -> Features:
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


def _numbered(of: NodesOrEdges, y: Tensor, own: Sequence[str], learned: Sequence[str]) -> Tensor:
    """Return labels whose classes have the model's numbers."""
    if tuple(own) == tuple(learned):
        return y
    unknown = [name for name in own if name not in learned]
    missing = [name for name in learned if name not in own] if y.is_floating_point() else []
    if unknown or missing or len(set(own)) < len(own) or (y.ndim == 1 and bool((y >= len(own)).any())):
        raise DataError(
            f"the classes of {_text(of)!r} must be those that the model was trained on; unknown: "
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
    y: Mapping[NodesOrEdges, Tensor | None],
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
    edges = {
        name: replace(one, edge_attr=features.get(name), y=y[name])  # type: ignore[arg-type]
        for name, one in graph.types.edges.items()
    }
    return graph.replace(types=replace(graph.types, nodes=nodes, edges=edges), schema=schema)


_RENUMBERED = (
    " Its sizes are the same: was it renumbered (graphbraid reorder, convert --order) since? Other ids draw "
    "other mini-batches, so a run goes on only with the nodes as they were numbered."
)


def model_identity(model: nn.Module) -> dict[str, Any]:
    """Return a model's class and the shapes of its parameters and buffers."""
    shapes = {
        name: f"{'of any shape' if is_lazy(value) else tuple(value.shape)} {value.dtype}"
        for name, value in model.state_dict().items()
        if isinstance(value, Tensor)
    }
    return {"class": f"{type(model).__module__}.{type(model).__qualname__}", "shapes": shapes}


def graph_identity(graph: Graph) -> dict[str, Any]:
    """Return a graph's sizes and the mark of each of its arrays."""
    identity = {
        "num_nodes": graph.num_nodes,
        "num_edges": graph.num_edges,
        "num_features": graph.num_features,
        "splits": {name: int(ids.numel()) for name, ids in graph.splits.items()},
        "contract": Contract.of(graph).model_dump(),
    }
    for name, array in tensors_of(graph):
        identity[f"array {name}"] = mark(array, in_blocks=bool(sums_of(name)))
    return identity if graph.types is None else _identity_of_types(graph.types) | identity


def _identity_of_types(types: Types) -> dict[str, Any]:
    return {
        "node types": {name: nodes.num_nodes for name, nodes in types.nodes.items()},
        "relations": {"__".join(one): edges.num_edges for one, edges in types.edges.items()},
        "splits by type": {
            name: {split: int(ids.numel()) for split, ids in nodes.splits.items()}
            for name, nodes in types.nodes.items()
        },
    }


def check_same(
    found: Mapping[str, Any], model: nn.Module, graph: Mapping[str, Any], config: TrainConfig, path: object
) -> None:
    """Check that the checkpoint ``found`` is of the given model, graph (given by its identity) and config."""
    check_same_model(found["model_identity"], model, path)
    before, now = ({**one["contract"], **one} for one in (found["graph_identity"], graph))
    for key in {**now, **before}:
        value, here = before.get(key), now.get(key)
        if value != here:
            hint = _RENUMBERED if key.startswith("array") and "node types" not in graph else ""
            raise DataError(
                f"{path} was written while training on another graph: its {key} was {value}, this graph's "
                f"is {here}.{hint} Load the same graph with the same splits, or start anew in another "
                "out_dir."
            )
    _check_same_config(found["config"], config, path)


def check_same_model(found: Mapping[str, Any], model: nn.Module, path: object) -> None:
    """Refuse another model than that of the identity ``found``."""
    now = model_identity(model)
    if found["class"] != now["class"]:
        raise ConfigError(f"{path} holds a {found['class']}; the model given is a {now['class']}.")
    for name in {**found["shapes"], **now["shapes"]}:
        was, here = found["shapes"].get(name, "absent"), now["shapes"].get(name, "absent")
        if was != here:
            raise ConfigError(
                f"{path} holds another model: its {name} is {was}, the given model's is {here}. Build the "
                "model with the options of that run."
            )


def _check_same_config(found: Mapping[str, Any], config: TrainConfig, path: object) -> None:
    free = set(names_with("free", TrainConfig))
    if config.scheduler in PER_STEP:  # its curve spans the whole run
        free.discard("epochs")
    now = config.to_json()
    for name in now:
        was = found.get(name, "absent")
        if name not in free and was != now[name]:
            raise ConfigError(
                f"{path} was written with {name}={was!r}; this run has {now[name]!r}, which "
                f"would not continue it. Give {name} as it was, or start anew in another out_dir."
            )
