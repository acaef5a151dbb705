"""Full-graph training: read a model, lower it to the cheapest equivalent program, and run that."""

from graphbraid.fullgraph.compiling import Uncompiled, compile, estimated_bytes  # noqa: A004
from graphbraid.fullgraph.engine import Engine
from graphbraid.fullgraph.lower_model import lower
from graphbraid.fullgraph.lowering.costs import Evidence
from graphbraid.fullgraph.lowering.lowered import Lowered
from graphbraid.fullgraph.lowering.options import ALL, CompileOptions
from graphbraid.fullgraph.program import NotLoweredError
from graphbraid.fullgraph.ranks.distribute import distribute
from graphbraid.fullgraph.ranks.ranks import Ranks
from graphbraid.ops.peers.pipeline_plan import PipelineConfig

__all__ = [
    "ALL",
    "CompileOptions",
    "Engine",
    "Evidence",
    "Lowered",
    "NotLoweredError",
    "PipelineConfig",
    "Ranks",
    "Uncompiled",
    "compile",
    "distribute",
    "estimated_bytes",
    "lower",
]
