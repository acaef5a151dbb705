"""Options of a run, from the command line, ``run.yaml``, a saved run and the defaults, in this order."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from graphbraid.datasets import DEFAULT
from graphbraid.errors import ConfigError, did_you_mean
from graphbraid.files.yaml_file import Entry, read_value
from graphbraid.train import TrainConfig
from graphbraid.train.option_values import Depth, Positive, Seed, no_bool

COMMAND_LINE = "command line"
SAVED = "saved run"
MOST_LAYERS = 1000
DEFAULT_FANOUTS = (15, 10, 5)
"""Fanouts of the first layers; deeper models repeat the last one."""


class RunSettings(BaseModel):
    """The options of ``run.yaml`` beside those of :class:`~graphbraid.train.TrainConfig`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    data: str = DEFAULT
    """Name of an embedded dataset, path of an ``.npz`` file, or folder of a store or an OGB dataset."""
    symmetrize: bool = False
    """Store both directions of every edge; in a graph with types, add the reverse of every relation."""
    add_self_loops: bool = False
    """Add a self-loop to every node without one; layers that need them (GCN, GAT) add them by themselves."""
    dedupe: bool = False
    """Keep one of several equal edges."""
    normalize_features: bool = False
    """Divide every feature row by the sum of its absolute values."""
    split_seed: Seed | None = None
    """Seed of a new random split: 20 training and 30 validation nodes per class, or, without classes, 60 and
    20 % of the nodes."""
    data_options: dict[str, Any] = {}
    """Further options of ``graphbraid.datasets.load`` for this kind of source."""
    check_data: bool = True
    """Read the whole graph once and check every value before it is used. Set it to false for a store larger
    than memory that was checked when it was made."""
    verify: bool = False
    """Read a store in full and compare it with its checksums, even if an earlier open did."""
    model: str = "sage"
    """Name of a model in ``graphbraid.nn.MODELS``, or for a graph with types in ``TYPED_MODELS``; with
    ``task: link`` of the encoder, which may also be ``embedding``, a learned row per node."""
    hidden_channels: Positive = 128
    """Width of the hidden layers; for attention, of all heads together."""
    num_layers: Depth = 2
    """Number of layers; sampling needs one fanout for each."""
    dropout: Annotated[float, Field(ge=0, lt=1), no_bool] = 0.5
    """Probability of dropping an activation in training."""
    predictor: Literal["dot", "distmult", "mlp"] | None = None
    """What scores pairs of rows (``graphbraid.nn``) with ``task: link``. If None, ``distmult`` where the
    graph has relations, else ``dot``."""
    heads: Positive | None = None
    """Number of attention heads, for models that have them. If None, the model's default."""
    model_options: dict[str, Any] = {}
    """Further arguments of the model's class."""


@dataclasses.dataclass(frozen=True, slots=True)
class ResolvedRun:
    """All options of a run, and where each came from."""

    settings: RunSettings
    train: TrainConfig
    sources: Mapping[str, str]
    """Source of each option: ``command line``, ``run.yaml:7`` or ``saved run``; others are defaults."""

    def rows(self) -> list[tuple[str, str, str]]:
        """Return name, value and source of the most important options and of all that were given."""
        values = self.settings.model_dump() | {
            f.name: getattr(self.train, f.name) for f in dataclasses.fields(self.train)
        }
        chosen = (name for name, source in self.sources.items() if source != SAVED)
        hidden = _SAMPLING_ONLY if self.train.mode == "full" else frozenset()
        return [
            (name, _text(values[name]), self.sources.get(name, "default"))
            for name in dict.fromkeys((*_SHOWN, *chosen))
            if name not in hidden
        ]

    def saved(self) -> dict[str, Any]:
        """Return plain values from which :func:`resolve` makes the same run again."""
        return self.settings.model_dump(mode="json") | self.train.to_json()


_SHOWN = (
    "data",
    "model",
    "hidden_channels",
    "num_layers",
    "dropout",
    "mode",
    "epochs",
    "fanouts",
    "batch_size",
    "layout",
    "optimizer",
    "lr",
    "weight_decay",
    "precision",
    "device",
    "workers",
    "seed",
    "out_dir",
)
_SAMPLING_ONLY = frozenset({"fanouts", "batch_size", "layout", "workers"})
_NOT_KEPT = frozenset({"out_dir", "resume", "overwrite", "trace", "trust_checkpoint", "verify"})
"""Options of a single call, not of the run: a saved run must not decide what is overwritten or trusted."""
_CALLER_ONLY = frozenset({"trust_checkpoint"})
"""Options that only the command line may set, since a file may come from somebody else."""
_FLAGS = {
    "hidden_channels": "--hidden",
    "num_layers": "--layers",
    "out_dir": "--out",
    "link_relation": "--relation",
    "temporal_strategy": "--temporal",
    "assignments": "--set",
}
"""Options whose flag differs from their name."""


def flag_of(name: str) -> str:
    """Return the flag of an option on the command line."""
    return _FLAGS.get(name, "--" + name.replace("_", "-"))


