"""Modes: evaluation, parts that rest, frozen parameters."""

import torch_geometric.nn as pyg
from tests.fullgraph.matrix.case import BASES, GAT, GCN, SAGE, Case, layer
from tests.fullgraph.matrix.cases_forwards import by_mode_with_a_skip
from tests.fullgraph.matrix.models import HIDDEN, Stack, calls, frozen_norm
from torch import nn


def in_eval(make):
    """A model in evaluation, whose engine must be too."""
    return lambda: make().eval()


def part_in_eval(make):
    """A model that trains, but for a dropout."""
    model = make()
    model.between[1].eval()
    return model


def _dropping():
    return nn.Sequential(nn.BatchNorm1d(HIDDEN), nn.Dropout(0.5), nn.ReLU())


MODES = [
    *(
        Case("modes", f"evaluation, {base}", in_eval(lambda b=base: Stack(BASES[b], _dropping())))
        for base in BASES
    ),
    *(
        Case(
            "modes",
            f"a dropout that rests, {base}",
            lambda b=base: part_in_eval(lambda: Stack(BASES[b], _dropping())),
        )
        for base in BASES
    ),
    *(Case("modes", f"a frozen BatchNorm1d, {base}", lambda b=base: frozen_norm(BASES[b])) for base in BASES),
    Case("modes", "evaluation, attention dropout", in_eval(lambda: Stack(layer(pyg.GATConv, dropout=0.6)))),
    Case("modes", "evaluation, by mode", in_eval(lambda: calls(by_mode_with_a_skip)(GCN))),
    Case("modes", "frozen parameters", lambda: _frozen(Stack(GCN, nn.BatchNorm1d(HIDDEN)))),
    Case("modes", "frozen parameters, GAT", lambda: _frozen(Stack(GAT, nn.LayerNorm(HIDDEN)))),
    Case("modes", "frozen parameters, GELU", lambda: _frozen(Stack(SAGE, nn.GELU()))),
]


def _frozen(model):
    for parameter in [*model.first.parameters(), *model.between.parameters()]:
        parameter.requires_grad_(False)
    return model
