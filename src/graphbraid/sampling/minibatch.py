"""MiniBatch: what a loader yields; PyG's batch attributes over a sample, made when asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch import Tensor

from graphbraid.arguments import as_device, as_flag, as_present_device
from graphbraid.errors import ConfigError, MissingPackageError
from graphbraid.graph import SparseFeatures
from graphbraid.graph.csc import Csc
from graphbraid.sampling.adjacency import adj_t_of, changed, changed_block, edge_index_of
from graphbraid.sampling.rows import RowPart, take_rows
from graphbraid.sampling.sample import Prepared
from graphbraid.sampling.source import ADJ_VALUES, BatchSource

if TYPE_CHECKING:
    from torch_geometric.data import Data

T = TypeVar("T")
Change = Callable[[Tensor], Tensor]
"""What :meth:`MiniBatch.apply` does with each tensor."""
APART = ("blocks", "features", "seed_y")
"""Attributes that a PyG ``Data`` has no keys for."""


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
        self._source: BatchSource | None = source
        self._sampled, self._layout = sampled, layout
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
        """Columns of ``x``, 1 where it has one dimension; 0 without features."""
        x = self.x
        return 0 if x is None else x.shape[-1] if x.ndim > 1 else 1

    @property
    def layout(self) -> str:
        """``subgraph`` or ``blocks``."""
        return self._layout

    @property
    def x(self) -> Tensor | None:
        """``(num_nodes, F)`` feature rows, dense (sparse features are densified; see :attr:`features`)."""
        return self._once("x", lambda: self._need_source().x_rows(self._sampled.n_id))

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
        return sum(t.nbytes for t in self.tensors())

    @property
    def features(self) -> Tensor | SparseFeatures | None:
        """``(num_nodes, F)`` feature rows in the graph's own form, dense or CSR."""
        stored = None if self._source is None else self._source.graph.x
        if "features" in self._cache:
            return cast("SparseFeatures", self._cache["features"])
        if not isinstance(stored, SparseFeatures):
            return self.x
        return self._once("features", lambda: stored.rows(self._sampled.n_id.cpu()), move=False)

    @property
    def y(self) -> Tensor | None:
        """The nodes' labels, a row per node; a batch is trained on its first ``batch_size`` rows."""
        return self._once("y", lambda: self._need_source().y_rows(self._sampled.n_id))

    @property
    def seed_y(self) -> Tensor | None:
        """The seeds' labels: ``y[:batch_size]`` without gathering the rest."""
        return self._once("seed_y", lambda: self._need_source().y_rows(self._sampled.n_id[: self.batch_size]))

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
        return self._once("edge_index", lambda: edge_index_of(self._adjacencies[0]))

    @property
    def e_id(self) -> Tensor | None:
        """``(num_edges,)`` int64: each sampled edge's place in the list the graph was made from, hop by hop.

        None unless the loader keeps edge ids (``return_edge_id``).
        """
        if not self._keeps_edges:
            return None
        if self._source is not None and self._source.has("e_id"):
            return cast("Tensor", self.value("e_id"))
        return self._once("e_id", lambda: self._need_source().edge_ids(self._edge_positions()))

    @property
    def blocks(self) -> list[Csc]:
        """One bipartite :class:`Csc` per layer, outermost first; the last one's destinations are the seeds.

        Layout ``subgraph``: prefixes of one CSC, so each layer computes just the rows the next one needs.
        """
        return self._once("blocks", self._make_blocks, move=False)

    def apply(self, change: Change) -> MiniBatch:
        """A batch with ``change`` of each tensor that this one holds; the others are made from it later."""
        out = self.__copy__()
        out._cache = {name: _changed(value, change) for name, value in self._cache.items()}
        out._adjacencies = [changed(adjacency, change) for adjacency in self._adjacencies]
        out._row_part = None if self._row_part is None else self._row_part.apply(change)
        out.__dict__.update({n: change(v) for n, v in vars(self).items() if isinstance(v, Tensor)})
        return out

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> MiniBatch:
        """This batch with its tensors on ``device``; itself where they already are.

        Raises:
            ConfigError: ``device`` names none that is here, or ``non_blocking`` is no flag.
        """
        non_blocking = as_flag(non_blocking, "non_blocking")
        if as_device(device) == self._device:
            return self
        target = as_present_device(device)
        moved = self.apply(lambda t: t.to(target, non_blocking=non_blocking))
        moved._device = target
        return moved

    def pin_memory(self) -> MiniBatch:
        """This batch with the tensors it holds in page-locked memory."""
        return self.apply(lambda t: t.pin_memory())

    def record_stream(self, stream: torch.cuda.Stream) -> None:
        """Keep the memory of the tensors it holds on a CUDA device until ``stream`` has read them."""
        for tensor in self.tensors():
            if tensor.is_cuda:
                tensor.record_stream(stream)

    def tensors(self) -> Iterator[Tensor]:
        """The tensors it holds now, ids and edges included, each once."""
        yield from (value for value in vars(self).values() if isinstance(value, Tensor))
        for value in self._cache.values():
            yield from (value,) if isinstance(value, Tensor) else ()
        for adjacency in self._adjacencies:
            yield from (adjacency.indptr, adjacency.indices)
        if self._row_part is not None:
            yield from (self._row_part.rows, self._row_part.slots)

    def to_data(self) -> Data:
        """The batch as PyG's ``Data``, with all its attributes.

        Raises:
            MissingPackageError: torch_geometric is not installed.
        """
        try:
            from torch_geometric.data import Data
        except ImportError as error:
            raise MissingPackageError("MiniBatch.to_data needs PyG: pip install torch_geometric") from error
        return Data(**{name: self[name] for name in self.keys() if name not in APART})

    def keys(self) -> list[str]:
        """Names of all attributes, those not made yet included."""
        own = (name for name in vars(self) if not name.startswith("_"))
        return list(dict.fromkeys((*self.lazy_keys(), *own)))

    def lazy_keys(self) -> list[str]:
        """Names of the attributes that are made at first use."""
        if self._source is None:
            return list(self._kept)
        return self._source.keys(self._layout, by_edge=self._keeps_edges)

    @property
    def constants(self) -> Mapping[str, Any]:
        """Attributes of the whole graph, which every batch has as they are."""
        return {} if self._source is None else self._source.constants

    def value(self, name: str) -> Any:
        """An attribute of the source's, made now if it was not yet; else what ``batch.name`` gives.

        A user's attribute may have the name of a method or property of this class.
        """
        source, ids = self._source, self._sampled.n_id
        if source is None or not source.has(name) or name in ("x", "y"):
            return self._cache[name] if source is None and name in self._kept else getattr(self, name)
        key = f"{name} of the data" if name in APART else name
        if name in source.node_attrs:
            return self._once(key, lambda: source.node_rows(name, ids))
        if name in source.edge_attrs:
            return self._once(key, lambda: source.edge_rows(name, self._need_edges(name)))
        constant = source.constants[name]
        return constant.to(self._device) if isinstance(constant, Tensor) else constant

    def holds(self, name: str, value: Tensor) -> bool:
        """Whether ``value`` is the very tensor that it holds as ``name``."""
        return value is self._cache.get(name) or value is vars(self).get(name)

    def __contains__(self, name: str) -> bool:
        return name in self.keys()

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    def __getattr__(self, name: str) -> Any:
        known = self.__dict__
        if "_cache" not in known or name.startswith("_"):  # while it is being made
            raise AttributeError(name)
        if name in known["_cache"]:
            return known["_cache"][name]
        if self._source is not None and self._source.has(name):
            return self.value(name)
        if name in ("edge_weight", "adj_t") and name in self.lazy_keys():
            return self._once(name, self._make_adj_t if name == "adj_t" else self._edge_weights)
        raise AttributeError(f"this mini-batch has no attribute {name!r}; it has {', '.join(self.keys())}")

    def __copy__(self) -> MiniBatch:
        out = object.__new__(type(self))
        out.__dict__.update(vars(self), _cache=dict(self._cache))
        return out

    def __getstate__(self) -> dict[str, Any]:
        """Everything it can give, made; the graph it was cut from stays behind."""
        names = self.lazy_keys()
        made = {name: getattr(self, name) for name in APART} | {name: self.value(name) for name in names}
        return vars(self) | {"_cache": made, "_source": None, "_kept": tuple(names), "_row_part": None}

    def __repr__(self) -> str:
        return (
            f"MiniBatch(epoch={self.epoch}, step={self.step}, batch_size={self.batch_size}, "
            f"num_nodes={self.num_nodes}, num_edges={self.num_edges}, layout={self._layout!r})"
        )

    @property
    def _keeps_edges(self) -> bool:
        return self._sampled.adjacencies[0].edges is not None

    def _once(self, name: str, make: Callable[[], T], *, move: bool = True) -> T:
        if name not in self._cache:
            made = make()
            self._cache[name] = made.to(self._device) if move and isinstance(made, Tensor) else made
        return cast("T", self._cache[name])

    def _need_source(self) -> BatchSource:
        assert self._source is not None, "an unpickled batch holds all it can give"
        return self._source

    def _edge_positions(self) -> Tensor:
        return torch.cat([a.edges for a in self._sampled.adjacencies if a.edges is not None])

    def _edge_weights(self) -> Tensor:
        return self._need_source().edge_weights(self._need_edges("edge_weight"))

    def _need_edges(self, name: str) -> Tensor:
        if not self._keeps_edges:
            raise ConfigError(f"batch.{name} needs edge ids; make the loader with return_edge_id=True")
        return self._edge_positions()

    def _make_adj_t(self) -> Any:
        source = self._need_source()
        values = None
        if ADJ_VALUES in source.edge_attrs:
            values = source.edge_rows(ADJ_VALUES, self._need_edges("adj_t")).to(self._device)
        return adj_t_of(source.adj_t, self.edge_index, values, self.num_nodes)

    def _make_blocks(self) -> list[Csc]:
        num_hops = len(self._sampled.edges_per_hop)
        return [self._block(hop) for hop in reversed(range(num_hops))]

    def _block(self, hop: int) -> Csc:
        """The block whose destinations are the nodes known before ``hop``."""
        source = self._need_source()
        num_dst = sum(self._sampled.nodes_per_hop[: hop + 1])
        num_src = num_dst + self._sampled.nodes_per_hop[hop + 1]
        adjacency = self._adjacencies[hop if self._layout == "blocks" else 0]
        num_edges = sum(self._sampled.edges_per_hop[: hop + 1]) if self._layout == "subgraph" else None
        weight = source.graph.csc.weight
        if weight is not None:
            edges = self._sampled.adjacencies[hop if self._layout == "blocks" else 0].edges
            assert edges is not None
            weight = take_rows(weight, edges[:num_edges]).to(self._device)
        sources = self._sampled.n_id[:num_src]
        degree, loop = (
            None if values is None else take_rows(values, sources).to(self._device)
            for values in (source.src_degree, source.src_loop)
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


def _changed(value: Any, change: Change) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    return [changed_block(block, change) for block in value] if isinstance(value, list) else value
