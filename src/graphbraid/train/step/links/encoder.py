"""EncoderRunner: calls the encoder of a model of links on nodes, whose rows it returns."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from graphbraid.errors import ConfigError, DataError
from graphbraid.nn import NodeEmbedding, told
from graphbraid.sampling.batch_seeds import TreeSeeds
from graphbraid.sampling.source import BatchSource
from graphbraid.train.step.links.data import LinkData
from graphbraid.train.step.links.times import FOREVER, LinkTimes
from graphbraid.train.step.runner import ModelRunner, WholeInputs, csc_to, normalises_by_degree, takes

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from graphbraid.loader.batches.batch_loader import BatchLoader
    from graphbraid.loader.batches.settings import LoaderSettings
    from graphbraid.sampling.minibatch.mini_batch import MiniBatch


class EncoderRunner(ModelRunner):
    """A runner of an encoder over the edges that carry messages.

    It is called as :class:`graphbraid.nn.LinkModel` says: beside features and edges it gets what its
    ``forward`` takes of ``n_id``, ``edge_type`` and ``edge_weight``.

    Raises:
        ConfigError: the encoder takes relations, and the graph has none; or degrees of the whole graph, and
            links have times.
        DataError: it needs features, and the graph has none.
    """

    def __init__(self, encoder: nn.Module, data: LinkData, fabric: Fabric) -> None:
        graph = data.messages
        self._takes_ids, self._relation, self._times = takes(encoder, "n_id"), None, data.times
        if graph.x is None and not self._takes_ids:
            raise DataError(
                "the encoder needs node features, but graph.x is None; put learned rows in front of it: "
                "nn.NodeEmbedding(graph.num_nodes, channels, encoder)."
            )
        self._prepare(encoder, graph, fabric)
        if _takes_relations(encoder):
            if data.message_relation is None:
                raise ConfigError(
                    "the encoder takes the relation of each edge (edge_type), and the graph has no types; "
                    "use an encoder without, or a graph of relations."
                )
            if self.native:
                raise ConfigError("an encoder that takes blocks cannot take edge_type; use one of them")
            self._relation = data.message_relation
        self._typed_blocks = self._relation is not None and told.takes_typed_blocks(encoder)
        self.uses_degrees = self.native and normalises_by_degree(encoder)
        if self.uses_degrees and data.times is not None:
            raise ConfigError(
                "the encoder normalises by the degrees of the graph, which count edges of any time, so they "
                "tell of the future: with temporal_strategy use an encoder without GCNConv, such as "
                "nn.GraphSAGE, or PyG's, which counts the edges that were drawn."
            )
        weighted = graph.csc.weight is not None and not self.native
        self.passes_weight = weighted and takes(encoder, "edge_weight")

    @property
    def by_layer(self) -> bool:
        """Whether the layers can be run one by one over all nodes: not with learned rows in front."""
        return self.native and not self._takes_ids

    @property
    def by_blocks(self) -> bool:
        """Whether the encoder is called with one block per layer."""
        return self.native or self._typed_blocks

    def settings(self, settings: LoaderSettings) -> LoaderSettings:
        """Return a loader's settings with what the encoder needs; one without layers needs no neighbours."""
        keeps = self._relation is not None or self.passes_weight
        return encoder_settings(self.model, settings, keeps_edges=keeps, src_degree=self.uses_degrees)

    def loader(self, settings: LoaderSettings) -> BatchLoader:
        """Return the loader of mini-batches of nodes."""
        return node_loader(self.source(), self.settings(settings), self._times)

    def source(self) -> BatchSource:
        """What mini-batches are cut from."""
        return BatchSource(graph=self.graph)

    def features_of(self, batch: MiniBatch) -> Any:
        """Return a mini-batch's feature rows; None without features."""
        return None if self.graph.x is None else super().features_of(batch)

    def on_batch(self, batch: MiniBatch) -> Tensor:
        """Return the rows of a mini-batch's seeds, ``(batch_size, channels)``."""
        batch = batch if self.device.type == "cpu" else batch.to(self.device)
        return self.rows_of_seeds(batch, batch.batch_size)

    def rows_of_seeds(self, batch: MiniBatch, count: int) -> Tensor:
        """Return the rows of the first ``count`` nodes of a mini-batch on the encoder's device."""
        x = self.features_of(batch)
        named: dict[str, Any] = {"n_id": batch.n_id} if self._takes_ids else {}
        if self._typed_blocks:
            by_layer = batch.sampled.positions_by_layer(batch.layout)
            named["edge_type"] = [self._relations_at(positions) for positions in by_layer]
        elif self._relation is not None:
            named["edge_type"] = self._relations_at(batch.sampled.positions)
        if self.passes_weight:
            named["edge_weight"] = batch.edge_weight
        edges = batch.blocks if self.by_blocks else batch.edge_index
        with self.autocast():
            outputs = self.model(None if x is None else self._in_float32(x), edges, **named)
        return self._checked(outputs)[:count]

    def _relations_at(self, positions: Tensor | None) -> Tensor:
        """Return the relations of the edges at ``positions`` on the encoder's device."""
        assert positions is not None, "edge ids are kept where relations are taken"
        assert self._relation is not None
        return self._relation[positions.cpu()].to(self.device)

    def _make_whole_inputs(self) -> WholeInputs:
        csc, named = self.graph.csc, dict[str, Any]()
        if self._takes_ids:
            named["n_id"] = torch.arange(self.graph.num_nodes, device=self.device)
        if self._relation is not None:
            named["edge_type"] = self._relation.to(self.device)
        if self.passes_weight and csc.weight is not None:
            named["edge_weight"] = csc.weight.to(self.device)
        if self.native:
            x = None if self.graph.x is None else self._whole_features()
            return WholeInputs((x, csc_to(csc, self.device)), named)
        dense = None if self.graph.x is None else self._in_float32(self.graph.dense_x().to(self.device))
        if self._typed_blocks:
            return WholeInputs((dense, csc_to(csc, self.device)), named)
        edge_index = torch.stack([csc.indices.long(), csc.destinations().long()]).to(self.device)
        return WholeInputs((dense, edge_index), named)


