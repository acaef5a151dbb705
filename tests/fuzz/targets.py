"""A valid call of every public callable, from which API cases replace arguments; see ``targets_*.py``.

A call's ``use`` does with the result what a user would, so that what a call keeps is also read.
"""

import functools
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.fuzz.world import World


def _as_is(result: Any) -> Any:
    return result


@dataclass
class Call:
    """A call that works."""

    arguments: dict[str, Any]
    """Arguments by name; a name that is a number stands for a position."""
    use: Callable[[Any], Any] = _as_is
    options: tuple[str, ...] = ()
    """Names that ``**options`` takes, which are not in the signature."""
    exact: bool = True
    """Whether the result is the same in every process."""
    fixed: tuple[str, ...] = ("transform",)
    """Arguments that stay. An error of the caller's own function is not ours."""
    function: Callable[..., Any] | None = None
    """What is called, where the name of the call does not say it."""


TARGETS: dict[str, Callable[[World], Call]] = {}

UNTOUCHED = {
    *("EpochRecord", "Resources", "RunResult", "StepRecord", "Hardware", "StoreNames", "TableGraph"),
    *("GraphbraidError", "Rounding", "TypedTableGraph", "LinkPredictor", "RelationPredictor"),
    *("MiniBatch", "Callback", "Conv", "GraphModel", "NotLoweredError", "Uncompiled", "Evidence"),
    *("Lowered", "CompileOptions", "DeviceMemoryError", "WorkerDiedError", "Estimate", "Ranks"),
    *("TierCounts", "CurvePoint", "TierReport", "TierRow"),
    *("Reordered", "Score", "Attempt", "Part", "PartSize", "PartitionReport"),
    *("Communicator", "init", "EarlyStop", "OptimizerRecipe", "Recipe", "Synthesis", "Trained"),
    *("Place", "ProgramError"),
    # Sets of graphs, labels of edges and loggers meet hostile values in tests/train alone, so far.
    *("GraphSet", "split_graphs", "split_edges", "LogTo"),
}
"""Public names without a call of their own: records that graphbraid makes, bases, and errors.

MiniBatch and Hardware have methods that are called; ranks meet in tests of several processes.
"""


def add(makers: dict[str, Callable[[World], Call]]) -> None:
    """Register calls. The name of a call begins with that of the function or class."""
    assert not TARGETS.keys() & makers.keys(), "a name is there twice"
    TARGETS.update({name: functools.partial(_made, name, make) for name, make in makers.items()})


def _made(name: str, make: Callable[[World], Call], w: World) -> Call:
    call = make(w)
    call.function = call.function or pkgutil.resolve_name(f"graphbraid:{name.split(maxsplit=1)[0]}")
    return call


def graph_use(graph: Any) -> Any:
    """Everything a graph says."""
    parts = [graph, graph.num_features, graph.nbytes, repr(graph), graph.to_edge_index()]
    if graph.y is not None:
        parts += [graph.task, graph.num_classes]
    graph.validate(allow_negative_weights=True)
    return parts
