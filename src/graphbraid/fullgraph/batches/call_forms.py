"""How a model is called on a batch: with tensors, by the names of its parameters, or with the batch."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import NoneType
from typing import Any

from torch import Tensor, nn

from graphbraid.fullgraph.batches.calls import BatchCall, BatchForm, shared_of
from graphbraid.fullgraph.batches.edges import RelationEdges
from graphbraid.fullgraph.program import NotLoweredError
from graphbraid.fullgraph.reading.calling import (
    ADJACENCY,
    CSC,
    DATA,
    EDGE_ATTR,
    EDGES,
    NUM_NODES,
    WEIGHTS,
    Calling,
    CallValues,
    Given,
    X,
    argument_named,
    calling_of,
    is_simple,
    parameters_of,
)
from graphbraid.fullgraph.reading.exact import is_plain
from graphbraid.fullgraph.reading.matrices import MatrixKind, is_matrix
from graphbraid.graph import EdgeType
from graphbraid.graph.interop.pyg import stored_of
from graphbraid.graph.types import ONLY_EDGE_TYPE
from graphbraid.sampling.minibatch.mini_batch import MiniBatch
from graphbraid.sampling.minibatch.pyg_forms import BY_TYPE
from graphbraid.sampling.sample import Sampled

_OF_LOADERS = frozenset(
    "batch_size input_id epoch step num_sampled_nodes num_sampled_edges".split()  # noqa: SIM905
)
"""Attributes that loaders add to a batch. PyG's models take ``batch_size`` for a number of graphs."""
_OTHER_SEEDS = frozenset({"edge_label_index", "src_index", "root_n_id"})
"""Attributes of batches whose seeds are links, or stand at the first row of each tree."""


def call_with(model: nn.Module, args: Sequence[Any], named: Mapping[str, Any]) -> BatchCall:
    """Return the call ``model(*args, **named)``.

    Raises:
        NotLoweredError: an argument has no parameter of its own.
    """
    parameters = parameters_of(model)
    if len(args) > len(parameters) or any(p.kind is p.KEYWORD_ONLY for p in parameters[: len(args)]):
        raise NotLoweredError("forward", "it is called with arguments that have no parameter of their own")
    places = {p.name: place for place, p in enumerate(parameters)}
    given_to = {p.name: value for p, value in zip(parameters, args, strict=False)}
    if unknown := [name for name in named if name not in places or name in given_to]:
        raise NotLoweredError("forward", f"it is called with {unknown[0]!r}, which no parameter takes once")
    given_to |= named
    defaults = {p.name: p.default for p in parameters}
    given_to = {name: v for name, v in given_to.items() if v is not None or defaults[name] is not None}
    values: dict[str, Any] = {}
    positional, by_name = list[str](), dict[str, str]()
    for name, value in given_to.items():
        is_by_type = isinstance(value, Mapping)
        what = argument_named(name.removesuffix(BY_TYPE) if is_by_type else name, places[name])
        lists = [*value.values()] if is_by_type else [value]
        if what == ADJACENCY and all(map(is_plain, lists)) and EDGES not in values:
            what = EDGES  # PyG's layers take an edge list in the place of a matrix
        elif what == EDGES and lists and all(map(is_matrix, lists)):
            what = ADJACENCY
        what = name if what is None or what in values else what
        values[what] = value
        if places[name] == len(positional) and name not in named:
            positional.append(what)
        else:
            by_name[name] = what
    calling = Calling(tuple(positional), by_name)
    by_relation: Any = values.get(ADJACENCY if ADJACENCY in values else EDGES)
    typed = isinstance(values.get(X), Mapping) and isinstance(by_relation, Mapping)
    if typed and not all(type(one) is tuple and len(one) == 3 for one in by_relation):
        raise NotLoweredError("edge_index", "its keys are no (source type, name, destination type)")
    flags = {what: value for what, value in values.items() if type(value) in (bool, str, NoneType)}
    given = Given(names=frozenset(values), held=frozenset(values), typed=typed, constants=flags)
    given = with_edges(given, values, list(values), calling, model)
    return BatchCall(calling=calling, values=values, given=given)


