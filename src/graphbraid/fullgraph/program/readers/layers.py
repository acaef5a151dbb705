"""The readers of all graph layers, by their exact class."""

from graphbraid.fullgraph.program.readers.attention import ATTENTION
from graphbraid.fullgraph.program.readers.convolutions import CONVOLUTIONS
from graphbraid.fullgraph.program.readers.polynomials import POLYNOMIALS
from graphbraid.fullgraph.program.readers.propagation import PROPAGATION
from graphbraid.fullgraph.program.readers.reading import Registry

LAYERS: Registry = CONVOLUTIONS | ATTENTION | PROPAGATION | POLYNOMIALS
"""Each file of layers has its own; a layer is added there."""

__all__ = ["LAYERS"]
