"""Training: full-graph training of a planted or scattered graph, by ranks or by one process."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator

import torch
import torch.nn.functional as F

from benchmarks.distributed.planted import make_model, partition_of
from graphbraid import compile  # noqa: A004
from graphbraid.distributed import Communicator
from graphbraid.distributed.ranks.gradients import GradientSum
from graphbraid.fullgraph import ALL, Engine, Evidence, Ranks
from graphbraid.graph import Graph
from graphbraid.machine.hardware import Rates

PASSES = ALL - {"locality", "prune"}
"""Nodes keep their places on one rank as on several, and every row of the halo travels."""


class Training:
    """The training of a graph by ranks, or by one process.

    Args:
        graph: the graph.
        comm: the ranks.
    """

    def __init__(self, graph: Graph, comm: Communicator | None) -> None:
        torch.manual_seed(0)
        self._model = make_model(graph)
        nodes, labels = graph.split("train"), graph.y
        assert labels is not None
        self.ranks = None
        if comm is not None:
            self.ranks = Ranks(comm=comm, partition=partition_of(graph, comm.size))
        engine = compile(
            self._model, graph, ranks=self.ranks, passes=PASSES, evidence=Evidence(rates=Rates())
        )
        assert isinstance(engine, Engine)
        self.engine, self._num_nodes = engine, nodes.numel()
        self._labels = labels[nodes if self.ranks is None else self.ranks.owned(nodes)]
        self._optimizer = torch.optim.Adam(self._model.parameters(), lr=0.01, fused=True)
        self._sums = None
        if comm is not None and self.ranks is not None:
            self._sums = GradientSum(comm, self._model.parameters(), num_extra=1, bucket_bytes=0)
            self.ranks.listen(self._sums.begin)

    def epoch(self) -> float:
        """Train an epoch; returns the loss."""
        self._optimizer.zero_grad()
        loss = F.cross_entropy(self.engine(), self._labels, reduction="sum") / self._num_nodes
        if self._sums is None:
            loss.backward()
            total = float(loss.detach())
        else:
            self._sums.arm()
            loss.backward()
            (total,) = self._sums.finish([float(loss.detach())])
        self._optimizer.step()
        return total

    @contextlib.contextmanager
    def unchanged(self) -> Iterator[None]:
        """Forget afterwards what is learned in the body."""
        kept = copy.deepcopy((self._model.state_dict(), self._optimizer.state_dict()))
        try:
            yield
        finally:
            self._model.load_state_dict(kept[0])
            self._optimizer.load_state_dict(kept[1])


__all__ = ["Training"]
