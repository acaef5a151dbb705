"""Triton kernels for CUDA tensors, with the names and arguments of the compiled CPU kernels.

Importing this package imports triton; :func:`graphbraid.ops.kernels.backend` does so for the first CUDA
tensor it sees. The twins in :mod:`graphbraid.ops.reference` define what each function computes. The operators
check the inputs. Sums are in float32 and in a fixed order, so results do not differ between runs.
"""

from graphbraid.ops.triton.attention import gat_forward, gatv2_forward
from graphbraid.ops.triton.attention_backward import gat_backward, gatv2_backward
from graphbraid.ops.triton.bit_product import bit_gram, bit_product
from graphbraid.ops.triton.edges import (
    edge_softmax,
    edge_softmax_backward,
    gine,
    gine_backward,
    gine_edge_backward,
    sddmm,
)
from graphbraid.ops.triton.epilogue import epilogue, epilogue_backward
from graphbraid.ops.triton.gather import gather_as_float, gather_rows, gather_scaled, gather_tiered
from graphbraid.ops.triton.messages import reduce_messages
from graphbraid.ops.triton.norm import (
    batch_norm,
    batch_norm_backward,
    column_moments,
    layer_norm,
    layer_norm_backward,
)
from graphbraid.ops.triton.pipelined_sum import pipelined_sum
from graphbraid.ops.triton.spmm import spmm
from graphbraid.ops.triton.spmm_max import spmm_max, spmm_max_backward, spmm_max_shared_backward
