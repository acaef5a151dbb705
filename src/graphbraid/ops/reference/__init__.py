"""Plain PyTorch twins of the compiled kernels, with the same arguments and, up to rounding, the same results.

They define what each kernel computes, run where no compiled kernel can (another device, no extension), and
are the reference that the tests compare every variant with. They may allocate memory per edge and feature;
the compiled kernels never do.
"""

from graphbraid.ops.reference.aggregate import (
    gine,
    gine_backward,
    gine_edge_backward,
    pipelined_sum,
    sddmm,
    spmm,
    spmm_max,
    spmm_max_backward,
    spmm_max_shared_backward,
)
from graphbraid.ops.reference.attention import (
    dot_backward,
    dot_forward,
    edge_softmax,
    edge_softmax_backward,
    gat_backward,
    gat_forward,
    gatv2_backward,
    gatv2_forward,
)
from graphbraid.ops.reference.dense import (
    DISTANCES,
    WORD_BITS,
    bit_gram,
    bit_product,
    distances,
    distances_backward,
    tall_gram,
    tall_gram_round,
    tall_product,
)
from graphbraid.ops.reference.gather import (
    add_rows,
    gather_as_float,
    gather_rows,
    gather_scaled,
    gather_tiered,
    put_rows,
    spread_rows,
    take_rows,
)
from graphbraid.ops.reference.messages import reduce_messages
from graphbraid.ops.reference.rowwise import (
    batch_norm,
    batch_norm_backward,
    column_moments,
    epilogue,
    epilogue_backward,
    layer_norm,
    layer_norm_backward,
    sum_dtype,
)
