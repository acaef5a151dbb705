"""FeatureRows: the features of batches: own rows are read here, other rows are sent by their owners.

A cache holds rows of other ranks' nodes within a budget. Groups of batches are drawn before their rows are
asked for. So the cache can evict the row whose next read is farthest away (Belady).
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import torch
from torch import Tensor

from graphbraid.arguments import as_budget
from graphbraid.distributed.ranks.communicator import Communicator, Handle
from graphbraid.distributed.shards.exchange import Routed, numbered
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
LOOKAHEAD = 4
"""Groups of batches that are known beyond the one whose rows are asked for, where rows are kept."""
_MEMORY = "the memory for rows of other ranks"


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

    def plus(self, **more: int) -> RowTraffic:
        """Return the sums of both."""
        return self._replace(**{name: getattr(self, name) + count for name, count in more.items()})

    def since(self, before: RowTraffic) -> RowTraffic:
        """Return the counts since ``before``."""
        return RowTraffic(*(now - then for now, then in zip(self, before, strict=True)))


def divided(budget: int | str, types: Sequence[TypeShards]) -> list[int | str]:
    """Divide memory for other ranks' rows among node types, by the bytes of these rows.

    If a type's share would hold no row, the other types get it.
    """
    if len(types) == 1 or budget == "all":
        return [budget] * len(types)
    left, sizes = as_budget(budget, _MEMORY), dict[int, tuple[int, int]]()
    for number, one in enumerate(types):
        if one.row_bytes and (remote := one.num_nodes - one.owned.numel()):
            notes, kept = row_bytes_kept(BroughtRows(one.num_nodes, one.row_bytes), ranked=False)
            sizes[number] = notes + kept, notes + remote * kept
    while left and sizes:
        whole = sum(most for _, most in sizes.values())
        given = {number: left * most // whole for number, (_, most) in sizes.items()}
        lacks = [number for number, (least, _) in sizes.items() if given[number] < least]
        if not lacks or len(sizes) == 1:  # one that gets all of too little says so
            return [given.get(number, 0) for number in range(len(types))]
        del sizes[max(lacks, key=lambda number: sizes[number][0] - given[number])]
    return [0] * len(types)


def _num_kept(budget: int | str, reader: BroughtRows, num_remote: int) -> int:
    """Return how many of the ``num_remote`` rows of other ranks a budget holds.

    Raises:
        ConfigError: it holds no row, and is not 0.
        ResourceError: it is more than the free memory.
    """
    notes, kept = row_bytes_kept(reader, ranked=False)
    most = min(as_budget(budget, _MEMORY), notes + num_remote * kept)
    if most == 0 or num_remote == 0:
        return 0
    require_free(most, f"memory of {budget!r} for rows of other ranks")
    held = (most - notes) // kept
    if held < 1:
        raise ConfigError(
            f"{budget!r} of memory for rows of other ranks hold no row: notes about all "
            f"{reader.shape[0]:,} rows take {format_bytes(notes)}, and a row takes {format_bytes(kept)}. "
            "Give more, or 0"
        )
    return held


class GroupRows(NamedTuple):
    """The rows that a group of batches reads, each once."""

    ids: Tensor
    """``(num_ids,)`` int64 nodes."""
    own: Tensor
    """``(num_ids,)`` int64 places among this rank's nodes; -1 for those of others."""
    places: Sequence[Tensor]
    """Where the rows of each batch are among these."""
    number: int
    """The number by which the cache knows the group."""
    remote_reads: int
    """Rows of others that batches read, each batch counted by itself."""


class AskedRows(NamedTuple):
    """The rows of a group after the owners were asked for those that are missing."""

    wanted: GroupRows
    slots: Tensor
    """``(num_remote,)`` int32 where rows of others are kept; -1 for those that are missing."""
    fills: Tensor
    """``(num_remote,)`` int32 where missing rows will be kept; -1: nowhere."""
    routed: Routed
    """The missing rows by their owners."""
    given: Tensor
    """``(num_given,)`` int64 own nodes whose rows others ask for, those of rank 0 first."""
    asked: list[int]
    """How many of these each rank asks for."""
    handle: Handle[Tensor] | None = None
    """The missing rows on their way."""


