"""The program a model is read into, and its readers.

``operations`` and ``ir`` are the program itself; ``read`` is the way in, ``trace`` follows a model's own
``forward``, ``layers`` and ``rowwise`` say for each exact class what it computes, and ``exact`` what an
instance must be for that to hold.
"""

from graphbraid.fullgraph.program.ir import Decision, Program, check, same_program
from graphbraid.fullgraph.program.maps import WHOLE, AdjacencyMatrix, View
from graphbraid.fullgraph.program.operations import (
    FILLS,
    INPUT,
    Add,
    Aggregate,
    Attention,
    Combine,
    Concat,
    Epilogue,
    Following,
    Gine,
    Hoisted,
    Largest,
    Linear,
    Maximum,
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
