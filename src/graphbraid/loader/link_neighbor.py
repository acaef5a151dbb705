"""LinkNeighborLoader: a loader of mini-batches around links, with the arguments and batches of PyG's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from graphbraid.errors import ConfigError
from graphbraid.graph import EdgeType, Graph
from graphbraid.graph.csc import Csc
from graphbraid.loader.base import Inputs, PyGLoaderBase
from graphbraid.loader.inputs import as_exclusion, as_input_id, as_links, as_negatives, labels_of
from graphbraid.loader.options import LINK_REFUSED, OF_NODES, LoaderOptions, names_without
from graphbraid.loader.times import read_times, seed_times
from graphbraid.sampling.config import BIDIRECTIONAL
from graphbraid.sampling.links.edge_lookup import LinkLookup
from graphbraid.sampling.links.link_seeds import OF_LINKS, LinkEnds, LinkSeeds
from graphbraid.sampling.links.negatives import NegativeDraws
from graphbraid.sampling.source import BatchSource

if TYPE_CHECKING:
    from torch_geometric.data import Data, HeteroData


class LinkNeighborLoader(PyGLoaderBase):
    """A loader of mini-batches of links and the sampled neighbours of their ends.

    ``from graphbraid.loader import LinkNeighborLoader`` replaces PyG's import. All that
    :class:`NeighborLoader` says of its batches holds here too: a batch, its negatives included, is a pure
    function of (graph, arguments, ``seed``, epoch, step).

    A batch has ``input_id``, the positions of its links, and beside the attributes of sampled nodes and
    edges ``edge_label_index``, ``(2, num_pairs)`` int64 local ids of the links' ends, those of negatives
    after those of the links; ``edge_label`` if there are labels or negatives (0 for a negative), and
    ``edge_label_time`` if there are times. With negatives of mode ``triplet`` it has in their place
    ``src_index`` and ``dst_pos_index``, ``(batch_size,)``, ``dst_neg_index``, ``(batch_size,)`` or
    ``(batch_size, amount)``, and ``seed_time``. ``batch_size`` is the number of its links.

    Where there are types, ``num_neighbors`` is a list for all relations or a dict of lists by relation, and
    ``edge_label_index`` names a relation, or is a pair of it and links. Sources of negatives are nodes of the
    type of the relation's sources, destinations of that of its destinations. Batches are ``HeteroData``,
    which have the attributes of links where PyG has them: in the store of their relation, of triplets in
    those of its two types.

    Args:
        data: a :class:`graphbraid.Graph`, a PyG ``Data`` or a ``HeteroData``, whose dtypes and shapes batches
            keep.
        num_neighbors: fanout per hop, the hop nearest the links first; -1 takes all neighbours.
        edge_label_index: ``(2, num_links)`` sources and destinations of the links. If None, all edges of the
            graph, in the order of its list.
        edge_label: ``(num_links, ...)`` labels of the links.
        edge_label_time: ``(num_links,)`` times of the links, given with ``time_attr``.
        **options: the other options of :class:`graphbraid.loader.LoaderOptions`, by name, but
            ``input_nodes``, ``input_time`` and ``epochs``; and those of PyG's and torch's loaders, as in
            :class:`NeighborLoader`. ``plan`` must be None, as plans are made for nodes.

    Raises:
        ConfigError: an option is invalid, a link's end is not a node, no negative is left to be drawn, or the
            option is one of PyG's that graphbraid does not support.
        DataError: labels or times do not fit the links, or are not finite.
    """

    pyg_name = "LinkNeighborLoader"
    takes = names_without(*OF_NODES)
    refused = LINK_REFUSED
    inputs_name = "edge_label_index"
    is_also_pygs = True

    def __init__(
        self,
        data: Graph | Data | HeteroData,
        num_neighbors: Any,
        edge_label_index: Any = None,
        edge_label: Tensor | None = None,
        edge_label_time: Tensor | None = None,
        **options: Any,
    ) -> None:
        named = {
            "num_neighbors": num_neighbors,
            "edge_label_index": edge_label_index,
            "edge_label": edge_label,
            "edge_label_time": edge_label_time,
        }
        self._set_up(data, named | options)
        self.link_sampler = self._batches.config
        """Options of the sampler: ``num_neighbors``, ``replace`` and more."""

    def _inputs(self, source: BatchSource, options: LoaderOptions) -> Inputs:
        graph = source.graph
        edge_type, links = as_links(options.edge_label_index, self.data, graph)
        number = int(links.shape[1])
        negatives = as_negatives(options.neg_sampling, options.neg_sampling_ratio)
        label = labels_of(options.edge_label, number, negatives)
        if (options.edge_label_time is None) != (options.time_attr is None):
            raise ConfigError(
                "edge_label_time and time_attr go together: 'edge_label_time' is "
                f"{'not set' if options.edge_label_time is None else 'set'}"
            )
        exclusion = _exclusion(options)
        times = None if options.time_attr is None else read_times(source, options, self.data)
        shown = seed_times(options.edge_label_time, "edge_label_time", number)
        ordered = None if times is None or shown is None else times.ordered(shown, "edge_label_time")
        draws = None
        if negatives is not None:
            node_time = {} if times is None else times.node_time
            draws = NegativeDraws(
                negatives,
                _relation(graph, edge_type),
                links,
                node_times=(node_time.get(edge_type[0]), node_time.get(edge_type[-1])),
                times=ordered,
                alike=edge_type[0] == edge_type[-1],
            )
        seeds = LinkSeeds(
            links,
            seed=options.drawn_seed,
            label=label,
            times=ordered,
            shown_times=shown,
            negatives=draws,
            disjoint=options.disjoint or times is not None,
            edge_times=None if times is None else times.edge_times,
            ends=LinkEnds.of(graph, edge_type),
        )
        source = source if times is None else times.source
        if exclusion:
            seeds.exclude(_lookup(source.graph, edge_type), reverse=exclusion == "reverse")
        given = options.input_id
        return Inputs(
            source=source.without(OF_LINKS),
            number=number,
            input_type=edge_type,
            seeds=seeds,
            input_id=None if given is None else as_input_id(given, number, "link"),
        )


def _exclusion(options: LoaderOptions) -> bool | str:
    exclusion = as_exclusion(options.exclude_seed_edges)
    if exclusion is True and options.subgraph_type == BIDIRECTIONAL:
        raise ConfigError(
            "exclude_seed_edges=True with subgraph_type='bidirectional' would let links back in as "
            "reverses of the edges back: use exclude_seed_edges='reverse'"
        )
    if exclusion and options.topology is not None:
        raise ConfigError("exclude_seed_edges looks links up in the graph's lists: leave out topology=")
    return exclusion


def _relation(graph: Graph, edge_type: EdgeType) -> Csc:
    """Return a relation's adjacency; without edges if the graph does not have it."""
    if edge_type in graph.edge_types:
        return graph.relation(edge_type)
    num_src, num_dst = (graph.nodes_of(end).num_nodes for end in (edge_type[0], edge_type[-1]))
    empty = torch.zeros(0, dtype=torch.int64)
    return Csc(torch.zeros(num_dst + 1, dtype=torch.int64), empty, num_src)


def _lookup(graph: Graph, edge_type: EdgeType) -> LinkLookup:
    if edge_type not in graph.edge_types:
        raise ConfigError(
            f"exclude_seed_edges keeps edges of the relation {'__'.join(edge_type)} out, which the graph "
            "does not have: leave it out, or name the relation as the graph does"
        )
    return LinkLookup(graph.all_types, edge_type)
