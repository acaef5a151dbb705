"""Fusing for mini-batches: products join the sums beside them, and the epilogues behind them.

The sizes of batches are not known here, so the order of a product and a sum is left to
:func:`graphbraid.ops.aggregate_linear`, which chooses it by each batch's numbers of nodes and edges.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from graphbraid.fullgraph import program as ir
from graphbraid.fullgraph.batches.segments import Parts, segments_of
from graphbraid.fullgraph.lowering.levels import on_needed_rows
from graphbraid.fullgraph.lowering.passes import merged_epilogues, until_same
from graphbraid.ops.epilogue import ACTIVATION_CODES
from graphbraid.ops.message_steps import dot_products

_IN_HALF = ("Dense products are in bfloat16, sums in float32, as autocast is on.",)
_LEAVES_RESULT = (ir.AggregateLinear, ir.Aggregate, ir.Linear, ir.Add, ir.Combine, ir.Gine, ir.Normalise)
"""Operations whose result is new memory that their backward does not read."""
_SUMS = (ir.AggregateLinear, ir.Aggregate)
_PER_MILLISECOND = 5 << 13
"""Elements of edges' rows that PyTorch passes on in a millisecond."""
_BEFORE, _EDGE_ROWS, _MATRIX = 0.07, 0.1, 0.8
"""Milliseconds: of an engine before a model runs as written, and of a program for features of edges, and for
reading a sparse matrix."""
_OF_MATRIX = 0.6
"""Share of PyTorch's time for an edge where it multiplies by a sparse matrix, and keeps no rows for edges."""
_MOST = 1 << 20
"""Elements of all edges' rows of a layer up to which a batch is small: 4 MiB."""


class BatchProgram:
    """A program as it runs on batches.

    Args:
        program: the program as it was read from the model.
        out_dtype: dtype of the outputs of a model that multiplies in bfloat16; None for one that does not.
    """

    def __init__(self, program: ir.Program, out_dtype: torch.dtype | None = None) -> None:
        self.read, self.out_dtype = program, out_dtype
        """The program as it was read."""
        self.inputs, self.reads_edges = tuple(program.inputs), program.reads_edges
        self.is_half = out_dtype is not None
        """Whether dense products are in bfloat16."""
        fused = _fused(program)
        self.ops, self.output = fused.ops, fused.output
        self._places = {value: fused.place(value) for value in (*fused.inputs, *(op.out for op in fused.ops))}
        self.num_levels = fused.num_levels
        walked = (op.walks.number for op in fused.ops if op.walks is not None)
        self.num_relations = 1 + max(walked, default=-1)
        """Largest number of a relation that the program reads, and 1; 0 if it reads all edges together."""
        self.last_coupled = max((fused.level(op.out) for op in fused.ops if couples_rows(op)), default=-1)
        """The last level with an operation whose result depends on all rows; -1 if there is none."""
        made = fused.producer(fused.output)
        after = made.after if isinstance(made, ir.Following) else made
        act, p = (after.act, after.p) if isinstance(after, ir.Epilogue) else ("none", 0.0)
        attends = isinstance(made, ir.Attention) and not made.averages
        attends |= isinstance(made, ir.Messages) and made.reads_result and not made.selects
        self.keeps_output = attends or (act != "none" and (act, p) != ("relu", 0))
        """Whether backward reads the output where PyTorch's does not, so that the caller gets a copy."""
        self.in_place = frozenset(op.out for op in fused.ops if _may_overwrite(fused, op))
        """Results that may be written over the first input."""
        self.parts = segments_of(fused.ops, _last_reads(fused), fused.output, fused.width)
        """Segments, and operations by themselves, with the values that nothing after each one reads."""
        self.delay = _delay(self.parts, fused.ops, reads_edges=self.reads_edges)
        """What the program takes to start beyond the model's own calls, in elements of edges' rows."""
        self._walks = _walks(fused)
        self._widest = max((width for _, width, _ in self._walks), default=0)
        self.breaks = tuple(op for op in fused.ops if isinstance(op, ir.Break) and op.is_graph_break)
        """The parts that PyTorch runs as the model is written."""
        norms = (op for op in fused.ops if isinstance(op, ir.Normalise))
        self.statistics = tuple(one for op in norms for one in op.statistics)
        """Running statistics that normalisations read."""
        self.by_row = frozenset(target for op in self.breaks for target in op.by_row)
        """Names of the batch's values that they read and that must have a row for each node."""
        self.producer = fused.producer
        """Returns the operation that computes a value; None for an input."""
        self._text = "\n".join((*ir.written_lines(self.breaks), *_IN_HALF[not self.is_half :], str(fused)))

    def place(self, value: str) -> ir.LevelNodes:
        """Return the nodes for which a value has rows."""
        return self._places[value]

    def takes_longer(self, num_edges: int, by_hop: Sequence[int] | None, *, of_matrix: bool = False) -> bool:
        """Return whether the model as it is written takes PyTorch less time, on a batch with so few edges.

        It has no operations to start, but passes on a row for each edge of the batch in every layer. Trimmed
        levels have fewer edges, and segments keep no row for any. The numbers are of measured batches.
        ``by_hop`` has the batch's edges by hop, the seeds' first; None if the program does not trim the
        batch.
        """
        delay = self.delay + of_matrix * _MATRIX * _PER_MILLISECOND
        if delay <= 0 or num_edges * self._widest > _MOST:
            return False
        saved = 0.0
        for level, width, share in self._walks:
            is_whole = by_hop is None or level < self.last_coupled
            own = num_edges if is_whole or by_hop is None else sum(by_hop[: self.num_levels - 1 - level])
            saved += width * (num_edges - max(share, of_matrix * _OF_MATRIX) * own)
        return saved <= delay

    def __str__(self) -> str:
        return self._text


