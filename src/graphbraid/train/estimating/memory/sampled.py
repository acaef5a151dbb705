"""The memory of a run on sampled mini-batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn
from torch.nn.parameter import UninitializedParameter

from graphbraid.estimates.allocation import Allocation, allocation_of, baseline_bytes, may_be_tried
from graphbraid.estimates.records import Need, Needs
from graphbraid.estimates.trial import Trial, parameter_bytes
from graphbraid.features.budgets.sizing import list_bytes
from graphbraid.files import mapped
from graphbraid.files.writing import format_bytes
from graphbraid.graph import Graph
from graphbraid.graph.scaled_features import stored_rows
from graphbraid.loader import BatchLoader
from graphbraid.machine.hardware import free_memory_bytes
from graphbraid.train.config import TrainConfig
from graphbraid.train.estimating.memory.inference import evaluation_needs
from graphbraid.train.estimating.memory.links import after_steps, link_batch_sizes, link_needs
from graphbraid.train.estimating.trials.batches import BatchSizes, batch_sizes
from graphbraid.train.step.feed import make_loader
from graphbraid.train.step.links.runner import LinkRunner

_FEWER = 16
"""Part of a batch's seeds on which a step is tried first."""
_ROWS_OF_STEP = 4
"""Bytes that a step is taken to allocate for each byte of its batch where none can be tried."""
DEVICE_BATCHES = 2
"""Batches that a device holds: the one it trains on, and the next."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SampledNeeds:
    """What a run on mini-batches needs, before anything is said about tiers."""

    host: Needs
    device: Needs
    """What it needs on a device that holds the model and some batches, whether or not there is one."""
    sizes: BatchSizes
    ahead: int
    """Batches prepared ahead."""
    file_bytes: int
    """Bytes of files that are written: checkpoints, activations beyond exact inference's budget."""


def sampled_needs(trial: Trial, *, ahead: int | None = None, software: bool = True) -> SampledNeeds:
    """Count what a run on mini-batches holds; a training step on a real batch is tried on the copies.

    Args:
        trial: the run.
        ahead: batches prepared ahead. If None, as the loader of ``workers`` threads does.
        software: whether to count a run without data, for which a process may be started.
    """
    config, graph, runner = trial.config.updated(plan=None), trial.graph, trial.runner
    sizes = _sizes(trial)
    with make_loader(runner, config, trial.nodes) as loader:
        ahead = ahead or loader.ahead
        degrees = 0 if not runner.uses_degrees else 8 * graph.num_nodes
        step = _step(trial, loader, sizes)
    evaluation, file_bytes = evaluation_needs(trial)
    if isinstance(runner, LinkRunner):
        evaluation = tuple(after_steps(need, step.heap) for need in evaluation)
    links, set_up = link_needs(trial, in_flight=sizes.in_flight(config.workers, ahead))
    weights, state = parameter_bytes(runner.model), trial.state_bytes()
    best = weights if config.restore_best and config.out_dir is None and trial.val_nodes is not None else 0
    flying = min(ahead + 1, sizes.num_batches)
    learned = (
        Need(name="model", nbytes=weights + best, why="parameters" + ", and the best epoch's" * bool(best)),
        Need(name="optimizer", nbytes=state, why="its state, after one step"),
    )
    training = Need(name="step", nbytes=step.peak, why="activations and gradients of a step, tried")
    on_host = trial.device.type == "cpu"
    host = Needs(
        held=(
            *((baseline_need("sampled", trial),) if software else ()),
            *graph_needs(graph),
            *links,
            *(learned if on_host else ()),
            Need(name="degrees", nbytes=degrees, why="of all nodes, by which the model normalises"),
            Need(
                name="batches",
                nbytes=sizes.in_flight(config.workers, ahead),
                why=f"{flying} of up to {sizes.nodes:,} nodes, {sizes.edges:,} edges and "
                f"{format_bytes(sizes.feature_bytes)} of features",
            ),
        ),
        phases=(*set_up, *((training,) if on_host else ()), *evaluation),
    )
    device_batches = Need(
        name="batches", nbytes=DEVICE_BATCHES * sizes.nbytes, why=f"{DEVICE_BATCHES} at a time"
    )
    checkpoints = 0 if config.out_dir is None else 2 * (weights + state)
    return SampledNeeds(
        host=host,
        device=Needs(held=(*learned, device_batches), phases=(training,)),
        sizes=sizes,
        ahead=ahead,
        file_bytes=file_bytes + checkpoints,
    )


def baseline_need(mode: str, trial: Trial) -> Need:
    """Return the need of a run without data."""
    nbytes = baseline_bytes(mode, trial.device.type)
    return Need(name="software", nbytes=nbytes, why="interpreter, libraries and threads, measured")


def graph_needs(graph: Graph) -> tuple[Need, Need]:
    """Return the needs of topology, labels and splits, and of the features."""
    x = graph.x
    x_bytes = 0 if x is None else x.nbytes
    indices = graph.csc.indices
    of_file = mapped.find(indices.data_ptr(), indices.nbytes) is not None
    return (
        Need(name="graph", nbytes=graph.nbytes - x_bytes, why="edges, labels and splits", mapped=of_file),
        Need(
            name="features",
            nbytes=x_bytes,
            why=f"{graph.num_nodes:,} rows",
            mapped=are_mapped(graph),
        ),
    )


