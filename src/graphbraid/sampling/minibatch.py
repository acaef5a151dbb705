"""MiniBatch: what a loader yields; PyG's batch attributes over a sample, made when asked for."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch import Tensor

from graphbraid.arguments import as_device
from graphbraid.errors import ConfigError, MissingPackageError
from graphbraid.graph import Graph, SparseFeatures
from graphbraid.ops.gather import gather_rows
from graphbraid.sampling.reference import Adjacency, Prepared
from graphbraid.sampling.rows import RowPart, take_rows
from graphbraid.topology import Csc

if TYPE_CHECKING:
    from torch_geometric.data import Data

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, eq=False, slots=True, weakref_slot=True)
class BatchSource:
    """What every batch of a loader is cut from.

    Its arrays lie where a batch's ids do, or in page-locked memory that the ids' device reads.
    """

    graph: Graph
    node_attrs: Mapping[str, Tensor] = field(default_factory=dict)
    """Further tensors with a row per node, such as ``train_mask``."""
    edge_attrs: Mapping[str, Tensor] = field(default_factory=dict)
    """Further tensors with a row per edge, in the order the graph was made from, such as ``edge_attr``."""
    src_degree: Tensor | None = None
    """``(num_nodes,)`` float32 degrees that blocks carry for layers that normalise by them."""
    src_loop: Tensor | None = None
    """``(num_nodes,)`` float32 weights of self-loops, for the same layers; see :class:`graphbraid.Csc`."""


class MiniBatch:
    """A sampled mini-batch.

    ``n_id``, ``input_id``, ``batch_size``, ``epoch``, ``step``, ``num_sampled_nodes`` and
    ``num_sampled_edges`` are there at once, with ``x`` where features were gathered; ``edge_index``,
    ``blocks``, ``y``, ``e_id`` and every other node or edge attribute of the source are made at first use and
    kept. Attributes may be set, as on PyG's ``Data``.

    Attributes:
        n_id: ``(num_nodes,)`` int64 global ids: the seeds, then by first appearance.
        input_id: ``(batch_size,)`` int64 positions of the seeds in the loader's ``input_nodes``.
        batch_size: number of seeds; rows ``[:batch_size]`` of every node tensor are theirs.
        num_sampled_nodes: new nodes per hop, the seeds first.
        num_sampled_edges: edges per hop.
    """

    def __init__(
        self,
        source: BatchSource,
        prepared: Prepared,
        *,
        layout: str,
        epoch: int,
    ) -> None:
        step, input_id, sampled, x = prepared
        self._source, self._sampled, self._layout = source, sampled, layout
        self._adjacencies = sampled.adjacencies
        self._device = sampled.n_id.device
        self._cache: dict[str, Any] = {} if x is None else {"x": x}
        self._row_part: RowPart | None = None  # behind a property: public attributes are the batch's keys
        self.n_id, self.input_id = sampled.n_id, input_id
        self.batch_size, self.epoch, self.step = input_id.numel(), epoch, step
        self.num_sampled_nodes, self.num_sampled_edges = sampled.nodes_per_hop, sampled.edges_per_hop

    @property
    def num_nodes(self) -> int:
        """Nodes of the batch."""
        return self._sampled.n_id.numel()

    @property
    def num_edges(self) -> int:
        """Sampled edges of all hops."""
        return sum(self._sampled.edges_per_hop)

    @property
    def num_features(self) -> int:
        """Columns of ``x``; 0 without features."""
        features = self._source.graph.x
        return 0 if features is None else features.shape[1]

    @property
    def x(self) -> Tensor | None:
        """``(num_nodes, F)`` feature rows, dense (sparse features are densified; see :attr:`features`)."""
        return self._once("x", self._gather_dense)

    def set_x(self, x: Tensor) -> None:
        """Give the feature rows, made elsewhere; nothing is left to travel."""
        self._cache["x"] = x
        self._row_part = None

    @property
    def row_part(self) -> RowPart | None:
        """What travels to the device in place of ``x``, where it has the other rows."""
        return self._row_part

    @row_part.setter
    def row_part(self, part: RowPart | None) -> None:
        self._row_part = part

    @property
    def travelling_bytes(self) -> int:
        """Bytes that a copy to another device takes now: ids, edges, features and labels made so far."""
        part = self._row_part
        held = [t for t in (*vars(self).values(), *self._cache.values()) if isinstance(t, Tensor)]
        held += [t for a in self._adjacencies for t in (a.indptr, a.indices)]
        return sum(t.nbytes for t in held) + (0 if part is None else part.nbytes)

    @property
    def features(self) -> Tensor | SparseFeatures | None:
        """``(num_nodes, F)`` feature rows in the graph's own form, dense or CSR."""
        stored = self._source.graph.x
        if not isinstance(stored, SparseFeatures):
            return self.x
        return self._once("features", lambda: stored.rows(self._sampled.n_id.cpu()), move=False)

    @property
    def y(self) -> Tensor | None:
        """The nodes' labels, a row per node; a batch is trained on its first ``batch_size`` rows."""
        y = self._source.graph.y
        return None if y is None else self._once("y", lambda: take_rows(y, self._sampled.n_id))

    @property
    def seed_y(self) -> Tensor | None:
        """The seeds' labels: ``y[:batch_size]`` without gathering the rest."""
        y = self._source.graph.y
        seeds = self._sampled.n_id[: self.batch_size]
        return None if y is None else self._once("seed_y", lambda: take_rows(y, seeds))

    @property
    def edge_index(self) -> Tensor:
        """``(2, num_edges)`` int64 local ids, sources above destinations, hop by hop (layout ``subgraph``).

        Raises:
            ConfigError: in layout ``blocks``, whose layers have edges of their own.
        """
        if self._layout != "subgraph":
            raise ConfigError(
                "a batch in layout 'blocks' has one edge list per layer, in `blocks`; for one edge_index "
                "over all layers, as PyG's models take it, make the loader with layout='subgraph'"
            )
        return self._once("edge_index", self._edge_index)

    @property
    def e_id(self) -> Tensor | None:
        """``(num_edges,)`` int64: each sampled edge's place in the list the graph was made from, hop by hop.

        None unless the loader keeps edge ids (``return_edge_id``).
        """
        if self._sampled.adjacencies[0].edges is None:
            return None
        return self._once("e_id", self._edge_ids)

    @property
    def blocks(self) -> list[Csc]:
        """One bipartite :class:`Csc` per layer, outermost first; the last one's destinations are the seeds.

        Layout ``subgraph``: prefixes of one CSC, so each layer computes just the rows the next one needs.
        """
        return self._once("blocks", self._make_blocks, move=False)

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> MiniBatch:
        """This batch with its tensors on ``device``; itself where they already are.

        Raises:
            ConfigError: ``device`` names none.
        """
        target = as_device(device)
        if target == self._device:
            return self
        moved = copy.copy(self)
        moved._device = target
        kept = {k: v for k, v in self._cache.items() if isinstance(v, Tensor)}
        moved._cache = {k: v.to(target, non_blocking=non_blocking) for k, v in kept.items()}
        moved._adjacencies = [_moved(a, target, non_blocking=non_blocking) for a in self._adjacencies]
        if self._row_part is not None:
            moved._row_part = self._row_part.to(target, non_blocking=non_blocking)
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(moved, name, value.to(target, non_blocking=non_blocking))
        return moved

    def to_data(self) -> Data:
        """The batch as PyG's ``Data``, with all its attributes.

        Raises:
            MissingPackageError: torch_geometric is not installed.
        """
        try:
            from torch_geometric.data import Data
        except ImportError as error:
            raise MissingPackageError("MiniBatch.to_data needs PyG: pip install torch_geometric") from error
        return Data(
            **{name: self[name] for name in self.keys() if name not in ("blocks", "features", "seed_y")}
        )

    def keys(self) -> list[str]:
        """Names of all attributes, those not made yet included."""
        graph, names = self._source.graph, ["edge_index"] if self._layout == "subgraph" else ["blocks"]
        names += [name for name, value in (("x", graph.x), ("y", graph.y)) if value is not None]
        names += ["e_id"] if self._sampled.adjacencies[0].edges is not None else []
        names += [*self._source.node_attrs, *(self._source.edge_attrs if "e_id" in names else ())]
        return names + [name for name in vars(self) if not name.startswith("_")]

    def __contains__(self, name: str) -> bool:
        return name in self.keys()

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    def __getattr__(self, name: str) -> Any:
        source = self.__dict__.get("_source")
        if source is not None and name in source.node_attrs:
            return self._once(name, lambda: take_rows(source.node_attrs[name], self._sampled.n_id))
        if source is not None and name in source.edge_attrs:
            return self._once(name, lambda: take_rows(source.edge_attrs[name], self._need_edge_ids(name)))
        raise AttributeError(
            f"this mini-batch has no attribute {name!r}; it has {', '.join(self.keys()) if source else ''}"
        )

    def __repr__(self) -> str:
        return (
            f"MiniBatch(epoch={self.epoch}, step={self.step}, batch_size={self.batch_size}, "
            f"num_nodes={self.num_nodes}, num_edges={self.num_edges}, layout={self._layout!r})"
        )

    def _once(self, name: str, make: Callable[[], T], *, move: bool = True) -> T:
        if name not in self._cache:
            made = make()
            self._cache[name] = made.to(self._device) if move and isinstance(made, Tensor) else made
        return cast("T", self._cache[name])

    def _gather_dense(self) -> Tensor | None:
        features = self._source.graph.x
        if isinstance(features, SparseFeatures):
            return features.rows(self._sampled.n_id.cpu()).to_dense()
        if features is None or self._sampled.n_id.device.type == "cpu":
            return None if features is None else gather_rows(features, self._sampled.n_id, trusted=True)
        return take_rows(features, self._sampled.n_id)

    def _edge_index(self) -> Tensor:
        adjacency = self._adjacencies[0]
        rows = torch.arange(adjacency.indptr.numel() - 1, device=adjacency.indptr.device)
        out = torch.empty((2, adjacency.indices.numel()), dtype=torch.int64, device=rows.device)
        out[0] = adjacency.indices
        out[1] = torch.repeat_interleave(rows, adjacency.indptr.diff(), output_size=out.shape[1])
        return out

    def _edge_ids(self) -> Tensor:
        positions = torch.cat([a.edges for a in self._sampled.adjacencies if a.edges is not None])
        original = self._source.graph.edge_id
        return positions if original is None else take_rows(original, positions)

    def _need_edge_ids(self, name: str) -> Tensor:
        if self._sampled.adjacencies[0].edges is None:
            raise ConfigError(f"batch.{name} needs edge ids; make the loader with return_edge_id=True")
        return self._edge_ids()

    def _make_blocks(self) -> list[Csc]:
        num_hops = len(self._sampled.edges_per_hop)
        return [self._block(hop) for hop in reversed(range(num_hops))]

    def _block(self, hop: int) -> Csc:
        """The block whose destinations are the nodes known before ``hop``."""
        num_dst = sum(self._sampled.nodes_per_hop[: hop + 1])
        num_src = num_dst + self._sampled.nodes_per_hop[hop + 1]
        adjacency = self._adjacencies[hop if self._layout == "blocks" else 0]
        num_edges = sum(self._sampled.edges_per_hop[: hop + 1]) if self._layout == "subgraph" else None
        weight = self._source.graph.csc.weight
        if weight is not None:
            edges = self._sampled.adjacencies[hop if self._layout == "blocks" else 0].edges
            assert edges is not None
            weight = take_rows(weight, edges[:num_edges]).to(self._device)
        sources = self._sampled.n_id[:num_src]
        degree, loop = (
            None if values is None else take_rows(values, sources).to(self._device)
            for values in (self._source.src_degree, self._source.src_loop)
        )
        return Csc(
            adjacency.indptr[: num_dst + 1],
            adjacency.indices[:num_edges],
            num_src,
            weight,
            src_degree=degree,
            src_loop=loop,
            trusted=True,
        )


def _moved(adjacency: Adjacency, device: torch.device, *, non_blocking: bool) -> Adjacency:
    """With its edges' local ids on a device; positions in the graph stay with what they are looked up in."""
    return Adjacency(
        indptr=adjacency.indptr.to(device, non_blocking=non_blocking),
        indices=adjacency.indices.to(device, non_blocking=non_blocking),
        edges=adjacency.edges,
    )
