"""Reading of the ``plan`` option: a plan, the path of one, or a plan's name."""

from __future__ import annotations

import os
from pathlib import Path

from graphbraid.collective.plan.plan import Plan
from graphbraid.errors import ConfigError, did_you_mean

PLANS = ("auto", "cpu", "gpu")
"""Names of plans that are made when they are needed."""


def read_plan(plan: Plan | str | os.PathLike[str] | None) -> Plan | None:
    """Return a plan that is given itself or by its file; None for a plan's name or for None.

    Raises:
        ConfigError: the argument is neither a name nor an existing file.
        DataError: the file does not hold a valid plan.
    """
    if plan is None or isinstance(plan, Plan) or (isinstance(plan, str) and plan in PLANS):
        return plan if isinstance(plan, Plan) else None
    if isinstance(plan, str | os.PathLike) and Path(plan).is_file():
        return Plan.load(plan)
    raise ConfigError(
        f"plan must be one of {', '.join(map(repr, PLANS))}, a Plan, or the path of a plan's file; got "
        f"{plan!r}, and there is no such file.{did_you_mean(plan, PLANS)}"
    )
