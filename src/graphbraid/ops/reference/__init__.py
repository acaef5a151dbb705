"""Plain PyTorch twins of the compiled kernels, with the same arguments and, up to rounding, the same results.

They define what each kernel computes, run where no compiled kernel can (another device, no extension), and
are the reference that the tests compare every variant with. They may allocate memory per edge and feature;
the compiled kernels never do.
"""

from graphbraid.ops.library import sum_dtype
from graphbraid.ops.reference.aggregate import (
    gine,
    gine_backward,
    gine_edge_backward,
    pipelined_sum,
    reduce_messages,
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
from graphbraid.ops.reference.rows import (
    DISTANCES,
    WORD_BITS,
    add_rows,
    batch_norm,
    batch_norm_backward,
    bit_gram,
    bit_product,
    column_moments,
    distances,
    distances_backward,
    drop_values,
    epilogue,
    epilogue_backward,
    gather_as_float,
    gather_rows,
    gather_scaled,
    gather_tiered,
    layer_norm,
    layer_norm_backward,
    put_rows,
    spread_rows,
    take_rows,
    tall_gram,
    tall_gram_round,
    tall_product,
    transpose,
)
