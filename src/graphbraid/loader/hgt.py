"""HGTLoader: a loader of mini-batches sampled by node budgets, with the arguments and batches of PyG's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

from graphbraid.errors import ConfigError
from graphbraid.graph import Graph
from graphbraid.loader.keywords import HGT_ORDER, HGTKeywords, names_in
from graphbraid.loader.neighbor import Inputs, PyGLoaderBase
from graphbraid.loader.options import REFUSED, LoaderOptions
from graphbraid.loader.sources import as_input_id, as_seeds
from graphbraid.sampling.source import BatchSource

if TYPE_CHECKING:
    from torch_geometric.data import HeteroData


class HGTLoader(PyGLoaderBase):
    """A loader of densely connected mini-batches with a chosen number of nodes of each type.

    ``from graphbraid.loader import HGTLoader`` replaces PyG's import, and needs no ``torch-sparse``. All that
    :class:`NeighborLoader` says of its batches holds here, too: a batch is a pure function of (graph,
    arguments, ``seed``, epoch, step), prepared ahead by threads.

    Each hop draws nodes of each type without replacement. A node's probability is proportional to the square
    of its budget. Each edge from it to a sampled node adds ``1 / d`` to its budget; that node has ``d``
    in-edges in the edge's relation. A batch has all edges between its nodes. If a node has more than 50
    in-edges in a relation, budgets and edges read 50 drawn ones, as in PyG. The algorithm is HGSampling of Hu
    et al., "Heterogeneous Graph Transformer" (2020). Two things differ from PyG: ``e_id`` of drawn edges
    names these edges, and edges from a seed that is given twice name its first row.

    Args:
        data: a :class:`graphbraid.Graph` with types or a PyG ``HeteroData``, whose dtypes and shapes batches
            keep.
        num_samples: number of nodes drawn per hop, as a list for each type or a dict of lists by type.
        input_nodes: the seeds: a node type, or a pair of it and ids, a mask or the name of a split.
        *more: other arguments in PyG's order, from ``is_sorted`` on.
        **options: options of :class:`graphbraid.loader.LoaderOptions` about the order of batches, their
            preparation and their device; and those of PyG's and torch's loaders.

    Raises:
        ConfigError: an option is invalid or not supported, or the graph has no types.
    """

    pyg_name = "HGTLoader"
    takes = names_in(HGTKeywords, "num_samples", "input_nodes")
    order = HGT_ORDER
    refused = {name: REFUSED[name] for name in ("transform_sampler_output", "custom_cls")}  # noqa: RUF012
    inputs_name = "input_nodes"
    is_also_pygs = True

    def __init__(
        self,
        data: Graph | HeteroData,
        num_samples: Any,
        input_nodes: Any,
        *more: Any,
        **options: Unpack[HGTKeywords],
    ) -> None:
        named = {"num_samples": num_samples, "input_nodes": input_nodes}
        self._set_up(data, named | self._by_name(more, options), num_neighbors=())
        self.node_sampler = self._batches.config
        """Options of the sampler: ``num_samples`` by node type, and more."""

    def _inputs(self, source: BatchSource, options: LoaderOptions) -> Inputs:
        if not source.graph.is_typed:
            raise ConfigError(
                "HGTLoader draws nodes by type, but the data have only one; use NeighborLoader, or HeteroData"
            )
        seeds = as_seeds(options.input_nodes, source.graph)
        given = seeds.ids if seeds.is_mask and options.input_id is None else options.input_id
        return Inputs(
            source=source,
            number=len(seeds.ids),
            input_type=seeds.node_type,
            nodes=seeds.ids,
            input_id=None if given is None else as_input_id(given, len(seeds.ids), "seed"),
        )
