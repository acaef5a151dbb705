"""Mini-batches prepared on a CUDA device beside the CPU's, and beside a plain sampler that reads the host.

    python -m benchmarks.gpu.sampling [GRAPH_FOLDER] [--nodes N --edges E] [--workers N] [--repeats N]
    python -m benchmarks.gpu.sampling --smoke      with interpreted kernels on the CPU, and a tiny graph

First checks that the device's batches have the bits of the CPU's, and that the plain sampler's are samples of
the graph with as many edges into the seeds; then measures batches a second, in turn:

- ``cpu``: the compiled sampler and gather on all cores, batches left on the host;
- ``cpu+copy``: the same, each batch then copied to the device from page-locked memory;
- ``gpu TOPOLOGY/FEATURES``: the Triton sampler, each array on the ``device`` or read from the ``host``;
- ``plain uva``: blocks by PyTorch's own operators on the device, which reads topology and features
  page-locked on the host, as DGL's samplers do with ``use_uva=True``.

Beside the gather's milliseconds stands its rate, of memory or link. Without a graph's folder (see
benchmarks.graphs) it makes one with skewed degrees.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from benchmarks.common.options import parser_of
from benchmarks.common.rows import write_rows
from benchmarks.gpu.card import Limits, beside, describe, goals_of, timed
from benchmarks.gpu.fullgraph import add_arguments, device_of, software
from benchmarks.graphs.folder import load
from graphbraid.graph import Graph
from graphbraid.graph.csc import Csc, index_dtype
from graphbraid.sampling import SamplerConfig, SeedSchedule
from graphbraid.sampling.cpu import HostPipeline, make_pipeline
from graphbraid.sampling.sample import PreparedBatch

if TYPE_CHECKING:
    from graphbraid.sampling.triton import TritonPipeline

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


def tensors_of(batch: PreparedBatch) -> Tensors:
    """All that a batch consists of."""
    sampled = batch.sampled
    parts = [batch.input_id, sampled.n_id] + [rows for rows in batch.x if rows is not None]
    for edges in sampled.edges:
        parts += [edges.indptr, edges.indices]
        parts += [] if edges.positions is None else [edges.positions]
    return parts


def check_bits(
    cpu: HostPipeline,
    gpu: TritonPipeline,
    schedule: SeedSchedule,
    num_batches: int,
) -> None:
    """End the benchmark unless both prepare the same batches."""
    for expected, got in zip(
        cpu.run(schedule, 0, 0, num_batches), gpu.run(schedule, 0, 0, num_batches), strict=True
    ):
        pairs = zip(tensors_of(expected), tensors_of(got), strict=True)
        same = all(torch.equal(a, b.cpu()) for a, b in pairs)
        counts = [(b.sampled.nodes_per_hop, b.sampled.edges_per_hop) for b in (expected, got)]
        if not same or counts[0] != counts[1]:
            raise SystemExit(f"batch {got.step} of the device is not the CPU's: {counts[1]} and {counts[0]}")


class PlainSampler:
    """Blocks by PyTorch's own operators; what lies on the host is read where it is.

    Args:
        graph: with dense features or none.
        fanouts: drawn per hop without replacement, the hop nearest the seeds first.
        place: that samples.
    """

    def __init__(self, graph: Graph, fanouts: list[int], place: torch.device) -> None:
        assert graph.x is None or isinstance(graph.x, torch.Tensor)
        self.fanouts, self._place = fanouts, place
        arrays = (graph.csc.indptr, graph.csc.indices, graph.x)
        self._indptr, self._indices, self._x = (
            None if one is None else _seen_from(one, place) for one in arrays
        )
        self._local = torch.full((graph.num_nodes,), -1, device=place)

    def sample(self, seeds: torch.Tensor) -> tuple[torch.Tensor, list[Tensors], torch.Tensor | None]:
        """Nodes, seeds first, ``[indptr, local indices, positions]`` of each hop, and the nodes' rows."""
        nodes, blocks = seeds.to(self._place), []
        for fanout in self.fanouts:
            begin, end = self._indptr[nodes], self._indptr[nodes + 1]
            drawn, is_one = _draw(end - begin, fanout)
            positions = (begin[:, None] + drawn)[is_one]
            sources = self._indices[positions].long()
            self._local[nodes] = torch.arange(len(nodes), device=self._place)
            fresh = sources[self._local[sources] < 0].unique()
            nodes = torch.cat([nodes, fresh])
            self._local[nodes] = torch.arange(len(nodes), device=self._place)
            indptr = torch.nn.functional.pad(is_one.sum(1).cumsum(0), (1, 0))
            blocks.append([indptr, self._local[sources], positions])
        self._local[nodes] = -1
        return nodes, blocks, None if self._x is None else self._x[nodes]


