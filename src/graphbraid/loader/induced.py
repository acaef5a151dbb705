"""Loaders of subgraphs with all edges between their nodes: clusters, ego networks, and HGT's samples."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from graphbraid.arguments import as_count, as_flag, check_choice, check_type
from graphbraid.datasets.npy import read_npz
from graphbraid.distributed.partitioning.choose import partition
from graphbraid.distributed.partitioning.records import MOST_PARTS, Partition, Strategy
from graphbraid.errors import ConfigError, DataError, needing
from graphbraid.files.checksums import check_zip, seal_zip
from graphbraid.files.writing import atomic_write
from graphbraid.graph import Graph
from graphbraid.graph.csc import indptr_of_rows
from graphbraid.graph.identity import check_made_for
from graphbraid.loader.keywords import HGT_ORDER, ClusterKeywords, HGTKeywords, ShadowKeywords, names_in
from graphbraid.loader.neighbor import Inputs, NeighborLoader, PyGLoaderBase
from graphbraid.loader.options import REFUSED, LoaderOptions
from graphbraid.loader.sources import as_input_id, as_seeds, is_typed, source_of
from graphbraid.sampling.batch_seeds import BatchSeeds, EdgeTimes
from graphbraid.sampling.config import EGO, INDUCED
from graphbraid.sampling.minibatch.mini_batch import MiniBatch
from graphbraid.sampling.source import BatchSource

if TYPE_CHECKING:
    from torch_geometric.data import Batch, Data, HeteroData


class ClusterData(Dataset[Any]):
    """A graph whose nodes are divided into clusters, for :class:`ClusterLoader`.

    After Chiang et al., "Cluster-GCN: An Efficient Algorithm for Training Deep and Large Graph Convolutional
    Networks". ``cluster_data[i]`` is the subgraph of a cluster. PyG's class divides by METIS; this one by
    :func:`graphbraid.distributed.partition`, which uses another strategy if METIS is not installed or fails.

    Args:
        data: a :class:`graphbraid.Graph` or a homogeneous PyG ``Data``.
        num_parts: number of clusters.
        recursive: must be False: the partitioner takes METIS's recursive bisection if the k-way one fails.
        save_dir: folder that keeps the clusters; the next call reads them from there. If None, they are not
            kept.
        filename: name of that file. If None, ``clusters.npz``.
        log: no effect: nothing is printed.
        keep_inter_cluster_edges: must be False: a single cluster lacks the other ends of such edges. Batches
            have the edges between their clusters.
        sparse_format: ``"csr"`` or ``"csc"``, without effect: edges are in the graph's order.
        strategy: strategy of the division; see :func:`graphbraid.distributed.partition`.
        seed: random seed of the division.

    Raises:
        ConfigError: an option is not supported, the data have types, or a cluster would be empty.
        DataError: the kept clusters are damaged, or of another graph.
    """

    partition: Partition
    """Cluster of each node, and the record of the partition."""

    def __init__(  # noqa: PLR0917  (PyG's arguments)
        self,
        data: Graph | Data,
        num_parts: int,
        recursive: bool = False,
        save_dir: str | os.PathLike[str] | None = None,
        filename: str | None = None,
        log: bool = True,
        keep_inter_cluster_edges: bool = False,
        sparse_format: str = "csr",
        *,
        strategy: Strategy = "auto",
        seed: int = 0,
    ) -> None:
        _refuse(
            as_flag(recursive, "recursive"),
            "recursive",
            "the partitioner takes METIS's recursive bisection by itself where the k-way one fails",
        )
        _refuse(
            as_flag(keep_inter_cluster_edges, "keep_inter_cluster_edges"),
            "keep_inter_cluster_edges",
            "a cluster alone has no nodes for edges to others; batches have those between their clusters",
        )
        as_flag(log, "log")
        check_choice(sparse_format, "sparse_format", ("csr", "csc"))
        if is_typed(data):
            raise ConfigError("ClusterData takes graphs of one node type and one relation so far")
        self.data, self.num_parts = data, as_count(num_parts, "num_parts", least=1, most=MOST_PARTS)
        self.recursive, self.keep_inter_cluster_edges, self.sparse_format = False, False, sparse_format
        graph = source_of(data, None).graph
        file = None if save_dir is None else _file(save_dir, filename, self.num_parts)
        kept = None if file is None or not file.exists() else _read(file, graph, self.num_parts)
        if kept is None:
            kept = partition(graph.csc, self.num_parts, strategy=strategy, balance="nodes", seed=seed)
            if file is not None:
                _write(file, kept)
        self.partition = kept
        empty = (kept.sizes() == 0).nonzero()
        if empty.numel():
            raise ConfigError(
                f"num_parts={self.num_parts} leaves cluster {int(empty[0])} without nodes; the graph has "
                f"{graph.num_nodes} nodes: choose fewer clusters"
            )
        self._alone: ClusterLoader | None = None

    def __len__(self) -> int:
        """Return the number of clusters."""
        return self.num_parts

    def __getitem__(self, idx: int) -> Any:
        """Return the subgraph of a cluster, with all edges between its nodes.

        Raises:
            IndexError: there is no such cluster.
        """
        if not 0 <= idx < self.num_parts:
            raise IndexError(f"there are {self.num_parts} clusters; got {idx}")
        if self._alone is None:
            self._alone = ClusterLoader(self, seed=0)
        return self._alone([idx])

    def __repr__(self) -> str:
        return f"ClusterData({self.num_parts})"


class ClusterLoader(PyGLoaderBase):
    """A loader of mini-batches of whole clusters, with all edges between their nodes.

    ``from graphbraid.loader import ClusterData, ClusterLoader`` replaces PyG's import. A batch is PyG's
    ``Data`` of the nodes of some clusters, cluster by cluster, each in the order of the nodes' ids. Beside
    PyG's attributes it has ``n_id``, ``e_id`` and ``input_id``, the numbers of its ``batch_size`` clusters.
    Batches are a pure function of (data, arguments, ``seed``, epoch, step), prepared ahead by threads, and
    :meth:`batches` starts anywhere.

    Args:
        cluster_data: the clusters.
        **options: options of :class:`graphbraid.loader.LoaderOptions` about the order of batches, their
            preparation and their device, in which clusters stand for seeds; and those of torch's loader.

    Raises:
        ConfigError: an option is invalid or not supported.
    """

    pyg_name = "ClusterLoader"
    takes = names_in(ClusterKeywords)
    refused: dict[str, tuple[tuple[Any, ...], str]] = {}  # noqa: RUF012  (declared by the base class)
    inputs_name = "cluster_data"

    def __init__(self, cluster_data: ClusterData, **options: Unpack[ClusterKeywords]) -> None:
        check_type(cluster_data, "cluster_data", ClusterData, "a ClusterData", error=ConfigError)
        self.cluster_data = cluster_data
        # No neighbours are drawn, and all edges are taken.
        self._set_up(cluster_data.data, {**options}, num_neighbors=[0], subgraph_type=INDUCED)
        self._arguments = {"cluster_data": cluster_data, **options, "seed": self.seed}

    def _inputs(self, source: BatchSource, options: LoaderOptions) -> Inputs:
        clusters = self.cluster_data
        part_of = clusters.partition.part_of
        if part_of.numel() != source.graph.num_nodes:
            raise ConfigError(
                f"cluster_data divides {part_of.numel()} nodes, and its data have {source.graph.num_nodes} "
                "now; make another one"
            )
        return Inputs(source=source, number=len(clusters), seeds=_Clusters(clusters.partition))


class _Clusters:
    """Clusters as the seeds of batches: all their nodes."""

    edge_times: EdgeTimes | None = None

    def __init__(self, found: Partition) -> None:
        order = found.part_of.long().argsort(stable=True)
        self._nodes = torch.split(order, found.sizes().tolist())
        self.num_inputs = len(self._nodes)

    def seeds_of(
        self, positions: Tensor, epoch: int, step: int, part: tuple[int, int] | None = None
    ) -> BatchSeeds:
        """Return the nodes of the clusters at ``positions``, which no epoch or step changes."""
        return BatchSeeds(nodes=torch.cat([self._nodes[number] for number in positions.tolist()]))


def _refuse(is_asked_for: bool, name: str, reason: str) -> None:
    if is_asked_for:
        raise ConfigError(f"ClusterData does not support {name}=True: {reason}")


def _file(folder: str | os.PathLike[str], name: str | None, num_parts: int) -> Path:
    check_type(folder, "save_dir", (str, os.PathLike), "a path", error=ConfigError)
    return Path(folder) / f"part_{num_parts}" / (name or "clusters.npz")


def _write(file: Path, found: Partition) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(file) as temporary:
        with temporary.open("wb") as stream:
            np.savez(stream, part_of=found.part_of.numpy(), mark=np.frombuffer(found.mark.encode(), np.uint8))
        seal_zip(temporary)


def _read(file: Path, graph: Graph, num_parts: int) -> Partition:
    arrays = read_npz(file) if check_zip(file) else {}
    if arrays.keys() != {"part_of", "mark"}:
        raise DataError(f"{file} holds no clusters with a checksum. Remove it, or choose another save_dir")
    array, number = arrays["part_of"], graph.num_nodes
    mark = arrays["mark"].tobytes().decode(errors="replace")
    if array.shape != (number,):
        raise DataError(
            f"{file} must hold the cluster of each of {number} nodes; got {array.size}. Remove it, or choose "
            "another save_dir"
        )
    try:
        kept = Partition(
            part_of=torch.from_numpy(array),
            num_parts=num_parts,
            strategy="kept",
            balance="nodes",
            mark=mark,
        )
    except DataError as error:
        raise DataError(f"{file}: {error}") from None
    check_made_for(kept, graph.csc, f"the clusters in {file} were")
    return kept


_MOST_DEPTH = 64
_OF_BATCH = ("batch", "ptr", "num_nodes", "n_id", "e_id", "edge_index", "adj_t", "y")


class ShaDowKHopSampler(NeighborLoader):
    """A loader of small subgraphs, one around each node, for models that are deeper than their subgraphs.

    After Zeng et al., "Decoupling the Depth and Scope of Graph Neural Networks".
    ``from graphbraid.loader import ShaDowKHopSampler`` replaces PyG's import. A subgraph has the nodes that
    are drawn in ``depth`` hops and all edges of the graph between them. Batches are pure, as those of
    :class:`NeighborLoader`, whose threads draw them; the same node may be in several subgraphs.

    A batch is a PyG ``Batch``: nodes are in the order of their subgraphs, the root first. ``batch`` has each
    node's subgraph, ``ptr``, ``(num_roots + 1,)``, the first node of each, and ``root_n_id``,
    ``(num_roots,)``, the local ids of the roots. ``y`` has a row for each root, all other attributes one for
    each node or edge. It also has ``n_id``, ``e_id`` and ``input_id``, as batches of :class:`NeighborLoader`.

    Args:
        data: a :class:`graphbraid.Graph` or a homogeneous PyG ``Data``.
        depth: number of hops of a subgraph.
        num_neighbors: number of neighbours that each node of a hop draws; -1 takes all.
        node_idx: the roots: node ids, a bool mask or the name of one of the graph's splits. If None, all
            nodes.
        replace: whether to draw with replacement.
        **options: options of :class:`NeighborLoader`, such as ``batch_size``, ``shuffle``, ``seed`` and
            ``num_workers``.

    Raises:
        ConfigError: an option is invalid or would change the subgraphs, or the data have types.
        MissingPackageError: torch_geometric is not installed.
    """

    pyg_name = "ShaDowKHopSampler"
    inputs_name = "node_idx"
    subgraph_types = (EGO,)

    def __init__(
        self,
        data: Graph | Data,
        depth: int,
        num_neighbors: int,
        node_idx: Tensor | str | None = None,
        replace: bool = False,
        **options: Unpack[ShadowKeywords],
    ) -> None:
        for name in ("disjoint", "subgraph_type", "directed", "layout", "input_nodes", "gather"):
            if name in options:
                raise ConfigError(
                    f"ShaDowKHopSampler takes no {name}: its batches are ego networks of node_idx with all "
                    "edges between their nodes"
                )
        if is_typed(data):
            raise ConfigError("ShaDowKHopSampler takes graphs of one node type and one relation so far")
        _batch_class()
        depth = as_count(depth, "depth", least=1, most=_MOST_DEPTH)
        fanout = as_count(num_neighbors, "num_neighbors", least=-1, most=(1 << 31) - 1)
        named: dict[str, Any] = {"subgraph_type": EGO, "disjoint": True, "replace": replace, "gather": False}
        try:
            super().__init__(data, [fanout] * depth, node_idx, **{**named, **options})
        except ConfigError as error:
            raise ConfigError(str(error).replace("input_nodes", "node_idx")) from error
        own = {
            "data": data,
            "depth": depth,
            "num_neighbors": fanout,
            "node_idx": node_idx,
            "replace": replace,
        }
        self._arguments = {**own, **options, "seed": self.seed}
        self.depth, self.num_neighbors, self.node_idx = depth, fanout, self.schedule.seeds

    def _to_user_batch(self, batch: MiniBatch) -> Batch:
        given = batch.input_id
        out = _as_batch(batch)
        out["input_id"] = given if self._input_id is None else self._input_id[given]
        if self.pin_memory and torch.accelerator.is_available():
            out = out.pin_memory()
        return out if self._options.transform is None else self._options.transform(out)

    def __str__(self) -> str:
        return "ShaDowKHopSampler()"


def _as_batch(sampled: MiniBatch) -> Batch:
    """Return a mini-batch of ego networks, which are one after another, as PyG's Batch."""
    trees = sampled.batch
    num_roots = sampled.batch_size
    ptr = indptr_of_rows(trees, num_roots)
    out = _batch_class()(batch=trees, ptr=ptr)
    roots = out["root_n_id"] = ptr[:-1].clone()
    names = sampled.lazy_keys()
    for name in ("edge_index", "adj_t"):
        if name in names:
            out[name] = sampled.value(name)
    out["n_id"] = sampled.n_id
    if sampled.e_id is not None:
        out["e_id"] = sampled.e_id
    for name in names:
        if name not in _OF_BATCH:
            out[name] = sampled.value(name)
    if "y" in names:
        y = sampled.y
        out["y"] = y if y is None or "y" in sampled.constants else y[roots]
    return out


def _batch_class() -> Any:
    with needing("ShaDowKHopSampler's batches are PyG's: pip install 'graphbraid[pyg]'"):
        from torch_geometric.data import Batch
    return Batch


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
