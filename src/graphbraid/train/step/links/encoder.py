"""Runners of the encoder of a model of links: called with tensors, or by node type and relation."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from graphbraid.errors import ConfigError, DataError
from graphbraid.fullgraph.device import csc_on
from graphbraid.fullgraph.reading.calling import (
    CSC,
    EDGE_TYPE,
    EDGES,
    N_ID,
    CallValues,
    Given,
    X,
    parameters_of,
)
from graphbraid.fullgraph.reading.hgt import fused_layers
from graphbraid.graph import EdgeType, Graph, Types
from graphbraid.graph.csc import Csc
from graphbraid.nn import NodeEmbedding, module_traits
from graphbraid.sampling.batch_seeds import TreeSeeds
from graphbraid.sampling.minibatch.mini_batch import MiniBatch
from graphbraid.sampling.source import BatchSource
from graphbraid.train.step.links.data import FOREVER, LinkData, LinkTimes, kept, left_out
from graphbraid.train.step.runner import ModelRunner, missing_in_batches, normalises_by_degree

if TYPE_CHECKING:
    from graphbraid.fullgraph.program import NotLoweredError, Program
    from graphbraid.loader.batch_loader import BatchLoader
    from graphbraid.loader.options import LoaderSettings
    from graphbraid.train.runtime import ModelPlace


class NodeEncoderRunner(ModelRunner):
    """A runner of an encoder, whose mini-batches of nodes are drawn over the edges that carry messages."""

    _times: LinkTimes | None

    def settings(self, settings: LoaderSettings) -> LoaderSettings:
        """Return a loader's settings with what the encoder needs; one without layers needs no neighbours."""
        settings = dataclasses.replace(super().settings(settings), src_degree=self.uses_degrees)
        has_layers = module_traits.num_layers(self.model) != 0
        return settings if has_layers else dataclasses.replace(settings, num_neighbors=[0])

    def loader(self, settings: LoaderSettings) -> BatchLoader:
        """Return the loader of mini-batches of nodes as they are after all messages.

        All neighbours are then early enough. If only the latest are drawn, each node has a tree of its own.
        """
        from graphbraid.loader import BatchLoader

        settings, source, times = self.settings(settings), self.source(), self._times
        if times is None or not times.messages.last or not any(settings.num_neighbors):
            return BatchLoader(source, settings)
        nodes = settings.input_nodes
        assert isinstance(nodes, Tensor), "evaluations name their nodes"
        seeds = TreeSeeds(nodes, times=torch.full(nodes.shape, FOREVER), edge_times=times.messages)
        return BatchLoader(source, dataclasses.replace(settings, input_nodes=None), seeds)

    def on_batch(self, batch: MiniBatch) -> Tensor:
        """Return the rows of a mini-batch's seeds, ``(batch_size, channels)``."""
        return self.rows_of_seeds(batch, batch.batch_size)

    @abstractmethod
    def rows_of_seeds(self, batch: MiniBatch, count: int) -> Tensor:
        """Return the rows of the first ``count`` nodes of a mini-batch."""


