"""LinkNeighborLoader: a loader of mini-batches around links, with the arguments and batches of PyG's."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import torch
from torch import Tensor

from graphbraid.arguments import MOST_AMOUNT, as_number, shown
from graphbraid.errors import ConfigError, DataError, did_you_mean
from graphbraid.graph import EdgeType, Graph
from graphbraid.graph.csc import Csc
from graphbraid.graph.interop.convert import as_tensor
from graphbraid.graph.scans import first_out_of_range
from graphbraid.graph.types import ONLY_EDGE_TYPE
from graphbraid.loader.keywords import LINK_NEIGHBOR_ORDER, LinkNeighborKeywords, names_in
from graphbraid.loader.neighbor import Inputs, PyGLoaderBase
from graphbraid.loader.options import LINK_REFUSED, LoaderOptions
from graphbraid.loader.sources import as_input_id, is_whole
from graphbraid.loader.times import read_times, seed_times
from graphbraid.sampling.config import BIDIRECTIONAL
from graphbraid.sampling.links.link_seeds import OF_LINKS, LinkEnds, LinkSeeds
from graphbraid.sampling.links.negatives import LinkLookup, NegativeDraws, NegativeSampling
from graphbraid.sampling.source import BatchSource

if TYPE_CHECKING:
    from torch_geometric.data import Data, HeteroData

_ENDS = ("source", "destination")
_NEEDED = (
    "edge_label_index must name a relation, or be a pair of a relation and (2, num_links) ids within its two "
    "types, such as (('user', 'rates', 'movie'), links)"
)


class LinkNeighborLoader(PyGLoaderBase):
    """A loader of mini-batches of links and the sampled neighbours of their ends.

    ``from graphbraid.loader import LinkNeighborLoader`` replaces PyG's import. All that
    :class:`NeighborLoader` says of its batches holds here too: a batch, its negatives included, is a pure
    function of (graph, arguments, ``seed``, epoch, step).

    Beside the attributes of sampled nodes and edges, a batch has ``input_id``, the positions of its links,
    and ``edge_label_index``, ``(2, num_pairs)`` int64 local ids of the ends of its links, then of its
    negatives. It has ``edge_label`` if there are labels or negatives (0 for a negative), and
    ``edge_label_time`` if there are times. Negatives of mode ``triplet`` replace the ``edge_label``
    attributes by ``src_index`` and ``dst_pos_index``, ``(batch_size,)``, ``dst_neg_index``, ``(batch_size,)``
    or ``(batch_size, amount)``, and ``seed_time``. ``batch_size`` is the number of links.

    In a graph with types, ``num_neighbors`` is a list for all relations or a dict of lists by relation.
    ``edge_label_index`` is a relation, or a pair of a relation and links. Negatives join the same two node
    types as the relation. Batches are ``HeteroData`` with the attributes of links where PyG has them: in the
    store of the relation, or for triplets in the stores of its two types.

    Args:
        data: a :class:`graphbraid.Graph`, a PyG ``Data`` or a ``HeteroData``, whose dtypes and shapes batches
            keep.
        num_neighbors: fanout per hop, the hop nearest the links first; -1 takes all neighbours. If empty,
            batches have the links' ends alone.
        edge_label_index: ``(2, num_links)`` sources and destinations of the links. If None, all edges of the
            graph, in the order of its list.
        edge_label: ``(num_links, ...)`` labels of the links.
        edge_label_time: ``(num_links,)`` times of the links, given with ``time_attr``.
        *more: other arguments in PyG's order, from ``replace`` on.
        **options: the other options of :class:`graphbraid.loader.LoaderOptions` by name, except
            ``input_nodes``, ``input_time`` and ``epochs``; and those of PyG's and torch's loaders, as in
            :class:`NeighborLoader`. ``plan`` must be None, as plans are made for nodes.

    Raises:
        ConfigError: an option is invalid, a link's end is not a node, no negative is left to be drawn, or the
            option is one of PyG's that graphbraid does not support.
        DataError: labels or times do not fit the links, or are not finite.
    """

    pyg_name = "LinkNeighborLoader"
    takes = names_in(
        LinkNeighborKeywords, "num_neighbors", "edge_label_index", "edge_label", "edge_label_time"
    )
    order = LINK_NEIGHBOR_ORDER
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
        *more: Any,
        **options: Unpack[LinkNeighborKeywords],
    ) -> None:
        named = {
            "num_neighbors": num_neighbors,
            "edge_label_index": edge_label_index,
            "edge_label": edge_label,
            "edge_label_time": edge_label_time,
        }
        self._set_up(data, named | self._by_name(more, options))
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
            "subgraph_type='bidirectional' would bring links back as reverses of other edges although "
            "exclude_seed_edges=True: use exclude_seed_edges='reverse'"
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
            f"exclude_seed_edges excludes edges of the relation {'__'.join(edge_type)}, which the graph "
            "does not have: leave it out, or use the graph's name of the relation"
        )
    return LinkLookup(graph.all_types, edge_type)


def as_links(edge_label_index: Any, data: Any, graph: Graph) -> tuple[EdgeType, Tensor]:
    """Return the relation of the links, and ``(2, num_links)`` int64 ids of their ends within its types.

    Args:
        edge_label_index: links, or None for the edges of the data, in their order. In a graph with types, a
            relation (all its edges, in the order of its list), or a pair of a relation and links or None. A
            relation is three names, or two names if only one relation joins these types. With links, it may
            be a new relation between two types of the graph.
        data: the loader's data.
        graph: the graph.

    Raises:
        ConfigError: there is no such relation or type, links are not such a tensor, or an end is not a node;
            the message names the first.
    """
    if graph.is_typed:
        return _typed_links(edge_label_index, graph)
    if edge_label_index is None:
        edge_label_index = None if isinstance(data, Graph) else data.get("edge_index")
        if edge_label_index is None:
            return ONLY_EDGE_TYPE, graph.to_edge_index(original_order=True)
    is_pair = isinstance(edge_label_index, tuple) and bool(edge_label_index)
    if is_pair and not isinstance(edge_label_index[0], Tensor):
        raise ConfigError(
            "edge_label_index must be a (2, num_links) tensor; pairs of an edge type and links are for "
            "heterogeneous graphs"
        )
    return ONLY_EDGE_TYPE, _checked_links(edge_label_index, (graph.num_nodes, graph.num_nodes))


def _typed_links(edge_label_index: Any, graph: Graph) -> tuple[EdgeType, Tensor]:
    if not isinstance(edge_label_index, tuple | list) or not edge_label_index:
        raise ConfigError(f"{_NEEDED}; got {shown(edge_label_index)}")
    named, links = edge_label_index, None
    if not isinstance(named[0], str):
        if len(named) != 2:
            raise ConfigError(f"{_NEEDED}; got {shown(edge_label_index)}")
        named, links = edge_label_index
    edge_type = _edge_type(named, graph, may_be_new=links is not None)
    if links is None:
        return edge_type, graph.to_edge_indices()[edge_type].contiguous()
    source, destination = graph.nodes_of(edge_type[0]), graph.nodes_of(edge_type[-1])
    return edge_type, _checked_links(links, (source.num_nodes, destination.num_nodes))


def _edge_type(named: Any, graph: Graph, *, may_be_new: bool) -> EdgeType:
    """Return the relation of this name; as in PyG, two names are the one between these types, or ``to``."""
    is_name = isinstance(named, tuple | list) and all(isinstance(part, str) for part in named)
    if not is_name or len(named) not in (2, 3):
        raise ConfigError(f"{_NEEDED}; got a relation {shown(named)}")
    for end in (named[0], named[-1]):
        if end not in graph.node_types:
            raise ConfigError(
                f"edge_label_index names the node type {shown(end)}, and there are "
                f"{', '.join(graph.node_types)}.{did_you_mean(end, graph.node_types)}"
            )
    if len(named) == 2:
        joining = [one for one in graph.edge_types if (one[0], one[-1]) == tuple(named)]
        edge_type = joining[0] if len(joining) == 1 else (named[0], "to", named[1])
    else:
        edge_type = (named[0], named[1], named[2])
    if edge_type not in graph.edge_types and not may_be_new:
        texts = ["__".join(one) for one in graph.edge_types]
        raise ConfigError(
            f"edge_label_index names the relation {'__'.join(named)}, which the graph does not have; it has "
            f"{', '.join(texts)}.{did_you_mean('__'.join(edge_type), texts)}"
        )
    return edge_type


def _checked_links(edge_label_index: Any, counts: tuple[int, int]) -> Tensor:
    """Return ``(2, num_links)`` int64 links between as many sources and destinations as ``counts`` says."""
    try:
        links = as_tensor(edge_label_index, "edge_label_index").cpu()
    except (DataError, TypeError, ValueError) as error:
        raise ConfigError(f"edge_label_index must be a (2, num_links) tensor of node ids; {error}") from error
    if links.ndim != 2 or links.shape[0] != 2 or (links.numel() and not is_whole(links)):
        raise ConfigError(
            f"edge_label_index must be a (2, num_links) tensor of node ids; got {shown(edge_label_index)}"
        )
    links = links.to(torch.int64).contiguous()
    for row, end, count in zip(links, _ENDS, counts, strict=True):
        wrong = first_out_of_range(row, count)
        if wrong >= 0:
            raise ConfigError(
                f"edge_label_index must hold node ids in [0, {count}); the {end} of link {wrong} "
                f"is {int(row[wrong])}"
            )
    return links


def as_negatives(neg_sampling: Any, ratio: Any) -> NegativeSampling | None:
    """Return how negatives are drawn; a ratio asks for pairs and comes first, as in PyG; or ConfigError."""
    if ratio is not None:
        number = as_number(ratio, "neg_sampling_ratio", least=0, most=MOST_AMOUNT)
        if number:
            return NegativeSampling("binary", number)
    return NegativeSampling.of(neg_sampling)


def labels_of(edge_label: Any, num_links: int, how: NegativeSampling | None) -> Tensor | None:
    """Return links' labels, raised by 1 if 0 is that of negatives; DataError unless each has one."""
    if edge_label is None:
        return None
    if how is not None and how.is_triplet:
        raise ConfigError(
            "edge_label does not go with negatives of mode 'triplet': src_index, dst_pos_index and "
            "dst_neg_index of a batch tell links and negatives apart"
        )
    label = as_tensor(edge_label, "edge_label").cpu()
    if not label.ndim or label.shape[0] != num_links:
        raise DataError(
            f"edge_label must have one label for each of the {num_links} links; got shape "
            f"{tuple(label.shape)}"
        )
    if how is None or not label.numel() or not bool(label.min() == 0):
        return label
    if bool((label <= 1).all()):
        warnings.warn(
            "edge_label has the label 0, so labels are raised by 1, as in PyG: 0 and 1 become 1 and 2, and "
            "0 is the label of negatives that the loader draws. If the links with label 0 are negatives "
            "already, as those of RandomLinkSplit are, leave out neg_sampling and neg_sampling_ratio",
            stacklevel=2,
        )
    return label + 1


def as_exclusion(value: Any) -> bool | str:
    """Return ``exclude_seed_edges``; ConfigError unless it is a bool or ``"reverse"``."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, str) and value == "reverse":
        return value
    raise ConfigError(f"exclude_seed_edges must be True, False or 'reverse'; got {shown(value)}")
