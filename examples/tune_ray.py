"""Options chosen by Ray Tune: trials run beside each other, and ASHA ends those that fall behind."""

import tempfile
from typing import Any

import ray
from ray import tune
from ray.tune.schedulers import ASHAScheduler


def train(options: dict[str, Any]) -> None:
    """One trial, in a process of Ray's."""
    import torch

    import graphbraid
    from graphbraid.train import Callback, EpochRecord, Trainer

    class Reports(Callback):
        """Tells Ray each epoch's accuracy; Ray ends a trial there."""

        def on_epoch_end(self, trainer: Trainer, record: EpochRecord) -> None:
            tune.report({"accuracy": record.val["accuracy"]})

    torch.manual_seed(0)
    graph = graphbraid.datasets.load("braid-10k")
    model = graphbraid.nn.GraphSAGE(graph.num_features, options["hidden"], graph.num_classes, 2)
    settings = {"fanouts": (10, 5), "batch_size": 64, "threads": 1, "seed": 0, "test_at_end": False}
    Trainer(model, graph, epochs=4, lr=options["lr"], callbacks=[Reports()], **settings).fit()


def main() -> None:
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    with tempfile.TemporaryDirectory() as folder:
        tuner = tune.Tuner(
            tune.with_resources(train, {"cpu": 1}),
            param_space={"lr": tune.loguniform(1e-4, 1e-1), "hidden": tune.choice([8, 16, 32, 64])},
            tune_config=tune.TuneConfig(
                metric="accuracy", mode="max", num_samples=6, scheduler=ASHAScheduler(max_t=4, grace_period=1)
            ),
            run_config=tune.RunConfig(storage_path=folder, verbose=0),
        )
        results = tuner.fit()
        best = results.get_best_result()
    assert best.metrics is not None
    print(f"{len(results)} trials, {results.num_errors} failed")
    print(f"best validation accuracy {best.metrics['accuracy']:.4f} with {best.config}")
    ray.shutdown()


if __name__ == "__main__":
    main()
