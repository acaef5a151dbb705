"""Ranks that hold their parts of a graph with types learn what ranks with the whole graph do, to the bit."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.distributed import typed_shard_training
from tests.distributed.ranks import Said, run
from tests.train.typed_communities import bibliography

from graphbraid.distributed import Communicator, partition, save_partition
from graphbraid.distributed.ranks.transport import Alone

pytestmark = pytest.mark.distributed
Results = Callable[[int, str, bool], list[Said]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of four parts of the training graph, with lists in the parts and whole."""
    at, graph = tmp_path_factory.mktemp("shards"), bibliography()
    for lists in ("parts", "whole"):
        save_partition(graph, partition(graph, 4, strategy="random"), at / lists, rows=lists)
    return at


@pytest.fixture(scope="module")
def results(folder: Path) -> Results:
    """Return what so many ranks have learned: two jobs for each number of ranks and kind of lists."""
    function = typed_shard_training.every_case
    return functools.cache(lambda size, lists, exact: run(size, function, folder / lists, exact))


RUNS = (
    pytest.param(2, "parts", marks=pytest.mark.slow),
    pytest.param(2, "whole", marks=pytest.mark.slow),
    pytest.param(1, "parts", marks=pytest.mark.long),
    pytest.param(3, "whole", marks=pytest.mark.long),
    pytest.param(4, "parts", marks=pytest.mark.long),
)


@pytest.mark.parametrize("case", typed_shard_training.CASES)
@pytest.mark.parametrize(("size", "lists"), RUNS)
def test_losses_and_outputs_on_parts_are_those_on_the_whole_graph(
    case: str, size: int, lists: str, results: Results
) -> None:
    for said in results(size, lists, "exact" in case):
        parts, whole = said.result[case]
        assert parts["losses"] == whole["losses"]
        assert parts["weights"] == whole["weights"]
        for mine, theirs in zip(parts["history"], whole["history"], strict=True):
            assert mine == pytest.approx(theirs, rel=1e-5)
        assert parts["test"] == pytest.approx(whole["test"], rel=1e-5)
        assert parts["predicted"] == pytest.approx(whole["predicted"], rel=1e-4, abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("lists", ["parts", pytest.param("whole", marks=pytest.mark.long)])
def test_weights_and_features_of_edges_teach_what_they_do_on_the_whole_graph(
    lists: Any, tmp_path: Path
) -> None:
    graph = typed_shard_training.with_edges()
    save_partition(graph, partition(graph, 2, strategy="random"), tmp_path / "parts", rows=lists)
    for said in run(2, typed_shard_training.reading_edges, tmp_path / "parts"):
        for parts, whole in said.result.values():
            assert parts["losses"] == whole["losses"]
            assert parts["test"] == pytest.approx(whole["test"], rel=1e-5)


@pytest.mark.slow
def test_kept_rows_of_several_types_save_bytes_and_teach_the_same(tmp_path: Path) -> None:
    graph = typed_shard_training.of_int8()
    save_partition(graph, partition(graph, 3, strategy="random"), tmp_path / "parts", rows="parts")
    for said in run(3, typed_shard_training.with_kept_rows, tmp_path / "parts"):
        found = said.result
        none, some, every = (found[name]["traffic"] for name in ("none", "some", "all"))
        for name in ("none", "some", "all"):
            assert found[name]["losses"] == found["whole"]["losses"]
            assert found[name]["weights"] == found["whole"]["weights"]
        assert none["hits"] == 0 < some["hits"] < every["hits"]
        assert none["sent_bytes"] > some["sent_bytes"] > every["sent_bytes"]


def test_models_and_options_that_need_more_than_parts_are_refused(folder: Path) -> None:
    of_data, full, unknown = typed_shard_training.refused(Communicator(Alone()), str(folder / "parts"))
    assert "parts of a graph with types do not hold what belongs to edges" in of_data
    assert "the graph's other parts are on other ranks" in full
    assert "Did you mean 'paper'" in unknown
