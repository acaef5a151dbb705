"""Ids of nodes that a user gives in a file: read, and turned into the nodes of a graph."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphbraid.errors import DataError
from graphbraid.files.opening import read_text

if TYPE_CHECKING:
    from torch import Tensor

    from graphbraid.datasets import NodeIds


def read_ids(path: Path) -> Any:
    """Return the ids in a ``.npy`` file, or the lines of a text file."""
    from graphbraid.datasets.npy import read_npy

    if path.suffix == ".npy":
        ids = read_npy(path)
        if ids.ndim != 1 or ids.dtype.kind not in "iufUS":
            raise DataError(f"{path} must hold 1-d node ids; got {ids.dtype} of shape {ids.shape}")
        return [value.decode() for value in ids] if ids.dtype.kind == "S" else ids.tolist()
    try:
        lines = [line.strip() for line in read_text(path).splitlines()]
    except Exception as error:  # such as an encoding error
        raise DataError(f"the node ids in {path} cannot be read: {error}") from error
    return [line for line in lines if line]


def nodes_named(wanted: Sequence[Any], path: Path, ids: NodeIds | None) -> Tensor:
    """Return the int64 nodes of ids in a file: those of the data, or numbers of nodes where it has none.

    Raises:
        DataError: one is not an id, or unknown; says where it stands.
    """
    import torch

    if ids is not None and isinstance(ids[0], str):
        return ids.nodes_of([str(value) for value in wanted])
    numbers = as_numbers(wanted, path)
    return torch.tensor(numbers) if ids is None else ids.nodes_of(numbers)


def as_numbers(wanted: Sequence[Any], path: Path) -> list[int]:
    """Return what a file holds as whole numbers.

    Raises:
        DataError: an entry is none.
    """
    numbers = []
    for position, value in enumerate(wanted):
        try:
            numbers.append(int(value) if isinstance(value, str) else operator.index(value))
        except (TypeError, ValueError) as error:
            raise DataError(
                f"{path}: entry {position + 1} is {str(value)!r}, not a node id (a whole number)"
            ) from error
        if not -(1 << 63) <= numbers[-1] < 1 << 63:
            raise DataError(f"{path}: entry {position + 1} is {value}, beyond any node id")
    return numbers
