"""Splits of nodes, drawn or by time, and the streams of the counter RNG that datasets draw from.

Draw ``i`` of a stream is ``mix(key + i·φ)``. A split depends only on the graph's labels, times or groups and
a seed, so its text and one number identify it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from graphbraid.arguments import as_count, check_tensor, check_type
from graphbraid.errors import ConfigError, DataError, did_you_mean
from graphbraid.graph import Columns, EdgeSet, EdgeType, Graph, NodeSet
from graphbraid.graph.checks import named
from graphbraid.graph.schema import NodesOrEdges
from graphbraid.graph.types import ONLY_NODE_TYPE, has_labels
from graphbraid.ops.rng import PHI, mix, mix_array
from graphbraid.signatures import typed

if TYPE_CHECKING:
    from graphbraid.graph.graph_set import GraphSet

NodeNumbers = npt.NDArray[Any]
"""int64 ids of nodes."""
Labelled = Graph | NodeSet | EdgeSet
"""Kinds of things with labels, one row each."""
WAYS = ("fractions", "stratified", "time", "group", "per-class")
"""Ways to split the nodes with labels; ``fractions`` is the one that a text without a name asks for."""


def stream_key(seed: int, purpose: int) -> int:
    """Return the 64-bit key of one kind of draws; ConfigError unless the seed is an integer of 64 bits."""
    seed = as_count(seed, "seed", most=(1 << 64) - 1)
    return mix(seed ^ mix(purpose))


def draws(key: int, count: int, first: int = 0) -> npt.NDArray[Any]:
    """Return the draws ``first``, ``first + 1``, ... of a stream as ``(count,)`` uint64."""
    return mix_array(np.arange(first, first + count, dtype=np.uint64) * np.uint64(PHI) + np.uint64(key))


_PURPOSE = 0x53504C4954  # "SPLIT": keeps these draws apart from the generator's for the same seed


@typed
def random_split(graph: Graph, *, train_per_class: int = 20, val_per_class: int = 30, seed: int = 0) -> Graph:
    """Draw the same number of training and of validation nodes from every class; the rest is for testing.

    This is the split of Shchur et al., "Pitfalls of Graph Neural Network Evaluation", whose numbers are the
    defaults.

    Args:
        graph: A graph with single-label classes; nodes without a class are in no split.
        train_per_class: Number of training nodes per class.
        val_per_class: Number of validation nodes per class.
        seed: Seed of the draws.

    Returns:
        The graph with the three splits, ids sorted.

    Raises:
        ConfigError: The labels are not single-label classes, or a count is not positive.
        DataError: A class has too few nodes; names it and its number of nodes.
    """
    return graph.replace(splits=_by_class(graph, train_per_class, val_per_class, seed))


@typed
def split_nodes(
    graph: Graph,
    how: str,
    *,
    seed: int = 0,
    node_type: str | None = None,
    values: Tensor | Sequence[int | float | str] | None = None,
) -> Graph:
    """Split the nodes that have labels into ``train``, ``val`` and ``test``; the others are in no split.

    ``"0.6,0.2"`` draws these shares, the rest is for testing; ``"stratified:0.6,0.2"`` draws them from every
    class. ``"time:2026-01-01,2026-02-01"`` trains on nodes from before the first time and tests on those from
    the second on. ``"group:city:0.6,0.2"`` keeps the nodes of a city together. ``"per-class:20,30"`` is
    :func:`random_split`. ``"customer=0.6,0.2;item=per-class"`` splits each of these types in its own way.

    Args:
        graph: The graph.
        how: The split, as above. With a third share, the rest is in no split.
        seed: Seed of the draws.
        node_type: The type to split. If None, each type that has labels, or those that ``how`` names.
        values: The time or the group of each node, in place of the graph's own.

    Raises:
        ConfigError: The text is none of these, or shares or times are impossible.
        DataError: There are no labels, times or groups, or a part would be empty; names it.
    """
    if graph.types is None:
        if "=" in how:
            raise ConfigError(f"the split {how!r} is by node type, and the graph has no types")
        return graph.replace(splits=_parts(graph, ONLY_NODE_TYPE, how, seed, values))
    nodes = dict(graph.types.nodes)
    labelled = [name for name, one in nodes.items() if one.y is not None]
    if "=" in how:
        ways = {one.partition("=")[0].strip(): one.partition("=")[2] for one in how.split(";")}
    else:
        ways = dict.fromkeys(labelled if node_type is None else [node_type], how)
    if not ways:
        raise DataError("a split needs labels; no node type has any")
    for name, way in ways.items():
        one = graph.nodes_of(name)
        with named(f"nodes of type {name!r}"):
            nodes[name] = replace(one, splits=_parts(graph, name, way.strip(), seed, values))
    return graph.replace(types=replace(graph.types, nodes=nodes), schema=graph.schema)


@typed
def split_edges(
    graph: Graph,
    edge_type: EdgeType,
    how: str,
    *,
    seed: int = 0,
    values: Tensor | Sequence[int | float | str] | None = None,
) -> Graph:
    """Split the edges of a relation that have labels, as :func:`split_nodes` splits nodes.

    Args:
        graph: A graph with types.
        edge_type: The relation.
        how: As for :func:`split_nodes`; ``"time:..."`` reads the times of the edges.
        seed: Seed of the draws.
        values: The time or the group of each edge, in the order of the relation's list.

    Raises:
        ConfigError: The text is no split, or shares or times are impossible.
        DataError: There is no such relation, no labels, times or groups, or a part would be empty.
    """
    if graph.types is None:
        raise DataError("labels of edges are those of a relation; make the graph by Graph.from_relations")
    with named(edge_type):
        edges = replace(graph.edges_of(edge_type), splits=_parts(graph, edge_type, how, seed, values))
    types = replace(graph.types, edges={**graph.types.edges, edge_type: edges})
    return graph.replace(types=types, schema=graph.schema)


def split_graphs(
    graphs: GraphSet, how: str, *, seed: int = 0, values: Tensor | Sequence[int | float | str] | None = None
) -> GraphSet:
    """Split the graphs that have labels into ``train``, ``val`` and ``test``, as :func:`split_nodes` does.

    Args:
        graphs: The graphs.
        how: Such as ``"0.8,0.1"``, ``"stratified:0.8,0.1"``, ``"per-class:20,30"``, ``"group::0.8,0.1"`` or
            ``"time:2026-01-01,2026-02-01"``.
        seed: Seed of the draws.
        values: The time or the group of each graph.

    Raises:
        ConfigError: The text is none of these, or shares or times are impossible.
        DataError: There are no labels, times or groups, or a part would be empty; names it.
    """
    from graphbraid.graph.graph_set import GRAPHS, GraphSet  # here: few runs are of many graphs

    check_type(graphs, "graphs", GraphSet, "a graphbraid.GraphSet")
    return graphs.with_splits(_parts(graphs.graph, GRAPHS, how, seed, values))


def with_drawn_splits(graph: Graph, seed: int) -> Graph:
    """Draw new splits: by class where labels are classes, else by share; for each node type that has labels.

    Raises:
        DataError: nothing has labels, or a class or type has too few of them.
    """
    of = {ONLY_NODE_TYPE: graph} if graph.types is None else graph.types.nodes
    ways = {
        name: "per-class" if one.task == "single-label" else "0.6,0.2"
        for name, one in of.items()
        if one.y is not None
    }
    if graph.types is None:
        return split_nodes(graph, ways.get(ONLY_NODE_TYPE, "0.6,0.2"), seed=seed)
    if not ways:
        raise DataError("a split needs labels; no node type has any")
    for name, way in ways.items():
        graph = split_nodes(graph, way, seed=seed, node_type=name)
    return graph


def _parts(graph: Graph, node_type: NodesOrEdges, how: str, seed: int, values: Any) -> dict[str, Tensor]:
    """Return the splits of the nodes of one type, or of the edges of a relation."""
    nodes = _of(graph, node_type)
    way, colon, rest = how.partition(":")
    if not colon and way != "per-class":
        way, rest = "fractions", how
    if way not in WAYS:
        hint = did_you_mean(way, WAYS, joined=True) or f"; known are: {', '.join(WAYS)}"
        raise ConfigError(f"there is no split {way!r}{hint}")
    if way == "per-class":
        counts = [_number(part, how) for part in rest.split(",")] if rest else [20, 30]
        if len(counts) != 2 or any(count != int(count) for count in counts):
            raise ConfigError(
                f"a split per class needs two whole numbers, such as per-class:20,30; got {how!r}"
            )
        return _by_class(nodes, int(counts[0]), int(counts[1]), seed)
    if way == "time":
        return _by_time(nodes, rest, values)
    column, _, rest = rest.rpartition(":") if way == "group" else ("", "", rest)
    shares = [_number(part, how) for part in rest.split(",")]
    if len(shares) not in (2, 3):
        raise ConfigError(f"a split needs two or three shares, such as 0.6,0.2; got {how!r}")
    _check_shares(shares)
    if way == "group":
        return _by_group(nodes, shares, seed, _groups(graph, node_type, column, values))
    if way == "stratified":
        return _stratified(nodes, shares, seed)
    return _by_share(nodes, shares, seed)


def _of(graph: Graph, one: NodesOrEdges) -> Labelled:
    return graph.nodes_of(one) if isinstance(one, str) else graph.edges_of(one)


def _number(text: str, how: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"{text!r} in the split {how!r} is no number") from None


def _named_parts(train: NodeNumbers, val: NodeNumbers, test: NodeNumbers, why: str) -> dict[str, Tensor]:
    """Return the parts by name, ids sorted; DataError if one is empty."""
    parts = {"train": train, "val": val, "test": test}
    if empty := [name for name, ids in parts.items() if not len(ids)]:
        sizes = ", ".join(f"{name} {len(ids)}" for name, ids in parts.items())
        raise DataError(f"the split leaves {' and '.join(empty)} empty ({sizes}): {why}")
    return {name: torch.from_numpy(np.sort(ids)) for name, ids in parts.items()}


def _by_class(nodes: Labelled, train_per_class: int, val_per_class: int, seed: int) -> dict[str, Tensor]:
    if nodes.task != "single-label" or nodes.y is None:
        raise ConfigError(
            f"a split by class needs single-label classes; the labels are {nodes.task}. "
            "Use random_share_split instead."
        )
    if train_per_class < 1 or val_per_class < 1:
        raise ConfigError(
            f"train_per_class and val_per_class must be at least 1; got {train_per_class} and {val_per_class}"
        )
    order, place, counts, classes = _by_label(nodes.y, seed)
    needed = train_per_class + val_per_class + 1
    if (counts < needed).any():
        at = int(np.argmax(counts < needed))
        raise DataError(
            f"class {classes[at]} has {counts[at]} labelled nodes; {train_per_class} for training, "
            f"{val_per_class} for validation and at least one for testing are needed"
        )
    train = place < train_per_class
    test = place >= train_per_class + val_per_class
    return _named_parts(order[train], order[~train & ~test], order[test], "no node is left")


@typed
def random_share_split(graph: Graph, *, train: float = 0.6, val: float = 0.2, seed: int = 0) -> Graph:
    """Draw a share of all labelled nodes for training and for validation; the rest becomes the test split.

    It also takes multi-label and regression targets. A node counts as labelled if its targets are finite. A
    multi-label row that is -1 or -100 throughout has no label.

    Raises:
        ConfigError: The shares are not positive or leave nothing for testing.
        DataError: Too few labelled nodes for three splits.
    """
    _check_shares([train, val])
    return graph.replace(splits=_by_share(graph, [train, val], seed))


def _check_shares(shares: Sequence[float]) -> None:
    whole = sum(shares)
    if not (min(shares) > 0 and (whole < 1 if len(shares) == 2 else whole < 1 + 1e-9)):
        texts = " and ".join(f"{share:g}" for share in shares)
        limit = "less than 1" if len(shares) == 2 else "at most 1"
        raise ConfigError(f"train and val must be positive and sum to {limit}; got {texts}")


def _ends(shares: Sequence[float], count: Any) -> list[Any]:
    """Return where the parts of ``count`` nodes end, for one count or an array of them."""
    sums = [shares[0], shares[0] + shares[1], min(sum(shares), 1.0) if len(shares) == 3 else 1.0]
    return [np.rint(end * count).astype(np.int64) for end in sums]


def _by_share(nodes: Labelled, shares: Sequence[float], seed: int) -> dict[str, Tensor]:
    order = _shuffled(_labelled(nodes), seed)
    first, second, last = _ends(shares, np.asarray(len(order)))
    why = f"{len(order)} labelled nodes are too few for shares of {' and '.join(map(str, shares))}"
    return _named_parts(order[:first], order[first:second], order[second:last], why)


def _stratified(nodes: Labelled, shares: Sequence[float], seed: int) -> dict[str, Tensor]:
    if nodes.task != "single-label" or nodes.y is None:
        raise ConfigError(f"a stratified split needs single-label classes; the labels are {nodes.task}")
    order, place, counts, _ = _by_label(nodes.y, seed)
    first, second, last = _ends(shares, counts[np.repeat(np.arange(len(counts)), counts)])
    val, test = (place >= first) & (place < second), (place >= second) & (place < last)
    why = f"classes of {counts.min(initial=len(order))} nodes are too few for these shares"
    return _named_parts(order[place < first], order[val], order[test], why)


def _by_label(y: Tensor, seed: int) -> tuple[NodeNumbers, NodeNumbers, NodeNumbers, NodeNumbers]:
    """Return the labelled nodes, shuffled within their classes; their place there; counts; the classes."""
    labels = y.cpu().numpy()
    order = _shuffled(np.flatnonzero(labels >= 0), seed)
    order = order[np.argsort(labels[order], kind="stable")]
    classes, starts, counts = np.unique(labels[order], return_index=True, return_counts=True)
    return order, np.arange(len(order)) - np.repeat(starts, counts), counts, classes


def _by_time(nodes: Labelled, bounds: str, values: Any) -> dict[str, Tensor]:
    """Train on nodes from before the first time, validate on those before the second, test on the others."""
    own = None if isinstance(nodes, Graph) else nodes.time
    if values is None and own is None:
        raise DataError("a split by time needs times of the nodes; name their column: `time: COLUMN`")
    time = _checked_values(own if values is None else values, nodes.num_nodes, "times")
    limits = [seconds_of(text) for text in bounds.split(",")]
    if len(limits) != 2 or not limits[0] < limits[1]:
        raise ConfigError(
            f"a split by time needs two rising times, such as time:2026-01-01,2026-02-01; got {bounds!r}"
        )
    ids = _labelled(nodes)
    at = np.searchsorted(np.asarray(limits), time[ids].astype(np.float64), side="right")
    why = "no node has a label"
    if len(ids):
        earliest, latest = _time_text(time[ids].min()), _time_text(time[ids].max())
        why = f"nodes with labels have times from {earliest} to {latest}"
    return _named_parts(ids[at == 0], ids[at == 1], ids[at == 2], why)


def seconds_of(text: str) -> float:
    """Return a number, or a date's seconds since 1970 (UTC unless it says); ConfigError for other texts."""
    try:
        return float(text)
    except ValueError:
        pass
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ConfigError(f"{text!r} is no time; give a date such as 2026-01-31, or a number") from None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def _time_text(value: Any) -> str:
    """Show a time: as a date where it can be seconds since 1970 of the years 1973 to 2128."""
    seconds = float(value)
    return datetime.fromtimestamp(seconds, UTC).isoformat() if 1e8 < seconds < 5e9 else f"{seconds:g}"


