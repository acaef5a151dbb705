"""One model of the lists: what it is lowered to, whether it equals PyG, and its epochs beside PyG's."""

from __future__ import annotations

import copy
import inspect
import itertools
import re
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import MessagePassing, Sequential
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.utils import to_torch_csr_tensor

import graphbraid
from benchmarks.fullgraph.models import attention, gcn, gin, matrix, own, plain, propagation, sage
from benchmarks.fullgraph.models.listed import Listed, Sizes
from benchmarks.graphs.folder import load
from graphbraid.fullgraph import BatchEngine, Engine, Uncompiled
from graphbraid.fullgraph.batches.fusing import BatchProgram
from graphbraid.fullgraph.program import LoweredLayer, itself
from graphbraid.loader import NeighborLoader

MODELS: list[Listed] = [
    one for of in (gcn, sage, gin, attention, propagation, own, plain, matrix) for one in of.MODELS
]
"""All models of the lists."""
WHOLLY, MESSAGES, PARTLY, WRITTEN = "lowered", "all message passing", "partly", "as written"
"""What of a model is lowered: everything; all but calls between the layers; some of the layers; nothing."""
STEPS = 10
"""Steps of Adam in which a model is compared with PyG."""
RELATIVE, ABSOLUTE = 2e-4, 2e-5
"""Tolerances: the engine computes in float32, PyG in float64."""
EXACT, LEAST = 1e-8, 1e-9
"""Tolerances on mini-batches, relative and absolute: both compute in float64."""
BATCHES = 3
"""Mini-batches on which a model is compared with PyG, each a step of Adam."""
NO_DROPOUT = 1e-12
"""A probability at which nothing is dropped; at 0, layers that add in place would differ in PyG itself."""
NODE_TYPE = "paper"
"""The type whose outputs are compared."""


def data_of(kind: str, sizes: Sizes, degree: int = 4) -> Any:
    """Make the data of one kind (:class:`.Listed`), from one seed; half of the nodes are training nodes."""
    draw = torch.Generator().manual_seed(7)
    n = sizes.nodes
    edges = torch.randint(n, (2, degree * n), generator=draw)
    edges = torch.unique(edges[:, edges[0] != edges[1]], dim=1)
    if kind == "types":
        return _typed(sizes, edges, draw)
    if kind not in ("simple", "normalised", "matrix", "weighted matrix"):  # as real edge lists are
        edges = torch.cat([edges, edges[:, :5], torch.tensor([[0, 1], [0, 1]])], dim=1)
    data = Data(x=torch.randn(n, sizes.channels, generator=draw), edge_index=edges, num_nodes=n)
    return _filled(data, kind, sizes, draw)


def stored(folder: Path, kind: str, sizes: Sizes) -> tuple[Data, Sizes]:
    """Return a graph of :mod:`benchmarks.graphs` as the data of one kind, and the sizes for its models."""
    graph = load(folder)
    n, x = graph.num_nodes, graph.x
    assert isinstance(x, Tensor)
    assert graph.y is not None
    sizes = replace(sizes, nodes=n, channels=x.shape[1], classes=int(graph.y.max()) + 1)
    edges = torch.stack([graph.csc.indices.long(), graph.csc.destinations().long()])
    data = Data(x=x, edge_index=edges, num_nodes=n)
    return _filled(data, kind, sizes, torch.Generator().manual_seed(7)), sizes