def call_of_batch(model: nn.Module, batch: Any, callings: dict[Any, BatchForm]) -> BatchCall:
    """Return the call of a model on a batch, with its attributes by the names of ``forward``'s parameters.

    The batch is a :class:`.MiniBatch`, or PyG's ``Data``, ``Batch`` or ``HeteroData``. ``callings`` keeps how
    batches with the same attributes were called before.

    Raises:
        ConfigError: a parameter without a default matches no attribute.
    """
    is_ours = isinstance(batch, MiniBatch)
    typed = batch.is_typed if is_ours else hasattr(type(batch), "node_types")
    names = batch.keys() if is_ours else _keys_of(batch, typed=typed)
    key = type(batch), typed, _forward_of(model), *names
    if (form := callings.get(key)) is None:
        form = callings[key] = _form_of(model, batch, names, typed=typed)
    values = CallValues(partial(_of_batch, batch, typed))
    seed_type, num_seeds, drawn = None, None, _drawn(batch, is_ours=is_ours, typed=typed)
    if "input_id" in form.held:
        seed_type, num_seeds = _seeds_of(batch, form.held, drawn, typed=typed)
    return BatchCall(
        calling=form.calling,
        values=values,
        given=form.given,
        batch=batch,
        seed_type=seed_type,
        num_seeds=num_seeds,
        trims=num_seeds is not None,
        form=form,
        shared=form.shared,
        drawn=drawn,
        is_bare=not (typed or form.taken),
    )


def _keys_of(batch: Any, *, typed: bool) -> Collection[str]:
    """Return the attributes of a batch that is PyG's, which takes long to list them itself."""
    if typed:
        return sorted({key for store in batch.stores for key in store._mapping})
    store = vars(batch).get("_store")
    is_plain_data = store is not None and type(batch).__module__ == "torch_geometric.data.data"
    names: Collection[str] = store._mapping if is_plain_data else batch.keys()
    return names


def _forward_of(model: nn.Module) -> tuple[Any, ...]:
    """Return the function that takes a model's arguments; of a wrapper, also that of the wrapped module."""
    forward = model.forward
    function = getattr(forward, "__func__", forward)
    code = getattr(function, "__code__", None)
    if code is None or code.co_argcount > 1 or len(model._modules) != 1:
        return (function,)
    [child] = model._modules.values()
    return function, *(() if child is None else _forward_of(child))


def _form_of(model: nn.Module, batch: Any, names: Collection[str], *, typed: bool) -> BatchForm:
    held = frozenset(name.removesuffix(BY_TYPE) if typed else name for name in names)
    is_sampled = isinstance(batch, MiniBatch) or "input_id" in held
    keys = held - _OF_LOADERS if is_sampled else held
    made = {EDGES, DATA} if typed else {EDGES, NUM_NODES, DATA}
    given = Given(
        names=keys | made,
        held=keys,
        data_class=None if isinstance(batch, MiniBatch) else type(batch),
        typed=typed,
    )
    calling = calling_of(model, given)
    takes_all = calling.takes(DATA)
    taken = tuple(one for one in (WEIGHTS, EDGE_ATTR) if one in keys and (takes_all or calling.takes(one)))
    taken += (ADJACENCY,) if given.takes_matrix(calling) else ()
    return BatchForm(calling, given, held, taken, shared_of(calling, given))


def _seeds_of(
    batch: Any, held: frozenset[str], drawn: Sampled | None, *, typed: bool
) -> tuple[str | None, int | None]:
    """Return the type of the seeds, whose rows are the first of theirs, and their number.

    The number is None if the seeds' rows are not the first, or if the seeds are links.
    """
    if not held.isdisjoint(_OTHER_SEEDS):
        return None, None
    if typed and not isinstance(batch, MiniBatch):
        stores = ((one, store._mapping) for one, store in batch.node_items())
        sizes = [
            (one, int(of["batch_size"])) for one, of in stores if "input_id" in of and "batch_size" in of
        ]
        return sizes[0] if len(sizes) == 1 else (None, None)
    if drawn is None and "batch_size" not in held:
        return None, None
    number = list(batch.n_id_dict).index(batch.input_type) if typed else 0
    if drawn is not None and drawn.nodes_by_type[number][0] != batch.input_id.numel():
        return None, None  # a batch of clusters
    return batch.input_type if typed else None, int(batch.batch_size)


