"""Construction of graph and model from a run's options, for labels of nodes and for links."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import torch
from pydantic import Field
from torch import nn

from graphbraid import datasets
from graphbraid.cli.run.settings import ResolvedRun, RunSettings
from graphbraid.errors import ConfigError, DataError, GraphbraidError, ResourceError
from graphbraid.files.opening import expanded
from graphbraid.files.schema import StrictRecord
from graphbraid.files.writing import format_bytes
from graphbraid.graph import EdgeSet, Graph, NodeSet
from graphbraid.graph.checks import validate_features, validate_topology
from graphbraid.graph.types import ONLY_NODE_TYPE
from graphbraid.machine.hardware import free_memory_bytes
from graphbraid.nn import (
    MODELS,
    RGCN,
    TYPED_MODELS,
    ComplEx,
    DistMult,
    DotProduct,
    LinkModel,
    LinkPredictor,
    MLPPredictor,
    NodeEmbedding,
    RGCNEncoder,
    RotatE,
    TransE,
    make_model,
    make_typed_model,
)
from graphbraid.nn.typed_models import learned_by_type
from graphbraid.train.run_folder.contract import Contract
from graphbraid.train.step.links.data import relation_learned
from graphbraid.train.step.runner import learned_type
from graphbraid.train.task import AnyTaskName

if TYPE_CHECKING:
    from graphbraid.graph.graph_set import GraphSet

_Kind = TypeVar("_Kind", bound=nn.Module)
_MODEL_OPTIONS = frozenset(
    {
        "hidden_channels",
        "num_layers",
        "dropout",
        "heads",
        "in_channels",
        "out_channels",
        "name",
        "node_type",
        "num_nodes",
        "edge_types",
    }
)
_CHANGES = (
    *("symmetrize", "add_self_loops", "dedupe", "normalize_features"),
    *("split_seed", "split", "target"),
)
"""Options that change a graph after it was read, as :func:`graphbraid.datasets.prepare` does."""
_COPIES = 4  # arrays of the weights' size: the weights, their gradients and Adam's two moments
_ALWAYS_FINE = 1000  # classes, however few nodes there are


def load_graph(settings: RunSettings) -> Graph:
    """Load the graph that the options name and prepare it as they say."""
    options = settings.data_options | ({"verify": True} if settings.verify else {})
    changes: dict[str, Any] = {name: getattr(settings, name) for name in _CHANGES}
    if taken := {*changes, "root", "name_or_path"} & set(options):
        name = min(taken)
        raise ConfigError(f"data_options: {name} is an option of its own (--set {name}=...)")
    if _holds_parts(expanded(settings.data)):
        from graphbraid.distributed import ShardedGraph  # here: few runs have parts

        for name, value in (changes | options).items():
            if value not in (None, False):
                raise ConfigError(
                    f"{name}={value!r} changes or reads the whole graph, and {settings.data} holds its "
                    "parts; partition a graph that was changed so"
                )
        return ShardedGraph.open(expanded(settings.data))
    graph = datasets.load(settings.data, **changes, **options)
    if settings.embedding_dim is not None and graph.x is None and not graph.is_typed:
        graph = graph.replace(x=torch.empty(graph.num_nodes, 0))  # the model reads learned rows alone
    return graph


def _holds_parts(path: Path) -> bool:
    if not path.is_dir():
        return False
    from graphbraid.distributed import is_partition  # here: few runs read a folder

    return is_partition(path)


def check_trainable(graph: Graph, labels: Graph | NodeSet, settings: RunSettings) -> None:
    """Check that a graph has the arrays for training and, unless ``check_data`` is off, all their values.

    ``labels`` are the nodes whose labels are learned.

    Raises:
        DataError: features, labels or the training split are missing, or a value is wrong; says which.
    """
    data = settings.data
    if not graph.is_typed and graph.num_features == 0 and settings.embedding_dim is None:
        raise DataError(
            f"{data} has no features, and training needs some: an array x, or feature columns; or learned "
            "rows: --embedding-dim 64"
        )
    if labels.y is None:
        raise DataError(f"{data} has no labels, and training needs some: an array y, or a label column")
    if "train" not in labels.splits:
        raise DataError(
            f"{data} comes without a split into train, val and test; draw one with --split 0.6,0.2 "
            "or --split-seed 0, or name the tables' split column in `graphbraid convert --split`"
        )
    if labels.task == "single-label":
        check_classes(labels, data)
    check_values_of(graph, settings)


def check_values_of(graph: Graph, settings: RunSettings) -> None:
    """Check every value of a graph, unless ``check_data`` is off; DataError if a value is wrong."""
    if settings.check_data and graph.is_whole:  # parts were checked when they were made
        _naming(settings.data, graph.validate)


def check_predictable(graph: Graph, settings: RunSettings) -> None:
    """Refuse wrong edges and features, which predicting reads, unless ``check_data`` is off."""
    if not graph.is_typed and graph.x is None:
        raise DataError(f"{settings.data} has no features, and the model needs some")
    if settings.check_data and graph.is_whole:
        _naming(settings.data, lambda: validate_topology(graph.csc))
        for x in (graph.nodes_of(node_type).x for node_type in graph.node_types):
            if x is not None:
                _naming(settings.data, functools.partial(validate_features, x))


def check_classes(labels: Graph | NodeSet | EdgeSet, data: str, what: str = "node") -> None:
    """Check the classes; labels such as years or codes would make a model of one output per class huge.

    Raises:
        DataError: there are less than two, or more than nodes, edges or graphs, as ``what`` calls them.
    """
    if labels.num_classes == 0:
        raise DataError(f"{data}: no {what} has a label (all are -1 or -100); training needs some")
    assert labels.y is not None
    known = labels.y[labels.y >= 0]
    if bool((known == known[0]).all()):
        raise DataError(f"{data}: all labels are class {int(known[0])}; training needs at least two classes")
    if labels.num_classes > max(_ALWAYS_FINE, labels.num_nodes):
        raise DataError(
            f"{data}: labels go up to {labels.num_classes - 1}, with {labels.num_nodes} {what}s; classes "
            "must be numbered from 0 without gaps"
        )


def _naming(data: str, check: Callable[[], Graph | None]) -> None:
    """Run a check of the data, whose errors then begin with its name."""
    try:
        check()
    except DataError as error:
        raise DataError(f"{data}: {error}") from error


def build_model(graph: Graph, run: ResolvedRun, num_outputs: int) -> nn.Module:
    """Make a model for the labels of a graph, with new weights drawn from the run's seed."""
    name, data = run.settings.model, run.settings.data
    if graph.is_typed != (name in TYPED_MODELS):
        kind = "a graph with types" if graph.is_typed else "a graph without types"
        choices = ", ".join(TYPED_MODELS if graph.is_typed else MODELS)
        hint = ". An .npz file is read without types by --set 'data_options={with_types: false}'"
        raise ConfigError(
            f"--model {name} does not go with {data}, {kind}; choose one of {choices}"
            + (hint if graph.is_typed and data.endswith(".npz") else "")
        )
    if (width := run.settings.embedding_dim) is not None:
        if graph.is_typed:
            raise ConfigError(
                f"embedding_dim={width} is for a graph without types, and {data} has types; leave it out. "
                "Types without features have learned rows, which ranks divide with "
                "--set 'model_options={sharded: true}'"
            )

        def make(**options: Any) -> nn.Module:
            inner = make_model(name, width, num_outputs, **options)
            return NodeEmbedding(graph.num_nodes, width, inner, sharded=True)

        return built(run, make)
    if not graph.is_typed:
        return built(run, functools.partial(make_model, name, graph.num_features, num_outputs))
    node_type = learned_type(graph, run.train.node_type)
    return built(run, functools.partial(make_typed_model, name, graph, num_outputs, node_type=node_type))