def _delay(parts: Parts, ops: Sequence[ir.Operation], *, reads_edges: bool) -> float:
    """Return :attr:`BatchProgram.delay`.

    The weights are milliseconds, fitted to steps of 163 listed models (:mod:`benchmarks.fullgraph.models`) on
    21 edges. What an engine does before the model runs as written is taken off.
    """
    found, alone = reads_edges * _EDGE_ROWS - _BEFORE, {id(part) for part, _ in parts}
    stacks = set[int]()
    for op in ops:
        if isinstance(op, ir.Messages):
            if any(
                one.__name__ == "QuantileAggregation" for m in op.layer.modules() for one in type(m).__mro__
            ):
                return -math.inf  # PyG's own fails if the last nodes have no edges
            attends = op.attends is not None or (op.steps and dot_products(op.steps) is not None)
            found += 0.7 if id(op) in alone else -0.4 if attends or op.several else -0.03
        elif isinstance(op, ir.Break):
            found += 0.1 + 0.01 * len(op.calls) + 0.3 * len(op.layers)
        elif isinstance(op, ir.RelationAttention):
            found -= 0.7
        elif isinstance(op, ir.Attention):  # PyG's own makes many calls
            found += 0.3 if id(op) in alone else -0.5
        elif isinstance(op, _SUMS):
            weight = id(getattr(op, "weight", op))
            if weight not in stacks:  # PyG's layers over a stack of matrices make a few calls for all
                found -= 0.12 if op.adjacency.kind == "gcn" else 0.05
            stacks.add(weight)
        elif isinstance(op, ir.Normalise):
            found += 0.22 if op.couples_rows else 0.12
        elif isinstance(op, ir.RowOfParameters | ir.Maximum):
            found += 0.12
        elif isinstance(op, ir.Gine):
            found -= 0.12
        elif id(op) in alone:
            found += 0.02
    return found * _PER_MILLISECOND


