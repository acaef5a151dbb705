"""NeighborLoader: a loader with the arguments and batches of PyG's, as a torch DataLoader."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.data import Sampler

from graphbraid.arguments import as_flag
from graphbraid.collective.plan.plan import Plan
from graphbraid.collective.run.stages import BatchDevice
from graphbraid.graph import Graph
from graphbraid.loader.face import NOT_OPTIONS, Inputs, LoaderFace
from graphbraid.loader.inputs import as_seeds
from graphbraid.loader.presenting import told_ids
from graphbraid.loader.pyg_options import REFUSED
from graphbraid.loader.times import read_times, seed_times
from graphbraid.sampling.batch_seeds import TreeSeeds
from graphbraid.sampling.config import SamplerConfig
from graphbraid.sampling.lists import NeighborLists
from graphbraid.sampling.rows.by_id import FeatureSource
from graphbraid.sampling.source import BatchSource

if TYPE_CHECKING:
    from torch_geometric.data import Data


class NeighborLoader(LoaderFace):
    """A loader of mini-batches of sampled neighbours, prepared ahead by persistent threads.

    ``from graphbraid.loader import NeighborLoader`` replaces PyG's import: it takes the same arguments and
    yields the same kind of batches. It is a ``torch.utils.data.DataLoader``. If PyG is installed, it is also
    an instance of PyG's ``NeighborLoader``, and batches are PyG ``Data``; otherwise they are
    :class:`graphbraid.MiniBatch`. A batch is a pure function of (graph, arguments, ``seed``, epoch, step): it
    has the same bits for any number of threads, in any order and in any process, and :meth:`batches` can
    start an epoch at any step.

    Args:
        data: a :class:`graphbraid.Graph`, a PyG ``Data`` or a ``HeteroData``, whose dtypes and shapes batches
            keep. Of a graph with types and of ``HeteroData``, batches are ``HeteroData``.
        num_neighbors: fanout per hop, the hop nearest the seeds first; -1 takes all neighbours. Where there
            are types, for all relations, or by relation in a dict.
        input_nodes: the seeds: node ids, a bool mask or the name of one of the graph's splits. If None, all
            nodes. Where there are types, the type of the seeds, or a pair of it and one of these.
        input_time: ``(num_seeds,)`` times of the seeds, for ``time_attr``. If None, those of the nodes.
        replace: whether to draw with replacement.
        disjoint: whether each seed gets a tree of its own, which shares no node with another's;
            ``batch.batch`` then has the position of each node's seed. Always so with ``time_attr``.
        subgraph_type: the edges of a batch: ``directional``, those drawn; ``bidirectional``, these and their
            reverses, each pair of nodes once; or ``induced``, all edges between the batch's nodes. With the
            latter two, batches have no ``num_sampled_nodes``, ``num_sampled_edges`` and ``blocks``.
        temporal_strategy: which of the neighbours up to a seed's time are drawn: ``uniform``, any of them, or
            ``last``, the latest.
        time_attr: name of the times of the nodes or of the edges of ``data``: a seed's tree then has no
            node, or no edge, later than the seed. If None, times play no part.
        weight_attr: name of the edge weights to draw by: one of PyG's edge attributes, or ``"edge_weight"``
            for the weights of a Graph. If None, all neighbours are equally likely.
        transform: function called with each batch; its result is yielded instead.
        input_id: ``(num_seeds,)`` values that batches have as ``input_id``. If None, positions in
            ``input_nodes``.
        batch_size: number of seeds per batch.
        shuffle: whether to permute the seeds anew in each epoch.
        drop_last: whether to leave out a last batch that is not full.
        sampler: iterable of an epoch's positions in ``input_nodes``, in place of ``shuffle``, such as PyG's
            ``ImbalancedSampler``.
        batch_sampler: iterable of lists of such positions, in place of ``batch_size``, ``shuffle`` and
            ``drop_last``.
        generator: generator that the seed is drawn from in place of torch's default one.
        pin_memory: whether to yield batches in page-locked memory, if there is an accelerator.
        layout: ``subgraph`` (PyG's) or ``blocks``; see :class:`graphbraid.SamplerConfig`.
        seed: random seed of the shuffle and of every draw. If None, one is drawn from torch's generator when
            the loader is made, so that ``torch.manual_seed`` governs it and two loaders differ; see
            ``loader.seed``.
        num_workers: number of threads that prepare batches, at least one (0, PyG's default, means one here).
        prefetch_factor: number of batches prepared ahead per thread. If None, three. On the host, threads
            that are so far ahead rest until a third of these batches is left, freeing cores for the model.
        return_edge_id: whether to keep ``e_id``, without which batches have no edge attributes.
        src_degree: whether blocks carry the graph's in-degrees, for layers that normalise by them.
        gather: whether to gather dense features while sampling. If False, they are gathered at the first use
            of ``batch.x``.
        device: device of the batches: a torch device, or an accelerator whose operators are registered
            (:mod:`graphbraid.collective`).
        plan: which side prepares each batch. ``"auto"`` measures the stages at the first iteration, finds a
            plan and changes it when durations drift; ``"cpu"`` and ``"gpu"`` let one side prepare all
            batches; a :class:`graphbraid.collective.Plan` or the path of a saved one is followed. If None,
            the CPU prepares all batches without a plan. Batches do not depend on it.
        hot_bytes: bytes of device memory for graph, labels and features if the device prepares batches; what
            does not fit stays on the host and is read over the link. If None, half of the free memory.
        tiers: source of the feature rows, such as :class:`graphbraid.features.TieredFeatures` of this graph;
            they are gathered from there ahead of their use, to the same bits; those that are hot stay on
            ``device``, and copies leave them out, by plan ``"cpu"`` if none is given. ``"auto"`` makes them
            of a store's features from the free memory, unless all of them fit, and of rows on ``device`` in
            ``hot_bytes``; ``tiers_reason`` says why. If None, from ``data``.
        epochs: epochs that will be iterated, for ``tiers="auto"``, which then looks as far ahead as 2 % of
            the least time that they can take allows: that in which this loader's threads sample the batches.
            A model makes it longer; for how long, one may tell ``TieredFeatures.build(run_seconds=)``. If
            None, nothing is looked ahead.
        topology: source of the adjacency lists, such as :class:`graphbraid.features.TieredTopology` of this
            graph. If None, ``data``.
        **others: further options of PyG's and torch's loaders. Those about worker processes have no effect;
            those that would change the batches are refused (``docs/sampling.md`` lists them).

    Raises:
        ConfigError: an option is invalid, or is one of PyG's that graphbraid does not support.
        DataError: a split is empty, weights are missing, or an attribute cannot be split into batches.
    """

    pyg_name = "NeighborLoader"
    refused = REFUSED
    inputs_name = "input_nodes"

    def __init__(
        self,
        data: Graph | Data,
        num_neighbors: Sequence[int],
        input_nodes: Tensor | Sequence[int] | str | None = None,
        *,
        input_time: Tensor | None = None,
        replace: bool = False,
        disjoint: bool = False,
        subgraph_type: str = "directional",
        temporal_strategy: str = "uniform",
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
        plan: Plan | str | os.PathLike[str] | None = None,
        hot_bytes: int | None = None,
        tiers: FeatureSource | str | None = None,
        epochs: int | None = None,
        topology: NeighborLists | None = None,
        **others: Any,
    ) -> None:
        given = {name: value for name, value in locals().items() if name not in NOT_OPTIONS}
        self._set_up(given, others)
        self.node_sampler: SamplerConfig = self._batches.config
        """Options of the sampler: ``num_neighbors``, ``replace`` and more."""

    def _inputs(self, source: BatchSource, given: dict[str, Any]) -> Inputs:
        nodes = as_seeds(given["input_nodes"], source.graph)
        input_id = told_ids(given["input_nodes"], given["input_id"], nodes)
        times = read_times(source, given)
        if times is None and not as_flag(given["disjoint"], "disjoint"):
            return Inputs(source=source, number=len(nodes), nodes=nodes, input_id=input_id)
        if times is None:
            return Inputs(source=source, number=len(nodes), seeds=TreeSeeds(nodes), input_id=input_id)
        shown = seed_times(given["input_time"], "input_time", len(nodes))
        seeds = TreeSeeds(
            nodes,
            times=times.of_nodes(nodes) if shown is None else times.ordered(shown, "input_time"),
            edge_times=times.edge_times,
            shown_times=shown,
        )
        return Inputs(source=times.source, number=len(nodes), seeds=seeds, input_id=input_id)
