"""Sums over in-neighbours of which other ranks keep some, on one card: exchanged, or read where they are.

    python -m benchmarks.gpu.pipeline [--ranks 2 --nodes N --edges E --width 64] [--record TABLE.json]
    python -m benchmarks.gpu.pipeline --smoke      with the kernel's twin on the CPU, and a tiny graph

Ranks are processes that share one card and read each other's rows by CUDA's inter-process memory handles; a
link between cards is therefore not measured. Each owns a range of nodes of about as many in-edges. First all
results are compared: with the exchange's, and to the bit where only the order of work or ``wpb`` differs.
Then every way is timed in turn, on all ranks at once, of which the slowest counts:

- ``exchange``: rows travel by way of the host's memory, and one kernel sums them (no card to card way: NCCL
  takes no two ranks of one card);
- ``pipelined``: partitions of both kinds in turns, with the configuration that the search tries first;
- ``apart``: the same without interleaving, all local partitions before all remote ones;
- ``whole rows``: interleaved, without neighbour partitioning: a row's neighbours of a kind are one partition;
- ``tuned``: interleaved, with what the cross-iteration search has found among the model's settings.

``seconds`` includes publishing the rows and the meetings of the ranks, ``kernel_seconds`` is the sum alone,
beside which stands the rate of the rows that all ranks read, each counted every time, and the memory's. Ways
that ``--budget`` leaves no time for are named.
``--record`` times every setting that the model allows, and writes a table of seconds by ``ps,dist,wpb``.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, multiprocessing

from benchmarks.common.options import parser_of
from benchmarks.common.rows import write_rows
from benchmarks.gpu.card import beside, describe
from benchmarks.gpu.fullgraph import add_arguments, device_of, software
from benchmarks.gpu.sampling import skewed_graph
from graphbraid.distributed import Communicator, Part, Partition, split
from graphbraid.distributed.peers import Peers, SharedRows, places_of_halo
from graphbraid.distributed.ranks.transport import TorchTransport
from graphbraid.fullgraph.device import Cuda, DeviceLimits
from graphbraid.fullgraph.ranks.pipeline_tuner import (
    SIZES,
    CrossIterationSearch,
    Partitions,
    Setting,
    config_of,
    ladders,
)
from graphbraid.graph.csc import Csc
from graphbraid.ops import Aggregation
from graphbraid.ops.peers import (
    NOTHING,
    PeerEdges,
    PipelineConfig,
    PipelinePlan,
    pipelined_sum,
)

TOLERANCE = 1e-4
WAYS = ("exchange", "pipelined", "apart", "whole rows", "tuned")
_SMALL = DeviceLimits(num_sms=2, warps_per_sm=8, shared_bytes_per_sm=1 << 16)


class Rank:
    """What one process of the benchmark holds."""

    def __init__(self, comm: Communicator, options: argparse.Namespace) -> None:
        self.comm, self.options = comm, options
        self.place = torch.device("cpu" if options.smoke else "cuda:0")
        graph = skewed_graph(options.nodes, options.edges, 1)
        self.part = split(graph, _ranges(graph.csc, comm.size))[comm.rank]
        self.joined = self.part.joined()
        self.peers = Peers(comm, self.place)
        self.edges = self._edges()
        generator = torch.Generator().manual_seed(7)
        x = torch.randn(options.nodes, options.width, generator=generator)
        self.x = x[self.part.owned].to(self.place)
        self.rows = SharedRows(self.peers, self.part.num_owned, options.width)

    def _edges(self) -> PeerEdges:
        part, comm = self.part, self.comm
        owner, row = places_of_halo(comm, part.send, *_counts(part))
        how = Aggregation(csc=self.joined)
        return PeerEdges.of(how, part.num_owned, owner, row, rank=comm.rank, num_ranks=comm.size)

    def exchange(self) -> Callable[[], Tensor]:
        """The sum of rows that travel by way of the host."""
        part, place = self.part, self.place
        csc = Csc(
            self.joined.indptr.to(place), self.joined.indices.to(place), self.joined.num_src, trusted=True
        )
        how, send = Aggregation(csc=csc), part.send.to(place)

        def run() -> Tensor:
            sent = self.x[send].cpu()
            halo = self.comm.all_to_all(sent, *_counts(part)).wait()
            return how.forward(torch.cat([self.x, halo.to(place)]))

        return run

    def pipelined(self, plan: PipelinePlan) -> Callable[[], Tensor]:
        """The sum of rows that are published and read where they are."""

        def run() -> Tensor:
            self.rows.writable().copy_(self.x)
            self.rows.publish()
            return pipelined_sum(plan, self.rows.readable())

        return run

    def kernel(self, plan: PipelinePlan) -> Callable[[], Tensor]:
        """The same without publishing, of rows that are there."""
        return lambda: pipelined_sum(plan, self.rows.readable())

    def plan(self, config: PipelineConfig) -> PipelinePlan:
        """The edges as the kernel reads them."""
        return PipelinePlan.of(self.edges, config).to(self.place)

    def seconds(self, run: Callable[[], Tensor]) -> list[float]:
        """How long each repeat takes on the slowest rank, after one that does not count."""
        found = []
        for _ in range(self.options.repeats + 1):
            self.peers.meet()
            began = time.perf_counter()
            run()
            if self.place.type == "cuda":
                torch.cuda.synchronize(self.place)
            found.append(max(self.comm.gather(time.perf_counter() - began)))
        return found[1:]


def _counts(part: Part) -> tuple[list[int], list[int]]:
    return part.send_indptr.diff().tolist(), part.halo_indptr.diff().tolist()


def _ranges(csc: Csc, num_ranks: int) -> Partition:
    """Ranges of nodes with about as many in-edges each."""
    share = csc.indptr[1:] * num_ranks // max(csc.num_edges, 1)
    part_of = share.clamp_(max=num_ranks - 1).to(torch.int32)
    return Partition(part_of=part_of, num_parts=num_ranks, strategy="ranges", balance="edges")


def _count(csc: Csc, ps: int) -> int:
    """Neighbour partitions of ``ps`` edges, without making them."""
    return int(((csc.degrees() + ps - 1) // ps).sum())


def apart(plan: PipelinePlan) -> PipelinePlan:
    """The same partitions without interleaving: all local ones come before all remote ones.

    A warp has as many partitions as before, which follow each other.
    """
    count, each = plan.indptr.numel() - 1, plan.work.shape[1]
    num_warps = -(-count // each)
    work = torch.full((num_warps * each,), NOTHING, dtype=torch.int32, device=plan.work.device)
    work[:count] = torch.arange(count)
    return replace(plan, work=work.view(num_warps, each))


def search_of(rank: Rank) -> tuple[CrossIterationSearch, list[Setting]]:
    """A search by the busiest rank, the same on all ranks, and the settings that it may try."""
    mine = [[_count(csc, ps) for csc in (rank.edges.local, rank.edges.remote)] for ps in SIZES]
    most = torch.tensor(rank.comm.gather(mine)).amax(0).tolist()
    partitions = {ps: Partitions(local=n, remote=m) for ps, (n, m) in zip(SIZES, most, strict=True)}
    limits = _SMALL if rank.options.smoke else Cuda(rank.place).limits()
    values, allowed = ladders(rank.options.width, partitions, limits)
    return CrossIterationSearch(values, allowed), [s for s in itertools.product(*values) if allowed(s)]


def tuned(rank: Rank) -> tuple[PipelineConfig, dict[str, float]]:
    """What the search finds by live trials, and its table."""
    search, _ = search_of(rank)
    while search.next is not None:
        search.tell(min(rank.seconds(rank.kernel(rank.plan(config_of(search.next))))))
    return config_of(search.best), {_name(setting): s for setting, s in search.table.items()}


def recorded(rank: Rank) -> dict[str, float]:
    """The time of every setting that the model allows."""
    _, settings = search_of(rank)
    return {_name(one): min(rank.seconds(rank.kernel(rank.plan(config_of(one))))) for one in settings}


def _name(setting: Setting) -> str:
    return ",".join(map(str, setting))


def problem_of(rank: Rank, plans: dict[str, PipelinePlan]) -> str:
    """What is wrong with the results; empty if nothing is."""
    expected, bits = rank.exchange()(), dict[int, Tensor]()
    problems = []
    for name, plan in plans.items():
        out = rank.pipelined(plan)()
        if not torch.allclose(out, expected, rtol=TOLERANCE, atol=TOLERANCE):
            problems.append(f"{name} differs by {float((out - expected).abs().max()):.3g}")
        if not torch.equal(out, bits.setdefault(plan.config.ps, out)):
            problems.append(f"{name} has other bits than another order of the same partitions")
    return next((problem for of in rank.comm.gather(problems) for problem in of), "")


def measured(rank: Rank, ends: float) -> dict[str, Any]:
    """Results compared, then all ways in turn that begin before ``ends``, in seconds since 1970."""
    degrees = torch.cat([rank.edges.local.degrees(), rank.edges.remote.degrees()])
    largest = max(1, *rank.comm.gather(int(degrees.max()) if degrees.numel() else 1))
    first = config_of(search_of(rank)[0].first)
    plans = {
        "pipelined": rank.plan(first),
        "apart": apart(rank.plan(first)),
        "whole rows": rank.plan(PipelineConfig(ps=largest, dist=first.dist, wpb=first.wpb)),
        "other warps": rank.plan(PipelineConfig(ps=first.ps, dist=4, wpb=8)),
    }
    problem, table = problem_of(rank, plans), {}
    del plans["other warps"]
    ways: dict[str, Any] = {}
    for name in WAYS:
        if problem or max(rank.comm.gather(time.time())) > ends:
            continue
        if name == "exchange":
            ways[name] = {"seconds": rank.seconds(rank.exchange())}
            continue
        if name == "tuned":
            config, table = tuned(rank)
            plans[name] = rank.plan(config)
        plan = plans[name]
        ways[name] = {
            "config": [plan.config.ps, plan.config.dist, plan.config.wpb],
            "seconds": rank.seconds(rank.pipelined(plan)),
            "kernel_seconds": rank.seconds(rank.kernel(plan)),
        }
    halo_rows = rank.comm.gather(rank.part.num_halo)
    found = {"problem": problem, "ways": ways, "trials": table, "halo_rows": halo_rows}
    return found | ({"recorded": recorded(rank)} if rank.options.record else {})


def run_rank(number: int, folder: str, ends: float, options: argparse.Namespace) -> None:
    """What each process runs; the first writes what was found."""
    torch.set_num_threads(1 if options.smoke else torch.get_num_threads())
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=number, world_size=options.ranks
    )
    with Communicator(TorchTransport(owns=True)) as comm:
        rank = Rank(comm, options)
        found = measured(rank, ends)
        rank.rows.close()
        if number == 0:
            Path(folder, "found.json").write_text(json.dumps(found), encoding="utf-8")


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Run the benchmark."""
    parser = parser_of(__doc__)
    add_arguments(parser)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--edges", type=int, default=20_000_000)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--record", type=Path, help="file of tables, to which that of this graph is added")
    options = parser.parse_args(argv)
    place = device_of(options)
    if options.smoke:
        options.nodes, options.edges, options.width, options.repeats = 300, 2_000, 8, 1
    with tempfile.TemporaryDirectory() as folder:
        ends = time.time() + options.budget
        multiprocessing.spawn(run_rank, (folder, ends, options), nprocs=options.ranks)
        found = json.loads(Path(folder, "found.json").read_text(encoding="utf-8"))
    name = (
        f"skewed {options.nodes:,} nodes, {options.edges:,} edges of {options.width}, {options.ranks} ranks"
    )
    if options.record is not None:
        add_table(options.record, name, found.pop("recorded"))
    config = {key: getattr(options, key) for key in ("ranks", "nodes", "edges", "width")}
    row = {"gpu": software(place), "config": config, **found}
    show(name, row)
    file = f"gpu_pipeline{'_smoke' * options.smoke}"
    print("wrote", write_rows(file, {name: row}, repeats=options.repeats, out=options.out))
    return row


def add_table(path: Path, name: str, table: dict[str, float]) -> None:
    """Add a recorded table to a file of them."""
    tables = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    path.write_text(json.dumps(tables | {name: table}, indent=1) + "\n", encoding="utf-8")


def show(name: str, row: dict[str, Any]) -> None:
    """A graph's lines."""
    print(f"{name}: {row['problem'] or 'all ways give the same sums'}")
    print(describe(row["gpu"]["limits"]))
    for way in () if row["problem"] else WAYS:
        if (cell := row["ways"].get(way)) is None:
            print(f"  {way:12} left out for want of time")
            continue
        kernel = ""
        if "config" in cell:
            seconds = median(cell["kernel_seconds"])
            rate = 4 * row["config"]["edges"] * row["config"]["width"] / seconds
            kernel = f", kernel {1e3 * seconds:.3f} ms, {beside(rate, 'hbm', row['gpu']['limits'])}"
        config = f" (ps, dist, wpb = {cell['config']})" if "config" in cell else ""
        print(f"  {way:12} {1e3 * median(cell['seconds']):9.3f} ms{kernel}{config}", flush=True)


if __name__ == "__main__":
    sys.exit(1 if main()["problem"] else 0)
