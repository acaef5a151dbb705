"""How good the scheduler's plans are, in virtual time.

    python -m benchmarks.planning.schedule

Random durations, each stage log-uniform over two decades, n = 500 batches: the simulated epoch over the bound
that no schedule beats, over all-CPU, all-GPU and the best static split of a grid; and small epochs over the
true optimum, found by exhaustive search. Nothing is timed but the planning itself.
"""

from __future__ import annotations

import random
import statistics
import time
from typing import Any

from benchmarks.common.options import add_out_argument, parser_of
from benchmarks.common.rows import write_rows
from benchmarks.planning.optimum import optimal_seconds
from benchmarks.planning.strategies import cpu_pipeline, gpu_only, naive_hybrid, static_split
from graphbraid.collective.plan.plan import Plan
from graphbraid.collective.plan.scheduler import make_plan
from graphbraid.collective.plan.times import Duration, Profile, StageTimes

GRID = [i / 20 for i in range(21)]
TARGETS = {"mean over bound": 1.02, "worst over bound": 1.10, "planning seconds": 1.0}


def drawn_times(draw: random.Random, workers: int) -> StageTimes:
    """Each stage from 1 to 100 ms; the CPU's per batch from all workers together."""

    def seconds() -> float:
        return float(10.0 ** draw.uniform(-3.0, -1.0))

    return StageTimes(
        workers=workers,
        cpu=Duration(seconds=workers * seconds()),
        dma=Duration(seconds=seconds()),
        uva=Duration(seconds=seconds()),
        model=Duration(seconds=seconds()),
    )


def planned(times: StageTimes, num_batches: int) -> tuple[Plan, float]:
    """The plan, and the processor's seconds it took to make (one thread)."""
    started = time.process_time()
    plan = make_plan(Profile(times=(times,)), num_batches)
    return plan, time.process_time() - started


def against_bound(times: StageTimes, num_batches: int) -> dict[str, Any]:
    """One set of durations: the plan, its bound and what else could be done."""
    plan, planning = planned(times, num_batches)
    others = {
        "cpu": cpu_pipeline(times, num_batches).seconds,
        "gpu": gpu_only(times, num_batches).seconds,
        "static": min(static_split(share)(times, num_batches).seconds for share in GRID),
        "naive": min(naive_hybrid(share)(times, num_batches).seconds for share in GRID[::2]),
    }
    return {
        "ms": [
            round(1e3 * d.seconds, 4) for d in (times.cpu, times.dma, times.uva or times.dma, times.model)
        ],
        "workers": times.workers,
        "plan": plan.name,
        "split": plan.split,
        "buffers": [plan.cbs, plan.gbs],
        "limit": plan.limit,
        "over_bound": plan.predicted_seconds / plan.bound_seconds,
        "over": {name: plan.predicted_seconds / seconds for name, seconds in others.items()},
        "planning_seconds": planning,
    }


def against_optimum(draw: random.Random) -> dict[str, Any]:
    """A small epoch: the plan over the optimum with unlimited buffers."""
    times, n = drawn_times(draw, draw.choice([1, 2, 4])), draw.randint(2, 8)
    plan, _ = planned(times, n)
    best = optimal_seconds(times, n)
    return {
        "num_batches": n,
        "over_optimum": plan.predicted_seconds / best,
        "bound_over_optimum": plan.bound_seconds / best,
    }


def summary(cases: list[dict[str, Any]]) -> dict[str, float]:
    """The figures of one kind of cases."""
    over = [case["over_bound"] for case in cases]
    best_other = [max(case["over"][name] for name in ("cpu", "gpu", "static")) for case in cases]
    naive = [1.0 / case["over"]["naive"] for case in cases]
    dedicated = [1.0 / max(case["over"]["cpu"], case["over"]["gpu"]) for case in cases]
    return {
        "cases": len(cases),
        "mean over bound": statistics.mean(over),
        "worst over bound": max(over),
        "worst over best of CPU, GPU and static split": max(best_other),
        "median speedup over the better of CPU and GPU": statistics.median(dedicated),
        "largest speedup over the better of CPU and GPU": max(dedicated),
        "median speedup over the best naive hybrid": statistics.median(naive),
        "planning seconds": max(case["planning_seconds"] for case in cases),
    }


def main() -> None:
    """Plan, compare, write."""
    parser = parser_of(__doc__)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--cases-workers", type=int, default=300, help="with several workers")
    parser.add_argument("--small-cases", type=int, default=300)
    parser.add_argument("--batches", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    add_out_argument(parser)
    options = parser.parse_args()
    draw = random.Random(options.seed)
    cases = {
        name: [against_bound(drawn_times(draw, draw.choice(workers)), options.batches) for _ in range(count)]
        for name, workers, count in (
            ("one worker", [1], options.cases),
            ("2 to 16 workers", [2, 4, 8, 16], options.cases_workers),
        )
    }
    small = [against_optimum(draw) for _ in range(options.small_cases)]
    over = [case["over_optimum"] for case in small]
    rows: dict[str, dict[str, Any]] = {
        name: {
            "summary": summary(of_kind),
            "worst": sorted(of_kind, key=lambda case: -case["over_bound"])[:10],
        }
        for name, of_kind in cases.items()
    }
    rows["small epochs"] = {
        "summary": {
            "cases": len(small),
            "mean over optimum": statistics.mean(over),
            "worst over optimum": max(over),
            "optimal within 1e-9": sum(x <= 1 + 1e-9 for x in over) / len(over),
            "least over optimum": min(over),
            "worst bound over optimum": max(case["bound_over_optimum"] for case in small),
        }
    }
    for name, row in rows.items():
        print(name)
        for label, value in row["summary"].items():
            print(f"  {label:50} {value:.4f}")
    config = {"seed": options.seed, "batches": options.batches, "grid": GRID, "targets": TARGETS}
    named = {name: {"config": config, **row} for name, row in rows.items()}
    print("wrote", write_rows("schedule", named, repeats=1, out=options.out))


if __name__ == "__main__":
    main()
