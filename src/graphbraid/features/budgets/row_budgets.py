"""Budgets of tiers: how many rows a size holds, and which."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from graphbraid.arguments import as_budget
from graphbraid.errors import ConfigError, ResourceError
from graphbraid.features.rows.caches import RowCache
from graphbraid.features.rows.disk import DiskOptions, DiskRows
from graphbraid.features.rows.widening import WidenedCache
from graphbraid.features.scores.score import Score
from graphbraid.features.scores.score import score as score_of
from graphbraid.files.writing import format_bytes
from graphbraid.graph import Graph
from graphbraid.machine.hardware import free_memory_bytes
from graphbraid.sampling.config import SamplerConfig
from graphbraid.sampling.rows.device_cache import MAP_BYTES
from graphbraid.sampling.schedule import SeedSchedule

_SLOT_BYTES = 32  # noted of each row in memory: csrc/disk/row_cache.cpp, and what it was filled with
_SCALE_BYTES = 4  # noted of each row of int8, in memory or not
_FEWEST_REQUESTS = 4  # under way at a time, however small the budget


def options_for(host: int | str) -> DiskOptions:
    """How to read for a budget: requests under way take an eighth of it at most, where that is some."""
    options = DiskOptions()
    size = as_budget(host, "host")
    fit = max(size // 8 // options.longest_bytes, _FEWEST_REQUESTS) if size else options.depth
    return DiskOptions(depth=min(fit, options.depth))


def row_bytes_kept(rows: DiskRows, *, ranked: bool, scaled: bool = False) -> tuple[int, int]:
    """Bytes noted of all rows where some are kept (scales included), and bytes that each of these takes."""
    noted = 8 + ranked + _SCALE_BYTES * scaled
    return rows.buffer_bytes + rows.shape[0] * noted, rows.row_bytes + _SLOT_BYTES


def host_rows_in(host: int | str, rows: DiskRows, *, ranked: bool, scaled: bool = False) -> int:
    """How many rows a budget of memory holds, with what is noted about them.

    Raises:
        ConfigError: it holds none, and is not 0.
        ResourceError: it is more than the free memory.
    """
    num_rows = rows.shape[0]
    notes, kept = row_bytes_kept(rows, ranked=ranked, scaled=scaled)
    whole = notes + num_rows * kept
    budget = min(as_budget(host, "host"), whole)
    if budget == 0:
        return 0
    free = free_memory_bytes()
    if free is not None and budget > free:
        raise ResourceError(
            f"host={host!r} takes {format_bytes(budget)} of memory; {format_bytes(free)} are free. Give "
            "less: the other rows are read from the file"
        )
    held = min((budget - notes) // kept, num_rows)
    if held < 1:
        raise ConfigError(
            f"host={host!r} holds no row: what is noted of all {num_rows:,} rows takes "
            f"{format_bytes(notes)}, a row {format_bytes(kept)}. Give more, or 0 to "
            "read all from the file"
        )
    return held


def hot_ids_in(hot: int | str, order: Tensor, row_bytes: int) -> Tensor:
    """The rows that a budget of a device's memory holds: ``(num_hot,)`` int64, none for a budget of 0.

    Args:
        hot: bytes or a size for rows and the map that finds them; ``"all"``: every row.
        order: ``(num_rows,)`` int64, the rows from the one that is read most.
        row_bytes: of a row.

    Raises:
        ConfigError: it holds no row, and is not 0.
    """
    num_rows = len(order)
    budget = as_budget(hot, "hot")
    if budget == 0 or num_rows == 0:
        return order[:0]
    held = min(budget // row_bytes, num_rows)
    if not torch.equal(order[:held], torch.arange(held)):
        held = min(max(budget - MAP_BYTES * num_rows, 0) // row_bytes, num_rows)
    if held < 1:
        raise ConfigError(
            f"hot={hot!r} holds no row: the map of all {num_rows:,} rows takes "
            f"{format_bytes(MAP_BYTES * num_rows)}, a row {format_bytes(row_bytes)}. Give more, or 0"
        )
    return order[:held]


def cache_in(
    host: int | str,
    rows: DiskRows,
    policy: str,
    score: Tensor | None,
    hot_ids: Tensor,
    *,
    scale: Tensor | None = None,
) -> RowCache | WidenedCache:
    """A cache of a file's rows within a budget, filled with the highest of those that no device keeps.

    With a ``scale`` for each row, rows are of int8 and are given as float32.

    Raises:
        ConfigError: as :func:`host_rows_in`; ``static`` without a score.
        ResourceError: likewise.
    """
    all_rows = rows.shape[0]
    num_rows = host_rows_in(host, rows, ranked=score is not None, scaled=scale is not None)
    if num_rows == all_rows:
        policy = "static"  # nothing ever goes
    elif policy == "static" and num_rows and score is None:
        raise ConfigError(
            "policy='static' keeps the rows of the highest score; give score=, or another policy"
        )
    ranking = score
    if score is not None and hot_ids.numel():
        ranking = score.clone()
        ranking[hot_ids] = score.min()  # the host is asked for them by evaluations at most
    cache = RowCache(rows, num_rows, policy=policy, score=ranking)
    cache.fill(_first_rows(score, num_rows, all_rows, len(hot_ids)))
    return cache if scale is None else WidenedCache(cache, scale)


def order_of(score: Tensor) -> Tensor:
    """The rows from that of the highest score."""
    return score.argsort(descending=True, stable=True)


def _first_rows(score: Tensor | None, num_rows: int, all_rows: int, num_hot: int) -> Tensor:
    """The rows that memory is filled with: the highest that no device keeps."""
    if num_rows == all_rows:
        return torch.arange(all_rows)
    if score is None:
        return torch.empty(0, dtype=torch.int64)
    return order_of(score)[num_hot : num_hot + num_rows]


def named_score(
    graph: Graph,
    name: str,
    sampler: SamplerConfig | None,
    schedule: SeedSchedule | None,
    *,
    epochs: int | range = 1,
    run_seconds: float | None = None,
) -> Score:
    """A score by its name; ``auto`` without a sampler is the best that the graph alone gives.

    Args:
        graph: whose rows are scored.
        name: of the score.
        sampler: how neighbours are drawn. If None, only scores of the graph alone can be had.
        schedule: seeds of the steps, likewise.
        epochs: of the run, as in :func:`graphbraid.features.score`.
        run_seconds: that it will take, likewise. If None, ``auto`` does not look ahead.

    Raises:
        ConfigError: there is no such score, or it follows a sampler.
        DataError: the graph lacks what it needs.
    """
    if name == "auto" and sampler is None:
        kind = "weighted_reverse_pagerank" if "train" in graph.splits else "degree"
        reason = "no sampler was given, so it is the best that the graph alone gives"
        return dataclasses.replace(score_of(graph, kind), reason=reason)
    return score_of(graph, name, sampler=sampler, schedule=schedule, epochs=epochs, run_seconds=run_seconds)


def described(score: object) -> str:
    """Say by which score tiers are filled, and why by that; empty where it has no name."""
    kind, reason = getattr(score, "kind", None), getattr(score, "reason", "")
    if not isinstance(kind, str):
        return ""
    return f"{kind}: {reason}" if reason else kind


def values_of(score: Any) -> Any:
    """The numbers of a score or of a record of it."""
    if isinstance(score, Tensor):  # which has a method of that name
        return score
    return getattr(score, "values", score)
