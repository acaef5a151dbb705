"""Options of a run, from the command line, ``run.yaml``, a saved run and the defaults; and their flags."""

import functools
import inspect
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Concatenate, Literal, ParamSpec

from pydantic import Field

from graphbraid.cli.common import flag, path_flag
from graphbraid.errors import ConfigError, did_you_mean
from graphbraid.files.yaml_file import Entry, read_value
from graphbraid.train.config import RUN, TrainConfig
from graphbraid.train.option_values import (
    Depth,
    Flag,
    Positive,
    Seed,
    check_values,
    names_with,
    no_bool,
    option,
    parsed,
)

DATA, MODEL = "Data", "Model"
"""Headings of the help."""
COMMAND_LINE = "command line"
SAVED = "saved run"
MOST_LAYERS = 1000
DEFAULT_FANOUTS = (15, 10, 5)
"""Fanouts of the first layers; deeper models repeat the last one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSettings:
    """The options of ``run.yaml`` beside those of :class:`~graphbraid.train.TrainConfig`."""

    data: str = option(
        "braid-2m",
        "An embedded dataset's name, an .npz file, a store, an OGB folder, or parts (partition --rows).",
        "--data --parts -d",
        panel=DATA,
    )
    """Name of an embedded dataset, path of an ``.npz`` file, or folder of a store, of an OGB dataset, or of
    the parts of a graph with their rows (``graphbraid partition --rows``); each rank reads its own."""
    symmetrize: bool = option(
        False,
        "Store both directions of every edge, or add the reverse of every relation.",
        "--symmetrize/--as-stored",
        panel=DATA,
    )
    """Store both directions of every edge; in a graph with types, add the reverse of every relation."""
    add_self_loops: bool = False
    """Add a self-loop to every node without one; layers that need them (GCN, GAT) add them by themselves."""
    dedupe: bool = False
    """Keep one of several equal edges."""
    normalize_features: bool = option(
        False, "Scale feature rows to sum 1.", "--normalize-features/--features-as-stored", panel=DATA
    )
    """Divide every feature row by the sum of its absolute values."""
    split_seed: Seed | None = option(
        None, "Seed of --split; alone a new split of 20 nodes per class to train, 30 to validate.", panel=DATA
    )
    """Seed of ``split``. Without it, of a new random split: 20 training and 30 validation nodes per class,
    or, without classes, 60 and 20 % of the nodes."""
    target: str | None = option(
        None,
        "Column to learn, of a graph of tables: customer.churn; as a number: customer.age:number.",
        panel=DATA,
    )
    """Node type and column of a table that is learned; the column is then no feature. Whole numbers are
    classes, or with ``:number`` numbers."""
    split: str | None = option(
        None,
        "New split: 0.6,0.2 stratified:0.6,0.2 per-class:20,30 group:COLUMN:0.6,0.2 "
        "time:2026-01-01,2026-02-01; or TYPE=... for each type, with ; between them.",
        panel=DATA,
    )
    """Split of the nodes with labels (``graphbraid.datasets.split_nodes``), drawn with ``split_seed``; with
    ``task: edge`` of the edges with labels."""
    data_options: dict[str, Any] = field(default_factory=dict)
    """Further options of ``graphbraid.datasets.load`` for this kind of source."""
    check_data: bool = True
    """Read the whole graph once and check every value before it is used. Set it to false for a store larger
    than memory that was checked when it was made."""
    verify: bool = option(False, "Compare all of a store with its checksums.", panel=DATA, traits="call")
    """Read a store in full and compare it with its checksums, even if an earlier open did."""
    model: str = option(
        "sage",
        "gcn, sage, gin, gat, gatv2, mlp; rgcn for types; embedding for links.",
        "--model -m",
        panel=MODEL,
    )
    """Name of a model in ``graphbraid.nn.MODELS``, or for a graph with types in ``TYPED_MODELS``; with
    ``task: link`` of the encoder, which may also be ``embedding``, a learned row per node."""
    hidden_channels: Positive = option(128, "Width of hidden layers.", "--hidden", panel=MODEL)
    """Width of the hidden layers; for attention, of all heads together."""
    num_layers: Depth = option(
        2, "Number of layers. (default: one per fanout, or 2)", "--layers", panel=MODEL
    )
    """Number of layers; sampling needs one fanout for each."""
    embedding_dim: Positive | None = option(
        None, "Width of a learned row for each node, in place of features.", panel=MODEL
    )
    """Width of learned rows, one for each node of a graph without types, which the model reads in place of
    the features. Ranks divide them (``nn.NodeEmbedding(sharded=True)``). If None, it reads the features."""
    dropout: Annotated[float, Field(ge=0, lt=1), no_bool] = option(
        0.5, "Dropout while training.", panel=MODEL
    )
    """Probability of dropping an activation in training."""
    predictor: Literal["dot", "mlp", "distmult", "complex", "transe", "rotate"] | None = option(
        None,
        "Of links: dot or mlp; of relations distmult, complex, transe or rotate.",
        "--predictor --decoder",
        panel=MODEL,
    )
    """What scores pairs of rows (``graphbraid.nn``) with ``task: link``. If None, ``distmult`` where the
    graph has relations, else ``dot``. With ``task: edge`` what makes an edge's outputs of its ends' rows:
    ``mlp`` of both side by side, or ``dot``."""
    reciprocal: bool = option(
        False,
        "A row of its own for each relation's sources.",
        "--reciprocal/--one-row",
        panel=MODEL,
    )
    """Give each relation a second row, by which sources are asked for (predictors of relations)."""
    predictor_options: dict[str, Any] = field(default_factory=dict)
    """Further arguments of the predictor's class, such as ``margin`` and ``norm``; with ``task: edge`` of
    :class:`graphbraid.nn.EdgeDecoder`, with ``task: graph`` of :class:`graphbraid.nn.PooledModel`: its
    ``readout``."""
    heads: Positive | None = option(None, "Attention heads (gat, gatv2).", panel=MODEL)
    """Number of attention heads, for models that have them. If None, the model's default."""
    model_options: dict[str, Any] = field(default_factory=dict)
    """Further arguments of the model's class."""

    def __post_init__(self) -> None:
        check_values(self)