_NO_IDS = torch.empty(0, dtype=torch.int64)


class FeatureRows:
    """Feature rows of a node type for groups of batches, from own parts, from memory, and from their owners.

    Each group passes :meth:`ask`, :meth:`begin` and :meth:`finish`. So ids and rows of later groups travel
    before an earlier one is finished. All ranks make it, ask and begin together, and alike often, in the
    order of the groups. They fill it together.

    Args:
        shards: the nodes of the type.
        comm: the ranks. Only the thread that asks uses it.
        budget: memory for rows of other ranks' nodes and for notes about them, in bytes or as ``"4GiB"``;
            ``"all"`` keeps all rows.
        rows_comm: the ranks, for the thread that begins and finishes. If None, ``comm``: then it is the same
            thread.

    Raises:
        ConfigError: the memory for kept rows holds none.
        ResourceError: the memory is not free.
    """

    def __init__(
        self,
        shards: TypeShards,
        comm: Communicator,
        budget: int | str = 0,
        rows_comm: Communicator | None = None,
    ) -> None:
        self._shards, self._comm, self._budget = shards, comm, budget
        self._rows_comm, self._ids = rows_comm or comm, index_dtype(shards.num_nodes)
        self.traffic = RowTraffic()
        """Counts of reads and transfers so far."""
        reader = BroughtRows(shards.num_nodes, shards.row_bytes)
        num_remote = shards.num_nodes - shards.owned.numel()
        self._cache = RowCache(reader, _num_kept(budget, reader, num_remote) if shards.row_bytes else 0)
        self._memory = shards.new_rows(self._cache.num_rows)

    def anew(self) -> FeatureRows:
        """Return such rows that have read nothing yet; all ranks call it together."""
        return FeatureRows(self._shards, self._comm, self._budget)

    @property
    def lookahead(self) -> int:
        """Groups that are worth announcing before the rows of the first of them are asked for."""
        return LOOKAHEAD if self._cache.num_rows else 0

    def announce(self, batches: Sequence[Tensor]) -> GroupRows:
        """Say which rows a coming group reads, in the order of the groups.

        Args:
            batches: ``(num_ids,)`` int64 ids of each batch. There may be none, and a batch may have none.
        """
        ids, places = numbered(_NO_IDS, torch.cat([*batches, _NO_IDS]))
        own = self._shards.own_places(ids)
        is_remote = own < 0
        by_batch = torch.split(places, [one.numel() for one in batches])
        number = self._cache.announce(ids[is_remote])
        return GroupRows(ids, own, by_batch, number, int(is_remote[places].sum()))

    def ask(self, wanted: GroupRows) -> AskedRows:
        """Ask the owners for the rows that are missing. Others may ask even if none is.

        Raises:
            RankError: a rank was lost.
        """
        remote = wanted.ids[wanted.own < 0]
        slots, fills = self._cache.decide(remote, batch=wanted.number)
        missing = remote[slots < 0]
        routed = Routed.by_owner(self._shards.owners(missing), self._comm.size)
        given, asked = routed.ask(self._comm, missing.to(self._ids))
        self.traffic = self.traffic.plus(
            reads=sum(map(len, wanted.places)),
            remote_reads=wanted.remote_reads,
            asked=len(remote),
            hits=len(remote) - len(missing),
            sent_ids=len(missing),
            sent_rows=len(given),
            sent_bytes=len(missing) * self._ids.itemsize + len(given) * self._shards.row_bytes,
            messages=sum(map(bool, routed.counts)) + sum(map(bool, asked)),
        )
        return AskedRows(wanted, slots, fills, routed, given.long(), asked)

    def begin(self, asked: AskedRows) -> AskedRows:
        """Begin to send other ranks the rows that they asked for, and to receive those that are missing."""
        rows = self._shards.own_rows(asked.given)
        return asked._replace(handle=self._rows_comm.all_to_all(rows, asked.asked, asked.routed.counts))

    def finish(self, coming: AskedRows) -> list[Tensor]:
        """Return the rows of each batch of a group, ``(num_ids, num_features)``; those of int8 as float32.

        Raises:
            RankError: a rank was lost.
        """
        (wanted, slots, fills, routed, _, _, handle), shards = coming, self._shards
        assert handle is not None, "it has begun"
        received = handle.wait()
        came_for = (slots < 0).nonzero().squeeze(1)[routed.order]
        came = torch.full_like(slots, -1)
        came[came_for] = torch.arange(len(came_for), dtype=torch.int32)
        table, own = shards.own_source(wanted.ids, wanted.own)
        where = torch.full((3, len(own)), -1, dtype=torch.int32)
        where[0] = own
        where[1:, wanted.own < 0] = torch.stack([slots, came])
        found = []
        for places in wanted.places:
            rows = shards.new_rows(len(places))
            for source, at in zip((table, self._memory, received), where[:, places], strict=True):
                take_rows(source, at, rows)
            found.append(rows if shards.scale is None else shards.in_float32(rows, wanted.ids[places]))
        put_rows(received, fills[came_for], self._memory)  # only now: these slots may have been read
        return found

    def forget(self) -> None:
        """Forget announced groups that will not come."""
        self._cache.forget()