def built(run: ResolvedRun, make: Callable[..., nn.Module]) -> nn.Module:
    """Make a model by ``make`` with the options of a run, and new weights drawn from its seed."""
    settings = run.settings
    if taken := _MODEL_OPTIONS & set(settings.model_options):
        name = min(taken)
        raise ConfigError(
            f"model_options: {name} is an option of its own (--set {name}=...), or follows the data"
        )
    options: dict[str, Any] = {"hidden_channels": settings.hidden_channels, "num_layers": settings.num_layers}
    options |= {"dropout": settings.dropout, **settings.model_options}
    if settings.heads is not None:
        options["heads"] = settings.heads
    with torch.device("meta"):  # allocates no memory
        sizes = made(f"the model {settings.model!r}", make, options)
    _refuse_too_large(sizes)
    torch.manual_seed(run.train.seed)
    return made(f"the model {settings.model!r}", make, options)


def made(what: str, make: Callable[..., _Kind], options: dict[str, Any]) -> _Kind:
    """Make a model or a predictor; errors of its class also name its arguments."""
    try:
        return make(**options)
    except (GraphbraidError, MemoryError):
        raise
    except Exception as error:  # a layer met an option of a type or value it does not check
        given = ", ".join(f"{option}={value!r}" for option, value in options.items())
        raise ConfigError(f"{what} cannot be made with {given}: {error}") from error


