"""Messages of programs for a GPU: their steps as types of C++, with which ``messages.cuh`` is compiled."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from graphbraid.fullgraph import NotLoweredError
from graphbraid.ops.message_steps import MessageOp

_KINDS = ("kSum", "kMax", "kMin")
_MATRICES = {MessageOp.SOURCE: ("source", "x"), MessageOp.DESTINATION: ("destination", "y")}
_WITH_NUMBER = (MessageOp.LEAKY_RELU, MessageOp.LEAKY_RELU_GRADIENT)


class MessageTypes:
    """The types of a program's messages, each once."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    @property
    def lines(self) -> list[list[str]]:
        """The lines of each type."""
        return [body.replace("MESSAGE", name).splitlines() for body, name in self._names.items()]

    def name(self, steps: Tensor, numbers: Tensor, results: Tensor) -> str:
        """Return the name of a message's type.

        Args:
            steps: ``(num_steps, 4)`` int64, as :class:`.MessageOp` has them: what, two steps, is narrow.
            numbers: ``(num_steps,)`` float32.
            results: ``(num_results, 3)`` int64: kind, step and place.

        Raises:
            NotLoweredError: rows are narrow, or a result is no sum, maximum or minimum of a row.
        """
        rows = [(MessageOp(op), first, second) for op, first, second, _ in steps.tolist()]
        wanted = results.tolist()
        if bool(steps[:, 3].any()) or any(kind >= len(_KINDS) for kind, _, _ in wanted):
            what = "messages with heads, a softmax or parameters, which programs for a GPU do not have"
            raise NotLoweredError("synthesis", what, "the target openmp or mpi")
        assert [place for _, _, place in wanted] == list(range(len(wanted)))
        body = [
            f"    const float s{i} = {_code(*row, number)};"
            for i, (row, number) in enumerate(zip(rows, numbers.numpy(), strict=True))
        ]
        body += [f"    result[{place}] = s{step};" for _, step, place in wanted]
        reads = any("edge." in line for line in body)
        kinds = ", ".join(f"MessageResult::{_KINDS[kind]}" for kind, _, _ in wanted)
        lines = [
            "struct MESSAGE {",
            f"  using Kinds = MessageResults<{kinds}>;",
            "  __device__ static void compute("
            f"{'' if reads else '[[maybe_unused]] '}const MessageEdge& edge, float* result) {{",
            *body,
            "  }",
            "};",
        ]
        return self._names.setdefault("\n".join(lines), f"Message{len(self._names)}")


def _code(op: MessageOp, first: int, second: int, number: np.float32) -> str:
    """Return a step as an expression of C++."""
    if op in _MATRICES:
        side, letter = _MATRICES[op]
        return f"edge.{side}(&Messages::{letter}{first + 1 if first else ''})"
    if op is MessageOp.WEIGHT:
        return "edge.weight()"
    if op is MessageOp.NUMBER:
        return _number(number)
    given = [f"s{first}", *([f"s{second}"] if op <= MessageOp.WHERE else [])]
    given += [_number(number)] if op in _WITH_NUMBER else []
    return f"steps::{op.name.lower()}({', '.join(given)})"


def _number(value: np.float32) -> str:
    if not np.isfinite(value):
        return "NAN" if np.isnan(value) else "INFINITY" if value > 0 else "-INFINITY"
    return f"{value}f"
