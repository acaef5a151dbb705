"""LinkNeighborLoader: a loader of mini-batches around links, with the arguments and batches of PyG's."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.data import Sampler

from graphbraid.collective.run.stages import BatchDevice
from graphbraid.errors import ConfigError
from graphbraid.graph import Graph
from graphbraid.loader.face import NOT_OPTIONS, Inputs, LoaderFace
from graphbraid.loader.link_inputs import as_links
from graphbraid.loader.link_options import LinkOptions
from graphbraid.loader.pyg_options import LINK_REFUSED
from graphbraid.loader.times import Times, read_times
from graphbraid.sampling.config import SamplerConfig
from graphbraid.sampling.links.edge_lookup import EdgeLookup
from graphbraid.sampling.links.link_seeds import OF_LINKS
from graphbraid.sampling.links.negative_draws import NegativeDraws
from graphbraid.sampling.links.negatives import NegativeSampling
from graphbraid.sampling.lists import NeighborLists
from graphbraid.sampling.rows.by_id import FeatureSource
from graphbraid.sampling.source import BatchSource
from graphbraid.sampling.subgraph import BIDIRECTIONAL, as_subgraph_type

if TYPE_CHECKING:
    from torch_geometric.data import Data


class LinkNeighborLoader(LoaderFace):
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

    Args:
        data: a :class:`graphbraid.Graph`, a PyG ``Data`` or a ``HeteroData``, whose dtypes and shapes batches
            keep. Of a graph with types and of ``HeteroData``, batches are ``HeteroData``, which have what is
            said above of links in the store of their relation, that of triplets in those of its two types.
        num_neighbors: fanout per hop, the hop nearest the links first; -1 takes all neighbours. Where there
            are types, for all relations, or by relation in a dict.
        edge_label_index: ``(2, num_links)`` sources and destinations of the links. If None, all edges of the
            graph, in the order of its list. Where there are types, the relation whose edges are the links, or
            a pair of a relation and these ids within its two types.
        edge_label: ``(num_links, ...)`` labels of the links. With negatives of mode ``binary``, labels that
            begin at 0 are raised by 1, as 0 then stands for a negative.
        edge_label_time: ``(num_links,)`` times of the links, given with ``time_attr``.
        replace: whether to draw with replacement.
        disjoint: whether each end of a link gets a tree of its own; ``batch.batch`` then has the position of
            each node's link in the batch. Always so with ``time_attr``.
        subgraph_type: as in :class:`NeighborLoader`; excluded links and what is later than a link stay out.
        temporal_strategy: as in :class:`NeighborLoader`.
        neg_sampling: negatives: ``"binary"``, ``"triplet"``, a dict of options, or a
            :class:`graphbraid.sampling.NegativeSampling` (or PyG's). If None, none are drawn.
        neg_sampling_ratio: number of negatives of mode ``binary`` per link, in place of ``neg_sampling``.
        exclude_seed_edges: whether a batch's links are kept out of the neighbours that are drawn: if True,
            all edges from a link's source to its destination, where there are types those of its relation;
            if ``"reverse"``, also those back, of any relation.
        time_attr: name of the times of the nodes or of the edges of ``data``: a link's trees then have no
            node, or no edge, later than the link, and negatives are nodes up to its time. Where there are
            types, some of them or of the relations may have none: these are early enough.
        weight_attr: as in :class:`NeighborLoader`.
        transform: function called with each batch; its result is yielded instead.
        input_id: ``(num_links,)`` values that batches have as ``input_id``. If None, positions.
        batch_size: number of links per batch.
        shuffle: whether to permute the links anew in each epoch.
        drop_last: whether to leave out a last batch that is not full.
        sampler: iterable of an epoch's positions in the links, in place of ``shuffle``.
        batch_sampler: iterable of lists of such positions, in place of ``batch_size``, ``shuffle`` and
            ``drop_last``.
        generator: generator that the seed is drawn from in place of torch's default one.
        pin_memory: whether to yield batches in page-locked memory, if there is an accelerator.
        layout: ``subgraph`` (PyG's) or ``blocks``; see :class:`graphbraid.SamplerConfig`.
        seed: random seed of the shuffle and of every draw. If None, one is drawn from torch's generator.
        num_workers: number of threads that prepare batches, at least one.
        prefetch_factor: number of batches prepared ahead per thread. If None, three.
        return_edge_id: whether to keep ``e_id``, without which batches have no edge attributes.
        src_degree: whether blocks carry the graph's in-degrees, for layers that normalise by them.
        gather: whether to gather dense features while sampling.
        device: torch device of the batches.
        plan: must be None: plans are made for nodes.
        hot_bytes: as in :class:`NeighborLoader`.
        tiers: as in :class:`NeighborLoader`, but that ``"auto"`` keeps no rows on a device, and is not told
            ``epochs``: the reads of links are not looked ahead.
        topology: as in :class:`NeighborLoader`.
        **others: further options of PyG's and torch's loaders, as in :class:`NeighborLoader`.

    Raises:
        ConfigError: an option is invalid, a link's end is not a node, no negative is left to be drawn, or the
            option is one of PyG's that graphbraid does not support.
        DataError: labels or times do not fit the links, or are not finite.
    """

    pyg_name = "LinkNeighborLoader"
    refused = LINK_REFUSED
    inputs_name = "edge_label_index"

    def __init__(
        self,
        data: Graph | Data,
        num_neighbors: Sequence[int],
        edge_label_index: Tensor | None = None,
        edge_label: Tensor | None = None,
        edge_label_time: Tensor | None = None,
        *,
        replace: bool = False,
        disjoint: bool = False,
        subgraph_type: str = "directional",
        temporal_strategy: str = "uniform",
        neg_sampling: NegativeSampling | dict[str, Any] | str | None = None,
        neg_sampling_ratio: float | None = None,
        exclude_seed_edges: bool | str = False,
        time_attr: str | None = None,
        weight_attr: str | None = None,
        transform: Callable[[Any], Any] | None = None,
        input_id: Tensor | None = None,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        drop_last: bool = False,
        sampler: Sampler[int] | Iterable[int] | None = None,
        batch_sampler: Sampler[list[int]] | Iterable[list[int]] | None = None,
        generator: torch.Generator | None = None,
        pin_memory: bool = False,
        layout: str = "subgraph",
        seed: int | None = None,
        num_workers: int = 0,
        prefetch_factor: int | None = None,
        return_edge_id: bool = True,
        src_degree: bool = False,
        gather: bool = True,
        device: BatchDevice | str = "cpu",
        plan: str | os.PathLike[str] | None = None,
        hot_bytes: int | None = None,
        tiers: FeatureSource | str | None = None,
        topology: NeighborLists | None = None,
        **others: Any,
    ) -> None:
        given = {name: value for name, value in locals().items() if name not in NOT_OPTIONS}
        self._set_up(given, others)
        self.link_sampler: SamplerConfig = self._batches.config
        """Options of the sampler: ``num_neighbors``, ``replace`` and more."""

    def _inputs(self, source: BatchSource, given: dict[str, Any]) -> Inputs:
        graph = source.graph
        links = as_links(given["edge_label_index"], given["data"], graph)
        options = LinkOptions.of(given, links)
        exclusion = options.exclusion
        if exclusion is True and as_subgraph_type(given["subgraph_type"]) == BIDIRECTIONAL:
            raise ConfigError(
                "exclude_seed_edges=True with subgraph_type='bidirectional' would let links back in as "
                "reverses of the edges back: use exclude_seed_edges='reverse'"
            )
        if exclusion and given["topology"] is not None:
            raise ConfigError("exclude_seed_edges looks links up in the graph's lists: leave out topology=")
        times = read_times(source, given)
        seeds = options.seeds(times, lambda how, ordered: _draws(how, graph, links, times, ordered))
        source = source if times is None else times.source
        if exclusion:
            seeds.exclude(EdgeLookup(source.graph.csc), reverse=exclusion == "reverse")
        return Inputs(
            source=source.without(OF_LINKS),
            number=options.number,
            seeds=seeds,
            input_id=options.input_id(),
        )


def _draws(
    how: NegativeSampling, graph: Graph, links: Tensor, times: Times | None, ordered: Tensor | None
) -> NegativeDraws:
    node_time = None if times is None else times.node_time
    return NegativeDraws(how, graph.csc, links, node_times=(node_time, node_time), times=ordered)
