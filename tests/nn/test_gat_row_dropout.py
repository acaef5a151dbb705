"""GATConv's dropout of the rows that are summed."""

import pytest
import torch

from graphbraid.errors import ConfigError
from graphbraid.graph.csc import Csc
from graphbraid.nn import GATConv


@pytest.fixture
def alone():
    """400 nodes without edges: each attends to itself alone, so its output is its own transformed row."""
    return Csc(torch.zeros(401, dtype=torch.int64), torch.empty(0, dtype=torch.int32), 400)


def test_row_dropout_drops_that_share_of_elements_and_scales_the_rest(alone):
    torch.manual_seed(0)
    conv = GATConv(5, 8, heads=2, row_dropout=0.25)
    x = torch.randn(400, 5)
    ratio = conv(x, alone) / conv.lin(x)
    dropped = ratio == 0
    assert dropped.float().mean().item() == pytest.approx(0.25, abs=0.03)  # 4.6 deviations of 6,400 draws
    torch.testing.assert_close(ratio[~dropped], torch.full_like(ratio[~dropped], 1 / 0.75))


def test_row_dropout_rests_while_evaluating(alone):
    conv = GATConv(5, 8, heads=2, row_dropout=0.25).eval()
    x = torch.randn(400, 5)
    torch.testing.assert_close(conv(x, alone), conv.lin(x))


@pytest.mark.parametrize("share", [-0.1, 1.0])
def test_a_row_dropout_that_is_no_probability_is_refused(share):
    with pytest.raises(ConfigError, match=rf"row_dropout must lie in \[0, 1\); got {share}"):
        GATConv(5, 8, row_dropout=share)
