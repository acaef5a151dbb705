"""NegativeDraws: the negatives of each batch of links, drawn by counter.

A draw is a function of (seed, epoch, step, end of the link, number of the negative, attempt). Negative ``j``
of a batch of ``n`` links belongs to link ``j % n``.
"""

from __future__ import annotations

from typing import cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from graphbraid.arguments import check_choice, check_tensor
from graphbraid.errors import ConfigError, DataError
from graphbraid.graph import Graph
from graphbraid.graph.csc import Csc, coo_to_csc
from graphbraid.sampling import rng
from graphbraid.sampling.edge_lookup import EdgeLookup
from graphbraid.sampling.negatives import DEGREE, NegativeSampling

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]
MOST_NODES = (1 << 32) - 1
"""Most nodes of a graph that negatives are drawn from."""
_SRC_HOP, _DST_HOP = 254, 255  # no hop of a sampler has these numbers, so no draw of it is used twice
_MOST_TRIES = 64  # draws of one negative before its allowed nodes are listed


class NegativeDraws:
    """The negatives of each batch of one loader's links.

    Args:
        how: how they are drawn.
        csc: adjacency of the graph.
        links: ``(2, num_links)`` int64 sources and destinations of the loader's links.
        node_time: ``(num_nodes,)`` int64: a link's negatives are nodes up to the link's time. If None, any.
        times: ``(num_links,)`` int64 times of the links, given with ``node_time``.

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
        node_time: Tensor | None = None,
        times: Tensor | None = None,
    ) -> None:
        self.how = how
        self._num_nodes = csc.num_dst
        self._node_time: I64 | None = None if node_time is None else node_time.numpy()
        if not 1 <= self._num_nodes <= MOST_NODES:
            raise ConfigError(
                f"negatives are drawn from graphs of 1 to {MOST_NODES} nodes; this one has {self._num_nodes}"
            )
        self._src = _Nodes(how.src_weight, "src_weight", csc, out_edges=True)
        self._dst = _Nodes(how.dst_weight, "dst_weight", csc, out_edges=False)
        self._known: Csc | None = None
        if how.reject_edges:
            self._known = _destinations_by_source(csc, links)
            self._lookup = EdgeLookup(self._known)
        self._check_some_are_left(links, times)

    def draw(self, key: int, src: I64, times: I64 | None) -> tuple[I64, I64]:
        """Return the sources and destinations of a batch's negatives, ``(how.count(len(src)),)`` each.

        Args:
            key: key of the batch.
            src: sources of the batch's links, which are those of its negatives in mode ``triplet``.
            times: times of the links, if nodes have times.

        Raises:
            DataError: nothing is left to be drawn for a link, at its time.
        """
        number = np.arange(self.how.count(len(src)))
        owner = number % max(len(src), 1)
        until = None if self._node_time is None or times is None else times[owner]
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
            refused = self._lookup.has(tails, heads) | (heads == tails)
        if until is not None and self._node_time is not None:
            refused |= self._node_time[tails] > until
            if not self.how.is_triplet:
                refused |= self._node_time[heads] > until
        return refused

    def _tail_weights(self, head: int, time: int | None) -> F64:
        """Return the weights that the destinations of one source are drawn by; 0 for what is not allowed."""
        weights = self._until(self._dst.weights(), time)
        if self._known is not None:
            weights[_row(self._known, head)] = 0.0
            weights[head] = 0.0
        return weights

    def _head_weights(self, time: int | None) -> F64:
        """Return the weights that sources of pairs are drawn by: those of all pairs that are allowed."""
        heads, tails = self._until(self._src.weights(), time), self._until(self._dst.weights(), time)
        if self._known is None:
            return heads
        sums, counts = self._left_by_head(tails)
        return np.where(counts > 0, heads * np.maximum(sums, 0.0), 0.0)

    def _left_by_head(self, tails: F64) -> tuple[F64, F64]:
        """Return each source's sum of weights over allowed destinations, and how many of these have any."""
        assert self._known is not None
        head, tail = self._known.destinations().numpy(), self._known.indices.numpy()
        is_loop = np.zeros(self._num_nodes, dtype=np.bool_)
        is_loop[head[head == tail]] = True
        some = (tails > 0).astype(np.float64)
        left = []
        for values in (tails, some):
            linked = np.bincount(head, weights=values[tail], minlength=self._num_nodes)
            left.append(values.sum() - linked - np.where(is_loop, 0.0, values))
        return left[0], left[1]

    def _until(self, weights: F64, time: int | None) -> F64:
        if time is None or self._node_time is None:
            return weights
        return np.where(self._node_time <= time, weights, 0.0)

    def _check_some_are_left(self, links: Tensor, times: Tensor | None) -> None:
        if not links.shape[1]:
            return
        if (
            self._node_time is not None
            and times is not None
            and int(times.min()) < int(self._node_time.min())
        ):
            raise ConfigError(
                f"link {int(times.argmin())} can have no negatives: no node is as early as its time"
            )
        if self._known is None:
            return
        _, counts = self._left_by_head(self._dst.weights())
        if not self.how.is_triplet:
            if not (counts * self._src.weights() > 0).any():
                raise ConfigError(
                    "reject_edges leaves no negatives: every pair of different nodes is an edge of the graph "
                    "or one of the links"
                )
            return
        without = np.flatnonzero(counts[links[0].numpy()] <= 0)
        if len(without):
            node = int(links[0, int(without[0])])
            raise ConfigError(
                f"reject_edges leaves no negatives for link {int(without[0])}: its source, node {node}, is "
                "linked to every other node"
            )


