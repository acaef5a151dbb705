"""NegativeSampling and NegativeDraws: the negatives of a batch of links, drawn by counter.

A draw is a function of (seed, epoch, step, end of the link, number of the negative, attempt). Negative ``j``
of a batch of ``n`` links belongs to link ``j % n``.

EdgeLookup and LinkLookup tell which edges of a graph join two nodes, by binary search in its rows.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from graphbraid.arguments import MOST_AMOUNT, as_flag, as_number, check_choice, check_tensor, shown
from graphbraid.errors import ConfigError, DataError
from graphbraid.graph.csc import Csc, coo_to_csc
from graphbraid.graph.edges import remove_duplicates
from graphbraid.graph.types import EdgeType, Relation, Types
from graphbraid.ops import rng

I64 = npt.NDArray[np.int64]


class EdgeLookup:
    """The edges of an adjacency by their two ends; a copy is kept if its rows are not sorted by source."""

    def __init__(self, csc: Csc) -> None:
        by_source, perm = csc.sort_rows()
        self._indptr, self._indices = by_source.indptr.numpy(), by_source.indices.numpy()
        self._perm: I64 | None = None if perm is None else perm.numpy()

    def has(self, src: I64, dst: I64) -> npt.NDArray[np.bool_]:
        """Return for each pair whether there is an edge from ``src`` to ``dst``."""
        place = self._places(src, dst)
        is_inside = place < self._indptr[dst + 1]
        found: npt.NDArray[np.bool_] = is_inside.copy()
        found[is_inside] = self._indices[place[is_inside]] == src[is_inside]
        return found

    def positions(self, src: I64, dst: I64) -> I64:
        """Return the positions of all edges from a ``src`` to its ``dst``, each once, ascending."""
        first, last = self._places(src, dst), self._places(src + 1, dst)
        counts = last - first
        starts = np.cumsum(counts) - counts
        places = np.arange(counts.sum()) + np.repeat(first - starts, counts)
        found: I64 = np.unique(places if self._perm is None else self._perm[places])
        return found

    def between(self, links: Tensor, *, reverse: bool) -> Tensor:
        """Return the positions of the edges of links ``(2, num)``; with ``reverse`` in both directions."""
        src, dst = links.numpy()
        if reverse:
            src, dst = np.concatenate([src, dst]), np.concatenate([dst, src])
        return torch.from_numpy(self.positions(src, dst))

    def _places(self, src: I64, dst: I64) -> I64:
        """Return the place of the first source of ``dst`` that is at least ``src``."""
        low, high = self._indptr[dst].copy(), self._indptr[dst + 1].copy()
        while len(active := np.flatnonzero(low < high)):
            middle = (low[active] + high[active]) // 2
            is_below = self._indices[middle] < src[active]
            low[active] = np.where(is_below, middle + 1, low[active])
            high[active] = np.where(is_below, high[active], middle)
        return low


class LinkLookup(EdgeLookup):
    """The edges of a relation, and of the relations in the other direction, by their ends."""

    def __init__(self, types: Types, edge_type: EdgeType) -> None:
        super().__init__(types.rows)
        self._own = types.relation(edge_type)
        ends = self._own.destination, self._own.source
        self._back = [one for one in types.relations() if (one.source, one.destination) == ends]

    def between(self, links: Tensor, *, reverse: bool) -> Tensor:
        """Return the positions of the edges that join the ends of ``(2, num)`` int64 ``links``, ascending.

        ``reverse`` adds the edges of every relation from a link's destination to its source.
        """
        src, dst = links.numpy()
        asked = [_placed(self._own, src, dst)]
        if reverse:
            asked += [_placed(relation, dst, src) for relation in self._back]
        sources, rows = (np.concatenate(part) for part in zip(*asked, strict=True))
        return torch.from_numpy(self.positions(sources, rows))


def _placed(relation: Relation, src: I64, dst: I64) -> tuple[I64, I64]:
    """Return the sources' ids in the whole graph, and the rows of the destinations."""
    return src + relation.first_source, relation.first_row + dst * relation.stride


MODES = ("binary", "triplet")
DEGREE = "degree"


