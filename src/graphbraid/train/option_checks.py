"""Checks of a run's options together, and beside the device, the task, the graph's types and the ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from graphbraid.errors import ConfigError
from graphbraid.train.option_values import names_with

if TYPE_CHECKING:
    from torch import nn

    from graphbraid.distributed import ShardedGraph
    from graphbraid.graph import Graph
    from graphbraid.train.config import TrainConfig


SPARSE_OPTIMIZERS = ("adam", "adamw", "sgd", "adagrad")
"""Optimizers by which :class:`graphbraid.nn.ShardedEmbedding` is updated."""


def _default(config: TrainConfig, name: str) -> Any:
    return type(config).__dataclass_fields__[name].default


def check_together(config: TrainConfig) -> None:
    """Check that the options, each valid by itself, go together, and that the device is here.

    Raises:
        ConfigError: names the options that exclude each other, and says which to leave out or to add.
    """
    _check_run(config)
    _check_learning_rate(config)
    _check_tiers(config)
    if config.eval_fanouts is not None and len(config.eval_fanouts) != len(config.fanouts):
        raise ConfigError(
            f"eval_fanouts must have one entry per hop as fanouts has ({len(config.fanouts)}); got "
            f"{list(config.eval_fanouts)}."
        )
    _check_links(config)
    _check_whole(config)
    _check_device(config.device)


def _check_run(config: TrainConfig) -> None:
    if config.out_dir is None:
        for name in ("resume", "checkpoint_every_steps", "tensorboard"):
            if value := getattr(config, name):
                raise ConfigError(
                    f"{name}={value!r} needs a folder for the run's files; give out_dir as well."
                )
    if config.resume is True and config.overwrite:
        raise ConfigError(
            "resume=True continues the run in out_dir and overwrite=True replaces it; choose one."
        )
    if config.trace is not None and config.plan is None:
        raise ConfigError(f"trace={str(config.trace)!r} shows a plan beside what ran; give a plan as well.")
    if config.plan is not None and config.mode == "full":
        raise ConfigError(
            f"plan={config.plan!r} says who prepares mini-batches, and mode='full' has none; leave one out."
        )
    if config.patience is not None and config.eval_every == 0:
        raise ConfigError(
            f"patience={config.patience} counts evaluations, but eval_every=0 never evaluates; set "
            "eval_every to 1 or more."
        )
    if config.loss is not None and config.class_weights is not None:
        raise ConfigError(
            f"class_weights={config.class_weights!r} weigh the task's own loss, and loss= replaces it; weigh "
            "classes in loss=, and leave class_weights out."
        )
    if config.threshold == "f1" and not config.restore_best:
        raise ConfigError(
            "threshold='f1' is chosen for the weights of the best epoch, and restore_best=False leaves those "
            "of the last one; leave one out."
        )
    if config.monitor is not None and config.eval_every == 0:
        raise ConfigError(
            f"monitor={config.monitor!r} is a validation metric, but eval_every=0 never evaluates; set "
            "eval_every to 1 or more, or leave monitor out."
        )


def _check_learning_rate(config: TrainConfig) -> None:
    """Refuse options that the optimizer or the schedule would pass over."""
    if config.warmup_steps and config.scheduler not in ("cosine", "linear"):
        raise ConfigError(
            f"warmup_steps={config.warmup_steps} is for scheduler='cosine' and 'linear', which rise over "
            f"so many steps; got scheduler={config.scheduler!r}. Give one of them, or leave warmup_steps out."
        )
    if isinstance(config.optimizer, str):
        return
    for name in ("lr", "weight_decay"):
        if (value := getattr(config, name)) != _default(config, name):
            raise ConfigError(
                f"{name}={value!r} is for an optimizer that is named, and the one given has its own; set it "
                f"there and leave {name} out, or name the optimizer."
            )


def _check_tiers(config: TrainConfig) -> None:
    if config.hot is not None and config.mode == "full":
        raise ConfigError(
            f"hot={config.hot!r} says how much of the features is on the device, and mode='full' reads all "
            "of it in every step; leave one out."
        )
    if config.tiers is not None and config.host is not None:
        raise ConfigError(
            f"tiers={config.tiers!r} chooses the memory for feature rows, and host={config.host!r} says it; "
            "leave one out."
        )
    if config.tiers is not None and config.mode == "full":
        raise ConfigError(
            f"tiers={config.tiers!r} is for mini-batches, and mode='full' reads all features in every step; "
            "leave one out, or say by host= how much memory it may take for them."
        )


_OF_EDGES = ("link_relation", "link_splits", "link_split_seed", "temporal_strategy")
"""Options of links that labels of edges have as well."""


def _check_links(config: TrainConfig) -> None:
    for name in names_with("links", type(config)):
        value = getattr(config, name)
        takes = config.task == "link" or (config.task == "edge" and name in _OF_EDGES)
        if not takes and value != _default(config, name):
            raise ConfigError(
                f"{name}={value!r} is for links, and task={config.task!r} has none; set task='link'."
            )
    if config.negatives == "triplet" and config.num_negatives != int(config.num_negatives):
        raise ConfigError(
            f"num_negatives must be a whole number with negatives='triplet'; got {config.num_negatives:g}."
        )
    needs = {"n3": "one-vs-all", "adversarial_temperature": "self-adversarial"}
    for name, negatives in needs.items():
        if (value := getattr(config, name)) != _default(config, name) and config.negatives != negatives:
            raise ConfigError(
                f"{name}={value!r} is part of the loss of negatives={negatives!r}, and they are "
                f"{config.negatives!r}; leave {name} out, or choose {negatives!r}."
            )
    if config.negatives == "one-vs-all" and config.num_negatives != _default(config, "num_negatives"):
        raise ConfigError(
            f"num_negatives={config.num_negatives:g} says how many are drawn, and negatives='one-vs-all' "
            "takes all nodes; leave one out."
        )
    if config.temporal_strategy is not None and config.negatives not in ("binary", "triplet"):
        raise ConfigError(
            f"negatives={config.negatives!r} lends each negative to all links of a batch, and with "
            f"temporal_strategy={config.temporal_strategy!r} it has neighbours up to the time of one; choose "
            "'binary' or 'triplet'."
        )
    if sum(config.link_splits) >= 1:
        raise ConfigError(
            f"link_splits must leave links to train on; {config.link_splits} take all. Give two shares whose "
            "sum is below 1."
        )


_OF_WHOLE = {
    "wire": ("is for rows that ranks exchange on the whole graph", "exchanges none"),
    "exchange": ("is for rows that ranks exchange on the whole graph", "exchanges none"),
    "spare": ("is for the lowered program of the whole graph", "does not train on it"),
    "partition": ("divides the whole graph among ranks", "does not train on it"),
}
"""Options of mode ``full``: what they are for, and what another mode does."""


def _check_whole(config: TrainConfig) -> None:
    for name, (purpose, otherwise) in _OF_WHOLE.items():
        value = getattr(config, name)
        takes = config.mode == "full" or (name == "spare" and config.mode == "auto")
        if not takes and value != _default(config, name):
            shown = str(value) if name == "partition" else value
            raise ConfigError(
                f"{name}={shown!r} {purpose}, and mode={config.mode!r} {otherwise}; set mode='full', or "
                f"leave {name} out."
            )


def _check_device(name: str) -> None:
    if name == "auto":
        return
    import torch  # imported here, so that the command line can read the options without it

    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"device must be 'cpu', 'cuda', 'cuda:N' or 'auto'; got {name!r}.") from None
    if device.type not in ("cpu", "cuda") or (device.type == "cpu" and device.index is not None):
        raise ConfigError(f"device must be 'cpu', 'cuda', 'cuda:N' or 'auto'; got {name!r}.")
    count = torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= count:
        raise ConfigError(
            f"device={name!r} needs a CUDA device that is not here ({count} found); use device='cpu'."
        )


# ---- options beside the task, the graph's types and the ranks


def fitted(
    config: TrainConfig,
    model: nn.Module,
    graph: Graph,
    given: Mapping[str, Any],
    num_ranks: int = 1,
) -> tuple[TrainConfig, str]:
    """Return a run's options as model, graph and ranks allow, and why if these decide mode ``auto``.

    Of many graphs, ``graph`` is the union. ``given`` has the Trainer's ``tiers``, ``topology`` and
    ``accelerator``, as far as they were given.

    Raises:
        ConfigError: an option was given that does not go with these; names it and says why.
    """
    from graphbraid.nn import EdgeModel, LinkModel, ShardedEmbedding

    reason = ""
    if any(isinstance(module, ShardedEmbedding) for module in model.modules()):
        config = _with_learned_rows(config, given)
        reason = "a ShardedEmbedding brings the rows of mini-batches"
    elif config.embedding_files is not None:
        raise ConfigError(
            f"embedding_files={str(config.embedding_files)!r} is for learned rows that ranks divide, and the "
            "model has none; use nn.ShardedEmbedding or nn.NodeEmbedding(sharded=True), or leave it out."
        )
    if not graph.is_whole:
        config = _on_parts(config, given, cast("ShardedGraph", graph))
        reason = "each rank holds its own parts of the graph alone"
    elif config.remote is not None:
        raise ConfigError(
            f"remote={config.remote!r} is memory for rows of other ranks' nodes, and every rank has all rows "
            "of this graph; leave it out, or open parts of it (ShardedGraph.open, --parts)."
        )
    if config.task in ("link", "edge"):
        return _of_links(config, model, given, num_ranks), reason
    if config.task == "graph":
        return _of_graphs(config, given), ""
    if isinstance(model, LinkModel):
        raise ConfigError("a LinkModel learns links, and task='node' learns labels; give task='link'.")
    if isinstance(model, EdgeModel):
        raise ConfigError("an EdgeModel learns labels of edges, and task='node' of nodes; give task='edge'.")
    if not graph.is_typed:
        if config.node_type is not None:
            raise ConfigError(
                f"node_type={config.node_type!r} chooses among node types, and the graph has one; leave it "
                "out."
            )
        return config, reason
    tiers = "tiers hold the rows and lists of one node type"
    threads = "batches of several node types are prepared by the CPU's own threads"
    _refuse("a graph with types", _of_placement(config, given, tiers, threads))
    if num_ranks > 1 and config.mode == "full":
        raise ConfigError(
            f"{num_ranks} ranks do not divide a graph with types so far: use mini-batches (mode='sampled')."
        )
    if config.mode == "auto":
        of_types = "a graph with types is trained on by mini-batches unless mode='full' is given"
        return config.updated(mode="sampled"), reason or of_types
    return config, reason


def _of_links(config: TrainConfig, model: nn.Module, given: Mapping[str, Any], num_ranks: int) -> TrainConfig:
    """Return the options of a run on links or on labels of edges, whose mode is ``sampled``."""
    from graphbraid.nn import EdgeModel, LinkModel

    if config.task == "edge" and not isinstance(model, EdgeModel):
        raise ConfigError(
            "task='edge' trains an encoder and a decoder: give nn.EdgeModel(encoder, nn.EdgeDecoder(...)); "
            f"got {type(model).__name__}."
        )
    if config.task == "link" and not isinstance(model, LinkModel):
        raise ConfigError(
            "task='link' trains an encoder and a predictor: give nn.LinkModel(encoder, nn.DotProduct()), or "
            f"another predictor; got {type(model).__name__}."
        )
    refused: list[tuple[str, Any, str]] = [
        ("mode", _full(config), "the full-graph engine learns labels of nodes"),
        ("node_type", config.node_type, "links are learned, not labels of nodes"),
    ]
    if config.task == "link":
        refused += [
            ("class_weights", config.class_weights, "links are learned, not classes"),
            ("loss", config.loss, "negatives= says how links are compared"),
        ]
    tiers = "batches of links read rows and lists in memory"
    threads = "batches of links are prepared by the CPU's own threads"
    _refuse(f"task={config.task!r}", refused + _of_placement(config, given, tiers, threads))
    if num_ranks > 1 and config.temporal_strategy is not None and config.layout == "blocks":
        raise ConfigError(
            "with temporal_strategy each end of a link draws by its place in the whole batch: several ranks "
            f"share batches of layout='subgraph' alone; got layout={config.layout!r}."
        )
    return config.updated(mode="sampled")


def _of_graphs(config: TrainConfig, given: Mapping[str, Any]) -> TrainConfig:
    whole = "batches are of whole graphs"
    names = ("fanouts", "eval_fanouts", "layout", "replace", "hops")
    changed = [(name, getattr(config, name)) for name in names]
    refused = [
        ("mode", _full(config), "graphs are learned batch by batch"),
        ("node_type", config.node_type, "labels are those of graphs"),
        ("plan", config.plan, "one thread joins graphs"),
        *((name, None if value == _default(config, name) else value, whole) for name, value in changed),
    ]
    _refuse("task='graph'", refused + _of_placement(config, given, whole, whole))
    return config.updated(mode="sampled")


def _on_parts(config: TrainConfig, given: Mapping[str, Any], graph: ShardedGraph) -> TrainConfig:
    tiers = "features lie with their parts' ranks"
    threads = "batches are prepared by all ranks together"
    whole = "partition with --rows whole (rows='whole'), by which every rank maps all adjacency lists"
    learns_edges = config.task == "edge" or (config.task == "link" and graph.is_typed)
    refused = [
        ("mode", _full(config), "the graph's other parts are on other ranks"),
        (
            "task",
            config.task if learns_edges and graph.shards.lists == "parts" else None,
            f"places of edges in the lists of relations are not held by parts; {whole}",
        ),
        ("plan", config.plan, threads),
    ]
    _refuse("a graph that is divided among ranks", refused + _of_placement(config, given, tiers, threads))
    return config.updated(mode="sampled")


def _with_learned_rows(config: TrainConfig, given: Mapping[str, Any]) -> TrainConfig:
    by_name = isinstance(config.optimizer, str)
    if not by_name or str(config.optimizer).lower() not in SPARSE_OPTIMIZERS:
        shown = repr(config.optimizer) if by_name else "one of your own"
        raise ConfigError(
            "a ShardedEmbedding needs an optimizer that updates only the rows of a batch: give optimizer= as "
            f"one of {', '.join(SPARSE_OPTIMIZERS)}; got {shown}"
        )
    whole, copies = "a pass over the whole graph reads the rows of all nodes", "it is measured on copies"
    refused = [
        ("mode", _full(config), whole),
        ("weight_decay", config.weight_decay or None, "rows that no batch reads would not decay"),
        ("plan", config.plan, copies),
        ("hot", config.hot or None, copies),
        ("tiers", config.tiers, copies),
        ("accelerator", given.get("accelerator"), copies),
    ]
    _refuse("a ShardedEmbedding", refused)
    return config.updated(mode="sampled")


def config_of_rank(config: TrainConfig, rank: int) -> tuple[TrainConfig, str]:
    """Return a rank's own config, in which only the first one writes files, and the reason for its mode."""
    reason = "several ranks share mini-batches" if config.mode == "auto" else ""
    others = names_with("files", type(config)) if rank > 0 else ()
    mode = _full(config) or "sampled"
    return config.updated(mode=mode, **{name: _default(config, name) for name in others}), reason


def _full(config: TrainConfig) -> str | None:
    return "full" if config.mode == "full" else None


def _of_placement(
    config: TrainConfig, given: Mapping[str, Any], tiers: str, threads: str
) -> list[tuple[str, Any, str]]:
    """Return the options that place rows and prepare batches: name, given value, reason against it."""
    return [
        ("host", config.host, tiers),
        ("hot", config.hot or None, tiers),
        ("tiers", config.tiers, tiers),
        ("trace", config.trace, f"{threads}, which keep no timeline"),
        ("plan", None if config.device == "cpu" else config.plan, threads),
        *(
            (name, None if one is None else type(one), threads if name == "accelerator" else tiers)
            for name, one in given.items()
        ),
    ]


def _refuse(what: str, options: Sequence[tuple[str, Any, str]]) -> None:
    for name, value, reason in options:
        if value is not None:
            shown = repr(value) if isinstance(value, str | int) else getattr(value, "__name__", value)
            raise ConfigError(f"{name}={shown} does not go with {what} so far: {reason}.")