def _drawn(batch: Any, *, is_ours: bool, typed: bool) -> Sampled | None:
    """Return the sample that graphbraid's sampler drew for a batch; None for a batch of another loader.

    PyG's own data take long to look for an attribute that they lack, so their class is asked.
    """
    if not is_ours:
        if typed or not hasattr(type(batch), "sampled"):
            return None
        batch = batch.sampled
        if not isinstance(batch, MiniBatch):
            return None
    return batch.sampled if isinstance(batch.sampled, Sampled) else None


def with_edges(
    given: Given, values: Mapping[str, Any], taken: Sequence[str], calling: Calling, model: nn.Module
) -> Given:
    """Add which values are numbers of edges, and which rows of features; or of what kind matrices are."""
    if given.takes_matrix(calling):
        held = values[ADJACENCY]
        return _with_matrices(given, held if given.typed else {ONLY_EDGE_TYPE: held}, model)
    for what in taken:
        value = values[what]
        if given.typed and what in (WEIGHTS, EDGE_ATTR):
            given = _by_relation(given, what, value)
        elif what in (WEIGHTS, EDGE_ATTR) and is_plain(value) and value.is_floating_point():
            if value.ndim == 1:
                given = replace(given, weights=given.weights or what)
            elif value.ndim == 2 and what == EDGE_ATTR:
                given = replace(given, edge_channels=int(value.shape[1]))
    return given


def _by_relation(given: Given, what: str, held: Any) -> Given:
    """Say which relations have weights, and which features; say nothing if some have neither, but values."""
    values = held.values() if isinstance(held, Mapping) else [held]
    if not all(is_plain(one) and one.is_floating_point() and one.ndim in (1, 2) for one in values):
        return given
    weighted = frozenset(one for one, value in held.items() if value.ndim == 1)
    channels = {one: int(value.shape[1]) for one, value in held.items() if value.ndim == 2}
    if (what == WEIGHTS and channels) or (weighted and given.weights is not None):
        return given
    weights = what if weighted else given.weights
    with_weights = weighted or given.with_weights
    return replace(given, weights=weights, with_weights=with_weights, channels={**given.channels, **channels})


def _with_matrices(given: Given, matrices: Mapping[EdgeType, Any], model: nn.Module) -> Given:
    """Say of what kind the matrices are. Say nothing if kinds differ, or if values learn or are rows."""
    if not all(map(is_matrix, matrices.values())):
        return given
    weighted = False
    for matrix in matrices.values():
        values = stored_of(matrix)[-1]
        # Values of a matrix in layout COO do not say themselves that they learn.
        learns = any(getattr(one, "requires_grad", False) is True for one in (matrix, values))
        if learns or (values is not None and values.ndim > 1):
            return given
        has_weights = values is not None and not (isinstance(matrix, Tensor) and bool((values == 1).all()))
        weighted = weighted or has_weights
    kinds = {MatrixKind.of(one, weighted=weighted) for one in matrices.values()}
    if len(kinds) != 1:
        return given
    [kind], simple = kinds, False
    if kind.merges or any(map(kind.differs_by_loops, model.modules())):
        simple = all(_is_simple(one, matrix, weighted=weighted) for one, matrix in matrices.items())
    return replace(given, matrix=kind, simple=simple)


def _is_simple(edge_type: EdgeType, matrix: Any, *, weighted: bool) -> bool:
    csc = RelationEdges.of_matrix(matrix, *map(int, (matrix.size(1), matrix.size(0))), weighted=weighted).csc
    return csc is not None and is_simple(csc, within=edge_type[0] == edge_type[-1])


def _of_batch(batch: Any, typed: bool, what: str) -> Any:
    if what == DATA:
        return batch.to_data() if isinstance(batch, MiniBatch) else batch
    if typed and not isinstance(batch, MiniBatch):
        stores = ((one, store._mapping) for one, store in (*batch.node_items(), *batch.edge_items()))
        found = {one: of[what] for one, of in stores if what in of}
        is_all = what == X or (what == EDGES and len(found) == len(batch.edge_types))
        return found if is_all else batch.collect(what, allow_empty=True)
    if what == CSC:
        return batch.blocks if hasattr(batch, "blocks") else batch.edge_index
    if not typed:
        return getattr(batch, what)
    # A copy, to which a forward may write. Without features in any type, a batch has no x_dict.
    return dict(getattr(batch, what + BY_TYPE, {}) if what == X else batch[what + BY_TYPE])