@dataclass(frozen=True, eq=False, slots=True)
class NegativeSampling:
    """How negative links are drawn; the first four arguments are those of PyG's class of this name."""

    mode: str
    """``binary``: pairs of nodes, as many as ``amount`` times the links. ``triplet``: ``amount`` destinations
    for each link's source."""
    amount: float = 1
    """Number of negatives per link; a whole number with ``triplet``."""
    src_weight: Tensor | str | None = None
    """``(num_nodes,)`` weights that sources are drawn by, or ``"degree"`` for their numbers of out-edges. If
    None, all nodes are equally likely. In a graph with types, nodes are of the sources' type, and edges of
    the links' relation."""
    dst_weight: Tensor | str | None = None
    """Weights that destinations are drawn by, as ``src_weight``; ``"degree"`` counts their in-edges."""
    reject_edges: bool = False
    """Whether to exclude pairs that are an edge of the graph, one of the loader's links, or a node and
    itself. If False, a negative may be one of these, as in PyG."""

    def __post_init__(self) -> None:
        check_choice(self.mode, "mode of NegativeSampling", MODES)
        amount = as_number(self.amount, "amount of NegativeSampling", least=0, most=MOST_AMOUNT)
        if amount <= 0:
            raise ConfigError(f"amount of NegativeSampling must be greater than 0; got {amount:g}")
        if self.mode == "triplet" and amount != math.ceil(amount):
            raise ConfigError(
                f"amount of NegativeSampling must be a whole number for mode 'triplet'; got {amount:g}"
            )
        object.__setattr__(self, "amount", int(amount) if amount == math.ceil(amount) else amount)
        object.__setattr__(self, "reject_edges", as_flag(self.reject_edges, "reject_edges"))

    @property
    def is_triplet(self) -> bool:
        """Whether each link gets its own destinations; otherwise the batch gets pairs of nodes."""
        return self.mode == "triplet"

    def count(self, num_links: int) -> int:
        """Return the number of negatives of a batch of ``num_links``."""
        return math.ceil(num_links * self.amount)

    @classmethod
    def of(cls, value: Any) -> NegativeSampling | None:
        """Return ``neg_sampling`` as this class: a mode, a dict, or an instance of this class or PyG's.

        Raises:
            ConfigError: it is none of these, or an option of it is invalid.
        """
        if value is None or isinstance(value, NegativeSampling):
            return value
        if isinstance(value, str):
            return cls(value)
        if isinstance(value, Mapping):
            known = {field.name for field in dataclasses.fields(cls)}
            if "mode" not in value or not set(value) <= known:
                raise ConfigError(
                    f"neg_sampling must have 'mode' and may have {', '.join(sorted(known - {'mode'}))}; "
                    f"got {shown(dict(value))}"
                )
            return cls(**value)
        if hasattr(value, "mode") and hasattr(value, "amount"):  # PyG's class
            mode = getattr(value.mode, "value", value.mode)
            return cls(mode, value.amount, value.src_weight, value.dst_weight)
        raise ConfigError(
            "neg_sampling must be 'binary', 'triplet', a dict of options or a NegativeSampling; "
            f"got {shown(value)}"
        )


F64 = npt.NDArray[np.float64]
MOST_NODES = (1 << 32) - 1
"""Largest number of nodes from which negatives are drawn."""
_SRC_HOP, _DST_HOP = 254, 255  # no hop of a sampler has these numbers, so no draw of it is used twice
_MOST_TRIES = 64  # draws of one negative before its allowed nodes are listed