class RowsByType:
    """The feature rows of all node types for groups of batches; see :class:`FeatureRows`.

    Args:
        by_type: the rows of each type; None for a type without features.
    """

    def __init__(self, by_type: Sequence[FeatureRows | None]) -> None:
        self.by_type = by_type
        self._held = [one for one in by_type if one is not None]

    @property
    def traffic(self) -> RowTraffic:
        """Counts of reads and transfers so far, of all types."""
        traffic = (one.traffic for one in self._held)
        return RowTraffic(*map(sum, zip(RowTraffic(), *traffic, strict=True)))

    @property
    def lookahead(self) -> int:
        """Groups that are worth announcing before the rows of the first of them are gathered."""
        return max((one.lookahead for one in self._held), default=0)

    def announce(self, batches: Sequence[Sequence[Tensor]]) -> list[GroupRows]:
        """Say which rows a coming group reads: ids of each type, of each batch."""
        by_type = enumerate(self.by_type)
        return [one.announce([ids[at] for ids in batches]) for at, one in by_type if one is not None]

    def ask(self, wanted: Sequence[GroupRows]) -> list[AskedRows]:
        """Ask the owners for the rows of each type that are missing.

        Raises:
            RankError: a rank was lost.
        """
        return [one.ask(of_type) for one, of_type in zip(self._held, wanted, strict=True)]

    def begin(self, asked: Sequence[AskedRows]) -> list[AskedRows]:
        """Begin to send and to receive the rows of each type."""
        return [one.begin(of_type) for one, of_type in zip(self._held, asked, strict=True)]

    def finish(self, coming: Sequence[AskedRows], num_batches: int) -> list[list[Tensor | None]]:
        """Return the rows of each type, of each batch of a group; None of a type without features."""
        rows = iter([one.finish(of_type) for one, of_type in zip(self._held, coming, strict=True)])
        found = [[None] * num_batches if one is None else next(rows) for one in self.by_type]
        return [[of_type[batch] for of_type in found] for batch in range(num_batches)]

    def forget(self) -> None:
        """Forget announced groups that will not come."""
        for one in self._held:
            one.forget()


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
    heads = ("rank", "rows read", "others'", "asked", "kept here", "sent rows", "sent", "messages")
    lines = [
        (
            f"{rank}",
            f"{one.reads:,}",
            f"{one.remote_reads / max(one.reads, 1):.1%}",
            f"{one.asked:,}",
            f"{one.hits / max(one.asked, 1):.1%}",
            f"{one.sent_rows:,}",
            format_bytes(one.sent_bytes),
            f"{one.messages:,}",
        )
        for rank, one in enumerate(of_ranks)
    ]
    return "\n".join(aligned([heads, *lines]))
