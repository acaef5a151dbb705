"""Checkpoints: all that a run needs to continue as if never stopped, in one file written atomically."""

from __future__ import annotations

import copy
import math
import os
import pickle
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field, InstanceOf, TypeAdapter, field_validator
from torch import Tensor, nn
from torch.optim import Optimizer

from graphbraid.errors import ConfigError, DataError
from graphbraid.files import checksums
from graphbraid.files.schema import Count, FileModel, checked
from graphbraid.files.writing import atomic_write
from graphbraid.train.run_folder import loggers
from graphbraid.train.run_folder.contract import Contract, check_same_model
from graphbraid.train.step.runner import ModelRunner

Finite = Annotated[float, Field(allow_inf_nan=False)]
_WORDS = 624  # state size of the Mersenne Twister that NumPy and Python draw from


class _Progress(FileModel):
    epoch: Count
    step: Count
    global_step: Count
    loss_sum: Finite
    num_seeds: Count
    best_value: float | None
    best_epoch: Count | None
    evaluations_since_best: Count
    history: list[dict[str, bool | int | float]]


class _Random(FileModel):
    torch: InstanceOf[Tensor]
    numpy: tuple[str, InstanceOf[Tensor], Annotated[int, Field(ge=0, le=_WORDS)], int, Finite]
    python: tuple[int, InstanceOf[Tensor], Finite | None]
    cuda: list[InstanceOf[Tensor]] | None = None

    @field_validator("numpy", "python", mode="before")
    @classmethod
    def _as_tuple(cls, value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else value

    @field_validator("torch")
    @classmethod
    def _of_torch(cls, state: Tensor) -> Tensor:
        own = torch.get_rng_state()
        return _like(state, own.dtype, own.numel())

    @field_validator("numpy")
    @classmethod
    def _of_numpy(cls, state: tuple[str, Tensor, int, int, float]) -> tuple[str, Tensor, int, int, float]:
        if state[0] != "MT19937":
            raise ValueError(f"the generator must be 'MT19937'; got {state[0]!r}")
        _like_words(state[1], _WORDS)
        return state

    @field_validator("python")
    @classmethod
    def _of_python(cls, state: tuple[int, Tensor, float | None]) -> tuple[int, Tensor, float | None]:
        if state[0] != 3:
            raise ValueError(f"the generator's version must be 3; got {state[0]}")
        _like_words(state[1], _WORDS + 1)  # the last one is the position
        if int(state[1][-1]) > _WORDS:
            raise ValueError(f"the position must be at most {_WORDS}; got {int(state[1][-1])}")
        return state


class _Identity(BaseModel):
    model_config = ConfigDict(strict=True, populate_by_name=True)

    class_: str = Field(alias="class")
    shapes: dict[str, str]


class _Optimizer(FileModel):
    state: dict[int, dict[str, Any]]
    param_groups: list[dict[str, Any]]


class _Checkpoint(BaseModel):
    model_config = ConfigDict(strict=True)

    model: dict[str, Any]
    optimizer: _Optimizer
    scheduler: dict[str, Any]
    callbacks: dict[str, dict[str, Any]]
    random: _Random
    progress: _Progress
    log_position: dict[str, Count]
    config: dict[str, Any]
    model_identity: _Identity
    graph_identity: dict[str, Any]
    info: dict[str, Any]
    learned_rows: dict[str, Any] | None
    """Record of the learned rows that ranks divide, which are in a folder beside the file; None without."""

    @field_validator("log_position")
    @classmethod
    def _of_both_logs(cls, position: dict[str, int]) -> dict[str, int]:
        if set(position) != {loggers.STEPS, loggers.METRICS}:
            raise ValueError(f"needs {loggers.STEPS} and {loggers.METRICS}; got {sorted(position)}")
        return position

    @field_validator("graph_identity")
    @classmethod
    def _with_a_contract(cls, identity: dict[str, Any]) -> dict[str, Any]:
        Contract.model_validate(identity.get("contract"))
        return identity


_ADAPTER = TypeAdapter(_Checkpoint)


def check_fits(
    contents: Mapping[str, Any],
    model: nn.Module,
    optimizer: Optimizer,
    steps_per_epoch: int,
    path: Path,
) -> None:
    """Check that a run can continue from a checkpoint of this model and config.

    Raises:
        DataError: a weight, the optimizer's state or the progress does not fit; the message names it.
    """
    try:
        check_weights(contents["model"], model)
        _check_optimizer(contents["optimizer"], optimizer)
        _check_progress(contents["progress"], steps_per_epoch)
    except ValueError as error:
        raise DataError(f"{path} is no sound checkpoint: {error}") from None


def check_weights(found: Mapping[str, Any], model: nn.Module) -> None:
    """Check the names, shapes and dtypes of weights.

    Raises:
        ValueError: a weight differs; the message names the first.
    """
    own = {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}
    for name, value in own.items():
        if name not in found:
            raise ValueError(f"model.{name} is missing")
        if (problem := _unlike(found[name], value)) is not None:
            raise ValueError(f"model.{name}: {problem}")


def _check_optimizer(found: Mapping[str, Any], optimizer: Optimizer) -> None:
    own = optimizer.state_dict()["param_groups"]
    groups = found["param_groups"]
    if len(groups) != len(own):
        raise ValueError(f"optimizer.param_groups: the run has {len(own)}; got {len(groups)}")
    for at, (group, here) in enumerate(zip(groups, own, strict=True)):
        if group.get("params") != here["params"]:
            raise ValueError(f"optimizer.param_groups.{at}.params must be {_short(here['params'])}")
        for name, value in here.items():
            if name != "params" and name in group and not _same_kind(group[name], value):
                raise ValueError(f"optimizer.param_groups.{at}.{name} cannot be {_short(group[name])}")
    expected = _state_after_a_step(optimizer) if found["state"] else {}
    if expected is not None:
        _check_state(found["state"], expected)


def _check_state(found: Mapping[int, Any], expected: Mapping[int, Any]) -> None:
    for number, state in found.items():
        if number not in expected:
            raise ValueError(f"optimizer.state.{number}: there is no such parameter")
        own = expected[number]
        if set(state) != set(own):
            raise ValueError(f"optimizer.state.{number} needs {sorted(own)}; got {sorted(state)}")
        for name, value in own.items():
            if (problem := _unlike(state[name], value)) is not None:
                raise ValueError(f"optimizer.state.{number}.{name}: {problem}")


def _state_after_a_step(optimizer: Optimizer) -> dict[int, Any] | None:
    """Return the optimizer's state after a step of a copy; None if that cannot be determined."""
    try:
        probe = copy.deepcopy(optimizer)
        for group in probe.param_groups:
            for parameter in group["params"]:
                parameter.grad = torch.zeros_like(parameter)
        probe.step()
        state: dict[int, Any] = probe.state_dict()["state"]
    except Exception:  # a user's optimizer may not allow copying or such a step
        return None
    return state


def _check_progress(progress: Mapping[str, Any], steps_per_epoch: int) -> None:
    epoch, step, total = progress["epoch"], progress["step"], progress["global_step"]
    if step > steps_per_epoch:
        raise ValueError(f"progress.step must be at most {steps_per_epoch}, an epoch's steps; got {step}")
    if total != epoch * steps_per_epoch + step:
        raise ValueError(
            f"progress.global_step must be {epoch * steps_per_epoch + step}, as {epoch} epochs of "
            f"{steps_per_epoch} steps and {step} more are done; got {total}"
        )
    if len(progress["history"]) != epoch:
        raise ValueError(f"progress.history must have {epoch} epochs; got {len(progress['history'])}")
    if (step == 0) != (progress["num_seeds"] == 0):
        raise ValueError(f"progress.num_seeds cannot be {progress['num_seeds']} after {step} steps")
    best, since = progress["best_epoch"], progress["evaluations_since_best"]
    if best is not None and best >= epoch:
        raise ValueError(f"progress.best_epoch must be below {epoch}; got {best}")
    if (best is None) != (progress["best_value"] is None):
        raise ValueError("progress.best_value and best_epoch go together")
    if since > epoch:
        raise ValueError(f"progress.evaluations_since_best must be at most {epoch}; got {since}")


def _unlike(found: Any, own: Any) -> str | None:
    """Describe how a value differs in kind from the run's own; None if it does not."""
    if isinstance(own, Tensor):
        if not isinstance(found, Tensor):
            return f"must be a tensor; got {type(found).__name__}"
        if (found.shape, found.dtype, found.layout) != (own.shape, own.dtype, own.layout):
            needed, got = (f"{tuple(t.shape)} {t.dtype} {t.layout}" for t in (own, found))
            return f"must be {needed}; got {got}"
        return None
    return None if _same_kind(found, own) else f"cannot be {_short(found)}"


def _same_kind(found: Any, own: Any) -> bool:
    """Return whether a plain value can replace another."""
    if own is None or found is None or isinstance(own, bool):
        return found is None or isinstance(found, bool) or own is None
    if isinstance(own, int | float):
        return isinstance(found, int | float) and math.isfinite(found)
    if isinstance(own, list | tuple):
        is_list = isinstance(found, list | tuple) and len(found) == len(own)
        return is_list and all(map(_same_kind, found, own))
    if isinstance(own, Tensor):
        return _unlike(found, own) is None
    return isinstance(found, type(own))


def _like(state: Tensor, dtype: torch.dtype, count: int) -> Tensor:
    if state.dtype != dtype or tuple(state.shape) != (count,):
        raise ValueError(f"must be ({count},) {dtype}; got {tuple(state.shape)} {state.dtype}")
    return state


def _like_words(state: Tensor, count: int) -> None:
    _like(state, torch.int64, count)
    if int(state.min()) < 0 or int(state.max()) >= 1 << 32:
        raise ValueError("must be words of 32 bits")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


FORMAT = "graphbraid-checkpoint-2"
_KEYS = tuple(_Checkpoint.model_fields)


def write(path: Path, contents: dict[str, Any]) -> None:
    """Write a checkpoint to a temporary file, flush it and rename it: a kill leaves the old or the new one.

    Raises:
        ResourceError: the disk is full or the folder cannot be written; the former checkpoint is intact.
    """
    assert set(contents) == set(_KEYS), sorted(set(contents) ^ set(_KEYS))
    with atomic_write(path) as temporary:
        torch.save({"format": FORMAT, **contents}, temporary)
        checksums.seal_zip(temporary)


def read(path: str | os.PathLike[str], *, trust: bool = False) -> dict[str, Any]:
    """Read a checkpoint onto the CPU, as tensors and plain values only.

    Args:
        path: path of the file.
        trust: whether to load Python objects as well, which can run any code; only for files you wrote.

    Raises:
        ConfigError: the file does not exist.
        DataError: the file is damaged (even a single changed bit is found), is not a checkpoint of
            graphbraid, or holds objects and is not trusted.
    """
    path = Path(path)
    if not path.is_file():
        raise ConfigError(
            f"there is no checkpoint {path}; give the folder of a run that wrote one, or do not resume."
        )
    contents = _load(path, trust)
    if not isinstance(contents, dict) or contents.get("format") != FORMAT:
        raise DataError(
            f"{path} is not a checkpoint of this version of graphbraid (it needs format {FORMAT!r}). Take "
            "another checkpoint, or train again."
        )
    if missing := [key for key in _KEYS if key not in contents]:
        raise DataError(f"{path} is damaged or of another version: it lacks {', '.join(missing)}.")
    checked(_ADAPTER, contents, lambda text: DataError(f"{path} is no sound checkpoint: {text}"))
    return contents


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
        from graphbraid.distributed.shards import learned_files  # here: few runs have such rows

        learned_files.read(runner.learned, record, beside, states=states)


def read_weights(path: str | os.PathLike[str], model: nn.Module, *, trust: bool) -> dict[str, Any]:
    """Read a checkpoint whose weights a model is to have, and check that they fit it.

    Raises:
        ConfigError: the file does not exist, or is of another model.
        DataError: the file is damaged.
    """
    contents = read(path, trust=trust)
    check_same_model(contents["model_identity"], model, path)
    try:
        check_weights(contents["model"], model)
    except ValueError as error:
        raise DataError(f"{path} is no sound checkpoint: {error}") from None
    return contents


def _load(path: Path, trust: bool) -> Any:
    """Return the contents of the file."""
    has_checksum = checksums.check_zip(path)
    try:
        if not zipfile.is_zipfile(path):  # a complete file of torch.save is one, half of it is not
            raise DataError(
                f"{path} is damaged or not a checkpoint: it is no whole zip file. Take another checkpoint."
            )
        if not has_checksum:
            raise DataError(
                f"{path} is not a checkpoint of this version of graphbraid: it has no checksum. Take another "
                "checkpoint, or train again."
            )
        return torch.load(path, map_location="cpu", weights_only=not trust)
    except pickle.UnpicklingError as error:
        # Without torch's advice to switch the check off.
        found = re.search(r"(?:GLOBAL |Unsupported class |Unsupported operand )([\w.]+)", str(error))
        raise DataError(
            f"{path} holds Python objects beside tensors and plain values (from the optimizer, scheduler or "
            f"a callback){f': {found[1]}' if found else ''}. They can run any code, so they are not loaded. "
            "If you wrote the file, load it with trust_checkpoint=True (--trust-checkpoint)."
        ) from error
    except (OSError, DataError, MemoryError):
        raise
    except Exception as error:  # unpickling a damaged file can raise anything
        raise DataError(f"{path} is damaged: {error}. Take another checkpoint.") from error
