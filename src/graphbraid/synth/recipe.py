"""Recipe: what a program trains, and how; the same record for programs and for models."""

from __future__ import annotations

from dataclasses import dataclass

from graphbraid.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelRecipe:
    """A model of :mod:`graphbraid.nn`."""

    kind: str
    """``GCN``, ``SAGE``, ``GIN`` or ``GAT``."""
    aggregation: str
    """``sum``, ``mean`` or ``max``."""
    widths: tuple[int, ...]
    """Columns of the features, of each hidden layer, and of the output: one more than there are layers."""
    initialiser: str
    """``xavier``, ``kaiming`` or ``uniform``."""
    activation: str = "relu"
    """Activation between layers."""
    dropout: float = 0.0
    """Probability of dropping an element between layers."""
    heads: int = 1
    """Attention heads of GAT's hidden layers."""

    @property
    def num_layers(self) -> int:
        """Number of layers."""
        return len(self.widths) - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerRecipe:
    """An optimizer, with PyTorch's rules and defaults."""

    kind: str
    """``sgd``, ``adam`` or ``adamw``."""
    learning_rate: float
    momentum: float = 0.0
    """Momentum of ``sgd``."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decays of the averages of ``adam`` and ``adamw``."""
    weight_decay: float = 0.0
    eps: float = 1e-8
    """The addend of the denominator of ``adam`` and ``adamw``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EarlyStop:
    """When training stops before its last epoch."""

    split: str
    """Split whose accuracy is looked at whenever the program evaluates it."""
    patience: int
    """Evaluations without a better accuracy after which it stops."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """A whole training run."""

    name: str
    """Name of the program's function or of the model's class."""
    optimizer: OptimizerRecipe
    epochs: int
    train_split: str = "train"
    evaluations: tuple[tuple[str, ...], ...] = ()
    """Splits evaluated after each epoch; as long as there are epochs."""
    early_stop: EarlyStop | None = None
    seed: int = 0
    """Seed of the first weights and of dropout."""

    def __post_init__(self) -> None:
        """Check that its names can stand in source code.

        Raises:
            ConfigError: one has other characters than letters, digits and ``_``.
        """
        watched = () if self.early_stop is None else (self.early_stop.split,)
        evaluated = (name for names in self.evaluations for name in names)
        for name in (self.name, self.train_split, *watched, *evaluated):
            if not name.isidentifier():
                raise ConfigError(
                    "names of a program and of its splits stand in source code, so they need letters, digits "
                    f"and _; got {name!r}"
                )


__all__ = ["EarlyStop", "ModelRecipe", "OptimizerRecipe", "Recipe"]
