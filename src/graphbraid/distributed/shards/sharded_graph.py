"""ShardedGraph: a graph whose ranks each hold the lists and features of their own nodes only."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from graphbraid import native
from graphbraid.datasets.store.on_disk import graph_of_arrays, sums_of, tensors_of
from graphbraid.datasets.store.types import types_of
from graphbraid.distributed.parts.rows import DEGREES, SHARED, JoinedRows, PartRows, SharedManifest
from graphbraid.distributed.parts.saving import SavedPartition
from graphbraid.distributed.ranks.communicator import Communicator
from graphbraid.distributed.ranks.joining import check_alike, current
from graphbraid.distributed.shards.exchange import RowsOfEdges
from graphbraid.distributed.shards.feature_rows import FeatureRows, RowsByType, RowTraffic, num_kept, total
from graphbraid.errors import ConfigError, DataError
from graphbraid.files.writing import format_bytes
from graphbraid.graph import Graph, ScaledFeatures
from graphbraid.graph.csc import Csc, ranges
from graphbraid.graph.identity import keep_mark
from graphbraid.machine.hardware import free_memory_bytes, memory_group
from graphbraid.machine.shared_tensors import machine_name
from graphbraid.sampling.config import part_of as bounds_of_part
from graphbraid.signatures import typed

if TYPE_CHECKING:
    from graphbraid.distributed.shards.pipeline import Iteration

_SHARE_OF_ROWS = 0.75
"""Share of the free memory that mapped feature rows may fill; the rest is for batches and the model."""
_log = logging.getLogger(__name__)


def _nothing(like: Tensor, num_rows: int) -> Tensor:
    """Return rows of NaN, as wide as those of another tensor, in next to no memory."""
    return like.new_full((1, *like.shape[1:]), torch.nan).expand(num_rows, *like.shape[1:])


class TypeShards:
    """The nodes of one type, or of a graph of one: who owns each, and the feature rows of this rank's.

    All ids count within the type.

    Args:
        part_of: ``(num_nodes,)`` int32 part of each node, mapped: pages that nobody asks for are not read.
        rank_of_part: ``(num_parts,)`` int64 rank that has each part.
        own: of each of this rank's parts, ids of its nodes.
        table: their feature rows, in the order of the parts; without tables if the type has none.
        scale: ``(num_nodes,)`` float32 scale of each row of int8; None for features of another dtype.

    Attributes:
        num_nodes: number of nodes of the type.
        owned: ``(num_owned,)`` int64 ids of this rank's nodes, ascending.
        row_bytes: bytes of a feature row as it travels and is kept; 0 without features.
    """

    def __init__(
        self,
        part_of: Tensor,
        rank_of_part: Tensor,
        own: Sequence[Tensor],
        table: JoinedRows,
        scale: Tensor | None,
    ) -> None:
        self._part_of, self._rank_of_part, self.table, self.scale = part_of, rank_of_part, table, scale
        self.num_nodes = part_of.numel()
        self.owned, self._row = torch.cat([*own]).sort()
        # A bit for each node of the type, and the number of own nodes before each word of them.
        marks = np.zeros(-(-self.num_nodes // 64) * 64, dtype=bool)
        marks[self.owned.numpy()] = True
        counts = torch.from_numpy(marks).view(-1, 64).sum(1)
        self._before = counts.cumsum(0) - counts
        self._words = torch.from_numpy(np.packbits(marks, bitorder="little").view(np.int64))
        self.row_bytes = table.new(1).nbytes if table.tables else 0

    def no_rows(self) -> Tensor | ScaledFeatures | None:
        """Return features of all nodes that are NaN, in next to no memory; None if they have none."""
        if not self.table.tables:
            return None
        if self.scale is None:
            return _nothing(self.table.tables[0], self.num_nodes)
        zeros = self.table.new(1).fill_(0).expand(self.num_nodes, -1)
        return ScaledFeatures(values=zeros, scale=_nothing(self.scale, self.num_nodes), trusted=True)

    def owners(self, ids: Tensor) -> Tensor:
        """Return the rank that owns each of ``ids``, ``(num_ids,)`` int64."""
        return self._rank_of_part[self._part_of[ids].long()]

    def own_places(self, ids: Tensor) -> Tensor:
        """Return the place of each id in ``owned``, ``(num_ids,)`` int64; -1 for nodes of other ranks."""
        if (kernels := native.kernels()) is None:
            return torch.searchsorted(self.owned, ids).where(torch.isin(ids, self.owned), -1)
        places = torch.empty_like(ids)
        kernels.own_places(self._words, self._before, ids.contiguous(), places)
        return places

    def own_rows(self, ids: Tensor) -> Tensor:
        """Return ``(num_ids, num_features)`` rows, as stored, of own nodes in any order, also repeated."""
        places = self.own_places(ids)
        return self.table.gather(places if len(self.table.tables) == 1 else self._row[places])

    def in_float32(self, rows: Tensor, ids: Tensor) -> Tensor:
        """Return rows of ``ids`` that are as they are stored, of any rank's nodes, as float32."""
        return rows.float() if self.scale is None else rows.float() * self.scale[ids].unsqueeze(1)