def _groups(graph: Graph, node_type: NodesOrEdges, column: str, values: Any) -> NodeNumbers:
    """Return the number of the group of each node: of ``values``, or of a column of the type's table."""
    count = _of(graph, node_type).num_nodes
    columns = graph.schema.columns.get(node_type, Columns())
    if values is not None:
        found: NodeNumbers = np.unique(_checked_values(values, count, "groups"), return_inverse=True)[1]
        return found
    if columns.table is None:
        raise DataError("a split by group needs the group of each node: a graph of tables, or values=")
    if column not in (known := columns.table.column_names):
        raise DataError(f"there is no column {column!r} to group by.{did_you_mean(column, known)}")
    encoded = columns.table.column(column).combine_chunks().dictionary_encode()
    blank = [at for at, name in enumerate(encoded.dictionary.to_pylist()) if not str(name).strip()]
    empty = encoded.null_count + int(np.isin(encoded.indices.fill_null(-1).to_numpy(), blank).sum())
    if empty:
        raise DataError(f"column {column!r} is empty for {empty} nodes, which have no group")
    numbers: NodeNumbers = encoded.indices.to_numpy()
    return numbers


def _checked_values(values: Any, count: int, what: str) -> NodeNumbers:
    if isinstance(values, Tensor):
        values = check_tensor(values, what).cpu()
        values = values.float() if values.dtype == torch.bfloat16 else values  # NumPy has no bfloat16
    found = np.asarray(values)
    if found.shape != (count,):
        raise DataError(f"{what} must be one per node ({count}); got shape {found.shape}")
    if found.dtype.kind == "f" and np.isnan(found).any():
        raise DataError(f"{what} must be known for every node; node {np.isnan(found).argmax()} has NaN")
    return found


