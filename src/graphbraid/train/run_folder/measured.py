"""Plans and measurements kept in a run's folder, so that a resumed run makes the same decisions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from graphbraid.collective import Plan
from graphbraid.errors import DataError
from graphbraid.files.opening import read_text
from graphbraid.files.writing import atomic_write
from graphbraid.loader.options import PLANS

if TYPE_CHECKING:
    from graphbraid.fullgraph import Engine, Evidence
    from graphbraid.train.config import TrainConfig

LOWERING = "lowering.json"
"""File of the rates and trials by which the model was lowered, in mode full."""
PLAN = "plan.json"
"""File of the plan that divides the cores, if the run's bits may depend on it."""


def kept_evidence(folder: Path) -> Evidence | None:
    """Return the evidence by which a run was lowered; None if it was not, or was by an earlier version.

    Raises:
        DataError: the file is damaged.
    """
    from graphbraid.fullgraph import Evidence

    file = folder / LOWERING
    if not file.is_file():
        return None
    try:
        content = json.loads(read_text(file))
    except ValueError as error:
        raise DataError(
            f"{file} is damaged: {error}. Delete it, and the run goes on by what is measured now."
        ) from error
    return Evidence.from_json(content, str(file))


def kept_plan(folder: Path, config: TrainConfig) -> Plan | None:
    """Return the plan that a run with a plan by name kept for dividing the cores, or None to make a new one.

    Raises:
        DataError: the file is damaged.
    """
    file = folder / PLAN
    is_asked_for = isinstance(config.plan, str) and config.plan in PLANS and config.mode != "full"
    if not is_asked_for or config.threads is not None or not file.is_file():
        return None
    return Plan.load(file)


def keep(folder: Path, engine: Engine | None, plan: Plan | None) -> None:
    """Write the evidence and the plan of a run that begins."""
    if engine is not None:
        with atomic_write(folder / LOWERING) as aside:
            aside.write_text(json.dumps(engine.evidence.to_json(), indent=1) + "\n", encoding="utf-8")
    if plan is not None and plan.cores is not None and not plan.cores.turns:
        plan.save(folder / PLAN)
