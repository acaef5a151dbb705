"""Exact inference: outputs computed from all neighbours of every node, within a memory budget.

It is done in the first of three ways that fits the budget:

- *whole*: one pass over the whole graph;
- *level by level* (any model that is lowered, wholly or in parts): each layer in chunks of nodes whose
  in-edges and source rows fit, for the nodes that the layers behind read
  (:mod:`graphbraid.fullgraph.batches.layer_wise`);
- *expansion* (any other module): mini-batches with all neighbours of every hop and as many seeds as fit. One
  hop more than the model's depth is drawn, so that layers that use a source's own in-edges (GCN's
  normalisation) see all of them. The first batch's outputs are compared with those of some of its seeds
  beside other nodes, with one hop more. If they differ, the model reads more than these neighbours, and is
  refused. Few nodes are tried, so a largest entry that all of them share is not noticed.

Ranks that hold only their parts of a graph do the second or the third together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from graphbraid.distributed import Communicator
from graphbraid.errors import ResourceError
from graphbraid.files.writing import format_bytes
from graphbraid.graph import ScaledFeatures, SparseFeatures
from graphbraid.nn import module_traits
from graphbraid.nn.module_traits import in_mode
from graphbraid.ops.gather import gather_features, gather_rows
from graphbraid.sampling.minibatch.mini_batch import MiniBatch
from graphbraid.sampling.source import rows_on_device
from graphbraid.train.config import TrainConfig
from graphbraid.train.step.reach import agree, depth
from graphbraid.train.step.runner import ModelRunner, divided_graph
from graphbraid.train.step.step import make_loader

if TYPE_CHECKING:
    from graphbraid.fullgraph.batches.layer_wise import LayerWise
    from graphbraid.fullgraph.program import NotLoweredError
    from graphbraid.loader import BatchLoader

_TRIED = 8
"""One in eight nodes of the first batch is computed again, beside about eight others."""

Chunk = tuple[int, Tensor]
"""Position of a chunk's first node in the requested nodes, and the chunk's ``(n, width)`` float32 outputs."""


def exact_chunks(runner: ModelRunner, config: TrainConfig, nodes: Tensor) -> Iterator[Chunk]:
    """Yield the outputs for ``nodes`` in chunks, in order, in evaluation mode and without gradients.

    Raises:
        ResourceError: the budget has no room for a single node, or the disk is full.
    """
    with in_mode(runner.model, training=False):
        for start, outputs in _chunks(runner, config, nodes):
            runner.check()
            yield start, outputs.float()


def _chunks(runner: ModelRunner, config: TrainConfig, nodes: Tensor) -> Iterator[Chunk]:
    if runner.learned is not None:
        yield from _by_ranks(runner, config, nodes, runner.learned.comm)
        return
    if (divided := divided_graph(runner.graph)) is not None:
        yield from _on_parts(runner, config, nodes, divided.shards.ranks)
        return
    budget, is_full = config.memory_budget_bytes, config.mode == "full"
    if is_full and runner.rows is not None and runner.engine is None:
        is_full = False  # before a run, whose engine streams the features, they are read by layers
    if is_full or whole_bytes(runner) <= budget:
        with torch.no_grad():
            outputs = runner.on_graph()
        if not is_full:
            runner.forget_graph()
        yield 0, outputs.index_select(0, nodes.to(outputs.device)).cpu()
    elif isinstance(walk := by_level(runner, config), Exception):
        yield from _expansion(runner, config, nodes, why=walk)
    else:
        yield from walk.run(nodes)


def by_level(runner: ModelRunner, config: TrainConfig) -> LayerWise | NotLoweredError:
    """Return the engine that runs a model in evaluation mode level by level, or the reason why there is none.

    Raises:
        ResourceError: an operation makes each row of all rows, so that only one pass over the graph is exact.
    """
    # Here: an evaluation whose graph fits the budget needs none of these.
    from graphbraid.fullgraph.batches.fusing import couples_rows
    from graphbraid.fullgraph.batches.layer_wise import LayerWise, at_narrower_side, why_not_by_level
    from graphbraid.fullgraph.batches.levels_on_parts import LevelsOnParts
    from graphbraid.fullgraph.lowering.passes import merged_epilogues
    from graphbraid.fullgraph.program import NotLoweredError

    program = runner.program_by_level()
    if isinstance(program, NotLoweredError):
        return program
    divided = divided_graph(runner.graph)
    if not (why := why_not_by_level(program, runner.device)):
        folder = config.out_dir
        if divided is not None and folder is not None and not folder.is_dir():
            folder = None  # it is rank 0's, and on another machine
        lowered, features = at_narrower_side(merged_epilogues(program)), partial(_feature_rows, runner)
        budget = config.memory_budget_bytes
        options: dict[str, Any] = {
            "device": runner.device,
            "budget": budget,
            "folder": folder,
            "check": runner.check,
        }
        if divided is not None:
            return LevelsOnParts(lowered, divided, features, **options)
        return LayerWise(lowered, runner.graph, features, **options)
    if divided is None and any(map(couples_rows, program.ops)):
        raise ResourceError(
            f"exact inference needs one pass over the whole graph, since {why}; it needs "
            f"{format_bytes(whole_bytes(runner))} and memory_budget_bytes allows "
            f"{format_bytes(config.memory_budget_bytes)}. Raise it, or use mode='sampled'."
        )
    return NotLoweredError("forward", why)


def whole_bytes(runner: ModelRunner) -> int:
    """Estimate the bytes that one pass over the whole graph needs in addition to graph and features."""
    graph, widest = runner.graph, runner.widest
    rows = 3 * graph.num_nodes * widest * 4  # a layer's input, its transformed rows and its output
    if runner.rows is not None:  # they do not all lie in memory, where one pass would bring them
        rows += runner.float32_bytes(lambda _: True)
    rows += runner.widened_bytes  # a copy, for the pass
    if runner.native:
        return rows
    made_dense = runner.float32_bytes(lambda x: isinstance(x, SparseFeatures))
    return rows + graph.num_edges * _edge_bytes(runner) + made_dense


def _edge_bytes(runner: ModelRunner) -> int:
    """Estimate the bytes that a layer needs for an edge: what the model says, if it is called with blocks.

    Any other has ``edge_index``, and a message per edge with its index or weight.
    """
    edge_bytes = module_traits.edge_bytes(runner.model)
    if runner.by_blocks and edge_bytes is not None:
        return edge_bytes
    return 16 + 2 * runner.widest * 4 + 4 * runner.graph.num_edge_features


def _on_parts(
    runner: ModelRunner, config: TrainConfig, nodes: Tensor, ranks: Communicator
) -> Iterator[Chunk]:
    """Yield outputs level by level, or by batches where the model cannot go level by level on all ranks."""
    walk = by_level(runner, config)
    goes = torch.tensor([int(not isinstance(walk, Exception))])
    if isinstance(walk, Exception) or not int(ranks.all_reduce(goes, "min").wait()):
        yield from _by_ranks(runner, config, nodes, ranks)
    else:
        yield from walk.run(nodes)


def _by_ranks(
    runner: ModelRunner, config: TrainConfig, nodes: Tensor, ranks: Communicator
) -> Iterator[Chunk]:
    """Yield outputs from batches with all neighbours, which all ranks draw together.

    All ranks call it together, each with nodes of its own, and make the same calls of loaders. A rank without
    nodes takes part with the first node, and its output is not used.
    """
    from graphbraid.distributed.shards.pipeline import UNDER_WAY  # here: few runs have parts

    hops = (module_traits.num_layers(runner.model) if runner.by_blocks else None) or (
        depth(runner.model, config) + 1
    )
    known = runner.few_nodes(runner.graph.num_nodes)
    seeds = nodes if nodes.numel() else known[:1]

    def loader(part: Tensor, batch_size: int, hops: int) -> BatchLoader:
        drawn: dict[str, Any] = {"num_neighbors": [-1] * hops, "shuffle": False, "replace": False}
        layout = "blocks" if runner.by_blocks else "subgraph"
        return make_loader(runner, config, part, batch_size=batch_size, layout=layout, **drawn)

    first, outputs, needed = seeds[:_TRIED], list[Tensor](), 0
    # Once more, beside others and with one hop more: a model that reads more than its hops shows by it.
    others = known[:: known.numel() // _TRIED + 1]
    beside = torch.cat((first, others[~torch.isin(others, first)]))
    for part, more in ((first, 0), (beside, 0 if runner.by_blocks else 1)):
        with loader(part, part.numel(), hops + more) as drawn, torch.no_grad():
            for batch in drawn.batches(0):
                needed = needed or _batch_bytes(runner, batch) + UNDER_WAY * prepared_bytes(runner, batch)
                outputs.append(runner.on_batch(batch)[: first.numel()])
    fits = first.numel() * config.memory_budget_bytes // max(1, needed)
    own = min(max(fits, 1), config.eval_batch_size) if agree(*outputs) else 0
    if not (size := int(ranks.all_reduce(torch.tensor([own]), "min").wait())):
        raise ResourceError(
            "exact inference needs one pass over the whole graph, since outputs depend on more than the "
            f"nodes within {hops} hops; if the model has more hops, set hops. No rank holds the whole graph."
        )
    with loader(seeds, size, hops) as drawn:
        for start, batch in enumerate(drawn.batches(0)):
            with torch.no_grad():
                rows = runner.on_batch(batch).cpu()
            if nodes.numel():
                yield start * size, rows


def _expansion(
    runner: ModelRunner, config: TrainConfig, nodes: Tensor, why: NotLoweredError
) -> Iterator[Chunk]:
    from graphbraid.loader import LoaderSettings

    num_layers = module_traits.num_layers(runner.model) if runner.by_blocks else None
    hops = num_layers or depth(runner.model, config) + 1
    sizes = (
        f"The pass needs {format_bytes(whole_bytes(runner))}; memory_budget_bytes allows "
        f"{format_bytes(config.memory_budget_bytes)}. Raise it, or use mode='sampled'."
    )
    if any(getattr(module, "flow", None) == "target_to_source" for module in runner.model.modules()):
        raise ResourceError(
            "exact inference needs one pass over the whole graph, since flow='target_to_source' reads "
            f"out-edges. {sizes}"
        )

    def batch_of(part: Tensor, hops: int) -> MiniBatch:
        settings = LoaderSettings(
            num_neighbors=[-1] * hops, batch_size=part.numel(), input_nodes=part, return_edge_id=False
        )
        with runner.loader(settings) as loader:
            return next(loader.batches(0))

    size, start = 64, 0
    while start < nodes.numel():
        part = nodes[start : start + size]
        batch = batch_of(part, hops)
        needed = _batch_bytes(runner, batch)
        if needed > config.memory_budget_bytes:
            if part.numel() == 1:
                raise ResourceError(
                    f"exact inference for node {int(part[0])} needs {format_bytes(needed)} for the "
                    f"{batch.num_nodes} nodes within {hops} hops; memory_budget_bytes allows "
                    f"{format_bytes(config.memory_budget_bytes)}. Raise it, or use mode='sampled'. It is not "
                    f"computed layer by layer, which takes little memory, because of {why}."
                )
            size = max(1, part.numel() // 2)
            continue
        with torch.no_grad():
            outputs = runner.on_batch(batch)
            if start == 0 and not _stand_alone(
                runner, config, batch_of, nodes=nodes, outputs=outputs, hops=hops
            ):
                raise ResourceError(
                    "exact inference needs one pass over the whole graph, since outputs depend on more than "
                    f"the nodes within {hops} hops; if the model has more hops, set hops. {sizes} It is not "
                    f"computed layer by layer because of {why}."
                )
        yield start, outputs.cpu()
        start += part.numel()
        if needed < config.memory_budget_bytes // 4:
            size *= 2


def _stand_alone(
    runner: ModelRunner,
    config: TrainConfig,
    batch_of: Callable[[Tensor, int], MiniBatch],
    *,
    nodes: Tensor,
    outputs: Tensor,
    hops: int,
) -> bool:
    """Return whether some of the first nodes have the same outputs beside other nodes, with one hop more.

    A model whose outputs differ from run to run, as by random numbers, passes: there is nothing to compare.
    """
    count = outputs.shape[0]
    few = torch.arange(count).flip(0)[::_TRIED]
    others = nodes[count:]
    seeds = torch.cat((nodes[few], others[:: others.numel() // _TRIED + 1]))
    # A model that takes blocks needs one for each layer, and reads nothing beside them.
    batch = batch_of(seeds, hops + (not runner.by_blocks))
    if _batch_bytes(runner, batch) > config.memory_budget_bytes:
        batch = batch_of(nodes[few], hops)
    if agree(outputs[few.to(outputs.device)], runner.on_batch(batch)[: few.numel()]):
        return True
    return not agree(outputs, runner.on_batch(batch_of(nodes[:count], hops)))


def _batch_bytes(runner: ModelRunner, batch: MiniBatch) -> int:
    activations = batch.num_nodes * 3 * runner.widest * 4
    return runner.rows_bytes(batch) + activations + batch.num_edges * _edge_bytes(runner)


def prepared_bytes(runner: ModelRunner, batch: MiniBatch) -> int:
    """Estimate the bytes of a batch that waits for its step: its rows, ids and edges, and what edges have."""
    attrs = [runner.graph.edges_of(one).edge_attr for one in runner.graph.edge_types if runner.graph.is_typed]
    of_edges = max([runner.graph.num_edge_features, *(x.shape[1] for x in attrs if x is not None)])
    return runner.rows_bytes(batch) + 8 * batch.num_nodes + (16 + 4 * of_edges) * batch.num_edges


def _feature_rows(runner: ModelRunner, node_type: int, nodes: Tensor) -> Tensor | SparseFeatures:
    """Return the float32 feature rows of ``nodes``, dense or sparse as in the graph."""
    graph = runner.graph
    if (divided := divided_graph(graph)) is not None:
        of_type = divided.shards.by_type[node_type]
        return of_type.in_float32(of_type.own_rows(nodes), nodes)
    if runner.rows is not None:
        return rows_on_device(runner.rows, nodes.to(runner.device)).float()
    x = graph.nodes_of(graph.node_types[node_type]).x
    if isinstance(x, SparseFeatures):
        return x.rows(nodes).to(torch.float32)
    assert x is not None
    if isinstance(x, ScaledFeatures):
        return gather_features(x, nodes, trusted=True)
    return gather_rows(x, nodes, dtype=torch.float32, trusted=True)