def _filled(data: Data, kind: str, sizes: Sizes, draw: torch.Generator) -> Data:
    """Give data what their kind has beside nodes and edges."""
    edges, n = data.edge_index, int(data.num_nodes or 0)
    count = edges.shape[1]
    if kind == "weights":
        data.edge_weight = torch.rand(count, generator=draw) + 0.1
    elif kind == "normalised":
        data.edge_index, data.edge_weight = gcn_norm(edges, None, n)
    elif kind == "edges":
        data.edge_attr = torch.randn(count, sizes.edge_channels, generator=draw)
    elif kind == "relations":
        data.edge_type = torch.randint(sizes.relations, (count,), generator=draw)
    elif kind == "points":
        data.pos = torch.randn(n, 3, generator=draw)
    elif kind.endswith("matrix"):
        value = torch.rand(count, generator=draw) + 0.1 if kind.startswith("weighted") else None
        del data.edge_index
        with warnings.catch_warnings():  # PyTorch warns once that sparse matrices are new
            warnings.simplefilter("ignore")
            data.adj_t = to_torch_csr_tensor(edges.flip(0), value, size=(n, n))
    data.train_mask = torch.rand(n, generator=draw) < 0.5
    return data


def _typed(sizes: Sizes, edges: Tensor, draw: torch.Generator) -> HeteroData:
    data, n = HeteroData(), sizes.nodes
    for one in own.METADATA[0]:
        data[one].x = torch.randn(n, sizes.channels, generator=draw)
    for number, edge_type in enumerate(own.EDGE_TYPES):
        data[edge_type].edge_index = edges.roll(number, 1)[:, number::3].contiguous()
    data[NODE_TYPE].train_mask = torch.rand(n, generator=draw) < 0.5
    return data


def call(model: nn.Module, data: Any) -> Any:
    """Call a model: each parameter of ``forward`` gets the attribute of its name."""
    held: dict[str, Any]
    if isinstance(data, HeteroData):
        held = {"x_dict": data.x_dict, "edge_index_dict": data.edge_index_dict}
        held |= {"x": data.x_dict, "edge_index": data.edge_index_dict}
    else:
        held = {"adj_t": data.edge_index, **data.to_dict(), "data": data, "x0": data.x}
        held.setdefault("adj", held["adj_t"])
        held.setdefault("n_id", torch.arange(data.num_nodes))
    if isinstance(model, Sequential):
        return model(*(held[name] for name in model.signature.param_dict))
    names = inspect.signature(model.forward).parameters
    out = model(**{name: held[name] for name in names if name in held})
    by_type = isinstance(data, HeteroData) and isinstance(out, dict)
    return out[NODE_TYPE] if by_type else out


def outputs_of(out: Any) -> list[Tensor]:
    """List the matrices that a model returned, in order."""
    if isinstance(out, Tensor):
        return [out]
    return [one for part in (out.values() if isinstance(out, dict) else out) for one in outputs_of(part)]


def compiled(model: nn.Module, data: Any) -> Engine | Uncompiled:
    """Compile a model on its data."""
    store = data[NODE_TYPE] if isinstance(data, HeteroData) else data
    options = {"node_type": NODE_TYPE} if isinstance(data, HeteroData) else {}
    with warnings.catch_warnings():  # of what runs as it is written, which the table says
        warnings.simplefilter("ignore")
        return graphbraid.compile(model, data, nodes=store.train_mask, **options)


@dataclass(frozen=True, kw_only=True)
class Found:
    """What was found of one model.

    Attributes:
        status: what of it is lowered: ``lowered``, ``all message passing``, ``partly`` or ``as written``.
        part: the first module or call that runs as it is written; empty if none does.
        reason: why it does.
        error: the largest difference to PyG in float64, as a multiple of the tolerance: of outputs,
            gradients, buffers and parameters in ten steps, and of the predictions after them.
    """

    status: str
    part: str
    reason: str
    error: float

    @property
    def equal(self) -> bool:
        """Whether all numbers are PyG's."""
        return self.error <= 1


def find(listed: Listed, sizes: Sizes | None = None) -> Found:
    """Compile one model, and compare it with PyG's float64 results step by step.

    What is lowered is found with dropout, and the comparison is made without, since masks differ.
    """
    sizes = sizes or Sizes()
    data = data_of(listed.data, sizes)
    status, part, reason = _status(compiled(_made(listed, sizes, data), data))
    return Found(
        status=status,
        part=part,
        reason=re.sub(" at 0x[0-9a-f]+", "", reason),
        error=_largest_error(listed, replace(sizes, dropout=NO_DROPOUT), data),
    )


