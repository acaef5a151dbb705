"""PyG's forms of a mini-batch: ``edge_index``, ``adj_t`` and ``HeteroData``; and its notebook display."""

from __future__ import annotations

import copy
import itertools
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from graphbraid.figures import notebook, table
from graphbraid.graph import EdgeType
from graphbraid.graph.csc import indptr_of_rows
from graphbraid.graph.types import ONLY_NODE_TYPE
from graphbraid.sampling.links.link_seeds import OF_LINKS
from graphbraid.sampling.sample import SampledEdges

if TYPE_CHECKING:
    from torch_geometric.data import HeteroData

    from graphbraid.sampling.minibatch.mini_batch import MiniBatch
    from graphbraid.sampling.source import BatchSource


BY_TYPE = "_dict"
"""End of the names of attributes by node type or relation."""
_NOT_OF_INPUTS = {
    *("n_id_dict", "batch_dict", "num_sampled_nodes_dict", "num_sampled_edges_dict"),
    *("input_id", "batch_size", "epoch", "step"),
}
"""Attributes of a batch that have places of their own in a ``HeteroData``, or none."""


def edge_index_of(edges: SampledEdges) -> Tensor:
    """Return the edges as ``(2, num_edges)`` int64 local ids: sources in row 0, destinations in row 1."""
    num_edges = edges.indices.numel()
    return torch.stack(
        (edges.indices.long(), torch.repeat_interleave(edges.indptr.diff(), output_size=num_edges))
    )


def adj_t_of(
    like: Any, edge_index: Tensor, values: Tensor | None, size: tuple[int, int], *, sorts: bool = True
) -> Any:
    """Return the transposed adjacency matrix of a sample: a row per destination, a column per source.

    Args:
        like: a matrix of the wanted kind: a torch sparse tensor in layout CSR, CSC or COO, or a
            ``torch_sparse.SparseTensor``. With ``values``, one of these layouts, or the class
            ``SparseTensor``, may be given instead.
        edge_index: ``(2, num_edges)`` int64, sorted by destination.
        values: ``(num_edges,)`` values. If None, all are 1, or the matrix has none if its kind allows that.
        size: numbers of destinations and of sources.
        sorts: sort the sources of each row, or the destinations of each column. If False, they keep their
            order in layouts CSR, CSC and COO.
    """
    src, dst = edge_index
    layout = like if isinstance(like, torch.layout) else getattr(like, "layout", None)
    if layout is None:
        kind = like if isinstance(like, type) else type(like)
        return kind(row=dst, col=src, value=values, sparse_sizes=size, is_sorted=False, trust_data=True)
    if values is None:
        stored = like._values() if layout == torch.sparse_coo else like.values()
        values = stored.new_ones(src.numel())
    if layout == torch.sparse_coo:
        return torch.sparse_coo_tensor(edge_index.flip(0), values, size, check_invariants=False)
    by_row = layout == torch.sparse_csr
    outer, inner = (dst, src) if by_row else (src, dst)
    order = torch.argsort(outer * size[by_row] + inner if sorts else outer, stable=True)
    num_lists = size[not by_row]
    ends = indptr_of_rows(outer, num_lists)
    make = torch.sparse_csr_tensor if by_row else torch.sparse_csc_tensor
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CS. tensor support is in beta state")
        return make(ends, inner[order], values[order], size, check_invariants=False)


