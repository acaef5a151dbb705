"""EncoderRunner: calls the encoder of a model of links on nodes, whose rows it returns."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from graphbraid.errors import ConfigError, DataError
from graphbraid.fullgraph.reading.calling import (
    EDGE_TYPE,
    N_ID,
    CallValues,
    Given,
    X,
    calling_of,
    parameters_of,
)
from graphbraid.nn import NodeEmbedding, module_traits
from graphbraid.sampling.batch_seeds import TreeSeeds
from graphbraid.sampling.source import BatchSource
from graphbraid.train.step.links.data import LinkData
from graphbraid.train.step.links.times import FOREVER, LinkTimes
from graphbraid.train.step.runner import ModelRunner, normalises_by_degree

if TYPE_CHECKING:
    from graphbraid.loader.batch_loader import BatchLoader
    from graphbraid.loader.options import LoaderSettings
    from graphbraid.sampling.minibatch.mini_batch import MiniBatch
    from graphbraid.train.runtime import ModelPlace


class EncoderRunner(ModelRunner):
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
        self.calling = calling_of(encoder, dataclasses.replace(given, names=names))
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
    def by_layer(self) -> bool:
        """Whether the layers can be run one by one over all nodes: not with learned rows in front."""
        return self.native and not self.calling.takes(N_ID)

    @property
    def by_blocks(self) -> bool:
        """Whether the encoder is called with one block per layer."""
        return self.native or self._typed_blocks

    def settings(self, settings: LoaderSettings) -> LoaderSettings:
        """Return a loader's settings with what the encoder needs; one without layers needs no neighbours."""
        settings = super().settings(settings)
        return encoder_settings(self.model, settings, src_degree=self.uses_degrees)

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
        with self.autocast():
            outputs = self.calling.run(self.model, CallValues(partial(self._of_batch, batch)))
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
    encoder: nn.Module, settings: LoaderSettings, *, src_degree: bool = False
) -> LoaderSettings:
    """Return a loader's settings with what an encoder needs; one without layers needs no neighbours.

    Args:
        encoder: the encoder.
        settings: settings of the run.
        src_degree: whether its layers normalise by degrees.
    """
    hops = settings.num_neighbors
    if module_traits.num_layers(encoder) == 0:
        hops = [0]
    return dataclasses.replace(settings, num_neighbors=hops, src_degree=src_degree)


def _takes_relations(encoder: nn.Module) -> bool:
    """Return whether an encoder takes relations; rows in front of a model take them for that model."""
    inner = encoder.model if isinstance(encoder, NodeEmbedding) else encoder
    return inner is not None and any(parameter.name == EDGE_TYPE for parameter in parameters_of(inner))
