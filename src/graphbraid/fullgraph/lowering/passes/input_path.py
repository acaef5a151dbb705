"""Input path: whether the first weights multiply the features as dense, as sparse or as bits."""

from __future__ import annotations

from dataclasses import replace

from graphbraid.fullgraph.lowering.facts import Facts
from graphbraid.fullgraph.lowering.passes.hoisting import hoisted
from graphbraid.fullgraph.lowering.passes.rewriting import decided, in_seconds
from graphbraid.fullgraph.program import INPUT, Linear, Operation, Own, Program
from graphbraid.fullgraph.program.refusal import NotLoweredError

_OTHER_READERS = "the features are read by something other than a linear map"


def choose_input_path(program: Program, facts: Facts) -> Program:
    """Choose to multiply the features as dense, as sparse or as bits, whichever takes the least time.

    A program whose settings name its ``input_path`` already, keeps it.

    Raises:
        NotLoweredError: a path is asked for, and something other than a linear map reads the features.
    """
    if program.parts:
        return _as_stored(program, facts)
    width, asked = input_width(program), program.settings.get("input_path")
    if asked == "streamed":  # as has been decided before any pass
        return program
    if not width:
        if asked not in {None, "dense"}:
            raise NotLoweredError("input path", _OTHER_READERS, "dense features")
        return decided(program, "input path", False, f"dense: {_OTHER_READERS}", input_path="dense")
    if asked is not None:
        ops = program.ops if asked == "dense" else _own_after_linear(program)
        what = f"{asked}, as asked: {facts.density:.4g} of the features are not zero"
        return decided(program, "input path", asked != "dense", what, ops=ops, input_path=asked)
    seconds, tried = facts.weighed(lambda by: input_seconds(program, by))
    chosen = min(seconds, key=lambda path: seconds[path])
    others = sorted((path for path in seconds if path != chosen), key=lambda path: seconds[path])
    what = f"{chosen}: {facts.density:.4g} of the features are not zero"
    if chosen == "binary":
        what += ", one number in each row: 32 features are a word of bits"
    what += tried
    return decided(
        program,
        "input path",
        chosen != "dense",
        what,
        saves=in_seconds(seconds[others[0]] - seconds[chosen]),
        instead_of=" or ".join(f"{path}, {in_seconds(seconds[path])} an epoch" for path in others),
        ops=program.ops if chosen == "dense" else _own_after_linear(program),
        input_path=chosen,
    )


def _as_stored(program: Program, facts: Facts) -> Program:
    """Multiply the features of each node type as sparse where they are stored so, if only linear maps do."""
    paths = {}
    for number, part in enumerate(program.parts):
        readers = _readers(program, part.input)
        fits = all(isinstance(op, Linear) and len(op.inputs) == 1 for op in readers)
        is_sparse = facts.parts[number].is_sparse and bool(readers) and fits
        paths[part.input] = "sparse" if is_sparse else "dense"
    sparse = [part.name for part in program.parts if paths[part.input] == "sparse"]
    what = f"features of {', '.join(sparse)} are stored sparse" if sparse else "dense: no type's are sparse"
    marked = program.rewritten(program.ops, input_paths=paths)
    ops = _own_after_linear(marked) if sparse else program.ops
    return decided(program, "input path", bool(sparse), what, ops=ops, input_paths=paths)


def _readers(program: Program, value: str) -> list[Operation]:
    """Return the operations that read a value, directly or through :class:`Own`."""
    found: list[Operation] = []
    for op in program.consumers(value):
        found += _readers(program, op.out) if isinstance(op, Own) else [op]
    return found


def input_width(program: Program) -> int:
    """Return the columns of all weights that multiply the features; 0 if anything else reads these, too."""
    readers = _readers(program, INPUT)
    is_linear = all(isinstance(op, Linear) and len(op.inputs) == 1 for op in readers)
    return sum(program.width(op.out) for op in readers) if is_linear else 0


def input_seconds(program: Program, facts: Facts) -> dict[str, float]:
    """Return the seconds per epoch of the features' products with weights, on each available path."""
    rows, width = facts.rows[0], input_width(program)
    seconds = {
        "dense": 2 * facts.multiply_seconds(rows, facts.in_channels, width),
        "sparse": 2 * facts.sparse_seconds(rows, width),
    }
    if not facts.is_sparse:  # sparse features would have to be made dense to be hoisted
        _, hoist = hoisted(program, facts, limit=facts.hoist_bytes)
        seconds["dense"] -= hoist["every epoch"] - hoist["once"]
    if facts.is_binary:
        seconds["binary"] = 2 * facts.binary_seconds(rows, width)
    return seconds


def _own_after_linear(program: Program) -> tuple[Operation, ...]:
    """Move linear maps before :class:`Own` of the features, so that compact rows are never made dense."""
    ops: list[Operation] = []
    for op in program.ops:
        chain = _own_rows_of_input(program, op.out if isinstance(op, Own) else op.inputs[0])
        if chain and isinstance(op, Own):
            continue
        if not chain or not isinstance(op, Linear):
            ops.append(op)
            continue
        value = f"{op.out}_all"
        ops.append(replace(op, out=value, inputs=(_origin(program, op.inputs[0]),)))
        for number in range(chain):
            name = op.out if number == chain - 1 else f"{op.out}_all{number + 1}"
            ops.append(Own(out=name, inputs=(value,)))
            value = name
    return tuple(ops)


def _own_rows_of_input(program: Program, value: str) -> int:
    """Return how many :class:`Own` lead from the features to a value; 0 if anything else takes part."""
    source, count = _origin(program, value), 0
    while value != source:
        op = program.producer(value)
        assert op is not None
        value, count = op.inputs[0], count + 1
    is_kept_dense = program.parts and program.path_of(source) == "dense"
    return 0 if source not in program.inputs or is_kept_dense else count


def _origin(program: Program, value: str) -> str:
    """Return the value whose rows a value holds, itself or the one that :class:`Own` leads from."""
    op = program.producer(value)
    return _origin(program, op.inputs[0]) if isinstance(op, Own) else value


__all__ = ["choose_input_path", "input_seconds", "input_width"]
