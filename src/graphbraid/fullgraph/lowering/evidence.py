"""Evidence: what a lowering was decided by, so that another one decides alike and gives the same bits."""

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
    """Rates and trials: a run keeps them, and goes on with them after it was stopped.

    Choices differ in the rounding of what they compute, so that another measurement, on another day or
    machine, could lead a resumed run to other bits.
    """

    rates: Rates
    trials: Mapping[str, float] = field(default_factory=dict)
    """Seconds by what was tried."""

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {"rates": dataclasses.asdict(self.rates), "trials": dict(self.trials)}

    @classmethod
    def from_json(cls, content: Any, where: str = "the evidence") -> Evidence:
        """What :meth:`to_json` gave.

        Raises:
            DataError: it is something else; says what of ``where`` is wrong.
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
    """Trials read from a file.

    Raises:
        ValueError: they are no positive numbers by name.
    """
    if not isinstance(found, dict):
        raise ValueError("trials are seconds by name")
    for name, seconds in found.items():
        if not isinstance(seconds, float | int) or not math.isfinite(seconds) or seconds <= 0:
            raise ValueError(f"{name!r} did not take {seconds!r} seconds")
    return {str(name): float(seconds) for name, seconds in found.items()}


__all__ = ["Evidence", "sound_trials"]