def find_on_batches(listed: Listed, sizes: Sizes | None = None) -> Found:
    """Compile one model for mini-batches, and compare the seeds' rows with PyG's in float64, step by step."""
    sizes = replace(sizes or Sizes(), dropout=NO_DROPOUT)
    data = data_of(listed.data, sizes)
    options = {listed.batched.option: listed.batched.value} if listed.batched else {}
    model, twin = (_made(listed, sizes, data, **options).double() for _ in range(2))
    engine = graphbraid.compile(model)
    optimizers = [torch.optim.Adam(m.parameters(), lr=1e-4, eps=1e-4) for m in (model, twin)]
    worst = 0.0
    for number, batch in enumerate(_batches(data)):
        trains = number < BATCHES - 1
        engine.train(trains)
        twin.train(trains)
        theirs = outputs_of(call(twin, batch))
        programs = mock.patch.object(BatchProgram, "takes_longer", return_value=False)
        with warnings.catch_warnings(), programs:  # also on batches that are small
            warnings.simplefilter("ignore")
            ours = outputs_of(engine(batch))
        store = batch[NODE_TYPE] if isinstance(batch, HeteroData) else batch
        theirs = [out[: store.batch_size] if len(out) == store.num_nodes else out for out in theirs]
        for optimizer, outs in zip(optimizers, (ours, theirs), strict=True):
            optimizer.zero_grad()
            loss: Any = sum(_loss(out) for out in outs)
            if trains:  # in evaluation, PyTorch may refuse what the model writes over
                loss.backward()
        pairs = [*zip(ours, theirs, strict=True), *_pairs_of_models(model, twin)]
        worst = max(worst, *(_error(a, b, LEAST, EXACT) for a, b in pairs))
        for optimizer in optimizers:
            optimizer.step()
    status, part, reason = _status(engine)
    return Found(status=status, part=part, reason=re.sub(" at 0x[0-9a-f]+", "", reason), error=worst)


def _batches(data: Any) -> Iterator[Any]:
    """Yield sampled mini-batches of different sizes in float64, as PyG's data."""
    wide = copy.copy(data).apply(lambda t: t.double() if t.is_floating_point() else t)
    nodes = (NODE_TYPE, data[NODE_TYPE].train_mask) if isinstance(data, HeteroData) else data.train_mask
    options = {"num_neighbors": [3, 2, 2], "batch_size": 5, "input_nodes": nodes, "seed": 1}
    with NeighborLoader(wide, **options) as loader:
        for batch in itertools.islice(loader, BATCHES):
            yield batch if isinstance(batch, HeteroData) else batch.to_data()


def _status(engine: Engine | Uncompiled | BatchEngine) -> tuple[str, str, str]:
    """Return what of a model is lowered, and the first part that is not with the reason."""
    if not isinstance(engine, Engine) and engine.why is not None:
        return WRITTEN, engine.why.part, engine.why.reason
    calls = [call for op in engine.breaks for call in op.calls]
    written = [
        call for call in calls if not isinstance(call.target, LoweredLayer) and call.target is not itself
    ]
    if not written:
        return WHOLLY, "", ""
    called = (call.target for call in written if isinstance(call.target, nn.Module))
    parts = [module for one in called for module in one.modules()]
    status = PARTLY if any(isinstance(one, MessagePassing) for one in parts) else MESSAGES
    first = next((call for call in written if call.why), written[0])
    return status, first.name, first.why or "PyTorch computes it for a layer that is lowered"


def _made(listed: Listed, sizes: Sizes, data: Any, **options: bool) -> nn.Module:
    torch.manual_seed(5)
    model = listed.make(sizes, **options)
    if any(nn.parameter.is_lazy(one) for one in model.parameters()):
        with torch.no_grad():
            call(model, data)
    return model


