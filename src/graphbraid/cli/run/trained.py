"""The model of a run in its folder, made again and loaded, to predict with it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from graphbraid.errors import DataError

if TYPE_CHECKING:
    from graphbraid.cli.run.saved_run import Outputs
    from graphbraid.cli.run.settings import ResolvedRun
    from graphbraid.graph import Graph
    from graphbraid.train import Trainer

_NOT_PREDICTING = frozenset({"checkpoint_every_steps", "tensorboard", "host", "hot", "tiers"})
"""Training options that are irrelevant without a run folder, or on data that is no store."""


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class TrainedRun:
    """A trained run."""

    trainer: Trainer
    """A Trainer with the checkpoint's weights."""
    run: ResolvedRun
    """Its options, with the data to predict."""
    outputs: Outputs
    """Meaning of the model's outputs."""
    weights: Path
    """The checkpoint."""


def trained(
    run_dir: Path, *, data: str | None, checkpoint: str, trust: bool, verify: bool, draws_split: bool
) -> TrainedRun:
    """Load the run in a folder.

    Args:
        run_dir: folder that ``graphbraid train`` left.
        data: the graph to predict on. If None, the run's.
        checkpoint: ``best``, ``last`` or a path.
        trust: whether the checkpoint may hold Python objects.
        verify: whether to compare all of a store with its checksums.
        draws_split: whether a random split of the nodes is needed; other data may have no labels to draw one.

    Raises:
        ConfigError: the folder holds no run, or the checkpoint is of another model.
        DataError: the data or the checkpoint is not there or is damaged.
    """
    from graphbraid.cli.run.build import build_model_for, check_predictable
    from graphbraid.cli.run.link import build_link_model
    from graphbraid.cli.run.saved_run import read_saved
    from graphbraid.cli.run.settings import resolve
    from graphbraid.train import Trainer

    saved, outputs, contract = read_saved(run_dir)
    if not draws_split:
        saved |= {"split_seed": None}
    kept = {name: value for name, value in saved.items() if name not in _NOT_PREDICTING}
    run = resolve({"data": data, "trust_checkpoint": trust, "verify": verify}, saved=kept, saved_in=run_dir)
    of_links = outputs.task == "link"
    graph = _load(run, moved=data is None, of_links=of_links)
    if contract is not None:
        graph = contract.matched(graph, labels=False)
    if not of_links:
        check_predictable(graph, run.settings)
    weights = _checkpoint_path(run_dir, checkpoint)
    model = build_link_model(graph, run) if of_links else build_model_for(graph, run, outputs.width)
    trainer = Trainer(model, graph, config=run.train)
    trainer.load_weights(weights)
    return TrainedRun(trainer=trainer, run=run, outputs=outputs, weights=weights)


def _load(run: ResolvedRun, *, moved: bool, of_links: bool) -> Graph:
    from graphbraid.cli.run.build import load_graph
    from graphbraid.cli.run.link import load_links

    settings = run.settings
    try:
        if of_links:
            return load_links(settings)
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
