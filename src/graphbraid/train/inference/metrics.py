"""Metrics of an evaluation by name: accuracy and F1 from counts, the others by torchmetrics."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from graphbraid.errors import ConfigError, did_you_mean
from graphbraid.graph import Graph, NodeSet
from graphbraid.train.task import AnyTaskName, Task

if TYPE_CHECKING:
    from torchmetrics import Metric

LOSS, MRR, AUC, AUROC = "loss", "mrr", "auc", "auroc"
USUAL_OF_LINKS = (MRR, AUC, "hits@1", "hits@10")
_HITS = re.compile(r"hits@([1-9]\d{0,8})")


class PredictionCounts:
    """Right and wrong predictions of each class or label, from which accuracies and F1 follow.

    The definitions, and the float32 operations in their order, are those of torchmetrics.
    """

    def __init__(self, task: Task, device: torch.device) -> None:
        self.right, self.false, self.missed = torch.zeros(3, task.width, dtype=torch.int64, device=device)
        self.num_values = 0
        self._of_classes = task.name == "single-label"

    def update(self, predictions: Tensor, targets: Tensor) -> None:
        """Add probabilities ``(n, width)``, and classes ``(n,)`` or labels ``(n, width)`` of 0 and 1."""
        self.num_values += targets.numel()
        if self._of_classes:
            predicted, width = predictions.argmax(dim=1), len(self.right)
            right = torch.bincount(targets[predicted == targets], minlength=width)
            of_predictions, of_targets = (
                torch.bincount(one, minlength=width) for one in (predicted, targets)
            )
        else:
            is_predicted, is_target = predictions > 0.5, targets == 1
            right = (is_predicted & is_target).sum(0)
            of_predictions, of_targets = is_predicted.sum(0), is_target.sum(0)
        self.right += right
        self.false += of_predictions - right
        self.missed += of_targets - right

    def accuracy(self) -> Tensor:
        """Return the share of right predictions of all classes, or of all values of labels."""
        if self._of_classes:
            return _ratio(self.right.sum(), self.right.sum() + self.missed.sum())
        wrong = self.false.sum() + self.missed.sum()
        return _ratio(self.num_values - wrong, torch.tensor(self.num_values))

    def accuracy_macro(self) -> Tensor:
        """Return the mean over the classes of each one's accuracy."""
        return self._mean(_ratio(self.right, self.right + self.missed))

    def f1_micro(self) -> Tensor:
        """Return the F1 score of all classes or labels together."""
        return _f1(self.right.sum(), self.false.sum(), self.missed.sum())

    def f1_macro(self) -> Tensor:
        """Return the mean over the classes or labels of each one's F1 score."""
        return self._mean(_f1(self.right, self.false, self.missed))

    def _mean(self, scores: Tensor) -> Tensor:
        """Return the mean of ``(width,)`` scores, without classes that neither occur nor are predicted."""
        weights = torch.ones_like(scores)
        if self._of_classes:
            weights[self.right + self.false + self.missed == 0] = 0.0
        return _ratio(weights * scores, weights.sum(-1, keepdim=True)).sum(-1)


def _ratio(part: Tensor, whole: Tensor) -> Tensor:
    """Return the quotient in float32; 0 where ``whole`` is 0."""
    part, whole = part.float(), whole.float()
    return torch.where(whole != 0, part / whole, torch.zeros((), device=part.device))


def _f1(right: Tensor, false: Tensor, missed: Tensor) -> Tensor:
    return _ratio(2.0 * right, 2.0 * right + 1.0 * missed + false)


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricKind:
    """A kind of metric: what it follows from, and which direction is better."""

    of_counts: Callable[[PredictionCounts], Tensor] | None = None
    """How it follows from counts. If None, :attr:`make` makes it."""
    make: Callable[[int], Metric] | None = None
    """Function of ``task.width`` that returns a new metric of torchmetrics."""
    maximize: bool = True
    """Whether larger is better."""


def _area(width: int, several: str) -> Metric:
    # Imported only here and below: it takes a second, and most runs need only counts. Ranks gather outputs,
    # not states; torchmetrics would look for a process group by itself.
    from torchmetrics import classification

    if width == 1:
        return classification.BinaryAUROC(sync_on_compute=False)
    made: Metric = getattr(classification, several)(width, average="none", sync_on_compute=False)
    return made


def _error(name: str, **options: Any) -> Metric:
    from torchmetrics import regression

    made: Metric = getattr(regression, name)(sync_on_compute=False, **options)
    return made


_SINGLE = {
    "accuracy": MetricKind(of_counts=PredictionCounts.accuracy),
    "accuracy_macro": MetricKind(of_counts=PredictionCounts.accuracy_macro),
    "f1_macro": MetricKind(of_counts=PredictionCounts.f1_macro),
    "f1_micro": MetricKind(of_counts=PredictionCounts.f1_micro),
    AUROC: MetricKind(make=lambda width: _area(width, "MulticlassAUROC")),
}
_MULTI = {
    "f1_micro": MetricKind(of_counts=PredictionCounts.f1_micro),
    "f1_macro": MetricKind(of_counts=PredictionCounts.f1_macro),
    "accuracy": MetricKind(of_counts=PredictionCounts.accuracy),
    AUROC: MetricKind(make=lambda width: _area(width, "MultilabelAUROC")),
}
_REGRESSION = {
    "mae": MetricKind(make=lambda _: _error("MeanAbsoluteError"), maximize=False),
    "rmse": MetricKind(make=lambda _: _error("MeanSquaredError", squared=False), maximize=False),
    "r2": MetricKind(make=lambda _: _error("R2Score")),
}

