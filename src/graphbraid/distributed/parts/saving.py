"""The folder of a partition: a manifest with checksums, and a folder of arrays for each part."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, TypeAdapter
from torch import Tensor

from graphbraid.arguments import as_count
from graphbraid.datasets.npy import require_memory
from graphbraid.datasets.store.arrays import ArrayEntry, ArrayParts, FolderKind, write_array
from graphbraid.distributed.partitioning.records import PARTITION, Partition
from graphbraid.distributed.parts.report import PartitionReport, picture_of, report_of
from graphbraid.distributed.parts.rows import (
    SHARED,
    Lists,
    PartRows,
    SharedManifest,
    refuse_unfit,
    rows_bytes,
    write_rows,
    write_shared,
)
from graphbraid.distributed.parts.split import Division, Part, list_sums
from graphbraid.errors import DataError
from graphbraid.files.progress import counted, stage
from graphbraid.files.schema import Count, FileModel, checked
from graphbraid.files.writing import (
    IfExists,
    atomic_directory,
    require_absent,
    require_free_space,
    require_place_for_folder,
)
from graphbraid.graph import Graph
from graphbraid.graph.csc import Csc
from graphbraid.graph.identity import topology_mark
from graphbraid.graph.types import num_rows_of
from graphbraid.signatures import typed


class GraphIdentity(BaseModel):
    """Sizes and the mark of all edges and weights."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    num_nodes: Count
    num_edges: Count
    xxh3: str


PART = FolderKind(name="partition", manifest="part.json", again="partition")
"""The folder of each part inside."""


class Manifest(FileModel):
    """The content of ``partition.json``."""

    format: str
    version: int
    graph: GraphIdentity
    options: dict[str, Any]
    report: dict[str, Any]
    part_of: ArrayEntry


class PartManifest(FileModel):
    """The content of ``part.json``."""

    part: Count
    part_of_xxh3: str
    """Checksum of the ``part_of.npy`` that the part was cut by: parts of two partitions are told apart."""
    arrays: dict[str, ArrayEntry]


PICTURE = "partition.svg"
_PART_OF = "part_of"
_IDS = ("owned", "halo", "halo_indptr", "send", "send_indptr")
_EDGES = ("local_edge", "remote_edge")
_SPACE_PER_PART = 1 << 14  # headers and part.json
_NODE_BYTES, _BLOCKS_BYTES = 40, 3 << 25
"""Memory for the parts' lists of nodes and offsets, by node, and for blocks of rows under way."""
_ROW_BYTES = 40
"""Memory for the lists of a part by relation, by node and relation into its type."""


@typed
def save_partition(
    graph: Graph | Csc,
    partition: Partition,
    path: str | os.PathLike[str],
    *,
    options: Mapping[str, Any] | None = None,
    keep_edges: bool = False,
    rows: Lists | None = None,
    if_exists: IfExists = "error",
) -> PartitionReport:
    """Cut a graph into its parts, one at a time, and write them as a folder, atomically.

    Args:
        graph: The graph.
        partition: Its partition.
        path: The folder to make.
        options: What to note of how the partition was made; values that JSON holds.
        keep_edges: Also keep each edge's position in the whole graph (8 bytes per edge).
        rows: Also write what ranks draw mini-batches from, so that they need no graph beside the folder:
            features, labels, splits, and adjacency lists, with weights and features of edges, that lie with
            their nodes (``"parts"``) or whole, for each rank to map (``"whole"``). None writes none.
        if_exists: ``"error"`` raises if the folder exists, ``"replace"`` replaces an earlier partition, and
            ``"keep"`` keeps it.

    Returns:
        The report.

    Raises:
        DataError: The partition is not of this graph; or ``rows`` are asked for of a graph whose features
            are not dense.
        ResourceError: There is no space or no permission, or the folder exists.
    """
    csc, folder = graph.csc if isinstance(graph, Graph) else graph, Path(path)
    if if_exists == "error":
        require_absent(folder)
    size = require_room(graph, partition.num_parts, folder, keep_edges=keep_edges, rows=rows)
    with stage("finding the halos"):
        division = Division(csc, partition)
    report = report_of(partition, division.outlines)
    require_free_space(folder, size + 16 * report.halo_rows, f"storing the partition in {folder}")
    if if_exists == "replace":
        PARTITION.refuse_others(folder)
    with atomic_directory(folder, if_exists=if_exists) as temp:
        whole = write_array(temp / f"{_PART_OF}.npy", ArrayParts.whole(partition.part_of))
        shared: dict[str, Any] = {}
        if rows is not None and isinstance(graph, Graph):
            shared = write_shared(temp, graph, rows, whole["xxh3"])
        for part in counted(range(partition.num_parts), "writing parts", partition.num_parts):
            found = division.part(part, keep_edges=keep_edges)
            _write_part(temp / _name(part), found, whole["xxh3"])
            if shared and isinstance(graph, Graph):
                write_rows(temp / _name(part), graph, partition.owned(part), part, shared)
        (temp / PICTURE).write_text(picture_of(report), encoding="utf-8")
        manifest = {
            **PARTITION.header,
            "graph": {
                "num_nodes": csc.num_dst,
                "num_edges": csc.num_edges,
                "xxh3": topology_mark(csc),
            },
            "options": dict(options or {}),
            "report": asdict(report),
            "part_of": whole,
        }
        PARTITION.write(temp, manifest)
    return report