def _by_group(nodes: Labelled, shares: Sequence[float], seed: int, groups: NodeNumbers) -> dict[str, Tensor]:
    """Draw groups, one after the other, until each part has its share of the labelled nodes."""
    ids = _labelled(nodes)
    order = _shuffled(np.unique(groups[ids]), seed)
    part = np.zeros(order.max(initial=-1) + 1, np.int64)
    sizes = np.bincount(groups[ids], minlength=len(part))[order]
    middle = np.cumsum(sizes) - sizes / 2  # a group goes to the part of its middle node
    part[order] = np.searchsorted(np.asarray(_ends(shares, np.asarray(len(ids)))), middle, side="right")
    of = part[groups[ids]]
    why = f"{len(order)} groups are too few, or one is too large"
    return _named_parts(ids[of == 0], ids[of == 1], ids[of == 2], why)


def _labelled(nodes: Labelled) -> NodeNumbers:
    if nodes.y is None:
        raise DataError("a split needs labels; the graph has none")
    y = nodes.y.cpu()
    if nodes.task == "multi-label":
        labelled = has_labels(y)
    elif y.is_floating_point():
        cells = y.reshape(len(y), -1)
        labelled = ~(cells.isnan().all(1) | cells.isinf().any(1))
    else:
        labelled = y >= 0
    return np.flatnonzero(labelled.numpy()).astype(np.int64)


def _shuffled(nodes: NodeNumbers, seed: int) -> NodeNumbers:
    return nodes[np.argsort(draws(stream_key(seed, _PURPOSE), len(nodes)), kind="stable")]
