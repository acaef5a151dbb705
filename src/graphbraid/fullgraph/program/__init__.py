"""The program that a model is read into, and its readers.

``operations``, ``edge_operations`` and ``ir`` are the program itself; ``read`` is the entry point,
``tracing`` and ``read_trace`` follow a model's own ``forward``, ``readers`` say for each exact class what it
computes, and ``readers.exact`` checks the conditions on an instance for that to hold.
"""

from graphbraid.fullgraph.program.edge_operations import FILLS, Aggregate, Attention, Gine, Maximum
from graphbraid.fullgraph.program.exchange import Exchange
from graphbraid.fullgraph.program.ir import Decision, Program, check, same_program
from graphbraid.fullgraph.program.maps import WHOLE, AdjacencyMatrix, View
from graphbraid.fullgraph.program.operations import (
    INPUT,
    Add,
    Combine,
    Concat,
    Epilogue,
    Following,
    Hoisted,
    Largest,
    Linear,
    Module,
    Normalise,
    Operation,
    Own,
    Prelu,
    RowFunction,
    Scale,
    UnitRows,
)

__all__ = [
    "FILLS",
    "INPUT",
    "WHOLE",
    "Add",
    "AdjacencyMatrix",
    "Aggregate",
    "Attention",
    "Combine",
    "Concat",
    "Decision",
    "Epilogue",
    "Exchange",
    "Following",
    "Gine",
    "Hoisted",
    "Largest",
    "Linear",
    "Maximum",
    "Module",
    "Normalise",
    "Operation",
    "Own",
    "Prelu",
    "Program",
    "RowFunction",
    "Scale",
    "UnitRows",
    "View",
    "check",
    "same_program",
]
