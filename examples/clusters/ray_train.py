"""Ray Train starts the workers and their process group; graphbraid trains in it.

    python ray_train.py --workers 2 --out /shared/runs/first

A worker that is lost ends all of them. Ray starts them again, and they go on from the last checkpoint in
``--out``, a folder that all machines of the Ray cluster see.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer


def train(config: dict[str, Any]) -> None:
    """Train on one worker; all call it."""
    from graphbraid import Trainer, datasets, distributed
    from graphbraid.nn import GraphSAGE

    with distributed.init():  # the process group that Ray has made
        graph = datasets.load("braid-10k")
        model = GraphSAGE(graph.num_features, 64, graph.num_classes, num_layers=2)
        options = {"epochs": config["epochs"], "fanouts": (10, 5), "batch_size": 512, "layout": "blocks"}
        Trainer(model, graph, out_dir=config["out"], resume="auto", **options).fit()


def main() -> None:
    """Start the workers and wait for them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--cores", type=int, default=1, help="of each worker")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--out", type=lambda text: str(Path(text).absolute()), required=True)
    options = parser.parse_args()
    trainer = TorchTrainer(
        train,
        train_loop_config={"epochs": options.epochs, "out": options.out},
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(
            num_workers=options.workers, resources_per_worker={"CPU": options.cores}
        ),
        run_config=RunConfig(failure_config=FailureConfig(max_failures=3), storage_path=f"{options.out}-ray"),
    )
    trainer.fit()
    found = json.loads(Path(options.out, "result.json").read_text(encoding="utf-8"))
    print(f"{options.workers} ranks, test accuracy {found['test']['accuracy']:.3f}")


if __name__ == "__main__":
    main()
