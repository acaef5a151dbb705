"""Training over the whole graph at once: a model is read, lowered to the cheapest equal program and run."""

from graphbraid.fullgraph.compiling import Uncompiled, compile, estimated_bytes  # noqa: A004
from graphbraid.fullgraph.engine import Engine
from graphbraid.fullgraph.lowered import ALL
from graphbraid.fullgraph.measured.evidence import Evidence
from graphbraid.fullgraph.program.refusal import NotLoweredError

__all__ = ["ALL", "Engine", "Evidence", "NotLoweredError", "Uncompiled", "compile", "estimated_bytes"]
