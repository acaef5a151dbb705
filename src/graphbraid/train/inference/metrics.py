"""Metrics of an evaluation by name: accuracy and F1 from counts, the others by torchmetrics."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from graphbraid.errors import ConfigError, DataError, did_you_mean
from graphbraid.graph import Graph, NodeSet
from graphbraid.train.task import AnyTaskName, Task

if TYPE_CHECKING:
    from torchmetrics import Metric, MetricCollection

LOSS, MRR, AUC, AUROC, AP = "loss", "mrr", "auc", "auroc", "average_precision"
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
        """Add probabilities ``(n, width)``, and classes ``(n,)`` or labels ``(n, width)``: 0, 1, -1 none."""
        self.num_values += int((targets >= 0).sum())
        if self._of_classes:
            predicted, width = predictions.argmax(dim=1), len(self.right)
            right = torch.bincount(targets[predicted == targets], minlength=width)
            of_predictions, of_targets = (
                torch.bincount(one, minlength=width) for one in (predicted, targets)
            )
        else:
            is_predicted, is_target = (predictions > 0.5) & (targets >= 0), targets == 1
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
    """A kind of metric: its inputs, and the better direction."""

    of_counts: Callable[[PredictionCounts], Tensor] | None = None
    """How it follows from counts. If None, :attr:`make` makes it."""
    make: Callable[[int], Metric | BinaryThreshold] | None = None
    """Function of ``task.width`` that returns a new metric of torchmetrics, or one like it."""
    maximize: bool | None = True
    """Whether larger is better; None if a caller's own metric does not say."""
    is_own: bool = False
    """Whether :attr:`make` copies a caller's own metric, which must return a number."""


