"""Readers of all graph layers, by exact class."""

from graphbraid.fullgraph.program.readers.attention import ATTENTION
from graphbraid.fullgraph.program.readers.convolutions import CONVOLUTIONS
from graphbraid.fullgraph.program.readers.polynomials import POLYNOMIALS
from graphbraid.fullgraph.program.readers.propagation import PROPAGATION
from graphbraid.fullgraph.program.readers.reading import Registry
from graphbraid.fullgraph.program.readers.relational import RELATIONAL

LAYERS: Registry = CONVOLUTIONS | ATTENTION | PROPAGATION | POLYNOMIALS | RELATIONAL
"""All readers of graph layers; add a layer to the registry of its own file."""

__all__ = ["LAYERS"]
