"""BatchCall: one call of a model on a mini-batch, by what each argument of its ``forward`` is."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from graphbraid.fullgraph.batches.edges import BatchEdges, with_all_rows
from graphbraid.fullgraph.program import Break, NotLoweredError
from graphbraid.fullgraph.reading.calling import (
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
    parameters_of,
)
from graphbraid.fullgraph.reading.islands import Breaks
from graphbraid.fullgraph.reading.trace import WEIGHTS_TARGET
from graphbraid.fullgraph.reading.tracing import EDGES_TARGET
from graphbraid.graph.csc import Csc
from graphbraid.sampling.minibatch.mini_batch import MiniBatch
from graphbraid.sampling.sample import Sampled, SampledEdges

_OF_LOADERS = frozenset(
    "batch_size input_id epoch step num_sampled_nodes num_sampled_edges".split()  # noqa: SIM905
)
"""What loaders write of a batch; PyG's models take ``batch_size`` for a number of graphs."""
_FEWEST_TRIED = 1000
"""Fewest rows that calls without a lowered form are tried on: more than most widths of models."""
_OTHER_SEEDS = frozenset({"edge_label_index", "src_index", "root_n_id"})
"""Attributes of batches whose seeds are links, or stand at the first row of each tree."""


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class BatchCall:
    """One call of a model on a batch."""

    calling: Calling
    values: Mapping[str, Any]
    """The values of the call by what parameters receive."""
    given: Given
    """What is available to call it with."""
    batch: Any = None
    """The batch, for the order of its hops; None for a call with tensors."""
    num_seeds: int | None = None
    """Number of rows that are returned, the first ones; None for all that are computed."""
    trims: bool = True
    """Whether only the rows of the batch's seeds, its first hop, need to be computed."""

    @property
    def num_edges(self) -> int:
        """Number of edges of the batch."""
        if (sampled := getattr(self.batch, "sampled_edges", None)) is not None:
            return sum(len(edges.indices) for edges in sampled)
        edges = self.values.get(EDGES) if self.batch is None else self.values[EDGES]
        return int(edges.shape[1]) if isinstance(edges, Tensor) else 0

    def breaks(self, model: nn.Module) -> Breaks:
        """Return what calls without a lowered form are tried on: the batch's own edges, and more nodes.

        The program runs on batches of any size. So the number of nodes is here one that nothing else has, a
        prime that is no size of the model: otherwise a ``(C, C)`` matrix could be taken for rows of nodes.
        """
        x = self.values[X]
        held = (one for one in (*model.parameters(), *model.buffers()) if not is_lazy(one))
        sizes = {self.num_edges, *x.shape[1:], *(size for one in held for size in one.shape)}
        primes = filter(_is_prime, itertools.count(max(_FEWEST_TRIED, int(x.shape[0]))))
        num_rows = next(number for number in primes if number not in sizes)
        makers = {target: partial(self.values.__getitem__, what) for target, what in self._targets.items()}
        return Breaks(num_rows=(num_rows,), values=makers, place=x.device, dtype=x.dtype)

    def given_to(self, breaks: Sequence[Break]) -> dict[str, Any]:
        """Return what graph breaks read of the batch, by the names in their calls."""
        return {target: self.values[self._targets[target]] for op in breaks for target in op.reads}

    @property
    def _targets(self) -> dict[str, str]:
        """What parameters receive, by the names that graph breaks read it by."""
        targets = {EDGES_TARGET: EDGES, EDGE_ATTR: EDGE_ATTR}
        return targets if self.given.weights is None else {**targets, WEIGHTS_TARGET: self.given.weights}

    @property
    def signature(self) -> tuple[Any, ...]:
        """What a program is read for: another one needs another program."""
        given = self.given
        width = self.values[X].shape[1]
        named = tuple(self.calling.named.items())
        return self.calling.positional, named, given.weights, given.edge_channels, width, given.data_class

    def why_not(self, parameter: Tensor | None) -> NotLoweredError | None:
        """Return why these arguments cannot go with a parameter of the model; None if they can."""
        x: Any = self.values.get(X) if self.batch is None else self.values[X]
        if not _is_plain(x) or x.ndim != 2 or not x.is_floating_point():
            return NotLoweredError("x", "it is not one dense matrix of floats with a row per node")
        edges = self.values.get(EDGES)  # of a batch, usually not made
        if edges is not None and not _is_edge_list(edges, x):
            return NotLoweredError("edge_index", "it is not a dense (2, num_edges) matrix of ids beside x")
        if parameter is not None and (parameter.dtype != x.dtype or parameter.device != x.device):
            what = f"it is {x.dtype} on {x.device}, parameters are {parameter.dtype} on {parameter.device}"
            return NotLoweredError("x", what, "one dtype and device")
        return self._why_not_edges(x)

    def _why_not_edges(self, x: Tensor) -> NotLoweredError | None:
        is_sampled = getattr(self.batch, "sampled_edges", None) is not None
        drawn = _drawn(self.batch) if is_sampled else None
        if drawn is not None and len(x) != len(drawn.n_id):
            return NotLoweredError("x", f"it has {len(x)} rows, and the batch {len(drawn.n_id)} nodes")
        weight = None if self.given.weights is None else self.values[self.given.weights]
        attr = None if self.given.edge_channels is None else self.values[EDGE_ATTR]
        for name, held in (("edge_weight", weight), ("edge_attr", attr)):
            if held is None:
                continue
            if held.requires_grad or held.device != x.device or held.dtype != x.dtype:
                what = f"{name} requires a gradient, or has another dtype or device than x"
                return NotLoweredError(name, what, "a tensor that does not, of one dtype, on one device")
            if len(held) != self.num_edges:
                what = f"{name} has {len(held)} rows, and there are {self.num_edges} edges"
                return NotLoweredError(name, what)
        return None

    def edges(self) -> BatchEdges:
        """Return the edges of the batch, with their weights if the model receives them."""
        weight = None if self.given.weights is None else self.values[self.given.weights]
        num_nodes, batch = int(self.values[X].shape[0]), self.batch
        if (sampled := getattr(batch, "sampled_edges", None)) is not None:
            edges = _as_sampled(batch, sampled, weight, num_nodes)
        else:
            edges = BatchEdges.of_list(self.values[EDGES], num_nodes, weight, hops=_hops_of(batch, num_nodes))
        # More rows may be wanted than there are seeds, if the user has set batch_size.
        is_enough = self.trims and (self.num_seeds is None or self.num_seeds <= (*edges.hops, 0)[0])
        return edges if is_enough else replace(edges, hops=())