@dataclass(frozen=True, slots=True)
class GivenOptions:
    """The options of a run on a command line."""

    values: Mapping[str, Any] = field(default_factory=dict)
    """Value of each option that has a flag and was given, by the option's name."""
    config: Path | None = None
    """File with further options."""
    assignments: Sequence[str] = ()
    """``OPTION=VALUE`` of any option."""


@dataclass(frozen=True, slots=True)
class ResolvedRun:
    """All options of a run, and where each came from."""

    settings: RunSettings
    train: TrainConfig
    sources: Mapping[str, str]
    """Source of each option: ``command line``, ``run.yaml:7`` or ``saved run``; others are defaults."""

    def rows(self) -> list[tuple[str, str, str]]:
        """Return name, value and source of the most important options and of all that were given."""
        chosen = (name for name, source in self.sources.items() if source != SAVED)
        hidden = names_with("batches", TrainConfig) if self.train.mode == "full" else ()
        return [
            (name, _text(self._value(name)), self.sources.get(name, "default"))
            for name in dict.fromkeys((*_SHOWN, *chosen))
            if name not in hidden
        ]

    @property
    def is_sampled(self) -> bool:
        """Whether the run is asked to train on mini-batches, not by default."""
        return self.train.mode == "sampled" and "mode" in self.sources

    def _value(self, name: str) -> Any:
        return getattr(self.settings if name in _OWN else self.train, name)

    def saved(self) -> dict[str, Any]:
        """Return plain values from which :func:`resolve` makes the same run again."""
        return {name: getattr(self.settings, name) for name in _OWN} | self.train.to_json()


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
_NOT_KEPT = names_with("call", RunSettings, TrainConfig)
"""Options of a single call, not of the run: a saved run must not decide what is overwritten or trusted."""
_CALLER_ONLY = frozenset({"trust_checkpoint"})
"""Options that only the command line may set, since a file may come from somebody else."""
_OWN = tuple(one.name for one in fields(RunSettings))
FLAGS: dict[str, Flag] = {
    one.name: one.metadata["flag"]
    for one in (*fields(RunSettings), *fields(TrainConfig))
    if one.metadata.get("flag") is not None
}
"""Options that have a flag on the command line, by name."""


