"""Evidence: the rates and trials behind a lowering, so that another one can repeat it bit for bit."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from graphbraid.errors import DataError
from graphbraid.machine.rates import Rates


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """Rates and trials that a run stores and uses again when it is resumed.

    The choices differ in how they round, so with new measurements, taken on another day or machine, a resumed
    run could give other bits.
    """

    rates: Rates
    trials: Mapping[str, float] = field(default_factory=dict)
    """Measured seconds, by the name of what was tried."""

    def to_json(self) -> dict[str, Any]:
        """Return the evidence as plain values."""
        return {"rates": dataclasses.asdict(self.rates), "trials": dict(self.trials)}

    @classmethod
    def from_json(cls, content: Any, where: str = "the evidence") -> Evidence:
        """Make evidence from what :meth:`to_json` returned.

        Raises:
            DataError: ``content`` is anything else; the message says what is wrong in ``where``.
        """
        try:
            values = {str(name): float(rate) for name, rate in content["rates"].items()}
            if bad := [name for name, rate in values.items() if not math.isfinite(rate) or rate <= 0]:
                raise ValueError(f"the rate {bad[0]} is {values[bad[0]]}")
            return cls(rates=Rates(**values), trials=sound_trials(content["trials"]))
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            raise DataError(
                f"{where} holds no sound rates and trials: {error}. Delete it, and the run goes on by those "
                "of this machine."
            ) from error


def sound_trials(found: Any) -> dict[str, float]:
    """Return trials read from a file, once checked.

    Raises:
        ValueError: ``found`` is not a mapping from names to positive numbers.
    """
    if not isinstance(found, dict):
        raise ValueError("trials must be seconds by name")
    for name, seconds in found.items():
        if not isinstance(seconds, float | int) or not math.isfinite(seconds) or seconds <= 0:
            raise ValueError(f"{name!r} cannot have taken {seconds!r} seconds")
    return {str(name): float(seconds) for name, seconds in found.items()}


__all__ = ["Evidence", "sound_trials"]
