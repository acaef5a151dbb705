"""FeatureRows: the features of batches: own rows are read here, other rows are sent by their owners.

A cache holds rows of other ranks' nodes within a budget. Groups of batches are drawn before their rows are
asked for. So the cache can evict the row whose next read is farthest away (Belady).
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import torch
from torch import Tensor

from graphbraid.arguments import as_budget
from graphbraid.distributed.ranks.communicator import Communicator
from graphbraid.distributed.shards.exchange import NO_IDS, Routed, numbered
from graphbraid.errors import ConfigError
from graphbraid.features.budgets import require_free, row_bytes_kept
from graphbraid.features.rows.caches import RowCache
from graphbraid.features.rows.disk import BroughtRows
from graphbraid.features.tiers.tier_report import aligned
from graphbraid.files.writing import format_bytes
from graphbraid.graph.csc import index_dtype
from graphbraid.ops.gather import put_rows, take_rows

if TYPE_CHECKING:
    from graphbraid.distributed.shards.sharded_graph import TypeShards


T = TypeVar("T")
W = TypeVar("W")
RowsByType = Mapping[int, "FeatureRows"]
"""Feature rows by the number of their node type; a type without features has none."""
LOOKAHEAD = 4
"""Groups of batches that are known beyond the one whose rows are asked for, where rows are kept."""


class RowTraffic(NamedTuple):
    """Reads of a rank's batches, and the transfers for them."""

    reads: int = 0
    """Rows that batches read, each batch counted by itself."""
    remote_reads: int = 0
    """Rows of ``reads`` whose nodes other ranks own."""
    asked: int = 0
    """Rows of other ranks that groups asked for: each group asks for a row once."""
    hits: int = 0
    """Rows of ``asked`` that were found in the cache. The others came from their owners."""
    sent_ids: int = 0
    """Ids that went to their owners: one for each row that came."""
    sent_rows: int = 0
    """Rows that went to other ranks."""
    sent_bytes: int = 0
    """Bytes of ids and rows that went to other ranks."""
    messages: int = 0
    """Messages with ids or rows that went to other ranks."""


def total(traffic: Iterable[RowTraffic]) -> RowTraffic:
    """Return the sums of counts, such as those of all node types."""
    return RowTraffic(*map(sum, zip(RowTraffic(), *traffic, strict=True)))


