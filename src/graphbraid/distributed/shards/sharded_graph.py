"""ShardedGraph: a graph whose ranks each hold the lists and features of their own nodes only."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from graphbraid import native
from graphbraid.datasets.store.on_disk import graph_of_arrays, sums_of
from graphbraid.datasets.store.types import types_of
from graphbraid.distributed.parts.rows import DEGREES, SHARED, PartRows, SharedManifest
from graphbraid.distributed.parts.saving import SavedPartition
from graphbraid.distributed.ranks.communicator import Communicator
from graphbraid.distributed.ranks.joining import check_alike, current
from graphbraid.distributed.ranks.transport import Alone
from graphbraid.distributed.shards.exchange import EdgeRowExchange
from graphbraid.distributed.shards.feature_rows import FeatureRows, RowsByType, RowTraffic, divided, total
from graphbraid.errors import ConfigError, DataError
from graphbraid.features.rows.disk import DiskRows
from graphbraid.files.writing import format_bytes
from graphbraid.graph import Graph, ScaledFeatures
from graphbraid.graph.csc import Csc, ranges
from graphbraid.graph.identity import keep_mark
from graphbraid.machine.hardware import free_memory_bytes, memory_group
from graphbraid.machine.shared_tensors import machine_name
from graphbraid.ops.gather import gather_rows
from graphbraid.sampling.config import part_of as bounds_of_part
from graphbraid.signatures import typed

if TYPE_CHECKING:
    from graphbraid.distributed.shards.pipeline import Iteration

_SHARE_OF_ROWS = 0.75
"""Share of the free memory that mapped feature rows may fill; the rest is for batches and the model."""
_MOST_SLOTS = (1 << 31) - 1
_log = logging.getLogger(__name__)


def _nothing(like: Tensor, num_rows: int) -> Tensor:
    """Return rows of NaN, as wide as those of another tensor, in next to no memory."""
    return like.new_full((1, *like.shape[1:]), torch.nan).expand(num_rows, *like.shape[1:])


class _Places:
    """Places of a rank's own nodes among these, in a quarter byte for each node of the type.

    Args:
        owned: ``(num_owned,)`` int64 ids of the nodes, ascending.
        num_nodes: number of all nodes.
    """

    def __init__(self, owned: Tensor, num_nodes: int) -> None:
        marks = np.zeros(-(-num_nodes // 64) * 64, dtype=bool)
        marks[owned.numpy()] = True
        counts = torch.from_numpy(marks).view(-1, 64).sum(1)
        self._owned, self._before = owned, counts.cumsum(0) - counts
        self._words = torch.from_numpy(np.packbits(marks, bitorder="little").view(np.int64))

    def __call__(self, ids: Tensor) -> Tensor:
        """Return the place of each id, ``(num_ids,)`` int64; -1 for nodes of other ranks."""
        if (kernels := native.kernels()) is None:
            places = torch.searchsorted(self._owned, ids)
            return places.where(F.pad(self._owned, (0, 1), value=-1)[places] == ids, -1)
        places = torch.empty_like(ids)
        kernels.own_places(self._words, self._before, ids.contiguous(), places)
        return places


class TypeShards:
    """The nodes of one type, or of a graph of one: who owns each, and the feature rows of this rank's.

    All ids count within the type.

    Attributes:
        num_nodes: number of nodes of the type.
        owned: ``(num_owned,)`` int64 ids of this rank's nodes, ascending.
        own_places: gives the place of each of some ids in ``owned``; -1 for other ranks' nodes.
        has_rows: whether the nodes have features.
        row_bytes: bytes of a feature row as it travels and is kept.
        scale: ``(num_nodes,)`` float32 scale of each row of int8; None for features of another dtype.
    """

    def __init__(
        self,
        part_of: Tensor,
        rank_of_part: Tensor,
        own: list[tuple[Tensor, Tensor | None]],
        scale: Tensor | None,
        *,
        from_disk: bool,
    ) -> None:
        """Join the parts of this rank.

        Args:
            part_of: ``(num_nodes,)`` int32 part of each node, mapped.
            rank_of_part: ``(num_parts,)`` int64 rank that has each part.
            own: of each of this rank's parts, ids of its nodes and their rows.
            scale: as above.
            from_disk: whether rows are read past the page cache.
        """
        self._part_of, self._rank_of_part = part_of, rank_of_part  # pages that nobody asks for are not read
        self.num_nodes, self.scale = part_of.numel(), scale
        self.owned, self._row = torch.cat([ids for ids, _ in own]).sort()
        self.own_places = _Places(self.owned, self.num_nodes)
        self._tables = [rows for _, rows in own if rows is not None]
        self._on_disk = [DiskRows.behind(one) if from_disk and one.nbytes else None for one in self._tables]
        self.has_rows = bool(self._tables)
        self.row_bytes = self.new_rows(1).nbytes if self.has_rows else 0

    def no_rows(self) -> Tensor | ScaledFeatures | None:
        """Return features of all nodes that are NaN, in next to no memory; None if they have none."""
        if not self.has_rows:
            return None
        if self.scale is None:
            return _nothing(self._tables[0], self.num_nodes)
        zeros = self.new_rows(1).fill_(0).expand(self.num_nodes, -1)
        return ScaledFeatures(values=zeros, scale=_nothing(self.scale, self.num_nodes), trusted=True)

    def new_rows(self, count: int) -> Tensor:
        """Return room for rows, ``(count, num_features)`` in the dtype in which they are stored."""
        return self._tables[0].new_empty(count, self._tables[0].shape[1])

    def owners(self, ids: Tensor) -> Tensor:
        """Return the rank that owns each of ``ids``, ``(num_ids,)`` int64."""
        return self._rank_of_part[self._part_of[ids].long()]

    def own_source(self, ids: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        """Return a table with the feature rows of own nodes among ``ids``, and which row each has.

        Args:
            ids: ``(num_ids,)`` int64 ids.
            places: ``(num_ids,)`` by ``own_places``.

        Returns:
            ``(num_rows, num_features)`` as stored, and ``(num_ids,)`` int32 rows; -1 for other ranks' nodes.
        """
        first = self._tables[0]
        if len(self._tables) == 1 and self._on_disk[0] is None and len(first) <= _MOST_SLOTS:
            return first, places.int()
        own = (places >= 0).nonzero().squeeze(1)
        rows = torch.full_like(places, -1, dtype=torch.int32)
        rows[own] = torch.arange(len(own), dtype=torch.int32)
        return self.own_rows(ids[own]), rows

    def own_rows(self, ids: Tensor) -> Tensor:
        """Return the feature rows of own nodes as they are stored, ``(num_ids, num_features)``.

        Args:
            ids: ``(num_ids,)`` int64 ids, in any order, possibly repeated. All must be owned by this rank.
        """
        places = self.own_places(ids)
        if len(self._tables) == 1:
            return self._read(0, places)
        rows, first = self._row[places], 0
        out = self.new_rows(ids.numel())
        for number, table in enumerate(self._tables):
            here = ((rows >= first) & (rows < first + table.shape[0])).nonzero().squeeze(1)
            out[here] = self._read(number, rows[here] - first)
            first += table.shape[0]
        return out

    def in_float32(self, rows: Tensor, ids: Tensor) -> Tensor:
        """Return rows of ``ids`` that are as they are stored, of any rank's nodes, as float32."""
        return rows.float() if self.scale is None else rows.float() * self.scale[ids].unsqueeze(1)

    def _read(self, number: int, places: Tensor) -> Tensor:
        """Return rows of one part, by their places in its table."""
        if (disk := self._on_disk[number]) is not None:
            return disk.gather(places)
        return gather_rows(self._tables[number], places, trusted=True)


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
        has_edge_ids: whether edge ids differ from the positions of the edges. Such ids are not held here.
        src_degree: ``(num_nodes,)`` float32 in-degrees that layers normalise by; None where lists are whole.
        src_loop: ``(num_nodes,)`` float32 weights of self-loops for the same layers; None if there are none.
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
        scales: list[Tensor | None],
    ) -> None:
        self.ranks, self.comm = ranks, ranks.twin()
        self.iteration: Iteration | None = None
        self._asks, self._rows_comm = ranks.twin(), ranks.twin()  # ids do not wait behind rows
        self.has_edge_ids = shared.has_edge_ids
        self.num_edges, self.lists = shared.graph.num_edges, shared.lists
        self.src_degree: Tensor | None = None
        self.src_loop: Tensor | None = None
        self._part_of = part_of
        bounds = [bounds_of_part(num_parts, rank, ranks.size) for rank in range(ranks.size)]
        counts = torch.tensor([last - first for first, last in bounds])
        self._rank_of_part = torch.repeat_interleave(counts)
        self.owned, order = torch.cat([rows.owned for rows in own]).sort()
        self.first_edge: Tensor | None = None
        if shared.lists == "parts":
            self.first_edge = torch.cat([rows.arrays["first_edge"] for rows in own])[order]
        first_ids, names = shared.first_ids, shared.feature_names
        held = [rows.arrays[name].nbytes for rows in own for name in names if name in rows.arrays]
        from_disk = self._exceed_memory(sum(held))
        self.by_type = [
            TypeShards(
                part_of[first_ids[number] : first_ids[number + 1]],
                self._rank_of_part,
                [(rows.by_type[number], rows.arrays.get(name)) for rows in own],
                scale,
                from_disk=from_disk,
            )
            for number, (name, scale) in enumerate(zip(names, scales, strict=True))
        ]
        self.keep(0)
        owners = [one.owners for one in self.by_type]
        self.edges = EdgeRowExchange(self._asks, own, self.num_edges, owners)

    @property
    def only(self) -> TypeShards:
        """The nodes of a graph without types."""
        [only] = self.by_type
        return only

    def keep(self, budget: int | str) -> None:
        """Keep rows of other ranks' nodes from now on; all ranks call it together while no batches come.

        Args:
            budget: memory for them, in bytes or as ``"4GiB"``; ``"all"`` keeps all rows.

        Raises:
            ConfigError: the memory holds none.
            ResourceError: the memory is not free.
        """
        shares = zip(self.by_type, divided(budget, self.by_type), strict=True)
        self.rows: RowsByType = [
            FeatureRows(one, self._asks, of, self._rows_comm) if one.has_rows else None for one, of in shares
        ]

    @property
    def traffic(self) -> RowTraffic:
        """Counts of the feature rows read and sent so far, of all types."""
        return total(self.rows)

    def owners(self, ids: Tensor) -> Tensor:
        """Return the rank that owns each of ``ids`` in the whole graph, ``(num_ids,)`` int64."""
        return self._rank_of_part[self._part_of[ids].long()]

    def _exceed_memory(self, own: int) -> bool:
        """Return whether mapped rows would not stay in memory; all ranks call it together.

        The system would then evict pages of them all the time. It reads 128 KiB for each row that it misses.

        Args:
            own: bytes of this rank's rows.
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

    def positions(self, ids: Tensor, counts: Tensor, offsets: Tensor) -> Tensor:
        """Return the positions in the whole graph of edges into own nodes.

        Args:
            ids: ``(num,)`` own nodes.
            counts: ``(num,)`` number of edges of each.
            offsets: ``(sum(counts),)`` place of each edge in its node's list.
        """
        assert self.first_edge is not None
        return torch.repeat_interleave(self.first_edge[torch.searchsorted(self.owned, ids)], counts) + offsets


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
        comm = comm or current() or Communicator(Alone())
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
        scales = [arrays.pop(f"{name}_scale", None) for name in shared.feature_names]
        shards = Shards(comm, part_of, num_parts, shared, own, scales=scales)
        if shared.lists == "parts":
            arrays |= _own_lists(own, shared)
        shards.src_degree, shards.src_loop = (arrays.pop(name, None) for name in DEGREES)
        for one in own[0].relations:
            if (attr := own[0].arrays.get(name := f"edge{one.number}_attr")) is not None:
                assert shared.graph.types is not None
                arrays[name] = _nothing(attr, shared.graph.types.edges[one.number].num_edges)
        fields = _fields_of(shared, arrays, saved.folder)
        nothing = [one.no_rows() for one in shards.by_type]
        if (types := fields["types"]) is None:
            [fields["x"]] = nothing
        else:
            of_types = zip(types.nodes.items(), nothing, strict=True)
            fields["types"] = replace(types, nodes={name: replace(one, x=x) for (name, one), x in of_types})
        if (attr := own[0].arrays.get("edge_attr")) is not None:
            fields["edge_attr"] = arrays["edge_attr"] = _nothing(attr, shards.num_edges)
        for name, x in zip(shared.feature_names, nothing, strict=True):
            if isinstance(x, ScaledFeatures):
                arrays[name], arrays[f"{name}_scale"] = x.values, x.scale
            elif x is not None:
                arrays[name] = x
        for name, found in shared.marks.items():
            keep_mark(arrays[name], found, in_blocks=bool(sums_of(name)))
        return cls(**fields, shards=shards, trusted=True)


_FIELDS = ("csc", "edge_id", "edge_attr", "x", "y", "splits", "types", "name", "weight_name")


def _fields_of(shared: SharedManifest, arrays: dict[str, Tensor], folder: Path) -> dict[str, Any]:
    """Return the fields of the graph of these arrays, without features.

    Raises:
        DataError: an array is missing, or they do not fit each other.
    """
    entry, manifest = shared.graph.types, shared.graph
    if entry is None or shared.lists == "whole":
        # Columns of features that are not here would be refused.
        graph = graph_of_arrays(manifest.model_copy(update={"columns": []}), arrays, folder)
        fields = {name: getattr(graph, name) for name in _FIELDS}
        return fields | {"schema": manifest.schema_of_graph}
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
        arrays["rows_indptr"] = offsets("rows_indptr", shared.num_rows, lambda ids: shared.rows_of(ids)[0])
    for name in {"indices", "weight"} & own[0].arrays.keys():
        first, *others = parts = [rows.arrays[name] for rows in own]
        arrays[name] = first.new_empty(sum(map(len, parts))) if others else first
        for rows, values in zip(own, parts, strict=True) if others else ():
            arrays[name][ranges(arrays["indptr"][rows.owned], rows.arrays["indptr"].diff())] = values
    return arrays
