"""Case: one model of the matrix, and whether it is lowered; makers of layers."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch_geometric.nn as pyg
from tests.fullgraph.matrix.compare import LEFT_ALONE, LOWERED, PARTLY
from torch import nn


@dataclass(frozen=True)
class Case:
    """One model.

    Attributes:
        part: the heading it stands under in the page.
        name: what it is, in a few words.
        make: builds it.
        expected: whether it is lowered.
        prepare: changes the data for it.
        reason: what ``explain()`` says of a model of which a part, or all, is left alone.
    """

    part: str
    name: str
    make: Callable[[], nn.Module]
    expected: str = LOWERED
    prepare: Callable = field(default=lambda data: data)
    reason: str = ""

    @property
    def id(self):
        """Part and name."""
        return f"{self.part}: {self.name}"


def layer(kind, **options):
    """A maker of layers of a kind with these options."""
    return lambda i, o: kind(i, o, **options)


def gin(network=lambda i, o: nn.Sequential(nn.Linear(i, o), nn.ReLU(), nn.Linear(o, o)), **options):
    """A maker of GIN layers."""
    return lambda i, o: pyg.GINConv(network(i, o), **options)


GCN, SAGE, GIN = layer(pyg.GCNConv), layer(pyg.SAGEConv), gin()
GAT, GATV2 = layer(pyg.GATConv), layer(pyg.GATv2Conv)
BASES = {"GCNConv": GCN, "SAGEConv": SAGE, "GINConv": GIN, "GATConv": GAT, "GATv2Conv": GATV2}


def left(part, name, make, reason="", **more):
    """A case that runs as it is written."""
    return Case(part, name, make, LEFT_ALONE, reason=reason, **more)


def partly(part, name, make, reason="", **more):
    """A case of which a part runs as it is written."""
    return Case(part, name, make, PARTLY, reason=reason, **more)
