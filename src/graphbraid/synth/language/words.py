"""The words of the language: its models, aggregations and other names, and the methods of its objects."""

from __future__ import annotations

from dataclasses import dataclass

from graphbraid.synth.language.syntax import Type

MODELS = ("GCN", "SAGE", "GIN", "GAT", "GATv2")
ATTENTION = ("GAT", "GATv2")
"""The models that have heads."""
AGGREGATIONS = ("Sum", "Mean", "Max")
OF_MODEL: dict[str, tuple[str, ...]] = dict.fromkeys(MODELS, ("Sum",)) | {"SAGE": AGGREGATIONS}
"""The aggregations of each model: GCN's sum is weighted by degrees, GAT's and GATv2's by attention."""
USUAL = dict.fromkeys(MODELS, "Sum") | {"SAGE": "Mean"}
"""The aggregation of each model where a program names none."""
INITIALISERS = ("xavier", "kaiming", "uniform")
OPTIMIZERS = ("sgd", "adam", "adamw")
ACTIVATIONS = ("relu", "elu", "leaky_relu", "none")
NORMALIZATIONS = ("batch", "layer", "none")
LOSSES = ("cross entropy", "binary cross entropy", "mean squared")
SPLITS = ("train", "val", "test")
SPELLINGS = {"xaviers": "xavier", "leakyrelu": "leaky_relu", "add": "sum"}
"""Other spellings of known words, in small letters."""

TOTAL_EPOCHS = "totalEpoch"
"""The number of epochs, a name that every program knows."""


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of a method."""

    name: str
    """Its name in errors."""
    type: Type
    choices: tuple[str, ...] = ()
    """The words that it may be; empty if it is no choice."""
    bounds: range = range(0)
    """The integers that it may be; empty if it may be any."""


@dataclass(frozen=True, slots=True)
class Method:
    """A method of an object."""

    arguments: tuple[Argument, ...] = ()
    least: int | None = None
    """Number of arguments that must be given; None for all."""
    returns: Type | None = None
    """Type of its value; None if it is called for its effect alone."""
    has_effect: bool = False
    """Whether it may be called without use of its value."""


_LAYER = Argument("layer", "int")
_SPLIT = Argument("split", "String", SPLITS)
_GNN = {
    "load": Method((Argument("graph", "Graph"), Argument("dataset", "String"))),
    "initializeLayers": Method(
        (Argument("layers", "container<int>"), Argument("initialiser", "String", INITIALISERS))
    ),
    "getLayers": Method(returns="int"),
    "seed": Method((Argument("seed", "int", bounds=range(2**32)),)),
    "heads": Method((Argument("heads", "int", bounds=range(1, 1025)),)),
    "trainOn": Method((_SPLIT,)),
    "minimize": Method((Argument("loss", "String", LOSSES),)),
    "earlyStop": Method((_SPLIT, Argument("patience", "int", bounds=range(1, 2**31)))),
    "forwardPass": Method(
        (_LAYER, Argument("model", "String", MODELS), Argument("aggregation", "String", AGGREGATIONS)), 2
    ),
    "normalization": Method((_LAYER, Argument("normalization", "String", NORMALIZATIONS))),
    "activation": Method((_LAYER, Argument("activation", "String", ACTIVATIONS))),
    "dropout": Method((_LAYER, Argument("probability", "float"))),
    "backPropagation": Method((_LAYER,)),
    "optimizer": Method(
        (
            Argument("optimizer", "String", OPTIMIZERS),
            Argument("learning rate", "float"),
            *(Argument("setting", "float") for _ in range(3)),
        ),
        2,
    ),
    "loss": Method(returns="float"),
    "evaluate": Method((_SPLIT,), returns="float", has_effect=True),
}
AT_RUN_TIME = ("optimizer", "loss", "evaluate")
"""The methods of GNN that have an effect or a value only while the program trains."""
METHODS: dict[Type, dict[str, Method]] = {"GNN": _GNN, "container<int>": {"size": Method(returns="int")}}


def word_of(text: str, choices: tuple[str, ...]) -> str | None:
    """Return the choice that a text spells, in letters of any case; None if it spells none."""
    lower = SPELLINGS.get(text.lower(), text.lower())
    return next((choice for choice in choices if choice.lower() == lower), None)