def node_loader(source: BatchSource, settings: LoaderSettings, times: LinkTimes | None) -> BatchLoader:
    """Return the loader of mini-batches of nodes as they are after all messages.

    Any neighbours are then early enough. Where only the latest are drawn, each node has a tree of its own.
    """
    from graphbraid.loader import BatchLoader

    if times is None or not times.messages.last or not any(settings.num_neighbors):
        return BatchLoader(source, settings)
    nodes = settings.input_nodes
    assert isinstance(nodes, Tensor), "evaluations name their nodes"
    seeds = TreeSeeds(nodes, times=torch.full(nodes.shape, FOREVER), edge_times=times.messages)
    return BatchLoader(source, dataclasses.replace(settings, input_nodes=None), seeds)


def encoder_settings(
    encoder: nn.Module, settings: LoaderSettings, *, keeps_edges: bool, src_degree: bool = False
) -> LoaderSettings:
    """Return a loader's settings with what an encoder needs; one without layers needs no neighbours.

    Args:
        encoder: the encoder.
        settings: settings of the run.
        keeps_edges: whether the encoder is told of edges more than their ends.
        src_degree: whether its layers normalise by degrees.
    """
    hops = settings.num_neighbors
    if told.num_layers(encoder) == 0:
        hops = [0]
    keeps = settings.return_edge_id or keeps_edges
    return dataclasses.replace(settings, num_neighbors=hops, return_edge_id=keeps, src_degree=src_degree)


def _takes_relations(encoder: nn.Module) -> bool:
    """Return whether an encoder takes relations; rows in front of a model take them for that model."""
    inner = encoder.model if isinstance(encoder, NodeEmbedding) else encoder
    return inner is not None and takes(inner, "edge_type")
