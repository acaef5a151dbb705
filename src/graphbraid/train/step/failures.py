"""Failures: errors for steps that cannot be made, which say why, where, and what to change."""

from __future__ import annotations

from collections.abc import Callable

from graphbraid.errors import TrainingError
from graphbraid.train.step.runner import ModelRunner

_LONE_ROW = "more than 1 value per channel"
"""Part of the message with which PyTorch's batch normalisation refuses a single row."""


class Failures:
    """A factory of the errors of one run.

    Args:
        runner: runner of the model.
        num_train_nodes: number of training nodes.
        where: function that names the current step.
    """

    def __init__(self, runner: ModelRunner, num_train_nodes: int, where: Callable[[], str]) -> None:
        self._runner, self._num_train_nodes, self._where = runner, num_train_nodes, where

    def of_loss(self, loss: float, learning_rate: float) -> TrainingError:
        """Return the error for a loss that is not finite."""
        engine = self._runner.engine
        return TrainingError(
            f"the loss is {loss} at {self._where()}; no step was made with it. Lower lr "
            f"({learning_rate:g}), set clip, or look for extreme features."
            + (f" In the model, {engine.first_not_finite()}." if engine is not None else "")
        )

    def of_gradients(self, norm: float, learning_rate: float) -> TrainingError:
        """Return the error for gradients that are not finite although the loss is."""
        return TrainingError(
            f"the gradients' norm is {norm} at {self._where()} though the loss is finite; no step was "
            f"made with them. Lower lr ({learning_rate:g}) or look for square roots and "
            "divisions at zero in the model."
        )

    def of_forward(self, error: ValueError) -> TrainingError | None:
        """Return the error that explains a ``ValueError`` of the model, or None if it is not a known one."""
        if _LONE_ROW not in str(error):
            return None
        return TrainingError(
            f"batch normalisation met a single node at {self._where()}, which has no variance; choose a "
            f"batch_size that leaves no lone seed of {self._num_train_nodes} training nodes, or a "
            "model without it."
        )
