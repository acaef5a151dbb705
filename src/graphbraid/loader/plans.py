"""Plans as users name them."""

from __future__ import annotations

import os
from pathlib import Path

from graphbraid.collective.plan.plan import Plan
from graphbraid.errors import ConfigError, did_you_mean

PLANS = ("auto", "cpu", "gpu")
"""Plans by name."""


def read_plan(plan: Plan | str | os.PathLike[str] | None) -> Plan | None:
    """A plan given as it is or by its file; None for a plan by name, which is made later, or for none.

    Raises:
        ConfigError: it is neither a name nor a file.
        DataError: the file holds no sound plan.
    """
    if plan is None or isinstance(plan, Plan) or (isinstance(plan, str) and plan in PLANS):
        return plan if isinstance(plan, Plan) else None
    if isinstance(plan, str | os.PathLike) and Path(plan).is_file():
        return Plan.load(plan)
    raise ConfigError(
        f"plan must be one of {', '.join(map(repr, PLANS))}, a Plan, or the path of a plan's file; got "
        f"{plan!r}, and there is no such file.{did_you_mean(plan, PLANS)}"
    )
