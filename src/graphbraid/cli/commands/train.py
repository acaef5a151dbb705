"""``graphbraid train``: trains a model on a graph, evaluates it and writes a run folder."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from graphbraid.cli.common import DebugOption, JsonOption, guarded, path_given
from graphbraid.cli.ranks import must_start, start, world_size
from graphbraid.cli.steps.train_run import train_alone, train_as_rank

_DATA, _MODEL, _TRAIN, _RUN = "Data", "Model", "Training", "Run"


def _option(flags: str, panel: str, text: str, metavar: str | None = None) -> Any:
    return typer.Option(*flags.split(), help=text, rich_help_panel=panel, metavar=metavar, show_default=False)


def _path(flags: str, panel: str, text: str, metavar: str) -> Any:
    return typer.Option(
        *flags.split(),
        help=text,
        rich_help_panel=panel,
        metavar=metavar,
        show_default=False,
        parser=path_given,
    )


@guarded
def train(
    *,
    config: Annotated[
        Path | None, _path("--config -c", _RUN, "Read options from this YAML file.", "FILE")
    ] = None,
    data: Annotated[
        str | None,
        _option("--data -d", _DATA, "An embedded dataset's name, an .npz file, a store or an OGB folder."),
    ] = None,
    symmetrize: Annotated[
        bool | None,
        _option(
            "--symmetrize/--as-stored",
            _DATA,
            "Store both directions of every edge, or add the reverse of every relation.",
        ),
    ] = None,
    normalize_features: Annotated[
        bool | None,
        _option("--normalize-features/--features-as-stored", _DATA, "Scale feature rows to sum 1."),
    ] = None,
    split_seed: Annotated[
        int | None, _option("--split-seed", _DATA, "New split: 20 nodes per class to train, 30 to validate.")
    ] = None,
    verify: Annotated[
        bool | None, _option("--verify", _DATA, "Compare all of a store with its checksums.")
    ] = None,
    model: Annotated[
        str | None,
        _option(
            "--model -m",
            _MODEL,
            "gcn, sage, gin, gat, gatv2, mlp; rgcn for types; embedding for links. (default: sage)",
        ),
    ] = None,
    hidden_channels: Annotated[
        int | None, _option("--hidden", _MODEL, "Width of hidden layers. (default: 128)")
    ] = None,
    num_layers: Annotated[
        int | None, _option("--layers", _MODEL, "Number of layers. (default: one per fanout, or 2)")
    ] = None,
    dropout: Annotated[
        float | None, _option("--dropout", _MODEL, "Dropout while training. (default: 0.5)")
    ] = None,
    predictor: Annotated[
        str | None, _option("--predictor", _MODEL, "Of links: dot, distmult (of relations) or mlp.")
    ] = None,
    heads: Annotated[int | None, _option("--heads", _MODEL, "Attention heads (gat, gatv2).")] = None,
    task: Annotated[
        str | None,
        _option("--task", _TRAIN, "node: labels of nodes; link: which links there are. (default: node)"),
    ] = None,
    link_relation: Annotated[
        str | None,
        _option("--relation", _TRAIN, "Of links: the relation to learn, as user,rates,movie."),
    ] = None,
    negatives: Annotated[
        str | None,
        _option("--negatives", _TRAIN, "Of links: binary, triplet or shared. (default: binary)"),
    ] = None,
    num_negatives: Annotated[
        float | None, _option("--num-negatives", _TRAIN, "Negatives per link. (default: 1)")
    ] = None,
    temporal_strategy: Annotated[
        str | None,
        _option(
            "--temporal",
            _TRAIN,
            "Of links with times: neighbours from before each link's time, uniform or last.",
        ),
    ] = None,
    mode: Annotated[
        str | None,
        _option("--mode", _TRAIN, "sampled mini-batches, full: the whole graph, or auto. (default: sampled)"),
    ] = None,
    epochs: Annotated[
        int | None, _option("--epochs", _TRAIN, "Passes over the training nodes. (default: 20)")
    ] = None,
    fanouts: Annotated[
        str | None,
        _option(
            "--fanouts",
            _TRAIN,
            "Neighbours per hop, from the seeds outwards; -1 for all. (default: 15,10)",
        ),
    ] = None,
    batch_size: Annotated[
        int | None, _option("--batch-size", _TRAIN, "Seed nodes per batch. (default: 1024)")
    ] = None,
    layout: Annotated[
        str | None, _option("--layout", _TRAIN, "subgraph (as PyG) or blocks (as DGL).")
    ] = None,
    optimizer: Annotated[
        str | None, _option("--optimizer", _TRAIN, "Any of torch.optim. (default: adamw)")
    ] = None,
    lr: Annotated[float | None, _option("--lr", _TRAIN, "Learning rate. (default: 0.003)")] = None,
    weight_decay: Annotated[
        float | None, _option("--weight-decay", _TRAIN, "Weight decay. (default: 0)")
    ] = None,
    scheduler: Annotated[
        str | None, _option("--scheduler", _TRAIN, "cosine, linear, onecycle or plateau.")
    ] = None,
    clip: Annotated[float | None, _option("--clip", _TRAIN, "Largest norm of the gradients.")] = None,
    patience: Annotated[
        int | None, _option("--patience", _TRAIN, "Stop after this many evaluations without improvement.")
    ] = None,
    eval_every: Annotated[
        int | None, _option("--eval-every", _TRAIN, "Epochs between evaluations; 0 for none. (default: 1)")
    ] = None,
    eval_mode: Annotated[
        str | None, _option("--eval-mode", _TRAIN, "Validate sampled or exact. (default: sampled)")
    ] = None,
    precision: Annotated[
        str | None, _option("--precision", _TRAIN, "float32 or bfloat16. (default: float32)")
    ] = None,
    device: Annotated[
        str | None, _option("--device", _TRAIN, "cpu, cuda, cuda:N or auto. (default: cpu)")
    ] = None,
    workers: Annotated[int | None, _option("--workers", _TRAIN, "Sampling threads. (default: 1)")] = None,
    plan: Annotated[
        str | None, _option("--plan", _TRAIN, "What prepares batches: auto, cpu, gpu or a plan's file.")
    ] = None,
    host: Annotated[
        str | None,
        _option("--host", _TRAIN, "Memory for a store's rows and lists, as 4GiB; others stay on disk."),
    ] = None,
    hot: Annotated[
        str | None, _option("--hot", _TRAIN, "Device memory for the feature rows read most, as 4GiB.")
    ] = None,
    tiers: Annotated[
        str | None,
        _option(
            "--tiers",
            _TRAIN,
            "auto: choose --host (on a device also --hot) by the free memory.",
        ),
    ] = None,
    threads: Annotated[int | None, _option("--threads", _TRAIN, "Threads of the model's operators.")] = None,
    seed: Annotated[int | None, _option("--seed", _TRAIN, "Seed of all random draws. (default: 0)")] = None,
    deterministic: Annotated[
        bool | None, _option("--deterministic/--any-algorithm", _TRAIN, "Only deterministic algorithms.")
    ] = None,
    assignments: Annotated[
        list[str] | None,
        _option("--set", _RUN, "Any other option of run.yaml, as often as needed.", "OPTION=VALUE"),
    ] = None,
    out_dir: Annotated[
        Path | None,
        _path("--out -o", _RUN, "Folder of the run's files. (default: a new one in runs/)", "DIR"),
    ] = None,
    resume: Annotated[
        bool | None,
        _option("--resume", _RUN, "Continue the run in --out, with its options unless others are given."),
    ] = None,
    overwrite: Annotated[bool | None, _option("--overwrite", _RUN, "Replace the run in --out.")] = None,
    checkpoint_every_steps: Annotated[
        int | None, _option("--checkpoint-every-steps", _RUN, "Also save within epochs.")
    ] = None,
    trust_checkpoint: Annotated[
        bool | None,
        _option(
            "--trust-checkpoint",
            _RUN,
            "Also load checkpoints with Python objects, which can run any code: only files you wrote.",
        ),
    ] = None,
    tensorboard: Annotated[
        bool | None, _option("--tensorboard", _RUN, "Also write TensorBoard events.")
    ] = None,
    trace: Annotated[
        Path | None,
        _path("--trace", _RUN, "Write the first epoch's timeline for Perfetto, and a page.", "FILE"),
    ] = None,
    ranks: Annotated[
        int | None,
        _option(
            "--ranks",
            _RUN,
            "Start this many processes here, which share the work and divide the cores.",
        ),
    ] = None,
    comm: Annotated[
        str | None,
        _option(
            "--comm",
            _RUN,
            "How ranks of a launcher talk: torch (torchrun) or mpi (mpirun); auto finds out.",
        ),
    ] = None,
    partition: Annotated[
        Path | None,
        _path(
            "--partition",
            _RUN,
            "Folder of `graphbraid partition`: in mode full, each rank reads its own part alone.",
            "DIR",
        ),
    ] = None,
    wire: Annotated[
        str | None,
        _option(
            "--wire",
            _RUN,
            "float32 or bfloat16: dtype of rows between ranks in mode full. (default: float32)",
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show nothing but errors.")] = False,
    json_output: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Train a model on a graph, evaluate it, and write a folder with its checkpoints and logs.

    An option given here wins over the same option in --config, and that over the default. Ctrl-C saves and
    stops; with --resume the run continues at exactly that step.

    Examples:

        graphbraid train

        graphbraid train --data cora.npz --model gcn --hidden 16 --mode full --epochs 200 --lr 0.01

        graphbraid train --task link --data kg_fb15k237.npz --model embedding --negatives shared

        graphbraid train --config run.yaml --lr 0.005 --set clip=1.0

        graphbraid train --resume --out runs/braid-2m-sage-1

        graphbraid train --ranks 2

        graphbraid train --ranks 2 --mode full --data stores/papers --partition parts/papers-2
    """  # noqa: D412  (typer shows the blank line between examples)
    given = dict(locals())
    if ranks is not None and must_start(ranks, comm):
        raise typer.Exit(start(ranks, sys.argv[1:]))
    if ranks is None and world_size() == 1 and comm is None:
        train_alone(given)
        return
    train_as_rank(given)
