"""The memory of a run on sampled mini-batches."""

from __future__ import annotations

from dataclasses import dataclass

from graphbraid.features.budgets.sizing import list_bytes
from graphbraid.files import mapped
from graphbraid.files.writing import format_bytes
from graphbraid.graph import Graph
from graphbraid.graph.scaled_features import stored_rows
from graphbraid.loader import BatchLoader
from graphbraid.machine.hardware import free_memory_bytes
from graphbraid.train.estimating.memory.inference import evaluation_needs
from graphbraid.train.estimating.memory.links import after_steps, link_batch_sizes, link_needs
from graphbraid.train.estimating.memory.needs import Need, Needs
from graphbraid.train.estimating.trials.allocation import Allocation, allocation_of
from graphbraid.train.estimating.trials.baseline import baseline_bytes
from graphbraid.train.estimating.trials.batches import BatchSizes, batch_sizes
from graphbraid.train.estimating.trials.trial import Trial, parameter_bytes
from graphbraid.train.step.feed import make_loader
from graphbraid.train.step.links.runner import LinkRunner

_FEWER = 16
"""Part of a batch's seeds on which a step is tried first."""
_MOST_TRIED = 0.5
"""Largest share of the free memory that a step may take to be tried in full."""
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


def sampled_needs(trial: Trial, *, ahead: int | None = None) -> SampledNeeds:
    """Count what a run on mini-batches holds; a training step on a real batch is tried on the copies.

    Args:
        trial: the run.
        ahead: batches prepared ahead. If None, as the loader of ``workers`` threads does.
    """
    config, graph, runner = trial.config.updated(plan=None), trial.graph, trial.runner
    if isinstance(runner, LinkRunner):
        sizes = link_batch_sizes(graph, config, trial.nodes, runner)
    else:
        sizes = batch_sizes(graph, config, trial.nodes)
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
            baseline_need("sampled", trial),
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


def scaled_step_bytes(trial: Trial, num_nodes: int) -> int:
    """Return what a step on a batch of so many nodes allocates, by that of a batch of few seeds."""
    config = trial.config
    few = config.updated(mode="sampled", plan=None, batch_size=max(1, config.batch_size // _FEWER))
    with make_loader(trial.runner, few, trial.nodes) as loader:
        tried, nodes = _tried(trial, loader)
    return int(tried.peak * max(1.0, num_nodes / max(nodes, 1)))


def _step(trial: Trial, loader: BatchLoader, sizes: BatchSizes) -> Allocation:
    """Return what a step allocates, tried on a real batch where a smaller one says that it will fit."""
    scaled = scaled_step_bytes(trial, sizes.nodes)
    if not may_be_tried(scaled):
        return Allocation(peak=scaled, kept=0)
    return _tried(trial, loader)[0]


def may_be_tried(step_bytes: int) -> bool:
    """Return whether a step that allocates so much leaves enough of the free memory to be made."""
    free = free_memory_bytes()
    return free is None or step_bytes <= _MOST_TRIED * free


def _tried(trial: Trial, loader: BatchLoader) -> tuple[Allocation, int]:
    """Return what a step allocates, once the optimizer's state is made, and its nodes."""
    batches = iter(loader.batches(0, 0, min(2, len(loader))))
    batch = next(batches)
    trial.step(batch)
    batch = next(batches, batch)
    trial.forget_gradients()
    return allocation_of(lambda: trial.step(batch), trial.device), batch.num_nodes
