"""Finds which results depend row by row on their inputs, while PyTorch computes them.

A call is tried on rows of numbers, and each of PyTorch's operations that it runs is looked at. So a function,
a method and a module of PyTorch are judged alike, by their operations. An operation that is not known here is
taken to couple all rows.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from graphbraid.fullgraph.reading.exact import is_from
from graphbraid.fullgraph.reading.modes import DispatchMode


class Dependence(Enum):
    """How a result depends on rows."""

    NONE = "none"
    """It is the same for any rows."""
    ALIGNED = "aligned"
    """Its elements, in order, belong to the first row, then to the second, and so on, and each depends on its
    own row alone. So does a row of several numbers, and a block of rows for each row."""
    COUPLED = "coupled"
    """Any other, or unknown."""


class RowWatch(DispatchMode):
    """Follows which tensors depend row by row on others, through the operations that run under it.

    A tensor is known by its memory, since autograd may give a view another Python object.

    Args:
        num_rows: number of rows, which nothing else has.
        aligned: tensors with these rows.
        coupled: tensors that depend on them in any other way.
    """

    def __init__(self, num_rows: int, aligned: Iterable[Tensor] = (), coupled: Iterable[Tensor] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._num_rows = num_rows
        self._known: dict[Any, Dependence] = {}
        self._held: list[Tensor] = []  # so that no other tensor gets their memory
        self._memory = set[int]()
        self._overwritten = set[int]()
        self.is_lost = False
        """Whether numbers of rows have left tensors, or the operations have more than is followed here."""
        self.sizes_by_numbers = False
        """Whether the size of a result depended on numbers, as where a mask selects."""
        self.draws = False
        """Whether random numbers were drawn."""
        for one in aligned:
            self.note(one, Dependence.ALIGNED)
        for one in coupled:
            self.note(one, Dependence.COUPLED)

    def kind_of(self, tensor: Tensor) -> Dependence:
        """Return how a tensor depends on the rows."""
        if self.is_lost:
            return Dependence.COUPLED
        if tensor.layout is not torch.strided:
            return Dependence.NONE
        memory = tensor.untyped_storage().data_ptr()
        if memory in self._overwritten:
            return Dependence.COUPLED
        unknown = Dependence.COUPLED if memory in self._memory else Dependence.NONE
        return self._known.get(_place_of(tensor), unknown)

    def note(self, tensor: Tensor, kind: Dependence) -> None:
        """Say how a tensor depends on the rows."""
        if tensor.layout is not torch.strided:
            self.is_lost = True
            return
        self._held.append(tensor)
        if memory := tensor.untyped_storage().data_ptr():
            self._memory.add(memory)
        self._known[_place_of(tensor)] = kind

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs, parameters = kwargs or {}, func._schema.arguments
        given = {one.name: one.default_value for one in parameters if one.has_default_value()}
        given |= dict(zip((one.name for one in parameters), args, strict=False)) | kwargs
        read = {name: [*tensors_in(value)] for name, value in given.items()}
        kinds = {name: [self.kind_of(one) for one in of] for name, of in read.items()}
        written = [one.name for one in parameters if one.alias_info is not None and one.alias_info.is_write]
        out = func(*args, **kwargs)
        by_mask = func is not torch.ops.aten.index.Tensor or any(
            one is not None and one.dtype in (torch.bool, torch.uint8) for one in args[1]
        )
        by_mask &= func is not torch.ops.aten.bincount.default or len(out) != given["minlength"]
        self.sizes_by_numbers |= by_mask and torch.Tag.dynamic_output_shape in func.tags
        if torch.Tag.nondeterministic_seeded in func.tags:
            self.draws = True
            if func is torch.ops.aten.bernoulli_.float:
                out.fill_(1)  # dropout keeps all, so that two trials can be compared
        found = {kind for of in kinds.values() for kind in of}
        if found <= {Dependence.NONE}:
            return out
        results, rule = [*tensors_in(out)], _rule_of(func)
        is_aligned = rule is not None and Dependence.COUPLED not in found and bool(results)
        is_aligned = is_aligned and all(one.ndim and len(one) % self._num_rows == 0 for one in results)
        if is_aligned and rule is not None:
            pairs = [pair for key, of in kinds.items() for pair in zip(read[key], of, strict=True)]
            rows, shared = (
                [one for one, kind in pairs if kind is wanted]
                for wanted in (Dependence.ALIGNED, Dependence.NONE)
            )
            by_row = {key for key, of in kinds.items() if Dependence.ALIGNED in of}
            is_aligned = rule(_Operation(given, by_row, rows, shared, results[0]))
        self.is_lost |= not results and not written
        for one in results:
            self.note(one, Dependence.ALIGNED if is_aligned else Dependence.COUPLED)
        for name in written:
            if not is_aligned or kinds[name] != [Dependence.ALIGNED]:
                self._overwritten |= {one.untyped_storage().data_ptr() for one in read[name]}
        return out


def _place_of(tensor: Tensor) -> tuple[Any, ...]:
    memory = tensor.untyped_storage().data_ptr()
    return memory, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype


# ---- rules of operations


@dataclass(frozen=True, slots=True)
class _Operation:
    """One operation as it has run, whose arguments have rows or are the same for all rows."""

    given: Mapping[str, Any]
    """Its arguments by name, with defaults."""
    by_row: set[str]
    """The names of those with rows."""
    rows: Sequence[Tensor]
    """The tensors with rows."""
    shared: Sequence[Tensor]
    """The other tensors."""
    out: Tensor
    """The first result."""

    def has_rows_of_result(self) -> bool:
        """Return whether the rows and the result have their rows along the same dimension."""
        return all(one.ndim == self.out.ndim and len(one) == len(self.out) for one in self.rows)

    def shares(self, tensors: Iterable[Tensor]) -> bool:
        """Return whether tensors that broadcast to the result are the same for all of its rows."""
        return all(one.ndim < self.out.ndim or one.shape[0] == 1 for one in tensors)

    def goes_along_others(self, ndim: int) -> bool:
        """Return whether the operation names the dimensions that it works along, and not the first."""
        named = [self.given[key] for key in ("dim", "dims", "dim0", "dim1") if key in self.given]
        dims = [one for of in named for one in (of if isinstance(of, list | tuple) else [of])]
        return bool(dims) and all(type(one) is int and one % ndim for one in dims)


def _elementwise(run: _Operation) -> bool:
    return run.has_rows_of_result() and run.shares(run.shared)


def _along_dimensions(run: _Operation) -> bool:
    return not run.shared and run.goes_along_others(run.rows[0].ndim)


def _indexed(run: _Operation) -> bool:
    """Return whether an index takes a row of a table for each id, or the same columns of each row."""
    indices = run.given["indices"]
    tensors = [one for one in indices if one is not None]
    if len(tensors) != 1 or tensors[0].dtype in (torch.bool, torch.uint8):
        return False
    of_table = run.by_row == {"indices"} and indices[0] is not None
    return of_table or (run.by_row == {"self"} and indices[0] is None and len(run.out) == len(run.rows[0]))


def _of(*names: str) -> Callable[[_Operation], bool]:
    """Return the rule of an operation whose arguments of these names alone may have rows."""
    return lambda run: run.by_row == set(names)


_Rule = Callable[[_Operation], bool]
_RULES: dict[str, _Rule] = {}
for _rule, _names in (
    (
        _elementwise,
        "_to_copy copy fill zero detach alias lift_fresh hardswish log_sigmoid_forward _prelu_kernel rsub "
        "masked_fill bernoulli native_dropout rrelu_with_noise zeros_like ones_like full_like empty_like "
        # PyTorch says so of these from 2.13 on.
        "celu elu hardsigmoid hardtanh leaky_relu selu",
    ),
    (
        lambda _: True,  # elements keep their order, or all are the same number
        "view _unsafe_view _reshape_alias reshape unsqueeze new_zeros new_ones new_full new_empty",
    ),
    # Without dimensions, squeeze takes away the dimension of the rows if there is one row.
    (lambda run: run.goes_along_others(run.rows[0].ndim), "squeeze"),
    (_Operation.has_rows_of_result, "expand repeat"),
    (
        _along_dimensions,
        "sum mean prod amax amin max min std var std_mean var_mean norm linalg_vector_norm all any argmax "
        "argmin _softmax _log_softmax logsumexp cumsum cumprod sort topk median cat split split_with_sizes "
        "unsafe_split unbind select transpose flip glu",
    ),
    (lambda run: _along_dimensions(run) and run.has_rows_of_result(), "gather"),  # which may take the first
    (lambda run: not run.shared and run.goes_along_others(run.out.ndim), "stack"),
    (
        lambda run: (
            (run.out.shape == run.rows[0].shape and run.given["step"] == 1)
            or run.goes_along_others(run.out.ndim)
        ),
        "slice",
    ),
    (lambda run: run.given["dims"][0] % run.out.ndim == 0, "permute"),
    (_of("self"), "mm mv"),
    (lambda run: run.by_row in ({"mat1"}, {"mat"}) and run.shares([run.given["self"]]), "addmm addmv"),
    (_of("self", "mat2"), "bmm"),
    (lambda run: bool(run.by_row) and run.by_row <= {"i1", "i3"}, "_trilinear"),
    # Divided by how often an id is read, the gradient of one row depends on the others.
    (lambda run: run.by_row == {"indices"} and not run.given["scale_grad_by_freq"], "embedding"),
    (lambda run: run.by_row == {"index"} and run.given["dim"] == 0, "index_select"),
    (_indexed, "index"),
    (
        lambda run: run.by_row == {"input"} and len(run.given.get("normalized_shape", ())) < run.rows[0].ndim,
        "native_layer_norm native_group_norm",
    ),
):
    _RULES |= dict.fromkeys(_names.split(), _rule)
"""The rules by the names of operations, beside those that PyTorch marks as elementwise."""


def _rule_of(func: Any) -> _Rule | None:
    name = func._schema.name.removeprefix("aten::")
    if torch.Tag.pointwise in func.tags:
        return _elementwise
    return _RULES.get(name if name.startswith("_") else name.rstrip("_"))


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in a value, also in tuples, lists and dicts."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        yield from tensors_in([*value.values()])
    elif isinstance(value, tuple | list):
        for one in value:
            yield from tensors_in(one)


_FEWEST_TRIED = 1000
"""Fewest rows that calls without a lowered form are tried on: more than most widths of models."""


def rows_to_try(
    model: nn.Module, count: int, *, least: int = 0, others: Iterable[int] = ()
) -> tuple[int, ...]:
    """Return numbers of rows to try calls on that are no size of the model, nor made of its sizes: primes.

    Otherwise a ``(C, C)`` matrix could be taken for rows of nodes. None is below ``least`` or
    :data:`_FEWEST_TRIED`. ``others`` are sizes of other matrices that calls may get.
    """
    held = (one for one in (*model.parameters(), *model.buffers()) if not is_lazy(one))
    sizes = {*others, *(size for one in held for size in one.shape)}
    numbers = itertools.count(max(_FEWEST_TRIED, least))
    primes = (n for n in numbers if all(n % divisor for divisor in range(2, math.isqrt(n) + 1)))
    return tuple(itertools.islice((n for n in primes if n not in sizes), count))


def is_of_torch(module: nn.Module) -> bool:
    """Return whether a module and those inside are PyTorch's own, whose code asks for no number of rows."""
    kinds = map(type, module.modules())
    return all(
        kind.__module__.startswith("torch.nn.modules.") and is_from(kind, kind.__module__) for kind in kinds
    )