class Shards:
    """The parts that this rank holds, and where the nodes of the others are.

    Attributes:
        ranks: the ranks, by the communicator that the caller's thread uses.
        comm: the ranks, by a communicator of their own: only the thread that draws batches uses it.
        by_type: the nodes of each type and their feature rows; one entry where the graph has no types.
        rows: the feature rows of batches, of this rank's nodes and of others', by node type.
        edges: weights and features of the batches' edges; for lists that are with their nodes.
        owned: ``(num_owned,)`` int64 ids of this rank's nodes in the whole graph, ascending.
        num_edges: number of edges of the whole graph.
        lists: ``"parts"`` or ``"whole"``: whether adjacency lists are with their nodes, or all here.
        first_edge: ``(num_owned,)`` int64 position of each own node's first edge in the whole graph; None
            where lists are whole.
        iteration: the threads that prepare batches, or did last.
    """

    def __init__(
        self,
        ranks: Communicator,
        part_of: Tensor,
        num_parts: int,
        shared: SharedManifest,
        own: list[PartRows],
        *,
        arrays: dict[str, Tensor],
    ) -> None:
        """Join the parts of this rank, and take scales from among the ``arrays`` of all ranks."""
        self.ranks, self.comm = ranks, ranks.twin()
        self.iteration: Iteration | None = None
        self._asks, self._rows_comm = ranks.twin(), ranks.twin()  # ids do not wait behind rows
        self.num_edges, self.lists, self._part_of = shared.graph.num_edges, shared.lists, part_of
        bounds = [bounds_of_part(num_parts, rank, ranks.size) for rank in range(ranks.size)]
        self._rank_of_part = torch.repeat_interleave(torch.tensor([last - first for first, last in bounds]))
        self.owned, order = torch.cat([rows.owned for rows in own]).sort()
        self.first_edge: Tensor | None = None
        if shared.lists == "parts":
            self.first_edge = torch.cat([rows.arrays["first_edge"] for rows in own])[order]
        tables = [[rows.arrays[one] for rows in own if one in rows.arrays] for one in shared.feature_names]
        from_disk = self._exceed_memory(sum(rows.nbytes for of_type in tables for rows in of_type))
        self.by_type = [
            TypeShards(
                of_type,
                self._rank_of_part,
                [rows.by_type[number] for rows in own],
                JoinedRows(tables[number], from_disk=from_disk),
                arrays.pop(f"{shared.feature_names[number]}_scale", None),
            )
            for number, of_type in enumerate(torch.split(part_of, shared.counts))
        ]
        self.keep(0)
        self.edges = RowsOfEdges(self._asks, own, self.num_edges, self.by_type)

    @property
    def only(self) -> TypeShards:
        """The nodes of a graph without types."""
        [only] = self.by_type
        return only

    def keep(self, budget: int | str) -> None:
        """Keep rows of other ranks' nodes from now on; all ranks call it together while no batches come.

        ``budget`` is bytes, or as ``"4GiB"``, or ``"all"``. ConfigError: it holds no row. ResourceError: it
        is not free.
        """
        held = num_kept(budget, self.by_type)
        self.rows: RowsByType = {
            number: FeatureRows(one, self._asks, held[number], self._rows_comm)
            for number, one in enumerate(self.by_type)
            if one.table.tables
        }

    @property
    def traffic(self) -> RowTraffic:
        """Counts of the feature rows read and sent so far, of all types."""
        return total(one.traffic for one in self.rows.values())

    def owners(self, ids: Tensor) -> Tensor:
        """Return the rank that owns each of ``ids`` in the whole graph, ``(num_ids,)`` int64."""
        return self._rank_of_part[self._part_of[ids].long()]

    def _exceed_memory(self, own: int) -> bool:
        """Return whether mapped rows would not stay in memory; all ranks call it together.

        The system would then evict pages of them all the time. It reads 128 KiB for each row that it misses.
        """
        here = [machine_name(), memory_group()]
        beside = [rows for *there, rows in self.ranks.gather([*here, own]) if there == here]
        free = free_memory_bytes()
        if free is None or sum(beside) <= _SHARE_OF_ROWS * free:
            return False
        _log.info(
            "rank %d reads its feature rows (%s) from disk: rows of ranks that share its memory take %s, and "
            "%s are free",
            self.ranks.rank,
            *map(format_bytes, (own, sum(beside), free)),
        )
        return True


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class ShardedGraph(Graph):
    """A graph whose lists and features are divided among ranks, as a :class:`Graph` of all its nodes.

    Labels and splits are those of the whole graph. ``csc`` has the lists of this rank's own nodes, and none
    of the others, unless lists are whole; so have the rows of ``types``. ``x`` has the shape of the features
    and holds no row: it is NaN, as it is for each node type. So is ``edge_attr``, unless lists are whole.
    Mini-batches come by :class:`.pipeline.ShardedPipeline`.
    """

    shards: Shards = field(repr=False)
    """The parts that this rank holds."""
    degrees: dict[str, Any] = field(default_factory=dict, repr=False)
    """``src_degree`` and, if there are self-loops, ``src_loop`` of :class:`.Csc` for all nodes."""

    def __post_init__(self, trusted: bool) -> None:
        """Check nothing: the arrays were checked as those of a graph with fewer edges."""

    @property
    def num_edges(self) -> int:
        """Number of edges of the whole graph."""
        return self.shards.num_edges if self.shards.lists == "parts" else self.csc.num_edges

    @property
    def is_whole(self) -> bool:
        """False: the lists and rows of other ranks are not here."""
        return False

    def positions(self, ids: Tensor, counts: Tensor, stored: Tensor) -> Tensor:
        """Return the positions in the whole graph of edges into own nodes.

        Args:
            ids: ``(num,)`` own nodes.
            counts: ``(num,)`` number of edges of each.
            stored: ``(sum(counts),)`` positions of the edges in ``csc``.
        """
        if self.edge_id is not None:  # of a graph of some edges, such as those that carry messages
            return self.edge_id[stored]
        assert self.shards.first_edge is not None
        ahead = self.shards.first_edge[torch.searchsorted(self.shards.owned, ids)] - self.csc.indptr[ids]
        return stored + ahead.repeat_interleave(counts)

    @classmethod
    @typed
    def open(cls, path: str | os.PathLike[str], comm: Communicator | None = None) -> ShardedGraph:
        """Open this rank's parts in the folder of a partition that was saved with rows; all ranks call it.

        Every file that this rank reads is compared with its checksum.

        Args:
            path: the folder.
            comm: the ranks. If None, those that :func:`graphbraid.distributed.init` joined, or this process
                alone.

        Raises:
            ConfigError: there are more ranks than parts, or ranks open different ones.
            DataError: the folder has no rows, or a file is missing, damaged or of another partition.
        """
        comm = comm or current() or Communicator()
        saved = SavedPartition(path)
        shared, num_parts = saved.shared(), saved.num_parts
        opened = {"partition": saved.identity, "lists": shared.lists}
        check_alike(comm, opened, "open the same parts on all ranks")
        if comm.size > num_parts:
            raise ConfigError(
                f"{saved.folder} has {num_parts} parts, and there are {comm.size} ranks: "
                f"{comm.size - num_parts} would have none. Start at most as many ranks as parts, "
                "or partition again into more"
            )
        part_of = saved.map_part_of()
        first, last = bounds_of_part(num_parts, comm.rank, comm.size)
        own = [
            saved.rows(part, (part_of == part).nonzero().squeeze(1), shared) for part in range(first, last)
        ]
        arrays = {
            name: SHARED.array(saved.folder, entry).load(mapped=True, verify=True)
            for name, entry in shared.graph.arrays.items()
        }
        degrees = {name: arrays.pop(name) for name in DEGREES if name in arrays}
        shards = Shards(comm, part_of, num_parts, shared, own, arrays=arrays)
        if shared.lists == "parts":
            arrays |= _own_lists(own, shared)
        for number, one in enumerate(shared.graph.types.edges if shared.graph.types else ()):
            if (attr := own[0].arrays.get(name := f"edge{number}_attr")) is not None:
                arrays[name] = _nothing(attr, one.num_edges)
        made = _fields_of(shared, arrays, saved.folder)
        nothing = [one.no_rows() for one in shards.by_type]
        if (types := made["types"]) is None:
            [made["x"]] = nothing
        else:
            of_types = zip(types.nodes.items(), nothing, strict=True)
            made["types"] = replace(types, nodes={name: replace(one, x=x) for (name, one), x in of_types})
        if (attr := own[0].arrays.get("edge_attr")) is not None:
            made["edge_attr"] = _nothing(attr, shards.num_edges)
        graph = cls(**made, shards=shards, degrees=degrees, trusted=True)
        for name, values in tensors_of(graph):
            if (found := shared.marks.get(name)) is not None:
                keep_mark(values, found, in_blocks=bool(sums_of(name)))
        return graph


