"""TypedMiniBatch: a mini-batch of a graph with types, with PyG's attributes by type."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from graphbraid.errors import ConfigError, DataError, MissingPackageError
from graphbraid.graph import EdgeType
from graphbraid.graph.csc import Csc
from graphbraid.sampling.batch_seeds import BatchSeeds
from graphbraid.sampling.links.link_seeds import OF_LINKS
from graphbraid.sampling.minibatch.attribute_reader import edge_index_of
from graphbraid.sampling.sample import TypedPreparedBatch, TypedSampled
from graphbraid.sampling.source import TypedBatchSource

if TYPE_CHECKING:
    from torch_geometric.data import HeteroData


class TypedMiniBatch:
    """A sampled mini-batch of a graph with types, on the CPU; rows are read when they are asked for.

    Attributes:
        n_id: ids of the nodes by node type, ``(num_nodes,)`` int64: the seeds, then by first appearance.
        input_type: node type of the seeds, or the relation of links.
        input_id: ``(batch_size,)`` int64 positions of the seeds or links in what the loader was given.
        batch_size: number of links, or of seeds, whose rows are ``[:batch_size]`` of their type's tensors.
        attributes: what else the loader gives a batch, by name, such as ``edge_label_index``.
        batch: by node type, the position in ``input_id`` that each node's tree belongs to; None unless trees
            are disjoint.
        num_sampled_nodes: by node type, number of new nodes per hop, the seeds first.
        num_sampled_edges: by relation, number of edges per hop.
        epoch: epoch of the batch.
        step: step of the batch in its epoch.
    """

    def __init__(
        self,
        source: TypedBatchSource,
        prepared: TypedPreparedBatch,
        *,
        input_type: str | EdgeType,
        layout: str,
        epoch: int,
        seeds: BatchSeeds | None = None,
    ) -> None:
        self.step, self.input_id, self._sampled, rows = prepared
        self._source, self._layout = source, layout
        self._x = dict(zip(source.graph.node_types, rows, strict=True))
        self._numbers = {one: number for number, one in enumerate(source.graph.edge_types)}
        self.input_type, self.batch_size, self.epoch = input_type, self.input_id.numel(), epoch
        self.n_id = dict(zip(source.graph.node_types, self._sampled.n_id, strict=True))
        self.attributes: Mapping[str, Tensor] = {} if seeds is None else seeds.attributes
        self.batch: dict[str, Tensor] | None = None
        if self._sampled.trees is not None and seeds is not None and seeds.inputs is not None:
            owners = [seeds.inputs[trees] for trees in self._sampled.trees]
            self.batch = dict(zip(source.graph.node_types, owners, strict=True))
        self.num_sampled_nodes = dict(zip(source.graph.node_types, self._sampled.nodes_per_hop, strict=True))
        self.num_sampled_edges = dict(zip(source.graph.edge_types, self._sampled.edges_per_hop, strict=True))

    @property
    def sampled(self) -> TypedSampled:
        """The sampler's result."""
        return self._sampled

    @property
    def layout(self) -> str:
        """``subgraph`` or ``blocks``."""
        return self._layout

    @property
    def num_nodes(self) -> int:
        """Number of nodes of all types."""
        return sum(ids.numel() for ids in self._sampled.n_id)

    @property
    def num_edges(self) -> int:
        """Number of sampled edges of all relations over all hops."""
        return sum(map(sum, self._sampled.edges_per_hop))

    @property
    def x_dict(self) -> dict[str, Tensor]:
        """Dense feature rows by node type, ``(num_nodes, F)``; types without features are left out."""
        return {
            node_type: self.node_rows(node_type, "x")
            for node_type, attrs in self._source.node_attrs.items()
            if "x" in attrs
        }

    @property
    def edge_index_dict(self) -> dict[EdgeType, Tensor]:
        """``(2, num_edges)`` int64 local ids of its two types by relation, sources in row 0, hop by hop.

        Raises:
            ConfigError: the layout is ``blocks``, in which each layer has its own edges.
        """
        if self._layout != "subgraph":
            raise ConfigError("a batch in layout 'blocks' has edges per layer, in `blocks`")
        return {one: edge_index_of(self._sampled.edges[number][0]) for one, number in self._numbers.items()}

    @property
    def blocks(self) -> list[dict[EdgeType, Csc]]:
        """The edges into the nodes that a layer computes, by layer, outermost first, and relation.

        A layer's destinations of a type are the first of its sources of that type; a relation's weights are
        those of its edges where the graph has weights.
        """
        num_hops = len(next(iter(self.num_sampled_edges.values())))
        return [
            {one: self._block(one, number, hop) for one, number in self._numbers.items()}
            for hop in reversed(range(num_hops))
        ]

    def node_rows(self, node_type: str, name: str) -> Tensor:
        """Return the batch's rows of an attribute of the nodes of a type."""
        made = self._x[node_type] if name == "x" else None
        if made is None:
            made = self._source.node_rows(node_type, name, self.n_id[node_type])
            if name == "x":
                self._x[node_type] = made
        return made

    @property
    def seed_y(self) -> Tensor | None:
        """Labels of the seeds, rows of their type's ``y``; None without labels, and for links."""
        of = self.input_type
        if not isinstance(of, str) or "y" not in self._source.node_attrs[of]:
            return None
        return self._source.node_rows(of, "y", self.n_id[of][: self.batch_size])

    def edge_rows(self, edge_type: EdgeType, name: str) -> Tensor:
        """Return the batch's rows of an attribute of the edges of a relation, hop by hop."""
        return self._source.edge_rows(edge_type, name, self._positions(edge_type))

    def e_id(self, edge_type: EdgeType) -> Tensor:
        """Return each edge's place in its relation's list, ``(num_edges,)`` int64, hop by hop.

        Raises:
            ConfigError: the loader keeps no edge ids.
        """
        return self._source.edge_ids(self._positions(edge_type))

    def to_data(self) -> HeteroData:
        """Return the batch as a PyG ``HeteroData`` with all its attributes.

        Raises:
            MissingPackageError: torch_geometric is not installed.
        """
        out = self._empty_data()
        edge_index = self.edge_index_dict
        for node_type, ids in self.n_id.items():
            store = out[node_type]
            if "num_nodes" in store or not self._source.node_attrs[node_type]:
                store.num_nodes = ids.numel()
            for name in self._source.node_attrs[node_type]:
                store[name] = self.node_rows(node_type, name)
            if "n_id" not in store:
                store["n_id"] = ids
            if self.batch is not None:
                store["batch"] = self.batch[node_type]
            store["num_sampled_nodes"] = self.num_sampled_nodes[node_type]
        for edge_type, number in self._numbers.items():
            store = out[edge_type]
            store["edge_index"] = edge_index[edge_type]
            if self._sampled.edges[number][0].positions is not None:
                for name in self._source.edge_names(edge_type):
                    store[name] = self.edge_rows(edge_type, name)
                if "e_id" not in store:
                    store["e_id"] = self.e_id(edge_type)
            else:
                for name in self._source.edge_names(edge_type):
                    store.pop(name, None)
            store["num_sampled_edges"] = self.num_sampled_edges[edge_type]
        self._give_inputs(out)
        return out

    def __repr__(self) -> str:
        return (
            f"TypedMiniBatch(epoch={self.epoch}, step={self.step}, batch_size={self.batch_size}, "
            f"input_type={self.input_type!r}, num_nodes={self.num_nodes}, num_edges={self.num_edges})"
        )

    def _give_inputs(self, out: Any) -> None:
        """Give a ``HeteroData`` what a batch has of its seeds or links, in the stores where PyG has it."""
        inputs = out[self.input_type]
        inputs["input_id"] = self.input_id
        if isinstance(self.input_type, str):
            inputs["batch_size"] = self.batch_size
            inputs.update(self.attributes)
            return
        src, dst = out[self.input_type[0]], out[self.input_type[-1]]
        for store, name in itertools.product((inputs, src, dst), OF_LINKS):
            store.pop(name, None)  # the data's own, which are of all links
        for name, value in self.attributes.items():
            if name in ("src_index", "seed_time"):
                src[name] = value
            if name in ("dst_pos_index", "dst_neg_index", "seed_time"):
                dst[name] = value
            if name in ("edge_label_index", "edge_label", "edge_label_time"):
                inputs[name] = value

    def _empty_data(self) -> Any:
        if self._source.template is not None:
            return copy.copy(self._source.template)
        try:
            from torch_geometric.data import HeteroData
        except ImportError as error:
            raise MissingPackageError("to_data needs PyG: pip install torch_geometric") from error
        return HeteroData()

    def _block(self, edge_type: EdgeType, number: int, hop: int) -> Csc:
        source, _, destination = edge_type
        num_dst = sum(self.num_sampled_nodes[destination][: hop + 1])
        num_src = sum(self.num_sampled_nodes[source][: hop + 2])
        edges = self._sampled.edges[number]
        one = edges[hop if self._layout == "blocks" else 0]
        num_edges = int(one.indptr[num_dst])
        weight = self._source.graph.csc.weight
        if weight is not None and one.positions is not None:
            weight = torch.index_select(weight, 0, one.positions[:num_edges])
        elif weight is not None:
            raise DataError("blocks of a graph with weights need edge ids; use return_edge_id=True")
        return Csc(one.indptr[: num_dst + 1], one.indices[:num_edges], num_src, weight, trusted=True)

    def _positions(self, edge_type: EdgeType) -> Tensor:
        found = [edges.positions for edges in self._sampled.edges[self._numbers[edge_type]]]
        kept = [positions for positions in found if positions is not None]
        if len(kept) != len(found):
            raise ConfigError("edge attributes need edge ids; make the loader with return_edge_id=True")
        return kept[0] if len(kept) == 1 else torch.cat(kept)
