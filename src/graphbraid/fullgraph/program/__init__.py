"""The program that a model is read into: a short list of operations on node matrices.

A module that names many of them imports this package as ``ir``.
"""

from graphbraid.fullgraph.program.edge_operations import (
    FILLS,
    Aggregate,
    AggregateLinear,
    Attention,
    Gine,
    LinearSum,
    Maximum,
    Messages,
    ReadRows,
    RelationAttention,
    stops_gradient,
)
from graphbraid.fullgraph.program.graph_break import (
    Break,
    ComputedEdges,
    FromBreak,
    FromCall,
    FromGraph,
    FromInput,
    FromKept,
    GraphValues,
    LoweredLayer,
    Returned,
    WrittenCall,
    reasons_of,
    written_lines,
)
from graphbraid.fullgraph.program.operations import (
    INPUT,
    WHOLE,
    Add,
    AdjacencyMatrix,
    Combine,
    Concat,
    DestinationRows,
    Epilogue,
    Exchange,
    Following,
    Hoisted,
    Largest,
    Learned,
    Linear,
    Normalise,
    Operation,
    Prelu,
    RowFunction,
    Scale,
    UnitRows,
    View,
    name_of,
)
from graphbraid.fullgraph.program.program import (
    Decision,
    LevelNodes,
    NodeType,
    NotLoweredError,
    Program,
    check,
    maker_of,
    needed_for,
    same_program,
    width_of,
)
from graphbraid.fullgraph.program.row_operations import (
    AlongRow,
    ColumnRange,
    Leaf,
    Product,
    RowOfParameters,
    SmallTensor,
    itself,
)