def _largest_error(listed: Listed, sizes: Sizes, data: Any) -> float:
    model, twin = _made(listed, sizes, data), _made(listed, sizes, data).double()
    wide = copy.copy(data).apply(lambda t: t.double() if t.is_floating_point() else t)
    mask = (data[NODE_TYPE] if isinstance(data, HeteroData) else data).train_mask
    engine = compiled(model, data)
    optimizers = [torch.optim.Adam(m.parameters(), lr=1e-4, eps=1e-4) for m in (model, twin)]
    worst = 0.0
    for _ in range(STEPS):
        ours, theirs = outputs_of(engine()), outputs_of(call(twin, wide))
        theirs = [one[mask] for one in theirs]
        for optimizer, outs in zip(optimizers, (ours, theirs), strict=True):
            optimizer.zero_grad()
            loss: Any = sum(_loss(out) for out in outs)
            loss.backward()
        pairs = [*zip(ours, theirs, strict=True), *_pairs_of_models(model, twin)]
        worst = max(worst, *(_error(a, b) for a, b in pairs))
        for optimizer in optimizers:
            optimizer.step()
    twin.eval()
    predicted = zip(outputs_of(engine.predict()), outputs_of(call(twin, wide)), strict=True)
    pairs = [*predicted, *_pairs_of_models(model, twin)]
    return max(worst, *(_error(a, b) for a, b in pairs)) / listed.tolerance


def _loss(out: Tensor) -> Tensor:
    """Return the mean squared distance to targets that depend on the shape alone."""
    draw = torch.Generator().manual_seed(9)
    target = torch.randn(out.shape, generator=draw, dtype=torch.float64)
    return (out - target.to(out.dtype)).square().mean()


def _pairs_of_models(model: nn.Module, twin: nn.Module) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the parameters, gradients and buffers of both, side by side."""
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        yield ours.detach(), theirs.detach()
        zero = torch.zeros_like(ours)
        yield (
            zero if ours.grad is None else ours.grad,
            zero.double() if theirs.grad is None else theirs.grad,
        )
    yield from zip(model.buffers(), twin.buffers(), strict=True)


def _error(ours: Tensor, theirs: Tensor, absolute: float = ABSOLUTE, relative: float = RELATIVE) -> float:
    """Return the largest difference, as a multiple of the tolerance; infinite if one is not a number."""
    if ours.shape != theirs.shape:
        return float("inf")
    if not theirs.numel():
        return 0.0
    allowed = absolute + relative * theirs.detach().double().abs()
    error = float(((ours.detach().double() - theirs.detach().double()).abs() / allowed).max())
    return error if error == error else float("inf")


def epochs(listed: Listed, sizes: Sizes, data: Any, repeats: int) -> dict[str, float]:
    """Time steps of the engine and of PyG in turns; return the medians in seconds."""
    model, theirs = _made(listed, sizes, data), _made(listed, sizes, data)
    mask = (data[NODE_TYPE] if isinstance(data, HeteroData) else data).train_mask
    engine = compiled(model, data)
    runs: dict[str, tuple[nn.Module, Callable[[], list[Tensor]]]] = {
        "graphbraid_s": (model, lambda: outputs_of(engine())),
        "pyg_s": (theirs, lambda: [one[mask] for one in outputs_of(call(theirs, data))]),
    }
    optimizers = {who: torch.optim.Adam(m.parameters(), 0.01, fused=True) for who, (m, _) in runs.items()}
    seconds: dict[str, list[float]] = {who: [] for who in runs}
    for _ in range(repeats + 1):
        for who, (_, run) in runs.items():
            started = time.perf_counter()
            optimizers[who].zero_grad()
            loss: Any = sum(out.square().mean() for out in run())
            loss.backward()
            optimizers[who].step()
            seconds[who].append(time.perf_counter() - started)
    return {who: statistics.median(taken[1:]) for who, taken in seconds.items()}
