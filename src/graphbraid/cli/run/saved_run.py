"""What a run saved in its folder: its options, and the meaning of its model's outputs."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from graphbraid.errors import ConfigError, DataError
from graphbraid.files.checksums import unsealed
from graphbraid.files.opening import read_text
from graphbraid.files.schema import checked
from graphbraid.graph import Graph, NodeSet
from graphbraid.train.run_folder.contract import Contract, contract_in
from graphbraid.train.task import AnyTaskName


@dataclasses.dataclass(frozen=True, slots=True)
class Outputs:
    """Meaning of a model's output columns, saved with a run since data to predict may have no labels."""

    task: AnyTaskName
    width: int
    class_names: tuple[str, ...] | None

    @classmethod
    def of_links(cls) -> Outputs:
        """Return the output of a model trained on links: a score."""
        return cls("link", 1, None)

    @classmethod
    def of(cls, labels: Graph | NodeSet, class_names: tuple[str, ...] | None) -> Outputs:
        """Return the outputs of a model trained on the labels of a graph, or of a node type."""
        width = labels.num_classes
        return cls(labels.task, width, None if class_names is None else class_names[:width])


class _SavedOutputs(BaseModel):
    """The form of :class:`Outputs` in ``config.json``."""

    model_config = ConfigDict(extra="forbid")

    task: AnyTaskName
    width: Annotated[int, Field(ge=1, strict=True)]
    class_names: list[str] | None


_OUTPUTS = TypeAdapter(_SavedOutputs)


def read_saved(run_dir: Path) -> tuple[dict[str, Any], Outputs, Contract | None]:
    """Read the options that a run saved, the meaning of its outputs, and what it expects of a graph.

    Runs of earlier versions have no such expectations.

    Raises:
        ConfigError: the folder does not hold a run made by the command line.
        DataError: its ``config.json`` is broken, or has changed since it was written.
    """
    path = run_dir / "config.json"
    try:
        content = json.loads(read_text(path))
    except FileNotFoundError as error:
        raise ConfigError(
            f"{run_dir} holds no run: there is no {path}; name the folder a run left"
        ) from error
    except NotADirectoryError as error:
        raise ConfigError(f"{run_dir} is a file; name the folder a run left") from error
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    content = unsealed(content, path)
    if isinstance(content, dict) and (unknown := set(content) - {"train", "info", "contract"}):
        raise DataError(f"{path} has an unknown field {min(unknown)!r}; was it changed since it was written?")
    info = content.get("info") if isinstance(content, dict) else None
    settings, outputs = (
        (info.get("settings"), info.get("outputs")) if isinstance(info, dict) else (None, None)
    )
    if not isinstance(settings, dict) or not isinstance(outputs, dict):
        raise ConfigError(
            f"{path} names no model and data: the run was not made by `graphbraid train`. In Python, "
            "build the model and use Trainer.load_weights"
        )
    given = checked(_OUTPUTS, outputs, lambda text: DataError(f"{path}: info.outputs.{text}"))
    names = given.class_names
    if names is not None and len(names) != given.width:
        raise DataError(f"{path}: info.outputs: {len(names)} class names for {given.width} outputs")
    contract = contract_in(content["contract"], path) if "contract" in content else None
    return settings, Outputs(given.task, given.width, None if names is None else tuple(names)), contract
