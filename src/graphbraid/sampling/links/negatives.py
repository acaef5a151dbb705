"""NegativeSampling: how the negatives of a batch of links are drawn."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from graphbraid.arguments import MOST_AMOUNT, as_flag, as_number, check_choice, shown
from graphbraid.errors import ConfigError

MODES = ("binary", "triplet")
DEGREE = "degree"


@dataclass(frozen=True, eq=False, slots=True)
class NegativeSampling:
    """How negative links are drawn; the first four arguments are those of PyG's class of this name."""

    mode: str
    """``binary``: pairs of nodes, as many as ``amount`` times the links. ``triplet``: ``amount`` destinations
    for each link's source."""
    amount: float = 1
    """Number of negatives per link; a whole number with ``triplet``."""
    src_weight: Tensor | str | None = None
    """``(num_nodes,)`` weights that sources are drawn by, or ``"degree"`` for their numbers of out-edges. If
    None, all nodes are equally likely. Where there are types, nodes are those of the sources' type, and edges
    those of the links' relation."""
    dst_weight: Tensor | str | None = None
    """Weights that destinations are drawn by, likewise; ``"degree"`` stands for their numbers of in-edges."""
    reject_edges: bool = False
    """Whether to draw only pairs that are neither an edge of the graph, nor one of the loader's links, nor a
    node and itself. Otherwise a negative may be any of these, as in PyG."""

    def __post_init__(self) -> None:
        check_choice(self.mode, "mode of NegativeSampling", MODES)
        amount = as_number(self.amount, "amount of NegativeSampling", least=0, most=MOST_AMOUNT)
        if amount <= 0:
            raise ConfigError(f"amount of NegativeSampling must be greater than 0; got {amount:g}")
        if self.mode == "triplet" and amount != math.ceil(amount):
            raise ConfigError(
                f"amount of NegativeSampling must be a whole number for mode 'triplet'; got {amount:g}"
            )
        object.__setattr__(self, "amount", int(amount) if amount == math.ceil(amount) else amount)
        object.__setattr__(self, "reject_edges", as_flag(self.reject_edges, "reject_edges"))

    @property
    def is_triplet(self) -> bool:
        """Whether each link gets destinations of its own, rather than the batch pairs of nodes."""
        return self.mode == "triplet"

    def count(self, num_links: int) -> int:
        """Return the number of negatives of a batch of ``num_links``."""
        return math.ceil(num_links * self.amount)

    @classmethod
    def of(cls, value: Any) -> NegativeSampling | None:
        """Return what ``neg_sampling`` asks for: a mode, a dict, or an instance of this class or PyG's.

        Raises:
            ConfigError: it is none of these, or an option of it is invalid.
        """
        if value is None or isinstance(value, NegativeSampling):
            return value
        if isinstance(value, str):
            return cls(value)
        if isinstance(value, Mapping):
            known = {field.name for field in dataclasses.fields(cls)}
            if "mode" not in value or not set(value) <= known:
                raise ConfigError(
                    f"neg_sampling must have 'mode' and may have {', '.join(sorted(known - {'mode'}))}; "
                    f"got {shown(dict(value))}"
                )
            return cls(**value)
        if hasattr(value, "mode") and hasattr(value, "amount"):  # PyG's class
            mode = getattr(value.mode, "value", value.mode)
            return cls(mode, value.amount, value.src_weight, value.dst_weight)
        raise ConfigError(
            "neg_sampling must be 'binary', 'triplet', a dict of options or a NegativeSampling; "
            f"got {shown(value)}"
        )
