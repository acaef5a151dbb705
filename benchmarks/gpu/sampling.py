"""Mini-batches prepared on a CUDA device beside the CPU's.

    python -m benchmarks.gpu.sampling [GRAPH_FOLDER] [--nodes N --edges E] [--workers N] [--repeats N]

First checks that the device's batches have the bits of the CPU's, then measures batches a second, in turn:

- ``cpu``: the compiled sampler and gather, batches left on the host;
- ``cpu+copy``: the same, each batch then copied to the device from page-locked memory;
- ``gpu TOPOLOGY/FEATURES``: the Triton sampler, each array on the ``device`` or read from the ``host``.

Without a graph's folder (see benchmarks.graphs) it makes one with skewed degrees. Needs a CUDA device.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.common.options import add_out_argument, parser_of
from benchmarks.common.rows import write_rows
from benchmarks.graphs.folder import load
from graphbraid.graph import Graph
from graphbraid.graph.csc import Csc, index_dtype
from graphbraid.sampling import SamplerConfig, SeedSchedule
from graphbraid.sampling.cpu import BatchPipeline, make_pipeline
from graphbraid.sampling.gpu import make_gpu_pipeline
from graphbraid.sampling.sample import Prepared

PLACEMENTS = (("device", "device"), ("device", "host"), ("host", "host"))
Tensors = list[torch.Tensor]


def skewed_graph(num_nodes: int, num_edges: int, num_features: int) -> Graph:
    """Degrees follow a power law, and so does how often a node is a source; a fifth of the nodes train."""
    draw = np.random.default_rng(0)
    share = draw.pareto(1.5, num_nodes) + 0.1
    ends = np.round(np.cumsum(share) * (num_edges / share.sum())).astype(np.int64)
    ends[-1] = num_edges
    indices = torch.empty(num_edges, dtype=index_dtype(num_nodes))
    name = draw.permutation(num_nodes)  # the nodes that are sources most often lie anywhere
    for begin in range(0, num_edges, 1 << 24):
        count = min(1 << 24, num_edges - begin)
        rank = (num_nodes * draw.random(count, dtype=np.float32).astype(np.float64) ** 2).astype(np.int64)
        indices[begin : begin + count] = torch.from_numpy(name[np.minimum(rank, num_nodes - 1)])
    return Graph(
        csc=Csc(torch.from_numpy(np.concatenate([[0], ends])), indices, num_nodes),
        x=torch.randn(num_nodes, num_features, generator=torch.Generator().manual_seed(0)),
        splits={"train": torch.from_numpy(np.sort(draw.choice(num_nodes, num_nodes // 5, replace=False)))},
        name=f"skewed {num_nodes:,} nodes, {num_edges:,} edges",
    )


def tensors_of(batch: Prepared) -> Tensors:
    """All that a batch consists of."""
    _, input_id, sampled, x = batch
    parts = [input_id, sampled.n_id] + ([] if x is None else [x])
    for edges in sampled.edges:
        parts += [edges.indptr, edges.indices]
        parts += [] if edges.positions is None else [edges.positions]
    return parts


def check_bits(cpu: BatchPipeline, gpu: BatchPipeline, schedule: SeedSchedule, num_batches: int) -> None:
    """End the benchmark unless both prepare the same batches."""
    for expected, got in zip(
        cpu.run(schedule, 0, 0, num_batches), gpu.run(schedule, 0, 0, num_batches), strict=True
    ):
        pairs = zip(tensors_of(expected), tensors_of(got), strict=True)
        same = all(torch.equal(a, b.cpu()) for a, b in pairs)
        counts = [(b.sampled.nodes_per_hop, b.sampled.edges_per_hop) for b in (expected, got)]
        if not same or counts[0] != counts[1]:
            raise SystemExit(f"batch {got.step} of the device is not the CPU's: {counts[1]} and {counts[0]}")


def measure(run: Callable[[], None]) -> float:
    """Seconds until the device has finished too."""
    torch.cuda.synchronize()
    started = time.perf_counter()
    run()
    torch.cuda.synchronize()
    return time.perf_counter() - started


def drain(pipeline: BatchPipeline, schedule: SeedSchedule, num_batches: int, *, copy: bool = False) -> None:
    """Take all batches, and copy them to the device."""
    for batch in pipeline.run(schedule, 0, 0, num_batches):
        if copy:
            for part in tensors_of(batch):
                part.pin_memory().to("cuda", non_blocking=True)


def compare(graph: Graph, layout: str, options: argparse.Namespace) -> dict[str, Any]:
    """Every repeat of every contender on one layout."""
    config = SamplerConfig(fanouts=tuple(options.fanouts), layout=layout)
    schedule = SeedSchedule(seeds=graph.split("train"), batch_size=options.batch_size, shuffle=True)
    num_batches = min(options.batches, schedule.num_steps)
    x = graph.x
    assert x is None or isinstance(x, torch.Tensor)
    cpu = make_pipeline(graph.csc, config, x, num_threads=options.workers, depth=2 * options.workers)
    seconds: dict[str, list[float]] = {"cpu": [], "cpu+copy": []}
    stages: dict[str, dict[str, float]] = {}
    runs: dict[str, Callable[[], None]] = {
        "cpu": lambda: drain(cpu, schedule, num_batches),
        "cpu+copy": lambda: drain(cpu, schedule, num_batches, copy=True),
    }
    gpus: dict[str, BatchPipeline] = {}
    for topology, features in PLACEMENTS:
        name = f"gpu {topology}/{features}"
        gpus[name] = make_gpu_pipeline(graph.csc, config, x, topology=topology, features=features)
        check_bits(cpu, gpus[name], schedule, min(options.check, num_batches))
        runs[name] = lambda pipeline=gpus[name]: drain(pipeline, schedule, num_batches)  # type: ignore[misc]
        seconds[name] = []
    for run in runs.values():  # kernels are compiled, buffers allocated
        run()
    before = {name: pipeline.stage_seconds() for name, pipeline in gpus.items()}
    for _ in range(options.repeats):
        for name, run in runs.items():
            seconds[name].append(measure(run))
    for name, pipeline in gpus.items():
        spent = {stage: now - before[name][stage] for stage, now in pipeline.stage_seconds().items()}
        stages[name] = {stage: 1e3 * spent[stage] / spent["batches"] for stage in ("sample", "gather")}
    return {
        "layout": layout,
        "batches": num_batches,
        "seconds": seconds,
        "batches_per_second": {n: num_batches / statistics.median(s) for n, s in seconds.items()},
        "device_ms_per_batch": stages,
    }


def main() -> None:
    """Compare both layouts on one graph."""
    parser = parser_of(__doc__)
    parser.add_argument("graph", type=Path, nargs="?", help="a graph's folder; default: a made one")
    parser.add_argument("--nodes", type=int, default=2_000_000)
    parser.add_argument("--edges", type=int, default=50_000_000)
    parser.add_argument("--features", type=int, default=128)
    parser.add_argument("--fanouts", type=int, nargs="+", default=[15, 10, 5])
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--batches", type=int, default=100)
    parser.add_argument("--workers", type=int, default=torch.get_num_threads(), help="of the CPU's sampler")
    parser.add_argument("--check", type=int, default=5, help="batches compared bit for bit")
    parser.add_argument("--repeats", type=int, default=5)
    add_out_argument(parser)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("benchmarks.gpu.sampling needs a CUDA device, and torch finds none here")
    graph = (
        load(options.graph) if options.graph else skewed_graph(options.nodes, options.edges, options.features)
    )
    results = [compare(graph, layout, options) for layout in ("blocks", "subgraph")]
    for result in results:
        print(f"{graph.name}, {result['layout']}: batches equal to the bit; batches/s")
        for name, rate in result["batches_per_second"].items():
            stages = result["device_ms_per_batch"].get(name, {})
            shown = ", ".join(f"{stage} {ms:.2f} ms" for stage, ms in stages.items())
            print(f"  {name:20} {rate:8.1f}  {shown}")
    setting = {
        "gpu": torch.cuda.get_device_name(),
        "graph": graph.name,
        "num_nodes": graph.num_nodes,
        "num_edges": graph.csc.num_edges,
        **{name: getattr(options, name) for name in ("fanouts", "batch_size", "workers", "check")},
    }
    named = {f"{graph.name}, {found['layout']}": {**setting, **found} for found in results}
    print("wrote", write_rows("gpu_sampling", named, repeats=options.repeats, out=options.out))


if __name__ == "__main__":
    main()