class EncoderRunner(NodeEncoderRunner):
    """A runner of an encoder over the edges that carry messages.

    It is called as :class:`ModelRunner` calls a model; ``edge_type`` is the relation of each edge.

    Raises:
        ConfigError: the encoder takes relations, and the graph has none; or degrees of the whole graph, and
            links have times.
        DataError: it needs features, and the graph has none.
    """

    def __init__(self, encoder: nn.Module, data: LinkData, place: ModelPlace) -> None:
        graph, self._times, self._relation = data.messages, data.times, None
        given = Given.of(graph)
        names = given.names | {X}
        if _takes_relations(encoder):
            self._relation, names = data.message_relation, names | {EDGE_TYPE}
            if self._relation is None:
                raise ConfigError(
                    "the encoder takes the relation of each edge (edge_type), and the graph has no types; "
                    "use an encoder without, or a graph of relations."
                )
        self._bind(encoder, dataclasses.replace(given, names=names))
        self._prepare(encoder, graph, place)
        if graph.x is None and not self.calling.takes(N_ID):
            raise DataError(
                "the encoder needs node features, but graph.x is None; put learned rows in front of it: "
                "nn.NodeEmbedding(graph.num_nodes, channels, encoder)."
            )
        if self.native and self._relation is not None:
            raise ConfigError("an encoder that takes blocks cannot take edge_type; use one of them")
        self._typed_blocks = self._relation is not None and module_traits.takes_typed_blocks(encoder)
        self.uses_degrees = self.native and normalises_by_degree(encoder)
        if self.uses_degrees and data.times is not None:
            raise ConfigError(
                "the encoder normalises by the degrees of the graph, which count edges of any time, so they "
                "tell of the future: with temporal_strategy use an encoder without GCNConv, such as "
                "nn.GraphSAGE, or PyG's, which counts the edges that were drawn."
            )

    @property
    def by_blocks(self) -> bool:
        """Whether the encoder is called with one block per layer."""
        return self.native or self._typed_blocks

    def source(self) -> BatchSource:
        """What mini-batches are cut from."""
        return BatchSource(graph=self.graph)

    def features_of(self, batch: MiniBatch) -> Any:
        """Return a mini-batch's feature rows; None without features."""
        return None if self.graph.x is None else super().features_of(batch)

    def on_batch(self, batch: MiniBatch) -> Tensor:
        """Return the rows of a mini-batch's seeds, ``(batch_size, channels)``."""
        return super().on_batch(batch if self.device.type == "cpu" else batch.to(self.device))

    def rows_of_seeds(self, batch: MiniBatch, count: int) -> Tensor:
        """Return the rows of the first ``count`` nodes of a mini-batch on the encoder's device."""
        with self.autocast():
            outputs = self._called(batch, CallValues(partial(self._of_batch, batch)))
        return self._checked(outputs)[:count]

    def _of_batch(self, batch: MiniBatch, what: str) -> Any:
        if what == X and self.graph.x is None:
            return None
        if what == EDGE_TYPE and self._typed_blocks:
            by_layer = batch.sampled.positions_by_layer(batch.layout)
            return [self._relations_at(positions) for positions in by_layer]
        if what == EDGE_TYPE:
            return self._relations_at(batch.sampled.positions())
        return super()._of_batch(batch, what)

    def _relations_at(self, positions: Tensor | None) -> Tensor:
        """Return the relations of the edges at ``positions`` on the encoder's device."""
        assert positions is not None, "edge ids are kept where relations are taken"
        assert self._relation is not None
        return self._relation[positions.cpu()].to(self.device)

    def _make_whole(self) -> CallValues:
        values = super()._make_whole()
        if self._relation is not None:
            values[EDGE_TYPE] = self._relation.to(self.device)
        if self.graph.x is None:
            values[X] = None
        return values


def _takes_relations(encoder: nn.Module) -> bool:
    """Return whether an encoder takes relations; rows in front of a model take them for that model."""
    inner = encoder.model if isinstance(encoder, NodeEmbedding) else encoder
    return inner is not None and any(parameter.name == EDGE_TYPE for parameter in parameters_of(inner))


_Edges = tuple[Tensor, Tensor, Tensor]
"""A relation's sources and destinations by their places within their types, and positions in the graph."""


