"""What evaluations hold beside a run: validation on sampled batches, and exact inference."""

from __future__ import annotations

from typing import NamedTuple

from graphbraid.estimates.allocation import allocation_of, may_be_tried
from graphbraid.estimates.records import Need
from graphbraid.estimates.trial import Trial
from graphbraid.nn import told
from graphbraid.train.estimating.memory.links import link_evaluation_needs
from graphbraid.train.estimating.trials.batches import BatchSizes, batch_sizes
from graphbraid.train.estimating.trials.whole_passes import forward_bytes
from graphbraid.train.inference.infer import whole_bytes
from graphbraid.train.step.feed import make_loader
from graphbraid.train.step.links.runner import LinkRunner

_PASS = 8
"""Bytes of a pass for each byte of its batch, at most, as long as nothing was tried."""


class Exact(NamedTuple):
    """What exact inference takes."""

    memory_bytes: int
    file_bytes: int
    """Bytes of activations that go to a temporary file, beyond the budget."""
    how: str


def evaluation_needs(trial: Trial) -> tuple[tuple[Need, ...], int]:
    """Return what a sampled run's evaluations hold at their peak, and the bytes they put into files."""
    if isinstance(trial.runner, LinkRunner):
        return link_evaluation_needs(trial, trial.runner), 0
    needs, file_bytes, config = [], 0, trial.config
    exact: Exact | None = None
    if trial.test_nodes is not None or (trial.val_nodes is not None and config.eval_mode == "exact"):
        exact = exact_inference(trial)
        file_bytes = exact.file_bytes
    if trial.val_nodes is not None:
        if config.eval_mode == "exact":
            assert exact is not None
            needs.append(Need(name="validation", nbytes=exact.memory_bytes, why=exact.how))
        else:
            needs.append(_sampled_validation(trial))
    if trial.test_nodes is not None:
        assert exact is not None
        needs.append(Need(name="test", nbytes=exact.memory_bytes, why=exact.how))
    return tuple(needs), file_bytes


def validation_sizes(trial: Trial) -> BatchSizes:
    """Return the sizes of the batches of a sampled validation."""
    config, nodes = trial.config, trial.val_nodes
    assert nodes is not None, "asked for only where the run validates"
    return batch_sizes(
        trial.graph,
        config,
        nodes,
        fanouts=config.eval_fanouts or config.fanouts,
        batch_size=config.eval_batch_size,
    )


def exact_inference(trial: Trial) -> Exact:
    """Return what exact inference over all nodes takes, by the way that it will go."""
    runner, budget = trial.runner, trial.config.memory_budget_bytes
    if whole_bytes(runner) <= budget:
        return Exact(forward_bytes(trial), 0, "one pass over the whole graph, tried on a small one")
    if not runner.native:
        return Exact(budget, 0, "chunks of nodes with all their neighbours, up to the budget")
    graph = trial.graph
    layer = 4 * graph.num_nodes * runner.widest
    kept = min(2, told.layers_of(runner.model) - 1)  # the layer before and the one being made
    in_memory = sum(layer for n in range(kept) if (n + 1) * layer <= budget // 2)
    maps = (12 + 8 * runner.uses_degrees) * graph.num_nodes
    chunk = min(budget // 2, 4 * graph.num_nodes * (graph.num_features + 3 * runner.widest))
    how = "layer by layer, in chunks of nodes that fit the budget"
    return Exact(maps + chunk + in_memory, kept * layer - in_memory, how)


def _sampled_validation(trial: Trial) -> Need:
    config, nodes = trial.config, trial.val_nodes
    assert nodes is not None
    sizes = validation_sizes(trial)
    # A pass takes several times a batch's rows: where that may not fit, it is tried on fewer seeds.
    fits = may_be_tried((_PASS + config.workers + 4) * sizes.nbytes)
    size = config.eval_batch_size if fits else -(-config.eval_batch_size // 16)
    options = {"fanouts": config.eval_fanouts or config.fanouts, "batch_size": size}
    with make_loader(trial.runner, config.updated(plan=None, **options), nodes) as loader:
        ahead, batch = loader.ahead, next(loader.batches(0, 0, 1))
        with trial.evaluating():
            forward = allocation_of(lambda: trial.runner.on_batch(batch), trial.device).peak
    if size < config.eval_batch_size:
        forward = int(forward * max(1.0, sizes.nodes / max(batch.num_nodes, 1)))
    held = sizes.in_flight(config.workers, ahead)
    return Need(
        name="validation", nbytes=held + forward, why=f"{min(ahead + 1, sizes.num_batches)} batches, a pass"
    )
