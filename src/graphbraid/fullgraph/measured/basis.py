"""The basis of a lowering: rates and trials, measured on this machine or given."""

from __future__ import annotations

from functools import partial

from graphbraid.fullgraph.lowering.costs import Basis, TriedSeconds
from graphbraid.fullgraph.lowering.options import CompileOptions
from graphbraid.fullgraph.measured.kept_rates import MeasuredRates, measured_rates
from graphbraid.fullgraph.measured.trials import Trials, kept_trials
from graphbraid.graph import Graph


def basis_for(options: CompileOptions) -> Basis:
    """Return the rates and trials that the options give, or else this machine's."""
    given = options.rates if options.evidence is None else options.evidence.rates
    measured = measured_rates(options.device) if given is None else MeasuredRates(rates=given)
    return Basis(rates=measured.rates, doubt=measured.doubt, trials=partial(_trials, options, measured))


def _trials(
    options: CompileOptions, measured: MeasuredRates, graph: Graph, density: float
) -> TriedSeconds | None:
    """Return the trials that decide between close choices; None if rates alone decide."""
    if options.evidence is not None:
        return Trials(graph, density, measured.rates, options.evidence.trials, may_try=False)
    if options.rates is not None:
        return None
    return kept_trials(graph, density, measured.rates, options.device, believed=not measured.doubt)


__all__ = ["basis_for"]