class ByType:
    """The nodes and edges of a mini-batch by type.

    Nodes of a type keep their order, so that those of the first hops come first in each type, too.

    Args:
        batch: a mini-batch whose ids are those of the whole graph, with positions of its edges.
        graph: the graph with types that it was drawn from.
        relation: ``(num_edges,)`` int64 relation of each edge, in the order that ``batch`` was drawn from.
        weight: ``(num_edges,)`` weights in that order; None if there are none.
    """

    def __init__(self, batch: MiniBatch, graph: Graph, relation: Tensor, weight: Tensor | None) -> None:
        assert graph.types is not None, "made for graphs with types"
        self._sampled, self._layout = batch.sampled, batch.layout
        self._graph, self._relation, self._weight = graph, relation, weight
        first = torch.tensor(graph.types.first_ids)
        n_id = self._sampled.n_id
        self._type = torch.bucketize(n_id, first[1:], right=True)
        num_types = len(graph.node_types)
        order, counts = self._type.argsort(stable=True), torch.bincount(self._type, minlength=num_types)
        begins = torch.repeat_interleave(counts.cumsum(0) - counts, counts)
        self._local = torch.empty_like(n_id)
        self._local[order] = torch.arange(n_id.numel()) - begins
        self.places: Mapping[str, Tensor] = dict(
            zip(graph.node_types, torch.split(order, counts.tolist()), strict=True)
        )
        """Where the nodes of a type stand in the batch, by node type, rising."""
        self.n_id: Mapping[str, Tensor] = {
            name: n_id[places] - int(first[number])
            for number, (name, places) in enumerate(self.places.items())
        }
        """Ids of the nodes within their type, by node type."""

    def features(self, source: BatchSource) -> dict[str, Tensor]:
        """Return the dense feature rows of the types that have features."""
        held = ((name, source.node_rows(name, "x", ids)) for name, ids in self.n_id.items())
        return {name: rows for name, rows in held if rows is not None}

    def edge_lists(self) -> tuple[dict[EdgeType, Tensor], dict[EdgeType, Tensor]]:
        """Return by relation ``(2, num_edges)`` int64 places within its types, and positions in the graph."""
        num_nodes = self._sampled.n_id.numel()
        lists = self._by_relation(0, num_nodes)
        return (
            {one: torch.stack([src, dst]) for one, (src, dst, _) in lists.items()},
            {one: positions for one, (_, _, positions) in lists.items()},
        )

    def blocks(self) -> list[dict[EdgeType, Csc]]:
        """Return by layer, outermost first, the edges of each relation into the nodes that it computes."""
        return [self._block(hop) for hop in reversed(range(len(self._sampled.edges_per_hop)))]

    def _block(self, hop: int) -> dict[EdgeType, Csc]:
        nodes_per_hop = self._sampled.nodes_per_hop
        num_dst, num_src = sum(nodes_per_hop[: hop + 1]), sum(nodes_per_hop[: hop + 2])
        of_dst, of_src = self._counts(num_dst), self._counts(num_src)
        found = {}
        lists = self._by_relation(hop if self._layout == "blocks" else 0, num_dst)
        for one, (src, dst, positions) in lists.items():
            indptr = torch.zeros(of_dst[one[2]] + 1, dtype=torch.int64)
            torch.cumsum(torch.bincount(dst, minlength=of_dst[one[2]]), 0, out=indptr[1:])
            found[one] = Csc(indptr, src.int(), of_src[one[0]], self.weights(one, positions), trusted=True)
        return found

    def weights(self, edge_type: EdgeType, positions: Tensor) -> Tensor | None:
        """Return the weights of edges of a relation; None if it was given none."""
        if self._weight is None or not self._graph.edges_of(edge_type).weighted:
            return None
        return self._weight[positions]

    def _counts(self, num_nodes: int) -> dict[str, int]:
        """Return how many of the first nodes of the batch are of each type."""
        counts = torch.bincount(self._type[:num_nodes], minlength=len(self._graph.node_types)).tolist()
        return dict(zip(self._graph.node_types, counts, strict=True))

    def _by_relation(self, record: int, num_dst: int) -> dict[EdgeType, _Edges]:
        """Return the edges into the first ``num_dst`` nodes by relation, each by destination."""
        edges = self._sampled.edges[record]
        assert edges.positions is not None, "kept by the loaders of typed encoders"
        num_dst = min(num_dst, edges.indptr.numel() - 1)
        indptr = edges.indptr[: num_dst + 1]
        num_edges = int(indptr[-1])
        positions = edges.positions[:num_edges]
        src = self._local[edges.indices[:num_edges].long()]
        dst = self._local[torch.repeat_interleave(torch.arange(num_dst), indptr.diff())]
        kind = self._relation[positions]
        names = self._graph.edge_types
        order = kind.argsort(stable=True)
        parts = torch.split(order, torch.bincount(kind, minlength=len(names)).tolist())
        return {one: (src[part], dst[part], positions[part]) for one, part in zip(names, parts, strict=True)}


_BY_TYPE = "by_type"
"""Attribute of a batch with what was made of it by type."""


