"""Library operators: torch traces them in place of the autograd functions.

An autograd function takes a ``Csc``, keeps its transpose, and calls kernels on memory, which fake tensors do
not have. Its ``torch.library`` operator takes the tensors and numbers of the same arguments, by a schema that
is read from the annotations of ``forward``. It costs more per call, so that only ``torch.compile``,
``torch.export`` and other tracers meet it (decision 0005).

:func:`derived` keeps what operators compute once from an object, such as a ``Csc``.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
import typing
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch._C._functorch import is_legacy_batchedtensor as _is_legacy_batchedtensor
from torch.utils import _pytree as pytree
from torch.utils.weak import WeakTensorKeyDictionary

from graphbraid.errors import ConfigError
from graphbraid.graph.csc import Csc
from graphbraid.graph.scans import tracing
from graphbraid.graph.sparse_features import SparseFeatures

T = TypeVar("T")
_KEPT: WeakKeyDictionary[Any, dict[Hashable, Any]] = WeakKeyDictionary()


def derived(owner: object, key: Hashable, make: Callable[[], T]) -> T:
    """Return ``make()``, called once per ``owner`` and ``key`` and kept until ``owner`` is garbage.

    While torch traces, nothing is kept: the trace belongs to no owner.

    The result must not refer to ``owner``: that would keep both alive forever.
    """
    if tracing():
        return make()
    kept = _KEPT.get(owner)
    if kept is None:
        kept = _KEPT.setdefault(owner, {})
    if key not in kept:
        kept[key] = make()
    return cast("T", kept[key])


def share(owner: object, other: object, key: Hashable, make: Callable[[], T]) -> None:
    """Share with ``other`` the value that ``owner`` keeps under ``key``; make it first if needed."""
    if not tracing():
        _KEPT.setdefault(other, {})[key] = derived(owner, key, make)


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype that rows of ``dtype`` are summed in."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def inverse_degrees(csc: Csc, dtype: torch.dtype) -> Tensor:
    """Return 1 over the in-degree of each destination, ``(num_dst,)``; 1 where the degree is 0."""
    return derived(
        csc, ("inverse_degrees", dtype), lambda: csc.degrees().clamp(min=1).to(dtype).reciprocal_()
    )


def stored_loops(csc: Csc) -> Tensor | None:
    """Return the positions of the stored edges ``v -> v``, or None if there are none."""

    def find() -> Tensor | None:
        loops = (csc.indices == csc.destinations()).nonzero().squeeze(1)
        return loops if loops.numel() else None

    return derived(csc, "stored_loops", find)


NAMES: list[str] = []
"""Names of the library operators, in the namespace ``graphbraid``."""
AnySeed = int | Tensor
"""A seed; while torch traces, the ``(1,)`` int64 tensor that it is drawn into."""
AutogradFunction = type[torch.autograd.Function]
_Made = TypeVar("_Made", bound=Callable[..., Any])
_SCHEMAS = {
    Tensor: "Tensor",
    Tensor | None: "Tensor?",
    AnySeed: "Tensor",
    int: "SymInt",
    float: "float",
    bool: "bool",
}
_CSC = ("indptr", Tensor), ("indices", Tensor), ("num_src", int)
"""Arrays of a Csc that operators read; weights are passed separately."""
_checked = WeakTensorKeyDictionary()
"""Cache of a Csc's ``indices`` -> (versions, address of ``indptr``, number of sources, the checked Csc)."""


class RowEpilogue(NamedTuple):
    """The arguments of ``dropout(act(row + bias), p)``, in the order and form that the kernels take.

    A compiled kernel with an epilogue gives the same bits as the kernel followed by the kernel ``epilogue``.
    A Triton kernel may round once less, where the bias is added to a product.
    """

    bias: Tensor | None
    """``(width,)`` in the dtype of the sums, contiguous, or None."""
    act: int
    """Activation, as numbered in :data:`graphbraid.ops.epilogue.ACTIVATION_CODES`."""
    slope: float
    """Slope of leaky ReLU below zero."""
    p: float
    """Probability of dropping an element."""
    seed: int | Tensor
    """Seed of the dropout mask: an int or, except for the compiled kernels, a ``(1,)`` int64 tensor."""
    ids: Tensor | None
    """``(num_rows,)`` int64 row numbers that the rows' masks are drawn for, or None for their own."""


