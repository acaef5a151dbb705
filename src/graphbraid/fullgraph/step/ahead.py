"""Ahead: what the plan of a step of several ranks does before its turn, so that rows travel meanwhile."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from graphbraid.fullgraph.step.calls.rows import FirstRows


@dataclass(slots=True)
class Ahead:
    """The names of values of which something was planned ahead."""

    masks: set[str] = field(default_factory=set)
    """Epilogues whose masks are drawn for rows that depart early."""
    departed: dict[str, tuple[FirstRows, FirstRows]] = field(default_factory=dict)
    """The whole rows of exchanges that depart before own rows are there, and the rows that are sent."""
    returning: dict[str, FirstRows] = field(default_factory=dict)
    """The memory for the gradients that come back of exchanges whose halo's gradients have departed."""
    gone_back: set[str] = field(default_factory=set)
    """Linear maps whose gradients are computed while those of their value's halo travel."""
    first_back: set[str] = field(default_factory=set)
    """Linear maps of constants just before these, whose gradients are computed likewise."""


__all__ = ["Ahead"]
