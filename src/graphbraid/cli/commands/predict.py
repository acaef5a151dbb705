"""``graphbraid predict``: writes the predictions of a trained run, for all or some nodes, or for links."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphbraid.cli.common import (
    DebugOption,
    JsonOption,
    err_console,
    flag,
    guarded,
    path_flag,
    print_json,
    say,
)
from graphbraid.errors import ConfigError, DataError

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from graphbraid.cli.run.build import Outputs
    from graphbraid.cli.run.saved_run import TrainedRun
    from graphbraid.datasets import NodeIds
    from graphbraid.graph import Graph, NodeSet
    from graphbraid.train.inference.evaluate import EvalMode


@guarded
def predict(
    *,
    run: Path = path_flag(..., "--run -r", "Folder of a run of graphbraid train.", metavar="DIR"),
    out: Path = path_flag(..., "--out -o", "File to write: .csv, .npz or .parquet.", metavar="FILE"),
    nodes: Path | None = path_flag(
        None,
        "--nodes",
        "Node ids to predict: a text file, one per line, or .npy. (default: all)",
        metavar="FILE",
    ),
    split: str | None = flag(
        None, "--split", "Predict the nodes, or links, of this split of the data, such as test."
    ),
    pairs: Path | None = path_flag(
        None,
        "--pairs",
        "Of links: pairs to score, a line each: source, relation if there are several, destination "
        "(text or .npy). With --top without destination. (default: the split test)",
        metavar="FILE",
    ),
    top: int | None = flag(
        None, "--top", "Of links: find the likeliest destinations, this many of each source."
    ),
    known: bool = flag(False, "--known", "Of --top: also list the links that the graph has."),
    data: str | None = flag(None, "--data -d", "Another graph of the same kind. (default: the run's)"),
    verify: bool = flag(False, "--verify", "Compare all of a store with its checksums."),
    checkpoint: str = flag("best", "", "best, last, or a checkpoint's path. (default: best)"),
    threshold: float | None = flag(
        None,
        "--threshold",
        "Of two classes: probability from which on to predict the second. (default: the run's, or 0.5)",
    ),
    scores: bool = flag(False, "--scores", "Also write the score of every class (probabilities)."),
    sampled: bool = flag(False, "--sampled", "Use sampled neighbourhoods instead of all neighbours."),
    trust_checkpoint: bool = flag(
        False,
        "--trust-checkpoint",
        "Also load a checkpoint with Python objects, which can run any code: only files you wrote.",
    ),
    json_output: JsonOption = False,
    debug: DebugOption = False,  # noqa: ARG001
) -> None:
    """Predict with a trained run, exactly by default: layer by layer over all neighbours.

    Examples:

        graphbraid predict --run runs/braid-2m-sage-1 --out predictions.csv

        graphbraid predict --run runs/cora-gcn-1 --split test --scores --out test.parquet

        graphbraid predict --run runs/cora-gcn-1 --nodes ids.txt --out some.npz --json

        graphbraid predict --run runs/kg-embedding-1 --pairs heads.txt --top 10 --out tails.csv
    """  # noqa: D412  (typer shows the blank line between examples)
    from graphbraid.cli.run.saved_run import read_saved, trained
    from graphbraid.cli.steps.predict_links import Wanted, predicted_links
    from graphbraid.cli.steps.table_files import require_place, writer_of
    from graphbraid.files.opening import expanded
    from graphbraid.train.run_folder.loggers import METRICS

    write = writer_of(out)
    if nodes is not None and split is not None:
        raise ConfigError("--nodes and --split both choose the nodes; give one of them")
    _, outputs, _ = read_saved(run)
    given = {"--nodes": nodes is not None, "--scores": scores, "--threshold": threshold is not None}
    of_links = {"--pairs": pairs is not None, "--top": top is not None, "--known": known}
    _refuse_others(outputs, given, of_links)
    found = trained(
        run,
        data=data,
        checkpoint=checkpoint,
        trust=trust_checkpoint,
        verify=verify,
        draws_split=split is not None,
    )
    graph, metrics = expanded(found.run.settings.data), run / METRICS
    require_place(out, {"--data": graph, "--nodes": nodes, "--pairs": pairs, "--run": metrics})
    mode: EvalMode = "sampled" if sampled else "exact"
    if outputs.task == "link":
        table, summary = predicted_links(found, Wanted(pairs, split, top, known, mode))
    else:
        least = _threshold_of(run, checkpoint, outputs, threshold)
        table, summary = _predicted_nodes(found, nodes, split, mode, threshold=least, scores=scores)
    write(out, table)
    summary = {"run_dir": str(run), "checkpoint": str(found.weights), "task": outputs.task, **summary}
    summary |= {"out": str(out), "columns": list(table)}
    if json_output:
        print_json(summary)
    else:
        count = f"{len(next(iter(table.values()))):,}"
        say(err_console(), "{} predictions of {} in {}", count, summary["checkpoint"], out)


def _refuse_others(outputs: Outputs, of_nodes: dict[str, bool], of_links: dict[str, bool]) -> None:
    """Refuse options that are for predictions of the other kind."""
    is_link = outputs.task == "link"
    for option, is_given in (of_nodes if is_link else of_links).items():
        if is_given:
            kind, other = ("links", "nodes") if is_link else ("nodes", "links")
            raise ConfigError(f"{option} is for predictions of {other}, and this run is on {kind}")


def _threshold_of(run: Path, checkpoint: str, outputs: Outputs, given: float | None) -> float | None:
    """Return the threshold that was given, else the one that the run keeps for its best epoch; else None.

    Raises:
        ConfigError: the one given is no probability, or there are other than two classes or one label.
    """
    from graphbraid.train.run_folder.folder import RESULT, read_json

    if given is None:
        path = run / RESULT
        kept = read_json(path).get("threshold") if checkpoint == "best" and path.exists() else None
        return None if kept is None else float(kept)
    if not 0 < given < 1:
        raise ConfigError(f"--threshold must be above 0 and below 1; got {given:g}")
    if (outputs.task, outputs.width) not in (("single-label", 2), ("multi-label", 1)):
        raise ConfigError(
            f"--threshold is for two classes or one label; this is a {outputs.task} run of width "
            f"{outputs.width}"
        )
    return given


def _predicted_nodes(
    found: TrainedRun,
    nodes: Path | None,
    split: str | None,
    mode: EvalMode,
    *,
    threshold: float | None,
    scores: bool,
) -> tuple[dict[str, np.ndarray[Any, Any]], dict[str, Any]]:
    import numpy as np
    import torch

    from graphbraid.cli.run.build import names_of
    from graphbraid.train.task import Task

    trainer, run, outputs = found.trainer, found.run, found.outputs
    original_ids = names_of(run.settings.data, run.train.node_type).ids
    labels = trainer.runner.labels
    ids = _chosen_nodes(labels, nodes, split, original_ids)
    values = Task(name=outputs.task, width=outputs.width).probabilities(trainer.predict(ids, mode=mode))
    rows = torch.arange(labels.num_nodes) if ids is None else ids
    names = rows.numpy() if original_ids is None else np.asarray(original_ids.originals(rows))
    table = {"node": names} | _columns(values.numpy(), outputs, threshold, scores=scores)
    return table, {"num_nodes": len(values), "threshold": threshold}


def _chosen_nodes(
    labels: Graph | NodeSet, nodes: Path | None, split: str | None, ids: NodeIds | None
) -> Tensor | None:
    from graphbraid.cli.steps.table_files import nodes_named, read_ids

    if split is not None:
        return labels.split(split)
    if nodes is None:
        return None
    wanted = read_ids(nodes)
    if not len(wanted):
        raise DataError(f"{nodes} holds no node id; leave --nodes out to predict all nodes")
    return nodes_named(wanted, nodes, ids)


def _columns(
    values: np.ndarray[Any, Any], outputs: Outputs, threshold: float | None, *, scores: bool
) -> dict[str, np.ndarray[Any, Any]]:
    """Return the columns of predictions to write, each with one row per node."""
    import numpy as np

    table: dict[str, np.ndarray[Any, Any]] = {}
    if outputs.task == "single-label":
        found = values.argmax(axis=1) if threshold is None else (values[:, 1] >= threshold).astype(np.int64)
        table["prediction"] = found
        table["probability"] = values[np.arange(len(found)), found]
        if outputs.class_names is not None:
            table["class"] = np.asarray(outputs.class_names)[table["prediction"]]
    elif outputs.task == "multi-label":
        is_there = values > 0.5 if threshold is None else values >= threshold
        for label in range(values.shape[1]):
            table[f"prediction_{label}"] = is_there[:, label].astype(np.int64)
    else:
        for target in range(values.shape[1]):
            table[f"prediction_{target}" if values.shape[1] > 1 else "prediction"] = values[:, target]
    if scores and outputs.task != "regression":
        table |= {f"score_{column}": values[:, column] for column in range(values.shape[1])}
    return table