def _is_prime(number: int) -> bool:
    return all(number % divisor for divisor in range(2, math.isqrt(number) + 1))


def _is_plain(value: Any) -> bool:
    return type(value) in (Tensor, nn.Parameter) and value.layout == torch.strided


def _is_edge_list(edges: Any, x: Tensor) -> bool:
    fits = _is_plain(edges) and edges.ndim == 2 and edges.shape[0] == 2 and edges.device == x.device
    return fits and edges.dtype in (torch.int32, torch.int64)


def _as_sampled(
    batch: Any, sampled: Sequence[SampledEdges], weight: Tensor | None, num_nodes: int
) -> BatchEdges:
    """Return the edges as the sampler left them, by destination."""
    hops = tuple(accumulate(getattr(batch, "num_sampled_nodes", ())))  # empty if edges are not by hop
    if batch.layout == "blocks":
        blocks, starts = [], (0, *accumulate(batch.num_sampled_edges))
        for hop in reversed(range(len(sampled))):
            own = None if weight is None else weight[starts[hop] : starts[hop + 1]]
            indptr, indices = sampled[hop].indptr[: hops[hop] + 1], sampled[hop].indices
            blocks.append(Csc(indptr, indices, hops[hop + 1], own, trusted=True))
        return BatchEdges(blocks=tuple(blocks), starts=starts[-2::-1])
    [edges] = sampled
    csc = with_all_rows(Csc(edges.indptr, edges.indices, num_nodes, weight, trusted=True))
    return BatchEdges(csc=csc, hops=hops, is_directed=True)


