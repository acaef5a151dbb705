"""TrainConfig: all options of a training run, validated on construction.

A field is declared here alone: its type with its bounds, its default, and with ``option`` its flag and help
on the command line, and its traits. The fields can be read without PyTorch.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from graphbraid.arguments import MOST_AMOUNT, check_type
from graphbraid.errors import ConfigError, did_you_mean
from graphbraid.train.option_checks import check_together
from graphbraid.train.option_values import (
    Depth,
    Fanouts,
    Fraction,
    MemorySize,
    Metrics,
    NamedPath,
    Natural,
    NonNegativeFloat,
    Positive,
    PositiveFloat,
    RelationNames,
    Seed,
    Threads,
    check_values,
    no_bool,
    option,
)

if TYPE_CHECKING:
    from torch.optim import Optimizer

OptimizerFactory = Callable[..., "Optimizer"]
SchedulerFactory = Callable[..., Any]
Loss = Callable[..., Any]
RUN = "Run"
"""Heading of the command line's options about files and ranks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig:
    """Options for training, evaluating and saving a model; every field is checked on construction."""

    mode: Literal["sampled", "full", "auto"] = option(
        "sampled", "sampled mini-batches, full: the whole graph, or auto."
    )
    """``sampled`` trains on mini-batches of sampled neighbourhoods. ``full`` makes one step over the whole
    graph per epoch, compiled (:func:`graphbraid.compile`) if the model has a lowered form. ``auto`` is
    ``full`` if that is estimated to fit half of the free memory, else ``sampled`` if at least the rows of one
    mini-batch fit."""
    epochs: Positive = option(20, "Passes over the training nodes.", traits="free")
    """Number of passes over the training nodes; in mode ``full`` an epoch is one step."""
    node_type: str | None = None
    """Node type whose labels are learned, in a graph with types. If None, the only one that has labels."""
    task: Literal["node", "link", "edge", "graph"] = option(
        "node", "node: labels of nodes; link: which links there are; edge, graph: labels of those."
    )
    """What is learned. ``node``: the labels of nodes. ``link``: which edges there are, by a
    :class:`graphbraid.nn.LinkModel`. ``edge``: the labels of the edges of ``link_relation``, by a
    :class:`graphbraid.nn.EdgeModel`. ``graph``: the labels of the graphs of a :class:`graphbraid.GraphSet`,
    by any model that returns a row per graph. ``batch_size`` counts what is learned, nodes, links, edges or
    graphs, and an epoch is a pass over those to train on."""
    negatives: Literal["binary", "triplet", "shared", "self-adversarial", "one-vs-all"] = option(
        "binary", "Of links: binary, triplet, shared, self-adversarial or one-vs-all.", traits="links"
    )
    """Negatives of a batch of links. ``binary`` draws pairs of nodes, and scores each by itself (binary cross
    entropy). ``triplet`` draws destinations for each link's source. ``shared`` draws nodes for the whole
    batch: each stands for the destination and for the source of every link, and the link is to be chosen
    among them (cross entropy). ``self-adversarial`` draws as ``shared`` does, and judges each link and each
    negative by itself: the likelier a negative seems, the more it counts. ``one-vs-all`` takes all nodes
    (cross entropy among them). Then ``batch_size`` counts questions: a source or destination with a relation.
    All links that answer a question are learned at once."""
    num_negatives: Annotated[float, Field(gt=0, le=MOST_AMOUNT, allow_inf_nan=False), no_bool] = option(
        1.0, "Negatives per link.", traits="links"
    )
    """Number of negatives drawn per link; a whole number for ``triplet``."""
    adversarial_temperature: NonNegativeFloat = option(1.0, traits="links")
    """Factor of the scores by whose softmax ``self-adversarial`` negatives count; 0 counts all alike."""
    n3: NonNegativeFloat = option(0.0, "Of links: weight of the N3 penalty (one-vs-all).", traits="links")
    """Weight of a penalty that ``one-vs-all`` adds to its loss: the cubed absolute values of a link's rows
    and of its relation's, as in "Canonical Tensor Decomposition for Knowledge Base Completion". 0.05 is good
    for FB15k-237."""
    link_relation: RelationNames | None = option(
        None, "Of links: the relation to learn, as user,rates,movie.", "--relation", traits="links"
    )
    """Relation whose links are learned, by its three names; the others carry messages alone. In a graph of
    several node types, links are of one relation: if None, the only one, or the only one with splits. In a
    graph of one node type: if None, the links of all relations."""
    link_splits: tuple[Fraction, Fraction] = option((0.05, 0.1), traits="links")
    """Shares of the linked pairs of nodes to validate and to test on, drawn if the graph's edges have no
    splits; with ``temporal_strategy`` shares of the links; the latest are for testing."""
    link_split_seed: Seed = option(0, traits="links")
    """Seed of that draw."""
    temporal_strategy: Literal["uniform", "last"] | None = option(
        None,
        "Of links with times: neighbours from before each link's time, uniform or last.",
        "--temporal",
        traits="links",
    )
    """Temporal sampling for links, by the times of the graph's edges: the ends of each link, and its
    negatives, have neighbours from before its time alone, at every hop. ``uniform`` draws any of these,
    ``last`` the latest. Links to validate and to test on must be later than those to train on. If None, times
    play no part."""

    fanouts: Fanouts = option(
        (15, 10), "Neighbours per hop, from the seeds outwards; -1 for all.", traits="batches"
    )
    """In-neighbours drawn per node at each hop, the hop nearest the seeds first; -1 takes all. One entry per
    model layer."""
    batch_size: Positive = option(1024, "Seed nodes per batch.", traits="batches")
    """Number of seeds per mini-batch."""
    layout: Literal["subgraph", "blocks"] = option(
        "subgraph", "subgraph (as PyG) or blocks (as DGL).", traits="batches"
    )
    """How hops are drawn: ``subgraph`` draws once for each node (as PyG), ``blocks`` anew for every layer (as
    DGL)."""
    replace: bool = False
    """Whether to draw neighbours with replacement."""
    accumulate: Positive = 1
    """Number of mini-batches whose gradients are averaged into one step."""

    optimizer: str | OptimizerFactory | Optimizer = option("adamw", "Any of torch.optim.")
    """Name of a ``torch.optim`` class (in any case), a function ``params -> Optimizer``, or an optimizer."""
    lr: PositiveFloat = option(0.003, "Learning rate.")
    """Learning rate of a named optimizer; any other has its own."""
    weight_decay: NonNegativeFloat = option(0.0, "Weight decay.")
    """Weight decay of a named optimizer, as that optimizer defines it."""
    scheduler: str | SchedulerFactory | None = option(None, "cosine, linear, onecycle or plateau.")
    """Learning-rate schedule: ``cosine`` or ``linear`` (to zero over the whole run), ``onecycle``,
    ``plateau``, or a function ``optimizer -> scheduler`` that is advanced after every epoch. If None, the
    rate is constant."""
    warmup_steps: Natural = 0
    """Number of steps over which ``cosine`` and ``linear`` rise from zero to ``lr``; refused with others."""
    clip: PositiveFloat | None = option(None, "Largest norm of the gradients.")
    """Largest L2 norm of all gradients together. If None, gradients are not clipped."""
    class_weights: Literal["balanced"] | tuple[PositiveFloat, ...] | None = None
    """Weight of each class in the loss; ``balanced`` uses inverse frequencies in the training split."""

    loss: Loss | str | None = option(
        None, "Loss of torch.nn.functional, such as huber_loss. (default: the task's)", "--loss"
    )
    """Name of a loss of ``torch.nn.functional``, or a function of outputs ``(n, width)`` float32 and targets,
    rows of ``Graph.y``, that returns one loss per row, ``(n,)``, or their mean. Saved runs keep its name. If
    None, the task's loss."""

    device: str = option("cpu", "cpu, cuda, cuda:N or auto.", traits="own")
    """Device of the model: ``cpu``, ``cuda``, ``cuda:1`` or ``auto``."""
    precision: Literal["float32", "bfloat16"] = option("float32", "float32 or bfloat16.")
    """``bfloat16`` runs the model under autocast; parameters and optimizer stay float32."""
    compiled: bool = option(
        True, "On mini-batches, run PyG's layers by graphbraid's operators.", "--compiled/--as-written"
    )
    """Whether mini-batches run by graphbraid's operators (:func:`graphbraid.compile`), with only the rows of
    each layer that later ones need, where the model has a lowered form. What is learned is the same up to
    rounding, and dropout draws other masks. Models of ``graphbraid.nn`` run by these operators anyway."""
    seed: Seed = option(0, "Seed of all random draws.")
    """Random seed of the batches, of dropout, and of the generators of torch, NumPy and Python."""
    deterministic: bool = option(False, "Only deterministic algorithms.", "--deterministic/--any-algorithm")
    """Whether torch may use only deterministic algorithms. On the CPU, runs repeat bit for bit without it."""
    trace: NamedPath | None = option(
        None,
        "Write the first epoch's timeline for Perfetto, and a page.",
        panel=RUN,
        metavar="FILE",
        traits="free own call files",
    )
    """File for the timeline of the first epoch trained, in Perfetto's format, with an HTML page beside it;
    requires a ``plan``. If None, no timeline is written."""
    threads: Threads | None = option(None, "Threads of the model's operators.", traits="own")
    """Number of threads of the model's operators during the trainer's work. If None, torch's setting."""
    workers: Threads = option(1, "Sampling threads.", traits="free own batches")
    """Number of sampling threads, which prepare later batches while the model trains. Batches do not depend
    on it."""
    plan: str | None = option(None, "What prepares batches: auto, cpu, gpu or a plan's file.", traits="own")
    """``auto`` measures the run's stages and chooses which side prepares each mini-batch; without a GPU, it
    chooses how many cores sample (in place of ``workers``) and how many train (unless ``threads`` is given).
    ``cpu`` and ``gpu`` let one side prepare all batches; any other value is the path of a saved plan. Batches
    do not depend on it. If None, there is no plan."""

    host: MemorySize | None = option(
        None, "Memory for a store's rows and lists, as 4GiB; others stay on disk.", traits="free own"
    )
    """Memory for feature rows and adjacency lists of a store, in bytes or as ``4GiB``; the others are read
    from its files ahead of their use (:class:`graphbraid.features.HostTiers`). 0 reads all from there,
    ``all`` keeps all. In mode ``full`` it is for feature rows alone, which each step reads in blocks. None:
    the graph is used as it is. What is learned does not depend on it."""
    spare: MemorySize | None = option(None, "In mode full: memory spent to save time, as 4GiB.")
    """Memory that mode ``full`` may take in addition to save time, in bytes or as ``4GiB``
    (``spare_bytes`` of :func:`graphbraid.compile`). 0 takes none; None: a quarter of what is free."""
    hot: MemorySize | None = option(
        None, "Device memory for the feature rows read most, as 4GiB.", traits="free own"
    )
    """Memory of the device for the feature rows that are read most, which then never travel, in bytes or as
    ``4GiB``; the ``plan`` is then ``auto`` unless one is given. 0 and None: no rows stay there. What is
    learned does not depend on it. It is that of each rank, whose devices also keep rows between them."""

    partition: NamedPath | None = option(
        None,
        "Folder of `graphbraid partition`: in mode full, each rank reads its own part alone.",
        panel=RUN,
        metavar="DIR",
        traits="free own",
    )
    """Folder of :func:`graphbraid.distributed.save_partition`, by which several ranks divide the graph in
    mode ``full``; each then reads its own part of a store alone. If None, the first rank divides the graph,
    and every rank reads all of it."""

    remote: MemorySize | None = option(
        None, "With parts: memory of a rank for rows of other ranks' nodes, as 1GiB.", traits="free own"
    )
    """Memory of each rank for feature rows of nodes that other ranks own, in bytes or as ``1GiB``, where the
    graph is divided among ranks (:class:`graphbraid.distributed.ShardedGraph`). The rows that the next groups
    of batches read first are kept. 0 and None: none are kept. What is learned does not depend on it."""

    embedding_files: NamedPath | None = option(
        None,
        "Folder on a rank's own disk for learned rows that ranks divide; in memory without it.",
        panel=RUN,
        metavar="DIR",
        traits="free own",
    )
    """Folder for mapped files with the rows of :class:`graphbraid.nn.ShardedEmbedding` and the state of their
    optimizer, of the nodes that this rank owns; the files have no names and end with the process. If None,
    the rows are in memory. What is learned does not depend on it."""
    wire: Literal["float32", "bfloat16"] = option(
        "float32", "float32 or bfloat16: dtype of rows between ranks in mode full.", panel=RUN
    )
    """Dtype of rows and of their gradients between the ranks of mode ``full``. ``bfloat16`` halves the bytes
    and rounds each number to 8 significant bits on its way, while sums stay float32; evaluations and
    gradients of parameters travel as float32 always."""
    exchange: Literal["tuned", "fixed"] = option("tuned", traits="free")
    """How devices read each other's rows in mode ``full``. ``tuned`` finds the fastest configuration of the
    kernel in the first epochs, or takes it from an earlier run; this changes rounding. ``fixed`` searches
    nothing. On the host both do the same."""

    tiers: Literal["auto"] | None = option(
        None, "auto: choose --host (on a device also --hot) by the free memory.", traits="free"
    )
    """``auto`` chooses ``host`` from the free memory: what the rest of the run leaves, less a reserve; none
    if all features fit, or if no store's file holds them. On a device it also chooses ``hot``, unless that
    is given, by the rows' reads and the link's rate. Several ranks divide the memory of a machine and of a
    device that they share. None: as ``host`` and ``hot`` say."""

    eval_every: Natural = option(1, "Epochs between evaluations; 0 for none.")
    """Number of epochs between evaluations of the validation split; 0 never evaluates."""
    eval_mode: Literal["sampled", "exact"] = option("sampled", "Validate sampled or exact.")
    """Validation during :meth:`Trainer.fit`: on sampled neighbourhoods, or by exact layer-wise inference (see
    ``docs/training.md``). Mode ``full`` is always exact."""
    eval_batch_size: Positive = 1024
    """Number of seeds per mini-batch of a sampled evaluation."""
    eval_fanouts: Fanouts | None = None
    """Fanouts of a sampled evaluation. If None, ``fanouts``."""
    memory_budget_bytes: Annotated[int, Field(ge=1 << 16, lt=1 << 63), no_bool] = option(
        2 << 30, traits="free own"
    )
    """Bytes that exact inference may hold in addition to graph, features and result; activations beyond it go
    to a file."""
    hops: Depth | None = option(None, traits="free")
    """Number of hops that messages travel in a model that is not computed layer by layer, for exact inference
    beyond the budget. If None, its message-passing layers are counted (a layer with an attribute ``K``, such
    as APPNP, counts K times)."""
    metrics: Metrics | None = option(None, "Metrics, with commas: accuracy,average_precision.", "--metrics")
    """Metrics to compute: names, also as one text with commas, and metrics of ``torchmetrics`` or a
    ``MetricCollection`` of them. If None, the task's usual ones (see ``docs/training.md``)."""
    monitor: str | None = option(None, "Validation metric that decides which epoch is best.", "--monitor")
    """Validation metric that decides which epoch is best. If None, the task's first metric."""
    patience: Positive | None = option(
        None, "Stop after this many evaluations without improvement.", traits="free"
    )
    """Number of evaluations without a better ``monitor`` after which to stop. If None, all epochs are run."""
    threshold: Literal["f1"] | Annotated[float, Field(gt=0, lt=1), no_bool] | None = option(
        None,
        "Of two classes: predict the second from this probability on; f1: chosen on the split val.",
        traits="free",
    )
    """Probability from which on class 1 of two, or the only label, is predicted. The run keeps it, and
    ``graphbraid predict`` uses it. ``f1`` chooses it at the end for the largest F1 score on the split
    ``val``, with all neighbours. If None, one half. Metrics do not depend on it."""
    restore_best: bool = option(True, traits="free")
    """Whether the model holds the best epoch's weights, not the last one's, after :meth:`Trainer.fit`."""
    test_at_end: bool = option(True, traits="free")
    """Whether to evaluate the test split exactly at the end of :meth:`Trainer.fit`, if the graph has one."""

    out_dir: NamedPath | None = option(
        None,
        "Folder of the run's files. (default: a new one in runs/)",
        "--out -o",
        panel=RUN,
        metavar="DIR",
        traits="free own call files",
    )
    """Folder for the run's files. If None, nothing is written, and the run cannot be resumed."""
    resume: bool | Literal["auto"] = option(
        False,
        "Continue the run in --out, with its options unless others are given.",
        panel=RUN,
        traits="free own call files",
    )
    """Whether to continue the run in ``out_dir``; ``auto`` does so if there is one."""
    overwrite: bool = option(False, "Replace the run in --out.", panel=RUN, traits="free own call files")
    """Whether to start anew even if ``out_dir`` holds a run, whose files are then replaced."""
    checkpoint_every_steps: Positive | None = option(
        None, "Also save within epochs.", panel=RUN, traits="free own files"
    )
    """Number of steps between checkpoints, in addition to the one at the end of every epoch. If None, only
    that one is written."""
    tensorboard: bool = option(False, "Also write TensorBoard events.", panel=RUN, traits="free own files")
    """Whether to write TensorBoard events to ``out_dir/tensorboard``; needs the package ``tensorboard``."""
    trust_checkpoint: bool = option(
        False,
        "Also load checkpoints with Python objects, which can run any code: only files you wrote.",
        panel=RUN,
        traits="free own call",
    )
    """Whether to load checkpoints that hold Python objects other than tensors and plain values. Such a file
    can run any code, so set this only for files you wrote."""

    def __post_init__(self) -> None:
        check_values(self)
        check_together(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TrainConfig:
        """Make a config from a mapping, such as the contents of a YAML file.

        Raises:
            ConfigError: a key is unknown (the nearest known one is named) or a value does not fit.
        """
        check_type(values, "values", Mapping, "a mapping of options", error=ConfigError)
        known = [field.name for field in dataclasses.fields(cls)]
        for key in values:
            if key not in known:
                hint = did_you_mean(key, known) or f" Known are: {', '.join(known)}."
                raise ConfigError(
                    f"{key!r} is not an option of TrainConfig (its value is {values[key]!r}).{hint}"
                )
        return cls(**values)

    def updated(self, **overrides: Any) -> TrainConfig:
        """Return a copy with some fields changed, validated like a new one."""
        return TrainConfig.from_dict(_as_dict(self) | overrides) if overrides else self

    def to_json(self) -> dict[str, Any]:
        """Return plain values for ``config.json`` and checkpoints; functions are represented by name."""
        plain = {name: _plain(value) for name, value in _as_dict(self).items()}
        return plain | {name: _described(getattr(self, name)) for name in ("loss", "metrics")}


def _as_dict(config: TrainConfig) -> dict[str, Any]:
    # Not dataclasses.asdict, which would deep-copy an optimizer and with it the model's parameters.
    return {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Path):
        return str(value)
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"


def _described(value: Any) -> Any:
    """Return a loss or metrics by name, with the plain values and tensors that it was made with."""
    if isinstance(value, tuple):
        return [_described(item) for item in value]
    if isinstance(value, functools.partial):
        given = [*map(repr, map(_described, value.args))]
        given += [f"{name}={_described(one)!r}" for name, one in sorted(value.keywords.items())]
        return f"{_described(value.func)}({', '.join(given)})"
    if hasattr(value, "tolist"):  # a tensor; the command line reads this file without PyTorch
        return value.tolist()
    state = getattr(value, "state_dict", None)  # a module's
    if state is None:
        return _plain(value)
    if hasattr(value, "items"):
        return {name: _described(one) for name, one in value.items()}
    kinds = (str, int, float, tuple, list, type(None))
    held = {name: one for name, one in vars(value).items() if name[:1] != "_" and isinstance(one, kinds)}
    held |= {name: one.tolist() for name, one in state().items()}
    given = [f"{name}={one!r}" for name, one in sorted(held.items()) if name != "training"]
    return f"{_plain(value)}({', '.join(given)})"
