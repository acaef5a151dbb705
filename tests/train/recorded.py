"""What a run did, step by step."""

from typing import Any

from graphbraid.train import Callback, Trainer


def losses(trainer: Trainer) -> list[float]:
    """Run a trainer; the loss of each of its steps."""
    record: list[float] = []

    class Record(Callback):
        def on_step_end(self, trainer: Trainer, step: Any) -> None:
            record.append(step.loss)

    trainer.callbacks.append(Record())
    trainer.fit()
    return record


class StopAt(Callback):
    """Asks a run to stop after a step, if any."""

    def __init__(self, step: int | None) -> None:
        self.step = step

    def on_step_end(self, trainer: Trainer, step: Any) -> None:
        if step.global_step == self.step:
            trainer.request_stop()
