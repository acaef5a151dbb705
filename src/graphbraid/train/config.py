"""TrainConfig: every choice of a training run, validated as soon as it is made."""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError
from torch.optim import Optimizer

from graphbraid.arguments import MOST_COUNT, MOST_THREADS, check_type
from graphbraid.errors import ConfigError, did_you_mean


def _refuse_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("a number")
    return value


no_bool = BeforeValidator(_refuse_bool)
"""``true`` is no number, though Python counts it as 1."""
Positive = Annotated[int, Field(ge=1, le=MOST_COUNT), no_bool]
Natural = Annotated[int, Field(ge=0, le=MOST_COUNT), no_bool]
Seed = Annotated[int, Field(ge=0, lt=1 << 63), no_bool]
Threads = Annotated[int, Field(ge=1, le=MOST_THREADS), no_bool]
Depth = Annotated[int, Field(ge=1, le=1000), no_bool]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False), no_bool]
NonNegativeFloat = Annotated[float, Field(ge=0, allow_inf_nan=False), no_bool]
Fanout = Annotated[int, Field(ge=-1, le=MOST_COUNT), no_bool]


def _named(value: Any) -> Any:
    """Refuse names of no place: ``Path("")`` would be the folder one stands in."""
    if isinstance(value, str) and (not value.strip() or "\0" in value):
        raise ValueError("the name of a file or folder")
    return value


Place = Annotated[Path, BeforeValidator(_named)]

OptimizerFactory = Callable[..., Optimizer]
SchedulerFactory = Callable[..., Any]

