"""Training: the Trainer, its configuration and its callbacks."""

from graphbraid.train.callbacks import Callback, EarlyStopping
from graphbraid.train.config import TrainConfig
from graphbraid.train.estimating.hardware import HardwareFile
from graphbraid.train.estimating.records import Estimate
from graphbraid.train.inference.ranking import Ranking, link_auc, rank_links
from graphbraid.train.records import EpochRecord, RunResult, StepRecord
from graphbraid.train.trainer import Trainer

__all__ = [
    "Callback",
    "EarlyStopping",
    "EpochRecord",
    "Estimate",
    "HardwareFile",
    "Ranking",
    "RunResult",
    "StepRecord",
    "TrainConfig",
    "Trainer",
    "link_auc",
    "rank_links",
]
