"""Training: the Trainer, its configuration and its callbacks."""

from typing import TYPE_CHECKING

from graphbraid.lazy import names_of

if TYPE_CHECKING:
    from graphbraid.estimates.machine import HardwareFile
    from graphbraid.estimates.records import Estimate
    from graphbraid.train.callbacks import (
        Callback,
        EarlyStopping,
        EpochRecord,
        Resources,
        RunResult,
        StepRecord,
    )
    from graphbraid.train.config import TrainConfig
    from graphbraid.train.inference.ranking import Ranking, link_auc, rank_links
    from graphbraid.train.run_folder.loggers import LogTo
    from graphbraid.train.trainer import Trainer

__all__ = [
    "Callback",
    "EarlyStopping",
    "EpochRecord",
    "Estimate",
    "HardwareFile",
    "LogTo",
    "Ranking",
    "Resources",
    "RunResult",
    "StepRecord",
    "TrainConfig",
    "Trainer",
    "link_auc",
    "rank_links",
]

__getattr__ = names_of(
    __name__,
    {
        ".estimates.machine": "HardwareFile",
        ".estimates.records": "Estimate",
        "callbacks": "Callback EarlyStopping EpochRecord Resources RunResult StepRecord",
        "config": "TrainConfig",
        "inference.ranking": "Ranking link_auc rank_links",
        "run_folder.loggers": "LogTo",
        "trainer": "Trainer",
    },
)
