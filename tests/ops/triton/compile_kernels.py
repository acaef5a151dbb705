"""Compiles every Triton kernel for the CUDA architecture given (80, 90, ...) without a device; prints JSON.

Of each kernel one instance becomes machine code, the others what the second argument says
(:class:`tests.compiling.Compiled`).
"""

import json
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[3]))
from tests.compiling import Compiled
from tests.ops.graphs import skewed, square, values
from tests.ops.peers import share_of, tables, with_coefficients
from tests.ops.test_attention import gat_inputs, gatv2_inputs
from tests.ops.test_message_steps import WITH_SOFTMAX, both_passes, case, softmax_case
from tests.ops.test_spmm import COEFFICIENTS, arguments

from graphbraid.ops import message_kernel
from graphbraid.ops import triton as kernels
from graphbraid.ops.attention import both_ways
from graphbraid.ops.gather import Tier, TierTable
from graphbraid.ops.library import RowEpilogue
from graphbraid.ops.peers import PipelineConfig, PipelinePlan
from graphbraid.ops.spmm import TIES
from graphbraid.ops.triton import partition

message_kernel.backend = lambda _: kernels
compiled = Compiled(int(sys.argv[1]), sys.argv[2])
csc = skewed(10, 13)
transposed, perm = csc.transpose()
weight = values(csc.num_edges)
dtype = torch.bfloat16
for partition.SEGMENT in (8, 512):  # with hubs, both launches of each kernel; without
    x, out = values(13, 100, dtype=dtype), torch.empty(10, 100, dtype=dtype)
    for wanted in ("plain", "loops", "all"):
        kernels.spmm(*arguments(csc, x, COEFFICIENTS[wanted]), out)
    for ids, seed in ((None, 77), (torch.arange(10), torch.tensor([77]))):
        after = RowEpilogue(values(100), 3, 0.01, 0.3, seed, ids)
        kernels.spmm(*arguments(csc, x, COEFFICIENTS["all"]), out, after)
    winner = torch.empty(10, 100, dtype=torch.int32)
    for ties in range(len(TIES)):
        kernels.spmm_max(csc.indptr, csc.indices, x, weight, ties, out, winner)
    kernels.spmm_max(csc.indptr, csc.indices, x, weight, 0, out, None)
    kernels.spmm_max_backward(
        transposed.indptr, transposed.indices, perm, csc.indptr, out, weight, winner, x.clone()
    )
    for factors in (weight, None):
        kernels.spmm_max_shared_backward(
            transposed.indptr, transposed.indices, out, factors, out, x, x.clone()
        )
    of_edges = values(csc.num_edges, 100, dtype=dtype)
    kernels.gine(csc.indptr, csc.indices, x, of_edges, 1.0, 10, out)
    kernels.gine_edge_backward(csc.indptr, csc.indices, x, of_edges, out, of_edges)
    for rows in (x, None):
        kernels.gine_backward(
            transposed.indptr, transposed.indices, perm, out, rows, of_edges, 1.0, 10, x.clone()
        )
    edge_numbers = torch.empty(csc.num_edges, 4)
    kernels.sddmm(csc.indptr, csc.indices, out, x, values(10), values(13), edge_numbers)
    for ids, seed in ((None, 77), (torch.arange(13), torch.tensor([77]))):
        kernels.epilogue(x, values(100), 3, 0.01, 0.3, seed, x, ids)
        kernels.epilogue_backward(x, x, 3, 0.01, 0.3, seed, x, torch.empty(100), ids)
    mean, rstd, sums = values(13), values(13), (values(100), values(100))
    kernels.layer_norm(x, values(100), values(100), 1e-5, x, mean, rstd)
    kernels.layer_norm_backward(x, x, values(100), mean, rstd, x, *sums)
    kernels.column_moments(x, *sums)
    kernels.batch_norm(x, *sums, None, values(100), x)
    kernels.batch_norm_backward(x, x, *sums, values(100), True, x, *sums)
    for name, inputs in (("gat", gat_inputs(csc, 3, 9, dtype)), ("gatv2", gatv2_inputs(csc, 3, 9, dtype))):
        for seed, first_keys in ((12345, None), (torch.tensor([12345]), csc.indptr[:-1])):
            how, keys = (0.2, 10, 0.4, seed), {"first_keys": first_keys}
            rows, lse = torch.empty(10, 27, dtype=dtype), torch.empty(10, 3)
            getattr(kernels, f"{name}_forward")(csc.indptr, csc.indices, *inputs, *how, rows, lse, **keys)
            grads = [torch.empty_like(t) for t in inputs]
            backward = getattr(kernels, f"{name}_backward")
            backward(*both_ways(csc), *inputs, *how, rows, lse, rows, *grads, **keys)
    kernels.edge_softmax(csc.indptr, edge_numbers, edge_numbers)
    kernels.edge_softmax_backward(csc.indptr, edge_numbers, edge_numbers, edge_numbers)
    kernels.gather_rows(torch.empty(9, 16, dtype=torch.uint8), perm, torch.empty(9, 16, dtype=torch.uint8))
    kernels.gather_as_float(torch.empty(9, 16, dtype=dtype), perm, torch.empty(9, 16))
    kernels.gather_scaled(torch.empty(9, 16, dtype=torch.int8), values(9), perm, torch.empty(9, 16))
    for num_parts, row_dtype, out_dtype in (
        (1, dtype, dtype),
        (3, dtype, torch.float32),
        (3, torch.int8, torch.float32),
    ):
        parts = tuple(torch.empty(3, 16, dtype=row_dtype) for _ in range(num_parts))
        scales = tuple(values(3) for _ in parts if row_dtype == torch.int8)
        table = TierTable([Tier(parts, scales), Tier(parts[:1], scales[:1])])
        kernels.gather_tiered(table, perm[:2], torch.empty(2, 16, dtype=out_dtype))
    for name in ("all that can be read", "all that can be computed"):
        for reduction in ("sum", "min"):
            fused, _, rows, parameters = case(name, reduction, 100, csc=csc)
            both_passes(fused, rows, parameters)
    for name in WITH_SOFTMAX:
        softmax_case(name, 3, 9, csc=csc)[0].sum().backward()
part_of = torch.arange(50) % 2
for wanted, width, wpb in (("plain", 100, 4), ("all", 128, 16), ("scales", 3, 1)):
    for row_dtype in (torch.float32, dtype):
        edges, _ = share_of(with_coefficients(square(), wanted), part_of, 1, 2)
        plan = PipelinePlan.of(edges, PipelineConfig(ps=4, dist=2, wpb=wpb))
        table, addend = tables(values(50, width, dtype=row_dtype), part_of, 2)[1], values(5, width)
        kernels.pipelined_sum(plan, table, addend, torch.empty(25, width))
        kernels.pipelined_sum(plan, table, None, torch.empty(25, width, dtype=row_dtype))
for factors in (None, values(40)):
    words, weight, rows = torch.zeros(2, 40, dtype=torch.int32), values(7, 40), values(40, 7)
    kernels.bit_product(words, factors, weight.t(), rows, factors is None)
    kernels.bit_gram(rows, words, factors, weight)
print(json.dumps(compiled.sizes))
