"""The tuner on live ranks: the same decision on each, the same bits as whole rows, and what is kept."""

import copy

import pytest
import torch
from tests.distributed.test_pipeline import assert_same_bits, graph_of, learned
from tests.distributed.threads import run_threads
from tests.distributed.whole import RATES, as_processes, trained
from tests.fullgraph.test_engine import MODELS

from graphbraid.errors import ConfigError
from graphbraid.fullgraph import ALL, Engine, Evidence, Pipeline, Ranks
from graphbraid.fullgraph.ranks import link as links
from graphbraid.fullgraph.ranks import tuner
from graphbraid.fullgraph.ranks.link import Link
from graphbraid.fullgraph.ranks.search import MOST_TRIALS
from graphbraid.fullgraph.ranks.tuner import Tuned
from graphbraid.train import TrainConfig

STEPS = 2
ENOUGH = MOST_TRIALS * STEPS + 2
"""Epochs after which every search is over."""


@pytest.fixture(autouse=True)
def threads(monkeypatch, tmp_path):
    """Threads do as processes do, behind a link so slow that all numbers of parts are worth a trial."""
    as_processes(monkeypatch)
    monkeypatch.setenv("GRAPHBRAID_CACHE", str(tmp_path))
    link = Link(message_seconds=1e-9, byte_seconds=1e-3)
    monkeypatch.setattr(links, "measured_link", lambda _: link)
    monkeypatch.setattr(tuner, "MOST_SPREAD", float("inf"))
    monkeypatch.setattr(tuner, "STEPS", STEPS)


def tuned(name="gcn", size=2, epochs=ENOUGH, **options):
    graph, partition = graph_of(size)
    return learned(name, graph, partition, "tuned", epochs=epochs, **options)


def runners(found):
    return [rank["engine"].runner for rank in found]


def test_every_rank_decides_alike_and_learns_what_it_does_with_whole_rows():
    graph, partition = graph_of(2)
    found = tuned()
    first, *others = (runner.tuned for runner in runners(found))
    assert first is not None
    assert all(other == first for other in others)
    assert 3 <= len(first.table) <= first.num_trials <= MOST_TRIALS
    assert first.table[first.chosen] <= next(iter(first.table.values()))
    assert all(runner._train.pipeline == first.pipeline for runner in runners(found))
    assert_same_bits(found, learned("gcn", graph, partition, None, epochs=ENOUGH))


@pytest.mark.slow
def test_what_was_found_is_known_in_the_next_run_of_the_same_ranks():
    first = runners(tuned())[0].tuned
    again = runners(tuned(epochs=1))
    assert all(runner.tuned == first for runner in again)
    assert all("in an earlier run" in runner.explain() for runner in again)
    other = runners(tuned(name="sage", epochs=1))
    assert all(runner.tuned is None for runner in other)
    assert all("being tried" in runner.explain() for runner in other)


@pytest.mark.slow
def test_what_other_programs_disturbed_is_used_but_not_kept(monkeypatch, tmp_path):
    monkeypatch.setattr(tuner, "MOST_SPREAD", -1.0)
    assert all(runner.tuned is not None for runner in runners(tuned()))
    assert not list(tmp_path.glob("pipelines/*.json"))


@pytest.mark.slow
def test_a_damaged_table_is_found_anew(tmp_path, caplog):
    tuned()
    (file,) = tmp_path.glob("pipelines/*.json")
    file.write_text(file.read_text().replace("chosen", "chase"))
    assert runners(tuned(epochs=1))[0].tuned is None
    assert "cannot be used" in caplog.text


