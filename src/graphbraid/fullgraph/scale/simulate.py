"""simulate(): a step on the busiest rank, on two resources that work at the same time: cores and link.

The link's bytes are moved by the cores, which compute the slower for it while anything is on its way.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphbraid.fullgraph.scale.cluster import Cluster
from graphbraid.fullgraph.scale.division import LargestShare
from graphbraid.fullgraph.scale.phases import Phase, Step
from graphbraid.fullgraph.scale.traffic import Traffic
from graphbraid.fullgraph.step.operations.exchange import MOST_SHARE


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """A step, which is an epoch of full-graph training, on some ranks."""

    num_ranks: int
    seconds: float
    """Time of the step."""
    compute_seconds: float
    """Time that the busiest rank computes."""
    moving_seconds: float
    """Time that its cores take to send and receive bytes, computing or waiting meanwhile."""
    link_seconds: float
    """Time that its link is busy."""
    sent_bytes: float
    """Bytes of rows and their gradients that it sends or receives, without sums of parameters' gradients."""
    memory_bytes: float
    """Bytes of its edges, features, values and gradients."""

    @property
    def waiting_seconds(self) -> float:
        """Time for which its cores wait for the link, with nothing to compute nor to move."""
        return self.seconds - self.compute_seconds - self.moving_seconds

    @property
    def bound_seconds(self) -> float:
        """Time that no overlap can beat: the longer of what its cores do, and of sending."""
        return max(self.compute_seconds + self.moving_seconds, self.link_seconds)


def simulate(
    step: Step,
    share: LargestShare,
    cluster: Cluster,
    *,
    num_nodes: int,
    num_edges: int,
    num_features: int,
    feature_bytes: int = 4,
    slowness: float = 1.0,
    overlaps: bool = True,
) -> Prediction:
    """Run a step through, phase by phase, on the busiest of some ranks; the others are taken to keep up.

    The link takes what is given to it in order, one thing after the other, while cores go on with what does
    not need it. Forward, the rows that others read are computed and sent first, then all; own rows are summed
    while the halo's travel, then the halo's. Backward, the halo's gradients are computed first and travel
    while the own ones are, of sums also those of the linear map before. Sums of parameters' gradients begin
    as each is whole, and are waited for at the end. What sending and receiving bytes takes of the cores is
    taken from computing, spread evenly over the time that they are on the link.

    Args:
        step: a step on one rank, of a graph of any size.
        share: what the busiest rank has of the graph.
        cluster: the ranks and their network.
        num_nodes: nodes of the graph to predict for; phases grow with its edges and nodes.
        num_edges: its edges.
        num_features: its features per node.
        feature_bytes: bytes of one.
        slowness: time of the phases by the step's, as where the step's is a floor.
        overlaps: whether anything is computed while something travels; False predicts blocking calls.
    """
    clock = _Clock(cluster, share, overlaps)
    factors = (
        share.rows * num_nodes / step.num_nodes * slowness / cluster.speed,
        share.edges * num_edges / max(step.num_edges, 1) * slowness / cluster.speed,
    )
    held = 1 + share.halo / share.rows
    for phase in step.phases:
        seconds = phase.seconds * factors[phase.by_edges] * (held if phase.with_halo else 1.0)
        sent = share.halo * num_nodes
        if phase.departs:
            early = phase.early_seconds * factors[phase.by_edges]
            clock.depart(early, phase.departs * sent)
        clock.run(phase, seconds, phase.travels * sent)
    clock.compute(step.other_seconds / cluster.speed)
    clock.end()
    rows = num_nodes * (share.rows + share.halo)
    edge_bytes = 4 if rows < 1 << 31 else 8
    memory = rows * (step.row_bytes + num_features * feature_bytes)
    memory += 2 * edge_bytes * share.edges * num_edges + 16 * share.rows * num_nodes
    return Prediction(
        num_ranks=share.num_ranks,
        seconds=clock.now,
        compute_seconds=clock.computed,
        moving_seconds=clock.link.moved,
        link_seconds=clock.link.sent,
        sent_bytes=clock.row_bytes,
        memory_bytes=memory,
    )