# What a resumed run may change: none of these has a say in what a step or an evaluation computes.
FREE_ON_RESUME = frozenset(
    {
        "epochs",
        "patience",
        "memory_budget_bytes",
        "hops",
        "workers",
        "out_dir",
        "resume",
        "overwrite",
        "checkpoint_every_steps",
        "tensorboard",
        "trace",
        "restore_best",
        "test_at_end",
        "trust_checkpoint",
    }
)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig:
    """How a model is trained, evaluated and saved. Every field is checked when the object is made."""

    mode: Literal["sampled", "full", "auto"] = "sampled"
    """``sampled``: mini-batches of sampled neighbourhoods; ``full``: the whole graph is one step, compiled
    (:func:`graphbraid.compile`) where the model has a lowered form; ``auto``: ``full`` where that is
    estimated to fit half of the free memory, else ``sampled``, if at least the rows of one mini-batch fit."""
    epochs: Positive = 20
    """Passes over the training nodes; in mode ``full`` an epoch is one step."""

    fanouts: Annotated[tuple[Fanout, ...], Field(min_length=1, max_length=1000)] = (15, 10)
    """In-neighbours drawn per node and hop, the hop nearest the seeds first; -1 takes all. One entry per
    model layer."""
    batch_size: Positive = 1024
    """Seed nodes per mini-batch."""
    layout: Literal["subgraph", "blocks"] = "subgraph"
    """How hops are drawn: ``subgraph`` draws each node once (as PyG), ``blocks`` anew for every layer (as
    DGL)."""
    replace: bool = False
    """Draw neighbours with replacement."""
    accumulate: Positive = 1
    """Mini-batches whose gradients are averaged into one step."""

    optimizer: str | OptimizerFactory | Optimizer = "adamw"
    """Name of a ``torch.optim`` class (any case), a function ``params -> Optimizer``, or a ready one."""
    lr: PositiveFloat = 0.003
    """Learning rate of a named optimizer."""
    weight_decay: NonNegativeFloat = 0.0
    """Weight decay of a named optimizer, as that optimizer defines it."""
    scheduler: str | SchedulerFactory | None = None
    """``cosine``, ``linear`` (to zero over the whole run), ``onecycle``, ``plateau``, or a function
    ``optimizer -> scheduler`` that is advanced after every epoch; None keeps the rate."""
    warmup_steps: Natural = 0
    """Steps over which ``cosine`` and ``linear`` rise from zero to ``lr``."""
    clip: PositiveFloat | None = None
    """Largest L2 norm of all gradients together; None does not clip."""
    class_weights: Literal["balanced"] | tuple[PositiveFloat, ...] | None = None
    """Weight of each class in the loss; ``balanced`` takes inverse frequencies in the training split."""

    device: str = "cpu"
    """Where the model runs: ``cpu``, ``cuda``, ``cuda:1`` or ``auto``."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """``bfloat16`` runs the model under autocast; parameters and optimizer stay float32."""
    seed: Seed = 0
    """Seeds the batches, dropout, and the generators of torch, NumPy and Python."""
    deterministic: bool = False
    """Let torch use only deterministic algorithms; on the CPU runs repeat to the bit without it."""
    trace: Place | None = None
    """File for the timeline of the first epoch trained, as Perfetto reads it, with an HTML page beside it;
    needs a ``plan``. None writes none."""
    threads: Threads | None = None
    """Threads of the model's operators while the trainer works; None leaves torch's setting."""
    workers: Threads = 1
    """Sampling threads. They prepare later batches while the model trains; batches do not depend on their
    number."""
    plan: str | None = None
    """``auto`` measures the run's stages and chooses who prepares which mini-batch; without a GPU, how many
    cores sample (in place of ``workers``) and how many train (unless ``threads`` says so). ``cpu`` and
    ``gpu`` let one side prepare all; any other value is the path of a saved plan. Batches do not depend on
    it. None does not plan."""

    eval_every: Natural = 1
    """Epochs between evaluations of the validation split; 0 never evaluates."""
    eval_mode: Literal["sampled", "exact"] = "sampled"
    """Validation during :meth:`Trainer.fit`: sampled neighbourhoods, or exact layer-wise inference (see
    ``docs/training.md``). Mode ``full`` is always exact."""
    eval_batch_size: Positive = 1024
    """Seed nodes per mini-batch of a sampled evaluation."""
    eval_fanouts: Annotated[tuple[Fanout, ...], Field(min_length=1, max_length=1000)] | None = None
    """Fanouts of a sampled evaluation; None takes ``fanouts``."""
    memory_budget_bytes: Annotated[int, Field(ge=1 << 16, lt=1 << 63), no_bool] = 2 << 30
    """Bytes that exact inference may hold beside graph, features and result; beyond it activations go to a
    file."""
    hops: Depth | None = None
    """How far messages travel in a model that is not graphbraid's own, for exact inference beyond the
    budget; None counts its message-passing layers (a layer with an attribute ``K``, such as APPNP, counts K
    times)."""
    metrics: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """Metrics to compute; None takes the task's usual ones (see ``graphbraid.train.inference.metrics``)."""
    monitor: str | None = None
    """Validation metric that says which epoch is best; None takes the task's first metric."""
    patience: Positive | None = None
    """Stop after this many evaluations without a better ``monitor``; None always runs all epochs."""
    restore_best: bool = True
    """After :meth:`Trainer.fit` the model holds the best epoch's weights instead of the last's."""
    test_at_end: bool = True
    """Evaluate the test split, exactly, when :meth:`Trainer.fit` ends and the graph has one."""

    out_dir: Place | None = None
    """Folder of the run's files; None writes nothing, so that such a run cannot be resumed."""
    resume: bool | Literal["auto"] = False
    """True continues the run in ``out_dir``; ``auto`` does so if there is one."""
    overwrite: bool = False
    """Start anew even if ``out_dir`` holds a run, whose files are then replaced."""
    checkpoint_every_steps: Positive | None = None
    """Steps between checkpoints; None writes one at the end of every epoch. Every epoch's end writes one in
    any case."""
    tensorboard: bool = False
    """Also write TensorBoard events to ``out_dir/tensorboard`` (needs the package ``tensorboard``)."""
    trust_checkpoint: bool = False
    """Also load checkpoints that hold Python objects other than tensors and plain values. Such a file can run
    any code: only for files you wrote."""

    def __post_init__(self) -> None:
        for name, adapter in _adapters().items():
            value = getattr(self, name)
            try:
                object.__setattr__(self, name, adapter.validate_python(value))
            except ValidationError as error:
                raise ConfigError(_explain(name, value, error)) from None
        _check_together(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TrainConfig:
        """Build a config from a mapping such as a YAML file.

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
        """A copy with some fields changed, checked like a new one."""
        return TrainConfig.from_dict(_as_dict(self) | overrides) if overrides else self

    def to_json(self) -> dict[str, Any]:
        """Plain values for ``config.json`` and checkpoints; functions are given by name."""
        return {name: _plain(value) for name, value in _as_dict(self).items()}


def _as_dict(config: TrainConfig) -> dict[str, Any]:
    # Not dataclasses.asdict: that would deep-copy a ready optimizer, and with it the model's parameters.
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


@functools.cache
def _adapters() -> dict[str, TypeAdapter[Any]]:
    hints = typing.get_type_hints(TrainConfig, include_extras=True)
    permissive = ConfigDict(arbitrary_types_allowed=True)
    return {
        field.name: TypeAdapter(hints[field.name], config=permissive)
        for field in dataclasses.fields(TrainConfig)
    }


def _explain(name: str, value: object, error: ValidationError) -> str:
    needed = []
    for item in error.errors(include_url=False):
        where = [str(part) for part in item["loc"] if isinstance(part, int)]
        text = item["msg"].removeprefix("Input should be ").removeprefix("Input is not ")
        text = text.removeprefix("Value error, ")
        if item["type"] == "too_short":
            text = f"a list of at least {item['ctx']['min_length']}"
        needed.append(f"entry {where[0]}: {text}" if where else text)
    return f"{name} must be {', or '.join(dict.fromkeys(needed))}; got {value!r}."


def _check_together(config: TrainConfig) -> None:
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
    if config.eval_fanouts is not None and len(config.eval_fanouts) != len(config.fanouts):
        raise ConfigError(
            f"eval_fanouts must have one entry per hop as fanouts has ({len(config.fanouts)}); got "
            f"{list(config.eval_fanouts)}."
        )
    _check_device(config.device)


def _check_device(name: str) -> None:
    if name == "auto":
        return
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
