"""Saving: writes a run's files during training, and loads the checkpoint that a later run continues from."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from graphbraid.errors import ConfigError, DataError
from graphbraid.train import runtime
from graphbraid.train.callbacks import Callback, Listeners, Progress, RunResult
from graphbraid.train.inference.metrics import LOSS
from graphbraid.train.run.ranks import RunRanks
from graphbraid.train.run.setup import RunParts, RunState
from graphbraid.train.run_folder import checkpoint
from graphbraid.train.run_folder.checkpoint import check_fits, check_weights
from graphbraid.train.run_folder.contract import check_same, check_same_model, model_identity
from graphbraid.train.run_folder.folder import CONFIG, ENVIRONMENT, RESULT, RunFolder, environment, keep
from graphbraid.train.run_folder.loggers import RunLog
from graphbraid.train.step.runner import ModelRunner
from graphbraid.train.step.step import STAGES


def load_rows(runner: ModelRunner, contents: Mapping[str, Any], beside: Path, *, states: bool) -> None:
    """Load this rank's share of the learned rows of a checkpoint, if the model has some.

    All ranks call it together.

    Args:
        runner: the model, with its rows.
        contents: the checkpoint.
        beside: folder of the checkpoint.
        states: whether the optimizer's state is loaded, too.

    Raises:
        ConfigError: the model has such rows and the checkpoint has none, or other ones; or the reverse.
        DataError: a file is damaged or missing.
    """
    record = contents.get("learned_rows")
    if (record is None) != (runner.learned is None):
        has, lacks = ("model", "checkpoint") if record is None else ("checkpoint", "model")
        raise ConfigError(
            f"the {has} has learned rows that ranks divide (ShardedEmbedding), and the {lacks} has none; "
            "make the model as it was"
        )
    if runner.learned is not None:
        from graphbraid.distributed.shards.learned_files import read  # here: few runs have such rows

        read(runner.learned, record, beside, states=states)


def read_weights(path: str | os.PathLike[str], model: nn.Module, *, trust: bool) -> dict[str, Any]:
    """Read a checkpoint whose weights a model is to have, and check that they fit it.

    Raises:
        ConfigError: the file does not exist, or is of another model.
        DataError: the file is damaged.
    """
    contents = checkpoint.read(path, trust=trust)
    check_same_model(contents["model_identity"], model, path)
    try:
        check_weights(contents["model"], model)
    except ValueError as error:
        raise DataError(f"{path} is no sound checkpoint: {error}") from None
    return contents


class Saving:
    """The logs and checkpoints of one run; without a folder, the best weights are kept in memory.

    Of several ranks, the first has the folder, if there is one; the others get what it reads.
    """

    def __init__(
        self,
        state: RunState,
        parts: RunParts,
        listeners: Listeners,
        folder: RunFolder | None,
        ranks: RunRanks,
    ) -> None:
        self._ranks = ranks
        self._state, self._parts, self._listeners, self._folder = state, parts, listeners, folder
        self._best_weights: dict[str, Tensor] | None = None
        self._best_rows: dict[str, Tensor] = {}
        self._rows_of: dict[Path, str] = {}
        """Folder of the learned rows of each checkpoint."""
        self.log: RunLog | None = None
        """Log files, once the run begins; None without a folder."""

    # ---- the start

    def begin(self) -> None:
        """Prepare the folder of a new run."""
        if self._folder is None:
            return
        self._folder.clear()
        self._describe(self._folder)
        keep(self._folder.path, self._state.runner.engine, self._state.plan)
        self.log = RunLog(self._folder.path, self._columns())

    def go_on(self) -> None:
        """Continue the run from the folder's last checkpoint.

        Raises:
            ConfigError: the model or an option differs from that run's.
            DataError: the checkpoint or a log is damaged, or the checkpoint is of another graph.
        """
        self._load(self._folder)
        if self._folder is not None:
            self._folder.note_changes()
            self._describe(self._folder)

    def _describe(self, folder: RunFolder) -> None:
        config = {"train": self._state.config.to_json(), "info": dict(self._state.info)}
        folder.write_json(CONFIG, config | {"contract": self._state.identity["contract"]})
        folder.write_json(ENVIRONMENT, environment() | {"ranks": self._ranks.size})

    def _columns(self) -> list[str]:
        evaluated = () if self._parts.val_nodes is None else (LOSS, *self._state.metrics)
        val = [f"val_{name}" for name in evaluated]
        seconds = [f"{stage}_seconds" for stage in STAGES]
        return ["epoch", "global_step", "train_loss", *val, "learning_rate", "is_best", *seconds]

    # ---- on the way

    def save(self, *, is_best: bool) -> None:
        """Write a checkpoint, also as the best one if it is; without a folder, keep the best weights.

        Raises:
            ResourceError: the disk is full; the former checkpoints are intact.
        """
        learned, record = self._state.runner.learned, None
        if learned is not None and self._has_folder:
            from graphbraid.distributed.shards.learned_files import write  # here: few runs have such rows

            beside = None if self._folder is None else self._folder.checkpoints
            record = write(learned, beside, self._state.progress.global_step)
        if self._folder is None or self.log is None:
            if is_best:
                weights = self._state.runner.model.state_dict()
                self._best_weights = {name: v.detach().cpu().clone() for name, v in weights.items()}
                if learned is not None and record is None:
                    self._best_rows = learned.copied()
            return
        contents = self._contents(self.log) | {"learned_rows": record}
        # The best one first: otherwise a kill between the two would leave a finished epoch without it.
        for path in (self._folder.best, self._folder.last) if is_best else (self._folder.last,):
            checkpoint.write(path, contents)
            if record is not None:
                self._rows_of[path] = record["folder"]
            self._listeners.call(Callback.on_checkpoint, path)
        self._folder.remove_rows(keep=set(self._rows_of.values()))

    @cached_property
    def _has_folder(self) -> bool:
        """Whether the first rank writes checkpoints; all ranks ask together the first time."""
        return self._ranks.of_first(lambda: self._folder is not None)

    def _contents(self, log: RunLog) -> dict[str, Any]:
        return {
            "model": self._state.runner.model.state_dict(),
            "optimizer": self._parts.optimizer.state_dict(),
            "scheduler": self._parts.schedule.state_dict(),
            "callbacks": self._listeners.state_dict(),
            "random": runtime.random_state(),
            "progress": self._state.progress.to_dict(),
            "log_position": log.position(),
            "config": self._state.config.to_json(),
            "model_identity": model_identity(self._state.runner.model),
            "graph_identity": self._state.identity,
            "info": dict(self._state.info),
        }

    def _load(self, folder: RunFolder | None) -> None:
        state, parts, model = self._state, self._parts, self._state.runner.model
        path = None if folder is None else folder.last
        contents = self._ranks.read_file(path, self._read)
        where = path or Path("the checkpoint of rank 0")
        check_same(contents, model, state.identity, state.config, where)
        check_fits(contents, model, parts.optimizer, parts.steps_per_epoch, where)
        model.load_state_dict(contents["model"])
        parts.optimizer.load_state_dict(contents["optimizer"])
        parts.schedule.load_state_dict(contents["scheduler"])
        self._listeners.load_state_dict(contents["callbacks"])
        state.progress = Progress(**contents["progress"])
        self._load_rows(contents, states=True)
        if folder is not None:
            held = {folder.last: contents}
            if folder.best.is_file():
                held[folder.best] = self._read(folder.best)
            self._rows_of = {
                at: one["learned_rows"]["folder"] for at, one in held.items() if one["learned_rows"]
            }
            self.log = RunLog(folder.path, self._columns(), position=contents["log_position"])
        runtime.set_random_state(contents["random"])

    def _load_rows(self, contents: Mapping[str, Any], *, states: bool) -> None:
        """Load this rank's share of the learned rows of a checkpoint; all ranks call it together."""
        beside = self._ranks.of_first(lambda: str(self._folder.checkpoints) if self._folder else "")
        load_rows(self._state.runner, contents, Path(beside), states=states)

    def _read(self, path: Path) -> dict[str, Any]:
        return checkpoint.read(path, trust=self._state.config.trust_checkpoint)

    # ---- the end

    def restore_best(self) -> None:
        """Load the best epoch's weights into the model, if the config requests it and there was one."""
        if not self._state.config.restore_best or self._state.progress.best_epoch is None:
            return
        weights: dict[str, Tensor] | None = self._best_weights
        best: dict[str, Any] = {} if self._folder is None else self._read(self._folder.best)
        weights = best.get("model", weights)
        if weights is not None:
            self._state.runner.model.load_state_dict(weights)
        self._ranks.spread_weights(self._state.runner.model)
        if (learned := self._state.runner.learned) is None:
            return
        if self._has_folder:
            self._load_rows(
                self._ranks.of_first(lambda: {"learned_rows": best["learned_rows"]}), states=False
            )
        else:
            learned.put_back(self._best_rows)

    def write_result(self, result: RunResult) -> None:
        """Write the result of the run."""
        if self._folder is not None:
            self._folder.write_json(RESULT, result.to_json())

    def close(self) -> None:
        """Close the log files."""
        if self.log is not None:
            self.log.close()
