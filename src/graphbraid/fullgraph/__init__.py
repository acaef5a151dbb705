"""Full-graph training: read a model, lower it to the cheapest equivalent program, and run that."""

from typing import TYPE_CHECKING

from graphbraid.lazy import names_of

if TYPE_CHECKING:
    from graphbraid.fullgraph.compiling import BatchEngine, Uncompiled, compile, estimated_bytes, lower  # noqa: A004
    from graphbraid.fullgraph.engine import Engine
    from graphbraid.fullgraph.lowering.costs import Evidence
    from graphbraid.fullgraph.lowering.lower_program import Lowered
    from graphbraid.fullgraph.lowering.options import ALL, CompileOptions
    from graphbraid.fullgraph.program import NotLoweredError
    from graphbraid.fullgraph.ranks.distribute import distribute
    from graphbraid.fullgraph.ranks.ranks import Ranks
    from graphbraid.ops.peers import PipelineConfig

__all__ = [
    "ALL",
    "BatchEngine",
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

__getattr__ = names_of(
    __name__,
    {
        "compiling": "BatchEngine Uncompiled compile estimated_bytes lower",
        "engine": "Engine",
        "lowering.costs": "Evidence",
        "lowering.lower_program": "Lowered",
        "lowering.options": "ALL CompileOptions",
        "program": "NotLoweredError",
        "ranks.distribute": "distribute",
        "ranks.ranks": "Ranks",
        ".ops.peers": "PipelineConfig",
    },
)
