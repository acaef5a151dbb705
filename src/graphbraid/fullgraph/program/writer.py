"""Writer: collects the operations of a program from its readers."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from graphbraid.fullgraph.program.operations import (
    Add,
    Combine,
    Concat,
    Epilogue,
    Largest,
    Linear,
    Operation,
    Own,
    RowFunction,
)
from graphbraid.fullgraph.program.readers.exact import python_value
from graphbraid.ops.rowwise.epilogue import LEAKY_SLOPE

_FUSED: dict[tuple[str, tuple[float | str, ...]], str] = {
    ("elu", (1.0, 1.0, 1.0)): "elu",
    ("leaky_relu", (LEAKY_SLOPE,)): "leaky_relu",
}
"""Epilogue activations by the functions that they are equal to."""


class Writer:
    """Collects operations and names their values in order.

    Args:
        parts: number of the node type of each input, where there are types.
    """

    def __init__(self, parts: Mapping[str, int] | None = None) -> None:
        self.ops: list[Operation] = []
        self._levels: dict[str, int] = {}
        self._parts = dict(parts or {})
        self._made: dict[Hashable, str] = {}

    def add(self, make: type[Operation], *inputs: str, **fields: Any) -> str:
        """Append an operation, unless an equal combination exists already, and return its value's name."""
        fields = {name: python_value(value) for name, value in fields.items()}  # of a user's attributes
        key = (make, inputs, *fields.items()) if make in (Own, Combine) else None
        if key in self._made:
            return self._made[key]
        out = f"v{len(self.ops)}"
        self.ops.append(make(out=out, inputs=inputs, **fields))
        if key is not None:
            self._made[key] = out
        self._levels[out] = self.level(inputs[0]) + self.ops[-1].num_blocks()
        walked = self.ops[-1].walks
        self._parts[out] = self.part(inputs[0]) if walked is None else walked.destination
        return out

    def level(self, value: str) -> int:
        """Return the level of a value: the number of aggregations before it."""
        return self._levels.get(value, 0)

    def part(self, value: str) -> int:
        """Return the number of the node type for whose nodes a value has rows."""
        return self._parts.get(value, 0)

    def rows_at(self, value: str, level: int) -> str:
        """Return a value's rows for the nodes of a later level; the value itself if that is its level."""
        while self.level(value) < level:
            value = self.add(Own, value)
        return value

    def on_one_level(self, *values: str) -> list[str]:
        """Return the values' rows for the nodes of the latest of their levels."""
        level = max(self.level(value) for value in values)
        return [self.rows_at(value, level) for value in values]

    def sum(self, first: str, second: str) -> str:
        """Append ``first + second``, of values at any two levels."""
        return self.add(Add, *self.on_one_level(first, second))

    def combine(self, *terms: tuple[float, str]) -> str:
        """Append the sum of values, at any levels, times constant factors."""
        factors: dict[str, float] = {}
        for value, (factor, _) in zip(self.on_one_level(*(v for _, v in terms)), terms, strict=True):
            factors[value] = factors.get(value, 0.0) + factor
        if set(factors.values()) == {1.0} and len(factors) <= 2:
            return self.sum(*factors) if len(factors) == 2 else next(iter(factors))
        return self.add(Combine, *factors, factors=tuple(factors.values()))

    def beside(self, *values: str) -> str:
        """Append the concatenation of the columns of values at any levels."""
        return values[0] if len(values) == 1 else self.add(Concat, *self.on_one_level(*values))

    def largest(self, *values: str) -> str:
        """Append the elementwise maximum of values at any levels."""
        return values[0] if len(values) == 1 else self.add(Largest, *self.on_one_level(*values))

    def function(self, x: str, kind: str, *arguments: float | str) -> str:
        """Append a function of rows; as an epilogue where possible, so that it can be fused."""
        if (act := _FUSED.get((kind, arguments))) is not None:
            return self.epilogue(x, act=act)
        return self.add(RowFunction, x, kind=kind, arguments=arguments)

    def epilogue(
        self,
        x: str,
        *,
        bias: Any = None,
        bias_at: tuple[int, ...] = (),
        act: str = "none",
        p: float = 0.0,
    ) -> str:
        """Append bias, activation and dropout, each as an operation of its own if it is there."""
        if bias is not None:
            x = self.add(Epilogue, x, bias=bias, bias_at=bias_at)
        if act != "none":
            x = self.add(Epilogue, x, act=act)
        return self.add(Epilogue, x, p=p) if p > 0 else x

    def linear(self, x: str, module: Any) -> str:
        """Append a linear layer."""
        return self.epilogue(self.add(Linear, x, weight=module.weight), bias=module.bias)


__all__ = ["Writer"]