def _area(width: int, several: str, one: str = "BinaryAUROC") -> Metric:
    # Imported only here and below: it takes a second, and most runs need only counts. Ranks gather outputs,
    # not states; torchmetrics would look for a process group by itself.
    from torchmetrics import classification

    made: Metric
    if width == 1:
        made = getattr(classification, one)(sync_on_compute=False)
    else:
        missing = {"ignore_index": -1} if several.startswith("Multilabel") else {}
        made = getattr(classification, several)(width, average="none", sync_on_compute=False, **missing)
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
    AP: MetricKind(make=lambda width: _area(width, "MulticlassAveragePrecision")),
}
_MULTI = {
    "f1_micro": MetricKind(of_counts=PredictionCounts.f1_micro),
    "f1_macro": MetricKind(of_counts=PredictionCounts.f1_macro),
    "accuracy": MetricKind(of_counts=PredictionCounts.accuracy),
    AUROC: MetricKind(make=lambda width: _area(width, "MultilabelAUROC")),
    AP: MetricKind(make=lambda width: _area(width, "MultilabelAveragePrecision", "BinaryAveragePrecision")),
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
Kinds = Mapping[str, MetricKind]
"""Metrics by name, in the order in which they are shown."""
USUAL: dict[AnyTaskName, tuple[str, ...]] = {
    "single-label": ("accuracy", "f1_macro"),
    "multi-label": ("f1_micro", "f1_macro"),
    "regression": ("mae", "rmse", "r2"),
}


def metric_kinds(task: Task, wanted: Sequence[str | Metric | MetricCollection] | None) -> Kinds:
    """Return the metrics to compute, by name: those wanted, or the task's usual ones.

    A metric of torchmetrics has the name of its class; those of a ``MetricCollection`` have its names.
    """
    if task.name == "link":
        return dict.fromkeys(_of_links(USUAL_OF_LINKS if wanted is None else wanted), MetricKind())
    known = METRICS[task.name]
    if wanted is None:
        return {name: known[name] for name in USUAL[task.name]}
    found: dict[str, MetricKind] = {}
    for one in wanted:
        if isinstance(one, str):
            if one not in known:
                raise ConfigError(
                    f"metrics: a {task.name} task has {', '.join(known)}; got {one!r}."
                    + did_you_mean(one, known)
                )
            found[one] = known[one]
            continue
        from torchmetrics import MetricCollection  # imported already: this is one of its objects

        own = dict(one.items()) if isinstance(one, MetricCollection) else {type(one).__name__: one}
        for name, metric in own.items():
            if name in found or name == LOSS:
                raise ConfigError(
                    f"metrics: several are named {name!r}; name them by a torchmetrics.MetricCollection."
                )
            found[name] = _own_kind(metric)
    return found


def _own_kind(metric: Metric) -> MetricKind:
    def make(_: int) -> Metric:
        made: Metric = metric.clone()
        made.reset()
        made.distributed_available_fn = lambda: False  # the first rank has all outputs
        return made

    return MetricKind(make=make, maximize=metric.higher_is_better, is_own=True)


def check_own_metrics(task: Task, kinds: Kinds, labels: Tensor) -> None:
    """Try a caller's own metrics on random outputs beside some ``labels``, rows of a split.

    Raises:
        ConfigError: a metric fails, or does not return a number.
    """
    own = {name: kind for name, kind in kinds.items() if kind.is_own}
    drawn = torch.Generator().manual_seed(0)
    outputs = torch.randn(labels.shape[0], task.width, generator=drawn)
    for name, kind in own.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about classes that these rows lack
                scores = Scores(task.to(labels.device), {name: kind}, labels.device)
                scores.update(outputs, labels)
                scores.compute()
        except ConfigError:
            raise
        except Exception as error:  # whatever the caller's metric raises
            raise ConfigError(
                f"metrics: {name} failed on a {task.name} task of width {task.width}: "
                f"{type(error).__name__}: {error}"
            ) from error


def hits_of(name: str) -> int | None:
    """Return K of the metric ``hits@K``; None if that is not its name."""
    found = _HITS.fullmatch(name)
    return None if found is None else int(found[1])


def _of_links(wanted: Sequence[str | Metric | MetricCollection]) -> list[str]:
    names = []
    for name in wanted:
        if not isinstance(name, str):
            raise ConfigError(
                f"metrics: task='link' has names alone, no torchmetrics objects; got {type(name).__name__}."
            )
        if name not in (MRR, AUC) and hits_of(name) is None:
            raise ConfigError(
                f"metrics: task='link' has {MRR}, {AUC} and hits@K, such as hits@10; got {name!r}."
                + did_you_mean(name, USUAL_OF_LINKS)
            )
        names.append(name)
    return names


def monitored(kinds: Kinds, monitor: str | None) -> tuple[str, bool]:
    """Return the metric that decides which epoch is best, and whether larger is better.

    Raises:
        ConfigError: ``monitor`` is not among the metrics computed, or does not say which direction is better.
    """
    name = monitor or next(iter(kinds))
    name = name if name in kinds else name.removeprefix("val_")
    if name == LOSS:
        return name, False
    if name not in kinds:
        raise ConfigError(
            f"monitor must be one of {', '.join((*kinds, LOSS))}; got {monitor!r}. Add it to metrics if it "
            "is to be computed."
        )
    if (maximize := kinds[name].maximize) is None:
        raise ConfigError(
            f"monitor={name!r} does not say whether larger is better (higher_is_better is None); choose "
            "another metric by monitor=."
        )
    return name, maximize


def check_monitor(name: str, labels: Graph | NodeSet, val_nodes: Tensor | None) -> None:
    """Check that the metric that chooses the best epoch is defined on the validation split.

    Raises:
        ConfigError: it is AUROC or average precision, and every node there has the same labels.
    """
    if name not in (AUROC, AP) or val_nodes is None or labels.y is None:
        return
    y = labels.y[val_nodes]
    if bool((y == y[0]).all()):
        raise ConfigError(
            f"monitor={name!r} is not defined on the split 'val', whose labels are all the same; choose "
            "another metric, such as loss, or another split."
        )


def is_binary(task: Task) -> bool:
    """Return whether a task's last column tells positives from negatives."""
    return (task.name, task.width) in (("single-label", 2), ("multi-label", 1))


def best_threshold(scores: Tensor, positive: Tensor, beta: float) -> float:
    """Return the score from which on to predict positives, for the largest F-beta.

    ``scores`` are ``(n,)`` probabilities; ``positive`` is ``(n,)`` int64, 1 for a positive, and at least one
    is. ``beta`` weighs recall beside precision.
    """
    from torchmetrics.functional.classification import binary_precision_recall_curve

    precision, recall, thresholds = binary_precision_recall_curve(scores, positive)
    squared = beta * beta
    quality = (1 + squared) * precision * recall / (squared * precision + recall)
    return float(thresholds[quality[:-1].nan_to_num(0.0).argmax()])  # the last one predicts no positives


class BinaryThreshold:
    """The threshold of the largest F1 score, computed as metrics of torchmetrics are."""

    def __init__(self) -> None:
        self._chunks: list[tuple[Tensor, Tensor]] = []

    def to(self, _device: torch.device) -> BinaryThreshold:
        """Return itself, since it keeps its inputs."""
        return self

    def update(self, scores: Tensor, positive: Tensor) -> None:
        """Add ``(n,)`` probabilities and ``(n,)`` int64 labels."""
        self._chunks.append((scores, positive))

    def compute(self) -> Tensor:
        """Return the threshold, a scalar."""
        scores, positive = (torch.cat(part) for part in zip(*self._chunks, strict=True))
        return torch.tensor(best_threshold(scores, positive, 1.0), dtype=torch.float64)


THRESHOLD: Kinds = {"threshold": MetricKind(make=lambda _: BinaryThreshold())}
"""The threshold alone, as a metric of an evaluation."""


def check_threshold(task: Task, positive: Tensor, split: str) -> None:
    """Refuse a task that needs no threshold, or labels that are all the same.

    ``positive`` has the labels of the split's labelled rows, 1 for a positive.
    """
    if not is_binary(task):
        raise ConfigError(
            f"a threshold is for two classes or one label; this is a {task.name} task of width {task.width}."
        )
    if not 0 < int(positive.sum()) < positive.numel():
        raise DataError(f"a threshold needs positives and negatives; all labels of {split!r} are the same.")


class Scores:
    """An accumulator of loss and metrics over chunks of an evaluation's nodes."""

    def __init__(self, task: Task, kinds: Kinds, device: torch.device) -> None:
        self._task = task
        self._kinds = kinds
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
            targets = labels.nan_to_num(-1).long()
        elif self._task.name == "regression":
            # All target dimensions in one row: mean errors do not depend on which is which.
            predictions, targets = predictions.reshape(-1), labels.float().reshape(-1)
            if self._task.misses_cells:
                known = ~targets.isnan()
                predictions, targets = predictions[known], targets[known]
        if len(self._metrics) < len(self._kinds):
            self._counts.update(predictions, targets)
        for metric in self._metrics.values():
            metric.update(*_for(metric, predictions, targets))

    def compute(self) -> dict[str, float]:
        """Return the mean loss and every metric; ConfigError if one of the caller's own gives no number.

        A metric that the rows do not define is NaN: R2 of a single row, AUROC if each class has all rows or
        none, and average precision if no class counts.
        """
        if self._num_rows == 0:
            raise AssertionError("no rows to score: callers check that a split is not empty")
        values = {LOSS: self._loss_sum / self._mass}
        for name, kind in self._kinds.items():
            if kind.of_counts is not None:
                values[name] = float(kind.of_counts(self._counts))
            elif name == "r2" and self._num_rows < 2:
                values[name] = float("nan")
            elif name in (AUROC, AP) and not kind.is_own:
                values[name] = _mean_area(name, self._metrics[name], self._task)
            else:
                values[name] = _number(name, self._metrics[name].compute())
        return values


def _for(metric: Metric | BinaryThreshold, predictions: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the input of a metric of torchmetrics; a binary one takes the column of the second class."""
    if type(metric).__name__.startswith("Binary") and predictions.ndim == 2:
        if predictions.shape[1] == 2 and targets.ndim == 1:
            return predictions[:, 1], targets
        if predictions.shape[1] == 1:
            return predictions[:, 0], targets.reshape(-1)
    return predictions, targets


def _number(name: str, value: Any) -> float:
    if not isinstance(value, Tensor) or value.numel() != 1:
        got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise ConfigError(f"metrics: {name} must return a number; got {got}. Set its average to 'macro'.")
    return float(value)


def _mean_area(name: str, metric: Any, task: Task) -> float:
    """Return the mean over the classes that an area is defined for; torchmetrics counts some others as 0.

    AUROC needs rows within and without a class, average precision rows within. Of two classes the average
    precision is that of class 1, as scikit-learn's.
    """
    labels = torch.cat(metric.target)
    is_of = F.one_hot(labels, task.width) if task.name == "single-label" else labels.reshape(-1, task.width)
    known = is_of >= 0
    share = (is_of == 1).sum(0).double() / known.sum(0)
    counts = (share > 0) & (share < 1) if name == AUROC else share > 0
    if name == AP and task.name == "single-label" and task.width == 2:
        counts[0] = False
    if task.misses_cells:  # torchmetrics fails where a label is known of no row
        from torchmetrics.functional import classification

        area = getattr(classification, "binary_" + name)
        scores, columns = torch.cat(metric.preds), [int(k) for k in counts.nonzero()]
        kept = [area(scores[known[:, k], k], labels[known[:, k], k]) for k in columns]
        return float(torch.stack(kept).mean()) if kept else float("nan")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about the classes that are left out
        areas = metric.compute().reshape(-1)
    return float(areas[counts].mean())