METRICS: dict[AnyTaskName, dict[str, MetricKind]] = {
    "single-label": _SINGLE,
    "multi-label": _MULTI,
    "regression": _REGRESSION,
}
USUAL: dict[AnyTaskName, tuple[str, ...]] = {
    "single-label": ("accuracy", "f1_macro"),
    "multi-label": ("f1_micro", "f1_macro"),
    "regression": ("mae", "rmse", "r2"),
}


def metric_names(task: Task, wanted: Sequence[str] | None) -> tuple[str, ...]:
    """Return the names of the metrics to compute: those wanted, or the task's usual ones.

    Raises:
        ConfigError: the task has no metric of that name.
    """
    if task.name == "link":
        return _of_links(USUAL_OF_LINKS if wanted is None else wanted)
    if wanted is None:
        return USUAL[task.name]
    known = METRICS[task.name]
    for name in wanted:
        if name not in known:
            raise ConfigError(
                f"metrics: a {task.name} task has {', '.join(known)}; got {name!r}."
                + did_you_mean(name, known)
            )
    return tuple(dict.fromkeys(wanted))


def hits_of(name: str) -> int | None:
    """Return K of the metric ``hits@K``; None if that is not its name."""
    found = _HITS.fullmatch(name)
    return None if found is None else int(found[1])


def _of_links(wanted: Sequence[str]) -> tuple[str, ...]:
    for name in wanted:
        if name not in (MRR, AUC) and hits_of(name) is None:
            raise ConfigError(
                f"metrics: task='link' has {MRR}, {AUC} and hits@K, such as hits@10; got {name!r}."
                + did_you_mean(name, USUAL_OF_LINKS)
            )
    return tuple(dict.fromkeys(wanted))


def monitored(task: Task, names: Sequence[str], monitor: str | None) -> tuple[str, bool]:
    """Return the metric that decides which epoch is best, and whether larger is better.

    Raises:
        ConfigError: ``monitor`` is not among the metrics computed.
    """
    name = (monitor or names[0]).removeprefix("val_")
    if name == LOSS:
        return name, False
    if name not in names:
        raise ConfigError(
            f"monitor must be one of {', '.join((*names, LOSS))}; got {monitor!r}. Add it to metrics if it "
            "is to be computed."
        )
    return name, task.name == "link" or METRICS[task.name][name].maximize


def check_monitor(name: str, labels: Graph | NodeSet, val_nodes: Tensor | None) -> None:
    """Check that the metric that chooses the best epoch is defined on the validation split.

    Raises:
        ConfigError: it is AUROC, and every node there has the same labels.
    """
    if name != AUROC or val_nodes is None or labels.y is None:
        return
    y = labels.y[val_nodes]
    if bool((y == y[0]).all()):
        raise ConfigError(
            f"monitor={AUROC!r} is not defined on the split 'val', whose labels are all the same; choose "
            "another metric, such as loss, or another split."
        )


class Scores:
    """An accumulator of loss and metrics over chunks of an evaluation's nodes."""

    def __init__(self, task: Task, names: Sequence[str], device: torch.device) -> None:
        self._task = task
        self._kinds = {name: METRICS[task.name][name] for name in names}
        self._counts = PredictionCounts(task, device)
        self._metrics = {
            name: kind.make(task.width).to(device)
            for name, kind in self._kinds.items()
            if kind.make is not None
        }
        self._loss_sum = 0.0
        self._mass = 0.0
        self._num_rows = 0

    def update(self, outputs: Tensor, labels: Tensor) -> None:
        """Add ``outputs`` ``(n, width)`` of labelled nodes and their rows of ``Graph.y``."""
        mass = self._task.mass(labels)
        self._loss_sum += float(self._task.loss(outputs, labels)) * mass
        self._mass += mass
        self._num_rows += labels.shape[0]
        predictions, targets = self._task.probabilities(outputs), labels
        if self._task.name == "multi-label":
            targets = labels.long()
        elif self._task.name == "regression":
            # All target dimensions in one row: mean errors do not depend on which is which.
            predictions, targets = predictions.reshape(-1), labels.float().reshape(-1)
        if len(self._metrics) < len(self._kinds):
            self._counts.update(predictions, targets)
        for metric in self._metrics.values():
            metric.update(predictions, targets)

    def compute(self) -> dict[str, float]:
        """Return the mean loss and every metric.

        A metric that the rows do not define is NaN: R2 of a single row, and AUROC if each class has all rows
        or none.
        """
        if self._num_rows == 0:
            raise AssertionError("no rows to score: callers check that a split is not empty")
        values = {LOSS: self._loss_sum / self._mass}
        for name, kind in self._kinds.items():
            if kind.of_counts is not None:
                values[name] = float(kind.of_counts(self._counts))
            elif name == "r2" and self._num_rows < 2:
                values[name] = float("nan")
            elif name == AUROC:
                values[name] = _mean_auroc(self._metrics[name], self._task)
            else:
                values[name] = float(self._metrics[name].compute())
        return values


def _mean_auroc(metric: Any, task: Task) -> float:
    """Return the mean over the classes that AUROC is defined for; torchmetrics counts the others as 0."""
    labels = torch.cat(metric.target)
    is_of = F.one_hot(labels, task.width) if task.name == "single-label" else labels.reshape(-1, task.width)
    share = is_of.double().mean(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about the classes that are left out
        areas = metric.compute().reshape(-1)
    return float(areas[(share > 0) & (share < 1)].mean())
