"""The program that a model is read into, and its readers.

``operations``, ``edge_operations``, ``module_operations`` and ``ir`` are the program itself; ``read`` and
``read_typed`` are the entry points, ``tracing`` and ``read_trace`` follow a model's own ``forward``,
``readers`` say for each exact class what it computes, and ``readers.exact`` checks the conditions on an
instance for that to hold.
"""

from graphbraid.fullgraph.program.edge_operations import FILLS, Aggregate, Attention, Gine, Maximum
from graphbraid.fullgraph.program.exchange import Exchange
from graphbraid.fullgraph.program.ir import Decision, LevelPart, Program, TypePart, check, same_program
from graphbraid.fullgraph.program.maps import WHOLE, AdjacencyMatrix, View
from graphbraid.fullgraph.program.module_operations import Module, Normalise
from graphbraid.fullgraph.program.operations import (
    INPUT,
    Add,
    Combine,
    Concat,
    Epilogue,
    Following,
    Hoisted,
    Largest,
    Learned,
    Linear,
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
    "Learned",
    "LevelPart",
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
    "TypePart",
    "UnitRows",
    "View",
    "check",
    "same_program",
]
