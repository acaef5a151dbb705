"""Options chosen by Optuna: hopeless trials are pruned after an epoch, and all are kept in a file."""

import tempfile
from pathlib import Path

import optuna
import torch

import graphbraid
from graphbraid.train import Callback, EpochRecord, Trainer

GRAPH = graphbraid.datasets.load("braid-10k")


class Pruning(Callback):
    """Tells a trial each epoch's accuracy, and ends it where Optuna's pruner says so."""

    def __init__(self, trial: optuna.Trial) -> None:
        self.trial, self.pruned = trial, False

    def on_epoch_end(self, trainer: Trainer, record: EpochRecord) -> None:
        self.trial.report(record.val["accuracy"], record.epoch)
        if self.trial.should_prune():
            self.pruned = True
            trainer.request_stop()


def objective(trial: optuna.Trial) -> float:
    """Best validation accuracy of a short run."""
    torch.manual_seed(0)
    hidden = trial.suggest_int("hidden_channels", 8, 64, log=True)
    dropout = trial.suggest_float("dropout", 0.0, 0.7)
    model = graphbraid.nn.GraphSAGE(GRAPH.num_features, hidden, GRAPH.num_classes, 2, dropout=dropout)
    pruning = Pruning(trial)
    trainer = Trainer(
        model,
        GRAPH,
        epochs=4,
        fanouts=(10, 5),
        batch_size=64,
        lr=trial.suggest_float("lr", 1e-4, 1e-1, log=True),
        monitor="accuracy",
        seed=0,
        test_at_end=False,
        callbacks=[pruning],
    )
    result = trainer.fit()
    if pruning.pruned:
        raise optuna.TrialPruned
    assert result.best_value is not None
    return result.best_value


def main() -> None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        # A file of its own: the same command goes on with the trials that are there.
        backend = optuna.storages.journal.JournalFileBackend(str(Path(folder) / "trials.log"))
        study = optuna.create_study(
            direction="maximize",
            storage=optuna.storages.JournalStorage(backend),
            study_name="sage",
            sampler=optuna.samplers.TPESampler(seed=0),
            pruner=optuna.pruners.MedianPruner(n_startup_trials=3),
            load_if_exists=True,
        )
        study.optimize(objective, n_trials=10)
        states = [trial.state.name for trial in study.trials]
        print(f"{states.count('COMPLETE')} trials ended, {states.count('PRUNED')} were pruned")
        print(f"best validation accuracy {study.best_value:.4f} with {study.best_params}")


if __name__ == "__main__":
    main()
