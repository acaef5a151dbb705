"""Reader of YAML files whose entries keep their line numbers, for error messages."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from graphbraid.errors import ConfigError
from graphbraid.files.opening import read_text


@dataclass(frozen=True, slots=True)
class Entry:
    """A value and its position in the file."""

    value: Any
    where: str
    """File and line, such as ``run.yaml:7``."""


@dataclass(frozen=True, slots=True)
class Tree:
    """The value of a whole file, and where each part of it stands."""

    value: Any
    path: Path
    lines: Mapping[tuple[str | int, ...], int]
    """Line of each entry, by the keys and positions that lead to it."""

    def where(self, place: Sequence[str | int]) -> str:
        """Return file and line of an entry, or of the innermost one around it that the file has."""
        steps = tuple(place)
        while steps and steps not in self.lines:
            steps = steps[:-1]
        return f"{self.path}:{self.lines[steps]}" if steps else str(self.path)


def read_yaml(path: Path) -> dict[str, Entry]:
    """Read the entries of a YAML file; ConfigError if it is invalid or its top level is no mapping."""
    tree = read_tree(path)
    if tree.value is None:
        return {}
    if not isinstance(tree.value, dict):
        what = "a list" if isinstance(tree.value, list) else "a single value"
        raise ConfigError(f"{path}: a mapping of options is needed, such as `epochs: 20`; it holds {what}")
    return {str(key): Entry(value, tree.where([str(key)])) for key, value in tree.value.items()}


def read_tree(path: Path) -> Tree:
    """Read a YAML file with the lines of all its entries, however deep; ConfigError if it is invalid."""
    text = _text_of(path)
    with _clear_errors(str(path)):
        loader = _Loader(text)
        try:
            root = loader.get_single_node()
            if root is None:
                return Tree(None, path, {})
            return Tree(loader.construct_object(root, deep=True), path, dict(_lines_of(root, ())))
        finally:
            loader.dispose()


def _lines_of(node: yaml.Node, place: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], int]]:
    parts: Iterable[tuple[str | int, yaml.Node, yaml.Node]] = ()
    if isinstance(node, yaml.MappingNode):
        parts = ((str(key.value), key, value) for key, value in node.value)
    elif isinstance(node, yaml.SequenceNode):
        parts = ((at, value, value) for at, value in enumerate(node.value))
    for step, at, value in parts:
        yield (*place, step), at.start_mark.line + 1
        yield from _lines_of(value, (*place, step))


def _text_of(path: Path) -> str:
    try:
        return read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"the configuration file {path} cannot be read: {reason}") from error


def read_value(text: str, where: str) -> Any:
    """Parse one value written in YAML, as in ``--set OPTION=VALUE``; ConfigError if it is not valid YAML."""
    with _clear_errors(where):
        return yaml.load(text, _Loader)


class _Loader(yaml.SafeLoader):
    """Loader of plain YAML 1.2 values: no octal ``010``, no base-60 ``1:30``, no dates, no aliases.

    Numbers that YAML 1.1 and 1.2 read differently are refused, as either may be meant.
    """

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Compose a node, refusing aliases, with which a small text can become a huge value."""
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, "values cannot refer to others", event.start_mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """Construct a mapping, refusing repeated keys."""
        seen = set()
        for key, _ in node.value:
            if key.value in seen and isinstance(key, yaml.ScalarNode):
                problem = f"{key.value} stands there twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            seen.add(key.value if isinstance(key, yaml.ScalarNode) else id(key))
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("int", r"[-+]?(0|[1-9][0-9]*)", "-+0123456789"),
    (
        "float",
        r"[-+]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+.0123456789",
    ),
    (
        "ambiguous",
        r"[-+]?0[0-9_]+(\.[0-9_]*)?|[-+]?0[xXbBoO]\w+|[-+]?\d[\d_]*(:\d+)+(\.\d*)?|\d+_[\d_]*",
        "-+0123456789",
    ),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), list(_first))


def _refuse_ambiguous(_: yaml.SafeLoader, node: yaml.ScalarNode) -> Any:
    problem = (
        f"{node.value} can be read as several numbers; write a decimal one without leading zeros, or put "
        "quotes around a text"
    )
    raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


_Loader.add_constructor("tag:yaml.org,2002:ambiguous", _refuse_ambiguous)


@contextlib.contextmanager
def _clear_errors(where: str) -> Iterator[None]:
    try:
        yield
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"{where}:{mark.line + 1}:{mark.column + 1}" if mark else where
        raise ConfigError(f"{place}: not valid YAML: {error.problem or error.context}") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"{where}: not valid YAML: {error}") from error
    except (ValueError, TypeError, AttributeError, KeyError, OverflowError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{where}: not valid YAML: a value does not fit its tag ({error})") from error
