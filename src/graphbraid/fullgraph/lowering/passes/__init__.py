"""The lowering passes: each turns a program into a cheaper equivalent one.

A pass is a pure function ``(program, facts) -> program`` that records a :class:`Decision`, even where it
changes nothing. Each can be switched off, as the ablation benchmark does.
"""

from collections.abc import Callable

from graphbraid.fullgraph.lowering.facts import Facts
from graphbraid.fullgraph.lowering.passes.fusing import fuse
from graphbraid.fullgraph.lowering.passes.hoisting import hoist
from graphbraid.fullgraph.lowering.passes.input_path import choose_input_path
from graphbraid.fullgraph.lowering.passes.ordering import order
from graphbraid.fullgraph.lowering.passes.splitting import split
from graphbraid.fullgraph.lowering.passes.storage import store
from graphbraid.fullgraph.program import Program

Pass = Callable[[Program, Facts], Program]
PASSES: dict[str, Pass] = {
    "split": split,
    "input_path": choose_input_path,
    "hoist": hoist,
    "order": order,
    "fuse": fuse,
    "storage": store,
}
"""The passes by name, in the order they run."""


def through_passes(program: Program, facts: Facts, wanted: frozenset[str]) -> Program:
    """Return a program after the passes whose names are wanted, in their order."""
    for name, run in PASSES.items():
        if name in wanted:
            program = run(program, facts)
    return program


__all__ = [
    "PASSES",
    "Pass",
    "choose_input_path",
    "fuse",
    "hoist",
    "order",
    "split",
    "store",
    "through_passes",
]
