"""Options of a run, declared once: the types of their values, which pydantic checks, and their flags.

A field of a frozen dataclass is an option. :func:`option` gives it a flag on the command line as well.
"""

import dataclasses
import functools
import sys
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from graphbraid.arguments import MOST_COUNT, MOST_THREADS, as_size
from graphbraid.errors import ConfigError

T = TypeVar("T")

# ---- the values


def _refuse_bool(value: Any) -> Any:
    numpy = sys.modules.get("numpy")  # not imported for this: without it no value is NumPy's
    if isinstance(value, bool) or (numpy is not None and isinstance(value, numpy.bool_)):
        raise ValueError("a number")
    return value


no_bool = BeforeValidator(_refuse_bool)
"""Validator that refuses bools, which Python would accept as the integers 0 and 1."""
Positive = Annotated[int, Field(ge=1, le=MOST_COUNT), no_bool]
Natural = Annotated[int, Field(ge=0, le=MOST_COUNT), no_bool]
Seed = Annotated[int, Field(ge=0, lt=1 << 63), no_bool]
Threads = Annotated[int, Field(ge=1, le=MOST_THREADS), no_bool]
Depth = Annotated[int, Field(ge=1, le=1000), no_bool]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False), no_bool]
NonNegativeFloat = Annotated[float, Field(ge=0, allow_inf_nan=False), no_bool]
Fraction = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False), no_bool]
Fanout = Annotated[int, Field(ge=-1, le=MOST_COUNT), no_bool]


def _as_fanouts(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return tuple(int(part) for part in value.strip("[]() ").split(","))
    except ValueError:
        raise ValueError("whole numbers with commas, such as 15,10,5") from None


Fanouts = Annotated[tuple[Fanout, ...], Field(min_length=1, max_length=1000), BeforeValidator(_as_fanouts)]
"""Fanouts of each hop, or these as one text with commas."""


def _as_size(value: Any) -> Any:
    if value is None or (isinstance(value, str) and value == "all"):
        return value
    try:
        return as_size(value, "")
    except ConfigError:
        raise ValueError("a number of bytes, a size such as '4GiB', or 'all'") from None


MemorySize = Annotated[int | Literal["all"], BeforeValidator(_as_size)]
"""Bytes, a size such as ``4GiB``, or ``all``."""


def _named(value: Any) -> Any:
    """Refuse blank names and null characters: ``Path("")`` would be the current folder."""
    if isinstance(value, str) and (not value.strip() or "\0" in value):
        raise ValueError("the name of a file or folder")
    return value


NamedPath = Annotated[Path, BeforeValidator(_named)]
"""Path of a file or folder."""


def _as_relation(value: Any) -> Any:
    return tuple(part.strip() for part in value.split(",")) if isinstance(value, str) else value


RelationNames = Annotated[tuple[str, str, str], BeforeValidator(_as_relation)]
"""Source type, name and destination type of a relation, or these as one text with commas."""


def _as_metrics(value: Any) -> Any:
    """Split names that are given as one text with commas; take a single metric as a list of one."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return (value,) if _is_metric(value) else value


def _is_metric(value: Any) -> bool:
    torchmetrics = sys.modules.get("torchmetrics")  # not imported for this, as NumPy above
    kinds = () if torchmetrics is None else (torchmetrics.Metric, torchmetrics.MetricCollection)
    return isinstance(value, kinds)


def _metric(value: Any) -> Any:
    if not (isinstance(value, str) or _is_metric(value)):
        raise ValueError("the name of a metric, or a metric of torchmetrics")
    return value


Metrics = Annotated[
    tuple[Annotated[Any, BeforeValidator(_metric)], ...], Field(min_length=1), BeforeValidator(_as_metrics)
]
"""Names of metrics, also as one text with commas, and metrics of torchmetrics."""


# ---- the fields of a record of options


@dataclass(frozen=True, slots=True)
class Flag:
    """How the command line shows an option."""

    text: str
    """Help, without the default."""
    names: str
    """Flags, such as ``--data -d`` or ``--symmetrize/--as-stored``; empty if the field's name is the flag."""
    panel: str
    """Heading of the help under which it stands."""
    metavar: str | None
    """Word of the help for the value. If None, the value's type."""


def option(
    default: T,
    text: str = "",
    names: str = "",
    *,
    panel: str = "Training",
    metavar: str | None = None,
    traits: str = "",
) -> T:
    """Declare a field that has a flag on the command line or traits.

    Args:
        default: value of the field if none is given.
        text: help of the flag. If empty, the field has no flag.
        names: flags, as in :class:`Flag`.
        panel: heading of the help.
        metavar: word of the help for the value.
        traits: words for :func:`names_with`: ``free``, a resumed run may change the option; ``own``, ranks
            may differ in it; ``files``, the first rank alone heeds it; ``call``, it is of a single call, and
            no saved run decides it; ``links`` and ``batches``, it is for links or mini-batches alone.
    """
    flag = Flag(text, names, panel, metavar) if text else None
    metadata = {"flag": flag, "traits": frozenset(traits.split())}
    field: T = dataclasses.field(default=default, metadata=metadata)
    return field


def names_with(trait: str, *kinds: type) -> tuple[str, ...]:
    """Return the names of the fields of records of options that have a trait, in the fields' order."""
    found = (field for kind in kinds for field in dataclasses.fields(kind))
    return tuple(field.name for field in found if trait in field.metadata.get("traits", ()))


def check_values(options: Any) -> None:
    """Check each field of a frozen dataclass by its annotation, and keep the value in the annotation's type.

    Raises:
        ConfigError: a value does not fit; the message begins with the field's name.
    """
    kind: Any = type(options)
    for name, adapter in _adapters(kind).items():
        value = getattr(options, name)
        try:
            object.__setattr__(options, name, adapter.validate_python(value))
        except ValidationError as error:
            raise ConfigError(_explain(name, value, error)) from None


def parsed(kind: type, name: str, value: Any) -> Any:
    """Return a value as the field ``name`` of a record of options would keep it; ConfigError if it cannot."""
    try:
        return _adapters(kind)[name].validate_python(value)
    except ValidationError as error:
        raise ConfigError(_explain(name, value, error)) from None


@functools.cache
def _adapters(kind: type) -> dict[str, TypeAdapter[Any]]:
    from torch.optim import Optimizer  # imported here: the command line reads the fields without PyTorch

    hints = typing.get_type_hints(kind, localns={"Optimizer": Optimizer}, include_extras=True)
    permissive = ConfigDict(arbitrary_types_allowed=True)
    return {one.name: TypeAdapter(hints[one.name], config=permissive) for one in dataclasses.fields(kind)}


def _explain(name: str, value: object, error: ValidationError) -> str:
    needed = []
    for item in error.errors(include_url=False):
        where = [str(part) for part in item["loc"] if isinstance(part, int)]
        text = item["msg"].removeprefix("Input should be ").removeprefix("Input is not ")
        text = text.removeprefix("Value error, ")
        if item["type"] == "too_short":
            text = f"a list of at least {item['ctx']['min_length']}"
        needed.append(f"entry {where[0]}: {text}" if where else text)
    return f"{name} must be {', or '.join(dict.fromkeys(needed))}; got {value!r}."
