"""Pages about runs: one run, or several side by side. A page is one file and asks nothing of the net.

``graphbraid report`` writes :func:`report`, with sections on predictions and on the graph; ``graphbraid
compare`` writes :func:`comparison`.
"""

from __future__ import annotations

import csv
import io
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from pydantic import TypeAdapter

from graphbraid.datasets.npy import Array
from graphbraid.errors import DataError
from graphbraid.figures import (
    Points,
    bar_chart,
    epoch_charts,
    figures,
    heat_map,
    line,
    line_chart,
    metric_names,
    page,
    preformatted,
    result_rows,
    stage_chart,
    table,
)
from graphbraid.files.opening import read_text
from graphbraid.files.schema import checked
from graphbraid.files.writing import format_bytes
from graphbraid.sampling.rows.by_id import TierCounts
from graphbraid.train.run_folder.folder import ENVIRONMENT, RESULT, read_config, read_json
from graphbraid.train.run_folder.loggers import METRICS

if TYPE_CHECKING:
    from torch import Tensor

    from graphbraid.graph import Graph


MOST_BATCHES = 100
"""Batches of a timeline: a report stays small."""
BESIDE = (
    "<p>Sampling and gathering run in threads beside the model. The model waits for them as long as "
    "<i>wait</i> says.</p>"
)


@dataclass(frozen=True, slots=True)
class RunFiles:
    """The files of a run's folder."""

    path: Path
    settings: dict[str, Any]
    """Options of the command line, or of the Trainer if Python made the run."""
    environment: dict[str, Any]
    result: dict[str, Any]
    """Empty if the run has not ended."""
    epochs: list[dict[str, float]]
    """Rows of ``metrics.csv``; an empty cell is missing."""

    @classmethod
    def read(cls, path: Path) -> RunFiles:
        """Read a folder; ConfigError if it holds no run, DataError if a file of the run is damaged."""
        config = read_config(path)
        info = config.get("info") or {}
        return cls(
            path=path,
            settings=info.get("settings") or config.get("train") or {},
            environment=read_json(path / ENVIRONMENT) if (path / ENVIRONMENT).is_file() else {},
            result=read_json(path / RESULT) if (path / RESULT).is_file() else {},
            epochs=rows_of(path / METRICS) if (path / METRICS).is_file() else [],
        )

    @property
    def title(self) -> str:
        """Model, data and folder."""
        model, data = self.settings.get("model", "a model"), self.settings.get("data", "a graph")
        return f"{model} on {data}, {self.path.absolute().name}"


def rows_of(file: Path) -> list[dict[str, float]]:
    """Read ``metrics.csv``, whose last line may be in part while the run goes on."""
    try:
        rows = csv.DictReader(io.StringIO(read_text(file)))
        found = [{k: number(v) for k, v in row.items() if k and v} for row in rows]
    except (ValueError, csv.Error) as error:
        raise DataError(f"{file} is damaged: it is no table of numbers ({error}).") from error
    return [row for row in found if "epoch" in row]


def number(text: str) -> float:
    """Return a cell as a number; True is 1."""
    return float(text == "True") if text in ("True", "False") else float(text)


def report(run: RunFiles, *, predictions: str = "", graph: str = "", command: Sequence[str] = ()) -> str:
    """Return the page.

    Args:
        run: the run.
        predictions: section on its predictions, or why there is none.
        graph: section on its graph.
        command: words of the command that trains the same again.
    """
    ended = (
        result_rows(run.result)
        if run.result
        else [("status", f"has not ended; {len(run.epochs)} epochs so far")]
    )
    stages = figures([stage_chart(run.epochs)])
    taken = run.result.get("resources", {})
    options = [(name, value) for name, value in run.settings.items() if value not in (None, False, {}, [])]
    return page(
        run.title,
        [
            ("Result", table(ended)),
            ("Epochs", figures(epoch_charts(run.epochs))),
            ("Where the time went", stages and stages + BESIDE),
            ("Memory", table(memory_rows(taken, run.environment))),
            ("Where feature rows and lists lay", placement(taken)),
            ("Plan of the mini-batches", plan_section(run)),
            ("Predictions of the test split", predictions),
            ("Graph", graph),
            ("The same again", preformatted(shlex.join(command)) if command else ""),
            ("Options", table(options)),
            ("Machine", table(machine_rows(run.environment))),
        ],
    )


