"""Eq. 6 of the paper, the relaxed problem of sharing batches out: what the planner's bound must equal."""

import math


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
    return times.cpu_per_batch, times.dma.seconds, times.model.seconds, times.uva.seconds


def ratio_of(numerator, denominator):
    return numerator / denominator if denominator else math.inf