class NegativeDraws:
    """The negatives of each batch of one loader's links.

    Args:
        how: how they are drawn.
        csc: adjacency of the graph, or of the relation whose links these are.
        links: ``(2, num_links)`` int64 sources and destinations of the loader's links.
        node_times: int64 times of the sources, ``(num_src,)``, and of the destinations, ``(num_dst,)``: a
            link's negatives are nodes up to the link's time. If None, any.
        times: ``(num_links,)`` int64 times of the links, given with ``node_times``.
        alike: whether both ends are nodes of one type, so that a node may be paired with itself.
        summed: returns the sums of numbers over ranks that each have some of the edges and links. They draw
            the same negatives together. If None, all edges are here.

    Raises:
        ConfigError: no pair, or no destination of a link's source, is left to be drawn.
        DataError: weights are not one finite number >= 0 per node, or all are 0.
    """

    def __init__(
        self,
        how: NegativeSampling,
        csc: Csc,
        links: Tensor,
        *,
        node_times: tuple[Tensor | None, Tensor | None] = (None, None),
        times: Tensor | None = None,
        alike: bool = True,
        summed: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self.how, self._alike, self._of_ranks = how, alike, summed
        src_time, dst_time = node_times
        out_degrees = partial(torch.bincount, csc.indices, minlength=csc.num_src)
        self._src = _Nodes(how.src_weight, "src_weight", csc.num_src, src_time, out_degrees)
        self._dst = _Nodes(how.dst_weight, "dst_weight", csc.num_dst, dst_time, csc.degrees)
        self._known: Csc | None = None
        if how.reject_edges:
            self._known = _destinations_by_source(csc, links)
            self._lookup = EdgeLookup(self._known)
        self._check_some_are_left(links, times)

    def draw(self, key: int, src: I64, times: I64 | None) -> tuple[I64, I64]:
        """Return the sources and destinations of a batch's negatives, ``(how.count(len(src)),)`` each.

        ``src`` are the sources of the batch's links, which are those of its negatives in mode ``triplet``.

        Raises:
            DataError: nothing is left to be drawn for a link, at its time.
        """
        number = np.arange(self.how.count(len(src)))
        owner = number % max(len(src), 1)
        until = None if times is None else times[owner]
        keys = (rng.row_keys(key, _SRC_HOP, number), rng.row_keys(key, _DST_HOP, number))
        heads, tails = src[owner], np.zeros_like(number)
        left = number
        for attempt in range(_MOST_TRIES):
            bits = [rng.wide_draw(end[left], attempt) for end in keys]
            if not self.how.is_triplet:
                heads[left] = self._src.pick(bits[0])
            tails[left] = self._dst.pick(bits[1])
            left = left[self._refused(heads[left], tails[left], None if until is None else until[left])]
            if not len(left):
                return heads, tails
        for one in left:  # hardly anything is allowed here
            bits = [rng.wide_draw(end[one : one + 1], _MOST_TRIES) for end in keys]
            time = None if until is None else int(until[one])
            if not self.how.is_triplet:
                heads[one] = _chosen(self._head_weights(time), bits[0], "every pair of nodes is a link")
            tails[one] = _chosen(
                self._tail_weights(int(heads[one]), time),
                bits[1],
                f"node {heads[one]} is linked to every node",
            )
        return heads, tails

    def _refused(self, heads: I64, tails: I64, until: I64 | None) -> npt.NDArray[np.bool_]:
        refused = np.zeros(len(heads), dtype=np.bool_)
        if self._known is not None:
            refused = self._summed(self._lookup.has(tails, heads)) > 0
            if self._alike:
                refused |= heads == tails
        if until is not None:
            refused |= self._dst.are_later(tails, until)
            if not self.how.is_triplet:
                refused |= self._src.are_later(heads, until)
        return refused

    def _tail_weights(self, head: int, time: int | None) -> F64:
        """Return the weights by which destinations of one source are drawn; 0 for forbidden ones."""
        weights = self._dst.weights(time)
        if self._known is not None:
            is_known = np.zeros(len(weights), dtype=np.bool_)
            is_known[_row(self._known, head)] = True
            weights[self._summed(is_known) > 0] = 0.0
            if self._alike:
                weights[head] = 0.0
        return weights

    def _head_weights(self, time: int | None) -> F64:
        """Return the weights by which sources are drawn: each one's sum over its allowed pairs."""
        heads, tails = self._src.weights(time), self._dst.weights(time)
        if self._known is None:
            return heads
        sums, counts = self._left_by_head(tails)
        return np.where(counts > 0, heads * np.maximum(sums, 0.0), 0.0)

    def _left_by_head(self, tails: F64) -> tuple[F64, F64]:
        """Return each source's sum of weights over allowed destinations, and how many have a weight."""
        assert self._known is not None
        head, tail = self._known.destinations().numpy(), self._known.indices.numpy()
        is_loop = np.zeros(self._known.num_dst, dtype=np.bool_)
        is_loop[head[head == tail]] = True
        is_loop = self._summed(is_loop) > 0
        some = (tails > 0).astype(np.float64)
        left = []
        for values in (tails, some):
            known = np.bincount(head, weights=values[tail], minlength=len(is_loop))
            others: F64 = values.sum() - self._summed(known)
            left.append(others - np.where(is_loop, 0.0, values) if self._alike else others)
        return left[0], left[1]

    def _summed(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return numbers, or counts of what is true, of all ranks together."""
        if self._of_ranks is None:
            return values
        return self._of_ranks(torch.from_numpy(values).double()).numpy()

    def _check_some_are_left(self, links: Tensor, times: Tensor | None) -> None:
        if not self._summed(np.array([links.shape[1]]))[0]:
            return
        ends = [self._dst] if self.how.is_triplet else [self._src, self._dst]
        if times is not None and any(int(times.min()) < end.first_time for end in ends):
            raise ConfigError(
                f"link {int(times.argmin())} can have no negatives: no node is as early as its time"
            )
        if self._known is None:
            return
        _, counts = self._left_by_head(self._dst.weights())
        if not self.how.is_triplet:
            if not (counts * self._src.weights() > 0).any():
                raise ConfigError(
                    f"reject_edges leaves no negatives: every pair of {'different ' * self._alike}nodes is "
                    "an edge of the graph or one of the links"
                )
            return
        without = np.flatnonzero(counts[links[0].numpy()] <= 0)
        if len(without):
            node = int(links[0, int(without[0])])
            raise ConfigError(
                f"reject_edges leaves no negatives for link {int(without[0])}: its source, node {node}, is "
                f"linked to every {'other node' if self._alike else 'node of the type of its destination'}"
            )


class _Nodes:
    """The nodes that one end of a negative is drawn from."""

    def __init__(
        self,
        weight: Tensor | str | None,
        name: str,
        count: int,
        time: Tensor | None,
        degrees: Callable[[], Tensor],
    ) -> None:
        if not 1 <= count <= MOST_NODES:
            raise ConfigError(f"negatives are drawn from 1 to {MOST_NODES} nodes; here are {count}")
        self._count = count
        self._time: I64 | None = None if time is None else time.numpy()
        self._weight: F64 | None = None
        if weight is None:
            return
        if isinstance(weight, str):
            check_choice(weight, name, (DEGREE,))
            weight = degrees().double()
        self._weight = _as_weights(weight, name, count)
        self._running = np.cumsum(self._weight)
        self._last = int(np.flatnonzero(self._weight)[-1])

    def pick(self, bits: rng.U64) -> I64:
        if self._weight is None:
            return rng.wide_bounded(bits, self._count)
        return _inverted(self._running, self._last, bits)

    def weights(self, time: int | None = None) -> F64:
        """Return a copy of the weights, ``(num_nodes,)``; 0 for nodes that are later than ``time``."""
        weights = np.ones(self._count) if self._weight is None else self._weight.copy()
        if time is not None and self._time is not None:
            weights[self._time > time] = 0.0
        return weights

    def are_later(self, nodes: I64, until: I64) -> npt.NDArray[np.bool_]:
        if self._time is None:
            return np.zeros(len(nodes), dtype=np.bool_)
        later: npt.NDArray[np.bool_] = self._time[nodes] > until
        return later

    @property
    def first_time(self) -> float:
        """The earliest time of a node; negative infinity without times."""
        return -np.inf if self._time is None else int(self._time.min())


def _inverted(running: F64, last: int, bits: rng.U64) -> I64:
    found = np.searchsorted(running, rng.unit(bits) * running[-1], side="right")
    return cast("I64", np.minimum(found, last))  # a product may be rounded up to the whole sum


def _chosen(weights: F64, bits: rng.U64, otherwise: str) -> int:
    positive = np.flatnonzero(weights)
    if not len(positive):
        raise DataError(f"there is no negative to draw: {otherwise} (with times: every node up to its time)")
    return int(_inverted(np.cumsum(weights), int(positive[-1]), bits)[0])


def _as_weights(weight: Tensor, name: str, count: int) -> F64:
    values: F64 = check_tensor(weight, name).detach().cpu().double().numpy()
    if values.shape != (count,):
        raise DataError(f"{name} must have one weight per node, shape ({count},); got {values.shape}")
    wrong = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
    if len(wrong):
        raise DataError(f"{name} must be finite and not negative; {name}[{wrong[0]}] is {values[wrong[0]]:g}")
    if not values.sum() > 0:
        raise DataError(f"{name} must have a weight above 0; all are 0")
    return values


def _destinations_by_source(csc: Csc, links: Tensor) -> Csc:
    """Return each source's destinations in the graph's edges and the links, sorted, each once."""
    heads = torch.cat([csc.indices.long(), links[0]])
    tails = torch.cat([csc.destinations().long(), links[1]])
    both, _ = coo_to_csc(tails, heads, csc.num_dst, csc.num_src, keep_perm=False)
    return remove_duplicates(both, keep_edge_id=False).csc


def _row(csc: Csc, row: int) -> I64:
    found: I64 = csc.indices[int(csc.indptr[row]) : int(csc.indptr[row + 1])].numpy()
    return found