def memory_rows(taken: Mapping[str, Any], environment: Mapping[str, Any]) -> list[tuple[str, object]]:
    """Peaks of memory; of the host's as a share of the machine, too."""
    rows: list[tuple[str, object]] = []
    total = environment.get("machine", {}).get("memory_total_bytes")
    if peak := taken.get("host_peak_bytes"):
        rows.append(("peak of the process", format_bytes(peak)))
        if total:
            rows.append((f"share of the machine's {format_bytes(total)}", f"{peak / total:.1%}"))
    if peak := taken.get("device_peak_bytes"):
        rows.append(("peak on the device", format_bytes(peak)))
    return rows


_TIERS = {
    "hot_rows": "the device",
    "peer_rows": "other devices",
    "ring_rows": "the batch before",
    "host_rows": "memory",
    "disk_rows": "disk",
}


def placement(taken: Mapping[str, Any]) -> str:
    """Where rows and lists lay, in words, and a bar for each tier that served reads."""
    reads = {name: taken.get("reads", {}).get(tier, 0) for tier, name in _TIERS.items()}
    served = {name: float(count) for name, count in reads.items() if count}
    parts = [part for part in taken.get("placement", "").split("\n\n") if part]
    told = [preformatted(part) if "\n" in part else f"<p>{escape(part)}</p>" for part in parts]
    return "".join(told) + figures([bar_chart(served, title="Reads of feature rows")])


def plan_section(run: RunFiles) -> str:
    """The plan of a run's mini-batches and its timeline; the page of a trace has the measured one, too."""
    values = run.result.get("resources", {}).get("plan")
    if values is None:
        return ""
    from graphbraid.collective.plan.plan import Plan  # here: few runs have a plan
    from graphbraid.collective.run.trace import TIMELINE_STYLE, foreseen, timelines

    file = f"{run.path / RESULT}, resources.plan: "
    plan: Plan = checked(TypeAdapter(Plan), values, lambda text: DataError(file + text))
    shown = min(plan.num_batches, MOST_BATCHES)
    lines = timelines(foreseen(plan, shown), [], plan)
    drawn = (
        f"<p>The first {shown} of {plan.num_batches:,} batches of an epoch.</p>"
        if shown < plan.num_batches
        else ""
    )
    return f"<style>{TIMELINE_STYLE}</style>{table(plan.rows())}{drawn}{lines}"


def machine_rows(environment: Mapping[str, Any]) -> list[tuple[str, object]]:
    """Machine and versions."""
    if not environment:
        return []
    machine, kernels = environment.get("machine", {}), environment.get("kernels", {})
    memory = machine.get("memory_total_bytes", 0) / 2**30
    return [
        ("processor", f"{machine.get('cpu_model')}, {machine.get('usable_cores')} cores, {memory:.1f} GiB"),
        ("kernels", f"{kernels.get('variant')}: {kernels.get('reason')}"),
        ("graphbraid, Python", f"{environment.get('graphbraid')}, {environment.get('python')}"),
        ("ranks", environment.get("ranks", 1)),
        *environment.get("packages", {}).items(),
    ]


_OF_THE_FOLDER = ("out_dir", "resume", "overwrite")


def comparison(runs: Sequence[RunFiles]) -> str:
    """Return the page: results, the options that differ, and curves over common axes."""
    names = [str(run.path) for run in runs]
    metrics = dict.fromkeys(name for run in runs for name in metric_names(run.epochs))
    titles = {"train_loss": "Loss"} | {name: f"Validation {name[4:]}" for name in metrics}
    charts = [
        line_chart({str(run.path): line(run.epochs, column) for run in runs}, x="epoch", y=title)
        for column, title in titles.items()
    ]
    heads, rows = result_table(runs)
    return page(
        f"{len(runs)} runs",
        [
            ("Results", table(rows, heads)),
            ("Options that differ", table(differing_options(runs), ("option", *names))),
            ("Epochs", figures(charts)),
        ],
    )


