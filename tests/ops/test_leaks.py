"""Compiled objects that a process leaves behind: none, but those that PyTorch keeps for a loss that lives."""

import os
import sys

import pytest
from tests.extras import ran
from tests.kernels import needs_kernels

pytestmark = [pytest.mark.slow, needs_kernels]

PROGRAM = """
import ctypes, gc, sys, torch, torch.nn.functional as F, graphbraid
from tests.beside_pyg import Data
from torch_geometric.nn import GCN

edges = torch.randint(0, 200, (2, 900))
data = Data(x=torch.randn(200, 8), edge_index=edges, y=torch.randint(0, 3, (200,)))
model = GCN(8, 16, 2, 3)
engine = graphbraid.compile(model, data, nodes=torch.arange(100))
for batch in graphbraid.loader.NeighborLoader(data, [2], batch_size=90):
    pass
for _ in range(3):
    loss = F.cross_entropy(engine(), data.y[:100])
    loss.backward()
"""
LOSES_ONE = """
calls = [o for o in gc.get_objects() if type(o).__name__ == "BoundCall" and o._bound]
ctypes.pythonapi.Py_IncRef(ctypes.py_object(next(iter(calls[0]._bound.values()))))
del calls
"""


def said_at_the_end_of(program, **variables):
    environment = {k: v for k, v in os.environ.items() if k != "GRAPHBRAID_LEAKS"} | variables
    done = ran([sys.executable, "-c", PROGRAM + program], env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_a_script_whose_last_loss_still_lives_ends_without_a_word():
    assert "leaked" not in said_at_the_end_of("")


def test_an_object_that_is_lost_is_reported_when_asked_for_and_nothing_else_is_left_behind():
    assert "leaked 1 instances" in said_at_the_end_of("del loss" + LOSES_ONE, GRAPHBRAID_LEAKS="1")