def _walks(program: ir.Program) -> list[tuple[int, int, float]]:
    """Return level, width, and the share of PyTorch's time for an edge, of each walk over edges."""
    found = []
    for op in program.ops:
        if op.moves and not isinstance(op, ir.DestinationRows):
            width, share = program.width(op.inputs[0]), 0.0
            if isinstance(op, ir.Messages):
                width, share = op.edge_width, 0.0 if op.steps else 1.75 if op.draws else 1.0
                # Rows of edges inside of the message may be wider, as the matrices of NNConv are.
                width = max(width, *(len(one) for one in op.used if one.ndim == 2 and not op.steps), 0)
            found.append((program.place(op.inputs[0]).level, width, share))
    return found


def couples_rows(op: ir.Operation) -> bool:
    """Return whether a row's result depends on other rows, in the mode that the model is in."""
    if isinstance(op, ir.Normalise) and op.couples_rows:
        norm: Any = op.module
        return bool(norm.training) or norm.running_mean is None
    return isinstance(op, ir.Break) and op.couples_rows


def _may_overwrite(program: ir.Program, op: ir.Operation) -> bool:
    """Return whether an epilogue is the only reader of rows that backward does not read either."""
    maker = program.producer(op.inputs[0])
    return (
        isinstance(op, ir.Epilogue)
        and isinstance(maker, _LEAVES_RESULT)
        and not (isinstance(maker, ir.Following) and maker.after is not None)
        and len(program.consumers(op.inputs[0])) == 1
    )


def _last_reads(program: ir.Program) -> list[tuple[str, ...]]:
    last: dict[str, int] = {}
    for place, op in enumerate(program.ops):
        last |= dict.fromkeys(op.inputs, place)
    last.pop(program.output, None)
    found: list[list[str]] = [[] for _ in program.ops]
    for value, place in last.items():
        found[place].append(value)
    return [tuple(values) for values in found]


def _fused(program: ir.Program) -> ir.Program:
    steps = _with_later_bias, _with_one_bias, _with_one_product, _joined, _with_root, _with_other
    program = until_same(on_needed_rows(program), *steps)
    program = merged_epilogues(program.rewritten(ir.needed_for(program.ops, program.output)))
    return until_same(program, _with_epilogue)


def _with_later_bias(program: ir.Program) -> ir.Program | None:
    """Add a bias after a sum rather than to one of its sides, where an activation may follow it."""
    for op in program.ops:
        if not isinstance(op, ir.Add):
            continue
        for place, value in enumerate(op.inputs):
            bias = program.producer(value)
            is_bias = isinstance(bias, ir.Epilogue) and bias.act == "none" and bias.p == 0
            if is_bias and bias is not None and len(program.consumers(value)) == 1:
                sides = [*op.inputs]
                sides[place] = bias.inputs[0]
                new = replace(op, out=value, inputs=tuple(sides))
                return program.replaced({value: new, op.out: replace(bias, out=op.out, inputs=(value,))})
    return None


def _with_one_bias(program: ir.Program) -> ir.Program | None:
    """Add two biases, one after the other, as their sum."""
    for op in program.ops:
        before = program.producer(op.inputs[0])
        if not isinstance(op, ir.Epilogue) or not isinstance(before, ir.Epilogue):
            continue
        are_plain = (before.act, before.p, before.bias_at, op.bias_at) == ("none", 0, (), ())
        if before.bias is None or op.bias is None or not are_plain or len(program.consumers(before.out)) > 1:
            continue
        biases = (*before.also, op.bias, *op.also)
        both = replace(op, inputs=before.inputs, bias=before.bias, also=biases)
        return program.replaced({op.out: both}, without=before.out)
    return None


