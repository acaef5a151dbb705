"""``graphbraid train``: trains a model on a graph, evaluates it and writes a run folder."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import typer

from graphbraid.cli.common import (
    INTERRUPTED,
    DebugOption,
    JsonOption,
    err_console,
    guarded,
    path_given,
    print_json,
    say,
)
from graphbraid.cli.ranks import must_start, start, world_size
from graphbraid.errors import ConfigError

if TYPE_CHECKING:
    from graphbraid.cli.settings import ResolvedRun

CommName = Literal["auto", "torch", "mpi"]
_DATA, _MODEL, _TRAIN, _RUN = "Data", "Model", "Training", "Run"
_FLAGS = {
    "hidden_channels": "--hidden",
    "num_layers": "--layers",
    "out_dir": "--out",
    "link_relation": "--relation",
}
"""Options whose flag differs from their name."""


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
        _option("--tiers", _TRAIN, "auto: choose --host from the free memory, or no tiers."),
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
    if ranks is not None and must_start(ranks):
        raise typer.Exit(start(ranks, sys.argv[1:]))
    if ranks is None and world_size() == 1 and comm is None:
        _train(given)
        return
    _train_as_rank(given)


def _train_as_rank(given: dict[str, Any]) -> None:
    """Train as one of the ranks of a launcher; only the first one shows results and has a folder."""
    from graphbraid import distributed

    with distributed.init(_checked_comm(given["comm"])) as joined:
        if joined.rank == 0:
            _train(given)
            return
        _train_in(None, resolved(given), given | {"quiet": True, "json_output": False})


def _checked_comm(name: str | None) -> CommName:
    for known in get_args(CommName):
        if name in (None, known):
            found: CommName = known if name else "auto"
            return found
    raise ConfigError(f"--comm must be one of {', '.join(get_args(CommName))}; got {name!r}")


def _train(given: dict[str, Any]) -> None:
    from graphbraid.cli.new_folder import in_own_folder

    with in_own_folder(resolved(given), Path("runs")) as (run, run_dir):
        _train_in(run_dir, run, given)


def _train_in(run_dir: Path | None, run: ResolvedRun, given: dict[str, Any]) -> None:
    from graphbraid.cli import display

    console = err_console()
    console.quiet = bool(given["quiet"])
    trainer = _make_trainer(
        run, lambda facts: display.show_plan(console, run, facts), [display.EpochLines(console)]
    )
    result = trainer.fit()
    if run_dir is not None:
        if given["json_output"]:
            print_json(display.result_json(run, result, run_dir))
        display.show_result(console, result, run_dir)
    if result.status == "interrupted":
        say(console, "go on with: graphbraid train --resume --out {}", run_dir)
        raise typer.Exit(INTERRUPTED)


def resolved(given: dict[str, Any]) -> ResolvedRun:
    """Return all options of the run, checked."""
    from graphbraid.cli.settings import parse_assignments, parse_fanouts, read_saved, resolve
    from graphbraid.files.yaml_file import read_yaml

    not_options = ("config", "assignments", "ranks", "comm", "quiet", "json_output", "debug")
    command_line = {name: value for name, value in given.items() if name not in not_options}
    command_line["fanouts"] = parse_fanouts(given["fanouts"])
    command_line |= parse_assignments(given["assignments"] or [])
    file = read_yaml(given["config"]) if given["config"] else None
    flags = {name: _FLAGS.get(name, "--" + name.replace("_", "-")) for name in given}
    saved = saved_in = None
    if command_line.get("resume"):
        if command_line.get("out_dir") is None and "out_dir" not in (file or {}):
            raise ConfigError("--resume needs --out with the folder of the run to go on with")
        saved_in = command_line.get("out_dir") or (file or {})["out_dir"].value
        if not isinstance(saved_in, str | Path) or not str(saved_in):
            raise ConfigError(f"out_dir must be the folder of the run to go on with; got {saved_in!r}")
        saved_in = Path(saved_in)
        saved, _ = read_saved(saved_in)
    return resolve(command_line, file, saved, flags, saved_in=saved_in)


def _make_trainer(run: ResolvedRun, show: Callable[[dict[str, str]], None], callbacks: list[Any]) -> Any:
    from graphbraid import native
    from graphbraid.cli.build import data_as_path
    from graphbraid.cli.graph_facts import graph_facts
    from graphbraid.cli.learning import learning
    from graphbraid.machine.hardware import Hardware
    from graphbraid.train import Trainer

    learned = learning(run)
    run, graph, model = learned.run, learned.graph, learned.model
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    selection = native.active()
    info = {
        "settings": run.saved() | {"data": data_as_path(run.settings.data)},
        "outputs": dataclasses.asdict(learned.outputs),
    }
    trainer = Trainer(model, graph, config=run.train, callbacks=callbacks, info=info)
    chosen = {"mode": f"{trainer.config.mode}: {trainer.mode_reason}"} if trainer.mode_reason else {}
    show(
        {
            "graph": graph_facts(graph, learned.labels),
            "model": f"{type(model).__name__}, {num_parameters:,} parameters",
            "kernels": f"{selection.variant}: {selection.reason}",
            "machine": f"{Hardware.detect().planned_cores} cores",
            **chosen,
            **({"tiers": trainer.tiers_reason} if trainer.tiers_reason else {}),
            "files in": str(run.train.out_dir),
        }
    )
    return trainer