def flag_of(name: str) -> str:
    """Return the flag of an option on the command line; ``--set`` if it has none."""
    if name not in FLAGS:
        return "--set"
    return (FLAGS[name].names or "--" + name.replace("_", "-")).split()[0].split("/")[0]


def option_names() -> list[str]:
    """Return the names of all options that ``run.yaml`` and ``--set`` take."""
    return [*_OWN, *(one.name for one in fields(TrainConfig))]


def resolve(
    command_line: Mapping[str, Any],
    file: Mapping[str, Entry] | None = None,
    saved: Mapping[str, Any] | None = None,
    *,
    saved_in: Path | None = None,
) -> ResolvedRun:
    """Combine the options of a run from all sources and check them. Errors name the source.

    On the command line, None means not given. ``saved`` has the options of an earlier run in ``saved_in``.
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
    saved_file = str((saved_in or Path()) / "config.json")
    try:
        _match_layers(values)
        settings = RunSettings(**{name: value for name, value in values.items() if name in _OWN})
        train = TrainConfig.from_dict({name: value for name, value in values.items() if name not in _OWN})
    except ConfigError as error:
        # Its messages start with the option's name; add where the option was given.
        name = str(error).replace("=", " ").split(" ", 1)[0]
        source = sources.get(name, "")
        place = {SAVED: saved_file, COMMAND_LINE: flag_of(name)}.get(source, source)
        raise ConfigError(f"{place}: {error}" if place else str(error)) from None
    return ResolvedRun(settings, train, sources)


def parse_assignments(assignments: Sequence[str]) -> dict[str, Any]:
    """Parse ``["lr=0.01"]`` to ``{"lr": 0.01}``; values are written as in YAML."""
    values = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals:
            raise ConfigError(f"--set needs OPTION=VALUE, such as --set clip=1.0; got {assignment!r}")
        values[name.strip().replace("-", "_")] = read_value(text, f"--set {assignment}")
    return values


def _match_layers(values: dict[str, Any]) -> None:
    """Set the number of layers or the fanouts if only the other is given: one fanout per layer."""
    if values.get("task") == "graph":  # batches are of whole graphs
        return
    layers, fanouts = values.get("num_layers"), values.get("fanouts")
    if isinstance(fanouts, str):
        values["fanouts"] = fanouts = parsed(TrainConfig, "fanouts", fanouts)
    if fanouts is None and isinstance(layers, int) and 1 <= layers <= MOST_LAYERS:
        values["fanouts"] = (DEFAULT_FANOUTS + DEFAULT_FANOUTS[-1:] * layers)[:layers]
    elif layers is None and isinstance(fanouts, list | tuple) and fanouts:
        values["num_layers"] = len(fanouts)


_ELSEWHERE = {
    "learningrate": "lr",
    "stepsize": "lr",
    "numneighbors": "fanouts",
    "numneighbours": "fanouts",
    "numepochs": "epochs",
    "maxepochs": "epochs",
    "hidden": "hidden_channels",
    "hiddendim": "hidden_channels",
    "hiddensize": "hidden_channels",
    "numhidden": "hidden_channels",
    "wd": "weight_decay",
    "l2": "weight_decay",
    "numworkers": "workers",
    "numheads": "heads",
    "earlystopping": "patience",
    "criterion": "loss",
    "gradclip": "clip",
    "dataset": "data",
    "output": "out_dir",
    "out": "out_dir",
}
"""Options by the names that other libraries give them, without underscores."""


def _unknown(name: str, known: list[str]) -> str:
    meant = _ELSEWHERE.get(name.replace("_", "").lower())
    hint = f"; did you mean {meant!r}?" if meant else did_you_mean(name, known, joined=True)
    return f"there is no option {name!r}{hint or '; known are: ' + ', '.join(known)}"


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ",".join(str(item) for item in value)
    return "none" if value is None else str(value)


# ---- their flags

P = ParamSpec("P")


def with_flags(
    *, only: Collection[str] | None = None, but: Collection[str] = (), in_panels: bool = True
) -> Callable[[Callable[Concatenate[GivenOptions, P], None]], Callable[P, None]]:
    """Give a command the flags of a run's options, ``--config`` and ``--set``.

    The command gets the given values as its first argument. Its help lists its own flags after these. All
    options have a flag, or ``only`` some, or all ``but`` some; ``in_panels`` gives each kind of them a
    heading.
    """
    flags = {
        name: parameter
        for name, parameter in _flags(in_panels=in_panels)
        if name not in but and (only is None or name in only)
    }
    panel = RUN if in_panels else None
    config = path_flag(None, "--config -c", "Read options from this YAML file.", metavar="FILE", panel=panel)
    text = "Any other option of run.yaml, as often as needed."
    assignments = flag(None, "--set", text, metavar="OPTION=VALUE", panel=panel)
    shared = {
        "config": _parameter("config", Path | None, config),
        "assignments": _parameter("assignments", list[str] | None, assignments),
    }

    def decorate(command: Callable[Concatenate[GivenOptions, P], None]) -> Callable[P, None]:
        hints = typing.get_type_hints(inspect.unwrap(command), include_extras=True)
        of_command = list(inspect.signature(command).parameters.values())[1:]
        own = {one.name: one.replace(annotation=hints[one.name]) for one in of_command}

        @functools.wraps(command)
        def run(*_: P.args, **options: P.kwargs) -> None:
            values = {name: options[name] for name in flags if options.get(name) is not None}
            file: Any = options.get("config")
            given = GivenOptions(values, file, tuple(options.get("assignments") or ()))  # type: ignore[arg-type]
            command(given, **{name: options[name] for name in own if name in options})  # type: ignore[arg-type, call-arg]

        parameters = [shared["config"], *flags.values(), shared["assignments"], *own.values()]
        del run.__wrapped__  # typer would read its parameters
        run.__annotations__ = {one.name: one.annotation for one in parameters} | {"return": None}
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return run

    return decorate


def _flags(*, in_panels: bool) -> Iterator[tuple[str, inspect.Parameter]]:
    for kind in (RunSettings, TrainConfig):
        # Any class stands for the one that only PyTorch has: on a command line an optimizer is a name.
        hints = typing.get_type_hints(kind, localns={"Optimizer": object}, include_extras=True)
        for one in fields(kind):
            if (shown := one.metadata.get("flag")) is not None:
                names = shown.names or "--" + one.name.replace("_", "-")
                parsed, text = _type_of(hints[one.name]), _help(shown, one.default)
                declare = path_flag if parsed is Path else flag
                panel = shown.panel if in_panels else None
                declared = declare(None, names, text, metavar=shown.metavar, panel=panel)
                yield one.name, _parameter(one.name, parsed | None, declared)


def _parameter(name: str, annotation: Any, declared: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=declared, annotation=annotation)


def _type_of(hint: Any) -> Any:
    """Return the type by which a command line parses an option; the record checks and converts it later."""
    kinds = set(_parts(hint)) - {types.NoneType}
    if bool in kinds or Path in kinds:
        return bool if bool in kinds else Path
    return kinds.pop() if kinds in ({int}, {float}) else str


def _parts(hint: Any) -> Iterator[Any]:
    """Yield the types of a union, without the bounds that annotate them."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        yield from _parts(parts[0])
    elif origin in (typing.Union, types.UnionType):
        for part in parts:
            yield from _parts(part)
    else:
        yield hint


def _help(flag: Flag, default: Any) -> str:
    """Return the text of a flag with its default, unless that is none or the text tells it."""
    if default is None or default is False or "(default:" in flag.text:
        return flag.text
    if isinstance(default, tuple):
        shown = ",".join(map(str, default))
    else:
        shown = f"{default:g}" if isinstance(default, float) else str(default)
    return f"{flag.text} (default: {shown})"