def _with_one_product(program: ir.Program) -> ir.Program | None:
    """Multiply rows by the sum of two weights, where both products are added: ``x W + x V = x (W + V)``.

    So all relations into a node type share one product of the type's own rows.
    """
    for op in program.ops:
        first: dict[str, ir.Linear] = {}
        for value, add in _terms(program, op) if isinstance(op, ir.Add) else ():
            maker = program.producer(value)
            if type(maker) is not ir.Linear or len(maker.inputs) > 1 or len(program.consumers(value)) > 1:
                continue
            if maker.view != ir.WHOLE or maker.mixed is not None:
                continue
            one = first.setdefault(maker.inputs[0], maker)
            rest = add.inputs[add.inputs[0] == value]
            joined = replace(one, also=(*one.also, maker.weight, *maker.also))
            other = joined if rest == one.out else program.producer(rest)
            if one is maker or not isinstance(other, _LEAVES_RESULT) or len(program.consumers(rest)) > 1:
                continue
            new = {one.out: joined, add.out: replace(other, out=add.out)}
            changed = program.replaced(new, without=rest)
            return changed.rewritten(ir.needed_for(changed.ops, changed.output))
    return None


def _terms(program: ir.Program, add: ir.Add) -> Iterator[tuple[str, ir.Add]]:
    """Yield the values that are added up, with the addition that reads each."""
    for value in add.inputs:
        before = program.producer(value)
        if isinstance(before, ir.Add) and len(program.consumers(value)) == 1:
            yield from _terms(program, before)
        else:
            yield value, add


def _joined(program: ir.Program) -> ir.Program | None:
    """Join a sum over neighbours with the product before or after it."""
    for op in program.ops:
        before = program.producer(op.inputs[0])
        if (
            before is None
            or len(program.consumers(before.out)) > 1
            or len(op.inputs) + len(before.inputs) > 2
        ):
            continue
        sums, product = (op, before) if isinstance(op, ir.Aggregate) else (before, op)
        if isinstance(sums, ir.Aggregate) and type(product) is ir.Linear:
            joined = ir.AggregateLinear(
                out=op.out,
                inputs=before.inputs,
                adjacency=sums.adjacency,
                weight=product.weight,
                view=product.view,
                mixed=product.mixed,
                also=product.also,
            )
            return program.replaced({op.out: joined}, without=before.out)
    return None


def _with_root(program: ir.Program) -> ir.Program | None:
    """Join a product of the destinations' own rows with that of the same rows' sums."""
    for op in program.ops:
        if not isinstance(op, ir.Add):
            continue
        for one, other in (op.inputs, op.inputs[::-1]):
            summed, product = program.producer(one), program.producer(other)
            if not isinstance(summed, ir.AggregateLinear) or type(product) is not ir.Linear or summed.root:
                continue
            own = program.producer(product.inputs[0])
            is_own = isinstance(own, ir.DestinationRows) and own.inputs == summed.inputs
            is_alone = all(len(program.consumers(value)) == 1 for value in (one, other))
            if is_own and is_alone and len(product.inputs) == 1:
                joined = replace(summed, out=op.out, root=product)
                return program.replaced({op.out: joined}, without=one)
    return None


def _with_other(program: ir.Program) -> ir.Program | None:
    """Join two products whose results are added."""
    for op in program.ops:
        if not isinstance(op, ir.Add):
            continue
        one, other = (program.producer(value) for value in op.inputs)
        if type(one) is not ir.Linear or type(other) is not ir.Linear or one is other:
            continue
        if all(len(side.inputs) == len(program.consumers(side.out)) == 1 for side in (one, other)):
            joined = ir.LinearSum(out=op.out, inputs=other.inputs + one.inputs, terms=(other, one))
            return program.replaced({op.out: joined})
    return None


def _with_epilogue(program: ir.Program) -> ir.Program | None:
    """Let the kernel of a product apply the bias, the activation and the dropout behind it."""
    for op in program.ops:
        maker = program.producer(op.inputs[0])
        if not isinstance(op, ir.Epilogue) or op.act not in ACTIVATION_CODES:
            continue
        if not isinstance(maker, ir.Linear | ir.LinearSum):
            continue
        has_addend = type(maker) is ir.Linear and len(maker.inputs) > 1
        if maker.after is None and not has_addend and len(program.consumers(maker.out)) == 1:
            return program.replaced({op.out: replace(maker, out=op.out, after=op)}, without=maker.out)
    return None
