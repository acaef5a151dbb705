"""``graphbraid predict``: writes the predictions of a trained run, for nodes, links, edges or graphs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

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
from graphbraid.cli.table_files import nodes_named, read_rows
from graphbraid.errors import ConfigError, DataError, did_you_mean

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from graphbraid.cli.run.build import Outputs
    from graphbraid.cli.run.saved_run import TrainedRun
    from graphbraid.cli.table_files import Table
    from graphbraid.train.inference.evaluate import EvalMode
    from graphbraid.train.step.links.runner import LinkRunner


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
    from graphbraid.cli.table_files import require_place, writer_of
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
    from graphbraid.cli.table_files import nodes_named, read_ids

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


# ---- links


class Wanted(NamedTuple):
    """Which links to predict, and how."""

    pairs: Path | None
    """File of pairs, or with ``top`` of sources. If None, the links of ``split``."""
    split: str | None
    """Split whose links, or with ``top`` whose sources, are predicted; by default test."""
    top: int | None
    """Number of likeliest destinations of each source. If None, pairs are scored."""
    known: bool
    """Whether the likeliest destinations include links that the graph has."""
    mode: EvalMode
    """Whether neighbourhoods are sampled or exact."""


def predicted_links(trained: TrainedRun, wanted: Wanted) -> tuple[Table, dict[str, Any]]:
    """Return the columns to write, and a summary."""
    if wanted.pairs is not None and wanted.split is not None:
        raise ConfigError("--pairs and --split both choose the links; give one of them")
    if wanted.known and wanted.top is None:
        raise ConfigError("--known lists links that the graph has among the likeliest; give --top as well")
    runner: Any = trained.trainer.runner
    names = _Names(trained, runner)
    ends, kind = _of_split(runner, wanted) if wanted.pairs is None else names.read(wanted)
    with_relation = kind if runner.num_relations is not None else None
    if wanted.top is None:
        scores = trained.trainer.predict_links(ends, with_relation, mode=wanted.mode)
        table = names.columns(ends, kind) | {"score": scores.numpy()}
        if trained.run.train.negatives == "binary":
            table["probability"] = scores.sigmoid().numpy()
    else:
        table = _likeliest_links(trained, wanted, names, ends[0], with_relation)
    return table, {"num_links": len(table["score"])}


def _of_split(runner: LinkRunner, wanted: Wanted) -> tuple[Tensor, Tensor | None]:
    """Return the links of a split, or with ``top`` their sources with their relations, each once."""
    import torch

    links = runner.labels
    at = links.split(wanted.split or "test")
    ends, kind = runner.data.ends.within(links.ends[:, at]), links.relations_at(at)
    if wanted.top is None:
        return ends, kind
    if kind is None or runner.num_relations is None:
        return torch.unique(ends[:1], dim=1), None
    both = torch.unique(torch.stack([ends[0], kind]), dim=1)
    return both[:1], both[1]


def _likeliest_links(
    trained: TrainedRun, wanted: Wanted, names: _Names, sources: Tensor, kind: Tensor | None
) -> Table:
    import torch

    assert wanted.top is not None
    found = trained.trainer.top_links(sources, kind, k=wanted.top, known=wanted.known, mode=wanted.mode)
    row, place = (found.nodes >= 0).nonzero().unbind(1)
    ends = torch.stack([sources[row], found.nodes[row, place]])
    table = names.columns(ends, None if kind is None else kind[row])
    return table | {"rank": (place + 1).numpy(), "score": found.scores[row, place].numpy()}


class _Names:
    """Nodes and relations by their names in the user's data."""

    def __init__(self, trained: TrainedRun, runner: LinkRunner) -> None:
        from graphbraid.cli.run.build import names_of

        graph, data = trained.trainer.graph, trained.run.settings.data
        types = runner.data.ends.types
        self._ids = [names_of(data, one if graph.is_typed else None).ids for one in types]
        self._knows_relations = runner.num_relations is not None
        names = [one[1] for one in graph.edge_types]
        self._relations = ["__".join(one) if names.count(one[1]) > 1 else one[1] for one in graph.edge_types]
        """Names of the relations, with their types where two have the same."""

    def columns(self, ends: Tensor, kind: Tensor | None) -> Table:
        """Return source, relation if there are several, and destination of links."""
        import numpy as np

        shown = [
            nodes.numpy() if ids is None else np.asarray(ids.originals(nodes))
            for nodes, ids in zip(ends, self._ids, strict=True)
        ]
        middle = {} if kind is None else {"relation": np.asarray(self._relations)[kind.numpy()]}
        return {"source": shown[0], **middle, "destination": shown[1]}

    def read(self, wanted: Wanted) -> tuple[Tensor, Tensor | None]:
        """Read the pairs in a file, or with ``top`` the sources; with relations if there are several."""
        import torch

        path = wanted.pairs
        assert path is not None
        columns = ["source"] + ["relation"] * self._knows_relations + ["destination"] * (wanted.top is None)
        rows = read_rows(path, columns)
        kind = None
        if self._knows_relations:
            numbers = {name: number for number, name in enumerate(self._relations)}
            kind = torch.tensor([self._number(path, at, row[1], numbers) for at, row in enumerate(rows)])
        nodes = [nodes_named([row[0] for row in rows], path, self._ids[0])]
        if wanted.top is None:
            nodes.append(nodes_named([row[-1] for row in rows], path, self._ids[1]))
        return torch.stack(nodes), kind

    def _number(self, path: Path, at: int, given: Any, numbers: dict[str, int]) -> int:
        name = str(given)
        if name in numbers:
            return numbers[name]
        if name.isdecimal() and int(name) < len(numbers):
            return int(name)
        raise DataError(
            f"{path}: entry {at + 1} names the relation {name!r}, which the graph does not have."
            + did_you_mean(name, list(numbers))
        )