def _hops_of(batch: Any, num_nodes: int) -> tuple[int, ...]:
    """Return the nodes up to each hop of a batch; empty if it does not say, or not of all its nodes."""
    counts = getattr(batch, "num_sampled_nodes", None)
    if not isinstance(counts, list) or not counts:
        return ()
    hops = tuple(accumulate(int(count) for count in counts))
    return hops if hops[-1] == num_nodes else ()


# ---- calls with tensors


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
        what = argument_named(name, places[name])
        what = name if what is None or what in values else what
        values[what] = value
        if places[name] == len(positional) and name not in named:
            positional.append(what)
        else:
            by_name[name] = what
    calling = Calling(tuple(positional), by_name)
    given = _with_edges(Given(names=frozenset(values), held=frozenset(values)), values, list(values))
    return BatchCall(calling=calling, values=values, given=given)


# ---- calls with batches


def call_of_batch(model: nn.Module, batch: Any, callings: dict[Any, Calling]) -> BatchCall:
    """Return the call of a model on a batch, with its attributes by the names of ``forward``'s parameters.

    Args:
        model: the model.
        batch: a :class:`.MiniBatch`, or PyG's ``Data`` or ``Batch``.
        callings: how batches with the same attributes were called before; written.

    Raises:
        ConfigError: a parameter without a default matches no attribute.
    """
    held = frozenset(batch.keys())
    is_sampled = isinstance(batch, MiniBatch) or "input_id" in held
    keys = held - _OF_LOADERS if is_sampled else held
    given = Given(names=keys | {EDGES, NUM_NODES, DATA}, held=keys, data_class=_class_of(batch))
    key = type(batch), keys
    if key not in callings:
        callings[key] = calling_of(model, given)
    calling = callings[key]
    values = CallValues(partial(_of_batch, batch))
    is_whole = calling.takes(DATA)
    num_seeds = _num_seeds_of(batch, held) if is_sampled else None
    taken = [what for what in (WEIGHTS, EDGE_ATTR) if what in keys and (is_whole or calling.takes(what))]
    return BatchCall(
        calling=calling,
        values=values,
        given=_with_edges(given, values, taken),
        batch=batch,
        num_seeds=num_seeds,
        trims=num_seeds is not None,
    )


def _num_seeds_of(batch: Any, held: frozenset[str]) -> int | None:
    """Return the number of seeds, whose rows are the first of a batch; None if they are not, or are links."""
    if held & _OTHER_SEEDS:
        return None
    drawn = _drawn(batch)
    if drawn is not None and drawn.nodes_by_type[0][0] != batch.input_id.numel():
        return None  # a batch of clusters
    return int(batch.batch_size)


def _drawn(batch: Any) -> Sampled | None:
    """Return what graphbraid's sampler drew for a batch; None for a batch of another loader."""
    sampled = getattr(batch, "sampled", None)
    if isinstance(sampled, MiniBatch):  # of a batch that is PyG's Data
        sampled = sampled.sampled
    return sampled if isinstance(sampled, Sampled) else None


def _with_edges(given: Given, values: Mapping[str, Any], taken: Sequence[str]) -> Given:
    """Say which of the values are numbers of edges, and which rows of features."""
    for what in taken:
        value = values[what]
        if what in (WEIGHTS, EDGE_ATTR) and _is_plain(value) and value.is_floating_point():
            if value.ndim == 1:
                given = replace(given, weights=given.weights or what)
            elif value.ndim == 2 and what == EDGE_ATTR:
                given = replace(given, edge_channels=int(value.shape[1]))
    return given


def _class_of(batch: Any) -> type | None:
    """Return the class that a model finds its data of; None for PyG's ``Data``."""
    return None if isinstance(batch, MiniBatch) else type(batch)


def _of_batch(batch: Any, what: str) -> Any:
    if what == DATA:
        return batch.to_data() if isinstance(batch, MiniBatch) else batch
    if what == CSC:
        return batch.blocks if hasattr(batch, "blocks") else batch.edge_index
    return getattr(batch, what)


__all__ = ["BatchCall", "call_of_batch", "call_with"]