def require_room(
    graph: Graph | Csc,
    num_parts: int,
    path: str | os.PathLike[str],
    *,
    keep_edges: bool = False,
    rows: Lists | None = None,
) -> int:
    """Check the needs of :func:`save_partition` before a graph is divided; return the bytes without the halo.

    The halo takes 8 bytes of memory and 16 bytes of the disk for each row. DataError: ``rows`` are asked for
    of a graph that parts cannot hold, or it is not whole. ResourceError: there is no room, or no permission.
    """
    if rows is not None:
        if not isinstance(graph, Graph):
            raise DataError("rows= needs the Graph with its features, and not its Csc")
        refuse_unfit(graph)
    if isinstance(graph, Graph):
        graph.check_whole("a partition")
    csc = graph.csc if isinstance(graph, Graph) else graph
    per_edge = csc.indices.element_size() + 8 * keep_edges + 4 * (csc.weight is not None)
    size = per_edge * csc.num_edges + 28 * csc.num_dst + _SPACE_PER_PART * (1 + num_parts)
    if rows is not None and isinstance(graph, Graph):
        size += rows_bytes(graph, num_parts, rows)
    require_place_for_folder(path)
    require_free_space(path, size, f"storing the partition in {path}")
    of_edges = 2 * (per_edge + 8 * (csc.weight is not None)) * csc.num_edges // num_parts
    if rows == "parts" and isinstance(graph, Graph) and graph.types is not None:
        of_edges += _ROW_BYTES * num_rows_of(graph.types) // num_parts
    require_memory(
        _NODE_BYTES * csc.num_dst + of_edges + _BLOCKS_BYTES,
        f"cutting a graph of {csc.num_dst:,} nodes into {num_parts} parts",
        "Divide it into more parts, or on a machine with more",
    )
    return size


