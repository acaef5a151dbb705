"""Recipe: how a model is made and trained; and the Recorder, which makes a recipe of a program's calls.

Programs and models have the same record. The Recorder takes a program's calls in the order they run. The
calls of one epoch are the forward passes of all layers in order, each with its normalisation, activation and
dropout; the backward passes in reverse order; and the optimizer. Only the learning rate may change from one
epoch to the next.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from graphbraid.arguments import MOST_WIDTH, as_count, check_choice
from graphbraid.errors import ConfigError
from graphbraid.synth.language.aggregating import OwnAggregation
from graphbraid.synth.language.parsing import parse
from graphbraid.synth.language.syntax import (
    ATTENTION,
    LOSSES,
    METHODS,
    OPTIMIZERS,
    USUAL,
    Argument,
    Call,
    For,
    Function,
    Literally,
    Place,
    ProgramError,
    Statement,
    Train,
    walk,
    word_of,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerRecipe:
    """A layer of :mod:`graphbraid.nn` or an own one, with its normalisation, activation and dropout."""

    kind: str
    """``GCN``, ``SAGE``, ``GIN``, ``GAT`` or ``GATv2``, or the name of an own layer."""
    aggregation: str
    """``sum``, ``mean`` or ``max``; of an own layer also ``min``."""
    own: OwnAggregation | None = None
    """The aggregation of an own layer."""
    normalization: str = "none"
    """``batch``, ``layer`` or ``none``."""
    activation: str = "relu"
    dropout: float = 0.0
    """Probability of dropping an element."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelRecipe:
    """A stack of layers."""

    layers: tuple[LayerRecipe, ...]
    """Normalisation, activation and dropout of the last one are not used."""
    widths: tuple[int, ...]
    """Columns of the features, of each hidden layer, and of the output: one more than there are layers."""
    initialiser: str
    """``xavier``, ``kaiming`` or ``uniform``."""
    heads: int = 1
    """Attention heads of hidden layers of GAT and GATv2."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerRecipe:
    """An optimizer, with PyTorch's rules and defaults."""

    kind: str
    """``sgd``, ``adam`` or ``adamw``."""
    learning_rate: float
    """The first one; 0 if a program computes it from values known only in training."""
    momentum: float = 0.0
    """Momentum of ``sgd``."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decays of the averages of ``adam`` and ``adamw``."""
    weight_decay: float = 0.0
    eps: float = 1e-8
    """The addend of the denominator of ``adam`` and ``adamw``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EarlyStop:
    """A rule that stops training before its last epoch."""

    split: str
    """Split whose accuracy decides, whenever the program evaluates it."""
    patience: int
    """Training stops after this number of evaluations without a better accuracy."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Script:
    """The statements of a program that run while it trains: all but those that describe its layers."""

    statements: tuple[Statement, ...]
    helpers: tuple[Function, ...] = ()
    values: Mapping[str, int | float | bool] = field(default_factory=dict)
    """Values of the program's parameters that are numbers."""
    gnn: str = "gnn"
    """Name of the parameter that is trained."""
    reads_total: bool = True
    """Whether a statement reads ``totalEpoch``."""
    is_written: bool = False
    """Whether it comes from a program's text. If so, errors name the line."""

    @property
    def splits(self) -> list[str]:
        """The splits that are evaluated, in order of the text."""
        calls = (node for node in walk(self.statements) if isinstance(node, Call))
        names = [split_of(call) for call in calls if call.method.name == "evaluate"]
        return list(dict.fromkeys(names))


def split_of(call: Call) -> str:
    """Return the split of a call of ``evaluate``."""
    (split,) = call.arguments
    assert isinstance(split, Literally)
    return str(split.value)


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """A whole training run."""

    name: str
    """Name of the program's function or of the model's class."""
    optimizer: OptimizerRecipe
    epochs: int
    train_split: str = "train"
    evaluated: tuple[str, ...] = ()
    """Splits that are evaluated after epochs."""
    evaluate_every: int = 1
    """Epochs from one evaluation to the next."""
    early_stop: EarlyStop | None = None
    loss: str = "cross entropy"
    """``cross entropy`` needs classes; ``binary cross entropy`` and ``mean squared`` need a number for each
    output column. An evaluation gives the accuracy, the share of right signs, or the mean squared error."""
    seed: int = 0
    """Seed of the first weights and of dropout."""
    script: Script | None = None
    """Statements of a program that run while it trains; ``epochs`` is its ``totalEpoch``. If None, each epoch
    is a step, followed by its evaluations."""

    def __post_init__(self) -> None:
        """Check the loss, ``evaluate_every``, and that all names can stand in source code."""
        check_choice(self.loss, "loss", LOSSES)
        as_count(self.evaluate_every, "evaluate_every", least=1)
        watched = () if self.early_stop is None else (self.early_stop.split,)
        for name in (self.name, self.train_split, *watched, *self.evaluated):
            if not name.isidentifier():
                raise ConfigError(
                    "names of a program and of its splits stand in source code, so they need letters, digits "
                    f"and _; got {name!r}"
                )

    @property
    def steps(self) -> Script:
        """The statements that run while it trains."""
        return _usual_script(self) if self.script is None else self.script


