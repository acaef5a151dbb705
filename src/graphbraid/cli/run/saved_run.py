"""A run's folder: a new one, or a saved one with its options, the meaning of its outputs and its model."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from graphbraid.cli.run.build import (
    Outputs,
    build_link_model,
    build_model,
    check_predictable,
    check_values_of,
    load_graph,
)
from graphbraid.cli.run.settings import GivenOptions, ResolvedRun, RunSettings, parse_assignments, resolve
from graphbraid.errors import ConfigError, DataError, ResourceError
from graphbraid.files.schema import checked
from graphbraid.files.writing import resource_error
from graphbraid.files.yaml_file import read_yaml
from graphbraid.graph import Graph
from graphbraid.train.run_folder.contract import Contract, contract_in
from graphbraid.train.run_folder.folder import CONFIG, folders_of_job, read_config

if TYPE_CHECKING:
    from torch import nn

    from graphbraid.graph.graph_set import GraphSet
    from graphbraid.train import Trainer


_OUTPUTS = TypeAdapter(Outputs)


def read_saved(run_dir: Path) -> tuple[dict[str, Any], Outputs, Contract]:
    """Read a saved run's options, the meaning of its outputs, and its requirements on a graph."""
    content, path = read_config(run_dir), run_dir / CONFIG
    if unknown := set(content) - {"train", "info", "contract"}:
        raise DataError(f"{path} has an unknown field {min(unknown)!r}; was it changed since it was written?")
    info = content.get("info")
    settings, outputs = (
        (info.get("settings"), info.get("outputs")) if isinstance(info, dict) else (None, None)
    )
    if not isinstance(settings, dict) or not isinstance(outputs, dict):
        raise ConfigError(
            f"{path} names no model and data: the run was not made by `graphbraid train`. In Python, "
            "build the model and use Trainer.load_weights"
        )
    found = checked(_OUTPUTS, outputs, lambda text: DataError(f"{path}: info.outputs.{text}"))
    names = found.class_names
    if names is not None and len(names) != found.width:
        raise DataError(f"{path}: info.outputs: {len(names)} class names for {found.width} outputs")
    # With many graphs, the contract is that of the graph of tables that they are taken from.
    return settings, found, contract_in(content["info"].get("source", content.get("contract")), path)


_NOT_PREDICTING = frozenset({"checkpoint_every_steps", "tensorboard", "host", "hot", "tiers", "remote"})
"""Training options that are irrelevant without a run folder, or on data that is no store or no parts."""


def resolve_given(given: GivenOptions) -> ResolvedRun:
    """Combine the options of a command line with those of the file, and of the saved run, that it names."""
    values = dict(given.values) | parse_assignments(given.assignments)
    file = read_yaml(given.config) if given.config else {}
    if not values.get("resume"):
        return resolve(values, file)
    if values.get("out_dir") is None and "out_dir" not in file:
        raise ConfigError("--resume needs --out with the folder of the run to go on with")
    out_dir = values.get("out_dir") or file["out_dir"].value
    if not isinstance(out_dir, str | Path) or not str(out_dir):
        raise ConfigError(f"out_dir must be the folder of the run to go on with; got {out_dir!r}")
    if values["resume"] == "auto" and not (Path(out_dir) / CONFIG).exists():
        return resolve(values, file)
    saved, _, _ = read_saved(Path(out_dir))
    return resolve(values, file, saved, saved_in=Path(out_dir))


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class TrainedRun:
    """A trained run."""

    trainer: Trainer
    """A Trainer with the checkpoint's weights."""
    run: ResolvedRun
    """Its options, with the data to predict."""
    outputs: Outputs
    weights: Path
    graph_type: str | None = None
    """With ``task: graph``, the node type that the graphs are in the data."""


