"""NodeIds: the mapping between a dataset's original ids and the node ids 0, 1, 2, ... of its graph."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from graphbraid.arguments import check_type
from graphbraid.errors import DataError
from graphbraid.graph.scans import check_ids
from graphbraid.signatures import typed

_Array = npt.NDArray[Any]


class NodeIds:
    """The original id of each node: integers or strings, all different.

    ``ids[node]`` is the original id; :meth:`nodes_of` maps the other way.
    """

    def __init__(self, values: _Array) -> None:
        """Wrap ``values``, a ``(num_nodes,)`` array of int64 or of ``str`` objects."""
        check_type(values, "node ids", np.ndarray, "a NumPy array")
        if values.ndim != 1 or values.dtype not in (np.int64, object):
            raise DataError(
                f"node ids must be 1-d int64 or str objects; got {values.dtype} of shape {values.shape}"
            )
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, node: int) -> int | str:
        value = self.values[node]
        return value if isinstance(value, str) else int(value)

    def __repr__(self) -> str:
        return f"NodeIds({len(self)} {'str' if self.values.dtype == object else 'int'} ids)"

    @typed
    def originals(self, nodes: Tensor) -> list[int | str]:
        """Return the original ids of ``nodes``, int64 node ids.

        Raises:
            DataError: a node does not exist.
        """
        check_ids(nodes, len(self), "nodes")
        found: list[int | str] = self.values[nodes.cpu().numpy()].tolist()
        return found

    @typed
    def nodes_of(self, originals: Sequence[int | str]) -> Tensor:
        """Return the int64 node ids of the given original ids.

        Raises:
            DataError: An id is unknown; names the first.
        """
        if self.values.dtype == object:
            nodes = [self.by_name.get(str(name), -1) for name in originals]
            found = np.asarray(nodes, np.int64)
        else:
            numbers = [_as_number(original) for original in originals]
            found = self.search(np.asarray([number or 0 for number in numbers], np.int64))
            found[[number is None for number in numbers]] = -1
        if (missing := np.flatnonzero(found < 0)).size:
            at = int(missing[0])
            raise DataError(
                f"no node has the id {originals[at]!r} (position {at}); {len(self)} ids are known"
            )
        return torch.from_numpy(found)

    def arrays(self) -> dict[str, Tensor]:
        """Return the ids as plain arrays for the store: integers, or UTF-8 bytes and the end of each id."""
        if self.values.dtype != object:
            return {"int": torch.from_numpy(np.ascontiguousarray(self.values))}
        encoded = [value.encode() for value in self.values]
        ends = np.cumsum([len(value) for value in encoded], dtype=np.int64)
        data = np.frombuffer(bytearray(b"".join(encoded)), np.uint8)
        return {"bytes": torch.from_numpy(data), "ends": torch.from_numpy(ends)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Tensor]) -> NodeIds:
        """Make the ids from the result of :meth:`arrays`.

        Raises:
            DataError: The arrays do not fit together.
        """
        if "int" in arrays:
            return cls(arrays["int"].numpy())
        if missing := {"bytes", "ends"} - set(arrays):
            raise DataError(f"the nodes' ids lack {', '.join(sorted(missing))}")
        data, ends = arrays["bytes"].numpy().tobytes(), arrays["ends"].tolist()
        if [0, *ends] != sorted([0, *ends]) or (ends or [0])[-1] != len(data):
            raise DataError("the ends of the nodes' ids do not fit their bytes")
        values = np.empty(len(ends), object)
        values[:] = [data[a:b].decode() for a, b in zip([0, *ends], ends, strict=False)]
        return cls(values)

    @cached_property
    def by_name(self) -> dict[str, int]:
        """Node of each id as a string, computed at first use."""
        return {str(value): node for node, value in enumerate(self.values)}

    @cached_property
    def _order(self) -> _Array:
        return np.argsort(self.values, kind="stable")

    def search(self, wanted: _Array) -> _Array:
        """Return the nodes of the given integer ids, -1 for an unknown id."""
        if not len(self):
            return np.full(len(wanted), -1)
        at = np.searchsorted(self.values, wanted, sorter=self._order)
        nodes = self._order[np.minimum(at, len(self) - 1)]
        return np.where(self.values[nodes] == wanted, nodes, -1)


def _as_number(original: Any) -> int | None:
    """Return an id as an int, or None if it cannot be an int64."""
    try:
        number = int(original) if isinstance(original, str) else operator.index(original)
    except (TypeError, ValueError):
        return None
    return number if -(1 << 63) <= number < 1 << 63 else None


def sorted_unique(values: _Array) -> _Array:
    """Return the distinct values, sorted; NumPy's hashing takes 10 times as long on some patterns of ids."""
    ordered = np.sort(values)
    first = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    found: _Array = ordered[first]
    return found