def _usual_script(recipe: Recipe) -> Script:
    """Return a loop over epochs. Each epoch is a step, followed by its evaluations."""
    every = recipe.evaluate_every
    body = " ".join(f'gnn.evaluate("{split}");' for split in recipe.evaluated)
    if body and every > 1:
        body = f"if (epoch % {every} == {every - 1}) {{ {body} }}"
    text = f"for (int epoch = 0; epoch < totalEpoch; epoch++) {{ {body} }}"
    (loop,) = parse(f"function Usual(Graph g, GNN gnn) {{ {text} }}").body
    assert isinstance(loop, For)
    rate = Literally(loop.place, recipe.optimizer.learning_rate)
    update = Train(loop.place, "update", rate)
    step = (Train(loop.place, "forward"), Train(loop.place, "backward"), update)
    return Script(statements=(replace(loop, body=(*step, *loop.body)),))


MOST_LAYERS = 64
_SETTINGS = {"sgd": ("momentum", "weight decay"), "adam": ("beta1", "beta2", "weight decay")}
"""The numbers that may follow an optimizer's learning rate; AdamW has Adam's."""


class Recorder:
    """The calls of a program so far, in the order of its text.

    ``widths`` are the columns of the features, of each hidden layer and of the output.
    """

    def __init__(self, name: str, widths: tuple[int, ...], own: Mapping[str, OwnAggregation]) -> None:
        self._name, self._widths, self._own = name, widths, own
        self._initialiser = ""
        self.once: dict[str, Any] = {}
        """Values of the methods that are called once, before training."""
        self._once_at: dict[str, Place] = {}
        self._forward: list[tuple[str, str]] = []
        self._between: dict[tuple[str, int], Any] = {}
        self._num_back = 0
        self._epoch: tuple[LayerRecipe, ...] | None = None
        self._optimizer: OptimizerRecipe | None = None
        self._evaluated: set[str] = set()
        self._last: Place | None = None

    @property
    def num_layers(self) -> int:
        """Number of layers."""
        return len(self._widths) - 1

    @property
    def progress(self) -> tuple[Any, ...]:
        """The calls of the epoch so far."""
        return len(self._forward), self._num_back, tuple(self._between.items())

    def call(self, call: Call, arguments: tuple[Any, ...], *, is_looped: bool = False) -> list[Statement]:
        """Take a call with the values of its arguments; return the pass of all layers that it completes.

        ``is_looped`` says that it is inside a loop or condition that training decides.
        """
        method = call.method.name
        if method not in ("load", "initializeLayers") and not self._initialiser:
            message = f"{method} before initializeLayers"
            raise ProgramError(call.method.place, message, "initialise the layers first")
        if is_looped and method in _SETUP:
            raise ProgramError(call.method.place, f"{method} after training has begun", "call it before")
        self._last, before, every = call.method.place, self.progress[:2], self.num_layers
        pairs = zip(METHODS["GNN"][method].arguments, arguments, strict=False)
        taken = [self._taken(call, at, argument, value) for at, (argument, value) in enumerate(pairs)]
        _CALLS[method](self, call, *taken)
        # The pass of the last layer completes the pass of all layers.
        if self.progress[:2] != before and self.progress[:2] in ((every, 0), (every, every)):
            return [Train(call.place, "backward" if self._num_back else "forward")]
        return []

    def _taken(self, call: Call, at: int, argument: Argument, value: Any) -> Any:
        """Check an argument and return it in its usual spelling."""
        if argument.choices:
            return word_of(value, (*argument.choices, *self._own))
        if argument.name == "layer" and not 0 <= value < self.num_layers:
            message, hint = f"there is no layer {value}", f"there are 0 to {self.num_layers - 1}"
        elif argument.bounds and value not in argument.bounds:
            message = f"{call.method.name} of {value}"
            hint = f"{argument.bounds[0]} to {argument.bounds[-1]} are possible"
        else:
            return value
        raise ProgramError(call.arguments[at].place, message, hint)

    def require_begun(self, call: Call, *, is_looped: bool) -> None:
        """Refuse a loss or an accuracy that is read before there is one.

        In a loop of epochs (``is_looped``), an earlier round may have computed the value.
        """
        place, has_begun = call.method.place, self._epoch is not None or is_looped
        if call.method.name == "evaluate":
            if self._forward or not has_begun:
                message = "evaluate in the middle of an epoch"
                raise ProgramError(place, message, "call it after the optimizer")
            self._evaluated.add(split_of(call).lower())
        elif len(self._forward) < self.num_layers and not has_begun:
            raise ProgramError(place, "loss before the first forward pass", "call it after that pass")

    def recipe(self, end: Place) -> tuple[ModelRecipe, Recipe]:
        """Return the model and the recipe that the calls describe; ProgramError if these train nothing."""
        if self._forward:
            raise ProgramError(self._last, "the program ends in the middle of an epoch", "call the optimizer")
        if self._epoch is None or self._optimizer is None:
            hint = "call forwardPass, backPropagation, optimizer"
            raise ProgramError(end, "the program trains nothing", hint)
        model = ModelRecipe(
            layers=self._epoch,
            widths=self._widths,
            initialiser=self._initialiser,
            heads=self.once.get("heads", 1),
        )
        recipe = Recipe(
            name=self._name,
            optimizer=self._optimizer,
            epochs=1,
            train_split=self.once.get("trainOn", "train"),
            early_stop=self.once.get("earlyStop"),
            loss=self.once.get("minimize", LOSSES[0]),
            seed=self.once.get("seed", 0),
        )
        stop = recipe.early_stop
        if stop is not None and recipe.loss == "mean squared":
            hint = "compare the result of evaluate, and leave the loop by break"
            message = "earlyStop needs an accuracy; mean squared has none"
            raise ProgramError(self._once_at["earlyStop"], message, hint)
        if stop is not None and stop.split not in self._evaluated:
            message = f'earlyStop looks at "{stop.split}", which is never evaluated'
            raise ProgramError(end, message, f'call evaluate("{stop.split}") in each epoch')
        return model, recipe

    # ---- before training

    def _load(self, call: Call, *_: Any) -> None:
        if "load" in self.once:
            raise ProgramError(call.method.place, "load is called twice", "take one out")
        self.once["load"] = True

    def _initialize(self, call: Call, _: Any, initialiser: str) -> None:
        if "load" not in self.once:
            raise ProgramError(call.method.place, "initializeLayers before load", "load the graph first")
        if self._initialiser:
            raise ProgramError(call.method.place, "initializeLayers is called twice", "take one out")
        self._initialiser = initialiser
        where, widths = call.arguments[0].place, self._widths
        if not 1 <= self.num_layers <= MOST_LAYERS:
            hint = f"2 to {MOST_LAYERS + 1} make 1 to {MOST_LAYERS} layers"
            raise ProgramError(where, f"{len(widths)} widths", hint)
        if wrong := [width for width in widths if not 1 <= width <= MOST_WIDTH]:
            raise ProgramError(where, f"a layer of {wrong[0]} columns", f"1 to {MOST_WIDTH} are possible")

    def _set_once(self, call: Call, value: Any) -> None:
        name = call.method.name
        if self._epoch is not None or self._forward:
            raise ProgramError(call.method.place, f"{name} after training has begun", "call it before")
        if name in self.once:
            raise ProgramError(call.method.place, f"{name} is called twice", "take one out")
        self.once[name], self._once_at[name] = value, call.method.place

    def _early_stop(self, call: Call, split: str, patience: int) -> None:
        self._set_once(call, EarlyStop(split=split, patience=patience))

    # ---- one epoch

    def _forward_pass(self, call: Call, layer: int, kind: str, aggregation: str | None = None) -> None:
        if self._num_back:
            hint = "call the optimizer first"
            raise ProgramError(call.method.place, "forwardPass after backPropagation", hint)
        if layer != len(self._forward):
            message = f"forwardPass of layer {layer}; layer {len(self._forward)} is next"
            raise ProgramError(call.arguments[0].place, message, "layers are run in order")
        width, heads = self._widths[layer + 1], self.once.get("heads", 1)
        if kind in ATTENTION and layer < self.num_layers - 1 and width % heads:
            message = f"{width} columns cannot be shared by {heads} heads"
            raise ProgramError(call.arguments[1].place, message, f"take a multiple of {heads}")
        own = self._own.get(kind)
        reduction = (aggregation or USUAL[kind]) if own is None else own.reduction
        self._forward.append((kind, reduction.lower()))

    def _dropout(self, call: Call, layer: int, p: float) -> None:
        if not 0 <= p < 1:
            raise ProgramError(call.arguments[1].place, f"a dropout of {p:g}", "it is at least 0 and below 1")
        self._follow(call, layer, float(p))

    def _follow(self, call: Call, layer: int, value: Any) -> None:
        name = call.method.name
        if layer != len(self._forward) - 1 or self._num_back:
            message = f"{name} of layer {layer} does not follow its forwardPass"
            hint = f"forwardPass({layer}, ...) comes before it"
            raise ProgramError(call.arguments[0].place, message, hint)
        if layer == self.num_layers - 1:
            hint = "its rows are the result"
            raise ProgramError(call.arguments[0].place, f"{name} after the last layer", hint)
        if (name, layer) in self._between:
            raise ProgramError(call.method.place, f"{name} of layer {layer} is called twice", "take one out")
        self._between[name, layer] = value

    def _back(self, call: Call, layer: int) -> None:
        if len(self._forward) != self.num_layers:
            message = f"backPropagation after {len(self._forward)} of {self.num_layers} forward passes"
            raise ProgramError(call.method.place, message, "call forwardPass of every layer first")
        expected = self.num_layers - 1 - self._num_back
        if layer != expected:
            next_one = f"; layer {expected} is next" if expected >= 0 else ""
            message = f"backPropagation of layer {layer}{next_one}"
            raise ProgramError(call.arguments[0].place, message, "the last layer comes first")
        self._num_back += 1

    def update(self, call: Call, kind: str, learning_rate: float, settings: list[float]) -> None:
        """Take a call of the optimizer. A learning rate that is known only in training is given as 0."""
        self._last = call.method.place
        if not self._initialiser or self._num_back != self.num_layers:
            message = f"optimizer after {self._num_back} of {self.num_layers} backward passes"
            raise ProgramError(call.method.place, message, "call backPropagation of every layer first")
        found = _optimizer(call, word_of(kind, OPTIMIZERS) or "", learning_rate, settings)
        first = found if self._optimizer is None else self._optimizer
        if first != replace(found, learning_rate=first.learning_rate):
            hint = "only its learning rate may change"
            raise ProgramError(call.method.place, "the optimizer changes between epochs", hint)
        if "heads" in self.once and all(kind not in ATTENTION for kind, _ in self._forward):
            kind, _ = self._forward[0]
            hint = "take heads out, or use GAT or GATv2"
            raise ProgramError(self._once_at["heads"], f"{kind} has no heads", hint)
        epoch = tuple(
            LayerRecipe(
                kind=kind,
                aggregation=aggregation,
                own=self._own.get(kind),
                **{name: self._between[name, at] for name in _BETWEEN if (name, at) in self._between},
            )
            for at, (kind, aggregation) in enumerate(self._forward)
        )
        if self._epoch not in (None, epoch):
            raise ProgramError(call.method.place, "the model changes between epochs", "each must be the same")
        self._optimizer, self._epoch = first, epoch
        self._forward, self._between, self._num_back = [], {}, 0


