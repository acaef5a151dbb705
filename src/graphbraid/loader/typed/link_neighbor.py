"""The LinkNeighborLoader of graphs with types: links of one relation, and neighbours of every type."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from graphbraid.errors import ConfigError
from graphbraid.graph import EdgeType, Graph
from graphbraid.graph.csc import Csc
from graphbraid.loader.link_neighbor import LinkNeighborLoader
from graphbraid.loader.link_options import LinkOptions
from graphbraid.loader.typed.face import TypedFace, TypedInputs
from graphbraid.loader.typed.link_inputs import as_typed_links
from graphbraid.loader.typed.times import TypedTimes, read_typed_times
from graphbraid.sampling.links.link_ends import LinkEnds
from graphbraid.sampling.links.negative_draws import NegativeDraws
from graphbraid.sampling.links.negatives import NegativeSampling
from graphbraid.sampling.typed.link_lookup import TypedLinkLookup
from graphbraid.sampling.typed.source import TypedBatchSource


class TypedLinkNeighborLoader(TypedFace, LinkNeighborLoader):
    """What :class:`graphbraid.loader.LinkNeighborLoader` makes of a ``HeteroData`` or of a graph with types.

    ``num_neighbors`` is a list for all relations or a dict of lists by relation; ``edge_label_index`` names a
    relation, or is a pair of it and links. Sources of negatives are nodes of the type of the relation's
    sources, destinations of that of its destinations. Batches are ``HeteroData``, with the links' attributes
    where PyG has them; in layout ``blocks``, or without PyG, :class:`.typed.minibatch.TypedMiniBatch`.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.link_sampler = self._batches.typed_config  # type: ignore[assignment]

    def _typed_inputs(self, source: TypedBatchSource, given: dict[str, Any]) -> TypedInputs:
        graph = source.graph
        edge_type, links = as_typed_links(given["edge_label_index"], graph)
        options = LinkOptions.of(given, links)
        times = read_typed_times(source, given)
        seeds = options.seeds(
            times,
            lambda how, ordered: _draws(how, graph, edge_type, links, times=times, link_times=ordered),
            ends=LinkEnds.of(graph, edge_type),
        )
        source = source if times is None else times.source
        if options.exclusion:
            seeds.exclude(_lookup(source.graph, edge_type), reverse=options.exclusion == "reverse")
        return TypedInputs(
            source=source,
            input_type=edge_type,
            number=options.number,
            seeds=seeds,
            input_id=options.input_id(),
        )

    def __str__(self) -> str:
        return "LinkNeighborLoader()"


def _draws(
    how: NegativeSampling,
    graph: Graph,
    edge_type: EdgeType,
    links: Tensor,
    *,
    times: TypedTimes | None,
    link_times: Tensor | None,
) -> NegativeDraws:
    node_time = {} if times is None else times.node_time
    return NegativeDraws(
        how,
        _relation(graph, edge_type),
        links,
        node_times=(node_time.get(edge_type[0]), node_time.get(edge_type[-1])),
        times=link_times,
        alike=edge_type[0] == edge_type[-1],
    )


def _relation(graph: Graph, edge_type: EdgeType) -> Csc:
    """Return a relation's adjacency; without edges if the graph does not have it."""
    if edge_type in graph.edge_types:
        return graph.relation(edge_type)
    num_src, num_dst = (graph.nodes_of(end).num_nodes for end in (edge_type[0], edge_type[-1]))
    empty = torch.zeros(0, dtype=torch.int64)
    return Csc(torch.zeros(num_dst + 1, dtype=torch.int64), empty, num_src)


def _lookup(graph: Graph, edge_type: EdgeType) -> TypedLinkLookup:
    assert graph.types is not None, "a loader of data with types"
    if edge_type not in graph.edge_types:
        raise ConfigError(
            f"exclude_seed_edges keeps edges of the relation {'__'.join(edge_type)} out, of which the graph "
            "has none: leave it out, or name the relation as the graph does"
        )
    return TypedLinkLookup(graph.types, edge_type)
