"""Ranks that hold their parts of a graph with types learn what ranks with the whole graph do, to the bit."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.distributed import typed_shard_training
from tests.distributed.ranks import run
from tests.train.typed_communities import bibliography

from graphbraid.distributed import Communicator, partition, save_partition
from graphbraid.distributed.ranks.transport import Alone

pytestmark = pytest.mark.distributed


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of four parts of the training graph, with lists in the parts and whole."""
    at, graph = tmp_path_factory.mktemp("shards"), bibliography()
    for lists in ("parts", "whole"):
        save_partition(graph, partition(graph, 4, strategy="random"), at / lists, rows=lists)
    return at


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