_SETUP = ("load", "initializeLayers", "seed", "heads", "trainOn", "minimize", "earlyStop")
_BETWEEN = ("normalization", "activation", "dropout")
_CALLS: dict[str, Callable[..., None]] = {
    "load": Recorder._load,
    "initializeLayers": Recorder._initialize,
    **dict.fromkeys(("seed", "heads", "trainOn", "minimize"), Recorder._set_once),
    "earlyStop": Recorder._early_stop,
    "forwardPass": Recorder._forward_pass,
    **dict.fromkeys(("normalization", "activation"), Recorder._follow),
    "dropout": Recorder._dropout,
    "backPropagation": Recorder._back,
}


def _optimizer(call: Call, kind: str, learning_rate: float, settings: list[float]) -> OptimizerRecipe:
    names = ("learning rate", *_SETTINGS["sgd" if kind == "sgd" else "adam"])
    if len(settings) >= len(names):
        message, hint = f"{kind} takes {len(names)} numbers", f"they are {', '.join(names)}"
        raise ProgramError(call.arguments[len(names) + 1].place, message, hint)
    numbers = dict(zip(names, (learning_rate, *settings), strict=False))
    for at, (name, value) in enumerate(numbers.items(), 1):
        below_one = name in ("beta1", "beta2")
        hint = "it is at least 0 and below 1" if below_one else "it is a finite number of at least 0"
        if not 0 <= value < (1 if below_one else math.inf):
            raise ProgramError(call.arguments[at].place, f"a {name} of {value:g}", hint)
    decay = 0.01 if kind == "adamw" else 0.0
    return OptimizerRecipe(
        kind=kind,
        learning_rate=learning_rate,
        momentum=numbers.get("momentum", 0.0),
        betas=(numbers.get("beta1", 0.9), numbers.get("beta2", 0.999)),
        weight_decay=numbers.get("weight decay", decay),
    )
