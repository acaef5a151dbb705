"""What each entry of the compiled module takes, by its signature, and arrays that are not that."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.uint8,
        torch.bool,
    )
}
_ARRAY = re.compile(
    r"ndarray\[dtype=(?P<dtypes>[\w|]+), shape=\((?P<shape>[*, ]+)\)(, order='(?P<order>\w+)')?, device='cpu'"
    r"(?P<is_read>, writable=False)?\]( \| None)?( = .*)?"
)


@dataclass(frozen=True)
class ArrayArgument:
    """An argument that is one array."""

    position: int
    name: str
    dtypes: frozenset[str]
    dimensions: int
    order: str | None
    """``C``: without gaps; ``rows``: each row is; None: any strides."""
    is_written: bool


def arguments_of(entry: Any) -> list[tuple[str, str]]:
    """Name and kind of each argument of a function of the compiled module."""
    ((signature, *_),) = entry.__nb_signature__  # no entry has overloads: each could only be refused by all
    inside = signature[signature.index("(") + 1 : signature.rindex(") -> ")]
    return [(name, kind) for name, _, kind in (argument.partition(": ") for argument in _split(inside))]


def array_arguments(entry: Any) -> list[ArrayArgument]:
    """The arrays among the arguments of a function of the compiled module."""
    found = []
    for position, (name, kind) in enumerate(arguments_of(entry)):
        if "ndarray" not in kind or kind.startswith("tuple"):
            continue
        match = _ARRAY.fullmatch(kind)
        assert match, f"{entry}: what {name} takes is not said in full"
        dtypes = frozenset(DTYPES) if match["dtypes"] == "any" else frozenset(match["dtypes"].split("|"))
        found.append(
            ArrayArgument(
                position, name, dtypes, match["shape"].count("*"), match["order"], match["is_read"] is None
            )
        )
    return found


def _split(arguments: str) -> list[str]:
    """Split at the commas that stand in no bracket."""
    parts, depth = [""], 0
    for character in arguments:
        depth += {"[": 1, "(": 1, "]": -1, ")": -1}.get(character, 0)
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


def of_another_kind(argument: ArrayArgument, value: Tensor) -> Iterator[tuple[str, Any]]:
    """``value``, which the argument takes, made into what it must not take, and in which way."""
    for name, dtype in DTYPES.items():
        if name not in argument.dtypes:
            yield name, value.to(dtype)
    yield "one dimension more", value.unsqueeze(0).clone()
    if value.ndim > 1:
        yield "one dimension less", value.flatten()
    yield from ((f"stored {how}", wrong) for how, wrong in _stored_otherwise(argument, value))
    yield "on another device", value.to("meta")
    if value.numel():
        longer = torch._efficientzerotensor((len(value) + 1, *value.shape[1:]), dtype=value.dtype)
        yield "without memory", longer[:-1]
        yield "without memory, at an offset", longer[1:]
    yield "no array", object()
    if argument.is_written:
        yield "read-only", read_only(value)
        if value.ndim > 1 and value.shape[0] > 1:
            yield "with one row for all", value[:1].expand(value.shape)


def _stored_otherwise(argument: ArrayArgument, value: Tensor) -> Iterator[tuple[str, Tensor]]:
    if argument.order is None or value.numel() < 2:
        return
    if value.ndim == 1:
        yield "apart", value.repeat_interleave(2)[::2]
        return
    if value.shape[1] > 1:
        yield "with columns apart", value.repeat_interleave(2, 1)[:, ::2]
    if argument.order == "C" and value.shape[0] > 1:
        yield "with rows apart", torch.cat([value, value], 1)[:, : value.shape[1]]


def read_only(value: Tensor) -> Any:
    """A NumPy array of the same numbers that must not be written."""
    array = value.clone().numpy()
    array.flags.writeable = False
    return array
