"""MiniBatch: a sample with PyG's batch attributes, each computed at first use. Loaders yield it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

from torch import Tensor, strided

from graphbraid.errors import ConfigError, needing
from graphbraid.graph import EdgeType, SparseFeatures
from graphbraid.graph.csc import Csc
from graphbraid.graph.interop.convert import features_from_torch_sparse
from graphbraid.graph.scans import outside_of_transforms
from graphbraid.graph.types import ONLY_EDGE_TYPE, ONLY_NODE_TYPE
from graphbraid.sampling.minibatch.pyg_forms import BY_TYPE, adj_t_of, edge_index_of, hetero_data
from graphbraid.sampling.minibatch.tensor_holder import Change, TensorHolder, apply_nested
from graphbraid.sampling.rows.by_id import RowPart, sent
from graphbraid.sampling.sample import PreparedBatch, Sampled, SampledEdges
from graphbraid.sampling.source import ADJ_VALUES, BatchSource, take_rows

if TYPE_CHECKING:
    from torch_geometric.data import Data, HeteroData

T = TypeVar("T")
APART = ("blocks", "features", "seed_y")
"""Attributes that have no key in a PyG ``Data``."""

_NO_LIST = (
    "a batch in layout 'blocks' has one edge list per layer, in `blocks`; for one edge_index over all "
    "layers, as PyG's models take it, make the loader with layout='subgraph'"
)


class MiniBatch(TensorHolder):
    """A sampled mini-batch of a graph of one type or of several.

    ``n_id``, ``input_id``, ``batch_size``, ``epoch``, ``step``, ``num_sampled_nodes`` and
    ``num_sampled_edges`` are present from the start, and so is ``x`` if features were gathered.
    ``edge_index``, ``blocks``, ``y``, ``e_id``, ``edge_attr`` and every other node or edge attribute of the
    source are computed at first use and kept. ``x``, ``y``, ``edge_index`` and further attributes may be set,
    as on PyG's ``Data``.

    In a graph with types, attributes are dicts by node type or relation, as in PyG's ``HeteroData``:
    ``n_id_dict``, ``num_sampled_nodes_dict``, ``num_sampled_edges_dict``, ``x_dict``, ``edge_index_dict`` and
    so on replace ``n_id`` and the others. ``blocks`` are by relation.

    Like a tensor, a batch has :meth:`to`, :meth:`pin_memory` and :meth:`record_stream`, all built on
    :meth:`apply`, which changes each tensor that the batch holds. ``to`` and ``pin_memory`` return a batch
    and leave this one unchanged; an attribute not computed before is computed later on the batch's new
    device.

    Attributes:
        n_id: ``(num_nodes,)`` int64 global ids: the seeds, then the other nodes in order of first appearance.
        input_id: ``(batch_size,)`` int64 positions of the seeds in the loader's ``input_nodes``.
        batch_size: number of links, or of seeds. Every tensor of the seeds' node type has the seeds' rows at
            ``[:batch_size]``.
        num_sampled_nodes: number of new nodes per hop, the seeds first. Missing, as is the next, if
            ``subgraph_type`` takes edges other than the drawn ones.
        num_sampled_edges: number of edges per hop.
        batch: the position in ``input_id`` that each node's tree belongs to; only if trees are disjoint.
    """

    n_id: Tensor
    n_id_dict: dict[str, Tensor]
    batch: Tensor
    batch_dict: dict[str, Tensor]
    num_sampled_nodes: list[int]
    num_sampled_nodes_dict: dict[str, list[int]]
    num_sampled_edges: list[int]
    num_sampled_edges_dict: dict[EdgeType, list[int]]

    def __init__(
        self,
        source: BatchSource,
        prepared: PreparedBatch,
        *,
        layout: str,
        epoch: int,
        input_type: str | EdgeType = ONLY_NODE_TYPE,
    ) -> None:
        step, input_id, sampled, x, self._given_edge_rows, seeds = prepared
        self._source: BatchSource | None = source
        self._sampled, self._layout = sampled, layout  # remain where the source is read
        self._input_type, self._is_typed = input_type, source.graph.is_typed
        self._edge_types = tuple(source.graph.edge_types)
        self._edges, self._device = sampled.edges_by_relation, sampled.n_id_by_type[0].device
        self._kept: tuple[str, ...] = ()  # what was computed before pickling dropped the source
        self._row_part: RowPart | None = None
        self._cache: dict[Any, Any]
        if self._is_typed:
            types = source.graph.node_types
            gathered = zip(types, x, strict=True)
            self._cache = {(one, "x"): rows for one, rows in gathered if rows is not None}
            self.n_id_dict = dict(zip(types, sampled.n_id_by_type, strict=True))
        else:
            [rows] = x
            self._cache = {} if rows is None else {"x": rows}
            [self.n_id] = sampled.n_id_by_type
        self.input_id, self.batch_size, self.epoch, self.step = input_id, input_id.numel(), epoch, step
        if sampled.by_hop and self._is_typed:
            self.num_sampled_nodes_dict = dict(zip(types, sampled.nodes_by_type, strict=True))
            self.num_sampled_edges_dict = dict(zip(self._edge_types, sampled.counts_by_relation, strict=True))
        elif sampled.by_hop:
            [self.num_sampled_nodes] = sampled.nodes_by_type
            [self.num_sampled_edges] = sampled.counts_by_relation
        if seeds is not None:
            owners = seeds.owners_of(sampled)
            if owners is not None and self._is_typed:
                self.batch_dict = dict(zip(types, owners, strict=True))
            elif owners is not None:
                [self.batch] = owners
            vars(self).update(seeds.attributes)

    @property
    def is_typed(self) -> bool:
        """Whether the graph has types, and the batch therefore attributes by type."""
        return self._is_typed

    @property
    def edge_types(self) -> tuple[EdgeType, ...]:
        """The relations of the graph, in its order."""
        return self._edge_types

    @property
    def input_type(self) -> str | EdgeType:
        """Node type of the seeds, or the relation of links."""
        return self._input_type

    @property
    def num_nodes(self) -> int:
        """Number of nodes in the batch, of all types."""
        return sum(ids.numel() for ids in self._sampled.n_id_by_type)

    @property
    def num_edges(self) -> int:
        """Number of sampled edges of all relations over all hops."""
        return sum(map(sum, self._sampled.counts_by_relation))

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
    def sampled_edges(self) -> list[list[SampledEdges]] | None:
        """Edges of each relation as they were sampled, on the batch's device, as in :class:`.Sampled`.

        None once ``edge_index`` or ``edge_index_dict`` was read or set, since edges may have been changed.
        """
        name = "edge_index" + BY_TYPE if self._is_typed else "edge_index"
        is_made = self._cache.get(name) is not None or name in vars(self)
        return None if is_made else self._edges

    @property
    def x(self) -> Tensor | None:
        """Dense feature rows, ``(num_nodes, F)``; sparse features are made dense (see :attr:`features`)."""
        return self._once("x", lambda: self._rows("x"))

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
            self._cache["features"] = stored.rows(self._sampled.n_id.cpu())
        return cast("Tensor | SparseFeatures | None", self._cache["features"])

    @property
    def y(self) -> Tensor | None:
        """Labels, one row per node; training uses the first ``batch_size`` rows."""
        return self._once("y", lambda: self._rows("y"))

    @y.setter
    def y(self, y: Tensor | None) -> None:
        self._cache |= {"y": y, "seed_y": None if y is None else y[: self._sampled.nodes_per_hop[0]]}

    @property
    def seed_y(self) -> Tensor | None:
        """Labels of the seeds, the first nodes of their type, without gathering the rest.

        None without labels, and for links of a graph with types.
        """
        if isinstance(self._input_type, str):
            of = self._input_type
        elif not self._is_typed:
            of = ONLY_NODE_TYPE
        else:
            return None
        return self._once("seed_y", lambda: self._rows("y", of, seeds=True))

    @property
    def edge_index(self) -> Tensor:
        """Edges as ``(2, num_edges)`` int64 local ids, sources in row 0, hop by hop (layout ``subgraph``).

        Raises:
            ConfigError: the layout is ``blocks``, in which each layer has its own edges.
        """
        if self._layout != "subgraph" and "edge_index" not in self._cache:
            raise ConfigError(_NO_LIST)
        return self._once("edge_index", lambda: edge_index_of(self._edges[0][0]))

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
        return self._once("e_id", lambda: self._edge_rows("e_id"))

    @property
    def blocks(self) -> list[Any]:
        """One bipartite :class:`Csc` per layer, outermost first; the destinations of the last are the seeds.

        In layout ``subgraph`` they are prefixes of one CSC, so each layer computes just the rows that the
        next one needs. In a graph with types, each layer has a dict of blocks by relation. A layer's
        destinations of a type are the first of its sources of that type.

        Raises:
            ConfigError: ``subgraph_type`` takes edges other than the drawn ones, so layers have no own edges;
                or the graph has weights, and the loader keeps no edge ids.
        """
        if not self._sampled.by_hop:
            raise ConfigError(
                "a batch has blocks only with subgraph_type='directional': other edges join any of its "
                "nodes, and every layer has all of them, in edge_index"
            )
        if "blocks" not in self._cache:
            hops = reversed(range(len(self._sampled.counts_by_relation[0])))
            self._cache["blocks"] = [self._blocks_of(hop) for hop in hops]
        return cast("list[Any]", self._cache["blocks"])

    def apply(self, change: Change) -> MiniBatch:
        """Return a batch in which ``change`` has replaced each tensor that this one holds.

        A batch holds its ids and edges, the attributes computed or set so far, and ``row_part``; attributes
        that are computed later follow the device of the new batch. Sparse ``features`` stay on the CPU.

        Args:
            change: function that is called with each tensor and returns its replacement.
        """
        out = self.__copy__()
        out._cache = {name: apply_nested(v, change) for name, v in self._cache.items() if self._moves(name)}
        out._edges = [[edges.apply(change) for edges in records] for records in self._edges]
        out._row_part = None if self._row_part is None else self._row_part.apply(change)
        own = {name: v for name, v in vars(self).items() if not name.startswith("_")}
        out.__dict__.update({name: apply_nested(v, change) for name, v in own.items()})
        out._device = out._edges[0][0].indptr.device
        return out

    def to_data(self) -> Data | HeteroData:
        """Return the batch as a PyG ``Data``, or ``HeteroData`` where there are types, with all attributes.

        Raises:
            ConfigError: the graph has types, and the layout is ``blocks``.
            MissingPackageError: torch_geometric is not installed.
        """
        with needing("to_data needs PyG: pip install torch_geometric"):
            from torch_geometric.data import Data
        if self._is_typed:
            return hetero_data(self, self._source)
        names = [name for name in self.keys() if name not in APART]
        if self._sampled.nodes_by_type[0][0] != self.input_id.numel():
            names.remove("batch_size")  # the number of clusters, which would be taken for that of seeds' rows
        return Data(**{name: self[name] for name in names})

    def keys(self) -> list[str]:
        """Return the names of all attributes, including those not computed yet."""
        given = (name for name in ("x", "y", "edge_index") if self._cache.get(name) is not None)
        own = (name for name in vars(self) if not name.startswith("_"))
        return list(dict.fromkeys((*self.lazy_keys(), *given, *own)))

    def lazy_keys(self) -> list[str]:
        """Return the names of the attributes that are computed at first use."""
        if self._source is None:
            return list(self._kept)
        return self._from().keys(self._layout, by_edge=self._sampled.positions_are_kept)

    @property
    def template(self) -> Any:
        """The loader's PyG data; None for a graph, and after pickling, which drops the source."""
        return None if self._source is None else self._source.template

    @property
    def constants(self) -> Mapping[str, Any]:
        """Attributes of the whole graph, which every batch carries unchanged."""
        return {} if self._source is None else self._source.constants

    def value(self, name: str) -> Any:
        """Return an attribute by name, computing it if needed.

        Attributes of the source come first, since they may be named like a method or property of this class.
        Other names are looked up as ``batch.name``.
        """
        source = self._source
        if source is None and name in self._kept:
            return self._cache[name]
        if source is None or self._is_typed or not source.has(name) or name in ("x", "y"):
            return getattr(self, name)
        if name not in source.constants:
            key = f"{name} of the data" if name in APART else name
            of_nodes = name in source.node_attrs.get(ONLY_NODE_TYPE, {})
            return self._once(key, lambda: self._rows(name) if of_nodes else self._edge_rows(name))
        constant = source.constants[name]
        if isinstance(constant, Tensor) or self._device.type != "cpu":
            return apply_nested(constant, lambda t: t.to(self._device))
        return constant

    def holds(self, name: str, value: Tensor) -> bool:
        """Return whether ``value`` is the same object as the tensor held under ``name``."""
        return value is self._cache.get(name) or value is vars(self).get(name)

    def held(self, name: str) -> Any:
        """Return an attribute that was computed or set before; None if it was not."""
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
        source = self._source
        if source is not None and self._is_typed:
            found = self._by_type(name.removesuffix(BY_TYPE)) if name.endswith(BY_TYPE) else {}
            if found:
                known["_cache"][name] = found
                return found
        elif source is not None:
            if source.has(name):
                return self.value(name)
            is_weight = name == source.graph.weight_name and name in self.lazy_keys()
            if is_weight or (name == "edge_attr" and source.graph.edge_attr is not None):
                return self._once(name, lambda: self._edge_rows(name))
            if name == "adj_t" and name in self.lazy_keys():
                return self._once(name, self._adj_t)
        raise AttributeError(f"this mini-batch has no attribute {name!r}; it has {', '.join(self.keys())}")

    def __copy__(self) -> MiniBatch:
        out = object.__new__(type(self))
        out.__dict__.update(vars(self), _cache=dict(self._cache))
        return out

    def __getstate__(self) -> dict[str, Any]:
        """Return the state with every attribute computed and without the graph it was sampled from."""
        names = self.lazy_keys()
        left_out = ({"features"} if self._is_typed else set()) | (
            set() if self._sampled.by_hop else {"blocks"}
        )
        apart = [name for name in APART if name not in left_out]
        made = {name: getattr(self, name) for name in apart} | {name: self.value(name) for name in names}
        return vars(self) | {"_cache": made, "_source": None, "_kept": tuple(names), "_row_part": None}

    def __repr__(self) -> str:
        return (
            f"MiniBatch(epoch={self.epoch}, step={self.step}, batch_size={self.batch_size}, "
            f"num_nodes={self.num_nodes}, num_edges={self.num_edges}, layout={self._layout!r}"
            + (f", input_type={self._input_type!r})" if self._is_typed else ")")
        )

    def _repr_html_(self) -> str:
        from graphbraid.sampling.minibatch.pyg_forms import batch_html

        own = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        return batch_html(self, self._cache | own)

    def _once(self, name: str, make: Callable[[], T]) -> T:
        """Return an attribute on the batch's device; the first use makes it and counts its transfer."""
        if name not in self._cache:
            if self._is_typed and not (name.endswith(BY_TYPE) or name in APART):
                raise AttributeError(name)  # it has name_dict
            with outside_of_transforms():
                made: Any = make()
            if getattr(made, "device", None) != self._device:
                link = None if self._source is None else self._source.link
                made = apply_nested(made, lambda one: sent(one, self._device, name, link))
            self._cache[name] = made
        return cast("T", self._cache[name])

    def _moves(self, name: str) -> bool:
        """Return whether a cached value moves with the batch; an ``adj_t`` that is no tensor does not."""
        held = self._source is None or isinstance(self._cache[name], Tensor)
        return held or name not in ("adj_t", "adj_t_dict")

    def _from(self) -> BatchSource:
        assert self._source is not None, "an unpickled batch holds all it can give"
        return self._source

    def _rows(self, name: str, node_type: str = ONLY_NODE_TYPE, *, seeds: bool = False) -> Tensor | None:
        """Return the rows of a node attribute, of the seeds alone or of all nodes of a type."""
        number = self._from().graph.node_types.index(node_type)
        ids, counts = self._sampled.n_id_by_type[number], self._sampled.nodes_by_type[number]
        return self._from().node_rows(node_type, name, ids[: counts[0]] if seeds else ids)

    def _edge_rows(self, name: str, number: int = 0) -> Tensor:
        """Return the rows of an edge attribute, hop by hop, of a relation by its number."""
        if self._given_edge_rows is not None:
            key: Any = (self._edge_types[number], name) if self._is_typed else name
            if key not in self._given_edge_rows:
                raise ConfigError(
                    f"the ranks that own the edges did not send batch.{name}, since the model takes no "
                    f"argument {name!r}"
                )
            return self._given_edge_rows[key]
        positions = self._positions(name, number)
        if name == "e_id" and not self._from().has(name):
            return self._from().edge_ids(positions)
        return self._from().edge_rows(self._from().graph.edge_types[number], name, positions)

    def _positions(self, name: str, number: int = 0) -> Tensor:
        positions = self._sampled.positions(number)
        if positions is None:
            raise ConfigError(f"batch.{name} needs edge ids; make the loader with return_edge_id=True")
        return positions

    def _by_type(self, name: str) -> dict[Any, Tensor]:
        """Return an attribute of a graph with types: its rows by node type, and by relation.

        Empty if there is no such attribute.

        Raises:
            ConfigError: it is ``edge_index``, and the layout is ``blocks``.
        """
        source, by_edge = self._from(), self._sampled.positions_are_kept
        edge_types, found = source.graph.edge_types, dict[Any, Any]()
        if name == "edge_index":
            if self._layout != "subgraph":
                raise ConfigError(_NO_LIST)
            return {one: edge_index_of(edges) for one, [edges] in zip(edge_types, self._edges, strict=True)}
        if name == "adj_t":
            return {one: self._adj_t(one) for one in source.adj_t or () if self._layout == "subgraph"}
        if name == "e_id" and by_edge:
            for number, one in enumerate(edge_types):
                found[one] = source.edge_ids(self._positions(name, number))
        else:
            for key in source.holders.get(name, ()):
                if isinstance(key, str):
                    gathered = self._cache.pop((key, name), None)
                    found[key] = self._rows(name, key) if gathered is None else gathered
                elif by_edge:
                    found[key] = self._edge_rows(name, edge_types.index(key))
        return {one: sent(rows, self._device, name + BY_TYPE, source.link) for one, rows in found.items()}

    def _adj_t(self, edge_type: EdgeType = ONLY_EDGE_TYPE) -> Any:
        """Return edges, of a relation, as a sparse matrix of the same kind as the source's ``adj_t``."""
        source, values = self._from(), None
        typed, node_types, ids = self._is_typed, source.graph.node_types, self._sampled.n_id_by_type
        if ADJ_VALUES in source.edge_attrs.get(edge_type, {}):
            rows = self._edge_rows(ADJ_VALUES, source.graph.edge_types.index(edge_type))
            values = sent(rows, self._device, "adj_t", source.link)
        edges = self.edge_index_dict[edge_type] if typed else self.edge_index
        dst, src = (ids[node_types.index(edge_type[end])].numel() for end in (-1, 0))
        return adj_t_of(source.adj_t[edge_type] if typed else source.adj_t, edges, values, (dst, src))

    def _blocks_of(self, hop: int) -> Any:
        """Return the block whose destinations are the nodes found before ``hop``, or a block per relation."""
        if not self._is_typed:
            return self._block(hop, 0, 0, 0)
        types = list(self.num_sampled_nodes_dict)
        return {
            one: self._block(hop, number, types.index(one[0]), types.index(one[2]))
            for number, one in enumerate(self.num_sampled_edges_dict)
        }

    def _block(self, hop: int, number: int, source_type: int, destination_type: int) -> Csc:
        sampled, source = self._sampled, self._from()
        num_dst = sum(sampled.nodes_by_type[destination_type][: hop + 1])
        num_src = sum(sampled.nodes_by_type[source_type][: hop + 2])
        index = 0 if self._layout == "subgraph" else hop
        edges = self._edges[number][index]
        indices = edges.indices
        if self._layout == "subgraph":
            indices = indices[: sum(sampled.counts_by_relation[number][: hop + 1])]
        weight = source.graph.csc.weight
        if weight is not None:
            positions = sampled.edges_by_relation[number][index].positions
            if positions is None:
                raise ConfigError("blocks of a graph with weights need edge ids; use return_edge_id=True")
            if self._given_edge_rows is None:
                weight = take_rows(weight, positions[: indices.numel()])
            else:
                first, of = sum(sampled.counts_by_relation[number][:index]), source.graph
                name = of.edges_of(self._edge_types[number]).weight_name if self._is_typed else of.weight_name
                weight = self._edge_rows(name, number)[first : first + indices.numel()]
            weight = self._sent_to_blocks(weight)
        degree, loop = source.src_degree, source.src_loop
        if degree is not None or loop is not None:
            sources = sampled.n_id_by_type[source_type][:num_src]
            degree, loop = (
                None if values is None else self._sent_to_blocks(take_rows(values, sources))
                for values in (degree, loop)
            )
        return Csc(
            edges.indptr[: num_dst + 1],
            indices,
            num_src,
            weight,
            src_degree=degree,
            src_loop=loop,
            trusted=True,
        )

    def _sent_to_blocks(self, values: Tensor) -> Tensor:
        return sent(values, self._device, "blocks", self._from().link)
