"""Partitions: options out of bounds, other graphs, other folders, too little memory."""

from __future__ import annotations

import torch
from tests.robustness.cases import call, command
from tests.robustness.workplace import Workplace, graph

from graphbraid import distributed
from graphbraid.errors import ConfigError, DataError, ResourceError

PARTITIONS = "Partitions"


def _divide(w: Workplace, *options: object):
    return "partition", "--data", w.npz(), *options, w.path("parts")


@command(PARTITIONS, "no parts", 2, "num_parts must be a whole number in [1, 65536]; got 0")
def no_parts(w: Workplace):
    return _divide(w, "--parts", 0)


@command(
    PARTITIONS, "a strategy mistyped", 2, "strategy must be one of 'auto', 'metis'", "Did you mean 'greedy'?"
)
def mistyped_strategy(w: Workplace):
    return _divide(w, "--parts", 2, "--strategy", "greddy")


@command(PARTITIONS, "a tolerance below 1", 2, "tolerance must be a number in [1.001, 10]; got 0.97")
def tolerance_below_one(w: Workplace):
    return _divide(w, "--parts", 2, "--tolerance", 0.97)


@command(
    PARTITIONS,
    "memory that does not hold the nodes' parts",
    4,
    "streaming 90 nodes into 2 parts takes at least",
)
def too_little_memory_to_stream(w: Workplace):
    return _divide(w, "--parts", 2, "--strategy", "streaming", "--memory", "1KiB")


@command(PARTITIONS, "a folder that holds something else", 4, "it exists already", "choose another name")
def folder_of_something_else(w: Workplace):
    w.path("parts").mkdir()
    return _divide(w, "--parts", 2)


@command(
    PARTITIONS,
    "replacing a folder that is no partition",
    4,
    "is not a graphbraid partition, so it is not replaced",
)
def replace_no_partition(w: Workplace):
    w.path("parts").mkdir()
    (w.path("parts") / "thesis.txt").write_text("")
    return _divide(w, "--parts", 2, "--overwrite")


@call(
    PARTITIONS,
    "METIS for more parts than nodes",
    DataError,
    "METIS gives no partition",
    "take strategy='auto'",
)
def metis_for_more_parts_than_nodes(w: Workplace):
    distributed.partition(graph(), 91, strategy="metis")


@call(
    PARTITIONS,
    "a partition of another graph",
    DataError,
    "was made for another graph",
    "Partition this graph",
)
def partition_of_another_graph(w: Workplace):
    distributed.save_partition(graph(), distributed.partition(graph(), 2, strategy="greedy"), w.path("parts"))
    distributed.SavedPartition(w.path("parts"), graph().symmetrized())


@call(PARTITIONS, "a part that is not there", ConfigError, "part must be a whole number in [0, 1]; got 2")
def part_that_is_not_there(w: Workplace):
    distributed.save_partition(graph(), distributed.partition(graph(), 2, strategy="greedy"), w.path("parts"))
    distributed.SavedPartition(w.path("parts")).part(2)


@call(PARTITIONS, "a node in a part that is not there", DataError, "that of node 0 is 2")
def node_in_no_part(w: Workplace):
    part_of = torch.full((90,), 2, dtype=torch.int32)
    distributed.Partition(part_of=part_of, num_parts=2, strategy="mine", balance="edges")


@call(PARTITIONS, "writing where there is a partition", ResourceError, "it exists already")
def partition_is_there(w: Workplace):
    for _ in range(2):
        found = distributed.partition(graph(), 2, strategy="greedy")
        distributed.save_partition(graph(), found, w.path("parts"))