def bytes_beside_graph(needs: Needs, graph: Graph) -> int:
    """Return the bytes of a run beside the features, and beside the adjacency lists that a file holds."""
    return needs.nbytes - needs.bytes_of("features") - list_bytes(graph)


def are_mapped(graph: Graph) -> bool:
    """Return whether a graph's features are dense and mapped from a file, as an open store's are."""
    x = stored_rows(graph.x)
    return x is not None and mapped.find(x.data_ptr(), x.nbytes) is not None


def may_try_steps(trial: Trial) -> bool:
    """Return whether the free memory lets steps be tried, with the batches that are prepared meanwhile."""
    free = free_memory_bytes()
    if free is None or 2 * most_bytes(trial.runner.model, trial.graph, trial.config) < free:
        return True
    sizes = _sizes(trial)
    with make_loader(trial.runner, trial.config.updated(plan=None), trial.nodes) as loader:
        return _scaled(trial, loader, sizes)[1]


def most_bytes(model: nn.Module, graph: Graph, config: TrainConfig) -> int:
    """Return a bound on what a run on mini-batches holds beside graph and features, far from tight."""
    width, of_parameters = width_and_bytes(model, graph)
    nodes, edges = graph.num_nodes, graph.num_edges * max(1, len(config.fanouts))
    if config.task != "link":
        reached = [
            _reached(graph, config.batch_size, config.fanouts),
            _reached(graph, config.eval_batch_size, config.eval_fanouts or config.fanouts),
        ]
        nodes, edges = max(count for count, _ in reached), max(count for _, count in reached)
    of_all = 16 * width * (graph.num_nodes + graph.num_edges)
    exact = min(config.memory_budget_bytes, of_all)
    return of_parameters + 4 * width * ((2 * config.workers + 16) * nodes + 4 * edges) + exact


def width_and_bytes(model: nn.Module, graph: Graph) -> tuple[int, int]:
    """Return bounds on the numbers that a pass makes of a node, and on what learning takes for parameters."""
    parameters = [p for p in model.parameters() if not isinstance(p, UninitializedParameter)]
    width = graph.num_features + sum(max(p.shape, default=1) for p in parameters)
    return width, 4 * sum(p.numel() * p.element_size() for p in parameters)


def _reached(graph: Graph, seeds: int, fanouts: Sequence[int]) -> tuple[int, int]:
    """Return bounds on the nodes and the edges of a batch."""
    nodes = last = min(seeds, graph.num_nodes)
    edges = 0
    for fanout in fanouts:
        drawn = graph.num_edges if fanout < 0 else last * fanout
        last = min(drawn, graph.num_nodes)
        nodes, edges = min(nodes + last, graph.num_nodes), edges + drawn
    return nodes, edges


def _sizes(trial: Trial) -> BatchSizes:
    config, runner = trial.config.updated(plan=None), trial.runner
    if isinstance(runner, LinkRunner):
        return link_batch_sizes(trial.graph, config, trial.nodes, runner)
    return batch_sizes(trial.graph, config, trial.nodes)


def scaled_step_bytes(trial: Trial, num_nodes: int) -> int:
    """Return what a step on a batch of so many nodes allocates, by that of a batch of few seeds."""
    config = trial.config
    few = config.updated(mode="sampled", plan=None, batch_size=max(1, config.batch_size // _FEWER))
    with make_loader(trial.runner, few, trial.nodes) as loader:
        tried, nodes = _tried(trial, loader)
    return int(tried.peak * max(1.0, num_nodes / max(nodes, 1)))


def _step(trial: Trial, loader: BatchLoader, sizes: BatchSizes) -> Allocation:
    """Return what a step allocates, tried on a real batch where a smaller one says that it will fit."""
    scaled, fits = _scaled(trial, loader, sizes)
    return _tried(trial, loader)[0] if fits else Allocation(peak=scaled, kept=0)


def _scaled(trial: Trial, loader: BatchLoader, sizes: BatchSizes) -> tuple[int, bool]:
    """Return what a step is expected to allocate, and whether it can be tried beside batches under way."""
    flying = sizes.in_flight(trial.config.workers, loader.ahead)
    if not may_be_tried(flying // _FEWER):  # not even a small step can be tried
        return _ROWS_OF_STEP * sizes.nbytes, False
    scaled = scaled_step_bytes(trial, sizes.nodes)
    return scaled, may_be_tried(flying + scaled)


def _tried(trial: Trial, loader: BatchLoader) -> tuple[Allocation, int]:
    """Return what a step allocates, once the optimizer's state is made, and its nodes."""
    batches = iter(loader.batches(0, 0, min(2, len(loader))))
    batch = next(batches)
    trial.step(batch)
    batch = next(batches, batch)
    trial.forget_gradients()
    return allocation_of(lambda: trial.step(batch), trial.device), batch.num_nodes
