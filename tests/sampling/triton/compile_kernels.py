"""Compiles the sampler's kernels for the CUDA architecture given (80, 90, ...) without a device; prints JSON.

As tests/ops/triton/compile_kernels.py: the pipeline runs as always, but each launch ends once the kernel is
machine code, so that batches stay empty. Printed are the sizes of the kernels, and which of them hold a fused
multiply-add of float64.
"""

import json
import re
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[3]))
from tests.sampling.graphs import power_law_csc
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from graphbraid.sampling import SamplerConfig, SeedSchedule
from graphbraid.sampling.triton import TritonPipeline


class DriverWithoutDevice:
    def get_current_target(self):
        return GPUTarget("cuda", int(sys.argv[1]), 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0


def compile_only(self, *args, grid, warmup, **kwargs):
    compiled = run(self, *args, grid=grid, warmup=True, **kwargs)
    name = self.fn.__name__
    sizes.setdefault(name, len(compiled.asm["cubin"]))
    if re.search(r"\bfma\.\w+\.f64", compiled.asm["ptx"]):
        fused.add(name)


sizes, fused = {}, set()
driver.set_active(DriverWithoutDevice())
run, JITFunction.run = JITFunction.run, compile_only

schedule = SeedSchedule(seeds=torch.arange(40), batch_size=16, shuffle=True)
for layout, wide, weighted, replace in [
    ("subgraph", False, False, False),
    ("subgraph", False, False, True),
    ("subgraph", False, True, False),
    ("subgraph", False, True, True),
    ("blocks", True, False, False),
]:
    csc = power_law_csc(50, 400, wide=wide, weighted=True)
    fanouts = (15, 3, 200) if replace else (15, -1, 200)
    config = SamplerConfig(
        fanouts=fanouts, layout=layout, weighted=weighted, replace=replace, return_edge_id=wide
    )
    for placement in ({}, {"topology": "host", "hot_lists": torch.arange(3, 9)}):
        pipeline = TritonPipeline(csc, config, torch.randn(50, 8), device="cpu", **placement)
        list(pipeline.run(schedule, 0, 0, schedule.num_steps))
print(json.dumps({"sizes": sizes, "fused": sorted(fused)}))
