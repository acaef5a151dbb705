"""Imports what the programs of tests import, before they are forked from this process (tests/warm.py).

Imports alone: no kernel may run and no variable of the environment be read before the fork.
"""

import contextlib
import gc
import importlib

from tests.extras import import_all

for name in (
    "torch",
    "torch._dynamo",  # what the first optimizer imports
    "torchmetrics",
    "torch_geometric.nn",
    "torch_geometric.loader",
    "hypothesis",  # what modules of tests import, of which ranks run functions
    "pytest",
):
    with contextlib.suppress(ImportError):  # an optional package
        importlib.import_module(name)
import_all()

# As in tests/conftest.py: else each process measures anew what others that tests run beside it disturb.
importlib.import_module("graphbraid.machine.measurements").MOST_OTHERS = 1.0  # type: ignore[attr-defined]
# What each process that trains would work out by itself.
importlib.import_module("graphbraid.train").TrainConfig()
gc.freeze()  # else each process looks through all of that for garbage, at its end above all
