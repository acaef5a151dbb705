"""A run's predictions beside the labels: confusion, precision and recall, ROC, calibration."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphbraid.datasets.npy import Array
from graphbraid.figures.charts import Points, heat_map, line_chart
from graphbraid.figures.page import figures, table

MOST_CLASSES = 40
"""Classes of a confusion matrix that is drawn; more would be no picture."""
BINS = 10


def of_classes(
    probabilities: Array, labels: Array, names: Sequence[str], *, threshold: float | None = None
) -> str:
    """Describe predictions of one class per node.

    Args:
        probabilities: ``(num_nodes, num_classes)``, each row's sum 1.
        labels: ``(num_nodes,)`` int64 true classes.
        names: names of the classes.
        threshold: of two classes, the probability from which on the second is predicted. If None, the
            likelier class is.
    """
    classes = probabilities.shape[1]
    predicted = probabilities.argmax(axis=1) if threshold is None else (probabilities[:, 1] >= threshold) + 0
    counts = np.bincount(labels * classes + predicted, minlength=classes**2).reshape(classes, classes)
    right, support, taken = counts.diagonal(), counts.sum(axis=1), counts.sum(axis=0)
    rows = [
        (names[c], int(support[c]), *(right[c] / n[c] if n[c] else "none" for n in (taken, support)))
        for c in range(classes)
    ]
    shown = {names[c]: c for c in np.argsort(-support, kind="stable")[: 1 if classes == 2 else 5]}
    shown = {names[1]: 1} if classes == 2 else shown
    drawn = (
        [heat_map(counts, names, title="Confusion: a row per true class")] if classes <= MOST_CLASSES else []
    )
    drawn += curves({name: (probabilities[:, c], labels == c) for name, c in shown.items()})
    drawn.append(calibration(probabilities[np.arange(len(labels)), predicted], predicted == labels))
    heads = ("class", "nodes", "precision", "recall")
    told = (
        ""
        if threshold is None
        else f"<p>{names[1]} is predicted from a probability of {threshold:.4g} on.</p>"
    )
    return told + figures(drawn) + table(rows, heads)


def of_labels(probabilities: Array, labels: Array) -> str:
    """Describe predictions of several labels per node; both ``(num_nodes, num_labels)``, NaN for no label."""
    known = ~np.isnan(labels)
    order = np.argsort(-np.nansum(labels, axis=0), kind="stable")[:5]
    drawn = curves({f"label {c}": (probabilities[known[:, c], c], labels[known[:, c], c] > 0) for c in order})
    drawn.append(calibration(probabilities[known], labels[known] > 0))
    return figures(drawn)


def of_targets(predicted: Array, targets: Array) -> str:
    """Describe predictions of numbers; both ``(num_nodes, num_targets)``, NaN for no target."""
    drawn = []
    for column in range(targets.shape[1]):
        error = np.abs(predicted[:, column] - targets[:, column])
        error = np.sort(error[~np.isnan(error)])
        shares = np.arange(1, len(error) + 1) / len(error) if len(error) else error
        points = list(zip(error.tolist(), shares.tolist(), strict=True))
        title = f"share of nodes with at most this error, target {column}"
        drawn.append(line_chart({title: points}, x="absolute error", y=title))
    return figures(drawn)


def curves(scores: dict[str, tuple[Array, Array]]) -> list[str]:
    """Draw precision over recall, and the ROC curve, of scores and true labels, by name."""
    recall: dict[str, Points] = {}
    roc: dict[str, Points] = {}
    for name, (score, is_true) in scores.items():
        if not 0 < is_true.sum() < len(is_true):
            continue
        order = np.argsort(-score, kind="stable")
        last = np.r_[np.flatnonzero(np.diff(score[order])), len(score) - 1]  # equal scores are one threshold
        found = np.cumsum(is_true[order])[last]
        wrong = last + 1 - found
        hits, misses = found / is_true.sum(), wrong / (~is_true).sum()
        precision = found / (last + 1)
        area = float(np.trapezoid(np.r_[0.0, hits], np.r_[0.0, misses]))
        average = float(np.sum(np.diff(np.r_[0.0, hits]) * precision))
        recall[f"{name}: average precision {average:.3f}"] = list(zip(hits, precision, strict=True))
        roc[f"{name}: area {area:.3f}"] = [(0.0, 0.0), *zip(misses, hits, strict=True)]
    return [
        line_chart(recall, x="recall", y="Precision", named=True),
        line_chart(roc, x="false positive rate", y="ROC: true positive rate", diagonal=True, named=True),
    ]


def calibration(confidence: Array, is_right: Array) -> str:
    """Draw how often predictions are right beside how sure they are, in ten bins of probability."""
    bins = np.minimum((confidence * BINS).astype(int), BINS - 1)
    points, gap = [], 0.0
    for b in np.unique(bins):
        inside = bins == b
        sure, right = float(confidence[inside].mean()), float(is_right[inside].mean())
        points.append((sure, right))
        gap += abs(sure - right) * float(inside.mean())
    title = f"Calibration: share that is right (mean gap {gap:.3f})"
    return line_chart({"right": points}, x="probability", y=title, diagonal=True)