class TypedEncoderRunner(NodeEncoderRunner):
    """A runner of an encoder that is called by node type and relation, over the edges that carry messages.

    Mini-batches are drawn over nodes of the whole graph, with one fanout per hop for the in-neighbours of all
    relations together, and then taken apart by type. The encoder is called as :class:`ModelRunner` calls a
    model, and returns rows by node type.

    Args:
        encoder: the encoder.
        graph: the graph with types.
        data: what is learned of it.
        place: device and precision.

    Raises:
        DataError: the encoder needs features, and there are none.
    """

    def __init__(self, encoder: nn.Module, graph: Graph, data: LinkData, place: ModelPlace) -> None:
        self._ends, self._plain = data.ends, BatchSource(graph=data.messages)
        assert data.message_relation is not None, "of a graph with types"
        self._relation, self._times = data.message_relation, data.times
        messages = _messages(graph, data)
        self._bind(encoder, Given.of(messages))
        self._prepare(encoder, messages, place)
        self._rows_by_type = BatchSource(graph=self.graph)

    def program_by_level(self) -> Program | NotLoweredError:
        """Return why there is no program: rows of several types are wanted."""
        from graphbraid.fullgraph.program import NotLoweredError

        return NotLoweredError("encoder", "it returns rows of several node types")

    def settings(self, settings: LoaderSettings) -> LoaderSettings:
        """Return a loader's settings with what the encoder needs; edges are told apart by their ids."""
        return super().settings(dataclasses.replace(settings, return_edge_id=True))

    def _few_nodes(self, count: int) -> Tensor:
        return self._ends.nodes[:count]

    def source(self) -> BatchSource:
        """What mini-batches are cut from."""
        return self._plain

    def rows_bytes(self, batch: MiniBatch) -> int:
        """Return the bytes of a batch's feature rows if they are float32 and dense."""
        return self._rows_bytes(self._by_type(batch)[0].n_id.items())

    def features_of(self, batch: MiniBatch) -> dict[str, Tensor]:
        """Return a mini-batch's feature rows by node type, float32 on the model's device."""
        rows = self._on_device(self._by_type(batch)[1])
        return {one: self._in_float32(held) for one, held in rows.items()}

    def rows_of_seeds(self, batch: MiniBatch, count: int) -> Tensor:
        """Return the rows of the first ``count`` nodes of a mini-batch, which are of the types links join."""
        parts, _ = self._by_type(batch)
        found = self._by_end(CallValues(partial(self._of_batch, batch)))
        places = {one: parts.places[one][parts.places[one] < count] for one in found}
        order = torch.cat(list(places.values())).argsort()
        rows = torch.cat([rows[: places[one].numel()] for one, rows in found.items()])
        return rows.index_select(0, order.to(rows.device))

    def _of_batch(self, batch: MiniBatch, what: str) -> Any:
        parts, _ = self._by_type(batch)
        if what == X:
            return self.features_of(batch)
        if what == N_ID:
            return self._on_device(parts.n_id)
        if what == CSC:
            return [{one: csc_on(csc, self.device) for one, csc in b.items()} for b in parts.blocks()]
        lists, positions = parts.edge_lists()
        if what == EDGES:
            return self._on_device(lists)
        weights = {
            one: parts.weights(one, at)
            for one, at in positions.items()
            if self.graph.edges_of(one).weight_name == what
        }
        found = {one: weight for one, weight in weights.items() if weight is not None}
        return self._on_device(found) if found else missing_in_batches(what)

    def _on_device(self, values: Mapping[Any, Tensor]) -> dict[Any, Tensor]:
        return {one: value.to(self.device) for one, value in values.items()}

    def on_graph(self) -> Tensor:
        """Return the rows of every node of the whole graph; of the types that links do not join, zeros."""
        found = self._by_end(self._on_whole())
        like = found[self._ends.types[0]]
        return torch.cat(
            [
                found[one]
                if one in found
                else like.new_zeros(self.graph.nodes_of(one).num_nodes, like.shape[1])
                for one in self.graph.node_types
            ]
        )

    def _by_end(self, values: CallValues) -> dict[str, Tensor]:
        """Return the encoder's rows by node type, for the types that links join."""
        with self.autocast(), fused_layers(self.model):
            outputs = self.calling.run(self.model, values)
        wanted = dict.fromkeys(self._ends.types)
        if not isinstance(outputs, Mapping) or not all(one in outputs for one in wanted):
            got = ", ".join(map(str, outputs)) if isinstance(outputs, Mapping) else type(outputs).__name__
            needed = " and ".join(map(repr, wanted))
            raise DataError(
                f"the encoder must return rows by node type, with those of {needed}; got {got or 'none'}. "
                "A type gets some if a relation leads into it (Graph.with_reverse_relations)."
            )
        found = {one: self._checked(outputs[one]) for one in wanted}
        widths = {one: rows.shape[1] for one, rows in found.items()}
        if len(set(widths.values())) > 1:
            raise DataError(f"the encoder's rows must have one width for both ends of a link; got {widths}")
        return found

    def _by_type(self, batch: MiniBatch) -> tuple[ByType, dict[str, Tensor]]:
        """Return a batch by type, with its features, which are made once."""
        made: tuple[ByType, dict[str, Tensor]] | None = getattr(batch, _BY_TYPE, None)
        if made is None:
            parts = ByType(batch, self.graph, self._relation, self._plain.graph.csc.weight)
            made = parts, parts.features(self._rows_by_type)
            setattr(batch, _BY_TYPE, made)
        return made


def _messages(graph: Graph, data: LinkData) -> Graph:
    """Return the graph with the edges that carry messages alone, with its types and features."""
    assert graph.types is not None
    assert data.message_relation is not None
    counts = torch.bincount(data.message_relation, minlength=len(graph.edge_types)).tolist()
    rows = kept(graph.types.rows, data.is_message)
    csc = Csc(data.messages.csc.indptr, rows.indices, graph.num_nodes, rows.weight, trusted=True)
    edges = {
        one: dataclasses.replace(graph.edges_of(one), num_edges=count, edge_attr=None, time=None, splits={})
        for one, count in zip(graph.edge_types, counts, strict=True)
    }
    nodes = {name: dataclasses.replace(held, splits={}) for name, held in graph.types.nodes.items()}
    types = Types(nodes=nodes, edges=edges, rows=rows)
    return Graph(csc=csc, types=types, name=graph.name, left_out=left_out(graph), trusted=True)
