"""The bound per batch in closed form, and Eq. 6 of the paper: they check each other and the planner's."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Share:
    """A share of the batches for the CPU's route, and what it costs at best."""

    share: float
    """Share of route 0, in [0, 1]."""
    seconds: float
    """Seconds per batch, when no resource ever waits for another."""
    limit: str
    """The resource that needs this long."""


def cpu_per_batch(times):
    """Seconds between two batches from all workers together."""
    return times.cpu.seconds / times.workers


def loads(times, share):
    """Seconds each resource works per batch when ``share`` of them take route 0 (design: three resources)."""
    uva = (1.0 - share) * uva_of(times)
    return {
        "cpu": share * cpu_per_batch(times),
        "link": share * times.dma.seconds + uva,
        "device": times.model.seconds + uva,
    }


def best_share(times):
    """The share that minimises the most loaded resource, ignoring start and end of the epoch.

    Each load is a line over the share, so their maximum is convex and least at an end or where two lines
    cross.
    """
    if times.uva is None:
        candidates = [1.0]
    else:
        cpu, dma, model, uva = seconds_of(times)
        crossings = [
            ratio_of(uva, cpu - dma + uva),  # cpu meets link
            ratio_of(model + uva, cpu + uva),  # cpu meets device
            ratio_of(model, dma),  # link meets device
        ]
        candidates = [0.0, 1.0, *(c for c in crossings if 0.0 < c < 1.0)]

    def cost(share):
        return max(loads(times, share).values())

    share = min(candidates, key=cost)
    load = loads(times, share)
    return Share(share=share, seconds=cost(share), limit=max(load, key=load.get))


def relaxed_ratio(times):
    """The paper's first ratio x, for 1 CPU batch : x GPU batches; infinite where the CPU should have none.

    Minimises Eq. 6 of Zhang et al., "Efficient GNN Training on Giant Graphs with Collective Batching and
    Scheduling",
    ``x·T_uva/(1+x) + max(T_dma/(1+x), T_model, (T_cpu - x·T_uva)/(1+x))`` (the later print has a product
    where the earlier has the comma). Each piece is monotone in x, so the least value is at 0, at infinity or
    at a crossing of two pieces of the maximum.
    """
    if times.uva is None:
        return 0.0
    cpu, dma, model, uva = seconds_of(times)
    crossings = [
        ratio_of(dma, model) - 1.0,
        ratio_of(cpu - dma, uva),
        ratio_of(cpu - model, model + uva),
    ]
    candidates = [0.0, *(x for x in crossings if math.isfinite(x) and x > 0.0), math.inf]
    return min(candidates, key=lambda x: relaxed_seconds(times, x))


def relaxed_seconds(times, ratio):
    """Eq. 6 per batch at a ratio x, which may be infinite."""
    cpu, dma, model, uva = seconds_of(times)
    if math.isinf(ratio):
        return uva + max(0.0, model, -uva)
    whole = 1.0 + ratio
    return ratio * uva / whole + max(dma / whole, model, (cpu - ratio * uva) / whole)


def seconds_of(times):
    return cpu_per_batch(times), times.dma.seconds, times.model.seconds, uva_of(times)


def ratio_of(numerator, denominator):
    return numerator / denominator if denominator else math.inf


def uva_of(times):
    return 0.0 if times.uva is None else times.uva.seconds