def test_the_pass_halo_and_the_search_go_by_one_link_which_the_evidence_holds(monkeypatch):
    """Each rank measures another link at each time; all go by the one that was measured first by rank 0."""
    measured = []

    def measure(comm):
        comm.barrier()
        measured.append(comm.rank)
        return Link(message_seconds=1e-9 * (1 + comm.rank), byte_seconds=1e-3 * len(measured))

    bounded = []
    ladders = tuner.ladders

    def noted(loads, link, stream_bytes, threads):
        bounded.append(link)
        return ladders(loads, link, stream_bytes, threads)

    monkeypatch.setattr(links, "measured_link", measure)
    monkeypatch.setattr(tuner, "ladders", noted)
    # Without what is computed once, rows of the first layer may travel, which the pass weighs by the link.
    found = tuned(epochs=1, passes=ALL - {"hoist", "order"})
    assert sorted(measured) == [0, 1]
    said = [Link.of_trials(rank["engine"].evidence.trials) for rank in found]
    assert bounded == said == [said[0]] * 2
    assert said[0].message_seconds == 1e-9


def test_a_run_that_is_continued_searches_by_the_link_it_began_with(monkeypatch):
    bounded = []
    ladders = tuner.ladders
    monkeypatch.setattr(tuner, "ladders", lambda *given: bounded.append(given[1]) or ladders(*given))
    known = Link(message_seconds=2e-9, byte_seconds=2e-3)
    monkeypatch.setattr(links, "measured_link", lambda _: pytest.fail("measured again"))
    graph, partition = graph_of(2)
    evidence = Evidence(rates=RATES, trials=known.to_trials())

    def run(comm):
        ranks = Ranks(comm=comm, partition=partition, pipeline="tuned")
        torch.manual_seed(3)
        own = evidence if comm.rank == 0 else Evidence(rates=RATES)
        engine = Engine(MODELS["gcn"](dropout=0.0), graph, graph.splits["train"], evidence=own, ranks=ranks)
        engine()
        return Link.of_trials(engine.evidence.trials)

    assert run_threads(2, run) == [known, known]
    assert bounded == [known, known]


def test_where_nothing_can_be_gained_nothing_is_tried(monkeypatch):
    monkeypatch.setattr(links, "measured_link", lambda _: Link(message_seconds=1.0, byte_seconds=1e-9))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    for runner in runners(tuned(epochs=1)):
        assert runner.tuned == Tuned(names=(), table={}, chosen=())
        assert "rows travel whole, gradients whole: more parts cost more" in runner.explain()


def test_a_model_that_reads_its_halo_otherwise_has_nothing_to_find():
    for runner in runners(tuned(name="gat", epochs=2)):
        assert runner.tuned == Tuned(names=(), table={}, chosen=())


def test_passes_without_backward_do_not_count(monkeypatch):
    graph, partition = graph_of(2)
    torch.manual_seed(3)
    model = MODELS["gcn"]()

    def run(comm):
        ranks = Ranks(comm=comm, partition=partition, pipeline="tuned")
        found = trained(copy.deepcopy(model), graph, ranks, epochs=3, before=lambda engine: engine())
        return found["engine"].runner._tuner._seconds

    monkeypatch.setattr(tuner, "STEPS", 10)
    assert [len(seconds) for seconds in run_threads(2, run)] == [
        2,
        2,
    ]  # of the last step nobody has asked yet


@pytest.mark.slow
def test_explain_names_a_given_pipeline_and_the_trials_of_a_search():
    graph, partition = graph_of(2)
    (given, _) = runners(learned("gcn", graph, partition, Pipeline(chunks=4, threads=1), epochs=1))
    assert "rows travel in 4 parts, gradients whole, 1 threads sum own rows meanwhile" in given.explain()
    (found, _) = runners(tuned())
    assert "Exchanges" in found.explain()
    assert found.explain().count(" ms\n") >= len(found.tuned.table)
    (whole, _) = runners(learned("gcn", graph, partition, None, epochs=1))
    assert "Exchanges" not in whole.explain()


def test_other_words_are_refused():
    _, partition = graph_of(2)
    with pytest.raises(ConfigError, match="pipeline must be"):
        run_threads(2, lambda comm: Ranks(comm=comm, partition=partition, pipeline="fast"))


def test_mini_batches_exchange_no_rows():
    with pytest.raises(ConfigError, match="exchange='whole' is for rows that ranks exchange on the whole"):
        TrainConfig(mode="sampled", exchange="whole")
    assert TrainConfig(mode="full").exchange == "tuned"
