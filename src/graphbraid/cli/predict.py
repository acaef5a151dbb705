"""``graphbraid predict``: writes the predictions of a trained run, for all or some nodes."""

from __future__ import annotations

import csv
import operator
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from graphbraid.cli.common import DebugOption, JsonOption, err_console, guarded, path_given, print_json, say
from graphbraid.errors import ConfigError, DataError, MissingPackageError

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from graphbraid.cli.settings import Outputs, RunSettings
    from graphbraid.datasets import NodeIds
    from graphbraid.graph import Graph, NodeSet

_ROWS_AT_ONCE = 65_536
_NOT_PREDICTING = frozenset({"checkpoint_every_steps", "tensorboard", "host", "hot", "tiers"})
"""Training options that are irrelevant without a run folder, or on data that is no store."""


@guarded
def predict(
    *,
    run: Annotated[
        Path,
        typer.Option(
            "--run", "-r", help="Folder of a run of graphbraid train.", metavar="DIR", parser=path_given
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", help="File to write: .csv, .npz or .parquet.", metavar="FILE", parser=path_given
        ),
    ],
    nodes: Annotated[
        Path | None,
        typer.Option(
            "--nodes",
            help="Node ids to predict: a text file, one per line, or .npy. (default: all)",
            metavar="FILE",
            parser=path_given,
        ),
    ] = None,
    split: Annotated[
        str | None, typer.Option("--split", help="Predict the nodes of this split of the data, such as test.")
    ] = None,
    data: Annotated[
        str | None, typer.Option("--data", "-d", help="Another graph of the same kind. (default: the run's)")
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Compare all of a store with its checksums.")
    ] = False,
    checkpoint: Annotated[
        str, typer.Option(help="best, last, or a checkpoint's path. (default: best)", show_default=False)
    ] = "best",
    scores: Annotated[
        bool, typer.Option("--scores", help="Also write the score of every class (probabilities).")
    ] = False,
    sampled: Annotated[
        bool, typer.Option("--sampled", help="Use sampled neighbourhoods instead of all neighbours.")
    ] = False,
    trust_checkpoint: Annotated[
        bool,
        typer.Option(
            "--trust-checkpoint",
            help="Also load a checkpoint with Python objects, which can run any code: only files you wrote.",
        ),
    ] = False,
    json_output: JsonOption = False,
    debug: DebugOption = False,  # noqa: ARG001
) -> None:
    """Predict with a trained run, exactly by default: layer by layer over all neighbours.

    Examples:

        graphbraid predict --run runs/braid-2m-sage-1 --out predictions.csv

        graphbraid predict --run runs/cora-gcn-1 --split test --scores --out test.parquet

        graphbraid predict --run runs/cora-gcn-1 --nodes ids.txt --out some.npz --json
    """  # noqa: D412  (typer shows the blank line between examples)
    write = _writer(out)
    if nodes is not None and split is not None:
        raise ConfigError("--nodes and --split both choose the nodes; give one of them")
    table, summary = _predict(
        run_dir=run,
        data=data,
        checkpoint=checkpoint,
        nodes=nodes,
        split=split,
        mode="sampled" if sampled else "exact",
        scores=scores,
        trust=trust_checkpoint,
        verify=verify,
    )
    write(out, table)
    summary |= {"out": str(out), "columns": list(table)}
    if json_output:
        print_json(summary)
    else:
        count = f"{summary['num_nodes']:,}"
        say(err_console(), "{} predictions of {} in {}", count, summary["checkpoint"], out)


def _predict(
    *,
    run_dir: Path,
    data: str | None,
    checkpoint: str,
    nodes: Path | None,
    split: str | None,
    mode: Any,
    scores: bool,
    trust: bool,
    verify: bool,
) -> tuple[dict[str, np.ndarray[Any, Any]], dict[str, Any]]:
    import torch

    from graphbraid.cli.build import build_model_for, check_predictable, names_of
    from graphbraid.cli.settings import read_saved, resolve
    from graphbraid.train import Trainer
    from graphbraid.train.task import Task

    saved, outputs = read_saved(run_dir)
    if outputs.task == "link":
        raise ConfigError(
            f"{run_dir} holds a run on links, and predict writes outputs of nodes; in Python, load its "
            "weights (Trainer.load_weights) and score pairs with Trainer.predict_links"
        )
    if split is None:  # other data may have no labels to draw a split from
        saved |= {"split_seed": None}
    kept = {name: value for name, value in saved.items() if name not in _NOT_PREDICTING}
    run = resolve({"data": data, "trust_checkpoint": trust, "verify": verify}, saved=kept, saved_in=run_dir)
    graph = _load_graph(run.settings, moved=data is None)
    check_predictable(graph, run.settings)
    weights = _checkpoint_path(run_dir, checkpoint)
    model = build_model_for(graph, run, outputs.width)
    trainer = Trainer(model, graph, config=run.train)
    trainer.load_weights(weights)
    original_ids = names_of(run.settings.data, run.train.node_type).ids
    labels = trainer.runner.labels
    ids = _chosen_nodes(labels, nodes, split, original_ids)
    values = Task(name=outputs.task, width=outputs.width).probabilities(trainer.predict(ids, mode=mode))
    summary = {
        "run_dir": str(run_dir),
        "checkpoint": str(weights),
        "num_nodes": len(values),
        "task": outputs.task,
    }
    nodes_of_rows = torch.arange(labels.num_nodes) if ids is None else ids
    return _table(values.numpy(), outputs, nodes_of_rows, original_ids, scores), summary


