"""Fused operators on graphs, each with autograd, compiled CPU kernels and a plain PyTorch twin."""

from graphbraid.ops.aggregation import Aggregation
from graphbraid.ops.attention import edge_softmax, gat_attention, gatv2_attention
from graphbraid.ops.cross_entropy import cross_entropy
from graphbraid.ops.epilogue import bias_act_dropout
from graphbraid.ops.gather import gather_rows
from graphbraid.ops.gine import gine
from graphbraid.ops.linear import aggregate_linear, dense_linear
from graphbraid.ops.messages import aggregate_messages
from graphbraid.ops.norm import batch_norm, layer_norm
from graphbraid.ops.sddmm import sddmm
from graphbraid.ops.sparse_linear import sparse_dropout, sparse_linear
from graphbraid.ops.spmm import aggregate, spmm

__all__ = [
    "Aggregation",
    "aggregate",
    "aggregate_linear",
    "aggregate_messages",
    "batch_norm",
    "bias_act_dropout",
    "cross_entropy",
    "dense_linear",
    "edge_softmax",
    "gat_attention",
    "gather_rows",
    "gatv2_attention",
    "gine",
    "layer_norm",
    "sddmm",
    "sparse_dropout",
    "sparse_linear",
    "spmm",
]