def _refuse_too_large(model: nn.Module) -> None:
    free = free_memory_bytes()
    needed = _COPIES * sum(p.numel() * p.element_size() for p in model.parameters())
    if free is not None and needed > free:
        raise ResourceError(
            f"the model's weights with gradients and the optimizer's state take {format_bytes(needed)}; "
            f"{format_bytes(free)} are free. Choose smaller hidden_channels, or fewer layers or heads"
        )


def names_of(data: str, node_type: str | None = None) -> datasets.StoreNames:
    """Return the original node ids that a store keeps or described tables have; None where unknown.

    Those of ``node_type`` in a graph with types.
    """
    names = datasets.StoreNames()
    if datasets.is_store(data):
        names = datasets.open_names(data)
    elif data.endswith((".yaml", ".yml")):
        names = datasets.StoreNames(types=datasets.from_typed_tables(data).names)
    return names if node_type is None else names.types.get(node_type, datasets.StoreNames())


def data_as_path(data: str) -> str:
    """Return the absolute path of an existing file or folder, so that a run can be used from elsewhere.

    Other names are returned unchanged.
    """
    path = expanded(data)
    return str(path.resolve()) if path.exists() else data


EMBEDDING, RELATIONAL = "embedding", "rgcn"
ENCODERS = (EMBEDDING, RELATIONAL, *MODELS)
"""Names of the encoders: learned rows alone, relational layers on them, and the models of nodes."""


def build_link_model(graph: Graph, run: ResolvedRun) -> LinkModel:
    """Make an encoder, with a learned row for each node where there are no features, and a predictor."""
    settings, learned = run.settings, relation_learned(graph, run.train)

    def make(**options: Any) -> nn.Module:
        several = len(graph.edge_types) > 1 and learned is None
        encoder = build_encoder(graph, settings, options, "link")
        return LinkModel(encoder, _predictor(graph, settings, several=several))

    model = built(run, make)
    assert isinstance(model, LinkModel)
    return model


def build_encoder(graph: Graph, settings: RunSettings, options: dict[str, Any], task: str) -> nn.Module:
    """Make an encoder of a model of links or edges, with a learned row for each node without features.

    Raises:
        ConfigError: there is no such encoder, or it does not go with the graph or an option.
    """
    name = settings.model
    if settings.embedding_dim is not None:
        raise ConfigError(
            f"embedding_dim={settings.embedding_dim} is for labels of nodes; with --task {task}, learned "
            f"rows have the width of --hidden, and --model {EMBEDDING} has nothing else"
        )
    if len(graph.node_types) > 1 and name != RELATIONAL:
        raise ConfigError(
            f"--model {name} does not go with {settings.data}, a graph of several node types; "
            f"choose {RELATIONAL}"
        )
    if name not in ENCODERS:
        raise ConfigError(f"--task {task} needs --model to be one of {', '.join(ENCODERS)}; got {name!r}")
    if name == RELATIONAL and not graph.is_typed:
        raise ConfigError(f"--model {RELATIONAL} learns from relations, and {settings.data} has none")

    if len(graph.node_types) == 1:
        refuse_learned(graph)
        return _encoder(name, graph, options)
    return _encoder_by_type(graph, options)


def refuse_learned(graph: Graph) -> None:
    """Refuse columns whose categories have learned rows: a model without types takes codes for numbers.

    Raises:
        ConfigError: there is one; names its node type.
    """
    if codes := learned_by_type(graph):
        raise ConfigError(
            f"categories of {next(iter(codes))!r} have learned rows, which encoders of one node type "
            "do not take; give their columns the encoder one-hot, or leave them out with ignore"
        )


def _encoder(name: str, graph: Graph, options: dict[str, Any]) -> nn.Module:
    nodes, width = graph.nodes_of(graph.node_types[0]), options["hidden_channels"]
    rest = {key: value for key, value in options.items() if key != "hidden_channels"}
    if name == EMBEDDING:
        others = {key: value for key, value in rest.items() if key != "num_layers"}
        return NodeEmbedding(nodes.num_nodes, width, **others)
    in_channels = width if nodes.x is None else int(nodes.x.shape[1])
    if name == RELATIONAL:
        encoder: nn.Module = RGCNEncoder(in_channels, width, width, len(graph.edge_types), **rest)
    else:
        encoder = make_model(name, in_channels, width, **options)
    return NodeEmbedding(nodes.num_nodes, width, encoder) if nodes.x is None else encoder


