"""Compiles the sampler's kernels for the CUDA architecture given (80, 90, ...) without a device; prints JSON.

The pipeline runs as always, but launches only compile (:class:`tests.compiling.Compiled`), so that batches
stay empty. Printed are the sizes of the kernels, and which of them hold a fused multiply-add of float64.
"""

import json
import re
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[3]))
from tests.compiling import Compiled
from tests.sampling.graphs import power_law_csc

from graphbraid.sampling import SamplerConfig, SeedSchedule
from graphbraid.sampling.triton import TritonPipeline


def look(name, results):
    if re.search(r"\bfma\.\w+\.f64", results["ptx"]):
        fused.add(name)


fused = set()
compiled = Compiled(int(sys.argv[1]), "ptx", look)
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
print(json.dumps({"sizes": compiled.sizes, "fused": sorted(fused)}))
