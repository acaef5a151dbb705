"""MiniBatch: what a loader yields, a sample with PyG's batch attributes, each computed at first use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

from torch import Tensor, strided

from graphbraid.errors import ConfigError, MissingPackageError
from graphbraid.graph import SparseFeatures
from graphbraid.graph.csc import Csc
from graphbraid.graph.interop.convert import features_from_torch_sparse
from graphbraid.sampling.minibatch.attribute_reader import AttributeReader, edge_index_of
from graphbraid.sampling.minibatch.tensor_holder import Change, TensorHolder, apply_nested
from graphbraid.sampling.rows.by_id import RowPart
from graphbraid.sampling.rows.transfer_counter import sent
from graphbraid.sampling.sample import PreparedBatch, Sampled
from graphbraid.sampling.source import BatchSource

if TYPE_CHECKING:
    from torch_geometric.data import Data

T = TypeVar("T")
APART = ("blocks", "features", "seed_y")
"""Attributes that have no key in a PyG ``Data``."""


class MiniBatch(TensorHolder):
    """A sampled mini-batch.

    ``n_id``, ``input_id``, ``batch_size``, ``epoch``, ``step``, ``num_sampled_nodes`` and
    ``num_sampled_edges`` are present from the start, and so is ``x`` if features were gathered.
    ``edge_index``, ``blocks``, ``y``, ``e_id``, ``edge_attr`` and every other node or edge attribute of the
    source are computed at first use and kept. ``x``, ``y``, ``edge_index`` and further attributes may be set,
    as on PyG's ``Data``.

    Like a tensor, a batch has :meth:`to`, :meth:`pin_memory` and :meth:`record_stream`, all built on
    :meth:`apply`, which changes each tensor that the batch holds. ``to`` and ``pin_memory`` return a batch
    and leave this one unchanged; an attribute not computed before is computed later on the batch's new
    device.

    Attributes:
        n_id: ``(num_nodes,)`` int64 global ids: the seeds, then the other nodes in order of first appearance.
        input_id: ``(batch_size,)`` int64 positions of the seeds in the loader's ``input_nodes``.
        batch_size: number of seeds; their rows are ``[:batch_size]`` of every node tensor.
        num_sampled_nodes: number of new nodes per hop, the seeds first; there, as are the edges, unless
            ``subgraph_type`` has others than those drawn.
        num_sampled_edges: number of edges per hop.
    """

    def __init__(
        self,
        source: BatchSource,
        prepared: PreparedBatch,
        *,
        layout: str,
        epoch: int,
    ) -> None:
        step, input_id, sampled, x = prepared
        self._source: BatchSource | None = source
        self._sampled, self._layout = sampled, layout  # remain where the source is read
        self._edges, self._device = sampled.edges, sampled.n_id.device  # move with the batch
        self._cache: dict[str, Any] = {} if x is None else {"x": x}
        self._kept: tuple[str, ...] = ()  # what was computed before pickling dropped the source
        self._row_part: RowPart | None = None
        self.n_id, self.input_id = sampled.n_id, input_id
        self.batch_size, self.epoch, self.step = input_id.numel(), epoch, step
        if sampled.by_hop:
            self.num_sampled_nodes, self.num_sampled_edges = sampled.nodes_per_hop, sampled.edges_per_hop

    @property
    def num_nodes(self) -> int:
        """Number of nodes in the batch."""
        return self._sampled.n_id.numel()

    @property
    def num_edges(self) -> int:
        """Number of sampled edges over all hops."""
        return sum(self._sampled.edges_per_hop)

    @property
    def num_features(self) -> int:
        """Number of columns of ``x``: 1 if it has one dimension, 0 without features."""
        x = self.x
        return 0 if x is None else x.shape[-1] if x.ndim > 1 else 1

    @property
    def layout(self) -> str:
        """``subgraph`` or ``blocks``."""
        return self._layout

    @property
    def sampled(self) -> Sampled:
        """The sampler's result, on the device it was sampled on; it does not move with the batch."""
        return self._sampled

    @property
    def x(self) -> Tensor | None:
        """Dense feature rows, ``(num_nodes, F)``; sparse features are made dense (see :attr:`features`)."""
        return self._once("x", lambda reader: reader.x())

    @x.setter
    def x(self, x: Tensor | None) -> None:
        self._cache |= {"x": x, "features": x}
        self._row_part = None

    @property
    def row_part(self) -> RowPart | None:
        """Rows to copy to the device in place of ``x`` if the device holds the others; None to copy ``x``."""
        return self._row_part

    def send_part(self, part: RowPart) -> None:
        """Copy ``part`` instead of ``x`` when moving to the device, which holds the batch's other rows."""
        self._row_part = part

    def send_whole(self) -> None:
        """Copy the whole of ``x`` when moving to the device; it is gathered when it is next read."""
        self._row_part = None

    @property
    def features(self) -> Tensor | SparseFeatures | None:
        """Feature rows in the graph's own format, dense or CSR, ``(num_nodes, F)``."""
        if "features" not in self._cache:
            stored = None if self._source is None else self._source.graph.x
            if not isinstance(stored, SparseFeatures):
                x = self.x
                return x if x is None or x.layout == strided else features_from_torch_sparse(x)
        return self._once("features", lambda reader: reader.sparse_features(), move=False)

    @property
    def y(self) -> Tensor | None:
        """Labels, one row per node; training uses the first ``batch_size`` rows."""
        return self._once("y", lambda reader: reader.y())

    @y.setter
    def y(self, y: Tensor | None) -> None:
        self._cache |= {"y": y, "seed_y": None if y is None else y[: self._sampled.nodes_per_hop[0]]}

    @property
    def seed_y(self) -> Tensor | None:
        """Labels of the seeds, the first nodes of ``y``, without gathering the rest."""
        return self._once("seed_y", lambda reader: reader.y(self._sampled.nodes_per_hop[0]))

    @property
    def edge_index(self) -> Tensor:
        """Edges as ``(2, num_edges)`` int64 local ids, sources in row 0, hop by hop (layout ``subgraph``).

        Raises:
            ConfigError: the layout is ``blocks``, in which each layer has its own edges.
        """
        if self._layout != "subgraph" and "edge_index" not in self._cache:
            raise ConfigError(
                "a batch in layout 'blocks' has one edge list per layer, in `blocks`; for one edge_index "
                "over all layers, as PyG's models take it, make the loader with layout='subgraph'"
            )
        return self._once("edge_index", lambda _: edge_index_of(self._edges[0]))

    @edge_index.setter
    def edge_index(self, edge_index: Tensor) -> None:
        self._cache["edge_index"] = edge_index

    @property
    def e_id(self) -> Tensor | None:
        """Index of each sampled edge in the graph's original edge list: ``(num_edges,)`` int64, hop by hop.

        None unless the loader keeps edge ids (``return_edge_id``).
        """
        if not self._sampled.positions_are_kept:
            return None
        if self._source is not None and self._source.has("e_id"):
            return cast("Tensor", self.value("e_id"))
        return self._once("e_id", lambda reader: reader.e_id())

    @property
    def blocks(self) -> list[Csc]:
        """One bipartite :class:`Csc` per layer, outermost first; the destinations of the last are the seeds.

        In layout ``subgraph`` they are prefixes of one CSC, so each layer computes just the rows that the
        next one needs.

        Raises:
            ConfigError: edges are not only those drawn (``subgraph_type``), so no layer has edges of its own.
        """
        if not self._sampled.by_hop:
            raise ConfigError(
                "a batch has blocks only with subgraph_type='directional': other edges join any of its "
                "nodes, and every layer has all of them, in edge_index"
            )
        return self._once("blocks", lambda reader: reader.blocks(self._edges, self._device), move=False)

    def apply(self, change: Change) -> MiniBatch:
        """Return a batch in which ``change`` has replaced each tensor that this one holds.

        A batch holds its ids and edges, the attributes computed or set so far, and ``row_part``; attributes
        that are computed later follow the device of the new batch. Sparse ``features`` stay on the CPU.

        Args:
            change: function that is called with each tensor and returns its replacement.
        """
        out = self.__copy__()
        out._cache = {name: apply_nested(v, change) for name, v in self._cache.items() if self._moves(name)}
        out._edges = [edges.apply(change) for edges in self._edges]
        out._row_part = None if self._row_part is None else self._row_part.apply(change)
        own = {name: v for name, v in vars(self).items() if not name.startswith("_")}
        out.__dict__.update({name: apply_nested(v, change) for name, v in own.items()})
        out._device = out._edges[0].indptr.device
        return out

    def to_data(self) -> Data:
        """Return the batch as a PyG ``Data`` with all its attributes.

        Raises:
            MissingPackageError: torch_geometric is not installed.
        """
        try:
            from torch_geometric.data import Data
        except ImportError as error:
            raise MissingPackageError("MiniBatch.to_data needs PyG: pip install torch_geometric") from error
        return Data(**{name: self[name] for name in self.keys() if name not in APART})

    def keys(self) -> list[str]:
        """Return the names of all attributes, including those not computed yet."""
        given = (name for name in ("x", "y", "edge_index") if self._cache.get(name) is not None)
        own = (name for name in vars(self) if not name.startswith("_"))
        return list(dict.fromkeys((*self.lazy_keys(), *given, *own)))

    def lazy_keys(self) -> list[str]:
        """Return the names of the attributes that are computed at first use."""
        if self._source is None:
            return list(self._kept)
        return self._reader().keys()

    @property
    def template(self) -> Any:
        """PyG ``Data`` that the loader was given; None for a graph, and once pickling dropped the source."""
        return None if self._source is None else self._source.template

    @property
    def constants(self) -> Mapping[str, Any]:
        """Attributes of the whole graph, which every batch carries unchanged."""
        return {} if self._source is None else self._source.constants

    def value(self, name: str) -> Any:
        """Return an attribute by name, computing it if needed.

        An attribute of the source comes first, since its name may be that of a method or property of this
        class; any other is looked up as ``batch.name``.
        """
        source = self._source
        if source is None and name in self._kept:
            return self._cache[name]
        if source is None or not source.has(name) or name in ("x", "y"):
            return getattr(self, name)
        if name in source.node_attrs or name in source.edge_attrs:
            key = f"{name} of the data" if name in APART else name
            return self._once(key, lambda reader: reader.attribute(name))
        constant = source.constants[name]
        if isinstance(constant, Tensor) or self._device.type != "cpu":
            return apply_nested(constant, lambda t: t.to(self._device))
        return constant

    def holds(self, name: str, value: Tensor) -> bool:
        """Return whether ``value`` is the same object as the tensor held under ``name``."""
        return value is self._cache.get(name) or value is vars(self).get(name)

    def held(self, name: str) -> Any:
        """Return an attribute that was computed or set before, as it is kept; None if it was not."""
        return self._cache.get(name)

    def __contains__(self, name: str) -> bool:
        return name in self.keys()

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    def __getattr__(self, name: str) -> Any:
        known = self.__dict__
        if "_cache" not in known or name.startswith("_"):  # while the batch is being constructed
            raise AttributeError(name)
        if name in known["_cache"]:
            return known["_cache"][name]
        if self._source is not None and self._source.has(name):
            return self.value(name)
        if self._source is not None:
            graph = self._source.graph
            if name == graph.weight_name and name in self.lazy_keys():
                return self._once(name, lambda reader: reader.edge_weight())
            if name == "edge_attr" and graph.edge_attr is not None:
                return self._once(name, lambda reader: reader.edge_attr())
        if name == "adj_t" and name in self.lazy_keys():
            return self._once(name, lambda reader: reader.adj_t(self.edge_index, self._device))
        raise AttributeError(f"this mini-batch has no attribute {name!r}; it has {', '.join(self.keys())}")

    def __copy__(self) -> MiniBatch:
        out = object.__new__(type(self))
        out.__dict__.update(vars(self), _cache=dict(self._cache))
        return out

    def __getstate__(self) -> dict[str, Any]:
        """Return the state with every attribute computed and without the graph it was sampled from."""
        names = self.lazy_keys()
        apart = APART if self._sampled.by_hop else [name for name in APART if name != "blocks"]
        made = {name: getattr(self, name) for name in apart} | {name: self.value(name) for name in names}
        return vars(self) | {"_cache": made, "_source": None, "_kept": tuple(names), "_row_part": None}

    def __repr__(self) -> str:
        return (
            f"MiniBatch(epoch={self.epoch}, step={self.step}, batch_size={self.batch_size}, "
            f"num_nodes={self.num_nodes}, num_edges={self.num_edges}, layout={self._layout!r})"
        )

    def _reader(self) -> AttributeReader:
        assert self._source is not None, "an unpickled batch holds all it can give"
        return AttributeReader(source=self._source, sampled=self._sampled, layout=self._layout)

    def _once(self, name: str, make: Callable[[AttributeReader], T], *, move: bool = True) -> T:
        if name not in self._cache:
            made = make(self._reader())
            self._cache[name] = self._sent(name, made) if move and isinstance(made, Tensor) else made
        return cast("T", self._cache[name])

    def _sent(self, name: str, made: Tensor) -> Tensor:
        return sent(made, self._device, name, None if self._source is None else self._source.link)

    def _moves(self, name: str) -> bool:
        """Return whether a cached value moves along; an ``adj_t`` that is no tensor is rebuilt if it can."""
        return name != "adj_t" or self._source is None or isinstance(self._cache[name], Tensor)