def hetero_data(batch: MiniBatch, source: BatchSource | None) -> HeteroData:
    """Return a batch of a graph with types as a PyG ``HeteroData`` with all its attributes.

    A batch that was pickled holds them all, and has no ``source``.

    Raises:
        ConfigError: the layout is ``blocks``, in which each layer has its own edges.
    """
    from torch_geometric.data import HeteroData

    out = HeteroData() if batch.template is None else copy.copy(batch.template)
    _ = batch.edge_index_dict  # the first of all, which layout 'blocks' refuses
    own: dict[str | EdgeType, dict[str, Any]] = {}
    for name in batch.lazy_keys():
        for one, rows in batch.value(name).items():
            own.setdefault(one, {})[name.removesuffix(BY_TYPE)] = rows
    for node_type, ids in batch.n_id_dict.items():
        store, rows = _written(out.get_node_store(node_type)), own.get(node_type, {})
        if "num_nodes" in store or not rows:
            store["num_nodes"] = ids.numel()
        store.update(rows)
        store.setdefault("n_id", ids)
        if "batch_dict" in vars(batch):
            store["batch"] = batch.batch_dict[node_type]
        if batch.sampled.by_hop:
            store["num_sampled_nodes"] = batch.num_sampled_nodes_dict[node_type]
    by_edge = batch.sampled.positions_are_kept
    for edge_type in batch.edge_types:
        store, rows = _written(out.get_edge_store(*edge_type)), own[edge_type]
        if "adj_t" in rows:
            del rows["edge_index"]  # the data have none
        for name in () if source is None or by_edge else ("edge_index", *source.tables[edge_type]):
            store.pop(name, None)  # the data's own, which are of all edges
        e_id = rows.pop("e_id", None)
        store.update(rows)
        if e_id is not None:
            store.setdefault("e_id", e_id)
        if batch.sampled.by_hop:
            store["num_sampled_edges"] = batch.num_sampled_edges_dict[edge_type]
    _give_inputs(batch, out)
    return out


def _written(store: Any) -> dict[str, Any]:
    """Return the dict behind a new store of a ``HeteroData``, to write attributes to.

    A write to the store itself would each time look for PyG's caches of earlier attributes.
    """
    held: dict[str, Any] = store._mapping
    return held


def _give_inputs(batch: MiniBatch, out: Any) -> None:
    """Copy a batch's attributes of seeds or links into the stores of a ``HeteroData`` where PyG has them."""
    attributes = {
        name: value for name, value in vars(batch).items() if name[0] != "_" and name not in _NOT_OF_INPUTS
    }
    if isinstance(batch.input_type, str):
        inputs = _written(out.get_node_store(batch.input_type))
        inputs.update(input_id=batch.input_id, batch_size=batch.batch_size)
        inputs.update(attributes)
        return
    inputs = _written(out.get_edge_store(*batch.input_type))
    inputs["input_id"] = batch.input_id
    src, dst = (_written(out.get_node_store(batch.input_type[end])) for end in (0, -1))
    for store, name in itertools.product((inputs, src, dst), OF_LINKS):
        store.pop(name, None)  # the data's own, which are of all links
    for name, value in attributes.items():
        if name in ("src_index", "seed_time"):
            src[name] = value
        if name in ("dst_pos_index", "dst_neg_index", "seed_time"):
            dst[name] = value
        if name in ("edge_label_index", "edge_label", "edge_label_time"):
            inputs[name] = value


def batch_html(batch: MiniBatch, held: Mapping[Any, Any]) -> str:
    """Return the HTML of a batch for a notebook from its attributes ``held``, computing none."""
    drawn = batch.sampled
    types = batch.n_id_dict if batch.is_typed else (ONLY_NODE_TYPE,)
    counts = [
        *((name, sum(n), *n) for name, n in zip(types, drawn.nodes_by_type, strict=True)),
        *(
            (" ".join(name), sum(n), "", *n)
            for name, n in zip(batch.edge_types, drawn.counts_by_relation, strict=True)
        ),
    ]
    hops = range(1, max(len(row) for row in counts) - 2)
    heads = ("nodes, edges", "drawn", "seeds", *(f"hop {hop}" for hop in hops))
    if not drawn.by_hop:
        counts, heads = [row[:2] for row in counts], heads[:2]
    tensors = [
        (" ".join(key) if isinstance(key, tuple) else key, tuple(value.shape), value.dtype, value.device)
        for key, value in held.items()
        if isinstance(value, Tensor)
    ]
    return notebook(
        f"MiniBatch: epoch {batch.epoch}, step {batch.step}, batch size {batch.batch_size:,}",
        table(counts, heads),
        table(tensors, ("held so far", "shape", "dtype", "device")),
    )
