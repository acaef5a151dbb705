"""What a run was planned by, kept in its folder: a resumed run decides alike, whatever is measured then."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from graphbraid.collective import Plan
from graphbraid.errors import DataError
from graphbraid.files.writing import atomic_write
from graphbraid.fullgraph import Evidence
from graphbraid.loader import PLANS

if TYPE_CHECKING:
    from graphbraid.fullgraph import Engine
    from graphbraid.train.config import TrainConfig

LOWERING = "lowering.json"
"""Rates and trials that the model was lowered by, in mode full."""
PLAN = "plan.json"
"""Who has the cores, where a run's bits may depend on it."""


def kept_evidence(folder: Path) -> Evidence | None:
    """What a run was lowered by; None where it was not, or by an earlier version.

    Raises:
        DataError: the file is damaged.
    """
    file = folder / LOWERING
    if not file.is_file():
        return None
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(
            f"{file} is damaged: {error}. Delete it, and the run goes on by what is measured now."
        ) from error
    return Evidence.from_json(content, str(file))


def kept_plan(folder: Path, config: TrainConfig) -> Plan | None:
    """The plan by which a run that asks for one by name has divided the cores so far; None: it is made anew.

    Raises:
        DataError: the file is damaged.
    """
    file = folder / PLAN
    is_asked_for = isinstance(config.plan, str) and config.plan in PLANS and config.mode != "full"
    if not is_asked_for or config.threads is not None or not file.is_file():
        return None
    return Plan.load(file)


def keep(folder: Path, engine: Engine | None, plan: Plan | None) -> None:
    """Write what a run that begins is planned by."""
    if engine is not None:
        with atomic_write(folder / LOWERING) as aside:
            aside.write_text(json.dumps(engine.evidence.to_json(), indent=1) + "\n", encoding="utf-8")
    if plan is not None and plan.cores is not None and not plan.cores.turns:
        plan.save(folder / PLAN)