def result_table(runs: Sequence[RunFiles]) -> tuple[list[str], list[list[Any]]]:
    """Return the heads and a row per run; a column that is empty for all runs is left out."""
    tests = list(dict.fromkeys(name for run in runs for name in run.result.get("test", {})))
    heads = ["run", "status", "epochs", "seconds", "peak memory", "rows from disk", "plan", "best validation"]
    heads += [f"test {name}" for name in tests]
    rows = []
    for run in runs:
        found = run.result or {"status": "has not ended", "num_epochs": len(run.epochs)}
        cells = [str(run.path), *(found.get(key, "") for key in ("status", "num_epochs", "seconds"))]
        cells += [*taken_cells(found.get("resources", {})), found.get("best_value")]
        test = found.get("test", {})
        rows.append([*("" if c is None else c for c in cells), *(test.get(n, "") for n in tests)])
    said = [at for at in range(len(heads)) if any(row[at] != "" for row in rows)]
    return [heads[at] for at in said], [[row[at] for at in said] for row in rows]


def taken_cells(taken: Mapping[str, Any]) -> list[str]:
    """Peak memory of a run, the share of the reads of rows that the disk served, and the kind of its plan."""
    peak, reads = taken.get("host_peak_bytes"), TierCounts(**taken.get("reads", {}))
    plan = taken.get("plan")
    if plan is None:
        kind = ""
    elif plan["cores"] is not None:
        kind = f"{plan['cores']['workers']} sampling, {plan['cores']['threads']} training"
    else:
        kind = f"{plan['num_cpu'] / plan['num_batches']:.0%} of batches by the CPU"
    return [
        format_bytes(peak) if peak else "",
        f"{reads.disk_rows / reads.reads:.1%}" if reads.reads else "",
        kind,
    ]


def differing_options(runs: Sequence[RunFiles]) -> list[list[Any]]:
    """Return a row per option that is not the same in all runs."""
    options = dict.fromkeys(name for run in runs for name in run.settings if name not in _OF_THE_FOLDER)
    rows = [[name, *(run.settings.get(name) for run in runs)] for name in options]
    rows.append(["ranks", *(run.environment.get("ranks", 1) for run in runs)])
    return [row for row in rows if any(value != row[1] for value in row[2:])]


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


CHUNK = 1 << 22
"""Edges compared at a time, so that no array of a number per edge is held."""


def graph_section(graph: Graph) -> str:
    """Return the section; of a graph with types, counts alone."""
    rows: list[tuple[str, object]] = [("nodes", graph.num_nodes), ("edges", graph.num_edges)]
    if graph.is_typed:
        rows += [(f"nodes of {name}", graph.nodes_of(name).num_nodes) for name in graph.node_types]
        rows += [(f"edges {' '.join(kind)}", graph.edges_of(kind).num_edges) for kind in graph.edge_types]
        return table(rows)
    degrees = graph.csc.indptr.diff()
    if degrees.numel():
        rows += [
            ("in-degree, mean", float(degrees.double().mean())),
            ("in-degree, median", int(degrees.median())),
        ]
        rows.append(("in-degree, largest", int(degrees.max())))
        rows.append(("nodes without in-edges", int((degrees == 0).sum())))
    if graph.y is not None and graph.task == "single-label" and graph.num_edges:
        share = homophily(graph, graph.y)
        rows.append(("edges that join equal labels (homophily)", f"{share:.1%}"))
    bins = torch.bincount(degrees.clamp(min=1).double().log2().floor().long()) if degrees.numel() else degrees
    bars = {
        f"{2**b}" if b == 0 else f"{2**b} to {2 ** (b + 1) - 1}": float(n)
        for b, n in enumerate(bins.tolist())
    }
    return table(rows) + figures([bar_chart(bars, title="Nodes by in-degree; 0 counts as 1")])


def homophily(graph: Graph, labels: Tensor) -> float:
    """Return the share of edges between two labelled nodes whose labels are equal (edge homophily)."""
    indptr, indices = graph.csc.indptr, graph.csc.indices
    same = known = 0
    for begin in range(0, graph.num_edges, CHUNK):
        edges = torch.arange(begin, min(begin + CHUNK, graph.num_edges))
        destination = torch.searchsorted(indptr, edges, right=True) - 1
        ends = labels[indices[edges].long()], labels[destination]
        both = (ends[0] >= 0) & (ends[1] >= 0)
        known += int(both.sum())
        same += int((both & (ends[0] == ends[1])).sum())
    return same / known if known else float("nan")