class SavedPartition:
    """A partition's folder, opened: its manifest was read and its checksum compared.

    Attributes:
        folder: The folder.
        report: What the partition cuts and exchanges.
        options: What was noted of how it was made.
    """

    @typed
    def __init__(self, path: str | os.PathLike[str], graph: Graph | Csc | None = None) -> None:
        """Open a folder.

        Args:
            path: The folder of :func:`save_partition`.
            graph: The graph that the partition must be of, all of whose edges are read. None does not
                compare, as for a rank that reads nothing but its part.

        Raises:
            DataError: It is no partition, was written by a newer graphbraid, has changed, or is of another
                graph.
        """
        self.folder = Path(path)
        self._manifest = PARTITION.read(self.folder, Manifest)
        self._partition: Partition | None = None
        self.options: dict[str, Any] = self._manifest.options
        self.report = checked(
            TypeAdapter(PartitionReport),
            self._manifest.report,
            lambda text: DataError(f"{self.folder / PARTITION.manifest}: report: {text}; partition again"),
        )
        if graph is not None:
            self.check_sizes(graph)
            if topology_mark(graph.csc if isinstance(graph, Graph) else graph) != self._manifest.graph.xxh3:
                raise DataError(
                    f"{self.folder} was made for another graph: of the same size, but its edges or their "
                    "weights differ. Partition this graph"
                )

    @property
    def num_parts(self) -> int:
        """Number of parts."""
        return self.report.num_parts

    @property
    def identity(self) -> str:
        """Unique mark of this partition, different also for others of the same graph."""
        return f"{self._manifest.graph.xxh3}, {self._manifest.part_of.xxh3}"

    def check_sizes(self, graph: Graph | Csc) -> None:
        """Check that a graph has as many nodes and edges as the one that was divided, reading neither.

        Raises:
            DataError: It has not.
        """
        csc = graph.csc if isinstance(graph, Graph) else graph
        for name, here in (("num_nodes", csc.num_dst), ("num_edges", csc.num_edges)):
            if (made_for := getattr(self._manifest.graph, name)) != here:
                raise DataError(
                    f"{self.folder} was made for another graph: its {name} was {made_for:,}, this graph's is "
                    f"{here:,}. Partition this graph"
                )

    def partition(self) -> Partition:
        """Return the part of each node, which is read once.

        Raises:
            DataError: The file is missing, truncated or has changed.
        """
        if self._partition is None:
            report = self.report
            self._partition = Partition(
                part_of=PARTITION.array(self.folder, self._manifest.part_of).read(),
                num_parts=report.num_parts,
                strategy=report.strategy,
                balance=report.balance,
                attempts=report.attempts,
                mark=self._manifest.graph.xxh3,
            )
        return self._partition

    def part(self, part: int) -> Part:
        """Read one part.

        Raises:
            ConfigError: There is no such part.
            DataError: A file of it is missing, truncated, has changed, or is of another partition; or its
                lists of nodes do not agree with the part of each node.
        """
        as_count(part, "part", most=self.num_parts - 1)
        folder = self.folder / _name(part)
        manifest = PART.read(folder, PartManifest)
        if manifest.part != part or manifest.part_of_xxh3 != self._manifest.part_of.xxh3:
            raise DataError(f"{folder} is part {manifest.part} of another partition; partition again")
        arrays = {name: PART.array(folder, entry).read() for name, entry in manifest.arrays.items()}
        try:
            found = _part_of_arrays(part, self.num_parts, arrays)
            found.check_lists(self.partition())
        except KeyError as error:
            raise DataError(f"{folder / PART.manifest} describes no {error}; partition again") from error
        except DataError as error:
            raise DataError(f"{folder} does not hold a valid part: {error}; partition again") from error
        return found

    def shared(self) -> SharedManifest:
        """Return the description of the data that all ranks read.

        Raises:
            DataError: the folder was made without rows, or is damaged.
        """
        if not SHARED.is_at(self.folder):
            raise DataError(
                f"{self.folder} holds no rows of nodes, from which mini-batches are drawn; partition again "
                'with save_partition(rows="parts") (graphbraid partition --rows parts)'
            )
        found = SHARED.read(self.folder, SharedManifest)
        if found.part_of_xxh3 != self._manifest.part_of.xxh3:
            raise DataError(f"{self.folder / SHARED.manifest} is of another partition; partition again")
        return found

    def map_part_of(self) -> Tensor:
        """Map the part of each node, ``(num_nodes,)`` int32, after its checksum was compared."""
        return PARTITION.array(self.folder, self._manifest.part_of).load(mapped=True, verify=True)

    def rows(self, part: int, owned: Tensor, shared: SharedManifest) -> PartRows:
        """Map the lists and features of the nodes ``owned`` by a part.

        Raises:
            DataError: as :meth:`.rows.PartRows.open`.
        """
        return PartRows.open(self.folder / _name(part), part, owned, self._manifest.part_of.xxh3, shared)

    def check(self) -> None:
        """Read and check all parts, and check that each sends what the others have in their halos.

        Raises:
            DataError: A part is damaged, or two of them do not fit each other.
        """
        sent, received = [], []
        for part in counted(map(self.part, range(self.num_parts)), "checking parts", self.num_parts):
            sent.append(list_sums(part.owned[part.send], part.send_indptr.diff().tolist()))
            received.append(list_sums(part.halo, part.halo_indptr.diff().tolist()))
        differ = (torch.stack(sent) != torch.stack(received).t()).nonzero().tolist()
        self.refuse_unmirrored(differ)

    def refuse_unmirrored(self, pairs: Sequence[Sequence[int]]) -> None:
        """Refuse the partition if there is a pair of parts (sender, receiver) that expect different nodes.

        Raises:
            DataError: there is such a pair.
        """
        if pairs:
            sender, receiver = pairs[0]
            raise DataError(
                f"the parts in {self.folder} do not fit each other: part {sender} sends other nodes than "
                f"part {receiver} has from it in its halo; partition again"
            )


@typed
def _write_part(folder: Path, part: Part, part_of_xxh3: str) -> None:
    folder.mkdir()
    arrays = {
        name: write_array(folder / f"{name}.npy", ArrayParts.whole(values)) for name, values in _arrays(part)
    }
    manifest = {"part": part.part, "part_of_xxh3": part_of_xxh3, "arrays": arrays}
    PART.write(folder, manifest)


def _arrays(part: Part) -> Iterator[tuple[str, Tensor]]:
    for name in (*_IDS, *_EDGES):
        values: Tensor | None = getattr(part, name)
        if values is not None:
            yield name, values
    for name in ("local", "remote"):
        csc: Csc = getattr(part, name)
        yield f"{name}_indptr", csc.indptr
        yield f"{name}_indices", csc.indices
        if csc.weight is not None:
            yield f"{name}_weight", csc.weight


def _part_of_arrays(part: int, num_parts: int, arrays: Mapping[str, Tensor]) -> Part:
    ids = {name: arrays[name] for name in _IDS}

    def csc(name: str, num_src: int) -> Csc:
        weight = arrays.get(f"{name}_weight")
        return Csc(arrays[f"{name}_indptr"], arrays[f"{name}_indices"], num_src, weight)

    return Part(
        part=part,
        num_parts=num_parts,
        local=csc("local", ids["owned"].numel()),
        remote=csc("remote", ids["halo"].numel()),
        **ids,
        local_edge=arrays.get("local_edge"),
        remote_edge=arrays.get("remote_edge"),
    )


def _name(part: int) -> str:
    return f"part-{part:05}"