def _encoder_by_type(graph: Graph, options: dict[str, Any]) -> nn.Module:
    """Make the encoder of a graph of several node types, which returns rows of each of them."""
    nodes = {name: graph.nodes_of(name) for name in graph.node_types}
    width = options["hidden_channels"]
    rest = {key: value for key, value in options.items() if key != "hidden_channels"}
    return RGCN(
        {name: 0 if one.x is None else int(one.x.shape[1]) for name, one in nodes.items()},
        width,
        width,
        graph.edge_types,
        num_nodes={name: one.num_nodes for name, one in nodes.items() if one.x is None},
        learned=learned_by_type(graph),
        **rest,
    )


_OF_RELATIONS: dict[str, Callable[..., LinkPredictor]] = {
    "distmult": DistMult,
    "complex": ComplEx,
    "transe": TransE,
    "rotate": RotatE,
}


def _predictor(graph: Graph, settings: RunSettings, *, several: bool) -> LinkPredictor:
    width, kind = settings.hidden_channels, settings.predictor
    make: Callable[..., LinkPredictor]
    options = settings.predictor_options | ({"reciprocal": True} if settings.reciprocal else {})
    if kind is None:
        kind = "distmult" if several else "dot"
    if kind in _OF_RELATIONS:
        if not several:
            raise ConfigError(
                f"--predictor {kind} scores links of relations, and {settings.data} has none, or one "
                "is learned; choose dot, or mlp"
            )
        make = functools.partial(_OF_RELATIONS[kind], len(graph.edge_types), width)
    elif settings.reciprocal:
        raise ConfigError(
            f"--reciprocal gives relations rows, and --predictor {kind} has none for them; choose one of "
            f"{', '.join(_OF_RELATIONS)}"
        )
    else:
        make = DotProduct if kind == "dot" else functools.partial(MLPPredictor, width, width)
    return made(f"predictor {kind}", make, options)


@dataclass(frozen=True, slots=True)
class Outputs(StrictRecord):
    """Meaning of a model's output columns, saved with a run since data to predict may have no labels."""

    task: AnyTaskName
    width: Annotated[int, Field(ge=1, strict=True)]
    class_names: tuple[str, ...] | None

    @classmethod
    def of(cls, labels: Graph | NodeSet | EdgeSet, names: tuple[str, ...] | None) -> Outputs:
        """Return the meaning of outputs that learn ``labels``, whose classes may have ``names``."""
        width = labels.num_classes
        return cls(labels.task, width, None if names is None else names[:width])


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Learning:
    """Graph and model of a run."""

    run: ResolvedRun
    """Options of the run, with the node type that is learned if the graph has types."""
    graph: Graph | GraphSet
    """The graph, or the graphs of ``task: graph``."""
    labels: Graph | NodeSet | EdgeSet | None
    """Nodes, edges or graphs whose labels are learned; None for links."""
    model: nn.Module
    outputs: Outputs
    source: Contract | None = None
    """With ``task: graph``, what the run expects of the graph that the small graphs are taken from."""


def learning(run: ResolvedRun) -> Learning:
    """Load the graph of a run on nodes or links, check it and make the model."""
    if run.train.task == "link":
        graph = load_graph(run.settings)
        check_values_of(graph, run.settings)
        outputs = Outputs("link", 1, None)  # a score
        return Learning(
            run=run, graph=graph, labels=None, model=build_link_model(graph, run), outputs=outputs
        )
    if run.settings.predictor is not None:
        raise ConfigError(
            f"predictor={run.settings.predictor!r} scores links, and task='node' has none; give --task link"
        )
    graph = load_graph(run.settings)
    labels: Graph | NodeSet = graph
    if graph.is_typed:  # kept with the run, since data to predict may have no labels
        node_type = learned_type(graph, run.train.node_type)
        labels = graph.nodes_of(node_type)
        run = dataclasses.replace(run, train=run.train.updated(node_type=node_type))
    check_trainable(graph, labels, run.settings)
    outputs = Outputs.of(labels, graph.schema.class_names.get(run.train.node_type or ONLY_NODE_TYPE))
    model = build_model(graph, run, outputs.width)
    return Learning(run=run, graph=graph, labels=labels, model=model, outputs=outputs)
