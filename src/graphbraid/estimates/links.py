"""Memory and time of a run on links or edges beside its mini-batches: links, negatives, rankings."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from graphbraid.estimates.allocation import allocation_of, may_be_tried
from graphbraid.estimates.records import Need
from graphbraid.estimates.sizes import sampled_pass
from graphbraid.estimates.trial import Trial, timed
from graphbraid.fullgraph.reading.modes import in_mode
from graphbraid.train import runtime
from graphbraid.train.inference.evaluate import PAIRS, EvalMode, beside_negatives, encoder_rows, ranking_of
from graphbraid.train.inference.infer import whole_bytes
from graphbraid.train.inference.metrics import AUC, metric_kinds
from graphbraid.train.inference.ranking import MOST_SCORES
from graphbraid.train.step.feed import make_loader
from graphbraid.train.step.links.data import EdgeLabels
from graphbraid.train.step.links.runner import EdgeRunner, LinkRunner, runner_of

_HOST = torch.device("cpu")
_COUNTING_BYTES = 16
"""Bytes per edge of NumPy's arrays while negatives are counted, which torch does not see."""


def link_needs(
    trial: Trial, runner: LinkRunner | EdgeRunner, *, in_flight: int
) -> tuple[tuple[Need, ...], tuple[Need, ...]]:
    """Return a run's memory for its links or edges, and the further memory of its set-up.

    Args:
        trial: the run, after a trial step.
        runner: its runner.
        in_flight: bytes of the batches that the run holds, but not its set-up.
    """
    config = trial.config
    ranks = isinstance(runner, LinkRunner) and (trial.val_nodes is not None or trial.test_nodes is not None)
    kept: list[object] = []

    def set_up() -> None:
        fresh = runner_of(runner.model, trial.graph, runtime.place_of(config), config)
        kept.append(fresh)
        if ranks and isinstance(fresh, LinkRunner):
            kept.append(fresh.negatives_of_evaluation())
        kept.append(make_loader(fresh, config.updated(plan=None), trial.nodes))

    found = allocation_of(set_up, _HOST)
    counted = _COUNTING_BYTES * (runner.data.whole.num_edges + runner.labels.num_nodes) if ranks else 0
    # Small blocks that the set-up frees stay with the process, and later ones fit into them only in part.
    stays = max(found.kept, found.heap)
    most = max(found.peak - stays, counted) - in_flight
    why = "links, edges that carry messages, look-ups of both, and what the C library keeps of making them"
    held = [Need(name="links", nbytes=stays, why=why)]
    if isinstance(runner, LinkRunner):
        memory = "of a step, in memory that the next one takes"
        held.append(Need(name="scores", nbytes=runner.kept_bytes, why=memory))
    return (
        tuple(held),
        (Need(name="set-up", nbytes=max(0, most), why="links are read and split; no batch is held yet"),),
    )


def link_evaluation_needs(trial: Trial, runner: LinkRunner | EdgeRunner) -> tuple[Need, ...]:
    """Return the peak memory of the evaluations of a run on links or edges."""
    parts: tuple[tuple[str, Tensor | None, EvalMode], ...] = (
        ("validation", trial.val_nodes, trial.config.eval_mode),
        ("test", trial.test_nodes, "exact"),
    )
    count = runner.data.ends.nodes.numel()
    what = "ranks among them" if isinstance(runner, LinkRunner) else "outputs of edges"
    return tuple(
        Need(
            name=name,
            nbytes=_evaluation_bytes(trial, runner, positions, mode),
            why=f"rows of up to {count:,} nodes, and {what}",
        )
        for name, positions, mode in parts
        if positions is not None
    )


def link_evaluation_seconds(
    trial: Trial, runner: LinkRunner, positions: Tensor, mode: EvalMode, *, most: float
) -> float:
    """Return the seconds of an evaluation; some rows and rankings are tried for about ``most`` seconds."""
    config, nodes = trial.config, runner.data.ends.nodes
    part = nodes
    if mode == "sampled":
        part = nodes[: 4 * config.eval_batch_size]
    encode = timed(lambda: encoder_rows(runner, config, part, mode))
    rows, some = _some_rows(trial, runner), positions[: _links_at_once(runner)]
    if not _ranks_links(trial):
        return encode * nodes.numel() / part.numel()
    with trial.evaluating():
        rank = timed(lambda: ranking_of(runner, some, rows))
        if rank < most / 4:
            rank = timed(lambda: ranking_of(runner, some, rows))
    return encode * nodes.numel() / part.numel() + rank * positions.numel() / some.numel()


def _evaluation_bytes(
    trial: Trial, runner: LinkRunner | EdgeRunner, positions: Tensor, mode: EvalMode
) -> int:
    rows = _some_rows(trial, runner)
    encoding, pooled = _encoding_bytes(trial, runner, mode, rows.nbytes)
    with in_mode(runner.model, training=False), torch.no_grad():
        if isinstance(runner, EdgeRunner):
            edges = allocation_of(lambda: _outputs_of(runner, positions[:PAIRS], rows), trial.device).peak
            return rows.nbytes + max(encoding, pooled + edges)
        pairs = allocation_of(
            lambda: beside_negatives(runner, trial.config, positions[:PAIRS], rows), trial.device
        ).peak
        some, ranks = positions[: _links_at_once(runner)], 0
        if _ranks_links(trial):
            ranks = allocation_of(lambda: ranking_of(runner, some, rows), trial.device).peak
    # The pool keeps what it held at most while the rows were made.
    return rows.nbytes + max(encoding, pooled + max(pairs, ranks))


def _outputs_of(runner: EdgeRunner, positions: Tensor, rows: Tensor) -> Tensor:
    """Return the outputs of edges whose ends have the first rows."""
    attr = cast("EdgeLabels", runner.labels).edge_attr
    ends = rows[:1].expand(positions.numel(), -1).to(runner.device)
    return runner.decoded(ends, ends, None if attr is None else attr[positions])


def _encoding_bytes(
    trial: Trial, runner: LinkRunner | EdgeRunner, mode: EvalMode, rows_bytes: int
) -> tuple[int, int]:
    """Return the memory to make the rows beside their ``rows_bytes``, and the part that the pool keeps."""
    config, encoder, nodes = trial.config, runner.encoder_runner(), runner.data.ends.nodes
    if mode == "sampled":
        return sampled_pass(trial, encoder, nodes).nbytes, 0
    needed = whole_bytes(encoder)
    if needed > config.memory_budget_bytes:
        return config.memory_budget_bytes, 0
    if not may_be_tried(needed):
        return needed, 0
    made = allocation_of(lambda: encoder_rows(runner, config, nodes, "exact"), trial.device)
    return made.peak - rows_bytes, made.pooled


def _some_rows(trial: Trial, runner: LinkRunner | EdgeRunner) -> Tensor:
    """Return rows of the encoder's width for all nodes of links. Two such tables are made."""
    nodes = runner.data.ends.nodes
    found = encoder_rows(runner, trial.config.updated(plan=None), nodes[:2], "sampled")
    return found[:1].repeat(nodes.numel(), 1)


def _links_at_once(runner: LinkRunner) -> int:
    return max(1, MOST_SCORES // max(1, *runner.data.ends.counts))


def _ranks_links(trial: Trial) -> bool:
    return set(metric_kinds(trial.task, trial.config.metrics)) != {AUC}
