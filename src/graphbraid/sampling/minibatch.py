"""MiniBatch: what a loader yields; PyG's batch attributes over a sample, made when asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

from torch import Tensor

from graphbraid.errors import ConfigError, MissingPackageError
from graphbraid.graph import SparseFeatures
from graphbraid.graph.csc import Csc
from graphbraid.sampling.cut import Cut
from graphbraid.sampling.edge_forms import edge_index_of
from graphbraid.sampling.nested import Change, apply_nested
from graphbraid.sampling.rows import RowPart
from graphbraid.sampling.sample import Prepared, Sampled
from graphbraid.sampling.source import BatchSource
from graphbraid.sampling.tensor_holder import TensorHolder

if TYPE_CHECKING:
    from torch_geometric.data import Data

T = TypeVar("T")
APART = ("blocks", "features", "seed_y")
"""Attributes that a PyG ``Data`` has no keys for."""


class MiniBatch(TensorHolder):
    """A sampled mini-batch.

    ``n_id``, ``input_id``, ``batch_size``, ``epoch``, ``step``, ``num_sampled_nodes`` and
    ``num_sampled_edges`` are there at once, with ``x`` where features were gathered; ``edge_index``,
    ``blocks``, ``y``, ``e_id``, ``edge_attr`` and every other node or edge attribute of the source are made
    at first use and kept. ``x``, ``y``, ``edge_index`` and attributes of one's own may be set, as on PyG's
    ``Data``.

    As a tensor does, it moves by :meth:`to`, :meth:`pin_memory` and :meth:`record_stream`, all of them
    :meth:`apply` of a change to the tensors that it holds. Each gives a batch and leaves this one as it was;
    what was not made before is made later, where the batch then is.

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
        self._sampled, self._layout = sampled, layout  # stay where the source is read
        self._edges, self._device = sampled.edges, sampled.n_id.device  # move with the batch
        self._cache: dict[str, Any] = {} if x is None else {"x": x}
        self._kept: tuple[str, ...] = ()  # names of what was made when the source stayed behind
        self._row_part: RowPart | None = None
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
    def sampled(self) -> Sampled:
        """What the sampler gave, where it gave it: it does not move with the batch."""
        return self._sampled

    @property
    def x(self) -> Tensor | None:
        """``(num_nodes, F)`` feature rows, dense (sparse features are densified; see :attr:`features`)."""
        return self._once("x", lambda cut: cut.x())

    @x.setter
    def x(self, x: Tensor | None) -> None:
        self._cache |= {"x": x, "features": x}
        self._row_part = None

    @property
    def row_part(self) -> RowPart | None:
        """What travels to the device in place of ``x``, where it has the other rows; else None."""
        return self._row_part

    def send_part(self, part: RowPart) -> None:
        """Let ``part`` travel to the device, which has the batch's other rows, in place of ``x``."""
        self._row_part = part

    def send_whole(self) -> None:
        """Let ``x`` travel after all; it is gathered when it is next read."""
        self._row_part = None

    @property
    def features(self) -> Tensor | SparseFeatures | None:
        """``(num_nodes, F)`` feature rows in the graph's own form, dense or CSR."""
        if "features" not in self._cache:
            stored = None if self._source is None else self._source.graph.x
            if not isinstance(stored, SparseFeatures):
                return self.x
        return self._once("features", lambda cut: cut.sparse_features(), move=False)

    @property
    def y(self) -> Tensor | None:
        """The nodes' labels, a row per node; a batch is trained on its first ``batch_size`` rows."""
        return self._once("y", lambda cut: cut.y())

    @y.setter
    def y(self, y: Tensor | None) -> None:
        self._cache |= {"y": y, "seed_y": None if y is None else y[: self.batch_size]}

    @property
    def seed_y(self) -> Tensor | None:
        """The seeds' labels: ``y[:batch_size]`` without gathering the rest."""
        return self._once("seed_y", lambda cut: cut.y(self.batch_size))

    @property
    def edge_index(self) -> Tensor:
        """``(2, num_edges)`` int64 local ids, sources above destinations, hop by hop (layout ``subgraph``).

        Raises:
            ConfigError: in layout ``blocks``, whose layers have edges of their own.
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
        """``(num_edges,)`` int64: each sampled edge's place in the list the graph was made from, hop by hop.

        None unless the loader keeps edge ids (``return_edge_id``).
        """
        if not self._sampled.positions_are_kept:
            return None
        if self._source is not None and self._source.has("e_id"):
            return cast("Tensor", self.value("e_id"))
        return self._once("e_id", lambda cut: cut.e_id())

    @property
    def blocks(self) -> list[Csc]:
        """One bipartite :class:`Csc` per layer, outermost first; the last one's destinations are the seeds.

        Layout ``subgraph``: prefixes of one CSC, so each layer computes just the rows the next one needs.
        """
        return self._once("blocks", lambda cut: cut.blocks(self._edges, self._device), move=False)

    def apply(self, change: Change) -> MiniBatch:
        """A batch with ``change`` of each tensor that this one holds; the others are made from it later.

        It holds its ids and edges, the attributes made or set so far, and ``row_part``. Sparse ``features``
        stay on the CPU.

        Args:
            change: is called with each tensor and gives the one to hold in its place.
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
        given = (name for name in ("x", "y", "edge_index") if self._cache.get(name) is not None)
        own = (name for name in vars(self) if not name.startswith("_"))
        return list(dict.fromkeys((*self.lazy_keys(), *given, *own)))

    def lazy_keys(self) -> list[str]:
        """Names of the attributes that are made at first use."""
        if self._source is None:
            return list(self._kept)
        return self._cut().keys()

    @property
    def constants(self) -> Mapping[str, Any]:
        """Attributes of the whole graph, which every batch has as they are."""
        return {} if self._source is None else self._source.constants

    def value(self, name: str) -> Any:
        """An attribute of the source's, made now if it was not yet; else what ``batch.name`` gives.

        A user's attribute may have the name of a method or property of this class.
        """
        source = self._source
        if source is None and name in self._kept:
            return self._cache[name]
        if source is None or not source.has(name) or name in ("x", "y"):
            return getattr(self, name)
        if name in source.node_attrs or name in source.edge_attrs:
            key = f"{name} of the data" if name in APART else name
            return self._once(key, lambda cut: cut.attribute(name))
        constant = source.constants[name]
        if isinstance(constant, Tensor) or self._device.type != "cpu":
            return apply_nested(constant, lambda t: t.to(self._device))
        return constant

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
        if name == "edge_weight" and name in self.lazy_keys():
            return self._once(name, lambda cut: cut.edge_weight())
        if name == "edge_attr" and self._source is not None and self._source.graph.edge_attr is not None:
            return self._once(name, lambda cut: cut.edge_attr())
        if name == "adj_t" and name in self.lazy_keys():
            return self._once(name, lambda cut: cut.adj_t(self.edge_index, self._device))
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

    def _cut(self) -> Cut:
        assert self._source is not None, "an unpickled batch holds all it can give"
        return Cut(source=self._source, sampled=self._sampled, layout=self._layout)

    def _once(self, name: str, make: Callable[[Cut], T], *, move: bool = True) -> T:
        if name not in self._cache:
            made = make(self._cut())
            self._cache[name] = made.to(self._device) if move and isinstance(made, Tensor) else made
        return cast("T", self._cache[name])

    def _moves(self, name: str) -> bool:
        """Whether what was made is taken along: an ``adj_t`` that is no tensor is made anew if it can be."""
        return name != "adj_t" or self._source is None or isinstance(self._cache[name], Tensor)