def trained(
    run_dir: Path,
    *,
    data: str | None = None,
    checkpoint: str = "best",
    trust: bool = False,
    verify: bool = False,
    draws_split: bool,
    labels: bool = False,
) -> TrainedRun:
    """Load the run in a folder.

    Without ``data`` the run's graph is predicted on. ``trust`` allows Python objects in the checkpoint;
    ``verify`` compares all of a store with its checksums. ``draws_split`` says that a random split of the
    nodes is needed: other data may have no labels to draw one. With ``labels`` the graph keeps them, and they
    are checked like those to train on.
    """
    from graphbraid.train import Trainer

    saved, outputs, contract = read_saved(run_dir)
    # Edges to validate and to test on carry no messages: those of the run are told by its split.
    splits_edges = saved.get("task") == "edge" and data is None
    if not draws_split and not splits_edges:
        saved |= {"split_seed": None, "split": None, "target": None}
    kept = {name: value for name, value in saved.items() if name not in _NOT_PREDICTING}
    run = resolve({"data": data, "trust_checkpoint": trust, "verify": verify}, saved=kept, saved_in=run_dir)
    task, graph_type = run.train.task, None
    graph: Graph | GraphSet = _load(run, moved=data is None, splits=draws_split or splits_edges)
    assert isinstance(graph, Graph)
    if task in ("edge", "link"):
        check_values_of(graph, run.settings)
    graph = contract.matched(graph, labels=labels or (task == "edge" and (draws_split or splits_edges)))
    if task in ("node", "graph"):
        check_predictable(graph, run.settings)
    weights = _checkpoint_path(run_dir, checkpoint)
    if task in ("edge", "graph"):
        from graphbraid.cli.run import tasks  # here: few runs have these
        from graphbraid.graph.graph_set import GraphSet, types_of_sets

        if task == "graph":
            graph_type = types_of_sets(graph)[1]
            graph = GraphSet.from_graph(graph)
            model: nn.Module = tasks.build_graph_model(graph, run, outputs.width)
        else:
            model = tasks.build_edge_model(graph, run, outputs.width)
    else:
        model = build_link_model(graph, run) if task == "link" else build_model(graph, run, outputs.width)
    trainer = Trainer(model, graph, config=run.train)
    trainer.load_weights(weights)
    return TrainedRun(trainer=trainer, run=run, outputs=outputs, weights=weights, graph_type=graph_type)


def _load(run: ResolvedRun, *, moved: bool, splits: bool) -> Graph:
    data = run.settings.data
    try:
        if run.train.task == "edge":
            from graphbraid.cli.run.tasks import edges_to_learn  # here: few runs have these

            return edges_to_learn(run, splits=splits)[0]
        return load_graph(run.settings)
    except DataError as error:
        if moved and "/" in data and not Path(data).exists():
            raise DataError(
                f"the run's data {data} is not there any more; say where it is with --data"
            ) from error
        raise


def _checkpoint_path(run_dir: Path, checkpoint: str) -> Path:
    if checkpoint not in ("best", "last"):
        return Path(checkpoint)
    path = run_dir / "checkpoints" / f"{checkpoint}.pt"
    if checkpoint == "best" and not path.exists():  # a run without validation has no best one
        path = path.with_name("last.pt")
    return path


@contextlib.contextmanager
def in_own_folder(run: ResolvedRun, runs: Path) -> Iterator[tuple[ResolvedRun, Path]]:
    """Yield the run and its ``out_dir``, removed if left empty; ResourceError if no folder can be made there.

    If it has none, it is a new one in ``runs``, or the one that this job had before it was started again.
    """
    if run.train.out_dir is not None:
        yield run, run.train.out_dir
        return
    folder = next(iter(folders_of_job(runs)), None) or _made_folder(runs, run.settings)
    try:
        yield dataclasses.replace(run, train=run.train.updated(out_dir=folder)), folder
    finally:
        with contextlib.suppress(OSError):  # not empty: a run has started in it, or others have
            folder.rmdir()
            runs.rmdir()


def _made_folder(runs: Path, settings: RunSettings) -> Path:
    """Make and return the first of ``DATA-MODEL-1``, ``-2``, ... that does not exist yet."""
    stem = f"{Path(settings.data).stem or 'graph'}-{settings.model}"
    try:
        runs.mkdir(parents=True, exist_ok=True)
        for number in itertools.count(1):
            folder = runs / f"{stem}-{number}"
            with contextlib.suppress(FileExistsError):  # it belongs to whoever made it first
                folder.mkdir()
                return folder
    except OSError as error:
        raise resource_error(error, runs) or ResourceError(
            f"cannot make a folder for the run in {runs}: {error.strerror}; name one with --out"
        ) from error
    raise AssertionError("numbers do not end")