class _Nodes:
    """The nodes that one end of a negative is drawn from."""

    def __init__(self, weight: Tensor | str | None, name: str, csc: Csc, *, out_edges: bool) -> None:
        self._count = csc.num_dst
        self._weight: F64 | None = None
        if weight is None:
            return
        self._weight = _as_weights(weight, name, csc, out_edges=out_edges)
        self._running = np.cumsum(self._weight)
        self._last = int(np.flatnonzero(self._weight)[-1])

    def pick(self, bits: rng.U64) -> I64:
        """Return a node for each draw."""
        if self._weight is None:
            return rng.wide_bounded(bits, self._count)
        return _inverted(self._running, self._last, bits)

    def weights(self) -> F64:
        """Return a copy of the weights, ``(num_nodes,)``."""
        return np.ones(self._count) if self._weight is None else self._weight.copy()


def _inverted(running: F64, last: int, bits: rng.U64) -> I64:
    found = np.searchsorted(running, rng.unit(bits) * running[-1], side="right")
    return cast("I64", np.minimum(found, last))  # a product may be rounded up to the whole sum


def _chosen(weights: F64, bits: rng.U64, otherwise: str) -> int:
    positive = np.flatnonzero(weights)
    if not len(positive):
        raise DataError(f"there is no negative to draw: {otherwise}, or to every one of its time")
    return int(_inverted(np.cumsum(weights), int(positive[-1]), bits)[0])


def _as_weights(weight: Tensor | str, name: str, csc: Csc, *, out_edges: bool) -> F64:
    if isinstance(weight, str):
        check_choice(weight, name, (DEGREE,))
        counts = torch.bincount(csc.indices, minlength=csc.num_dst) if out_edges else csc.degrees()
        weight = counts.double()
    values: F64 = check_tensor(weight, name).detach().cpu().double().numpy()
    if values.shape != (csc.num_dst,):
        raise DataError(f"{name} must have one weight per node, shape ({csc.num_dst},); got {values.shape}")
    wrong = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
    if len(wrong):
        raise DataError(f"{name} must be finite and not negative; {name}[{wrong[0]}] is {values[wrong[0]]:g}")
    if not values.sum() > 0:
        raise DataError(f"{name} must have a node of more than 0 to draw; all are 0")
    return values


def _destinations_by_source(csc: Csc, links: Tensor) -> Csc:
    """Return the destinations of each source, sorted and once each, over the graph's edges and the links."""
    heads = torch.cat([csc.indices.long(), links[0]])
    tails = torch.cat([csc.destinations().long(), links[1]])
    both, _ = coo_to_csc(tails, heads, csc.num_dst, csc.num_dst, keep_perm=False)
    return Graph(csc=both).without_duplicates(keep_edge_id=False).csc


def _row(csc: Csc, row: int) -> I64:
    found: I64 = csc.indices[int(csc.indptr[row]) : int(csc.indptr[row + 1])].numpy()
    return found
