"""The program a model is read into, and its readers.

``operations`` and ``ir`` are the program itself; ``read`` is the way in, ``trace`` follows a model's own
``forward``, ``layers`` and ``rowwise`` say for each exact class what it computes, and ``exact`` what an
instance must be for that to hold.
"""

from graphbraid.fullgraph.program.ir import Decision, Program, check
from graphbraid.fullgraph.program.operations import (
    INPUT,
    Add,
    Adjacency,
    Aggregate,
    Attention,
    Epilogue,
    Following,
    Hoisted,
    Linear,
    Maximum,
    Module,
    Normalise,
    Op,
    Own,
    Scale,
    UnitRows,
)

__all__ = [
    "INPUT",
    "Add",
    "Adjacency",
    "Aggregate",
    "Attention",
    "Decision",
    "Epilogue",
    "Following",
    "Hoisted",
    "Linear",
    "Maximum",
    "Module",
    "Normalise",
    "Op",
    "Own",
    "Program",
    "Scale",
    "UnitRows",
    "check",
]
