"""Recipe: a model's layers and its training; the same record for programs and for models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from graphbraid.arguments import as_count, check_choice
from graphbraid.errors import ConfigError
from graphbraid.synth.language.aggregating import OwnAggregation
from graphbraid.synth.language.parsing import parse
from graphbraid.synth.language.syntax import LOSSES, Call, For, Function, Literally, Statement, Train, walk


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
    """Training stops after so many evaluations without a better accuracy."""


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
    """Whether ``totalEpoch`` matters."""
    is_written: bool = False
    """Whether it comes from a program's text, whose lines errors name."""

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
    """``cross entropy`` of classes; ``binary cross entropy`` or ``mean squared`` of a number for each output
    column. Evaluations then give the share of right signs, or the mean squared error."""
    seed: int = 0
    """Seed of the first weights and of dropout."""
    script: Script | None = None
    """Statements of a program that run while it trains; ``epochs`` is its ``totalEpoch``. If None, each epoch
    is a step, followed by its evaluations."""

    def __post_init__(self) -> None:
        """Check that its names can stand in source code.

        Raises:
            ConfigError: one has other characters than letters, digits and ``_``; there is no such loss; or
                ``evaluate_every`` is no number of epochs.
        """
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
    """Return a loop over epochs, each a step and its evaluations."""
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