def option_names() -> list[str]:
    """Return the names of all options that ``run.yaml`` and ``--set`` take."""
    own = [name for name in RunSettings.model_fields if name != "model_config"]
    return own + [field.name for field in dataclasses.fields(TrainConfig)]


def resolve(
    command_line: Mapping[str, Any],
    file: Mapping[str, Entry] | None = None,
    saved: Mapping[str, Any] | None = None,
    flags: Mapping[str, str] | None = None,
    *,
    saved_in: Path | None = None,
) -> ResolvedRun:
    """Combine the options of a run from all sources and check them.

    Args:
        command_line: options given on the command line; None means not given.
        file: entries of ``run.yaml``.
        saved: options that an earlier run saved in its folder.
        flags: flag of each option on the command line, for messages.
        saved_in: folder of ``saved``, for messages.

    Raises:
        ConfigError: an option is unknown or its value is invalid; says where it was given.
    """
    known = option_names()
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for name, value in (saved or {}).items():
        if name in known and name not in _NOT_KEPT:
            values[name], sources[name] = value, SAVED
    for name, entry in (file or {}).items():
        if name not in known:
            raise ConfigError(f"{entry.where}: {_unknown(name, known)}")
        if name in _CALLER_ONLY:
            raise ConfigError(
                f"{entry.where}: {name} is taken from the command line only, never from a file: "
                f"{flag_of(name)}"
            )
        values[name], sources[name] = entry.value, entry.where
    for name, value in command_line.items():
        if value is None:
            continue
        if name not in known:
            raise ConfigError(f"--set: {_unknown(name, known)}")
        values[name], sources[name] = value, COMMAND_LINE
    _match_layers(values)
    flags = {**(flags or {}), SAVED: str((saved_in or Path()) / "config.json")}
    settings = _settings(values, sources, flags)
    train = _train_config(values, sources, flags)
    return ResolvedRun(settings, train, sources)


def parse_assignments(assignments: list[str]) -> dict[str, Any]:
    """Parse ``["lr=0.01"]`` to ``{"lr": 0.01}``; values are written as in YAML.

    Raises:
        ConfigError: an assignment has no ``=``, or its value is not valid YAML.
    """
    values = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals:
            raise ConfigError(f"--set needs OPTION=VALUE, such as --set clip=1.0; got {assignment!r}")
        values[name.strip().replace("-", "_")] = read_value(text, f"--set {assignment}")
    return values


def parse_fanouts(text: str | None) -> tuple[int, ...] | None:
    """Parse ``"15,10,5"`` to ``(15, 10, 5)``.

    Raises:
        ConfigError: an entry is not a whole number.
    """
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.strip("[]() ").split(","))
    except ValueError as error:
        raise ConfigError(
            f"--fanouts needs whole numbers with commas, such as 15,10,5; got {text!r}"
        ) from error


def _match_layers(values: dict[str, Any]) -> None:
    """Set the number of layers or the fanouts if only the other is given: one fanout per layer."""
    layers, fanouts = values.get("num_layers"), values.get("fanouts")
    if fanouts is None and isinstance(layers, int) and 1 <= layers <= MOST_LAYERS:
        values["fanouts"] = (DEFAULT_FANOUTS + DEFAULT_FANOUTS[-1:] * layers)[:layers]
    elif layers is None and isinstance(fanouts, list | tuple) and fanouts:
        values["num_layers"] = len(fanouts)


def _unknown(name: str, known: list[str]) -> str:
    hint = did_you_mean(name, known, joined=True) or f"; known are: {', '.join(known)}"
    return f"there is no option {name!r}{hint}"


def _place(name: str, sources: Mapping[str, str], flags: Mapping[str, str]) -> str:
    source = sources.get(name, "")
    if source == SAVED:
        return flags[SAVED]
    return flags.get(name, "--set") if source == COMMAND_LINE else source


def _settings(values: Mapping[str, Any], sources: Mapping[str, str], flags: Mapping[str, str]) -> RunSettings:
    own = {name: values[name] for name in RunSettings.model_fields if name in values}
    try:
        return RunSettings.model_validate(own)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = str(first["loc"][0])
        needed = first["msg"].removeprefix("Input should be ")
        place = _place(name, sources, flags)
        raise ConfigError(f"{place}: {name} must be {needed}; got {own[name]!r}") from None


def _train_config(
    values: Mapping[str, Any], sources: Mapping[str, str], flags: Mapping[str, str]
) -> TrainConfig:
    names = [field.name for field in dataclasses.fields(TrainConfig)]
    try:
        return TrainConfig.from_dict({name: values[name] for name in names if name in values})
    except ConfigError as error:
        # Its messages start with the option's name; add where the option was given.
        name = str(error).replace("=", " ").split(" ", 1)[0]
        place = _place(name, sources, flags) if name in sources else ""
        raise ConfigError(f"{place}: {error}" if place else str(error)) from None


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ",".join(str(item) for item in value)
    return "none" if value is None else str(value)
