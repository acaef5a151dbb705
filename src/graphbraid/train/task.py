"""Task: what kind of labels a graph has, and the loss and predictions that go with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from graphbraid.errors import ConfigError, DataError
from graphbraid.graph import Graph
from graphbraid.graph.validate import UNLABELLED, has_class

TaskName = Literal["single-label", "multi-label", "regression"]
IGNORED = UNLABELLED[0]
"""What :meth:`Task.loss` gives torch for every class that says "no label"."""


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Task:
    """The loss of one kind of label, and how a model's outputs are read."""

    name: TaskName
    """``single-label``: cross entropy; ``multi-label``: binary cross entropy with logits; ``regression``:
    MSE."""
    width: int
    """Columns a model's output needs: classes, labels or target dimensions."""
    class_weights: Tensor | None = None
    """``(width,)`` float32: weight of each class, or of each label's positives; None weighs all alike."""

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Mean loss of ``outputs`` ``(n, width)`` against ``labels`` (rows of ``Graph.y``), in float32.

        Classes of -1 and -100, torch's own, are no label: their rows do not count.
        """
        outputs = outputs.float()
        if self.name == "single-label":
            known = labels.where(has_class(labels), IGNORED)
            return F.cross_entropy(outputs, known, weight=self.class_weights, ignore_index=IGNORED)
        if self.name == "multi-label":
            return F.binary_cross_entropy_with_logits(outputs, labels.float(), pos_weight=self.class_weights)
        return F.mse_loss(outputs, labels.float().reshape(outputs.shape))

    def mass(self, labels: Tensor) -> float:
        """What :meth:`loss` divides by, for putting chunks together: rows, or the sum of their weights."""
        if self.name == "single-label" and self.class_weights is not None:
            return float(self.class_weights[labels[has_class(labels)]].sum())
        return float(labels.shape[0])

    def probabilities(self, outputs: Tensor) -> Tensor:
        """``(n, width)``: class probabilities, label probabilities, or the regression's values themselves."""
        if self.name == "single-label":
            return outputs.float().softmax(dim=-1)
        return outputs.float().sigmoid() if self.name == "multi-label" else outputs.float()

    def to(self, device: torch.device) -> Task:
        """The task with its weights on ``device``."""
        weights = None if self.class_weights is None else self.class_weights.to(device)
        return Task(name=self.name, width=self.width, class_weights=weights)


def task_of(graph: Graph) -> Task:
    """The task that a graph's labels describe.

    Raises:
        DataError: the graph has no labels.
    """
    if graph.y is None:
        raise DataError(
            "training needs labels, but graph.y is None; give the graph labels with graph.replace(y=...)."
        )
    return Task(name=graph.task, width=graph.num_classes)


def labelled(graph: Graph, nodes: Tensor) -> Tensor:
    """The nodes among ``nodes`` that have a label, in their order: classes of -1 and -100 are none.

    Raises:
        DataError: a multi-label or regression row is not finite; names the first.
    """
    assert graph.y is not None
    labels = graph.y.index_select(0, nodes)
    if not labels.is_floating_point():
        known = has_class(labels)
        below = known & (labels < 0)
        if bool(below.any()):
            node = int(nodes[below][0])
            raise DataError(
                f"labels must be classes from 0, or -1 or -100 for none; y[{node}] is {int(graph.y[node])}."
            )
        return nodes[known]
    finite = torch.isfinite(labels).reshape(nodes.numel(), -1).all(dim=1)
    if not bool(finite.all()):
        node = int(nodes[~finite][0])
        raise DataError(
            f"labels of nodes in a split must be finite; y[{node}] is {graph.y[node].tolist()}. Take the "
            "node out of the split."
        )
    return nodes


def with_class_weights(task: Task, choice: str | Sequence[float] | None, labels: Tensor) -> Task:
    """The task with weights of its loss, ``balanced`` over ``labels`` (the training rows) or as given.

    Balanced weights are ``n / (width * count)`` per class, and ``negatives / positives`` per label.

    Raises:
        ConfigError: the task takes no weights, or their number is not ``task.width``.
    """
    if choice is None:
        return task
    if task.name == "regression":
        raise ConfigError(
            f"class_weights={choice!r} needs classes, but the graph's labels are a regression's."
        )
    if isinstance(choice, str):
        weights = _balanced(task, labels)
    elif len(choice) == task.width:
        weights = torch.tensor(choice, dtype=torch.float32)
    else:
        raise ConfigError(f"class_weights must have one weight per class ({task.width}); got {len(choice)}.")
    return Task(name=task.name, width=task.width, class_weights=weights)


def _balanced(task: Task, labels: Tensor) -> Tensor:
    if task.name == "single-label":
        count = torch.bincount(labels, minlength=task.width).clamp(min=1)
        return (labels.numel() / (task.width * count)).float()
    positives = labels.float().sum(dim=0)
    return (labels.shape[0] - positives) / positives.clamp(min=1)