def _fields_of(shared: SharedManifest, arrays: dict[str, Tensor], folder: Path) -> dict[str, Any]:
    """Return fields of the graph of these arrays, without features; DataError if one is missing or unfit."""
    entry, manifest = shared.graph.types, shared.graph
    if entry is None or shared.lists == "whole":
        # Columns of features that are not here would be refused.
        graph = graph_of_arrays(manifest.model_copy(update={"columns": []}), arrays, folder)
        found = {one.name: getattr(graph, one.name) for one in fields(graph) if one.init}
        return found | {"schema": manifest.schema_of_graph}
    try:
        types = types_of(entry, arrays, manifest.num_nodes)
    except KeyError as error:
        raise DataError(f"{folder / SHARED.manifest} describes no {error}; partition again") from error
    rows = types.rows
    csc = Csc(arrays["indptr"], rows.indices, manifest.num_nodes, rows.weight, trusted=True)
    return {"csc": csc, "types": types, "name": manifest.name, "schema": manifest.schema_of_graph}


def _own_lists(own: list[PartRows], shared: SharedManifest) -> dict[str, Tensor]:
    """Return the lists of own nodes by their ids in the whole graph; others' are empty.

    One part's lists stay where they are mapped. Those of several parts are put into one order, in memory.
    """

    def offsets(name: str, num_lists: int, lists_of: Callable[[Tensor], Tensor]) -> Tensor:
        indptr = torch.zeros(num_lists + 1, dtype=torch.int64)
        for rows in own:
            indptr[lists_of(rows.owned) + 1] = rows.arrays[name].diff()
        return torch.cumsum(indptr, 0, out=indptr)

    arrays = {"indptr": offsets("indptr", shared.graph.num_nodes, lambda ids: ids)}
    if shared.graph.types is not None:
        num_rows = sum(shared.counts[one.destination] for one in shared.relations(shared.counts))
        arrays["rows_indptr"] = offsets("rows_indptr", num_rows, lambda ids: shared.rows_of(ids)[0])
    for name in {"indices", "weight"} & own[0].arrays.keys():
        first, *others = parts = [rows.arrays[name] for rows in own]
        arrays[name] = first.new_empty(sum(map(len, parts))) if others else first
        for rows, values in zip(own, parts, strict=True) if others else ():
            arrays[name][ranges(arrays["indptr"][rows.owned], rows.arrays["indptr"].diff())] = values
    return arrays
