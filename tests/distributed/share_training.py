"""Ranks of a test that count what they train on and add up."""

from typing import Any

from tests.distributed.training import BASE, graph_of, make

from graphbraid.train import Callback, Trainer

OPTIONS: dict[str, Any] = BASE | {"epochs": 1, "test_at_end": False, "layout": "subgraph"}


class _Counts(Callback):
    """Notes each batch that the model is trained on, and the bytes of each sum, step by step."""

    def __init__(self, comm, runner) -> None:
        self.shares: list[list[int]] = []
        self.sums: list[list[int]] = []
        self._step: list[int] = []
        on_batch, all_reduce = runner.on_batch, comm.transport.all_reduce

        def noted_batch(batch):
            if runner.model.training:
                self.shares.append([batch.num_nodes, batch.num_edges])
            return on_batch(batch)

        def noted_sum(tensor, op):
            self._step.append(tensor.nbytes)
            return all_reduce(tensor, op)

        runner.on_batch, comm.transport.all_reduce = noted_batch, noted_sum

    def on_epoch_start(self, trainer, epoch) -> None:
        self._step.clear()  # what was agreed on, and tried, before
        self.shares.clear()

    def on_step_end(self, trainer, record) -> None:
        self.sums.append(list(self._step))
        self._step.clear()


def counted(comm) -> dict[str, Any]:
    """What a rank trains on in each step, and the bytes of its sums."""
    graph = graph_of()
    trainer = Trainer(make("sage", graph), graph, **OPTIONS)
    counts = _Counts(comm, trainer.runner)
    trainer.callbacks.append(counts)
    trainer.fit()
    return {"shares": counts.shares, "sums": counts.sums}
