"""Writer: collects the operations of a program as its readers meet them."""

from __future__ import annotations

from typing import Any

from graphbraid.fullgraph.program.operations import Add, Epilogue, Linear, Op, Own


class Writer:
    """Collects operations, naming their values in order."""

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self._levels: dict[str, int] = {}

    def add(self, make: type[Op], *inputs: str, **fields: Any) -> str:
        """Append an operation; returns its value's name."""
        out = f"v{len(self.ops)}"
        self.ops.append(make(out=out, inputs=inputs, **fields))
        self._levels[out] = self.level(inputs[0]) + make.moves
        return out

    def level(self, value: str) -> int:
        """How many aggregations lie behind a value."""
        return self._levels.get(value, 0)

    def on_one_level(self, first: str, second: str) -> tuple[str, str]:
        """Both values at the later one's level: of the other, the rows of that level's nodes."""
        while (ahead := self.level(first) - self.level(second)) != 0:
            if ahead < 0:
                first = self.add(Own, first)
            else:
                second = self.add(Own, second)
        return first, second

    def sum(self, first: str, second: str) -> str:
        """``first + second``, of rows at any two levels."""
        return self.add(Add, *self.on_one_level(first, second))

    def epilogue(self, x: str, *, bias: Any = None, act: str = "none", p: float = 0.0) -> str:
        """Bias, activation and dropout, each as an operation of its own; nothing where there is none."""
        if bias is not None:
            x = self.add(Epilogue, x, bias=bias)
        if act != "none":
            x = self.add(Epilogue, x, act=act)
        return self.add(Epilogue, x, p=p) if p > 0 else x

    def linear(self, x: str, module: Any) -> str:
        """A linear layer."""
        return self.epilogue(self.add(Linear, x, weight=module.weight), bias=module.bias)


__all__ = ["Writer"]