def num_kept(budget: int | str, types: Sequence[TypeShards]) -> list[int]:
    """Return how many rows of other ranks' nodes a budget holds, by node type, or raise ConfigError for none.

    Types share it by the bytes of these rows. If a type's share would hold no row, the other types get it.
    """
    left, sizes = as_budget(budget, "the memory for rows of other ranks"), dict[int, tuple[int, int, int]]()
    for number, one in enumerate(types):
        if one.row_bytes and (remote := one.num_nodes - one.owned.numel()):
            notes, row_bytes = row_bytes_kept(BroughtRows(one.num_nodes, one.row_bytes), ranked=False)
            sizes[number] = notes, row_bytes, notes + remote * row_bytes
    while left and sizes:
        whole = sum(most for _, _, most in sizes.values())
        given = {number: min(left, whole) * most // whole for number, (_, _, most) in sizes.items()}
        held = {at: (given[at] - notes) // row_bytes for at, (notes, row_bytes, _) in sizes.items()}
        if min(held.values()) >= 1:
            return [held.get(number, 0) for number in range(len(types))]
        number = max(sizes, key=lambda at: sum(sizes[at][:2]) - given[at])  # that lacks most
        notes, row_bytes, _ = sizes.pop(number)
        if not sizes:
            raise ConfigError(
                f"{budget!r} of memory for rows of other ranks hold no row: notes about all "
                f"{types[number].num_nodes:,} rows take {format_bytes(notes)}, and a row takes "
                f"{format_bytes(row_bytes)}. Give more, or 0"
            )
    return [0] * len(types)


class FeatureRows:
    """Feature rows of a node type, from own parts, from memory, and from their owners.

    All ranks make it together. Memory keeps at most ``num_kept`` rows of other ranks' nodes. Only the thread
    that asks uses ``comm``, and the thread that begins and finishes ``rows_comm``, if that is another one.
    ResourceError: the memory is not free.
    """

    def __init__(
        self,
        shards: TypeShards,
        comm: Communicator,
        num_kept: int = 0,
        rows_comm: Communicator | None = None,
    ) -> None:
        self.shards, self.comm = shards, comm
        self.rows_comm, self.ids = rows_comm or comm, index_dtype(shards.num_nodes)
        self.traffic = RowTraffic()
        """Counts of reads and transfers so far."""
        reader = BroughtRows(shards.num_nodes, shards.row_bytes)
        if num_kept:
            notes, row_bytes = row_bytes_kept(reader, ranked=False)
            require_free(notes + num_kept * row_bytes, f"memory for {num_kept:,} rows of other ranks")
        self.cache = RowCache(reader, num_kept)
        """Which rows of others are kept."""
        self.memory = shards.table.new(num_kept)
        """These rows."""


class GroupRows:
    """The rows of a node type that a group of batches reads, each once.

    They are announced as this is made, in the order of the groups. Then :meth:`ask`, :meth:`begin` and
    :meth:`finish` are called. So ids and rows of later groups travel before an earlier one is finished. All
    ranks ask and begin together, and alike often, in the order of the groups; also for no batches or ids.
    """

    def __init__(self, source: FeatureRows, batches: Sequence[Tensor]) -> None:
        self._source = source
        self._ids, places = numbered(NO_IDS, torch.cat([*batches, NO_IDS]))
        self._own = source.shards.own_places(self._ids)
        self._is_remote = self._own < 0
        self._places = torch.split(places, [one.numel() for one in batches])
        self._number = source.cache.announce(self._ids[self._is_remote])

    def ask(self) -> None:
        """Ask owners for missing rows; others may ask even if none is; RankError if one was lost."""
        source, remote = self._source, self._ids[self._is_remote]
        # Where rows of others are kept, and where missing ones will be; -1: nowhere.
        self._slots, self._fills = source.cache.decide(remote, batch=self._number)
        missing = remote[self._slots < 0]
        self._routed = Routed(source.comm, source.shards.owners(missing))
        self._given = self._routed.ask(missing.to(source.ids)).long()
        of_group = RowTraffic(
            reads=sum(map(len, self._places)),
            remote_reads=sum(int(self._is_remote[one].sum()) for one in self._places),
            asked=len(remote),
            hits=len(remote) - len(missing),
            sent_ids=len(missing),
            sent_rows=len(self._given),
            sent_bytes=len(missing) * source.ids.itemsize + len(self._given) * source.shards.row_bytes,
            messages=sum(map(bool, [*self._routed.counts, *self._routed.asked])),
        )
        source.traffic = total([source.traffic, of_group])

    def begin(self) -> None:
        """Begin to send other ranks the rows that they asked for, and to receive those that are missing."""
        rows = self._source.shards.own_rows(self._given)
        self._coming = self._source.rows_comm.all_to_all(rows, self._routed.asked, self._routed.counts)

    def finish(self) -> list[Tensor]:
        """Return the rows of each batch, ``(num_ids, num_features)``, of int8 ones as float32."""
        shards, memory, received = self._source.shards, self._source.memory, self._coming.wait()
        came_for = (self._slots < 0).nonzero().squeeze(1)[self._routed.order]
        where, table = torch.full((3, len(self._own)), -1, dtype=torch.int32), shards.table.mapped
        where[0] = self._own
        if table is None:
            held = (self._own >= 0).nonzero().squeeze(1)
            table = shards.own_rows(self._ids[held])
            where[0, held] = torch.arange(len(held), dtype=torch.int32)
        where[1, self._is_remote] = self._slots
        where[2, self._is_remote.nonzero().squeeze(1)[came_for]] = torch.arange(len(came_for)).int()
        found = []
        for places in self._places:
            rows = shards.table.new(len(places))
            for source, at in zip((table, memory, received), where[:, places], strict=True):
                take_rows(source, at, rows)
            found.append(rows if shards.scale is None else shards.in_float32(rows, self._ids[places]))
        put_rows(received, self._fills[came_for], memory)  # only now: these slots may have been read
        return found


def lookahead_of(rows: RowsByType) -> int:
    """Return the groups that are worth announcing before the rows of the first of them are asked for."""
    return LOOKAHEAD if any(one.cache.num_rows for one in rows.values()) else 0


def known_ahead(groups: Iterable[T], announce: Callable[[T], W], lookahead: int) -> Iterator[tuple[T, W]]:
    """Yield groups with their rows, each after ``lookahead`` further groups are announced, or all that come.

    At the start fewer groups are announced: none behind the first, one behind the second. So the first rows
    travel while further groups are drawn.
    """
    drawn, known = iter(groups), deque[tuple[T, W]]()
    for number in itertools.count():
        missing = 1 + min(lookahead, number) - len(known)
        known.extend((group, announce(group)) for group in itertools.islice(drawn, missing))
        if not known:
            return
        yield known.popleft()


def table_of(of_ranks: Sequence[RowTraffic]) -> str:
    """Return a table in text of each rank's reads and transfers."""
    lines = [("rank", "rows read", "others'", "asked", "kept here", "sent rows", "sent", "messages")]
    for rank, one in enumerate(of_ranks):
        of_others, kept = one.remote_reads / max(one.reads, 1), one.hits / max(one.asked, 1)
        read = f"{one.reads:,}", f"{of_others:.1%}", f"{one.asked:,}", f"{kept:.1%}"
        sent = f"{one.sent_rows:,}", format_bytes(one.sent_bytes), f"{one.messages:,}"
        lines.append((f"{rank}", *read, *sent))
    return "\n".join(aligned(lines))