def _draw(degree: torch.Tensor, fanout: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Distinct positions in each row by Floyd's algorithm, ``(rows, fanout)``, and which of them are any."""
    columns = torch.arange(fanout, device=degree.device)
    drawn = columns.repeat(len(degree), 1)
    for column in range(fanout):
        last = degree - fanout + column  # drawn from [0, last]; the last itself where that number is taken
        number = (torch.rand(len(degree), dtype=torch.float64, device=degree.device) * (last + 1)).long()
        is_taken = (drawn[:, :column] == number[:, None]).any(1)
        drawn[:, column] = torch.where(degree > fanout, torch.where(is_taken, last, number), column)
    return drawn, columns < degree[:, None]


def _seen_from(array: torch.Tensor, place: torch.device) -> torch.Tensor:
    """A tensor of the device over page-locked memory of the host, which it reads over the link."""
    if place.type == "cpu":
        return array
    host = array.pin_memory()
    interface = {
        "shape": tuple(host.shape),
        "typestr": host[:0].numpy().dtype.str,
        "data": (host.data_ptr(), False),
        "version": 2,
    }
    seen = torch.as_tensor(SimpleNamespace(__cuda_array_interface__=interface, kept=host), device=place)
    if seen.data_ptr() != host.data_ptr():
        raise RuntimeError("torch copied what was to be read over the link")
    return seen


def check_plain(graph: Graph, plain: PlainSampler, expected: PreparedBatch, seeds: torch.Tensor) -> None:
    """End the benchmark unless the plain sampler draws distinct edges of the graph, as many as are due."""
    nodes, blocks, rows = plain.sample(seeds)
    nodes, indptr, degrees = nodes.cpu(), graph.csc.indptr, graph.csc.degrees()
    fits = torch.equal(nodes[: len(seeds)], seeds) and len(nodes) == len(nodes.unique())
    fits &= torch.equal(blocks[0][0].cpu(), expected.sampled.edges[0].indptr)
    fits &= rows is None or torch.equal(rows.cpu(), graph.x[nodes])  # type: ignore[index]
    for fanout, (ends, sources, positions) in zip(plain.fanouts, blocks, strict=True):
        counts, at = ends.cpu().diff(), positions.cpu()
        dst = nodes[: len(counts)].repeat_interleave(counts)
        fits &= torch.equal(counts, degrees[nodes[: len(counts)]].clamp(max=fanout))
        fits &= len(at.unique()) == len(at)
        fits &= bool(((at >= indptr[dst]) & (at < indptr[dst + 1])).all())
        fits &= torch.equal(graph.csc.indices[at].long(), nodes[sources.cpu()])
    if not fits:
        raise SystemExit("the plain sampler's batch is no sample of the graph")


def drain(
    pipeline: HostPipeline | TritonPipeline,
    schedule: SeedSchedule,
    num_batches: int,
    place: torch.device | None = None,
) -> None:
    """Take all batches, and copy them to a device."""
    for batch in pipeline.run(schedule, 0, 0, num_batches):
        if place is not None:
            for part in tensors_of(batch):
                (part.pin_memory() if place.type == "cuda" else part).to(place, non_blocking=True)


def compare(
    graph: Graph, layout: str, options: argparse.Namespace, place: torch.device, limits: Limits
) -> dict[str, Any]:
    """Every repeat of every contender on one layout."""
    from graphbraid.sampling.triton import TritonPipeline

    config = SamplerConfig(fanouts=tuple(options.fanouts), layout=layout)
    schedule = SeedSchedule(seeds=graph.split("train"), batch_size=options.batch_size, shuffle=True)
    num_batches = min(options.batches, schedule.num_steps)
    x = graph.x
    assert x is None or isinstance(x, torch.Tensor)
    cpu = make_pipeline(graph, config, [x], num_threads=options.workers, depth=2 * options.workers)
    runs: dict[str, Callable[[], object]] = {
        "cpu": lambda: drain(cpu, schedule, num_batches),
        "cpu+copy": lambda: drain(cpu, schedule, num_batches, place),
    }
    gpus: dict[str, TritonPipeline] = {}
    for topology, features in PLACEMENTS:
        name = f"gpu {topology}/{features}"
        gpus[name] = TritonPipeline(graph.csc, config, x, device=place, topology=topology, features=features)
        check_bits(cpu, gpus[name], schedule, min(options.check, num_batches))
        runs[name] = lambda pipeline=gpus[name]: drain(pipeline, schedule, num_batches)  # type: ignore[misc]
    if layout == "blocks":
        try:
            plain = PlainSampler(graph, options.fanouts, place)
            check_plain(graph, plain, next(cpu.run(schedule, 0, 0, 1)), schedule.seeds_of(0, 0))
            all_seeds = [schedule.seeds_of(0, step) for step in range(num_batches)]
            runs["plain uva"] = lambda: [plain.sample(seeds) for seeds in all_seeds]
        except RuntimeError as error:  # the others are measured all the same
            print(f"plain uva left out: {error}")
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():  # kernels are compiled, buffers allocated
        run()
    before = {name: pipeline.stage_seconds() for name, pipeline in gpus.items()}
    for _ in range(options.repeats):
        for name, run in runs.items():
            seconds[name].append(timed(run, 1, place))
    num_rows = sum(one.sampled.n_id.numel() for one in cpu.run(schedule, 0, 0, num_batches))
    batch_bytes = 0 if x is None else num_rows * x[:1].nbytes / num_batches
    stages = {}
    for name, pipeline in gpus.items():
        spent = {stage: now - before[name][stage] for stage, now in pipeline.stage_seconds().items()}
        stages[name] = {stage: 1e3 * spent[stage] / spent["batches"] for stage in ("sample", "gather")}
        key, times = ("link", 1) if name.endswith("host") else ("hbm", 2)  # the memory is written, too
        stages[name][key] = times * batch_bytes / max(1e-3 * stages[name]["gather"], 1e-9)
    rates = {n: num_batches / statistics.median(s) for n, s in seconds.items()}
    print(f"{graph.name}, {layout}: batches equal to the bit; batches/s")
    for name, rate in rates.items():
        shown = ""
        if name in stages:
            [sample, gather], [key, gathered] = list(stages[name].values())[:2], list(stages[name].items())[2]
            shown = f"sample {sample:.2f} ms, gather {gather:.2f} ms, {beside(gathered, key, limits)}"
        print(f"  {name:20} {rate:8.1f}  {shown}", flush=True)
    return {
        "layout": layout,
        "batches": num_batches,
        "seconds": seconds,
        "batches_per_second": rates,
        "device_per_batch": stages,
        "goals": goals_of(
            ("device's sampling over all cores'", rates["gpu device/device"] / rates["cpu"], 3.0, True)
        ),
    }


def main(arguments: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Compare both layouts on one graph."""
    parser = parser_of(__doc__)
    add_arguments(parser)
    parser.add_argument("graph", type=Path, nargs="?", help="a graph's folder; default: a made one")
    parser.add_argument("--nodes", type=int, default=2_000_000)
    parser.add_argument("--edges", type=int, default=50_000_000)
    parser.add_argument("--features", type=int, default=128)
    parser.add_argument("--fanouts", type=int, nargs="+", default=[15, 10, 5])
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--batches", type=int, default=100)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="on the CPU")
    parser.add_argument("--check", type=int, default=5, help="batches compared bit for bit")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args(arguments)
    if options.smoke:
        os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton is imported, later than this
        options.nodes, options.edges, options.features = 200, 1_500, 4
        options.fanouts, options.batch_size, options.batches = [3, 2], 8, 1
        options.check, options.repeats, options.workers = 1, 1, 1
    place, started = device_of(options), time.perf_counter()
    graph = (
        load(options.graph) if options.graph else skewed_graph(options.nodes, options.edges, options.features)
    )
    setting = {
        "gpu": software(place),
        "graph": graph.name,
        "num_nodes": graph.num_nodes,
        "num_edges": graph.csc.num_edges,
        **{name: getattr(options, name) for name in ("fanouts", "batch_size", "workers", "check")},
    }
    limits = setting["gpu"]["limits"]
    print(describe(limits), flush=True)
    rows, path = [], None
    for layout in ("blocks",) if options.smoke else ("blocks", "subgraph"):
        if time.perf_counter() - started > options.budget:
            print(f"left out for want of time: {layout}")
            continue
        rows.append(compare(graph, layout, options, place, limits))
        named = {f"{graph.name}, {layout}": {**setting, **rows[-1]}}
        name = f"gpu_sampling{'_smoke' * options.smoke}"
        path = write_rows(name, named, repeats=options.repeats, out=options.out)
    print("wrote", path)
    return rows


if __name__ == "__main__":
    main()
