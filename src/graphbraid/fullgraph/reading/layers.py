"""Readers of all graph layers, by exact class."""

from __future__ import annotations

from graphbraid.fullgraph.reading.attention import ATTENTION
from graphbraid.fullgraph.reading.convolutions import CONVOLUTIONS
from graphbraid.fullgraph.reading.propagation import POLYNOMIALS, PROPAGATION
from graphbraid.fullgraph.reading.reader import Registry
from graphbraid.fullgraph.reading.relational import RELATIONAL

LAYERS: Registry = CONVOLUTIONS | ATTENTION | PROPAGATION | POLYNOMIALS | RELATIONAL
"""All readers of graph layers; add a layer to the registry of its own file."""
