"""learning_of: targets and model of a run of any task."""

from __future__ import annotations

from graphbraid.cli.run.build import Learning, learning
from graphbraid.cli.run.settings import ResolvedRun


def learning_of(run: ResolvedRun) -> Learning:
    """Load the data of a run, check it and make the model.

    Raises:
        ConfigError: the model or an option does not fit.
        DataError: the data is not there, is broken, or lacks what training needs.
        ResourceError: the model's weights with what training adds need more than the free memory.
    """
    if run.train.task in ("edge", "graph"):
        from graphbraid.cli.run.tasks import learning_edges, learning_graphs  # here: few runs have these

        return learning_edges(run) if run.train.task == "edge" else learning_graphs(run)
    return learning(run)
