"""Partitions: options out of bounds, other graphs, other folders, too little memory."""

import torch
from tests.robustness.cases import call, command
from tests.robustness.workplace import Workplace, graph

from graphbraid import distributed
from graphbraid.errors import ConfigError, DataError, ResourceError

PARTITIONS = "Partitions"


def _divide(w: Workplace, *options: object):
    return "partition", "--data", w.npz(), *options, w.path("parts")


command(PARTITIONS, 2, "num_parts must be a whole number in [1, 65536]; got 0")(
    "No parts", lambda w: _divide(w, "--parts", 0)
)
command(PARTITIONS, 2, "strategy must be one of 'auto', 'metis'", "Did you mean 'greedy'?")(
    "A strategy mistyped", lambda w: _divide(w, "--parts", 2, "--strategy", "greddy")
)
command(PARTITIONS, 2, "tolerance must be a number in [1.001, 10]; got 0.97")(
    "A tolerance below 1", lambda w: _divide(w, "--parts", 2, "--tolerance", 0.97)
)
command(PARTITIONS, 4, "streaming 90 nodes into 2 parts takes at least")(
    "Memory that does not hold the nodes' parts",
    lambda w: _divide(w, "--parts", 2, "--strategy", "streaming", "--memory", "1KiB"),
)


@command(PARTITIONS, 4, "it exists already", "choose another name")
def folder_of_something_else(w: Workplace):
    """A folder that holds something else."""
    w.path("parts").mkdir()
    return _divide(w, "--parts", 2)


@command(PARTITIONS, 4, "is not a graphbraid partition, so it is not replaced")
def replace_no_partition(w: Workplace):
    """Replacing a folder that is no partition."""
    w.path("parts").mkdir()
    (w.path("parts") / "thesis.txt").write_text("")
    return _divide(w, "--parts", 2, "--overwrite")


call(PARTITIONS, DataError, "METIS gives no partition", "take strategy='auto'")(
    "METIS for more parts than nodes", lambda w: distributed.partition(graph(), 91, strategy="metis")
)


@call(PARTITIONS, DataError, "was made for another graph", "Partition this graph")
def partition_of_another_graph(w: Workplace):
    """A partition of another graph."""
    distributed.save_partition(graph(), distributed.partition(graph(), 2, strategy="greedy"), w.path("parts"))
    distributed.SavedPartition(w.path("parts"), graph().symmetrized())


@call(PARTITIONS, ConfigError, "part must be a whole number in [0, 1]; got 2")
def part_that_is_not_there(w: Workplace):
    """A part that is not there."""
    distributed.save_partition(graph(), distributed.partition(graph(), 2, strategy="greedy"), w.path("parts"))
    distributed.SavedPartition(w.path("parts")).part(2)


@call(PARTITIONS, DataError, "that of node 0 is 2")
def node_in_no_part(w: Workplace):
    """A node in a part that is not there."""
    part_of = torch.full((90,), 2, dtype=torch.int32)
    distributed.Partition(part_of=part_of, num_parts=2, strategy="mine", balance="edges")


@call(PARTITIONS, ResourceError, "it exists already")
def partition_is_there(w: Workplace):
    """Writing where there is a partition."""
    for _ in range(2):
        found = distributed.partition(graph(), 2, strategy="greedy")
        distributed.save_partition(graph(), found, w.path("parts"))
