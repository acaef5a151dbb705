"""Graphs whose features are encoded columns of tables: encoders are fitted on the rows for training alone."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from graphbraid.datasets.tables.column_types import ColumnChoice, EncodedRows
from graphbraid.datasets.tables.encoding import encoded, fitted, names_of
from graphbraid.datasets.tables.reading import classes_of, targets_of
from graphbraid.errors import DataError, did_you_mean
from graphbraid.graph import Columns, Graph
from graphbraid.graph.checks import named
from graphbraid.graph.schema import Encoder
from graphbraid.graph.types import NodeSet

NOW = b"now"
"""Key in a table's metadata: the seconds since 1970 up to which ages are counted, in rows without a time."""


def with_fitted_features(
    graph: Graph, choices: Mapping[str, Mapping[str, ColumnChoice]] | None = None
) -> Graph:
    """Return the graph with features by encoders fitted anew, on the nodes for training alone.

    ``choices`` are kinds and encodings by node type and column; None takes those of the graph's encoders.
    DataError names the type and column of a bad value; ResourceError: the features do not fit in memory.
    """
    made = {}
    for name, columns in _with_table(graph).items():
        chosen = {} if choices is None else dict(choices[name])
        if choices is None:
            for one in columns.encoders or ():
                model = one.entries[0] if one.how == "sentences" else None
                chosen[one.column] = ColumnChoice(type=one.kind, encoder=one.how, size=one.size, model=model)
        nodes, rows = graph.nodes_of(name), training_rows(graph, name)
        reference = reference_of(nodes, columns)
        with named(f"nodes of type {name!r}"):
            fits = (
                fitted(column, columns.table.column(column), rows, choice, reference)
                for column, choice in chosen.items()
            )
            made[name] = tuple(one for one in fits if one is not None)
    return with_encoders(graph, made)


def with_encoders(graph: Graph, encoders: Mapping[str, Sequence[Encoder]]) -> Graph:
    """Return the graph with features by these encoders; DataError names a column that is missing."""
    nodes, columns = dict(graph.all_types.nodes), dict(graph.schema.columns)
    for name, own in encoders.items():
        names = tuple(column for one in own for column in names_of(one))
        if len(set(names)) < len(names):
            twice = sorted({column for column in names if names.count(column) > 1})
            raise DataError(
                f"nodes of type {name!r}: several features would be called {twice[0]!r}; rename a column"
            )
        columns[name] = replace(columns[name], names=names, encoders=tuple(own))
        nodes[name] = encoded_nodes(nodes[name], columns[name], name)
    schema = replace(graph.schema, columns=columns)
    return graph.replace(types=replace(graph.all_types, nodes=nodes), schema=schema)


def encoded_nodes(nodes: NodeSet, columns: Columns, node_type: str) -> NodeSet:
    """Return nodes with the features that encoders make of their table, or raise as :func:`encoded`."""
    with named(f"nodes of type {node_type!r}"):
        x = encoded(columns.table, columns.encoders or (), reference_of(nodes, columns))
    return replace(nodes, x=None if x is None else torch.from_numpy(x))


AS_NUMBER = ":number"
"""Suffix of a target whose whole numbers are learned as numbers, not as classes."""
_MOST_ALONE = 20
"""Most classes that are learned although each has one row alone, as in a small example."""
_log = logging.getLogger(__name__)


def with_target(graph: Graph, target: str) -> Graph:
    """Return the graph with a column of a table as its only labels, and without it among the features.

    The target is ``customer.churn`` or ``customer.age:number``, which learns numbers. Else whole numbers are
    classes; of more than two a warning says so. DataError: there is no such column, or it cannot be a label.
    """
    tables = _with_table(graph)
    known = {
        f"{name}.{column}": (name, column)
        for name, one in tables.items()
        for column in one.table.column_names
    }
    if not known:
        raise DataError(
            f"the target {target!r} is a column of a table, and the graph keeps none; convert a description "
            "of tables whose nodes have no features: entry"
        )
    is_number = target not in known and target.endswith(AS_NUMBER)
    target = target.removesuffix(AS_NUMBER) if is_number else target
    if target not in known:
        raise DataError(
            f"there is no column {target!r}; there are {', '.join(known)}.{did_you_mean(target, known)}"
        )
    name, column = known[target]
    with named(f"the target {target}"):
        read = targets_of if is_number else classes_of
        y, classes = read(tables[name].table.column(column), column)
    if classes is None and y.dtype == np.int64 and (count := len(np.unique(y[y >= 0]))) > 2:
        _log.warning(
            "%s holds whole numbers: its %d values are learned as classes; --target %s%s learns numbers",
            *(target, count, target, AS_NUMBER),
        )
    types = graph.all_types
    nodes = {other: replace(one, y=None, splits={}) for other, one in types.nodes.items()}
    nodes[name] = replace(types.nodes[name], y=torch.from_numpy(y))
    if classes is not None and len(classes) > _MOST_ALONE and len(classes) == np.count_nonzero(y >= 0):
        raise DataError(
            f"the target {target} is a different text in each of {len(classes)} rows: no row tells the class "
            "of another"
        )
    own = tables[name]
    kept = tuple(one for one in own.encoders or () if one.column != column)
    columns = {**graph.schema.columns, name: replace(own, encoders=kept)}
    schema = replace(graph.schema, columns=columns, class_names={} if classes is None else {name: classes})
    return with_encoders(
        graph.replace(types=replace(types, nodes=nodes), schema=schema, trusted=True), {name: kept}
    )


def training_rows(graph: Graph, node_type: str) -> EncodedRows | None:
    """Return the nodes of a type that encoders are fitted on; None for all.

    If the type has a split, these are its training nodes. If another type is split by time, they are the
    nodes up to the time of its last training node.
    """
    nodes = graph.nodes_of(node_type)
    if "train" in nodes.splits:
        return nodes.splits["train"].numpy()
    ends = []
    for one in (graph.nodes_of(name) for name in graph.node_types):
        if one.time is None or not {"train", "val"} <= set(one.splits):
            continue
        last = one.time[one.splits["train"]].max()
        if bool(last < one.time[one.splits["val"]].min()):
            ends.append(float(last))
    if nodes.time is None or not ends:
        return None
    return torch.nonzero(nodes.time <= min(ends)).flatten().numpy()


def reference_of(nodes: NodeSet, columns: Columns) -> EncodedRows | None:
    """Return the seconds since 1970 up to which each row's ages are counted: its own time, or the tables'."""
    metadata = columns.table.schema.metadata or {}
    if NOW not in metadata:
        return None
    if metadata[NOW] == b"time" and nodes.time is not None:
        return nodes.time.double().numpy()
    return np.full(nodes.num_nodes, float(metadata[NOW]))


def _with_table(graph: Graph) -> dict[str, Columns]:
    columns = graph.schema.columns
    return {
        name: columns[name]
        for name in graph.node_types
        if name in columns and columns[name].table is not None
    }