def _load_graph(settings: RunSettings, *, moved: bool) -> Graph:
    from graphbraid.cli.build import load_graph

    try:
        return load_graph(settings)
    except DataError as error:
        if moved and "/" in settings.data and not Path(settings.data).exists():
            raise DataError(
                f"the run's data {settings.data} is not there any more; say where it is with --data"
            ) from error
        raise


def _checkpoint_path(run_dir: Path, checkpoint: str) -> Path:
    if checkpoint not in ("best", "last"):
        return Path(checkpoint)
    path = run_dir / "checkpoints" / f"{checkpoint}.pt"
    if checkpoint == "best" and not path.exists():  # a run without validation has no best one
        path = path.with_name("last.pt")
    return path


def _chosen_nodes(
    labels: Graph | NodeSet, nodes: Path | None, split: str | None, ids: NodeIds | None
) -> Tensor | None:
    import torch

    if split is not None:
        return labels.split(split)
    if nodes is None:
        return None
    wanted = _read_ids(nodes)
    if not len(wanted):
        raise DataError(f"{nodes} holds no node id; leave --nodes out to predict all nodes")
    if ids is not None and isinstance(ids[0], str):
        return ids.nodes_of([str(value) for value in wanted])
    numbers = _as_numbers(wanted, nodes)
    return torch.tensor(numbers) if ids is None else ids.nodes_of(numbers)


def _read_ids(path: Path) -> Any:
    """Return the ids in a ``.npy`` file, or the lines of a text file."""
    from graphbraid.datasets.npy import read_npy

    if path.suffix == ".npy":
        ids = read_npy(path)
        if ids.ndim != 1 or ids.dtype.kind not in "iufUS":
            raise DataError(f"{path} must hold 1-d node ids; got {ids.dtype} of shape {ids.shape}")
        return [value.decode() for value in ids] if ids.dtype.kind == "S" else ids.tolist()
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except Exception as error:  # such as an encoding error
        raise DataError(f"the node ids in {path} cannot be read: {error}") from error
    return [line for line in lines if line]


def _as_numbers(wanted: Any, path: Path) -> list[int]:
    numbers = []
    for position, value in enumerate(wanted):
        try:
            numbers.append(int(value) if isinstance(value, str) else operator.index(value))
        except (TypeError, ValueError) as error:
            raise DataError(
                f"{path}: entry {position + 1} is {str(value)!r}, not a node id (a whole number)"
            ) from error
        if not -(1 << 63) <= numbers[-1] < 1 << 63:
            raise DataError(f"{path}: entry {position + 1} is {value}, beyond any node id")
    return numbers


def _table(
    values: np.ndarray[Any, Any], outputs: Outputs, nodes: Tensor, ids: NodeIds | None, scores: bool
) -> dict[str, np.ndarray[Any, Any]]:
    """Return the columns to write, each with one row per node."""
    import numpy as np

    originals = nodes.numpy() if ids is None else np.asarray(ids.originals(nodes))
    table: dict[str, np.ndarray[Any, Any]] = {"node": originals}
    if outputs.task == "single-label":
        table["prediction"] = values.argmax(axis=1)
        table["probability"] = values.max(axis=1)
        if outputs.class_names is not None:
            table["class"] = np.asarray(outputs.class_names)[table["prediction"]]
    elif outputs.task == "multi-label":
        for label in range(values.shape[1]):
            table[f"prediction_{label}"] = (values[:, label] > 0.5).astype(np.int64)
    else:
        for target in range(values.shape[1]):
            table[f"prediction_{target}" if values.shape[1] > 1 else "prediction"] = values[:, target]
    if scores and outputs.task != "regression":
        table |= {f"score_{column}": values[:, column] for column in range(values.shape[1])}
    return table


def _writer(out: Path) -> Callable[[Path, dict[str, np.ndarray[Any, Any]]], None]:
    writers = {".csv": _write_csv, ".npz": _write_npz, ".parquet": _write_parquet}
    if out.suffix not in writers:
        raise ConfigError(f"--out must end in {', '.join(writers)}; got {out}")
    if out.suffix == ".parquet":
        _pyarrow()
    return writers[out.suffix]


def _write_csv(out: Path, table: dict[str, np.ndarray[Any, Any]]) -> None:
    from graphbraid.files.writing import atomic_write

    with atomic_write(out) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(table)
        for rows in _row_chunks(table):
            writer.writerows(rows)


def _row_chunks(table: dict[str, np.ndarray[Any, Any]]) -> Iterator[Iterator[tuple[Any, ...]]]:
    """Yield the rows in chunks, with floats as the shortest text that reads back to the same float32."""
    columns = list(table.values())
    for start in range(0, len(columns[0]), _ROWS_AT_ONCE):
        chunk = [column[start : start + _ROWS_AT_ONCE] for column in columns]
        yield zip(
            *(part.astype(str) if part.dtype.kind == "f" else part.tolist() for part in chunk), strict=True
        )


def _write_npz(out: Path, table: dict[str, np.ndarray[Any, Any]]) -> None:
    import numpy as np

    from graphbraid.files.writing import atomic_write

    with atomic_write(out) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **table)  # type: ignore[arg-type]


def _write_parquet(out: Path, table: dict[str, np.ndarray[Any, Any]]) -> None:
    from graphbraid.files.writing import atomic_write

    arrow = _pyarrow()
    with atomic_write(out) as temporary:
        arrow.parquet.write_table(arrow.table(dict(table)), str(temporary), write_page_checksum=True)


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingPackageError(
            "writing Parquet needs the package pyarrow: pip install 'graphbraid[tabular]'; "
            "or choose .csv or .npz"
        ) from error
    return pyarrow
