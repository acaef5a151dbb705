"""Metrics of an evaluation by name, computed with torchmetrics."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torchmetrics import Metric, classification, regression

from graphbraid.errors import ConfigError, did_you_mean
from graphbraid.graph import Graph, NodeSet
from graphbraid.train.task import AnyTaskName, Task

LOSS, MRR, AUC, AUROC = "loss", "mrr", "auc", "auroc"
USUAL_OF_LINKS = (MRR, AUC, "hits@1", "hits@10")
_HITS = re.compile(r"hits@([1-9]\d{0,8})")


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricKind:
    """A kind of metric: how to make it, and which direction is better."""

    make: Callable[[int], Metric]
    """Function of ``task.width`` that returns a new metric."""
    maximize: bool = True
    """Whether larger is better."""


def _average(metric: Any, averaging: str) -> Callable[[int], Metric]:
    def make(width: int) -> Metric:
        if width == 1:  # one label, which torchmetrics has metrics of its own for
            alone: Metric = _OF_ONE_LABEL[metric](sync_on_compute=False)
            return alone
        size = {"num_labels": width} if metric.__name__.startswith("Multilabel") else {"num_classes": width}
        # Ranks gather outputs, not states; torchmetrics would look for a process group by itself.
        made: Metric = metric(**size, average=averaging, sync_on_compute=False)
        return made

    return make


_OF_ONE_LABEL: dict[Any, Any] = {
    classification.MultilabelF1Score: classification.BinaryF1Score,
    classification.MultilabelAccuracy: classification.BinaryAccuracy,
    classification.MultilabelAUROC: classification.BinaryAUROC,
}

_SINGLE = {
    "accuracy": MetricKind(make=_average(classification.MulticlassAccuracy, "micro")),
    "accuracy_macro": MetricKind(make=_average(classification.MulticlassAccuracy, "macro")),
    "f1_macro": MetricKind(make=_average(classification.MulticlassF1Score, "macro")),
    "f1_micro": MetricKind(make=_average(classification.MulticlassF1Score, "micro")),
    AUROC: MetricKind(make=_average(classification.MulticlassAUROC, "none")),
}
_MULTI = {
    "f1_micro": MetricKind(make=_average(classification.MultilabelF1Score, "micro")),
    "f1_macro": MetricKind(make=_average(classification.MultilabelF1Score, "macro")),
    "accuracy": MetricKind(make=_average(classification.MultilabelAccuracy, "micro")),
    AUROC: MetricKind(make=_average(classification.MultilabelAUROC, "none")),
}
_REGRESSION = {
    "mae": MetricKind(make=lambda _: regression.MeanAbsoluteError(sync_on_compute=False), maximize=False),
    "rmse": MetricKind(
        make=lambda _: regression.MeanSquaredError(squared=False, sync_on_compute=False), maximize=False
    ),
    "r2": MetricKind(make=lambda _: regression.R2Score(sync_on_compute=False)),
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
        self._metrics = {name: METRICS[task.name][name].make(task.width).to(device) for name in names}
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
        for name, metric in self._metrics.items():
            if name == "r2" and self._num_rows < 2:
                values[name] = float("nan")
            else:
                values[name] = _mean_auroc(metric, self._task) if name == AUROC else float(metric.compute())
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
