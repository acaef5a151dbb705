"""TypedRunner: calls a model of several node types and relations, on a mini-batch or on the whole graph."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from graphbraid.errors import ConfigError, DataError, did_you_mean
from graphbraid.fullgraph.device import csc_on
from graphbraid.fullgraph.reading.calling import (
    CSC,
    DATA,
    EDGE_ATTR,
    EDGES,
    N_ID,
    WEIGHTS,
    CallValues,
    Given,
    X,
    calling_of,
)
from graphbraid.fullgraph.reading.fused_hgt import fused_layers
from graphbraid.graph import Graph, SparseFeatures
from graphbraid.graph.types import NodeSet
from graphbraid.train.step.runner import ModelRunner, missing_in_batches

if TYPE_CHECKING:
    from graphbraid.loader.batch_loader import BatchLoader
    from graphbraid.loader.options import LoaderSettings
    from graphbraid.sampling.minibatch.mini_batch import MiniBatch
    from graphbraid.train.runtime import ModelPlace

TypedFeatures = dict[str, Tensor | SparseFeatures]


class TypedRunner(ModelRunner):
    """A runner of a model on a graph with types, whose outputs are for the nodes of one of them.

    It is called as :class:`ModelRunner` calls a model of one type, with dicts by node type or relation. Where
    a fused operator stands for layers, it runs in their place. The model returns a dict of outputs by node
    type, or those of the learned type alone.
    """

    def __init__(
        self, model: nn.Module, graph: Graph, place: ModelPlace, node_type: str | None = None
    ) -> None:
        self.node_type = learned_type(graph, node_type)
        self._prepare_types(model, graph, place)

    def _prepare_types(self, model: nn.Module, graph: Graph, place: ModelPlace) -> None:
        """Check that there is what the model reads, and prepare what every call of it needs."""
        self.calling = calling_of(model, Given.of(graph))
        self._prepare(model, graph, place)
        has_features = any(self.graph.nodes_of(one).x is not None for one in self.graph.node_types)
        if not has_features and not self.calling.takes(N_ID):
            raise DataError(
                "the model needs node features, but no node type has any; give some with "
                "Graph.from_relations(x={node type: rows}), or a model that learns a row per node "
                "(forward takes n_id_dict)."
            )

    @property
    def learned_type(self) -> str:
        """The node type whose outputs these are."""
        return self.node_type

    @property
    def labels(self) -> NodeSet:
        """The nodes of the learned type."""
        return self.graph.nodes_of(self.node_type)

    @property
    def by_layer(self) -> bool:
        """False: the layers of such models are not run one by one over all nodes."""
        return False

    def rows_bytes(self, batch: MiniBatch) -> int:
        """Return the bytes of a batch's feature rows if they are float32 and dense."""
        held = ((ids, self.graph.nodes_of(one).x) for one, ids in batch.n_id_dict.items())
        return sum(4 * ids.numel() * x.shape[1] for ids, x in held if x is not None)

    def loader(self, settings: LoaderSettings) -> BatchLoader:
        """Return the loader of mini-batches of nodes of the learned type, prepared on the CPU."""
        from graphbraid.loader import BatchLoader

        settings = self.settings(settings)
        nodes = (self.node_type, settings.input_nodes)
        return BatchLoader(self.source(), dataclasses.replace(settings, input_nodes=nodes))

    def on_batch(self, batch: MiniBatch) -> Tensor:
        """Return the outputs for a mini-batch's seeds, ``(batch_size, width)``."""
        return self._run(CallValues(partial(self._of_batch, batch)))[: batch.batch_size]

    def _of_batch(self, batch: MiniBatch, what: str) -> Any:
        if what == X:
            return self.features_of(batch)
        if what == CSC:
            return [{one: csc_on(csc, self.device) for one, csc in b.items()} for b in batch.blocks]
        if what in (EDGES, N_ID):
            return self._on_device(batch.edge_index_dict if what == EDGES else batch.n_id_dict)
        if what in (WEIGHTS, EDGE_ATTR):
            held = getattr(batch, f"{what}_dict", {})
            return {one: self._in_float32(rows.to(self.device)) for one, rows in held.items()}
        data = batch.to_data().to(self.device)
        if what != DATA:
            return data.collect(what, allow_empty=True) or missing_in_batches(what)
        for name in (X, EDGE_ATTR):
            for one, rows in self._of_batch(batch, name).items():
                data[one][name] = rows
        return data

    def features_of(self, batch: MiniBatch) -> TypedFeatures:  # type: ignore[override]
        """Return a mini-batch's feature rows by node type, float32 on the model's device."""
        return {one: self._in_float32(rows.to(self.device)) for one, rows in batch.x_dict.items()}

    def on_graph(self) -> Tensor:
        """Return the outputs for every node of the learned type from one pass, ``(num_nodes, width)``."""
        if self.engine is not None and not torch.is_grad_enabled() and not self.model.training:
            return self._checked(self.engine.predict())
        return self._run(self._on_whole())

    def _run(self, values: CallValues) -> Tensor:
        with self.autocast(), fused_layers(self.model):
            outputs = self.calling.run(self.model, values)
        if isinstance(outputs, Mapping):
            if self.node_type not in outputs:
                raise DataError(
                    f"the model must return outputs of the labelled node type {self.node_type!r}; "
                    f"got those of {', '.join(map(str, outputs)) or 'none'}. A type gets some if a relation "
                    "leads into it (Graph.with_reverse_relations)."
                )
            outputs = outputs[self.node_type]
        return self._checked(outputs)

    def _on_device(self, values: Mapping[Any, Tensor]) -> dict[Any, Tensor]:
        return {one: value.to(self.device) for one, value in values.items()}


def learned_type(graph: Graph, node_type: str | None) -> str:
    """Return the node type whose labels are learned: the one given, or the only one that has some.

    Raises:
        ConfigError: there is no such type, or none was given and several have labels.
        DataError: no type has labels, and none was given.
    """
    labelled = [one for one in graph.node_types if graph.nodes_of(one).y is not None]
    if node_type is None:
        if len(labelled) == 1:
            return labelled[0]
        if not labelled:
            raise DataError(
                "training needs labels, but no node type has any; give some with "
                "Graph.from_relations(y={node type: labels})."
            )
        raise ConfigError(
            f"several node types have labels ({', '.join(labelled)}); say which to learn, with node_type."
        )
    if node_type not in graph.node_types:
        raise ConfigError(
            f"node_type={node_type!r} is no node type; the graph has {', '.join(graph.node_types)}."
            + did_you_mean(node_type, graph.node_types)
        )
    return node_type
