"""ShaDowKHopSampler: a loader of ego networks, with the arguments and batches of PyG's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

import torch
from torch import Tensor

from graphbraid.arguments import as_count
from graphbraid.errors import ConfigError, MissingPackageError
from graphbraid.graph import Graph
from graphbraid.loader.keywords import ShadowKeywords
from graphbraid.loader.neighbor import NeighborLoader
from graphbraid.loader.sources import is_typed
from graphbraid.sampling.config import EGO
from graphbraid.sampling.minibatch.mini_batch import MiniBatch

if TYPE_CHECKING:
    from torch_geometric.data import Batch, Data

_MOST_DEPTH = 64
_OF_BATCH = ("batch", "ptr", "num_nodes", "n_id", "e_id", "edge_index", "adj_t", "y")


class ShaDowKHopSampler(NeighborLoader):
    """A loader of small subgraphs, one around each node, for models that are deeper than their subgraphs.

    After Zeng et al., "Decoupling the Depth and Scope of Graph Neural Networks".
    ``from graphbraid.loader import ShaDowKHopSampler`` replaces PyG's import. A subgraph has the nodes that
    are drawn in ``depth`` hops and all edges of the graph between them. Batches are pure, as those of
    :class:`NeighborLoader`, whose threads draw them; the same node may be in several subgraphs.

    A batch is a PyG ``Batch``: nodes are in the order of their subgraphs, the root first. ``batch`` has each
    node's subgraph, ``ptr``, ``(num_roots + 1,)``, the first node of each, and ``root_n_id``,
    ``(num_roots,)``, the local ids of the roots. ``y`` has a row for each root, all other attributes one for
    each node or edge. It also has ``n_id``, ``e_id`` and ``input_id``, as batches of :class:`NeighborLoader`.

    Args:
        data: a :class:`graphbraid.Graph` or a homogeneous PyG ``Data``.
        depth: number of hops of a subgraph.
        num_neighbors: number of neighbours that each node of a hop draws; -1 takes all.
        node_idx: the roots: node ids, a bool mask or the name of one of the graph's splits. If None, all
            nodes.
        replace: whether to draw with replacement.
        **options: options of :class:`NeighborLoader`, such as ``batch_size``, ``shuffle``, ``seed`` and
            ``num_workers``.

    Raises:
        ConfigError: an option is invalid or would change the subgraphs, or the data have types.
        MissingPackageError: torch_geometric is not installed.
    """

    pyg_name = "ShaDowKHopSampler"
    inputs_name = "node_idx"
    subgraph_types = (EGO,)

    def __init__(
        self,
        data: Graph | Data,
        depth: int,
        num_neighbors: int,
        node_idx: Tensor | str | None = None,
        replace: bool = False,
        **options: Unpack[ShadowKeywords],
    ) -> None:
        for name in ("disjoint", "subgraph_type", "directed", "layout", "input_nodes", "gather"):
            if name in options:
                raise ConfigError(
                    f"ShaDowKHopSampler takes no {name}: its batches are ego networks of node_idx with all "
                    "edges between their nodes"
                )
        if is_typed(data):
            raise ConfigError("ShaDowKHopSampler takes graphs of one node type and one relation so far")
        _batch_class()
        depth = as_count(depth, "depth", least=1, most=_MOST_DEPTH)
        fanout = as_count(num_neighbors, "num_neighbors", least=-1, most=(1 << 31) - 1)
        named: dict[str, Any] = {"subgraph_type": EGO, "disjoint": True, "replace": replace, "gather": False}
        try:
            super().__init__(data, [fanout] * depth, node_idx, **{**named, **options})
        except ConfigError as error:
            raise ConfigError(str(error).replace("input_nodes", "node_idx")) from error
        own = {
            "data": data,
            "depth": depth,
            "num_neighbors": fanout,
            "node_idx": node_idx,
            "replace": replace,
        }
        self._arguments = {**own, **options, "seed": self.seed}
        self.depth, self.num_neighbors, self.node_idx = depth, fanout, self.schedule.seeds

    def _to_user_batch(self, batch: MiniBatch) -> Batch:
        given = batch.input_id
        out = _as_batch(batch)
        out["input_id"] = given if self._input_id is None else self._input_id[given]
        if self.pin_memory and torch.accelerator.is_available():
            out = out.pin_memory()
        return out if self._options.transform is None else self._options.transform(out)

    def __str__(self) -> str:
        return "ShaDowKHopSampler()"


def _as_batch(sampled: MiniBatch) -> Batch:
    """Return a mini-batch of ego networks, which are one after another, as PyG's Batch."""
    trees = sampled.batch
    num_roots = sampled.batch_size
    ptr = torch.zeros(num_roots + 1, dtype=torch.int64, device=trees.device)
    torch.cumsum(torch.bincount(trees, minlength=num_roots), 0, out=ptr[1:])
    out = _batch_class()(batch=trees, ptr=ptr)
    roots = out["root_n_id"] = ptr[:-1].clone()
    names = sampled.lazy_keys()
    for name in ("edge_index", "adj_t"):
        if name in names:
            out[name] = sampled.value(name)
    out["n_id"] = sampled.n_id
    if sampled.e_id is not None:
        out["e_id"] = sampled.e_id
    for name in names:
        if name not in _OF_BATCH:
            out[name] = sampled.value(name)
    if "y" in names:
        y = sampled.y
        out["y"] = y if y is None or "y" in sampled.constants else y[roots]
    return out


def _batch_class() -> Any:
    try:
        from torch_geometric.data import Batch
    except ImportError as error:
        raise MissingPackageError(
            "ShaDowKHopSampler's batches are PyG's: pip install 'graphbraid[pyg]'"
        ) from error
    return Batch
