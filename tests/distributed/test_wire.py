"""Rows in bfloat16 on the wire: half the bytes, losses near one rank's, and evaluations as they were."""

import copy

import pytest
import torch
from tests.distributed.test_whole_graph import make_model
from tests.distributed.threads import run_threads
from tests.distributed.whole import RATES, blocks, trained

from graphbraid.errors import ConfigError
from graphbraid.fullgraph import Engine, Evidence, Ranks
from graphbraid.fullgraph.lowering.options import CompileOptions
from graphbraid.train import TrainConfig

EPOCHS = 8


pytestmark = pytest.mark.usefixtures("threads")


def learned(name, wire, epochs=EPOCHS):
    graph, parts = blocks(2)
    model = make_model(name, dropout=0.3)  # here, as torch's random state is that of all threads

    def run(comm):
        return trained(model, graph, Ranks(comm=comm, partition=parts, wire=wire), epochs=epochs)

    return run_threads(2, run)


@pytest.mark.parametrize("name", ["gcn", "sage", "sage max", "gat", "gatv2", "batch norm, gelu"])
def test_losses_are_near_one_ranks_and_ranks_agree(name):
    graph, _ = blocks(2)
    alone = trained(make_model(name, dropout=0.3), graph, None, epochs=EPOCHS)
    found = learned(name, "bfloat16")
    assert found[0]["losses"] == pytest.approx(alone["losses"], rel=2e-2)
    assert found[0]["losses"] != pytest.approx(alone["losses"], rel=1e-7)  # or nothing was rounded
    for key, value in found[0]["state"].items():
        assert torch.equal(value, found[1]["state"][key])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gcn", "sage max", "gat"])
def test_an_epoch_sends_half_the_bytes(name):
    def step(wire):
        one, three = ([r["engine"].ranks.comm.sent_bytes for r in learned(name, wire, n)] for n in (1, 3))
        return [(many - few) // 2 for few, many in zip(one, three, strict=True)]

    full, half = step("float32"), step("bfloat16")
    assert [2 * count for count in half] == full
    assert all(full)


def test_evaluations_are_not_rounded():
    graph, parts = blocks(2)
    model = make_model("gcn").eval()

    def outputs(wire):
        def run(comm):
            ranks = Ranks(comm=comm, partition=parts, wire=wire)
            return (
                Engine(
                    copy.deepcopy(model),
                    graph,
                    "train",
                    CompileOptions(evidence=Evidence(rates=RATES)),
                    ranks=ranks,
                )
                .predict()
                .clone()
            )

        return run_threads(2, run)[0]

    assert torch.equal(outputs("bfloat16"), outputs("float32"))


def test_memory_of_what_is_rounded_is_counted():
    full, half = (
        [rank["engine"].nbytes for rank in learned("gcn", wire, 1)] for wire in ("float32", "bfloat16")
    )
    assert all(more > less for less, more in zip(full, half, strict=True))


def test_other_dtypes_and_ranks_that_differ_are_refused():
    graph, parts = blocks(2)
    model = make_model("gcn")
    with pytest.raises(ConfigError, match="wire"):
        run_threads(2, lambda comm: Ranks(comm=comm, partition=parts, wire="float16"))

    def run(comm):
        ranks = Ranks(comm=comm, partition=parts, wire=("float32", "bfloat16")[comm.rank])
        Engine(
            copy.deepcopy(model), graph, "train", CompileOptions(evidence=Evidence(rates=RATES)), ranks=ranks
        )

    with pytest.raises(ConfigError, match="rank 0 has wire 'float32', rank 1 has 'bfloat16'"):
        run_threads(2, run)


def test_mini_batches_have_no_rows_to_round():
    with pytest.raises(ConfigError, match="wire='bfloat16' is for rows that ranks exchange on the whole"):
        TrainConfig(mode="sampled", wire="bfloat16")
    assert TrainConfig(mode="full", wire="bfloat16").wire == "bfloat16"
