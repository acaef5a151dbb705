"""Evidence: an engine given another's measurements makes the same choices, to the same bits."""

import dataclasses
import json

import pytest
import torch
from tests.fullgraph.graphs import CHANNELS, CLASSES, NUM_NODES, make_graph

import graphbraid
from graphbraid import nn as gnn
from graphbraid.errors import DataError
from graphbraid.fullgraph import Evidence
from graphbraid.fullgraph.rates import MeasuredRates
from graphbraid.machine.hardware import Rates

DENSITY = 0.4


def rates_by_which_sparse_takes(times):
    """Rates by which the sparse path takes so many times what the dense one does."""
    dense = Rates().multiply_seconds(NUM_NODES, CHANNELS, 8)
    return dataclasses.replace(Rates(), sparse_values=NUM_NODES * CHANNELS * DENSITY / (times * dense))


def test_evidence_lowers_alike_to_the_same_bits(monkeypatch):
    """Although what would be measured now leads elsewhere."""
    graph, model = make_graph(density=DENSITY), gnn.GCN(CHANNELS, 8, CLASSES, 2, dropout=0.0)
    passes = graphbraid.fullgraph.ALL - {"prune", "hoist"}

    def compiled(times, **options):
        measured = MeasuredRates(rates=rates_by_which_sparse_takes(times))
        monkeypatch.setattr("graphbraid.fullgraph.rates.measured_rates", lambda _: measured)
        return graphbraid.compile(model, graph, passes=passes, **options)

    first = compiled(0.1)
    evidence = Evidence.from_json(json.loads(json.dumps(first.evidence.to_json())))
    assert evidence == first.evidence
    assert compiled(10.0).program.input_path != first.program.input_path
    again = compiled(10.0, evidence=evidence)
    assert again.program == first.program
    assert torch.equal(again(), first())
    assert torch.equal(again.predict(), first.predict())


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ([], "list"),
        ({}, "'rates'"),
        ({"rates": {"row_bytes": 0}, "link": None}, "row_bytes"),
        ({"rates": {"speed": 1}, "link": None}, "speed"),
        ({"rates": {}, "link": {"byte_seconds": float("nan")}}, "byte_seconds"),
        ({"rates": {}, "link": {"byte_seconds": 1e-9}}, "message_seconds"),
        ({"rates": {}, "link": []}, "seconds by name"),
    ],
)
def test_unsound_evidence_is_refused(content, said):
    with pytest.raises(DataError, match=f"lowering.json holds no sound measurements.*{said}"):
        Evidence.from_json(content, "lowering.json")
