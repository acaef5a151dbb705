"""ClusterData and ClusterLoader: mini-batches of whole clusters of nodes, with PyG's arguments."""

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
from graphbraid.errors import ConfigError, DataError
from graphbraid.files.checksums import check_zip, seal_zip
from graphbraid.files.writing import atomic_write
from graphbraid.graph import Graph
from graphbraid.graph.identity import check_made_for
from graphbraid.loader.keywords import ClusterKeywords, names_in
from graphbraid.loader.neighbor import Inputs, PyGLoaderBase
from graphbraid.loader.options import LoaderOptions
from graphbraid.loader.sources import is_typed, source_of
from graphbraid.sampling.batch_seeds import BatchSeeds, EdgeTimes
from graphbraid.sampling.config import INDUCED
from graphbraid.sampling.source import BatchSource

if TYPE_CHECKING:
    from torch_geometric.data import Data


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
        strategy: how the graph is divided; see :func:`graphbraid.distributed.partition`.
        seed: of the division.

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

    @property
    def num_inputs(self) -> int:
        """Number of clusters."""
        return len(self._nodes)

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
