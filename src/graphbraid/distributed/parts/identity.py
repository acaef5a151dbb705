"""The identity of a graph's topology: a partition made for one graph is refused for another."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict
from torch import Tensor

from graphbraid.errors import DataError
from graphbraid.files.checksums import Checksum
from graphbraid.files.schema import Count
from graphbraid.graph.csc import Csc

_AT_A_TIME = 1 << 20


class GraphIdentity(BaseModel):
    """Sizes and a checksum of all edges and weights."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    num_nodes: Count
    num_edges: Count
    xxh3: str


def identity_of(csc: Csc) -> GraphIdentity:
    """Return the identity of a graph, which reads all of its edges once.

    It does not depend on the dtype of the ids. It depends on the order of the edges within a row.
    """
    checksum = Checksum()
    for array in (csc.indptr, csc.indices, csc.weight):
        checksum.add(b"none" if array is None else b"array")
        if array is not None:
            _add(checksum, array)
    return GraphIdentity(num_nodes=csc.num_dst, num_edges=csc.num_edges, xxh3=checksum.text)


def check_same(found: GraphIdentity, csc: Csc, what: str) -> None:
    """Check that a graph is the one with this identity.

    Raises:
        DataError: It is not; says what differs.
    """
    check_sizes(found, csc, what)
    if found != identity_of(csc):
        raise DataError(
            f"{what} was made for another graph: of the same size, but its edges or their weights differ. "
            "Partition this graph"
        )


def check_sizes(found: GraphIdentity, csc: Csc, what: str) -> None:
    """Check that a graph has the sizes of the one with this identity.

    Raises:
        DataError: It has not; says what differs.
    """
    for name, here in (("num_nodes", csc.num_dst), ("num_edges", csc.num_edges)):
        if getattr(found, name) != here:
            raise DataError(
                f"{what} was made for another graph: its {name} was {getattr(found, name):,}, this graph's "
                f"is {here:,}. Partition this graph"
            )


def _add(checksum: Checksum, array: Tensor) -> None:
    for begin in range(0, array.numel(), _AT_A_TIME):
        part = array[begin : begin + _AT_A_TIME]
        values: Any = (part if part.dtype.is_floating_point else part.long()).contiguous().numpy()
        checksum.add(memoryview(values).cast("B"))
