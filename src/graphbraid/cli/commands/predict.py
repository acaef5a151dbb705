"""``graphbraid predict``: writes the predictions of a trained run, for nodes, links, edges or graphs."""

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
        None, "--split", "Predict the nodes, links, edges or graphs of this split, such as test."
    ),
    pairs: Path | None = path_flag(
        None,
        "--pairs",
        "Of links: pairs to score, a line each: source, relation if there are several, destination "
        "(text or .npy). With --top without destination. (default: the split test)",
        metavar="FILE",
    ),
    top: int | None = flag(
        None,
        "--top",
        "Of links: find the likeliest destinations, this many of each source. Of labels: write only this "
        "many nodes, edges or graphs, the likeliest of each class or label, or those of the largest target.",
    ),
    embeddings: Path | None = path_flag(
        None,
        "--embeddings",
        "Also write the last hidden rows of the nodes to this file, .parquet with their ids, or .npy; of "
        "links and edges, the encoder's rows of all nodes.",
        metavar="FILE",
    ),
    embeddings_of: str | None = flag(
        None, "--embeddings-of", "Write --embeddings of all nodes of this type. (default: the type predicted)"
    ),
    known: bool = flag(False, "--known", "Of --top: also list the links that the graph has."),
    data: str | None = flag(None, "--data -d", "Another graph of the same kind. (default: the run's)"),
    verify: bool = flag(False, "--verify", "Compare all of a store with its checksums."),
    checkpoint: str = flag("best", "", "best, last, or a checkpoint's path. (default: best)"),
    threshold: float | None = flag(
        None,
        "--threshold",
        "Of two classes: predict the second from this probability on. (default: the run's, or 0.5)",
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

        graphbraid predict --run runs/payments-1 --split test --scores --out judged.parquet

        graphbraid predict --run runs/shop-1 --out churn.parquet --embeddings customers.parquet --top 100
    """  # noqa: D412  (typer shows the blank line between examples)
    from graphbraid.arguments import as_count
    from graphbraid.cli.run.saved_run import read_saved, trained
    from graphbraid.cli.steps.predict_links import Wanted, predicted_links
    from graphbraid.cli.steps.table_files import require_place, writer_of
    from graphbraid.files.opening import expanded
    from graphbraid.train.inference.embed import check_name
    from graphbraid.train.run_folder.loggers import METRICS

    write = writer_of(out)
    if nodes is not None and split is not None:
        raise ConfigError("--nodes and --split both choose the nodes; give one of them")
    if embeddings is None and embeddings_of is not None:
        raise ConfigError("--embeddings-of says whose rows --embeddings writes; give that as well")
    if embeddings is not None:
        check_name(embeddings)
    if top is not None:
        as_count(top, "--top", least=1)
        if scores or threshold is not None:
            option = "--scores" if scores else "--threshold"
            raise ConfigError(f"{option} is for all nodes, and --top lists the likeliest; give one of them")
    saved, outputs, _ = read_saved(run)
    given = {"--scores": scores, "--threshold": threshold is not None}
    given |= {"--nodes": nodes is not None, "--pairs": pairs is not None, "--known": known}
    _refuse_others(str(saved.get("task", "node")), given)
    found = trained(
        run,
        data=data,
        checkpoint=checkpoint,
        trust=trust_checkpoint,
        verify=verify,
        draws_split=split is not None,
    )
    graph, metrics = expanded(found.run.settings.data), run / METRICS
    read = {"--data": graph, "--nodes": nodes, "--pairs": pairs, "--run": metrics}
    require_place(out, read)
    mode: EvalMode = "sampled" if sampled else "exact"
    ids = None if outputs.task == "link" else _chosen(found, nodes, split)
    if embeddings is not None:
        require_place(embeddings, read, "--embeddings")
        if embeddings.absolute() == out.absolute():
            raise ConfigError(f"--embeddings and --out are both {out}; choose another name for one of them")
        of_edges = found.run.train.task == "edge"
        _write_embeddings(found, embeddings, embeddings_of, None if of_edges else ids, mode)
    if outputs.task == "link":
        table, summary = predicted_links(found, Wanted(pairs, split, top, known, mode))
    else:
        least = _threshold_of(run, checkpoint, outputs, threshold)
        table, summary = _predicted(found, ids, mode, threshold=least, scores=scores, top=top)
    write(out, table)
    summary = {"run_dir": str(run), "checkpoint": str(found.weights), "task": outputs.task, **summary}
    summary |= {"out": str(out), "columns": list(table)}
    if json_output:
        print_json(summary)
    else:
        count = f"{len(next(iter(table.values()))):,}"
        say(err_console(), "{} predictions of {} in {}", count, summary["checkpoint"], out)


_FOR = {"--nodes": ("node",), "--pairs": ("link",), "--known": ("link",)}
"""Tasks that an option is for; an option that is not here is for labels of nodes, edges and graphs."""


def _refuse_others(task: str, given: dict[str, bool]) -> None:
    """Refuse options that are for predictions of another kind."""
    for option, is_given in given.items():
        of = _FOR.get(option, ("node", "edge", "graph"))
        if is_given and task not in of:
            raise ConfigError(f"{option} is for predictions of {of[0]}s, and this run is on {task}s")


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


def _write_embeddings(
    found: TrainedRun, path: Path, of_type: str | None, ids: Tensor | None, mode: EvalMode
) -> None:
    """Write the rows of the nodes that are predicted, or of all nodes of another type, with their ids."""
    from graphbraid.train.inference.embed import nodes_to_embed

    trainer = found.trainer
    wanted, all_ids = nodes_to_embed(trainer.runner, trainer.config, of_type)
    if ids is None or wanted != trainer.runner.learned_type:
        ids = all_ids
    columns = {"node": _originals(found, wanted, ids)}
    trainer.write_embeddings(path, ids, columns=columns, node_type=wanted, mode=mode)


def _predicted(
    found: TrainedRun,
    ids: Tensor | None,
    mode: EvalMode,
    *,
    threshold: float | None,
    scores: bool,
    top: int | None,
) -> tuple[dict[str, np.ndarray[Any, Any]], dict[str, Any]]:
    import torch

    from graphbraid.train.task import Task

    trainer, outputs = found.trainer, found.outputs
    task = Task(name=outputs.task, width=outputs.width)
    values = task.probabilities(trainer.predict(ids, mode=mode)).numpy()
    names = _names(found, torch.arange(len(values)) if ids is None else ids)
    count = {f"num_{found.run.train.task}s": len(values)}
    if top is not None:
        return _likeliest(values, outputs, names, top), count
    return names | _columns(values, outputs, threshold, scores=scores), {**count, "threshold": threshold}


def _names(found: TrainedRun, ids: Tensor) -> dict[str, np.ndarray[Any, Any]]:
    """Return columns with the ids of the predicted nodes, ends of edges, or graphs."""
    runner: Any = found.trainer.runner
    if found.run.train.task == "edge":
        ends = runner.data.ends
        of_types = zip(ends.types, ends.within(runner.labels.ends[:, ids]), strict=True)
        names = [_originals(found, node_type, nodes) for node_type, nodes in of_types]
        return {"source": names[0], "destination": names[1], "edge": ids.numpy()}
    if found.graph_type is not None:
        return {"graph": _originals(found, found.graph_type, ids)}
    return {"node": _originals(found, runner.learned_type, ids)}


def _originals(found: TrainedRun, node_type: str | None, nodes: Tensor) -> np.ndarray[Any, Any]:
    """Return the ids that nodes have in the user's data."""
    import numpy as np

    from graphbraid.cli.run.build import names_of

    ids = names_of(found.run.settings.data, node_type).ids
    return nodes.numpy() if ids is None else np.asarray(ids.originals(nodes))


def _chosen(found: TrainedRun, nodes: Path | None, split: str | None) -> Tensor | None:
    from graphbraid.cli.run.build import names_of
    from graphbraid.cli.steps.table_files import nodes_named, read_ids

    if split is not None:
        chosen: Tensor = found.trainer.runner.labels.split(split)
        return chosen
    if nodes is None:
        return None
    wanted = read_ids(nodes)
    if not len(wanted):
        raise DataError(f"{nodes} holds no node id; leave --nodes out to predict all nodes")
    of_type = found.trainer.runner.learned_type
    return nodes_named(wanted, nodes, names_of(found.run.settings.data, of_type).ids)


def _likeliest(
    values: np.ndarray[Any, Any], outputs: Outputs, names: dict[str, np.ndarray[Any, Any]], count: int
) -> dict[str, np.ndarray[Any, Any]]:
    """Return the ``count`` rows of the largest value in each column, the largest first."""
    import numpy as np

    orders = (-values).argsort(axis=0, kind="stable")[:count]
    column = np.arange(values.shape[1]).repeat(len(orders))
    rows = orders.T.reshape(-1)
    table = {name: of[rows] for name, of in names.items()}
    if outputs.task == "single-label":
        table["prediction"] = column
        if outputs.class_names is not None:
            table["class"] = np.asarray(outputs.class_names)[column]
    else:
        table["label" if outputs.task == "multi-label" else "target"] = column
    table["rank"] = np.tile(np.arange(1, len(orders) + 1), values.shape[1])
    table["prediction" if outputs.task == "regression" else "probability"] = values[rows, column]
    return table


def _columns(
    values: np.ndarray[Any, Any], outputs: Outputs, threshold: float | None, *, scores: bool
) -> dict[str, np.ndarray[Any, Any]]:
    """Return the columns of predictions to write, each with one row per node, edge or graph."""
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
