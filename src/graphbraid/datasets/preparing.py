"""Changes that every source offers on loading: directions, loops, repeats, feature scaling, random splits."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from graphbraid.datasets.memory import CHANGED_EDGE_BYTES, require_memory
from graphbraid.datasets.splits import with_drawn_splits
from graphbraid.errors import DataError
from graphbraid.graph import Columns, Graph, ScaledFeatures, SparseFeatures
from graphbraid.graph.scaled_features import Features
from graphbraid.graph.types import ONLY_NODE_TYPE
from graphbraid.signatures import typed


@typed
def prepare(
    graph: Graph,
    *,
    symmetrize: bool | None = None,
    add_self_loops: bool | None = None,
    dedupe: bool | None = None,
    normalize_features: bool | None = None,
    split_seed: int | None = None,
) -> Graph:
    """Apply the requested changes to a loaded graph; None and False leave it as the source has it.

    Args:
        graph: The graph.
        symmetrize: Store both directions of every edge, each once; in a graph with types, add the reverse of
            every relation.
        add_self_loops: Add a self-loop to every node without one.
        dedupe: Keep one of several equal edges.
        normalize_features: Divide every feature row by the sum of its absolute values; zero rows stay zero.
        split_seed: Draw a new split with this seed: 20 training and 30 validation nodes per class for
            single-label graphs (:func:`random_split`), else 60 and 20 % of the nodes
            (:func:`random_share_split`); in a graph with types, of each type that has labels.

    Raises:
        ResourceError: Changing the edges needs more than the free memory, as it holds both graphs.
        DataError: The graph has no features to normalise, or no labels to split by.
    """
    if dedupe or symmetrize or add_self_loops:
        what = "changing the graph's edges as asked"
        require_memory(graph.num_edges * CHANGED_EDGE_BYTES, what)
    if dedupe:
        graph = graph.without_duplicates()
    if symmetrize:
        graph = graph.with_reverse_relations() if graph.is_typed else graph.symmetrized()
    if add_self_loops:
        graph = graph.with_self_loops()
    if normalize_features:
        graph.check_one_type("normalize_features")
        columns = dict(graph.schema.columns)
        columns[ONLY_NODE_TYPE] = replace(columns.get(ONLY_NODE_TYPE, Columns()), normalized=True)
        schema = replace(graph.schema, columns=columns)
        graph = graph.replace(x=normalized_rows(graph.x), schema=schema)
    if split_seed is not None:
        graph = with_drawn_splits(graph, split_seed)
    return graph


def normalized_rows(x: Features | None) -> Tensor | SparseFeatures:
    """Divide each row by the sum of its absolute values (a copy of the same dtype; sums run in float32).

    Raises:
        DataError: There are no features, or they are int8.
    """
    if x is None:
        raise DataError("normalize_features needs features; the graph has none")
    if isinstance(x, ScaledFeatures):
        raise DataError("normalize_features needs float features; normalise them before they are made int8")
    if isinstance(x, SparseFeatures):
        rows = torch.repeat_interleave(torch.arange(x.shape[0]), x.indptr.diff())
        sums = torch.zeros(x.shape[0]).index_add_(0, rows, x.values.float().abs())
        values = (x.values.float() / sums[rows].clamp_(min=torch.finfo(torch.float32).tiny)).to(
            x.values.dtype
        )
        return SparseFeatures(
            indptr=x.indptr, indices=x.indices, values=values, num_cols=x.num_cols, trusted=True
        )
    sums = x.abs().sum(dim=1, keepdim=True, dtype=torch.float32)
    return torch.where(sums > 0, x / sums, 0).to(x.dtype)
