"""The memory of a rank: that of a run alone, with its share of the batches and the sums of gradients."""

from __future__ import annotations

from dataclasses import replace

from graphbraid.distributed.ranks.gradients import bytes_of, in_buckets
from graphbraid.estimates.allocation import allocation_of
from graphbraid.estimates.memory import SampledNeeds
from graphbraid.estimates.records import Need, Needs
from graphbraid.estimates.trial import Trial
from graphbraid.loader.batches.batch_loader import BatchLoader
from graphbraid.train.scaling.sizes import ShareSizes, share_at


def rank_needs(trial: Trial, loader: BatchLoader, alone: SampledNeeds, sizes: ShareSizes) -> Needs:
    """Count what a rank holds: graph and features as a whole, and batches of its seeds alone.

    Evaluations are counted as one rank's, which holds at least as much.

    Args:
        trial: the run, on whose copies a step is tried.
        loader: loader of the whole batches.
        alone: what the run needs with one rank.
        sizes: the shares for the number of ranks.
    """
    if sizes.num_ranks == 1:
        return alone.host
    most = sizes.most
    seeds = -(-alone.sizes.seeds // sizes.num_ranks)
    shares = replace(alone.sizes, nodes=most.nodes, edges=most.edges, seeds=seeds)
    ahead = min(alone.ahead + 1, shares.num_batches)
    batches = Need(
        name="batches",
        nbytes=shares.in_flight(trial.config.workers, alone.ahead),
        why=f"{ahead} shares of up to {shares.nodes:,} nodes and {shares.edges:,} edges",
    )
    sums = Need(
        name="sums",
        nbytes=sum(map(bytes_of, in_buckets(trial.runner.model.parameters()))),
        why="gradients on their way",
    )
    step = Need(name="step", nbytes=_step_bytes(trial, loader, sizes), why="on the largest share, tried")
    return Needs(
        held=(*(batches if need.name == "batches" else need for need in alone.host.held), sums),
        phases=tuple(step if need.name == "step" else need for need in alone.host.phases),
    )


def _step_bytes(trial: Trial, loader: BatchLoader, sizes: ShareSizes) -> int:
    """Return what a step on the largest share of the first batch allocates."""
    batch = share_at(loader, sizes.steps[0], sizes.heaviest(0), sizes.num_ranks)
    trial.step(batch)  # the optimizer's state is made
    trial.forget_gradients()
    return allocation_of(lambda: trial.step(batch), trial.device).peak


__all__ = ["rank_needs"]