class _Clock:
    """The time of a rank's cores and of its link."""

    def __init__(self, cluster: Cluster, share: LargestShare, overlaps: bool) -> None:
        self._cluster, self._share, self._overlaps = cluster, share, overlaps
        self._sent_share = min(1.0, share.halo / share.rows) if share.rows else 1.0
        self.link = Traffic()
        self.now = self.computed = self.row_bytes = 0.0
        self._departed: float | None = None
        """When the rows arrive that the next forward phase waits for; None if they have not departed."""
        self._owed: float | None = None
        """Backward, time of what comes after gradients that are on their way; None if there are none."""

    def depart(self, seconds: float, num_bytes: float) -> None:
        """Let a few rows be computed first, all of which take ``seconds``, and sent."""
        if self._share.num_ranks > 1 and self._sent_share <= MOST_SHARE:
            self._settle()
            self.compute(seconds * self._sent_share)
            self._departed = self._exchange(num_bytes)

    def run(self, phase: Phase, seconds: float, num_bytes: float) -> None:
        """Run one phase, which computes for ``seconds`` and for which ``num_bytes`` travel."""
        is_divided = (phase.overlaps or phase.halo_first) and self._overlaps
        near = 1 - self._share.remote if is_divided else 0.0
        during, after = near * seconds, (1 - near) * seconds
        if self._owed is not None and phase.is_covered:
            self.compute(seconds)
            self._owed += self._sent_share * seconds
            self._sum(phase)
            return
        self._settle()
        if not phase.travels or self._share.num_ranks == 1:
            self.compute(seconds)
        elif phase.backward:
            self._run_back(phase, during, after, num_bytes)
        else:
            arrives = self._exchange(num_bytes) if self._departed is None else self._departed
            self._departed = None
            self.compute(during)
            self.now = self.link.waited(self.now, arrives)
            self.compute(after)
        self._sum(phase)

    def _run_back(self, phase: Phase, during: float, after: float, num_bytes: float) -> None:
        """Compute the halo's gradients, which depart, and own ones meanwhile."""
        self.compute(after)
        self._exchange(num_bytes)
        self.compute(during)
        self._owed = 0.0
        if not phase.overlaps:
            self._settle()

    def end(self) -> None:
        """Wait for all that is on its way."""
        self._settle()
        self.wait()

    def _settle(self) -> None:
        if self._owed is not None:
            owed, self._owed = self._owed, None
            self.wait()
            self.compute(owed)

    def _sum(self, phase: Phase) -> None:
        if phase.summed_bytes:
            num_ranks, num_bytes = self._share.num_ranks, phase.summed_bytes
            seconds = self._cluster.all_reduce_seconds(num_ranks, num_bytes)
            self._send(seconds, self._cluster.summing_seconds(num_ranks, num_bytes))

    def compute(self, seconds: float) -> None:
        """Let the cores compute."""
        self.now = self.link.computed(self.now, seconds)
        self.computed += seconds

    def wait(self) -> None:
        """Wait until the link has sent everything."""
        self.now = self.link.waited(self.now)

    def _exchange(self, num_bytes: float) -> float:
        """Send rows; return when they have arrived."""
        self.row_bytes += num_bytes
        num_ranks = self._share.num_ranks
        seconds = self._cluster.exchange_seconds(num_ranks, num_bytes)
        return self._send(seconds, self._cluster.moving_seconds(num_bytes, num_ranks - 1))

    def _send(self, seconds: float, moving_seconds: float) -> float:
        arrives = self.link.send(self.now, seconds, moving_seconds)
        if not self._overlaps:
            self.wait()
        return arrives


__all__ = ["Prediction", "simulate"]
