"""The identity of a graph's topology: a partition made for one graph is refused for another."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from graphbraid.errors import DataError
from graphbraid.files.schema import Count
from graphbraid.graph.csc import Csc
from graphbraid.graph.identity import topology_mark


class GraphIdentity(BaseModel):
    """Sizes and the mark of all edges and weights."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    num_nodes: Count
    num_edges: Count
    xxh3: str


def identity_of(csc: Csc) -> GraphIdentity:
    """Return the identity of a graph, by :func:`.graph.identity.topology_mark`."""
    return GraphIdentity(num_nodes=csc.num_dst, num_edges=csc.num_edges, xxh3=topology_mark(csc))


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