def run(function: AutogradFunction, *arguments: Any) -> Any:
    """Call an autograd function; see :func:`refuse_jit_trace`."""
    refuse_jit_trace()
    return function.apply(*arguments)  # type: ignore[no-untyped-call]


def refuse_jit_trace() -> None:
    """Refuse ``torch.jit.trace``, which records no operator of ours and turns sizes into tensors.

    Raises:
        ConfigError: ``torch.jit.trace`` is tracing.
    """
    if torch._C._get_tracing_state() is not None:
        raise ConfigError(
            "torch.jit.trace cannot record graphbraid's operators, whose edges are no tensors; use "
            "torch.export.export(model, (x, edge_index)) or torch.compile(model)"
        )


def once_differentiable(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate the ``backward`` of an operator that has no second derivatives.

    torch's own decorator raises nothing if the incoming gradients are constants, as those of a sum are: a
    penalty on the gradients would silently be a constant.

    Raises:
        ConfigError: on a call with ``create_graph=True``, or for several gradients at once.
    """

    @functools.wraps(backward)
    def checked(*arguments: Any) -> Any:
        if torch.is_grad_enabled():
            raise ConfigError(
                "graphbraid's operators have no second derivatives, and create_graph=True asks for them; for "
                "a penalty on gradients use the layers of torch_geometric.nn"
            )
        if any(isinstance(one, Tensor) and _is_legacy_batchedtensor(one) for one in arguments[1:]):
            raise ConfigError(
                "graphbraid's operators take one gradient at a time, and is_grads_batched=True gives "
                "several; call torch.autograd.grad for each, with retain_graph=True"
            )
        return backward(*(in_memory(one) if isinstance(one, Tensor) else one for one in arguments))

    return checked


def in_memory(grad: Tensor) -> Tensor:
    """Return a gradient whose numbers are in memory, where kernels read them.

    That of a complex number's imaginary part may be a lazily negated view, and autograd may make zeros that
    have no memory.
    """
    return grad.clone() if grad._is_zerotensor() else grad.resolve_neg()


def operator(name: str, function: AutogradFunction, shape: Callable[..., Any]) -> Callable[..., Tensor]:
    """Make an operator: a call of an autograd function or, while torch traces, of a library operator.

    The library operator of the gradient calls ``forward`` again to get what ``backward`` reads: only the
    arguments are kept until then. ``shape`` takes an object with the arguments of ``forward``, and returns
    empty tensors like its results. The call's type is that of one result; callers cast several.
    """
    library = _Operator(name, function.forward, shape, has_context=True)
    library.add_gradient(function)
    traced = library.call

    def call(*arguments: Any) -> Tensor:
        found: Tensor = traced(*arguments) if tracing() else run(function, *arguments)
        return found

    return call


def opaque(name: str, shape: Callable[..., Any]) -> Callable[[_Made], _Made]:
    """Make a library operator of a function without gradients that looks at values; see :func:`operator`."""

    def registered(function: _Made) -> _Made:
        return typing.cast("_Made", _Operator(name, function, shape).call)

    return registered


class CallContext:
    """The part of an autograd function's context that ``forward`` and ``backward`` use."""

    _saved: tuple[Any, ...] = ()
    gives_up = False
    """Whether the next read of the saved tensors is the last, so that nothing but its reader holds them."""
    owns_gradient = False
    """Whether nothing but ``backward`` reads the incoming gradient, so that it may write over it."""
    holds_rows = False
    """Whether the first argument is held until backward in any case: by the batch, or by what made it."""

    def __init__(self, needs_input_grad: Sequence[bool]) -> None:
        self.needs_input_grad = tuple(needs_input_grad)

    def save_for_backward(self, *tensors: Any) -> None:
        """Keep tensors for ``backward``."""
        self._saved = tensors

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """The tensors that were kept."""
        saved = self._saved
        if self.gives_up:
            self._saved = ()
        return saved

    def set_materialize_grads(self, _value: bool) -> None:
        """Do nothing: whoever calls ``backward`` has all gradients."""

    def mark_dirty(self, *_tensors: Any) -> None:
        """Do nothing: PyTorch's graph has none of these tensors."""


class _Operator:
    """A function with its library operator, which takes its arguments' tensors and numbers one by one."""

    def __init__(
        self, name: str, function: Callable[..., Any], shape: Callable[..., Any], *, has_context: bool = False
    ) -> None:
        hints, found = typing.get_type_hints(function), inspect.signature(function).parameters
        parameters = list(found.values())[has_context:]
        names = [one.name for one in parameters]
        self.has_tail = parameters[-1].kind is inspect.Parameter.VAR_POSITIONAL
        kinds: list[Any] = [hints[name] for name in names]
        if self.has_tail:
            kinds[-1] = types.GenericAlias(tuple, (kinds[-1], ...))
        self.plans = tuple(_plan_of(kind) for kind in kinds)
        leaves = [
            leaf for one, plan in zip(parameters, self.plans, strict=True) for leaf in _leaves(plan, one.name)
        ]
        self.schema = ", ".join(f"{schema} {leaf}" for leaf, schema in leaves)
        self.name, self.is_one = name, hints["return"] is Tensor

        def compute(*flat: Any) -> Any:
            arguments = self.arguments(flat, _known_csc)
            first = [CallContext([False] * len(arguments))] if has_context else []
            outs = function(*first, *arguments)
            return _apart([outs], flat)[0] if self.is_one else _apart(outs, flat)

        def fake(*flat: Any) -> Any:
            outs = shape(SimpleNamespace(**dict(zip(names, self._parts(flat, _any_csc), strict=True))))
            return outs if self.is_one else list(outs)

        result = "Tensor" if self.is_one else "Tensor[]"
        self.op = _registered(name, f"({self.schema}) -> {result}", compute, fake)
        overload, is_one, plans, has_tail = _overload(name), self.is_one, self.plans, self.has_tail

        def call(*arguments: Any) -> Any:
            last = len(plans) - 1
            given = (*arguments[:last], arguments[last:]) if has_tail else arguments
            outs = overload(
                *[leaf for plan, one in zip(plans, given, strict=True) for leaf in _flat(plan, one)]
            )
            return outs if is_one else tuple(outs)

        self.call = call

    def arguments(self, flat: Sequence[Any], csc_of: Callable[[Tensor, Tensor, int], Csc]) -> list[Any]:
        """Return the function's arguments, made of the operator's."""
        found = self._parts(flat, csc_of)
        return [*found[:-1], *found[-1]] if self.has_tail else found

    def _parts(self, flat: Sequence[Any], csc_of: Callable[[Tensor, Tensor, int], Csc]) -> list[Any]:
        leaves = iter(flat)
        return [_whole(plan, leaves, csc_of) for plan in self.plans]

    def add_gradient(self, function: AutogradFunction) -> None:
        """Register the gradient: of the results' gradients, which gradients are needed, and the arguments."""

        def compute(grads: list[Tensor | None], needs: list[bool], *flat: Any) -> list[Tensor]:
            arguments, ctx = self.arguments(flat, _known_csc), CallContext(needs)
            function.forward(ctx, *arguments)
            with torch.no_grad():
                found = function.backward(ctx, *grads)
            wanted = [
                torch.zeros_like(argument) if grad is None else grad
                for argument, grad, needed in zip(arguments, found, needs, strict=True)
                if needed
            ]
            return _apart(wanted, (grads, flat))

        def fake(_: list[Tensor | None], needs: list[bool], *flat: Any) -> list[Tensor]:
            arguments = zip(self.arguments(flat, _any_csc), needs, strict=True)
            return [one.new_empty(one.shape) for one, needed in arguments if needed]

        _registered(
            f"{self.name}_backward",
            f"(Tensor?[] grads, bool[] needs, {self.schema}) -> Tensor[]",
            compute,
            fake,
        )
        overload = _overload(f"{self.name}_backward")

        def keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:  # noqa: ARG001 - torch passes it by name
            leaves, ctx.spec = pytree.tree_flatten(list(inputs))
            ctx.save_for_backward(*[leaf for leaf in leaves if isinstance(leaf, Tensor)])
            ctx.others = [None if isinstance(leaf, Tensor) else (leaf,) for leaf in leaves]

        def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
            tensors = iter(ctx.saved_tensors)
            leaves = [next(tensors) if other is None else other[0] for other in ctx.others]
            inputs = pytree.tree_unflatten(leaves, ctx.spec)
            # Gradients belong to arguments that are tensors; those inside a Csc or the like are constants.
            needs = list[bool]()
            given: list[Any] = [
                [None] * len(one)
                if isinstance(one, list) and all(isinstance(t, Tensor) for t in one)
                else None
                for one in inputs
            ]
            places, at = list[tuple[list[Any], int]](), 0  # where each argument's gradient goes
            for number, plan in enumerate(self.plans):
                needed: Any = ctx.needs_input_grad[at]
                if self.has_tail and number == len(self.plans) - 1:
                    needs += needed
                    places += [(given[at], within) for within in range(len(needed))]
                else:
                    needs.append(plan in _TENSORS and needed)
                    places.append((given, at))
                at += len(_leaves(plan, ""))
            found = iter(overload(list(grads) if self.is_one else grads[0], needs, *inputs))
            for is_needed, (into, place) in zip(needs, places, strict=True):
                if is_needed:
                    into[place] = next(found)
            return tuple(given)

        self.op.register_autograd(backward, setup_context=keep)


def _registered(name: str, schema: str, compute: Callable[..., Any], fake: Callable[..., Any]) -> Any:
    made = torch.library.custom_op(f"graphbraid::{name}", compute, mutates_args=(), schema=schema)
    made.register_fake(fake)
    NAMES.append(name)
    return made


def _overload(name: str) -> Any:
    return getattr(torch.ops.graphbraid, name).default


# How an argument is taken apart, in tuples that torch.compile reads as constants: ("one", its schema),
# ("seed",), ("parts", class or None, ((name or place, plan), ...)) or ("each", plan).
_TENSORS = ("one", "Tensor"), ("one", "Tensor?")


def _plan_of(kind: Any) -> tuple[Any, ...]:
    if kind == AnySeed:
        return ("seed",)
    if kind in _SCHEMAS:
        return "one", _SCHEMAS[kind]
    if typing.get_origin(kind) is tuple:
        inner = typing.get_args(kind)
        if inner[-1] is Ellipsis:
            return "each", _plan_of(inner[0])
        return "parts", None, tuple((place, _plan_of(one)) for place, one in enumerate(inner))
    hints = typing.get_type_hints(kind)
    fields = _CSC if kind is Csc else [(one.name, hints[one.name]) for one in dataclasses.fields(kind)]
    return "parts", kind, tuple((name, _plan_of(one)) for name, one in fields)


def _leaves(plan: tuple[Any, ...], name: str) -> list[tuple[str, str]]:
    """Return names and schemas of the operator's arguments for one of the function's."""
    if plan[0] == "parts":
        return [leaf for part, inner in plan[2] for leaf in _leaves(inner, f"{name}_{part}")]
    if plan[0] == "each":
        return [(leaf, f"{schema}[]") for leaf, schema in _leaves(plan[1], name)]
    return [(name, "Tensor" if plan[0] == "seed" else plan[1])]


def _flat(plan: tuple[Any, ...], value: Any) -> list[Any]:
    """Return the operator's arguments for one of the function's."""
    if plan[0] == "parts":
        parts = [value[name] if plan[1] is None else getattr(value, name) for name, _ in plan[2]]
        return [leaf for (_, inner), part in zip(plan[2], parts, strict=True) for leaf in _flat(inner, part)]
    if plan[0] == "each":
        each = [_flat(plan[1], one) for one in value]
        return [[one[at] for one in each] for at in range(len(_leaves(plan[1], "")))]
    if plan[0] == "seed" and not isinstance(value, Tensor):
        return [torch.full((1,), value, dtype=torch.int64)]
    return [value]


def _whole(plan: tuple[Any, ...], leaves: Iterator[Any], csc_of: Callable[[Tensor, Tensor, int], Csc]) -> Any:
    """Return one of the function's arguments, made of the operator's."""
    if plan[0] == "parts":
        parts = [_whole(inner, leaves, csc_of) for _, inner in plan[2]]
        if plan[1] is None:
            return tuple(parts)
        names = [name for name, _ in plan[2]]
        return csc_of(*parts) if plan[1] is Csc else plan[1](**dict(zip(names, parts, strict=True)))
    if plan[0] == "each":
        columns = [next(leaves) for _ in _leaves(plan[1], "")]
        return tuple(_whole(plan[1], iter(row), csc_of) for row in zip(*columns, strict=True))
    value = next(leaves)
    return int(value) if plan[0] == "seed" and csc_of is _known_csc else value


def _any_csc(indptr: Tensor, indices: Tensor, num_src: int) -> Csc:
    return Csc(indptr, indices, num_src, trusted=True)


def _known_csc(indptr: Tensor, indices: Tensor, num_src: int) -> Csc:
    """Return the Csc of these arrays, checked and with its transpose for as long as they live unchanged."""
    if indptr.is_inference() or indices.is_inference():
        return Csc(indptr, indices, num_src)
    key = indptr._version, indices._version, indptr.data_ptr(), num_src
    known = _checked.get(indices)  # type: ignore[no-untyped-call]
    if known is None or known[0] != key:
        # .data, since a cached value that referred to its key would keep both alive forever.
        known = _checked[indices] = key, Csc(indptr.data, indices.data, num_src)
    return typing.cast("Csc", known[1])


def _apart(tensors: Sequence[Tensor], given: Any) -> list[Tensor]:
    """Return contiguous tensors, copied if one shares memory with another or with an argument."""
    seen = {t.untyped_storage()._cdata for t in pytree.tree_leaves(given) if isinstance(t, Tensor)}
    found = []
    for tensor in tensors:
        own = tensor.contiguous()
        own = own.clone() if own.untyped_storage()._cdata in seen else own
        seen.add(own.untyped_storage()._cdata)
        found.append(own)
    return found


def _register_input(kind: type, names: tuple[str, ...]) -> None:
    """Let torch.export take a class of ours among a model's arguments, as its tensors and numbers."""

    def parts_of(value: Any) -> tuple[list[Any], None]:
        return [getattr(value, name) for name in names], None

    def named_parts_of(value: Any) -> tuple[list[Any], None]:
        return [(pytree.GetAttrKey(name), getattr(value, name)) for name in names], None

    def whole(parts: Iterable[Any], _: None) -> Any:
        return kind(**dict(zip(names, parts, strict=True)), trusted=True)

    title = f"graphbraid.{kind.__name__}"
    pytree.register_pytree_node(
        kind, parts_of, whole, serialized_type_name=title, flatten_with_keys_fn=named_parts_of
    )


_register_input(Csc, ("indptr", "indices", "num_src", "weight", "src_degree", "src_loop"))
_register_input(SparseFeatures, ("indptr", "indices", "values", "num_cols"))
