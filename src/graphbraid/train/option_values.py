"""Types of an option's value by itself: numbers in their bounds, sizes and paths; pydantic checks them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BeforeValidator, Field

from graphbraid.arguments import MOST_COUNT, MOST_THREADS, as_size
from graphbraid.errors import ConfigError


def _refuse_bool(value: Any) -> Any:
    if isinstance(value, bool | np.bool_):
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
    """Split the three names of a relation, which the command line gives as ``user,rates,movie``."""
    return tuple(part.strip() for part in value.split(",")) if isinstance(value, str) else value


RelationNames = Annotated[tuple[str, str, str], BeforeValidator(_as_relation)]
"""Source type, name and destination type of a relation, or these as one text with commas."""
