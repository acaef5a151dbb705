"""NeighborLoader: a loader with the arguments and batches of PyG's, as a torch DataLoader."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphbraid.graph import Graph
from graphbraid.loader.base import Inputs, PyGLoaderBase
from graphbraid.loader.inputs import as_input_id, as_seeds
from graphbraid.loader.options import OF_LINKS, REFUSED, LoaderOptions, names_without
from graphbraid.loader.times import read_times, seed_times
from graphbraid.sampling.batch_seeds import TreeSeeds
from graphbraid.sampling.source import BatchSource

if TYPE_CHECKING:
    from torch_geometric.data import Data, HeteroData


class NeighborLoader(PyGLoaderBase):
    """A loader of mini-batches of sampled neighbours, prepared ahead by persistent threads.

    ``from graphbraid.loader import NeighborLoader`` replaces PyG's import: it takes the same arguments and
    yields the same kind of batches. It is a ``torch.utils.data.DataLoader``. If PyG is installed, it is also
    an instance of PyG's ``NeighborLoader``, and batches are PyG ``Data``; otherwise they are
    :class:`graphbraid.MiniBatch`. A batch is a pure function of (graph, arguments, ``seed``, epoch, step): it
    has the same bits for any number of threads, in any order and in any process, and :meth:`batches` can
    start an epoch at any step.

    Where there are types, ``num_neighbors`` is a list for all relations or a dict of lists by relation, and
    ``input_nodes`` names the node type of the seeds, or is a pair of it and ids, a mask or the name of a
    split. Batches are ``HeteroData``; in layout ``blocks``, or without PyG,
    :class:`graphbraid.MiniBatch`.

    Args:
        data: a :class:`graphbraid.Graph`, a PyG ``Data`` or a ``HeteroData``, whose dtypes and shapes batches
            keep. Of a graph with types and of ``HeteroData``, batches are ``HeteroData``.
        num_neighbors: fanout per hop, the hop nearest the seeds first; -1 takes all neighbours.
        input_nodes: the seeds: node ids, a bool mask or the name of one of the graph's splits. If None, all
            nodes.
        **options: the other options of :class:`graphbraid.loader.LoaderOptions`, by name, but those of links;
            and those of PyG's and torch's loaders. Of the latter, those about worker processes have no
            effect; those that would change the batches are refused (``docs/sampling.md`` lists them).

    Raises:
        ConfigError: an option is invalid, or is one of PyG's that graphbraid does not support.
        DataError: a split is empty, weights are missing, or an attribute cannot be split into batches.
    """

    pyg_name = "NeighborLoader"
    takes = names_without(*OF_LINKS)
    refused = REFUSED
    inputs_name = "input_nodes"
    is_also_pygs = True

    def __init__(
        self, data: Graph | Data | HeteroData, num_neighbors: Any, input_nodes: Any = None, **options: Any
    ) -> None:
        self._set_up(data, {"num_neighbors": num_neighbors, "input_nodes": input_nodes} | options)
        self.node_sampler = self._batches.config
        """Options of the sampler: ``num_neighbors``, ``replace`` and more."""

    def _inputs(self, source: BatchSource, options: LoaderOptions) -> Inputs:
        graph, seeds = source.graph, as_seeds(options.input_nodes, source.graph)
        nodes, node_type = seeds.ids, seeds.node_type
        input_id = nodes if seeds.is_mask else None
        if options.input_id is not None:
            input_id = as_input_id(options.input_id, len(nodes), "seed")
        times = None if options.time_attr is None else read_times(source, options, self.data)
        if times is None and not options.disjoint:
            return Inputs(
                source=source, number=len(nodes), input_type=node_type, nodes=nodes, input_id=input_id
            )
        whole = nodes + graph.first_id_of(node_type)
        trees = TreeSeeds(whole)
        if times is not None:
            source, shown = times.source, seed_times(options.input_time, "input_time", len(nodes))
            trees = TreeSeeds(
                whole,
                times=times.of_nodes(node_type, nodes)
                if shown is None
                else times.ordered(shown, "input_time"),
                edge_times=times.edge_times,
                shown_times=shown,
            )
        return Inputs(source=source, number=len(nodes), input_type=node_type, seeds=trees, input_id=input_id)
