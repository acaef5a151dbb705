"""Calls of rows that travel between ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from graphbraid.fullgraph.step.operations.row_exchange import RowExchange

if TYPE_CHECKING:
    from graphbraid.synth.emit.calls import CallWriter


@dataclass(frozen=True, eq=False, slots=True)
class WrittenExchange:
    """An exchange between ranks as a program makes it once."""

    name: str
    arguments: str
    """Own rows to send, then how many of them go to each rank and how many rows come from each."""
    travel: RowExchange
    """What was recorded, alive so that no other gets its place in memory."""


class Exchanges:
    """The exchanges of a step, in the order of their first use."""

    def __init__(self) -> None:
        self.made: list[WrittenExchange] = []
        self._by_id: dict[int, WrittenExchange] = {}

    def name(self, w: CallWriter, travel: RowExchange) -> str:
        """Return the name of an exchange."""
        if id(travel) not in self._by_id:
            route, m = travel.route, w.memory
            arrays = (
                m.array(route.send, "send"),
                m.array(torch.tensor(route.send_rows), "send_rows"),
                m.array(torch.tensor(route.receive_rows), "receive_rows"),
            )
            pointers = ", ".join(f"{array}.int64s()" for array in arrays)
            name = f"{m.arena}_exchange{len(self.made)}"
            self.made.append(WrittenExchange(name, f"{pointers}, {route.num_sent}", travel))
            self._by_id[id(travel)] = self.made[-1]
        return self._by_id[id(travel)].name


def begin(w: CallWriter, at: int, travel: RowExchange, *rows: Tensor) -> list[str]:
    """Write the departure of own rows to the ranks that read them."""
    matrices = ", ".join(w.memory.matrix(matrix, at) for matrix in rows)
    return [f"{w.exchanges.name(w, travel)}.begin({matrices});"]


def begin_back(w: CallWriter, at: int, travel: RowExchange, *rows: Tensor) -> list[str]:
    """Write the departure of the halo's gradients to their owners."""
    matrices = ", ".join(w.memory.matrix(matrix, at) for matrix in rows)
    return [f"{w.exchanges.name(w, travel)}.begin_back({matrices});"]


def wait(w: CallWriter, _: int, travel: RowExchange) -> list[str]:
    """Write the wait for what was begun."""
    return [f"{w.exchanges.name(w, travel)}.wait();"]


WRITERS: dict[str, Callable[..., list[str]]] = {"begin": begin, "begin_back": begin_back, "wait": wait}
"""The writers by the name of the call."""

__all__ = ["WRITERS", "Exchanges", "WrittenExchange"]
