"""Reads ``run.yaml``: a flat mapping whose entries keep the line they stand on, for error messages."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from graphbraid.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Entry:
    """A value and where it stands."""

    value: Any
    where: str
    """``run.yaml:7``."""


def read_yaml(path: Path) -> dict[str, Entry]:
    """The entries of a YAML file whose top level is a mapping.

    Raises:
        ConfigError: the file cannot be read, is no YAML, is no mapping, or has a key twice.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"the configuration file {path} cannot be read: {reason}") from error
    try:
        loader = yaml.SafeLoader(text)
        try:
            root = loader.get_single_node()
            return {} if root is None else _entries(root, loader, path)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        raise ConfigError(f"{where}: not valid YAML: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML: {error}") from error


def _entries(root: yaml.Node, loader: yaml.SafeLoader, path: Path) -> dict[str, Entry]:
    if not isinstance(root, yaml.MappingNode):
        what = "a list" if isinstance(root, yaml.SequenceNode) else "a single value"
        raise ConfigError(f"{path}: a mapping of options is needed, such as `epochs: 20`; it holds {what}")
    entries: dict[str, Entry] = {}
    for key_node, value_node in root.value:
        key = str(key_node.value)
        where = f"{path}:{key_node.start_mark.line + 1}"
        if key in entries:
            raise ConfigError(
                f"{where}: the option {key!r} stands there twice; first at {entries[key].where}"
            )
        entries[key] = Entry(loader.construct_object(value_node, deep=True), where)
    return entries
