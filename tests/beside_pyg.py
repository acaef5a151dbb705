"""PyTorch Geometric for tests beside it: a module of tests that imports from here is skipped without it."""

import pytest
from tests.extras import NO_PYG

pytest.importorskip("torch_geometric", reason=NO_PYG)
import torch_geometric
import torch_geometric.nn as pyg
from torch_geometric.data import Batch, Data, HeteroData

__all__ = ["Batch", "Data", "HeteroData", "pyg", "torch_geometric"]
